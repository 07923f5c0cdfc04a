"""Open vocabulary: every word has an id and a spelling, ids survive a copy, and the tokens must be words."""

import pickle

import numpy as np
import pytest

from pretune.core.errors import UsageError
from pretune.text.tokenizer import Tokenizer, open_vocabulary
from pretune.text.tokenizer.open_vocabulary import BEGIN_TEXT, END_TEXT, OpenTokenizer, spell
from pretune.text.tokenizer.training import train

TEXTS = ["the cat sat on the mat . the cat ran", "a dog , a cat and the rest of it"] * 3


@pytest.fixture
def closed() -> Tokenizer:
    return train("words", TEXTS, vocab=14)


@pytest.fixture
def tokenizer(closed: Tokenizer) -> OpenTokenizer:
    return OpenTokenizer.from_tokenizer(closed, 12)


def test_words_outside_the_vocabulary_have_ids_and_spellings(closed: Tokenizer, tokenizer: OpenTokenizer) -> None:
    texts = ["the zyzzyva ran", "the cat", "naïve zyzzyva, the"]
    known, encoding = closed.encode_batch(texts), tokenizer.encode_batch(texts)
    unknown = closed.special["unk"]
    is_known = known.ids != unknown
    assert (encoding.ids[is_known] == known.ids[is_known]).all() and (encoding.ids[~is_known] >= closed.vocab).all()
    assert [tokenizer.decode(encoding[i]) for i in range(3)] == ["the zyzzyva ran", "the cat", "naïve zyzzyva , the"]
    for token in set(encoding.ids.tolist()):
        assert (tokenizer.spellings.table[token] == spell([tokenizer.get_token(token)], 12)[0]).all()
    assert encoding[0][1] == encoding[2][1] and tokenizer.encode("zyzzyva")[1:-1] == [encoding[0][1]]
    assert tokenizer.vocab == closed.vocab and len(tokenizer.spellings) > closed.vocab


def test_the_unknown_token_in_a_text_stays_one(tokenizer: OpenTokenizer) -> None:
    unknown = tokenizer.special["unk"]
    assert tokenizer.encode("<unk> the", add_special_tokens=False)[0] == unknown
    assert unknown not in tokenizer.encode("<unk> the", add_special_tokens=False, literal=True)


def test_texts_begin_and_end_with_marks(tokenizer: OpenTokenizer) -> None:
    begin, *_, end = tokenizer.encode("the cat")
    table = tokenizer.spellings.table
    assert (table[begin][1], table[end][1]) == (BEGIN_TEXT, END_TEXT)
    assert tokenizer(["the cat"]).tokens.tolist() == tokenizer.encode("the cat")


def test_a_copy_has_the_same_ids(tokenizer: OpenTokenizer) -> None:
    ids = tokenizer.encode("zyzzyva and quokka")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("quokka zyzzyva")[1:-1] == [ids[3], ids[1]]
    assert np.array_equal(copy.spellings.table, tokenizer.spellings.table)


def test_a_lowercase_tokenizer_spells_in_lowercase() -> None:
    tokenizer = OpenTokenizer.from_tokenizer(train("words", TEXTS, vocab=14, lowercase=True), 12)
    assert tokenizer.decode(tokenizer.encode("Zyzzyva", add_special_tokens=False)) == "zyzzyva"


def test_beyond_the_limit_words_are_unknown(tokenizer: OpenTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_vocabulary, "MAX_NEW_WORDS", 2)
    ids = tokenizer.encode("one two three two", add_special_tokens=False)
    assert ids == [14, 15, tokenizer.special["unk"], 15]


def test_pieces_of_words_are_refused() -> None:
    with pytest.raises(UsageError, match="needs word boundaries, but the tokenizer \\(WordPiece\\) splits words"):
        OpenTokenizer.from_tokenizer(train("wordpiece", TEXTS, vocab=60), 12)
