"""Word vectors from characters (Kim et al., 2016; Jozefowicz et al., 2016): convolutions, highway layers, projection.

A word is a row of `length` character ids: a begin mark, its UTF-8 bytes, an end mark, padding. Convolutions of several
widths slide over the characters, and each filter keeps its maximum over all places, those in the padding included, as
in Peters et al. (2018).

    c a t .  ->  embed [L, 16]  ->  filters, max over places [2048]  ->  highway x 2  ->  project [512]

A batch computes every distinct word once, and only as many places as its longest word has characters. Both are exact:
beyond the end of a word all places see the same padding. Legend: N tokens, U distinct words, L characters, W width.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.core.config import NonEmpty, NonNegative, Positive, spec
from pretune.core.errors import UsageError
from pretune.text.tokenizer.open_vocabulary import PADDING, Characters, Spellings


@spec(has_kind=False)
class Filters:
    """`count` convolution filters that see `width` characters each."""

    width: Positive[int]
    count: Positive[int]


@spec
class CharacterCNN:
    """Word vectors from at most `length` characters, instead of a token table."""

    filters: Annotated[tuple[Filters, ...], NonEmpty()]
    characters: Positive[int] = 262  # bytes, marks and padding
    width: Positive[int] = 16  # of a character's embedding
    length: Positive[int] = 50  # marks included; the end of a longer word is cut off
    highways: NonNegative[int] = 2

    def __post_init__(self) -> None:
        widest = max(group.width for group in self.filters)
        if widest > self.length:
            raise UsageError(f"filters see {widest} characters, but a word has at most length = {self.length}")
        if self.characters <= PADDING:
            raise UsageError(f"characters must be > {PADDING} (bytes, marks and padding), got {self.characters}")

    @property
    def features(self) -> int:
        """Number of filters of all widths."""
        return sum(group.count for group in self.filters)

    def build(self, *, width: int) -> "CharacterEmbedding":
        return CharacterEmbedding(self, width)

    def count_weights(self, *, width: int, characters: float = 7.0) -> float:
        """Return the number of weights that a word is multiplied with; `characters` is the mean length of a word."""
        places = sum(group.count * group.width * self.width for group in self.filters) * (characters + 1)
        return places + self.highways * 2 * self.features**2 + self.features * width

    def count_values(self, *, width: int, characters: float = 16.0) -> float:
        """Return the values saved for the backward pass of a word; `characters` is the length of a long word."""
        places = (characters + max(group.width for group in self.filters)) * (self.width + self.features)
        return places + (5 * self.highways + 2) * self.features + width

    def params(self, *, width: int) -> int:
        filters = sum(group.count * (group.width * self.width + 1) for group in self.filters)
        highways = self.highways * 2 * (self.features + 1) * self.features
        return self.characters * self.width + filters + highways + (self.features + 1) * width


class CharacterEmbedding(nn.Module):
    """Module of a character CNN. `weight` is the table of characters."""

    is_embedding = is_single_part = True  # all of it is one part, the lowest of the model

    def __init__(self, spec: CharacterCNN, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.characters = nn.Embedding(spec.characters, spec.width)
        self.filters = nn.ModuleList(nn.Conv1d(spec.width, group.count, group.width) for group in spec.filters)
        self.highways = nn.ModuleList(HighwayLayer(spec.features) for _ in range(spec.highways))
        self.project = nn.Linear(spec.features, width)

    @property
    def weight(self) -> Tensor:
        """Table of characters, whose device and precision are those of the model."""
        return self.characters.weight

    def forward(self, tokens: Tensor, spellings: Tensor) -> Tensor:
        """Return the vectors `[N, W]` of tokens `[N]`, given the characters of every token id `[V, L]`.

        Synchronizes with the device: the number of distinct words is a shape.
        """
        words, index = torch.unique(tokens, return_inverse=True)
        if len(words) and int(words[-1]) >= len(spellings):
            raise UsageError(
                f"token id {int(words[-1])} has no spelling: there are {len(spellings)}; encode texts with the model's "
                "own tokenizer, in the same process"
            )
        return F.embedding(index, self.encode_words(spellings.index_select(0, words)))

    def encode_words(self, characters: Tensor) -> Tensor:
        """Return the vectors `[U, W]` of words `[U, L]`."""
        x = self.characters(self._drop_padding(characters).long()).transpose(1, 2)
        # NOTE: the maximum before the ReLU is the same, and keeps one value of each filter instead of one per place.
        x = F.relu(torch.cat([convolve(x).amax(-1) for convolve in self.filters], dim=-1))
        for highway in self.highways:
            x = highway(x)
        out: Tensor = self.project(x)
        return out

    def _drop_padding(self, characters: Tensor) -> Tensor:
        """Cut off the places after the longest word, but those that give each filter one place in the padding."""
        longest = int((characters != PADDING).sum(1).max()) if len(characters) else 0
        return characters[:, : longest + max(group.width for group in self.spec.filters)]


class HighwayLayer(nn.Module):
    """g relu(W x + b) + (1 - g) x with the gate g = sigmoid(V x + c) (Srivastava et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return states of the same shape."""
        return torch.lerp(x, F.relu(self.dense(x)).to(x.dtype), torch.sigmoid(self.gate(x)).to(x.dtype))


class SpellingTable:
    """Characters of all token ids on a device; words that a tokenizer adds are copied when they are needed."""

    def __init__(self, spellings: Spellings | Characters) -> None:
        self.spellings = spellings
        self._copies: dict[torch.device, tuple[Tensor, int]] = {}  # with room to grow, and the number of rows so far

    def get(self, device: torch.device) -> Tensor:
        """Return the characters of every id so far `[V, L]`."""
        table = torch.from_numpy(self.spellings.table if isinstance(self.spellings, Spellings) else self.spellings)
        if device.type == "cpu":
            return table
        rows, count = self._copies.get(device, (table[:0], 0))
        if len(table) > len(rows):
            rows = table.new_empty(len(table) + len(table) // 4, table.shape[1], device=device)
            count = 0
        if len(table) > count:
            rows[count : len(table)] = table[count:].to(device)
            self._copies[device] = rows, len(table)
        return rows[: len(table)]
