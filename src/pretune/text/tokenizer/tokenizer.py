"""Tokenizer of this package: text to ids and back, special tokens by role, the template.

Batches of texts become flat arrays: long texts in pieces, cached or by the library, with the same ids.
"""

import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import AddedToken
from tokenizers import Tokenizer as Raw

from pretune.core import io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, DataError, UsageError, suggest
from pretune.core.log import join_names
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.text.template import TemplatedTokens, TokenTemplate
from pretune.text.tokenizer import files
from pretune.text.tokenizer.cache import UnitCache, encode_directly, is_separable, replace_surrogates, split_pieces
from pretune.text.tokenizer.files import translate_errors

BATCH_CHARACTERS = 2**21
"""Characters per batch, which bounds the memory."""
PIECE_CHARACTERS = 2**16
"""Longer texts are split into such pieces if that changes no token."""
TRIAL_CHARACTERS = 2**17
"""Number of characters after which testing for a cache pays off."""
Label = float | str | Sequence[float] | Sequence[str]
"""Label of a text: a class or a score, the name of a class, or several labels as 0 and 1 or by name."""


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Tokens of D texts, T in all, without special tokens around them.

    A *word* is a unit of the pre-tokenizer, which no piece crosses. So punctuation is a separate word for WordPiece and
    byte-level BPE, and part of a word if only white space separates words (unigram, characters). Without a
    pre-tokenizer a word starts at white space. A special token in a text is a word of its own.
    """

    ids: NDArray[np.uint32]  # [T]
    offsets: NDArray[np.int64]  # [D + 1] text i is ids[offsets[i]:offsets[i + 1]]
    word_start: NDArray[np.bool_]  # [T] the first token of a word
    starts: NDArray[np.int32]  # [T] character of the text at which a token starts, without white space before it

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> NDArray[np.uint32]:
        """Return the ids of one text."""
        if not 0 <= text < len(self):
            raise IndexError(f"text {text} of {len(self)}")
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def find_tokens(self, text: int, characters: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of a text, counted from 0, that start at or first after the given characters.

        This maps sentence starts to token positions. A space may be a token of its own: pass the character at which the
        white space before a sentence starts. After the last token it is the number of tokens.
        """
        starts = self.starts[self.offsets[text] : self.offsets[text + 1]]
        return np.searchsorted(starts, np.asarray(characters), "left").astype(np.int64)


@dataclass(slots=True)
class _EncodingBatch:
    """Pieces of texts that are encoded together in the same way."""

    has_special_tokens: bool  # the texts contain special tokens
    texts: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)  # text of each piece
    shifts: list[int] = field(default_factory=list)  # position of each piece in its text
    size: int = 0


class TokenizerEncoder:
    """Encoder of texts; with `literal`, special tokens in a text are treated as text."""

    def __init__(self, raw: Raw, literal: bool) -> None:
        self.raw = raw
        added_tokens = [token for token in raw.get_added_tokens_decoder().values() if not (literal and token.special)]
        names = sorted((token.content for token in added_tokens), key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, names))) if names else None
        self.wordless = raw.pre_tokenizer is None
        self.seen_characters = 0
        self.cache: UnitCache | None = None
        # Tokens that are matched in normalized text cannot be detected beforehand.
        self.is_undecided = raw.normalizer is None or not any(token.normalized for token in added_tokens)

    def encode(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenize texts."""
        self._decide(sum(map(len, texts)))
        counts = np.zeros(len(texts), np.int64)
        ids, word_start, starts = [np.zeros(0, np.uint32)], [np.zeros(0, np.bool_)], [np.zeros(0, np.int32)]
        for run in self._iter_batches(texts):
            if self.cache is None or run.has_special_tokens:
                tokens = encode_directly(self.raw, run.texts, self.wordless)
            else:
                tokens = self.cache.encode(run.texts)
            np.add.at(counts, run.owners, tokens.counts)
            ids.append(tokens.ids)
            word_start.append(tokens.word_start)
            starts.append(tokens.starts + np.repeat(np.array(run.shifts, np.int32), tokens.counts))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return TokenizedTexts(np.concatenate(ids), offsets, np.concatenate(word_start), np.concatenate(starts))

    def _decide(self, size: int) -> None:
        self.seen_characters += size
        if self.is_undecided and self.seen_characters > TRIAL_CHARACTERS:
            self.is_undecided = False
            self.cache = UnitCache(self.raw) if is_separable(self.raw) else None

    def _iter_batches(self, texts: Sequence[str]) -> Iterator[_EncodingBatch]:
        run = _EncodingBatch(False)
        for owner, text in enumerate(texts):
            has_special_tokens = self.special_pattern is not None and self.special_pattern.search(text) is not None
            is_whole = has_special_tokens or self.cache is None or len(text) <= PIECE_CHARACTERS
            shift = 0
            for piece in [text] if is_whole else split_pieces(text, PIECE_CHARACTERS):
                is_other = has_special_tokens != run.has_special_tokens
                if run.texts and (is_other or run.size + len(piece) > BATCH_CHARACTERS):
                    yield run
                    run = _EncodingBatch(has_special_tokens)
                run.has_special_tokens = has_special_tokens
                run.texts.append(piece)
                run.owners.append(owner)
                run.shifts.append(shift)
                run.size += len(piece)
                shift += len(piece)
        if run.texts:
            yield run


MAX_VOCAB = 2**24
"""Upper bound of ids; a larger one in a file is an error or an attack, as tables of that size would be allocated."""


class Tokenizer:
    """Any tokenizer of the `tokenizers` library, trained here or loaded from a directory.

        tokenizer = Tokenizer.load("runs/small")
        model(tokenizer(["One text.", "Another."]))                 # a batch, with [CLS] … [SEP] around each text
        tokenizer.encode("One text.", "Its pair.")                  # ids, special tokens included
        tokenizer.encode_batch(["One text.", "Another."])           # flat arrays, without special tokens
        tokenizer.special["mask"], tokenizer.sentinels              # ids by role

    Padding and truncation of the file are disabled: they belong to a batch, not to a text.
    """

    def __init__(self, raw: Raw, config: Mapping[str, object] | None = None) -> None:
        """Wrap a tokenizer; `config` holds the entries of its config files."""
        config = files.apply_settings(raw, config or {})
        raw.no_padding()
        raw.no_truncation()
        vocabulary = raw.get_vocab(with_added_tokens=True)
        added_tokens = raw.get_added_tokens_decoder()
        self.raw = raw
        self.vocab: int = max(vocabulary.values(), default=-1) + 1
        if self.vocab > MAX_VOCAB:  # NOTE: checked before `to_str`, which loops over all ids
            raise UsageError(f"token id {self.vocab - 1} exceeds the maximum of {MAX_VOCAB - 1}")
        self.template: TokenTemplate = files.extract_template(raw)
        spellings = [token.content for token in added_tokens.values()]
        special, self.sentinels = files.find_roles(vocabulary, spellings, config, self.template)
        self.special: Mapping[str, int] = MappingProxyType(special)
        special_ids = {i for i, token in added_tokens.items() if token.special}
        self.special_ids: frozenset[int] = frozenset({*special_ids, *special.values(), *self.sentinels})
        self.padding: Literal["right", "left"] = "left" if config.get("padding_side") == "left" else "right"
        self.pad_segment: int = files.read_number(config, "pad_token_type_id", 255) or 0
        self.labels: tuple[str, ...] = ()  # of the head of a model, in the order of their numbers
        self.chat_template: str | None = files.find_chat_template(config)
        self.length: int | None = files.read_number(config, "model_max_length", 10**9)
        self._config = config
        self._encoders: dict[bool, TokenizerEncoder] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Load a directory that has a `tokenizer.json`, or such a file."""
        raw, config = files.read_tokenizer(path)
        message = f"{os.fspath(path)}: unusable tokenizer"
        try:
            with translate_errors(CheckpointError, message):
                return cls(raw, config)
        except UsageError as error:
            raise CheckpointError(f"{message}: {error}") from None

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the files that `AutoTokenizer` reads, atomically."""
        with io.atomic_directory(directory, overwrite=overwrite) as folder:
            for name, content in self.build_files().items():
                io.atomic_write(folder / name, content)

    def build_files(self) -> dict[str, bytes]:
        """Return the files that `save` writes, by name."""
        tokens: dict[str, object] = {f"{role}_token": self.get_token(i) for role, i in self.special.items()}
        mask = self.special.get("mask")
        mask_token = self.raw.get_added_tokens_decoder().get(mask) if mask is not None else None
        if mask_token is not None and mask_token.lstrip:  # a plain string would lose `lstrip`
            names = ("content", "lstrip", "normalized", "rstrip", "single_word")
            tokens["mask_token"] = {name: getattr(mask_token, name) for name in names}
        sentinels = [self.get_token(i) for i in self.sentinels]
        extra = {"additional_special_tokens": sentinels} if sentinels else {}
        segments = any(segment for _, segment in (*self.template.single, *self.template.pair))
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
            "padding_side": self.padding,
            **({"pad_token_type_id": self.pad_segment} if self.pad_segment else {}),
            **({"model_max_length": self.length} if self.length else {}),
            **({files.CHAT_TEMPLATE: self.chat_template} if self.chat_template else {}),
            **{
                name: {"__type": "AddedToken", **value, "special": True} if isinstance(value, dict) else value
                for name, value in tokens.items()
            },
            **extra,
        }
        return {
            files.TOKENIZER_FILE: self.raw.to_str(pretty=True).encode(),
            files.CONFIG_FILE: files.encode_json(config),
            files.SPECIAL_TOKENS_FILE: files.encode_json({**tokens, **extra}),
        }

    def with_tokens(self, tokens: Mapping[str, str]) -> "Tokenizer":
        """Return a copy with new special tokens, role -> spelling; their ids come after all others."""
        raw = files.parse_tokenizer(self.raw.to_str().encode(), "tokenizer")
        raw.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in tokens.values()])
        role_tokens = {role: self.get_token(i) for role, i in self.special.items()} | dict(tokens)
        return Tokenizer(raw, {**self._config, **{f"{role}_token": text for role, text in role_tokens.items()}})

    def encode_batch(self, texts: Sequence[str], *, literal: bool = False) -> TokenizedTexts:
        """Tokenize texts into flat arrays, without special tokens around them.

        A special token in a text ("[MASK]") becomes that token; with `literal` it is treated as text, as in an
        untrusted corpus. Lone surrogates are read as U+FFFD.
        """
        check_list(texts)
        for text in texts:
            check_type(text)
        with self._lock:
            return self._get_encoder(literal).encode(texts)

    def __call__(
        self,
        texts: str | Sequence[str | tuple[str, str]],
        pairs: str | Sequence[str] | None = None,
        *,
        labels: Sequence[Label] | None = None,
        max_length: int | None = None,
    ) -> Batch:
        """Return a batch of texts, or of pairs of texts, for a model; texts are not padded to one length.

        Whole texts share rows of 64 tokens, or of the longest text. Only the ends of rows have filler, where the next
        text does not fit; `batch.split` drops it.

        Args:
            texts: A text, a list of texts, or a list of pairs `(text, pair)`.
            pairs: The second text of each; or give pairs in `texts`.
            labels: A class or a score for each text, for a model with a head; `model.tokenizer` of a head with labels
                takes their names, too. For several labels per text a list of names, or of 0 and 1.
            max_length: Maximum tokens of a sequence, special ones included; None: no truncation.

        Raises:
            UsageError: an input is not text, two lists differ in length, or the head does not have a label.
        """
        inputs = _pair_texts(texts, pairs)
        sequences = [self._apply_template(text, pair, max_length) for text, pair in inputs]
        has_segments = any(sequence.segments.any() for sequence in sequences)
        return Batch.from_sequences(
            [sequence.ids.tolist() for sequence in sequences],
            segments=[sequence.segments.tolist() for sequence in sequences] if has_segments else None,
            labels=None if labels is None else [self._number_label(label) for label in labels],
            shares_rows=True,
        )

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return the same tokenizer for a head with these labels, in the order of their numbers."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, labels=tuple(labels))
        return view

    def _number_label(self, label: Any) -> float | list[float]:
        """Return the number of a label, or for several labels of a text 0 or 1 for each that the head has."""
        label = label.tolist() if hasattr(label, "tolist") else label
        if isinstance(label, list | tuple) and all(isinstance(name, str) for name in label):
            numbers = {self._find_label(name) for name in label}
            return [float(number in numbers) for number in range(len(self.labels))]
        if isinstance(label, str):
            return self._find_label(label)
        if self.labels and isinstance(label, int) and not 0 <= label < len(self.labels) and label != IGNORE_INDEX:
            raise UsageError(f"label {label} is not from 0 to {len(self.labels) - 1} ({join_names(self.labels)})")
        value: float | list[float] = label
        return value

    def _find_label(self, name: str) -> int:
        if not self.labels:
            raise UsageError(
                f"label '{name[:40]}': this tokenizer does not belong to a head with labels; pass numbers, or use "
                "`model.tokenizer` of `pt.add_head(model, KIND, labels=[…])`"
            )
        if name not in self.labels:
            raise UsageError(
                f"unknown label '{name[:40]}'{suggest(name, self.labels)} (allowed: {join_names(self.labels)})"
            )
        return self.labels.index(name)

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = True, literal: bool = False
    ) -> list[int]:
        """Return the ids of a text, or of a pair of texts, with the special tokens of the template around them.

        `literal` is that of `encode_batch`.
        """
        if add_special_tokens:
            return [*self._apply_template(text, pair, literal=literal).ids.tolist()]
        return [*self._encode_text(text, literal), *([] if pair is None else self._encode_text(pair, literal))]

    def _encode_text(self, text: str, literal: bool) -> list[int]:
        check_type(text)
        with self._lock:
            raw = self._get_encoder(literal).raw
        with translate_errors(DataError, "the tokenizer cannot encode a text"):
            return raw.encode(replace_surrogates(text), add_special_tokens=False).ids

    def _apply_template(
        self, text: str, pair: str | None, max_length: int | None = None, *, literal: bool = False
    ) -> TemplatedTokens:
        first = self._encode_text(text, literal)
        second = None if pair is None else self._encode_text(pair, literal)
        if max_length is None:
            return self.template.apply(first, second)
        return self.template.fit(first, second, length=max_length)

    def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
        """Decode ids to text; with `special=False` without special tokens.

        Ids beyond the vocabulary are ignored: the vocabulary of a model may be larger than that of its tokenizer.
        """
        array = np.asarray(ids)
        if array.size and (array.dtype.kind not in "iu" or array.min() < 0):
            raise UsageError("ids must be integers >= 0")
        return self.raw.decode(array[array < self.vocab].tolist(), skip_special_tokens=not special)

    def get_token(self, i: int) -> str:
        """Return the spelling of a token in the vocabulary ("##ing", "Ġthe", "▁the")."""
        token = self.raw.id_to_token(i) if 0 <= i < self.vocab else None
        if token is None:
            raise UsageError(f"no token has the id {i}; the vocabulary size is {self.vocab}")
        return token

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token by its spelling, or None."""
        return self.raw.token_to_id(token)

    @functools.cached_property
    def sha256(self) -> str:
        """The hash of its file."""
        return hashlib.sha256(self.raw.to_str().encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """The number of ids, added tokens included; the same as `vocab`."""
        return self.vocab

    def __len__(self) -> int:
        return self.vocab

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.raw.model).__name__}, {self.vocab} tokens, {self.sha256[:12]})"

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[str, dict[str, object]]]:
        return _revive, (self.raw.to_str(), self._config)

    def _get_encoder(self, literal: bool) -> TokenizerEncoder:
        if literal not in self._encoders:
            raw = self.raw
            if literal:  # NOTE: a setting of the library's object, so a second object is needed
                raw = files.parse_tokenizer(self.raw.to_str().encode(), "tokenizer")
                raw.encode_special_tokens = True
            self._encoders[literal] = TokenizerEncoder(raw, literal)
        return self._encoders[literal]


def _pair_texts(
    texts: str | Sequence[str | tuple[str, str]], pairs: str | Sequence[str] | None
) -> list[tuple[str, str | None]]:
    """Return every text with its pair, or with None."""
    if isinstance(texts, str):
        texts, pairs = [texts], [pairs] if isinstance(pairs, str) else pairs
    check_list(texts)
    if pairs is not None:
        check_list(pairs)
        if len(pairs) != len(texts):
            raise UsageError(f"{len(texts)} texts and {len(pairs)} pairs; give one pair for each text")
        for text in texts:
            check_type(text)
        return [(str(text), pair) for text, pair in zip(texts, pairs, strict=True)]
    inputs: list[tuple[str, str | None]] = []
    for text in texts:
        if isinstance(text, tuple | list):
            if len(text) != 2:
                raise UsageError(f"a pair has two texts, got {len(text)}")
            inputs.append((text[0], text[1]))
        else:
            inputs.append((text, None))
    return inputs


def _revive(text: str, config: dict[str, object]) -> Tokenizer:
    return Tokenizer(files.parse_tokenizer(text.encode(), "tokenizer"), config)


def check_type(text: object) -> None:
    """Raise UsageError if the input is not a text."""
    if not isinstance(text, str):
        raise UsageError(f"a tokenizer takes text, got {_describe_value(text)}")


def check_list(texts: object) -> None:
    """Raise UsageError if the input is not a list of texts."""
    if isinstance(texts, str):
        raise UsageError("expected a list of texts, got one text; put it into a list")
    if not hasattr(texts, "__len__") or not hasattr(texts, "__getitem__"):
        raise UsageError(f"expected a list of texts, got {_describe_value(texts)}")


def _describe_value(value: object) -> str:
    return f"{format_value(value)} ({type(value).__name__})"
