"""Throughput of pre-training BERT-base on real text: our whole pipeline compared with that of transformers.

    PYTHONPATH=src python bench/real_text.py --data DATA --tokenizer TOK [--samples documents --length 512]
                                             [--like-lengths] [--out result.json]

DATA is the output of `pretune prepare`. Ours: shards, packing, corruption in workers, and the training loop of `pretune
pretrain`. The peer: the same sequences as lists of tokens, a DataLoader with workers, DataCollatorForLanguageModeling,
BertForMaskedLM of the same size and dropout, bf16 autocast, fused AdamW and gradient clipping, in three variants: eager
(padded to the longest sequence of a batch), compiled (padded to the maximum length, so that it compiles once), and with
`--like-lengths` compiled on batches grouped by length (padded to one of a few lengths, each of which is compiled, with
as many sequences as fit the same number of positions). Windows of steps alternate in one process. Prints JSON: non-pad
tokens per second of the median window, the ratios, the share of time spent waiting for data, and `first_step`, the
seconds from process start to our first step without the time spent on the peers.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import pretune as pt
from pretune.runs.data_phases import DataPhases
from pretune.training.loop import Loop
from pretune.training.step import StepMetrics

WARM, WINDOW, ROUNDS = 30, 30, 3
EAGER, COMPILED, ALIKE = "transformers", "transformers + compile", "transformers + compile, grouped by length"


class Peer:
    """BertForMaskedLM with its own collator."""

    def __init__(self, name: str, sequences: list[np.ndarray], vocab: int, given: Any) -> None:
        self.name, self.device = name, given.device
        best, alike = name != EAGER, name == ALIKE
        torch.manual_seed(0)
        rates = {"hidden_dropout_prob": given.dropout, "attention_probs_dropout_prob": given.dropout}
        size = {} if given.width is None else {"hidden_size": given.width, "intermediate_size": 4 * given.width}
        size |= {} if given.width is None else {"num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.BertConfig(vocab_size=vocab, **rates, **size)
        self.model = transformers.BertForMaskedLM(config).to(given.device).train()
        self.run = torch.compile(self.model, dynamic=False) if best and given.device == "cuda" else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=given.device == "cuda" or None)
        tokenizer = transformers.AutoTokenizer.from_pretrained(given.tokenizer)
        collate = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=0.15, pad_to_multiple_of=given.length if best else 8
        )
        order = torch.utils.data.RandomSampler(sequences)
        batches = torch.utils.data.BatchSampler(order, given.batch_tokens // given.length, drop_last=True)
        self.batches = iter(
            torch.utils.data.DataLoader(
                [{"input_ids": one.tolist()} for one in sequences],
                batch_sampler=LengthGroupedBatches(sequences, given) if alike else batches,
                collate_fn=partial(pad_to_bucket, collate, compute_bucket_lengths(given.length)) if alike else collate,
                num_workers=given.workers,
                pin_memory=given.device == "cuda",
                prefetch_factor=4 if given.workers else None,
            )
        )
        self.warm = 5 + (len(compute_bucket_lengths(given.length)) if alike else 0)

    def run_steps(self, count: int) -> int:
        """Train for some steps; return the number of non-pad tokens."""
        tokens = 0
        for _ in range(count):
            batch = next(self.batches)
            tokens += int(batch["attention_mask"].sum())
            batch = {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.run(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return tokens


def compute_bucket_lengths(length: int) -> list[int]:
    """Return the lengths that batches are padded to, from an eighth of the maximum length."""
    found = {length >> halves for halves in range(4)} | {3 * length >> halves for halves in (2, 3, 4)}
    return sorted(one for one in found if one >= 8)


def pad_to_bucket(collate: Any, lengths: list[int], examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Collate a batch, padded to the smallest of the lengths that fits its longest sequence."""
    longest = max(len(one["input_ids"]) for one in examples)
    collate.pad_to_multiple_of = next(length for length in lengths if length >= longest)
    found: dict[str, torch.Tensor] = collate(examples)
    return found


class LengthGroupedBatches:
    """Batches grouped by length in random order, of about equal size; starts with one batch of each length."""

    def __init__(self, sequences: list[np.ndarray], given: Any) -> None:
        rng, sizes = np.random.default_rng(0), np.array([len(one) for one in sequences])
        first, rest = [], []
        for low, edge in itertools.pairwise([0, *compute_bucket_lengths(given.length)]):
            rows, here = given.batch_tokens // edge, rng.permutation(np.flatnonzero((sizes > low) & (sizes <= edge)))
            made = [here[i : i + rows].tolist() for i in range(0, len(here) - rows + 1, rows)]
            first += made[:1]
            rest += made[1:]
        self.batches = [*first, *(rest[i] for i in rng.permutation(len(rest)))]

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.cycle(self.batches)


class Alternate:
    """Hook of our loop that alternates a window of our steps with one of each peer."""

    def __init__(self, peers: list[Peer], device: str) -> None:
        self.peers, self.device = peers, device
        self.rates: dict[str, list[float]] = {"pretune": [], **{peer.name: [] for peer in peers}}
        self.begun = self.tokens = self.waited = 0.0
        self.done = -1
        self.waits: list[float] = []
        self.first = 0.0

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        self.tokens += sum(step.tokens for step in metrics)
        step = loop.state.step
        self.first = self.first or measure_process_age()
        if step == self.done or step < WARM or (step - WARM) % WINDOW:
            return
        self.done = step
        loop.flush()  # reports the pending metrics of this window to this hook before the clock is read
        self._sync()
        now = time.perf_counter()
        if self.begun:
            self.rates["pretune"].append(self.tokens / (now - self.begun))
            self.waits.append((loop.batches.wait_seconds - self.waited) / (now - self.begun))
            for peer in self.peers:
                self.rates[peer.name].append(self._timed(peer))
        else:
            for peer in self.peers:
                peer.run_steps(peer.warm)
        self._sync()
        self.tokens, self.waited, self.begun = 0.0, loop.batches.wait_seconds, time.perf_counter()

    def _timed(self, peer: Peer) -> float:
        peer.run_steps(2)
        self._sync()
        start = time.perf_counter()
        tokens = peer.run_steps(WINDOW // 2)
        self._sync()
        return tokens / (time.perf_counter() - start)

    def _sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure_process_age() -> float:
    """Return the seconds since this process started."""
    begun = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun


def read_sequences(course: DataPhases, count: int) -> Iterator[np.ndarray]:
    """Yield the first sequences of the stream before corruption."""
    stream = course.streams[0]
    step = 0
    while count > 0:
        epoch, at = stream.locate_step(step)
        draws, plan = stream._get_epoch(epoch)
        which, _ = plan.get_batch(at, 0, 1)
        cut = stream.samples.cut(draws.take(which))
        yield from (np.asarray(cut.tokens[a:b]) for a, b in zip(cut.offsets[:-1], cut.offsets[1:], strict=True))
        count -= len(which)
        step += 1


def main() -> None:
    """Train with the alternating hook and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--samples", default="sentences")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch-tokens", type=int, default=65_536)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--like-lengths", action="store_true", help="also measure the peer with batches grouped by length"
    )
    parser.add_argument("--width", type=int, help="width of a two-layer model, to test the script")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    rounds = Loop.run
    hook: list[Alternate] = []
    opened: list[DataPhases] = []
    spent: list[float] = []
    opening = DataPhases.open

    def remember(*args: Any, **options: Any) -> DataPhases:
        opened.append(opening(*args, **options))
        return opened[-1]

    def alternated(self: Loop, *arguments: Any) -> Any:
        if not hook:
            spent.append(-measure_process_age())
            need = given.batch_tokens // given.length * (WINDOW // 2 + 2) * (ROUNDS + 1) + 4096
            found = list(read_sequences(opened[-1], (4 if given.like_lengths else 2) * need))
            vocab = self.module.model.spec.vocab
            torch._dynamo.config.recompile_limit = 64  # every padded length of the peer is a graph
            peers = [
                Peer(name, found, vocab, given)
                for name in (EAGER, COMPILED, *([ALIKE] if given.like_lengths else []))
                if name != COMPILED or given.device == "cuda"
            ]
            hook.append(Alternate(peers, given.device))
            lengths = np.array([len(one) for one in found])
            spent.append(measure_process_age())
            print(f"{len(found)} sequences, median {np.median(lengths):.0f}, mean {lengths.mean():.1f} tokens")
        self.hooks = [*self.hooks, hook[0]]
        return rounds(self, *arguments)

    Loop.run = alternated  # type: ignore[method-assign]
    DataPhases.open = remember  # type: ignore[method-assign, assignment]
    changes: dict[str, Any] = {
        "data.samples": given.samples,
        "data.max_length": given.length,
        "data.length_schedule": None,
        "train.eval_tokens": 0,
        "train.batch_tokens": given.batch_tokens,
        "model.encoder.blocks.0.dropout": given.dropout,
        "model.encoder.blocks.0.attention.dropout": given.dropout,
        "model.encoder.embed.dropout": given.dropout,
    }
    if given.width:
        changes |= {"model.width": given.width}
    with tempfile.TemporaryDirectory() as folder:
        pt.pretrain(
            "bert-base" if given.width is None else "bert-tiny",
            data=given.data,
            objective="masked",
            steps=WARM + WINDOW * ROUNDS + 1,
            out=f"{folder}/run",
            overrides=changes,
        )
    found = hook[0]
    rates = {name: statistics.median(values) for name, values in found.rates.items()}
    result = {
        "samples": given.samples,
        "length": given.length,
        "dropout": given.dropout,
        "tokens_per_second": {name: round(rate) for name, rate in rates.items()},
        "rounds": {name: [round(value) for value in values] for name, values in found.rates.items()},
        "first_step": round(found.first - sum(spent), 1),
        "waiting": round(statistics.median(found.waits), 4),
        "ratio": {name: round(rates["pretune"] / rate, 2) for name, rate in rates.items() if name != "pretune"},
    }
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
