"""The built-in gaps: the set itself, an oracle's scores, and models of three shapes against the slow way."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from pretune.core.errors import DataError
from pretune.evaluation import cloze
from pretune.evaluation.cloze import GAP, evaluate_cloze_choices
from pretune.inference.scoring import ScoringConfig
from pretune.metrics.significance import compute_share_interval
from pretune.runs.evaluate import evaluate
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from tests.inference.scorers import causal, ids, log_softmax, scorer

KINDS = {
    "fact", "grammar", "coreference", "meaning", "topic", "sentiment", "reasoning", "arithmetic", "spatial", "time",
}  # fmt: skip
EXAMPLES = [*TASKS.get("cloze").read("test")]
WORDS = ("house", "sea", "odd", "quiet")
SHORT = [
    Example(text="The _ was quiet.", choices=WORDS, label=1, group="noun"),
    Example(text="Nobody knew the _", choices=WORDS, label=0, group="noun"),
    Example(text="_ and odd!", choices=WORDS, label=3, group="first"),
]


def answer(example: Example) -> str:
    return example.choices[int(example.label or 0)]


def test_the_set_is_ten_kinds_of_twenty_sentences_with_one_gap_and_four_words_each() -> None:
    assert Counter(example.group for example in EXAMPLES) == dict.fromkeys(KINDS, 20)
    assert len({example.text for example in EXAMPLES}) == len(EXAMPLES)
    for example in EXAMPLES:
        assert example.text.count(GAP) == 1 and example.text[-1] in ".?!" and example.text == example.text.strip()
        assert len(example.choices) == len({choice.lower() for choice in example.choices}) == 4
        assert all(choice.isalpha() for choice in example.choices)
        # Names and the first word of a sentence are capitalized, and then all choices are.
        assert len({choice[0].isupper() for choice in example.choices}) == 1
        assert not example.text.startswith(GAP) or answer(example)[0].isupper()
        assert example.facts["most_frequent"] in example.choices
    places = Counter(
        "first" if text.startswith(GAP) else "last" if text[:-1].endswith(GAP) else "middle"
        for text in (example.text for example in EXAMPLES)
    )
    assert min(places.values()) > 10
    # Neither the place nor the frequency of a word gives the answer away.
    assert max(Counter(example.label for example in EXAMPLES).values()) < 70
    assert 0.15 < np.mean([example.facts["most_frequent"] == answer(example) for example in EXAMPLES]) < 0.35


def test_an_oracle_is_right_its_reverse_is_wrong_and_ties_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {example.text.replace(GAP, answer(example)) for example in EXAMPLES}
    texts: list[str] = []

    def encode(tokenizer: object, values: list[str], spans: object, **options: object) -> None:
        texts[:] = values

    def evaluate_with(*values: float) -> tuple[dict[str, float], dict[str, float], int]:
        """Scores, groups and ties with this value for the right sentences, and another one for the others."""
        sums = lambda *_, **__: SimpleNamespace(  # noqa: E731
            sums=np.array([values[text not in right] for text in texts]), truncated_passages=0
        )
        monkeypatch.setattr(cloze, "encode_passages", encode)
        monkeypatch.setattr(cloze, "compute_token_logprobs", sums)
        result = evaluate_cloze_choices(scorer("gpt2"), EXAMPLES)
        return dict(result.scores), dict(result.groups), result.counts["ties"]

    scores, groups, ties = evaluate_with(-1.0, -2.0)
    assert (
        scores["accuracy"] == 1.0 == pytest.approx(scores["accuracy_high"]) and scores["chance"] == 0.25 and ties == 0
    )
    assert scores["accuracy_low"] == pytest.approx(0.9812, abs=1e-4)
    assert groups == dict.fromkeys(KINDS, 1.0)
    for values, count in (((-2.0, -1.0), 200), ((-1.0, -1.0), 200)):
        scores, groups, ties = evaluate_with(*values)
        assert scores["accuracy"] == 0.0 and not any(groups.values()) and ties == count


def slow_score(family: str, example: Example, word: str) -> float:
    """Log-probability of a word in the gap, of the sentence for a decoder: token by token."""
    model = scorer(family)
    before, after = example.text.split(GAP)
    special, start = model.tokenizer.special, len(ids(model, before.rstrip()))
    tokens = ids(model, before + word + after)
    if family == "gpt2":
        return sum(causal(model, before + word + after, [special["bos"]]))
    stop = len(ids(model, before + word))
    total = 0.0
    for place in range(start, stop):
        if family == "bert":
            shown = tokens[:place] + [special["mask"]] * (stop - place) + tokens[stop:]
            row = log_softmax(model, [special["cls"], *shown, special["sep"]])[1 + place]
        else:
            sentinel = model.tokenizer.sentinels[0]
            source = [*tokens[:start], sentinel, *tokens[stop:], special["eos"]]
            row = log_softmax(model, [special["pad"], sentinel, *tokens[start:place]], source=[source])[-1]
        total += float(row[tokens[place]])
    return total


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_the_likeliest_word_is_found_as_in_the_slow_way(family: str) -> None:
    model = scorer(family)
    slow = [[slow_score(family, example, word) for word in WORDS] for example in SHORT]
    best = [row.index(max(row)) for row in slow]
    for labels in (best, [3 - label for label in best]):
        examples = [
            Example(text=example.text, choices=WORDS, label=label, group=example.group)
            for example, label in zip(SHORT, labels, strict=True)
        ]
        result = evaluate_cloze_choices(model, examples)
        correct = [float(label == place) for label, place in zip(labels, best, strict=True)]
        assert result.scores["accuracy"] == pytest.approx(np.mean(correct))
        assert result.groups == {"noun": pytest.approx(np.mean(correct[:2])), "first": correct[2]}
        assert result.counts == {"examples": 3, "ties": 0} and "most_frequent_word" not in result.scores
    assert len({len(ids(model, word)) for word in WORDS}) > 1  # words of several tokens are scored, too


def test_a_word_is_scored_whatever_its_number_of_tokens_with_and_without_parts_of_words() -> None:
    model = scorer("bert")
    whole, parts = (evaluate_cloze_choices(model, SHORT, ScoringConfig(rest=rest)) for rest in (True, False))
    assert whole.counts["examples"] == parts.counts["examples"] == 3
    with pytest.raises(DataError, match="empty"):
        evaluate_cloze_choices(model, [])


def test_the_set_is_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    (result,) = evaluate(scorer("gpt2"), "cloze", limit=20)
    assert result.task == "cloze" and result.split == "test" and result.counts["examples"] == 20
    assert {*result.groups} == KINDS  # evenly spread over the set
    low, high = result.scores["accuracy_low"], result.scores["accuracy_high"]
    assert low <= result.scores["accuracy"] <= high and result.scores["chance"] == 0.25


def test_the_interval_of_a_share_is_wilson_s() -> None:
    assert compute_share_interval(0, 10) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.2775, abs=1e-4))
    assert compute_share_interval(10, 10) == (pytest.approx(0.7225, abs=1e-4), pytest.approx(1.0))
    assert compute_share_interval(81, 263) == (pytest.approx(0.2553, abs=1e-4), pytest.approx(0.3662, abs=1e-4))
