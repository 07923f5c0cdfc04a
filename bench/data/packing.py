"""Speed of planning and packing batches, and fill rate of their rows, compared with next fit and padding.

    python -m bench.data.packing [--megabytes 24] [--out result.json]

Words are used as tokens, since this measures the stages after the tokenizer. The text comes from $PRETUNE_DATA
(default: ../shared/data next to the checkout); without it, lengths are drawn from a log-normal distribution with the
same median. Peers on the same lengths: rows filled in order (next fit), and batches of 64 sequences padded to the
longest. Prints samples planned per second, fill rates, and milliseconds to cut a batch, lay it out, and produce a step.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import common
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.pairs import SegmentPairs
from pretune.data.plan import BatchShape, LengthSchedule, Phase, build_plan
from pretune.data.samples import Blocks, Documents, Sentences
from pretune.data.sequences import Ints, Sequences, compute_offsets
from pretune.data.shards import DataIndex, Shards, ShardSplit, ShardWriter, write_index
from pretune.data.stream import BatchStream, Corruption, compute_row_lengths
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate

FRAME = TokenTemplate(single=((1, 0), (TEXT_A, 0), (2, 0)), pair=((1, 0), (TEXT_A, 0), (2, 0), (TEXT_B, 1), (2, 1)))
TOKENS = 65_536
CORPORA = ("wikinews-en/train", "wikipedia-en/train-00", "books-en/train-00")
SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


class SpanCorruptionBound(Corruption):
    """Length bound of span corruption: 15 % of tokens, in spans of 3, move to the target."""

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        noise = np.rint(n * 0.15).astype(np.int64).clip(1)
        spans = np.rint(noise / 3).astype(np.int64).clip(1)
        return n - noise + spans + 1, noise + spans + 2


def read_documents(megabytes: float) -> Iterator[list[list[str]]]:
    """Yield documents as lists of sentences, each a list of words."""
    if not common.find_data("corpora").is_dir():
        rng = np.random.default_rng(0)
        for _ in range(int(megabytes * 600)):
            sizes = np.exp(rng.normal(3.0, 0.6, int(rng.geometric(0.05)))).astype(int).clip(1, 300)
            yield [["w"] * int(size) for size in sizes]
        return
    for name in CORPORA:
        for block in common.read_corpus(name, int(megabytes * 1e6 / len(CORPORA))).split("\n\n"):
            sentences = [part.split() for line in block.splitlines() for part in SENTENCE.split(line)]
            if any(sentences):
                yield [words for words in sentences if words]


def write_shards(folder: Path, megabytes: float) -> tuple[float, int]:
    """Write shards; return the seconds and the number of tokens."""
    documents = list(read_documents(megabytes))
    sizes = [np.array([len(sentence) for sentence in document]) for document in documents]
    lengths = np.array([size.sum() for size in sizes])
    tokens = np.random.default_rng(0).integers(5, 30_000, lengths.sum())
    sentences = np.concatenate(
        [compute_offsets(size)[:-1] + start for size, start in zip(sizes, compute_offsets(lengths), strict=False)]
    )
    start = common.wall_clock()
    with ShardWriter(folder / "train", "uint16") as writer:
        writer.add(tokens, compute_offsets(lengths), words=np.ones(len(tokens), dtype=bool), sentences=sentences)
    seconds = common.wall_clock() - start
    split = ShardSplit(shards=tuple(writer.shards))
    index = DataIndex(
        tokenizer_sha256="", vocab=30_000, dtype="uint16", fingerprint="", sources=("text",), splits={"train": split}
    )
    write_index(folder, index)
    return seconds, len(tokens)


def measure_median(work: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call."""
    return median(common.measure_seconds(work, clock=common.wall_clock) for _ in range(repeats))


def compute_next_fit_fill(lengths: Ints, room: int) -> float:
    """Return the fill rate of rows filled in order."""
    rows, position = 1, 0
    for length in lengths.tolist():
        if position + length > room:
            rows, position = rows + 1, 0
        position += length
    return float(lengths.sum() / (rows * room))


def compute_padded_fill(lengths: Ints, rows: int) -> float:
    """Return the fill rate of batches of `rows` sequences padded to their longest."""
    rows = min(rows, len(lengths))
    batches = lengths[: len(lengths) // rows * rows].reshape(-1, rows)
    return float(batches.sum() / (batches.max(axis=1) * rows).sum())


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=24)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds, count = write_shards(folder, options.megabytes)
        shards = Shards.open(folder, "train")
        result["shards"] = {"tokens": count, "write_tokens_per_s": round(count / seconds)}
        result["shards"]["open_s"] = round(measure_median(lambda: Shards.open(folder, "train"), 5), 4)
        print(f"{count:,} tokens, {len(shards.sentences):,} sentences, {len(shards.documents) - 1:,} documents")
        open_ms = result["shards"]["open_s"] * 1e3
        print(f"shards: {count / seconds / 1e6:.0f} M tokens/s written, opened in {open_ms:.1f} ms\n")
        cases = {
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
        for label, (kind, room, source, corruption) in cases.items():
            result[label] = measure_case(label, kind.open(shards, FRAME), room, source, corruption)
        result["million"] = plan_million(Sentences(limit=128).open(shards, FRAME).lengths())
        print(f"\na million sentences planned in {result['million']:.2f} s")
        stages = LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))
        print("steps of the phases of 1,000:", *stages.divide(1000))
    common.write_result(result, options.out)


def measure_case(label: str, samples: Any, room: int, source: int | None, corruption: Any) -> dict[str, Any]:
    """Measure planning, cutting and layout of one kind of sample, and print a line."""
    shape = BatchShape(rows=TOKENS // (source or room), length=room, source=source)
    stream = BatchStream(samples, shape, seed=0, corruption=corruption)
    draws = samples.assign_partners(stream.mixture.draw_order(0, 0))
    lengths = samples.lengths(draws)
    row_lengths, source_lengths = compute_row_lengths(samples, corruption, draws)
    seconds = measure_median(lambda: build_plan(row_lengths, stream.shape, seed=0, epoch=0, source=source_lengths), 3)
    plan = stream.plan(0)
    numbers, row = plan.get_batch(0)
    cut_s = measure_median(lambda: samples.cut(draws.take(numbers), words=True, sentences=True), 9)
    cut = samples.cut(draws.take(numbers))
    lay_s = step_s = 0.0
    if corruption is None:
        labels = np.where(np.random.default_rng(0).random(len(cut.tokens)) < 0.15, cut.tokens, IGNORE_INDEX)
        sequences = Sequences(tokens=cut.tokens, offsets=cut.offsets, segments=cut.segments, targets=labels)
        lay_s = measure_median(lambda: lay_out(sequences, row, stream.shape), 9)
        step_s = measure_median(lambda: stream[0], 9)
    result = {
        "samples": len(draws),
        "plan_s": round(seconds, 3),
        "samples_per_s": round(len(draws) / seconds),
        "fill": round(plan.fill, 5),
        "source_fill": plan.source_fill and round(plan.source_fill, 5),
        "next_fit": None if corruption else round(compute_next_fit_fill(lengths, room), 4),
        "padded": None if corruption else round(compute_padded_fill(lengths, 64), 4),
        "cut_ms": round(cut_s * 1e3, 2),
        "lay_out_ms": round(lay_s * 1e3, 2),
        "step_ms": round(step_s * 1e3, 2),
        "sequences_per_row": stream.shape.sequences,
    }
    fill = f"{plan.fill:8.2%}" if plan.source_fill is None else f"{plan.source_fill:8.2%}"
    order = "" if corruption else f"{result['next_fit']:10.1%}{result['padded']:8.1%}"
    print(
        f"{label:30}{len(draws):9,}{len(draws) / seconds / 1e6:8.2f} M/s{fill}{order:18}{stream.shape.sequences:9}"
        f"{cut_s * 1e3:5.1f} ms{lay_s * 1e3:6.2f} ms{step_s * 1e3:6.2f} ms"
    )
    if plan.source_fill is not None:
        print(f"{'  target side':51}{plan.fill:8.2%}")
    return result


def plan_million(lengths: Ints) -> float:
    """Return the seconds to plan a million sentences."""
    sample = np.random.default_rng(0).choice(lengths, 1_000_000)
    shape = BatchShape(rows=512, length=128, sequences=32)
    return round(common.measure_seconds(lambda: build_plan(sample, shape, seed=0, epoch=0), clock=common.wall_clock), 2)


if __name__ == "__main__":
    main()
