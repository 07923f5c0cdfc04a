"""Throughput of pre-training BERT-base on real text: our whole pipeline compared with that of transformers.

    python -m bench.speed.real_text --data DATA --tokenizer TOK [--samples documents --length 512]
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

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers

import pretune as pt
from bench import common
from pretune.runs.data_phases import DataPhases
from pretune.training.loop import Loop
from pretune.training.step import StepMetrics

WARMUP_STEPS, WINDOW, ROUNDS = 30, 30, 3
EAGER, COMPILED_PEER, GROUPED_PEER = (
    "transformers",
    "transformers + compile",
    "transformers + compile, grouped by length",
)


class Peer:
    """BertForMaskedLM with its own collator."""

    def __init__(self, name: str, sequences: list[np.ndarray], vocab: int, options: Any) -> None:
        self.name, self.device = name, options.device
        is_compiled, is_grouped = name != EAGER, name == GROUPED_PEER
        torch.manual_seed(0)
        size = {} if options.width is None else {"hidden_size": options.width, "intermediate_size": 4 * options.width}
        size |= {} if options.width is None else {"num_hidden_layers": 2, "num_attention_heads": 2}
        self.model = common.build_bert(options.dropout, vocab_size=vocab, **size).to(options.device).train()
        self.run = torch.compile(self.model, dynamic=False) if is_compiled and options.device == "cuda" else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=options.device == "cuda" or None)
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
        collate = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=0.15, pad_to_multiple_of=options.length if is_compiled else 8
        )
        order = torch.utils.data.RandomSampler(sequences)
        batches = torch.utils.data.BatchSampler(order, options.batch_tokens // options.length, drop_last=True)
        self.batches = iter(
            torch.utils.data.DataLoader(
                [{"input_ids": sequence.tolist()} for sequence in sequences],
                batch_sampler=LengthGroupedBatches(sequences, options) if is_grouped else batches,
                collate_fn=partial(pad_to_bucket, collate, compute_bucket_lengths(options.length))
                if is_grouped
                else collate,
                num_workers=options.workers,
                pin_memory=options.device == "cuda",
                prefetch_factor=4 if options.workers else None,
            )
        )
        self.warmup_steps = 5 + (len(compute_bucket_lengths(options.length)) if is_grouped else 0)

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
    lengths = {length >> halvings for halvings in range(4)} | {3 * length >> halvings for halvings in (2, 3, 4)}
    return sorted(bucket for bucket in lengths if bucket >= 8)


def pad_to_bucket(collate: Any, lengths: list[int], examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Collate a batch, padded to the smallest of the lengths that fits its longest sequence."""
    longest = max(len(example["input_ids"]) for example in examples)
    collate.pad_to_multiple_of = next(length for length in lengths if length >= longest)
    batch: dict[str, torch.Tensor] = collate(examples)
    return batch


class LengthGroupedBatches:
    """Batches grouped by length in random order, of about equal size; starts with one batch of each length."""

    def __init__(self, sequences: list[np.ndarray], options: Any) -> None:
        rng, sizes = np.random.default_rng(0), np.array([len(sequence) for sequence in sequences])
        first, rest = [], []
        for low, edge in itertools.pairwise([0, *compute_bucket_lengths(options.length)]):
            rows, bucket = (
                options.batch_tokens // edge,
                rng.permutation(np.flatnonzero((sizes > low) & (sizes <= edge))),
            )
            batches = [bucket[i : i + rows].tolist() for i in range(0, len(bucket) - rows + 1, rows)]
            first += batches[:1]
            rest += batches[1:]
        self.batches = [*first, *(rest[i] for i in rng.permutation(len(rest)))]

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.cycle(self.batches)


class Alternate:
    """Hook of our loop that alternates a window of our steps with one of each peer."""

    def __init__(self, peers: list[Peer], device: str) -> None:
        self.peers, self.device = peers, device
        self.rates: dict[str, list[float]] = {"pretune": [], **{peer.name: [] for peer in peers}}
        self.window_start = self.tokens = self.wait_start = 0.0
        self.last_step = -1
        self.wait_shares: list[float] = []
        self.first_step_age = 0.0

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        self.tokens += sum(step.tokens for step in metrics)
        step = loop.state.step
        self.first_step_age = self.first_step_age or measure_process_age()
        if step == self.last_step or step < WARMUP_STEPS or (step - WARMUP_STEPS) % WINDOW:
            return
        self.last_step = step
        loop.flush()  # reports the pending metrics of this window to this hook before the clock is read
        common.synchronize(self.device)
        if self.window_start:
            seconds = common.wall_clock() - self.window_start
            self.rates["pretune"].append(self.tokens / seconds)
            self.wait_shares.append((loop.batches.wait_seconds - self.wait_start) / seconds)
            for peer in self.peers:
                self.rates[peer.name].append(self._measure_peer(peer))
        else:
            for peer in self.peers:
                peer.run_steps(peer.warmup_steps)
        common.synchronize(self.device)
        self.tokens, self.wait_start, self.window_start = 0.0, loop.batches.wait_seconds, common.wall_clock()

    def _measure_peer(self, peer: Peer) -> float:
        """Return the non-pad tokens per second of a window of the peer."""
        peer.run_steps(2)
        seconds, tokens = common.time_call(
            lambda: peer.run_steps(WINDOW // 2), clock=common.wall_clock, device=self.device
        )
        return float(tokens / seconds)


def measure_process_age() -> float:
    """Return the seconds since this process started."""
    start = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start


def read_sequences(phases: DataPhases, count: int) -> Iterator[np.ndarray]:
    """Yield the first sequences of the stream before corruption."""
    stream = phases.streams[0]
    step = 0
    while count > 0:
        epoch, number = stream.locate_step(step)
        draws, plan = stream.get_epoch(epoch)
        samples, _ = plan.get_batch(number, 0, 1)
        cut = stream.samples.cut(draws.take(samples))
        yield from (np.asarray(cut.tokens[a:b]) for a, b in zip(cut.offsets[:-1], cut.offsets[1:], strict=True))
        count -= len(samples)
        step += 1


def main() -> None:
    """Train with the alternating hook and print the ratios."""
    parser = common.build_parser(__doc__)
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
    options = parser.parse_args()
    options.device = common.find_device()
    torch.set_float32_matmul_precision("high")
    run_loop, open_phases = Loop.run, DataPhases.open
    hook: list[Alternate] = []
    phases: list[DataPhases] = []
    peer_seconds: list[float] = []

    def record_phases(*args: Any, **kwargs: Any) -> DataPhases:
        phases.append(open_phases(*args, **kwargs))
        return phases[-1]

    def run_with_hook(self: Loop, *arguments: Any) -> Any:
        if not hook:
            peer_seconds.append(-measure_process_age())
            need = options.batch_tokens // options.length * (WINDOW // 2 + 2) * (ROUNDS + 1) + 4096
            sequences = list(read_sequences(phases[-1], (4 if options.like_lengths else 2) * need))
            vocab = self.module.model.spec.vocab
            torch._dynamo.config.recompile_limit = 64  # every padded length of the peer is a graph
            peers = [
                Peer(name, sequences, vocab, options)
                for name in (EAGER, COMPILED_PEER, *([GROUPED_PEER] if options.like_lengths else []))
                if name != COMPILED_PEER or options.device == "cuda"
            ]
            hook.append(Alternate(peers, options.device))
            lengths = np.array([len(sequence) for sequence in sequences])
            peer_seconds.append(measure_process_age())
            print(f"{len(sequences)} sequences, median {np.median(lengths):.0f}, mean {lengths.mean():.1f} tokens")
        self.hooks = [*self.hooks, hook[0]]
        return run_loop(self, *arguments)

    Loop.run = run_with_hook  # type: ignore[method-assign]
    DataPhases.open = record_phases  # type: ignore[method-assign, assignment]
    overrides: dict[str, Any] = {
        "data.samples": options.samples,
        "data.max_length": options.length,
        "data.length_schedule": None,
        "train.eval_tokens": 0,
        "train.batch_tokens": options.batch_tokens,
        "model.encoder.blocks.0.dropout": options.dropout,
        "model.encoder.blocks.0.attention.dropout": options.dropout,
        "model.encoder.embed.dropout": options.dropout,
    }
    if options.width:
        overrides |= {"model.width": options.width}
    with tempfile.TemporaryDirectory() as folder:
        pt.pretrain(
            "bert-base" if options.width is None else "bert-tiny",
            data=options.data,
            objective="masked",
            steps=WARMUP_STEPS + WINDOW * ROUNDS + 1,
            paper=True,
            out=f"{folder}/run",
            overrides=overrides,
        )
    rates = common.compute_medians(hook[0].rates)
    result = {
        "samples": options.samples,
        "length": options.length,
        "dropout": options.dropout,
        "tokens_per_second": {name: round(rate) for name, rate in rates.items()},
        "rounds": {name: [round(value) for value in values] for name, values in hook[0].rates.items()},
        "first_step": round(hook[0].first_step_age - sum(peer_seconds), 1),
        "waiting": round(median(hook[0].wait_shares), 4),
        "ratio": common.compute_ratios(rates),
    }
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
