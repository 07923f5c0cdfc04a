"""The tokenizer that the rest of the package sees: text to ids and back, special tokens by role, the template."""

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from tokenizers import AddedToken
from tokenizers import Tokenizer as Raw

from pretune.core import io
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.text.templates import TokenTemplate
from pretune.text.tokenizer import files, roles
from pretune.text.tokenizer.backend import check_list, check_type
from pretune.text.tokenizer.encode import TokenizedTexts, TokenizerEncoder
from pretune.text.tokenizer.errors import translate_errors
from pretune.text.tokenizer.units import replace_surrogates

MAX_VOCAB = 2**24
"""Ids are below this; a larger one in a file is a fault or an attack, for somebody would make a table of that size."""


class Tokenizer:
    """Any tokenizer of the `tokenizers` library, trained here or found in a directory.

        tokenizer = Tokenizer.load("runs/small")
        found = tokenizer.encode_batch(["One text.", "Another."])   # flat arrays, no special tokens around texts
        tokenizer.template.apply(found[0], found[1])                # [CLS] … [SEP] … [SEP]
        tokenizer.special["mask"], tokenizer.sentinels              # ids by role

    Padding and truncation that a file asks for are switched off: they belong to a batch, not to a text.
    """

    def __init__(self, raw: Raw, config: Mapping[str, Any] | None = None) -> None:
        """`said` is what the files beside a tokenizer say, in their words."""
        config = dict(config or {})
        raw.no_padding()
        raw.no_truncation()
        vocabulary = raw.get_vocab(with_added_tokens=True)
        added = raw.get_added_tokens_decoder()
        self.raw = raw
        self.vocab: int = max(vocabulary.values(), default=-1) + 1
        if self.vocab > MAX_VOCAB:  # NOTE: said before the library writes its JSON, which tries every number up to it
            raise UsageError(f"a token has the id {self.vocab - 1}, at most {MAX_VOCAB - 1} is allowed")
        self.template: TokenTemplate = files.extract_template(raw)
        found = roles.find_roles(vocabulary, [token.content for token in added.values()], config, self.template)
        self.special: Mapping[str, int] = MappingProxyType(found.special)
        self.sentinels: tuple[int, ...] = found.sentinels
        marked = {i for i, token in added.items() if token.special}
        self.special_ids: frozenset[int] = frozenset({*marked, *found.special.values(), *found.sentinels})
        self.padding: Literal["right", "left"] = "left" if config.get("padding_side") == "left" else "right"
        self.pad_segment: int = files.read_number(config, "pad_token_type_id", 255) or 0
        self.length: int | None = files.read_number(config, "model_max_length", 10**9)
        self.sha256: str = hashlib.sha256(raw.to_str().encode()).hexdigest()
        self._config = config
        self._encoders: dict[bool, TokenizerEncoder] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a directory that has a `tokenizer.json`, or such a file."""
        raw, said = files.read_tokenizer(path)
        what = f"{os.fspath(path)}: a tokenizer that cannot be used"
        try:
            with translate_errors(CheckpointError, what):
                return cls(raw, said)
        except UsageError as error:
            raise CheckpointError(f"{what}: {error}") from None

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the files that `AutoTokenizer` reads, all of them or none."""
        with io.atomic_directory(directory, overwrite=overwrite) as folder:
            for name, content in self.build_files().items():
                io.atomic_write(folder / name, content)

    def build_files(self) -> dict[str, bytes]:
        """What `save` writes, by name."""
        return files.build_files(self)

    def with_tokens(self, tokens: Mapping[str, str]) -> "Tokenizer":
        """Return a copy with new special tokens, role -> spelling; their ids come after all others."""
        raw = files.parse_tokenizer(self.raw.to_str().encode(), "tokenizer")
        raw.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in tokens.values()])
        known = {role: self.get_token(i) for role, i in self.special.items()} | dict(tokens)
        return Tokenizer(raw, {**self._config, **{f"{role}_token": text for role, text in known.items()}})

    def encode_batch(self, texts: Sequence[str], *, literal: bool = False) -> TokenizedTexts:
        """The tokens of texts as flat arrays, without special tokens around them.

        A special token spelled out in a text ("[MASK]") is that token; with `literal` it is text like any other, as it
        should be in a corpus that somebody else wrote. Lone surrogates are read as U+FFFD.
        """
        check_list(texts)
        for text in texts:
            check_type(text)
        with self._lock:
            return self._get_encoder(literal).encode(texts)

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        """The ids of one text, as `encode_batch` gives them."""
        check_type(text)
        with self._lock:
            raw = self._get_encoder(literal).raw
        with translate_errors(DataError, "this tokenizer has no tokens for a text"):
            return raw.encode(replace_surrogates(text), add_special_tokens=False).ids

    def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
        """The text of ids, without the special tokens if `special` is false.

        An id past the vocabulary gives nothing: the vocabulary of a model may be larger than that of its tokenizer.
        """
        found = np.asarray(ids)
        if found.size and (found.dtype.kind not in "iu" or found.min() < 0):
            raise UsageError("ids must be whole numbers of 0 or more")
        return self.raw.decode(found[found < self.vocab].tolist(), skip_special_tokens=not special)

    def get_token(self, i: int) -> str:
        """The spelling of a token in the vocabulary ("##ing", "Ġthe", "▁the")."""
        found = self.raw.id_to_token(i) if 0 <= i < self.vocab else None
        if found is None:
            raise UsageError(f"no token has the id {i}; the vocabulary has {self.vocab}")
        return found

    def __len__(self) -> int:
        return self.vocab

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.raw.model).__name__}, {self.vocab} tokens, {self.sha256[:12]})"

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[str, dict[str, Any]]]:
        return _revive, (self.raw.to_str(), self._config)

    def _get_encoder(self, literal: bool) -> TokenizerEncoder:
        if literal not in self._encoders:
            raw = self.raw
            if literal:  # NOTE: a property of the library's object, so a second one is needed
                raw = files.parse_tokenizer(self.raw.to_str().encode(), "tokenizer")
                raw.encode_special_tokens = True
            self._encoders[literal] = TokenizerEncoder(raw, literal)
        return self._encoders[literal]


def _revive(text: str, config: dict[str, Any]) -> Tokenizer:
    return Tokenizer(files.parse_tokenizer(text.encode(), "tokenizer"), config)
