"""The tokenizer of a loaded model: the one of the `tokenizers` library, with errors of ours.

model.tokenizer.encode("a lovely film").ids     # special tokens included, as `pt.batch` takes them
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Raw

from pretune.core.config.read import format_value
from pretune.core.errors import DataError, UsageError
from pretune.text.tokenizer.errors import translate_errors
from pretune.text.tokenizer.units import replace_surrogates


class LibraryTokenizer:
    """A `tokenizers.Tokenizer` that neither pads nor truncates and refuses what is not text.

    Padding and truncation belong to a batch: in a ragged batch a padded sequence is one whose padding is attended to.
    All attributes of the library's object are there; `raw` is the object itself.
    """

    def __init__(self, raw: Raw) -> None:
        raw.no_padding()
        raw.no_truncation()
        self.raw = raw

    def encode(self, sequence: str, pair: str | None = None, *, add_special_tokens: bool = True) -> Encoding:
        """Return the tokens of a text, or of a pair of texts, with the special tokens around them."""
        first, second = _check_text(sequence), None if pair is None else _check_text(pair)
        with translate_errors(DataError, "this tokenizer has no tokens for a text"):
            return self.raw.encode(first, second, add_special_tokens=add_special_tokens)

    def encode_batch(
        self, texts: Sequence[str | tuple[str, str]], *, add_special_tokens: bool = True
    ) -> list[Encoding]:
        """Return the same for every text, or pair of texts, of a list."""
        check_list(texts)
        valid_texts = [
            tuple(map(_check_text, text)) if isinstance(text, tuple | list) else _check_text(text) for text in texts
        ]
        with translate_errors(DataError, "this tokenizer has no tokens for a text"):
            return self.raw.encode_batch(valid_texts, add_special_tokens=add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        if name == "raw" or name.startswith("__"):  # NOTE: a copy is asked for names before it has its object
            raise AttributeError(name)
        return getattr(self.raw, name)

    def __repr__(self) -> str:
        return f"LibraryTokenizer({type(self.raw.model).__name__}, {self.raw.get_vocab_size()} tokens)"


def check_type(text: object) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise UsageError(f"a tokenizer takes text, found {_describe_value(text)}")


def check_list(texts: object) -> None:
    """Refuse what is not a list of texts."""
    if isinstance(texts, str):
        raise UsageError("encode_batch takes a list of texts, found one text; put it into a list")
    if not hasattr(texts, "__len__") or not hasattr(texts, "__getitem__"):
        raise UsageError(f"encode_batch takes a list of texts, found {_describe_value(texts)}")


def _describe_value(value: object) -> str:
    return f"{format_value(value)} ({type(value).__name__})"


def _check_text(text: str) -> str:
    check_type(text)
    return replace_surrogates(text)
