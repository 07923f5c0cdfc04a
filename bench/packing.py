"""Speed of planning and packing batches, and fill rate of their rows, compared with next fit and padding.

    PYTHONPATH=src python bench/packing.py [--megabytes 24] [--out result.json]

Words are used as tokens, since this measures the stages after the tokenizer. The text comes from $PRETUNE_DATA
(default: ../shared/data next to the checkout); without it, lengths are drawn from a log-normal distribution with the
same median. Peers on the same lengths: rows filled in order (next fit), and batches of 64 sequences padded to the
longest. Prints samples planned per second, fill rates, and milliseconds to cut a batch, lay it out, and produce a step.
"""

import argparse
import json
import lzma
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pretune.core.types import IGNORE_INDEX
from pretune.data.batch_shape import BatchShape, LengthSchedule, Phase
from pretune.data.counters import Counters
from pretune.data.layout import lay_out
from pretune.data.pairs import SegmentPairs
from pretune.data.plan import build_plan
from pretune.data.samples import Blocks, Documents, Sentences
from pretune.data.sequences import Ints, Sequences, compute_offsets
from pretune.data.shards import DataIndex, Shards, ShardSplit, ShardWriter, write_index
from pretune.data.stream import BatchStream, compute_row_lengths
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate

FRAME = TokenTemplate(single=((1, 0), (TEXT_A, 0), (2, 0)), pair=((1, 0), (TEXT_A, 0), (2, 0), (TEXT_B, 1), (2, 1)))
TOKENS = 65_536
FILES = ("wikinews-en/train.txt.xz", "wikipedia-en/train-00.txt.xz", "books-en/train-00.txt.xz")
SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


class SpanCorruptionBound:
    """Length bound of span corruption: 15 % of tokens, in spans of 3, move to the target."""

    copies = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        noise = np.rint(n * 0.15).astype(np.int64).clip(1)
        spans = np.rint(noise / 3).astype(np.int64).clip(1)
        return n - noise + spans + 1, noise + spans + 2

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        raise NotImplementedError

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens


def read_documents(megabytes: float) -> Iterator[list[list[str]]]:
    """Yield documents as lists of sentences, each a list of words."""
    root = Path(os.environ.get("PRETUNE_DATA") or Path(__file__).parents[2] / "shared" / "data") / "corpora"
    if not root.is_dir():
        rng = np.random.default_rng(0)
        for _ in range(int(megabytes * 600)):
            sizes = np.exp(rng.normal(3.0, 0.6, int(rng.geometric(0.05)))).astype(int).clip(1, 300)
            yield [["w"] * int(size) for size in sizes]
        return
    for name in FILES:
        with lzma.open(root / name, "rt", encoding="utf-8") as file:
            for block in file.read(int(megabytes * 1e6 / len(FILES))).split("\n\n"):
                found = [
                    words for line in block.splitlines() for part in SENTENCE.split(line) if (words := part.split())
                ]
                if found:
                    yield found


def write_shards(folder: Path, megabytes: float) -> tuple[float, int]:
    """Write shards; return the seconds and the number of tokens."""
    documents = list(read_documents(megabytes))
    sizes = [np.array([len(sentence) for sentence in document]) for document in documents]
    lengths = np.array([size.sum() for size in sizes])
    tokens = np.random.default_rng(0).integers(5, 30_000, lengths.sum())
    sentences = np.concatenate(
        [compute_offsets(size)[:-1] + start for size, start in zip(sizes, compute_offsets(lengths), strict=False)]
    )
    start = time.perf_counter()
    with ShardWriter(folder / "train", "uint16") as writer:
        writer.add(tokens, compute_offsets(lengths), words=np.ones(len(tokens), dtype=bool), sentences=sentences)
    seconds = time.perf_counter() - start
    split = ShardSplit(shards=tuple(writer.shards))
    made = DataIndex(
        tokenizer_sha256="", vocab=30_000, dtype="uint16", fingerprint="", sources=("text",), splits={"train": split}
    )
    write_index(folder, made)
    return seconds, len(tokens)


def median(work: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def next_fit(lengths: Ints, room: int) -> float:
    """Return the fill rate of rows filled in order."""
    rows, used = 1, 0
    for length in lengths.tolist():
        if used + length > room:
            rows, used = rows + 1, 0
        used += length
    return float(lengths.sum() / (rows * room))


def compute_padded_fill(lengths: Ints, rows: int) -> float:
    """Return the fill rate of batches of `rows` sequences padded to their longest."""
    rows = min(rows, len(lengths))
    whole = len(lengths) // rows * rows
    part = lengths[:whole].reshape(-1, rows)
    return float(part.sum() / (part.max(axis=1) * rows).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds, count = write_shards(folder, options.megabytes)
        shards = Shards.open(folder, "train")
        result["shards"] = {"tokens": count, "write_tokens_per_s": round(count / seconds)}
        result["shards"]["open_s"] = round(median(lambda: Shards.open(folder, "train"), 5), 4)
        print(f"{count:,} tokens, {len(shards.sentences):,} sentences, {len(shards.documents) - 1:,} documents")
        opened = result["shards"]["open_s"] * 1e3
        print(f"shards: {count / seconds / 1e6:.0f} M tokens/s written, opened in {opened:.1f} ms\n")
        work = {
            "sentences 128": (Sentences(limit=128), 128, None, None),
            "sentences 128 in rows of 512": (Sentences(limit=128), 512, None, None),
            "documents 512": (Documents(limit=512), 512, None, None),
            "documents 1024": (Documents(limit=1024), 1024, None, None),
            "pairs 128": (SegmentPairs(limit=128), 128, None, None),
            "pairs 512": (SegmentPairs(limit=512), 512, None, None),
            "blocks 1024": (Blocks(length=1024), 1024, None, None),
            "spans 512 -> 462/105": (Documents(limit=512), 105, 462, SpanCorruptionBound()),
        }
        head = f"{'':30}{'samples':>9}{'plan':>12}{'fill':>8}{'in order':>10}{'padded':>8}{'per row':>9}"
        print(f"{head}{'cut':>8}{'lay out':>9}{'step':>9}")
        for label, (kind, room, source, lesson) in work.items():
            result[label] = measure_case(label, kind.open(shards, FRAME), room, source, lesson)
        result["million"] = plan_million(Sentences(limit=128).open(shards, FRAME).lengths())
        print(f"\na million sentences planned in {result['million']:.2f} s")
        stages = LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))
        print("schedule:", *stages.build_stages(steps=1000, tokens=TOKENS), sep="\n  ")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def measure_case(label: str, samples: Any, room: int, source: int | None, lesson: Any) -> dict[str, Any]:
    shape = BatchShape(rows=TOKENS // (source or room), length=room, source=source)
    stream = BatchStream(samples, shape, seed=0, corruption=lesson)
    draws = samples.assign_partners(stream.mixture.draw_order(0, 0))
    lengths = samples.lengths(draws)
    own, other = compute_row_lengths(samples, lesson, draws)
    seconds = median(lambda: build_plan(own, stream.shape, seed=0, epoch=0, source=other), 3)
    plan = stream.plan(0)
    which, row = plan.get_batch(0)
    cut_s = median(lambda: samples.cut(draws.take(which), words=True, sentences=True), 9)
    cut = samples.cut(draws.take(which))
    lay_s = step_s = 0.0
    if lesson is None:
        labels = np.where(np.random.default_rng(0).random(len(cut.tokens)) < 0.15, cut.tokens, IGNORE_INDEX)
        made = Sequences(tokens=cut.tokens, offsets=cut.offsets, segments=cut.segments, targets=labels)
        lay_s = median(lambda: lay_out(made, row, stream.shape), 9)
        step_s = median(lambda: stream[0], 9)
    found = {
        "samples": len(draws),
        "plan_s": round(seconds, 3),
        "samples_per_s": round(len(draws) / seconds),
        "fill": round(plan.fill, 5),
        "source_fill": plan.source_fill and round(plan.source_fill, 5),
        "next_fit": None if lesson else round(next_fit(lengths, room), 4),
        "padded": None if lesson else round(compute_padded_fill(lengths, 64), 4),
        "cut_ms": round(cut_s * 1e3, 2),
        "lay_out_ms": round(lay_s * 1e3, 2),
        "step_ms": round(step_s * 1e3, 2),
        "sequences_per_row": stream.shape.sequences,
    }
    fill = f"{plan.fill:8.2%}" if plan.source_fill is None else f"{plan.source_fill:8.2%}"
    order = "" if lesson else f"{found['next_fit']:10.1%}{found['padded']:8.1%}"
    print(
        f"{label:30}{len(draws):9,}{len(draws) / seconds / 1e6:8.2f} M/s{fill}{order:18}{stream.shape.sequences:9}"
        f"{cut_s * 1e3:5.1f} ms{lay_s * 1e3:6.2f} ms{step_s * 1e3:6.2f} ms"
    )
    if plan.source_fill is not None:
        print(f"{'  target side':51}{plan.fill:8.2%}")
    return found


def plan_million(lengths: Ints) -> float:
    """Return the seconds to plan a million sentences."""
    many = np.random.default_rng(0).choice(lengths, 1_000_000)
    shape = BatchShape(rows=512, length=128, sequences=32)
    start = time.perf_counter()
    build_plan(many, shape, seed=0, epoch=0)
    return round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    main()
