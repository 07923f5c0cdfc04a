"""Regression check of the CPU speed ratios against their peers, compared with the recorded ratios.

    PYTHONPATH=src python bench/guard.py [--rows encoding] [--record] [--rounds 5] [--out result.json]

Prints JSON and exits with 1 if a row is more than 15 % below its recorded ratio. A ratio compares the CPU times of two
sides, alternated in one process with one thread; the best of several rounds counts, since other load only adds time. A
row that is too low is measured twice more with twice the rounds. Ratios differ between processors: `guard.json` holds
those of each machine, with the package versions; `--record` writes the ratios of this machine. The text is synthetic,
so no data is needed.

    corruption masked      `masked` on 65,536 tokens; DataCollatorForLanguageModeling
    corruption permuted    `permuted`; DataCollatorForPermutationLanguageModeling
    encoding               a megabyte of text to ids, word starts and character starts; ids only by `tokenizers`
    training encoder       BERT-tiny on sentences; transformers tuned (grouped by length, fused AdamW)
    training decoder       a GPT-2 of the same size on documents of 20 to 128 tokens; transformers tuned
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

FILE = Path(__file__).with_name("guard.json")
MAX_LOSS = 0.15
Pair = tuple[Callable[[], int], Callable[[], int]]
"""Our work and the peer's: each call returns the amount of work done."""


def build_corruption(name: str) -> Pair:
    """Build the corruption of an objective and its collator."""
    import objectives

    objective = objectives.OBJECTIVES.get(name)()
    made = objectives.build_call(objective, objective.shapes[0], 65_536, 128)
    peer = objectives.build_peer_calls(16_384, 128)[name][1]
    turn = iter(range(10**6))
    return lambda: _return_amount(made(next(turn)), 65_536), lambda: _return_amount(peer(0), 16_384)


def build_encoding() -> Pair:
    """Build our `encode_batch` with a warm word cache and that of `tokenizers`."""
    from pretune.text.tokenizer import train

    documents = list(make_texts(2_000, 60))
    tokenizer = train("wordpiece", documents[:600], vocab=4_000)
    size = sum(map(len, documents))
    tokenizer.encode_batch(documents)
    raw: Any = tokenizer.raw
    return (
        lambda: _return_amount(tokenizer.encode_batch(documents), size),
        lambda: _return_amount([one.ids for one in raw.encode_batch_fast(documents, add_special_tokens=False)], size),
    )


def build_training(family: str, objective: str) -> Pair:
    """Build our training steps and those of transformers with padded batches, on the same sequences."""
    import cpu_pretraining as work
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    import pretune as pt
    from pretune.data.batch_shape import BatchShape
    from pretune.data.stream import BatchStream
    from pretune.models.catalog import resolve
    from pretune.objectives.base import Vocabulary
    from pretune.runs.defaults import replace_heads
    from pretune.runs.training_data import DataConfig, TrainingData

    torch.manual_seed(0)
    chosen = pt.objective(objective)
    size = {"width": 128, "depth": 2, "heads": 2}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("\n\n".join(make_texts(3_000, 24)))
        style = "cls-sep" if family == "bert" else "endoftext"
        kind = "wordpiece" if family == "bert" else "bpe"
        tok = pt.train_tokenizer(kind, [str(folder / "text.txt")], vocab=4_000, style=style)
        data = pt.prepare([folder / "text.txt"], tokenizer=tok, out=folder / "data", holdout="0%", workers=0)
        tok.save(folder / "tok")
        reference = AutoTokenizer.from_pretrained(folder / "tok")
        reference.pad_token = reference.pad_token or reference.eos_token
        shape = "encoder" if family == "bert" else "decoder"
        source = TrainingData.open(DataConfig(path=str(data.path), max_length=work.LENGTH), chosen, shape)
        samples = source.build_samples("train", work.LENGTH, chosen)
        lesson = chosen.bind(Vocabulary.from_tokenizer(source.tokenizer), shape)
        stream = BatchStream(
            samples, BatchShape(rows=work.TOKENS // work.LENGTH, length=work.LENGTH), seed=0, corruption=lesson
        )
        plain = BatchStream(samples, BatchShape(rows=32, length=work.LENGTH), seed=0)
        sequences = [part.tolist() for part in plain[0].split(plain[0].tokens)]
        held = [stream[step] for step in range(2)]  # the folder is deleted
    vocab = source.tokenizer.vocab
    knobs = {**size, "vocab": vocab, **({} if family == "bert" else {"positions": work.LENGTH})}
    model = pt.build(replace_heads(resolve("bert-tiny" if family == "bert" else "gpt2", knobs), chosen), seed=0).train()
    wide = {"vocab_size": vocab, "bos_token_id": None, "eos_token_id": None}
    peer: Any
    if family == "bert":
        shaped = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        peer = BertForMaskedLM(BertConfig(**wide, **shaped))
    else:
        shaped = {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": work.LENGTH}
        peer = GPT2LMHeadModel(GPT2Config(**wide, **shaped))
    ours = work.run_ours(model, _CachedBatches(held), chosen)
    theirs = work.run_theirs(peer.train(), sequences, reference, best=True, masked=family == "bert")
    theirs_all = len(work.group_sequences(sequences, best=True))
    return lambda: _cycle(ours, len(held)), lambda: _cycle(theirs, theirs_all)


def _cycle(steps: Iterator[int], count: int) -> int:
    """Train once on all batches of a side, so that every round has the same work."""
    return sum(next(steps) for _ in range(count))


class _CachedBatches:
    """A stream that repeats the same batches."""

    def __init__(self, held: list[Any]) -> None:
        self.held = held

    def iter_batches(self) -> Iterator[Any]:
        while True:
            yield from self.held


ROWS: Mapping[str, Callable[[], Pair]] = {
    "corruption masked": lambda: build_corruption("masked"),
    "corruption permuted": lambda: build_corruption("permuted"),
    "encoding": build_encoding,
    "training encoder": lambda: build_training("bert", "masked"),
    "training decoder": lambda: build_training("gpt2", "causal"),
}


def make_texts(count: int, words: int) -> Iterator[str]:
    """Yield sentences of about `words` words with a Zipf distribution."""
    import numpy as np

    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    known = ["".join(letters[rng.zipf(1.4, size) % 26]) for size in rng.integers(2, 10, 5_000)]
    for length in np.clip(rng.lognormal(np.log(words), 0.6, count), 4, 4 * words).astype(int).tolist():
        yield " ".join(known[one] for one in (rng.zipf(1.2, length) % 5_000).tolist()).capitalize() + "."


def _return_amount(result: object, amount: int) -> int:
    return amount


def compute_ratio(pair: Pair, rounds: int, min_seconds: float = 0.2) -> float:
    """Return our best rate over the peer's, in alternated rounds of at least `min_seconds` after a warm-up round."""
    best = [0.0, 0.0]
    for turn in range(rounds + 1):
        for which, work in enumerate(pair):
            begun, done, spent = time.process_time(), 0, 0.0
            while spent < min_seconds:
                done += work()
                spent = time.process_time() - begun
            if turn:  # the first round is a warm-up
                best[which] = max(best[which], done / spent)
    return best[0] / best[1]


def find_regressions(found: Mapping[str, float], recorded: Mapping[str, float]) -> dict[str, float]:
    """Return the rows that are more than `MAX_LOSS` below their record, with the share that is left."""
    left = {name: found[name] / recorded[name] for name in found if name in recorded}
    return {name: share for name, share in left.items() if share < 1 - MAX_LOSS}


def describe_machine() -> str:
    """Return the name of the processor."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    part = f"{named.get('CPU implementer', '')} {named.get('CPU part', '')}".strip()
    return f"{platform.machine()} {named.get('model name') or part or platform.processor()}".strip()


def get_versions() -> dict[str, str]:
    """Return the versions of the packages that both sides use."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}


def measure(names: list[str], rounds: int, recorded: Mapping[str, float]) -> dict[str, float]:
    """Return the ratio of each row; one below its record is measured again, and its best ratio counts."""
    found: dict[str, float] = {}
    for name in names:
        pair = ROWS[name]()
        found[name] = compute_ratio(pair, rounds)
        for _ in range(2):
            if find_regressions({name: found[name]}, recorded):
                found[name] = max(found[name], compute_ratio(pair, 2 * rounds))
        said = f", recorded {recorded[name]:.2f}" if name in recorded else ""
        print(f"{name:<20} {found[name]:8.2f} x the peer{said}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Measure the rows, compare them with the record, and update it with `--record`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=[*ROWS], default=[*ROWS], metavar="ROW")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true", help="save the ratios of this machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    here = known.get(describe_machine(), {})
    here = here["ratios"] if here.get("versions") == get_versions() else {}
    found = {name: round(value, 2) for name, value in measure(options.rows, options.rounds, here).items()}
    gone = find_regressions(found, here)
    result = {"machine": describe_machine(), "versions": get_versions(), "ratios": found, "regressions": gone}
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2))
    if options.record:
        known[describe_machine()] = {"versions": get_versions(), "ratios": {**here, **found}}
        FILE.write_text(json.dumps(known, indent=2) + "\n")
        return 0
    if not here:
        print("no record for this machine and these versions; create one with --record", file=sys.stderr)
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
