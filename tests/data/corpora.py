"""Small corpora for the tests of this folder: every token is its own position, so that nothing can hide."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pretune.core.types import IGNORE_INDEX
from pretune.data.samples import Samples
from pretune.data.sampling import Counters, EpochOrder, SourceMixture
from pretune.data.sequences import Ints, Sequences
from pretune.data.shards import DataIndex, Shards, ShardSplit, ShardWriter, write_index
from pretune.data.stream import Corruption
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate

CLS, SEP = 1_000_001, 1_000_002
FRAMES = {
    "none": TokenTemplate(),
    "around": TokenTemplate(
        single=((CLS, 0), (TEXT_A, 0), (SEP, 0)), pair=((CLS, 0), (TEXT_A, 0), (SEP, 0), (TEXT_B, 1), (SEP, 1))
    ),
    "after": TokenTemplate(single=((TEXT_A, 0), (SEP, 0)), pair=((TEXT_A, 0), (TEXT_B, 0), (SEP, 0))),
    "behind": TokenTemplate(
        single=((TEXT_A, 0), (SEP, 0), (CLS, 2)), pair=((TEXT_A, 0), (SEP, 0), (TEXT_B, 1), (SEP, 1), (CLS, 2))
    ),
}
Document = list[int]
"""The lengths of its sentences; none is empty, but a document may have none."""

documents = st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=8)
some_documents = documents.filter(lambda found: any(map(sum, found)))


def bits(positions: Any) -> Any:
    """Which tokens start words, by a rule that is easy to check."""
    return np.asarray(positions) * 2654435761 % 7 < 4


def write(
    folder: Path,
    given: Sequence[Document],
    *,
    full: int = 2**20,
    dtype: str | None = None,
    sources: Sequence[int] | None = None,
    names: Sequence[str] = ("books", "news", "web"),
) -> Path:
    """Prepared data of documents given by the lengths of their sentences."""
    lengths = np.array([sum(document) for document in given], dtype=np.int64)
    total = int(lengths.sum())
    dtype = dtype or ("uint16" if total < 60_000 else "uint32")
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    sentences = np.cumsum([0, *(length for document in given for length in document)])[:-1]
    with ShardWriter(folder / "train", dtype, max_tokens=full) as writer:
        writer.add(
            np.arange(total),
            offsets,
            words=bits(np.arange(total)),
            sentences=sentences,
            sources=[number % len(names) for number in range(len(given))] if sources is None else sources,
        )
    write_index(
        folder,
        DataIndex(
            tokenizer_sha256="a" * 64,
            vocab=max(60_003, total),
            dtype=dtype,
            fingerprint="f" * 64,
            sources=tuple(names),
            splits={"train": ShardSplit(shards=tuple(writer.shards), bytes=4 * total)},
        ),
    )
    return folder


@contextmanager
def opened(given: Sequence[Document], **options: Any) -> Iterator[Shards]:
    """Such data, opened, for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        yield Shards.open(write(Path(folder), given, **options))


def random_documents(seed: int, count: int, *, sentences: float = 8, length: float = 12) -> list[Document]:
    """Documents of random size."""
    rng = np.random.default_rng(seed)
    sizes = rng.geometric(1 / sentences, count)
    return [rng.geometric(1 / length, size).tolist() for size in sizes]


def every(samples: Samples, seed: int = 0, round: int = 0) -> EpochOrder:
    """One epoch of all samples, settled."""
    names = samples.shards.index.sources
    mixture = SourceMixture.from_samples(None, samples.sources, samples.lengths(), names)
    return samples.assign_partners(mixture.draw_order(seed, round))


def split(sequences: Sequences, name: str = "tokens") -> list[list[int]]:
    """The sequences as lists."""
    values = getattr(sequences, name).tolist()
    offsets = sequences.offsets.tolist()
    return [values[start:end] for start, end in pairwise(offsets)]


def texts(sequences: Sequences) -> list[list[int]]:
    """The sequences as lists, special tokens left out."""
    kept = [np.array(mask) == 0 for mask in split(sequences, "special")]
    return [np.array(part)[mask].tolist() for part, mask in zip(split(sequences), kept, strict=True)]


class Masking(Corruption):
    """3 of 10 tokens become token 7, chosen by their sample's own numbers."""

    copies: int | None = None

    def lengths(self, n: Ints) -> tuple[Ints, Ints | None]:
        return n, None

    def corrupt(self, sequences: Sequences, rng: Counters) -> Sequences:
        assert sequences.special is not None
        hit = (rng.uniform(0, sequences.lengths) < 0.3) & ~sequences.special
        labels = np.where(hit, sequences.tokens, IGNORE_INDEX)
        return replace(sequences, tokens=np.where(hit, 7, sequences.tokens), targets=labels)

    def targets(self, tokens: int, sequences: int) -> int:
        return tokens
