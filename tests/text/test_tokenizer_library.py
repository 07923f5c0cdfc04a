"""The tokenizer of a loaded model: no padding, no truncation, errors of ours."""

import copy
import pickle
from typing import Any

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import models, pre_tokenizers

from pretune.core.errors import DataError, UsageError
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.backend import LibraryTokenizer

WRONG = [None, 5, b"bytes", ["a"], {"a": 1}, 1.5]


def raw() -> Raw:
    made = Raw(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_padding(length=16)
    made.enable_truncation(1)
    return made


@pytest.mark.parametrize("kind", [LibraryTokenizer, Tokenizer])
def test_padding_and_truncation_are_off(kind: Any) -> None:
    found = kind(raw())
    assert found.raw.padding is None and found.raw.truncation is None
    encoded = found.encode("a b a")
    assert getattr(encoded, "ids", encoded) == [1, 2, 1]


@pytest.mark.parametrize("kind", [LibraryTokenizer, Tokenizer])
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_is_no_text_is_refused(kind: Any, wrong: object) -> None:
    found = kind(raw())
    with pytest.raises(UsageError, match=type(wrong).__name__):
        found.encode(wrong)
    with pytest.raises(UsageError):
        found.encode_batch([wrong] if not isinstance(wrong, list) else [5])
    for texts in (None, 5, "a b"):
        with pytest.raises(UsageError):
            found.encode_batch(texts)


@pytest.mark.parametrize("kind", [LibraryTokenizer, Tokenizer])
def test_text_without_a_token_is_a_data_error(kind: Any) -> None:
    with pytest.raises(DataError):
        kind(raw()).encode("unknown")
    with pytest.raises(DataError):
        kind(raw()).encode_batch(["unknown"])


def test_the_rest_is_the_librarys() -> None:
    found = LibraryTokenizer(raw())
    assert found.token_to_id("b") == 2 and found.get_vocab_size() == 3
    assert found.encode("a", "b").ids == [1, 2]
    assert [one.ids for one in found.encode_batch(["a", ("a", "b")])] == [[1], [1, 2]]
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert twin.encode("a b").ids == [1, 2]
    with pytest.raises(AttributeError):
        found.nothing  # noqa: B018
