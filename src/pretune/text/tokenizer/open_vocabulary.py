"""Open vocabulary of models that read characters: words outside the vocabulary get ids of their own, and spellings.

    tokenizer = OpenTokenizer.from_tokenizer(Tokenizer.load("runs/elmo"), length=50)
    tokenizer.encode("a zyzzyva")                     # [2, 8, 7000, 3]: 7000 is beyond the vocabulary of 7,000 words
    tokenizer.spellings.table[7000]                   # its characters: begin of word, z, y, z, …, end of word, padding

Ids beyond the vocabulary are ordinary tokens of every array and batch; they are valid for this tokenizer only, in the
process that made them or one that got a copy of it. The vocabulary head never predicts them: as targets they count as
unknown words. Character ids are those of Peters et al. (2018).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Encoding, models
from tokenizers import Tokenizer as Raw

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate
from pretune.text.tokenizer.cache import replace_surrogates
from pretune.text.tokenizer.files import parse_tokenizer
from pretune.text.tokenizer.tokenizer import TokenizedTexts, Tokenizer

BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = 257, 258, 259, 260, 261
"""Character ids after those of the bytes, which are byte + 1; id 0 has no use."""
MAX_NEW_WORDS = 2**20
"""Words outside the vocabulary that a tokenizer remembers; later ones are unknown words."""

Characters = NDArray[np.int16]


def spell(words: Sequence[str | int], length: int) -> Characters:
    """Return the characters of words `[n, length]`: begin of word, UTF-8 bytes, end of word, padding.

    A number is one character, such as `BEGIN_TEXT`. The end of a long word is cut off.

    >>> spell(["at", END_TEXT], 5).tolist()
    [[259, 98, 117, 260, 261], [259, 258, 260, 261, 261]]
    """
    table = np.full((len(words), length), PADDING, dtype=np.int16)
    for row, word in zip(table, words, strict=True):
        ids = [word] if isinstance(word, int) else [byte + 1 for byte in word.encode("utf-8", "replace")[: length - 2]]
        row[: len(ids) + 2] = BEGIN_WORD, *ids, END_WORD
    return table


def spell_numbers(count: int, length: int) -> Characters:
    """Return the characters `[count, length]` of the ids 0, 1, … in digits, for a model without a vocabulary."""
    return spell([str(i) for i in range(count)], length)


class Spellings:
    """Characters of every word of a tokenizer, and of words that are added later."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        check_words(tokenizer)
        mark_ids: dict[int, int] = {}
        for roles, mark in ((("bos", "cls"), BEGIN_TEXT), (("eos", "sep"), END_TEXT)):
            mark_ids |= {tokenizer.special[role]: mark for role in roles if role in tokenizer.special}
        self.vocab, self.length, self.unknown = tokenizer.vocab, length, tokenizer.special.get("unk")
        tokens = {i: token for token, i in tokenizer.raw.get_vocab(with_added_tokens=True).items()}
        self._table = spell([mark_ids.get(i, tokens.get(i, "")) for i in range(self.vocab)], length)
        self.new_words: list[str] = []
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return self.vocab + len(self.new_words)

    @property
    def table(self) -> Characters:
        """Characters of all ids so far `[n, length]`."""
        return self._table[: len(self)]

    def find_id(self, word: str) -> int | None:
        """Return the id of a word outside the vocabulary; a new one is added. None: too many of them."""
        found_id = self._ids.get(word)
        if found_id is None and len(self.new_words) < MAX_NEW_WORDS:
            if len(self) == len(self._table):
                self._table = np.concatenate((self._table, np.empty_like(self._table[: max(len(self) // 4, 1024)])))
            found_id = self._ids[word] = len(self)
            self._table[found_id] = spell([word], self.length)[0]
            self.new_words.append(word)
            if len(self.new_words) == MAX_NEW_WORDS:
                log.warn(f"{MAX_NEW_WORDS:,} words outside the vocabulary: further ones are read as unknown words")
        return found_id


class OpenTokenizer(Tokenizer):
    """Tokenizer of a model that reads characters: no word is unknown. Texts have a begin and an end token."""

    spellings: Spellings

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, length: int) -> "OpenTokenizer":
        """Return the open form of a tokenizer of words; `length` is the number of characters of a word."""
        return _revive(tokenizer.raw.to_str(), tokenizer._config, length, ())

    def encode_batch(self, texts: Sequence[str], *, literal: bool = False) -> TokenizedTexts:
        """Tokenize texts as `Tokenizer` does, with an id for every word."""
        encoding = super().encode_batch(texts, literal=literal)
        unknown = self.spellings.unknown
        places = np.flatnonzero(encoding.ids == unknown) if unknown is not None else np.zeros(0, dtype=np.int64)
        if not len(places):
            return encoding
        owners = np.searchsorted(encoding.offsets, places, "right") - 1
        ids = encoding.ids.copy()
        with self._lock:
            raw = self._get_encoder(literal).raw
            texts_to_open = [replace_surrogates(texts[text]) for text in np.unique(owners).tolist()]
            raw_encodings = raw.encode_batch(texts_to_open, add_special_tokens=False)
            new_ids = [
                self._open_ids(raw, text, raw_encoding)
                for text, raw_encoding in zip(texts_to_open, raw_encodings, strict=True)
            ]
            ids[places] = [i for part in new_ids for i in part if i == unknown or i >= self.vocab]
        return replace(encoding, ids=ids)

    def _encode_text(self, text: str, literal: bool) -> list[int]:
        return [*self.encode_batch([text], literal=literal).ids.tolist()]

    def _open_ids(self, raw: Raw, text: str, encoding: Encoding) -> list[int]:
        """Return the ids of a text, of unknown words those of their spellings."""
        ids, unknown = list(encoding.ids), self.spellings.unknown
        for place, (start, end) in enumerate(encoding.offsets):
            if ids[place] == unknown:
                word = text[start:end] if raw.normalizer is None else raw.normalizer.normalize_str(text[start:end])
                if word and word != raw.id_to_token(unknown):
                    new_id = self.spellings.find_id(word)
                    ids[place] = unknown if new_id is None else new_id
        return ids

    def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
        """Decode ids to text, words outside the vocabulary included."""
        array = np.asarray(ids)
        if not array.size or array.dtype.kind not in "iu" or array.max() < self.vocab:
            return super().decode(ids, special=special)
        kept_ids = [i for i in array.tolist() if i < len(self.spellings) and (special or i not in self.special_ids)]
        return " ".join(self.get_token(i) for i in kept_ids)

    def get_token(self, i: int) -> str:
        """Return the spelling of a token."""
        is_new = self.vocab <= i < len(self.spellings)
        return self.spellings.new_words[i - self.vocab] if is_new else super().get_token(i)

    def __deepcopy__(self, memo: dict[int, Any]) -> "OpenTokenizer":
        """Return itself: a copy of a model must know the same words."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Tokenizer], tuple[Any, ...]]:
        spellings = self.spellings
        return _revive, (self.raw.to_str(), self._config, spellings.length, tuple(spellings.new_words))


def check_words(tokenizer: Tokenizer) -> None:
    """Raise `UsageError` if the tokens of a tokenizer are not whole words."""
    if not isinstance(tokenizer.raw.model, models.WordLevel):
        kind = type(tokenizer.raw.model).__name__
        raise UsageError(
            f"a model that reads the characters of words needs word boundaries, but the tokenizer ({kind}) splits "
            "words into pieces; train one with `pretune tokenizer --kind words`, and prepare the data with it"
        )


def _revive(text: str, config: Mapping[str, object], length: int, new_words: Iterable[str]) -> OpenTokenizer:
    tokenizer = OpenTokenizer(parse_tokenizer(text.encode(), "tokenizer"), config)
    tokenizer.spellings = Spellings(tokenizer, length)
    for word in new_words:
        tokenizer.spellings.find_id(word)
    tokenizer.template = _add_marks(tokenizer.template, tokenizer.special)
    return tokenizer


def _add_marks(template: TokenTemplate, special: Mapping[str, int]) -> TokenTemplate:
    """Return a template with a begin and an end of text, as in pre-training, if it has none."""
    begin, end = special.get("bos"), special.get("eos")
    if begin is None or end is None or template.special_count:
        return template
    single = ((begin, 0), (TEXT_A, 0), (end, 0))
    return TokenTemplate(single=single, pair=(*single, (TEXT_B, 0), (end, 0)))
