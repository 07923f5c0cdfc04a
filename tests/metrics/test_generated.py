"""ROUGE against rouge-score, the stemmer against NLTK's, BLEU and chrF by sacrebleu."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.metrics import METRICS
from pretune.metrics.generation import compute_lcs_length, rouge, rouge_stemmed, score_text, stem
from tests.conftest import ROOT
from tests.selection import scale_examples

NAMES = ["rouge1", "rouge2", "rougeL"]
WORDS = ["the", "running", "dogs", "dog", "ran", "happily", "happy", "Nations", "national", "2", "x-ray", "é", "."]
sentence = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=20)


@pytest.mark.slow
@pytest.mark.parametrize("stemmed", [False, True])
@settings(max_examples=scale_examples(50))
@given(data=st.data())
def test_one_text_equals_rouge_score(stemmed: bool, data: st.DataObject) -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed (extra 'peers')")
    judge = scorer.RougeScorer(NAMES, use_stemmer=stemmed)
    references, guess = data.draw(st.lists(sentence, min_size=1, max_size=3)), data.draw(sentence)
    theirs, ours = judge.score(references[0], guess), score_text(references[0], guess, use_stemmer=stemmed)
    for name in NAMES:
        assert ours[name] == pytest.approx(tuple(theirs[name]))
    several = judge.score_multi(references, guess)
    best = score_text(references, guess, use_stemmer=stemmed)
    assert [best[name][2] for name in NAMES] == pytest.approx([several[name].fmeasure for name in NAMES])
    assert rouge([references, guess], [guess, guess], use_stemmer=stemmed)["rouge1"] == pytest.approx(
        (best["rouge1"][2] + judge.score(guess, guess)["rouge1"].fmeasure) / 2
    )


@given(st.text("abc", max_size=12), st.text("abcd", max_size=12))
def test_the_longest_common_subsequence(left: str, right: str) -> None:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left, 1):
        for j, b in enumerate(right, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if a == b else max(table[i - 1][j], table[i][j - 1])
    assert compute_lcs_length(left, right) == table[-1][-1]


ENDINGS = (
    "sses ies s eed ed ing ied y ational tional enci izer bli alli entli eli ousli ization ation ator alism iveness "
)
ENDINGS += (
    "fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al ance er ic able ant ement "
)
ENDINGS += "ment ent ion sion tion ou ism ate iti ous ive ize e ll l ss"
made = st.builds(
    "{}{}{}".format, st.text("abeilnorstyz", max_size=5), *[st.sampled_from(["", *ENDINGS.split()])] * 2
) | st.text("abcdefghijklmnopqrstuvwxyz0123456789", max_size=10)


@given(st.lists(made, max_size=30))
def test_stems_of_made_up_words_are_nltks(words: list[str]) -> None:
    nltk = pytest.importorskip("nltk.stem.porter", reason="nltk, which rouge-score brings, is not installed")
    theirs = nltk.PorterStemmer()
    assert [stem(word) for word in words] == [theirs.stem(word) for word in words]


def test_stems_of_real_words_are_nltks() -> None:
    nltk = pytest.importorskip("nltk.stem.porter", reason="nltk, which rouge-score brings, is not installed")
    theirs = nltk.PorterStemmer()
    text = " ".join(file.read_text() for file in sorted((ROOT / "docs").glob("*.md")))
    words = {
        *METRICS,
        "skies",
        "dying",
        "innings",
        "news",
        "flies",
        "died",
        "spied",
        "enjoy",
        "sky",
        "controll",
        "roll",
    }
    words |= {"".join(filter(str.isalpha, word.lower())) for word in text.split() if word.isascii()} - {""}
    assert len(words) > 1000
    assert {word: stem(word) for word in words} == {word: theirs.stem(word) for word in words}


def test_texts_without_tokens_score_0() -> None:
    assert rouge(["日本語"], ["日本語"]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    assert rouge(["word"], ["word"]) == {"rouge1": 1.0, "rouge2": 0.0, "rougeL": 1.0}
    assert rouge_stemmed(["he runs"], ["he run"])["rouge1"] == 1.0 > rouge(["he runs"], ["he run"])["rouge1"]
    with pytest.raises(DataError):
        rouge([[]], ["a"])


def test_bleu_and_chrf_are_sacrebleus() -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (extra 'bleu')")
    guesses = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
    first = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
    second = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]
    both = [*map(list, zip(first, second, strict=True))]
    assert METRICS.get("bleu")(both, guesses) == sacrebleu.corpus_bleu(guesses, [first, second]).score / 100
    assert round(sacrebleu.corpus_bleu(guesses, [first, second]).score, 2) == 48.53  # as its README prints
    assert METRICS.get("bleu")(both, guesses) == pytest.approx(0.4853, abs=5e-5)
    assert METRICS.get("chrf")(first, guesses) == sacrebleu.corpus_chrf(guesses, [first]).score / 100
    assert (
        METRICS.get("chrf")(first, guesses, word_order=2)
        == sacrebleu.corpus_chrf(guesses, [first], word_order=2).score / 100
    )
    ragged = [[first[0], second[0]], first[1], [first[2]]]
    assert 0 < METRICS.get("bleu")(ragged, guesses) < METRICS.get("bleu")(both, guesses)


def test_without_sacrebleu_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UsageError, match=r"pip install 'pretune\[bleu\]'"):
        METRICS.get("bleu")(["a"], ["a"])
    with pytest.raises(DataError, match=r"\b1\b"):
        METRICS.get("chrf")(["a", []], ["a", "b"])
