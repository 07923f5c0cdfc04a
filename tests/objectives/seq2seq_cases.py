"""Sequences to corrupt, a vocabulary without text, and what comes out as lists. Shared by the tests of this folder."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences, compute_offsets
from pretune.objectives.base import Vocabulary

PAD, EOS, BOS, MASK = 0, 1, 2, 3
SENTINELS = tuple(range(999, 899, -1))
WORDS = 100
"""Ordinary ids start here."""
VOCABULARY = Vocabulary(
    size=1000,
    special=(PAD, EOS, BOS, MASK, *SENTINELS[::-1]),
    roles=(("pad", PAD), ("eos", EOS), ("bos", BOS), ("mask", MASK)),
    sentinels=SENTINELS,
    start=PAD,
)
RELEASED = Vocabulary(size=1000, special=(PAD, EOS, *SENTINELS[::-1]), sentinels=SENTINELS, start=PAD)
"""One that has sentinels and no mask."""


def made(
    texts: Sequence[Sequence[int]],
    *,
    special: Sequence[Sequence[int]] | None = None,
    sentences: Sequence[Sequence[int]] | None = None,
    samples: int = 0,
) -> Sequences:
    """Sequences of ids; by default the special ids are special, and sentences start where a flag is 1."""
    flat = np.array([token for text in texts for token in text], dtype=np.int64)
    flags = np.isin(flat, VOCABULARY.special) if special is None else np.array([f for row in special for f in row]) > 0
    return Sequences(
        tokens=flat,
        offsets=compute_offsets(np.array([len(text) for text in texts], dtype=np.int64)),
        special=flags,
        sentences=None if sentences is None else np.array([f for flags in sentences for f in flags]) > 0,
        samples=np.arange(samples, samples + len(texts)),
        epochs=np.zeros(len(texts), dtype=np.int64),
    )


def uniform(count: int, length: int, *, end: bool = True) -> Sequences:
    """Many sequences of as many different ordinary tokens, closed or not."""
    text = [WORDS + i % 700 for i in range(length)]
    return made([[*text, EOS] if end else text] * count)


def rng(sequences: Sequences, seed: int = 0) -> Counters:
    return Counters.from_sequences(seed, sequences)


def lists(sequences: Sequences, name: str = "tokens") -> list[list[int]]:
    """Values of each sequence."""
    values: Any = getattr(sequences, name)
    return [values[start:end].tolist() for start, end in pairwise(sequences.offsets.tolist())]


@st.composite
def framed(draw: st.DrawFn, *, longest: int = 40, inner: bool = False) -> Sequences:
    """Some sequences, each with special tokens before or behind it, or neither; with `inner` also in between."""
    texts = []
    for _ in range(draw(st.integers(0, 5))):
        length = draw(st.integers(0, longest))
        text = draw(st.lists(st.integers(WORDS, WORDS + 9), min_size=length, max_size=length))
        text = [BOS] * draw(st.integers(0, 1)) + text + [EOS] * draw(st.integers(0, 1))
        if inner:
            text = [EOS if draw(st.integers(0, 5)) == 0 else token for token in text]
        texts.append(text or [WORDS])
    return made(texts, samples=draw(st.integers(0, 1000)))
