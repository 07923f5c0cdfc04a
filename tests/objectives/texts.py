"""Random text for the tests of this folder, in a vocabulary whose special tokens lie at both ends and in between."""

import numpy as np

from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences, compute_offsets
from pretune.objectives.base import Objective, Vocabulary

PAD, UNK, CLS, SEP, MASK, BOS, EOS = 0, 1, 2, 3, 500, 1005, 1006
SPECIAL = (PAD, UNK, CLS, SEP, MASK, BOS, EOS)
VOCABULARY = Vocabulary(
    size=1007,
    special=SPECIAL,
    roles=(("pad", PAD), ("unk", UNK), ("cls", CLS), ("sep", SEP), ("mask", MASK), ("bos", BOS), ("eos", EOS)),
    start=BOS,
)


def corrupt(
    objective: Objective, sequences: Sequences, seed: int = 0, vocabulary: Vocabulary = VOCABULARY
) -> Sequences:
    """What an objective makes of sequences, for the first shape that it trains."""
    corruption = objective.bind(vocabulary, objective.shapes[0])
    return corruption.corrupt(sequences, Counters.from_sequences(seed, sequences, copies=corruption.copies))


def text(count: int, length: int, *, pairs: bool = False, seed: int = 0) -> Sequences:
    """Sequences `[CLS] a [SEP]` of one length, or `[CLS] a [SEP] b [SEP]`; words of 1.7 tokens on average."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice(VOCABULARY.list_ordinary_ids(), count * length)
    place = np.arange(count * length) % length
    middle = (place == length // 2) & pairs
    special = (place == 0) | (place == length - 1) | middle
    tokens[place == 0], tokens[special & (place > 0)] = CLS, SEP
    words = special | np.roll(special, 1) | (rng.random(len(tokens)) < 0.6)
    return Sequences(
        tokens=tokens,
        offsets=compute_offsets(np.full(count, length)),
        special=special,
        words=words,
        segments=(place > length // 2).astype(np.int64) if pairs else None,
        labels=np.arange(count) % 2 if pairs else None,
        sides=np.full(count, length // 2 + 1) if pairs else None,
        samples=np.arange(count),
        epochs=np.zeros(count, dtype=np.int64),
    )
