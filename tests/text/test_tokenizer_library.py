"""The tokenizer of a loaded model: no padding, no truncation, errors of ours."""

import copy
import pickle

import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import models, pre_tokenizers

from pretune.core.errors import DataError, UsageError
from pretune.text.tokenizer import Tokenizer

WRONG = [None, 5, b"bytes", ["a"], {"a": 1}, 1.5]


def raw() -> Raw:
    made = Raw(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_padding(length=16)
    made.enable_truncation(1)
    return made


def test_padding_and_truncation_are_off() -> None:
    found = Tokenizer(raw())
    assert found.raw.padding is None and found.raw.truncation is None
    assert found.encode("a b a") == [1, 2, 1]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_is_no_text_is_refused(wrong: object) -> None:
    found = Tokenizer(raw())
    with pytest.raises(UsageError, match=type(wrong).__name__):
        found.encode(wrong)
    with pytest.raises(UsageError):
        found.encode_batch([wrong] if not isinstance(wrong, list) else [5])
    for texts in (None, 5, "a b"):
        with pytest.raises(UsageError):
            found.encode_batch(texts)


def test_text_without_a_token_is_a_data_error() -> None:
    with pytest.raises(DataError):
        Tokenizer(raw()).encode("unknown")
    with pytest.raises(DataError):
        Tokenizer(raw()).encode_batch(["unknown"])


def test_copies_are_equal() -> None:
    tokenizer = Tokenizer(raw())
    assert tokenizer.token_to_id("b") == 2 and tokenizer.token_to_id("c") is None and tokenizer.vocab_size == 3
    assert tokenizer.encode("a", "b") == [1, 2]
    for twin in (copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert twin.encode("a b") == [1, 2]
