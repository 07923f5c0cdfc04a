"""Files next to a model's weights: its tokenizer, and small files that are saved again unchanged."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pretune.core import io
from pretune.core.errors import CheckpointError
from pretune.text.tokenizer.open_vocabulary import OpenTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

    from pretune.text.tokenizer import Tokenizer

_SHARED_TOKENIZERS: "WeakValueDictionary[tuple[str, str], Tokenizer]" = WeakValueDictionary()
"""Tokenizers in use, by hash and configuration: models with the same files share one, and its cache of known words."""


@dataclass(slots=True)
class Assets:
    """Files next to the weights: the tokenizer, and small files that are saved again unchanged."""

    tokenizer: "Tokenizer | RawTokenizer | None" = None  # the raw file, until it is used
    files: dict[str, bytes] = field(default_factory=dict)
    modules: dict[str, bytes] = field(default_factory=dict)  # files of sentence-transformers, with their folders
    directory: str | None = None  # of the weights: absolute, or hf:OWNER/NAME; None: they were in none

    def load_tokenizer(self, characters: int | None = None) -> "Tokenizer | None":
        """Return the tokenizer with the roles of its special tokens, built on first use; None where there is none.

        For a model that reads words of so many `characters`, it has an open vocabulary.
        """
        from pretune.text.tokenizer import Tokenizer
        from pretune.text.tokenizer.files import CONFIG_FILE, SPECIAL_TOKENS_FILE

        if isinstance(self.tokenizer, Tokenizer) and isinstance(self.tokenizer, OpenTokenizer) == bool(characters):
            return self.tokenizer
        if self.tokenizer is not None and not isinstance(self.tokenizer, Tokenizer):
            settings: dict[str, Any] = {}
            for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):  # the later file wins
                settings |= self.read_json(name)
            tokenizer = Tokenizer(self.tokenizer, settings)
            key = tokenizer.sha256, json.dumps(settings, sort_keys=True, allow_nan=False)
            self.tokenizer = _SHARED_TOKENIZERS.setdefault(key, tokenizer)
        if characters and isinstance(self.tokenizer, Tokenizer):
            roles = sorted(self.tokenizer.special.items())
            key = self.tokenizer.sha256, f"{characters} characters, {roles}"
            open_tokenizer = _SHARED_TOKENIZERS.get(key) or OpenTokenizer.from_tokenizer(self.tokenizer, characters)
            self.tokenizer = _SHARED_TOKENIZERS.setdefault(key, open_tokenizer)
        return self.tokenizer

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file that came with the weights; empty where there is none."""
        content = io.parse_json(self.files.get(name, b"{}"), CheckpointError, name)
        if not isinstance(content, dict):
            raise CheckpointError(f"{name}: expected a JSON object at the top level")
        return content
