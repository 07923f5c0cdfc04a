"""Tokens outside the vocabulary are an error of the data, not of the model that reads them."""

from pathlib import Path

import numpy as np
import pytest

from pretune.core.errors import DataError
from pretune.data.shards import Shards
from pretune.runs.prepare import prepare
from tests.data.texts import MANY, blocks, byte_tokenizer


def test_a_token_outside_the_vocabulary(tmp_path: Path) -> None:
    data = prepare(
        [blocks(tmp_path / "a.txt", MANY[:20])], tokenizer=byte_tokenizer(tmp_path / "t"), out=tmp_path / "d"
    )
    (file,) = (data.path / "train").glob("*.tokens.npy")
    tokens = np.load(file)
    starts, lengths = np.array([0, 5]), np.array([4, 3])
    shards = Shards.open(data.path)
    assert shards.take(starts, lengths).tolist() == [*tokens[:4], *tokens[5:8]]
    tokens[6] = data.vocab
    np.save(file, tokens)
    shards = Shards.open(data.path)
    assert shards.take(starts, np.array([4, 1])).tolist() == [*tokens[:4], tokens[5]]
    for read in (lambda: shards.take(starts, lengths), lambda: shards.read_tokens(0, 10)):
        with pytest.raises(DataError, match=f"token {data.vocab} "):
            read()
