"""Token pool: the tokens of texts concatenated in one array, and their layout with special tokens.

    pool = TokenPool.from_texts(tokenizer, ["a fine film", "not really"])
    layout = pool.lay_out(template, start, length, second, second_length)  # [CLS] a fine film [SEP] not really [SEP]

All operations are vectorized over texts. A special token spelled out in a text is tokenized as text, so that data
cannot inject special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import UsageError
from pretune.data.sequences import Ints, Sequences, compute_offsets, spread
from pretune.models.spec import Model
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate
from pretune.text.tokenizer import Tokenizer


class PooledSequences(NamedTuple):
    """Sequences, and the position of each token in the pool; -1 for special tokens."""

    sequences: Sequences
    pool_index: Ints  # [T]


@dataclass(frozen=True, slots=True)
class TokenPool:
    """The tokens of D texts, T in total."""

    ids: Ints  # [T]
    offsets: Ints  # [D + 1]
    starts: Ints  # [T] first character of each token in its text
    blank_token: int  # token of an empty text if the template adds none

    @classmethod
    def from_texts(cls, tokenizer: Tokenizer, texts: Sequence[str]) -> "TokenPool":
        """Tokenize texts."""
        encoding = tokenizer.encode_batch(texts, literal=True)
        blank = next((tokenizer.special[role] for role in ("unk", "pad", "eos") if role in tokenizer.special), 0)
        ids, starts = (np.asarray(column, dtype=np.int64) for column in (encoding.ids, encoding.starts))
        return cls(ids=ids, offsets=encoding.offsets, starts=starts, blank_token=blank)

    @property
    def lengths(self) -> Ints:
        """Tokens of each text `[D]`."""
        return np.diff(self.offsets)

    def lay_out(
        self,
        template: TokenTemplate,
        start: Ints,
        length: Ints,
        second: Ints | None = None,
        second_length: Ints | None = None,
    ) -> PooledSequences:
        """Lay out ranges of the pool, or pairs of them, in a template; a pair without a second text is one text."""
        if second is None or second_length is None:
            pieces = template.wrap(start, length)
        else:
            pieces = template.wrap_pair(start, length, second, second_length)
        index = np.where(np.repeat(pieces.special, pieces.length), -1, spread(pieces.start, pieces.length))
        sequences = Sequences.from_pieces(pieces, self.ids[index[index >= 0]], segments=True)
        return self._fill_empty(PooledSequences(sequences, index))

    def _fill_empty(self, layout: PooledSequences) -> PooledSequences:
        """Add one token to every sequence that would be empty."""
        lengths = layout.sequences.lengths
        if (lengths > 0).all():
            return layout
        positions = layout.sequences.offsets[:-1][lengths == 0]
        tokens = np.insert(layout.sequences.tokens, positions, self.blank_token)
        sequences = Sequences(
            tokens=tokens,
            offsets=compute_offsets(np.maximum(lengths, 1)),
            special=np.insert(cast(NDArray[np.bool_], layout.sequences.special), positions, True),
            segments=np.insert(cast(Ints, layout.sequences.segments), positions, 0),
        )
        return PooledSequences(sequences, np.insert(layout.pool_index, positions, -1))


def deduplicate(texts: Sequence[str]) -> tuple[list[str], Ints]:
    """Return the distinct texts, and the index of each text among them: passages occur with many questions.

    >>> deduplicate(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    numbers: dict[str, int] = {}
    text_ids = [numbers.setdefault(text, len(numbers)) for text in texts]
    return [*numbers], np.array(text_ids, dtype=np.int64)


def build_task_template(tokenizer: Tokenizer, spec: Model) -> TokenTemplate:
    """Return the template of texts: the tokenizer's; for a decoder start, delimiter and end (Radford et al., 2018).

    A decoder is read at its end token: a `cls` token other than the start, or else the end-of-document token, which
    also replaces the others if the vocabulary has no separate tokens.
    """
    template = tokenizer.template
    if spec.shape != "decoder":
        return template
    special_ids = tokenizer.special
    prefix, suffix = list(template.prefix), list(template.suffix)
    start = next((special_ids[role] for role in ("bos", "cls", "eos") if role in special_ids), None)
    ends = [special_ids[role] for role in ("cls", "eos", "sep") if role in special_ids]
    end = next((token for token in ends if token != start), ends[0] if ends else None)
    delimiter = next((special_ids[role] for role in ("sep", "eos", "bos") if role in special_ids), None)
    if not prefix and start is not None:
        prefix = [(start, 0)]
    if not suffix and end is not None:
        suffix = [(end, 0)]
    middle = [] if delimiter is None else [(delimiter, 0)]
    prefix, suffix = [(token, 0) for token, _ in prefix], [(token, 0) for token, _ in suffix]
    return TokenTemplate(
        single=(*prefix, (TEXT_A, 0), *suffix), pair=(*prefix, (TEXT_A, 0), *middle, (TEXT_B, 0), *suffix)
    )


def compute_room(template: TokenTemplate, length: int, *, pair: bool) -> int:
    """Return the number of text tokens that fit into a sequence of `length`."""
    num_special = template.pair_special_count if pair else template.special_count
    if length <= num_special:
        raise UsageError(f"max_length must be > {num_special} (special tokens), got {length}")
    return length - num_special
