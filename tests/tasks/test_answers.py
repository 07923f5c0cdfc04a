"""From what a model says to scores: gold is perfect, order and batches do not matter, thresholds, groups, and a fit."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from pretune.core.errors import DataError, UsageError
from pretune.metrics import compute_suite_averages, get_headline
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import EncodingRules
from pretune.tasks.example import AnswerCandidate, Example, Prediction
from pretune.tasks.predict import predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.task import Template
from pretune.tasks.types import get_type, score
from pretune.tasks.types.choice import CHOICE
from pretune.tasks.types.span import _score_spans
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from pretune.training.step import ModelWithLoss
from tests.contracts.tiny import take_steps
from tests.tasks.oracle import perfect
from tests.tasks.small import KINDS, SHAPES, TEXT, encoder_for, examples_of, model_for, task_of

PAIRS = [(shape, kind) for shape in SHAPES for kind in KINDS if (shape, kind) != ("bert", "generation")]
PAIRS += [("gpt2", "preference")]  # of decoders alone

QUICK_PAIRS = {
    *(("bert", kind) for kind in KINDS if kind not in ("srl", "pair", "multi-label")),
    ("gpt2", "classification"),
    ("t5", "generation"),
    ("gpt2", "preference"),
}


@pytest.mark.parametrize(("shape", "kind"), PAIRS)
def test_gold_is_perfect(shape: str, kind: str) -> None:
    task, examples = task_of(kind), examples_of(kind)
    scores = score(task, examples, perfect(encoder_for(shape, task), examples))
    assert get_headline(scores) == pytest.approx(
        1.0, abs=0.02 if kind == "regression" else 1e-9
    )  # written in steps of 0.2


@pytest.mark.parametrize(("shape", "kind"), PAIRS)
def test_one_prediction_for_each_example_however_they_are_packed(shape: str, kind: str) -> None:
    task, examples = task_of(kind), examples_of(kind)
    model = model_for(shape, task)
    model.train()
    encoder = TaskEncoder.from_task(task, model, max_length=48, max_new_tokens=4)
    progress: list[tuple[int, int]] = []
    predictions = predict(model, encoder, examples, on_progress=lambda count, total: progress.append((count, total)))
    assert len(predictions) == len(examples) and model.training and progress[-1][0] == progress[-1][1]
    single_predictions = [
        predict(model, encoder, [replace(example, label=None, target=None)], tokens=8)[0] for example in examples[:3]
    ]
    for packed, one in zip(predictions, single_predictions, strict=False):
        assert (packed.label, packed.text, packed.tags, packed.span) == (one.label, one.text, one.tags, one.span)
        np.testing.assert_allclose(packed.probabilities, one.probabilities, atol=1e-5)
        assert packed.value == pytest.approx(one.value, abs=1e-5)
        if packed.probabilities and kind != "multi-label":
            assert sum(packed.probabilities) == pytest.approx(1, abs=1e-6)
    assert get_headline(score(task, examples, predictions)) <= 1
    assert all(get_type(task).outputs.format(task, prediction) for prediction in predictions)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [pytest.param(*pair, marks=[] if pair in QUICK_PAIRS else [pytest.mark.slow]) for pair in PAIRS],
)
def test_eight_rows_are_learnt(shape: str, kind: str) -> None:
    task = task_of(kind)
    model = deepcopy(model_for(shape, task))  # the body is shared
    work = ModelWithLoss(model, model.spec)
    stream = TaskStream(TaskEncoder.from_task(task, model, max_length=32).encode(examples_of(kind)), batch=8)
    rate = (1e-4 if kind == "coreference" else 1e-2) if shape == "t5" else 3e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = take_steps(optimizer, lambda step: work(stream[step]).mean(), 12)
    assert min(losses[-3:]) < 0.9 * losses[0]


@pytest.mark.parametrize("shape", ["bert", pytest.param("t5", marks=pytest.mark.slow)])
def test_a_fitted_model_says_what_it_has_learnt(shape: str) -> None:
    task, examples = task_of("classification"), examples_of("classification")[4:]
    model = deepcopy(model_for(shape, task))
    encoder = TaskEncoder.from_task(task, model, max_length=32)
    stream = TaskStream(encoder.encode(examples), batch=4, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2 if shape == "t5" else 3e-3)
    take_steps(optimizer, lambda step: model.spec.loss(model, stream[step]).mean(), 80)
    assert score(task, examples, predict(model, encoder, examples))["accuracy"] == 1.0


def test_the_best_span_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        logits = rng.normal(size=(20, 2)).astype(np.float32)
        alignment = np.where(np.arange(20) < 4, -1, np.arange(20) - 4)
        spans = [
            (float(logits[start, 0] + logits[end, 1]), start - 4, end - 4)
            for start in range(4, 20)
            for end in range(start, 20)
        ]
        assert max(_score_spans(logits, alignment)) == pytest.approx(max(spans))


def test_the_threshold_is_that_of_the_best_f1() -> None:
    examples = [
        Example(text="q", pair="Paris is old", answers=("Paris",), spans=((0, 5),)),
        Example(text="q", pair="Rome is old"),
        Example(text="q", pair="Bonn is old", answers=("Bonn",), spans=((0, 4),)),
    ]
    texts, nulls = ("Paris", "Rome", "Bonn"), (-3.0, 2.0, 1.0)
    predictions = [
        Prediction(text="", null_score_diff=null, candidates=(AnswerCandidate(text, 1.0, (0, len(text))),))
        for text, null in zip(texts, nulls, strict=True)
    ]
    task = task_of("span")
    outputs = get_type(task).outputs
    threshold = outputs.find_threshold(task, examples, predictions)
    assert threshold == 1.0
    final = outputs.apply_threshold(task, predictions, threshold)
    assert [prediction.text for prediction in final] == ["Paris", "", "Bonn"] and final[0].span == (0, 5)
    assert score(task, examples, final)["f1"] == 1.0
    scores = score(task, examples, outputs.apply_threshold(task, predictions, 0.0))
    assert scores["f1"] == pytest.approx(2 / 3) and scores["best_f1"] == 1.0
    with pytest.raises(UsageError):
        outputs.find_threshold(task, examples, [Prediction(text="a")] * 3)


def test_groups_options_and_answers_are_scored_as_published() -> None:
    pair = task_of("pair")
    examples = [
        Example(text="p", pair=f"q{index}", label=index % 2, group="a" if index < 2 else "b") for index in range(4)
    ]
    right = [Prediction(label=index % 2) for index in range(3)]
    multirc = score(replace(pair, metrics=("multirc",)), examples, [*right, Prediction(label=0)])
    assert multirc["exact_match"] == 0.5 and multirc["average"] == pytest.approx((2 / 3 + 0.5) / 2)
    parity = score(replace(pair, metrics=("accuracy", "gender_parity")), examples, [Prediction(label=1)] * 4)
    assert parity == {"accuracy": 0.5, "gender_parity": 1.0}
    record = replace(task_of("choice"), metrics=("record",))
    questions = [
        Example(text="t", pair="@placeholder", choices=("Nina Simone", "John"), label=0, answers=("Nina Simone",))
    ]
    assert score(record, questions, [Prediction(label=1, scores=(0, 1))])["average"] == 0
    assert score(record, questions, [Prediction(label=0, scores=(1, 0))])["average"] == 1
    assert score(record, questions, [Prediction(text="Nina")])["f1"] == pytest.approx(2 / 3)


def parse(rules: EncodingRules, text: str) -> Prediction:
    """What a generated text stands for."""
    return get_type(rules.task).outputs.parse_answer(rules, Example(text=""), text)


def test_what_is_written_stands_for_a_label_or_nothing() -> None:
    rules = encoder_for("t5", task_of("classification")).rules
    assert parse(rules, " positive ").label == 1 and parse(rules, "posit").label is None
    assert score(rules.task, [Example(text="", label=1)] * 2, [Prediction(label=1), Prediction()])["accuracy"] == 0.5
    score_rules = encoder_for("t5", task_of("regression")).rules
    assert [parse(score_rules, text).value for text in ("3.2", "9", "nan", "much")] == [3.2, 5.0, 2.5, 2.5]


@pytest.mark.parametrize(("kind", "lowercase"), [("unigram", True), ("wordpiece", False), ("wordpiece", True)])
def test_labels_are_compared_as_the_tokenizer_decodes_them(kind: str, lowercase: bool) -> None:
    targets = ("Not_good", "Choice1 (old)", "the old man walked down to the river and " * 2 + "his boat")
    task = replace(task_of("classification"), labels=targets, template=Template(source="{text}", targets=targets))
    rules = TaskEncoder.from_task(task, model_for("t5", task), build_tokenizer(kind, lowercase)).rules
    for label, target in enumerate(targets):
        ids = rules.tokenizer.encode(target, add_special_tokens=False)[: rules.max_new_tokens]
        answer = rules.tokenizer.decode(ids, special=False)
        assert parse(rules, answer).label == label
    assert parse(rules, "his boat").label is None
    choice_rules = replace(rules, task=replace(task_of("choice"), template=None))
    question = Example(text="", choices=("old_man", "good_film"))
    for option in (0, 1):
        answer = rules.spell(question.choices[option])
        assert CHOICE.outputs.parse_answer(choice_rules, question, answer).label == option
    assert parse(replace(rules, task=task_of("regression"), scale=(0.0, 5.0)), rules.spell("1.6")).value == 1.6


@pytest.mark.parametrize("targets", [("Good", "good"), ("good", "Ω"), ("the old man " * 9 + "a", "the old man " * 9)])
def test_labels_that_cannot_be_told_apart_are_an_error(targets: tuple[str, ...]) -> None:
    task = replace(task_of("classification"), labels=targets, template=Template(source="{text}", targets=targets))
    model = model_for("t5", task)
    with pytest.raises(DataError, match="label"):
        TaskEncoder.from_task(task, model, build_tokenizer("wordpiece", True))
    with_head = model_for("t5", task, text_to_text=False)
    assert not TaskEncoder.from_task(task, with_head, build_tokenizer("wordpiece", True)).is_generative


def test_labels_that_differ_late_need_more_tokens() -> None:
    targets = ("the old man " * 9 + "a", "the old man " * 9)
    task = replace(task_of("classification"), labels=targets, template=Template(source="{text}", targets=targets))
    model, tokenizer = model_for("t5", task), build_tokenizer("wordpiece", True)
    with pytest.raises(DataError, match="max_new_tokens"):
        TaskEncoder.from_task(task, model, tokenizer)
    count = len(tokenizer.encode(targets[0], add_special_tokens=False))
    assert TaskEncoder.from_task(task, model, tokenizer, max_new_tokens=count).is_generative


def build_tokenizer(kind: str, lowercase: bool) -> Tokenizer:
    texts = [*TEXT, "Not_good Choice1 (old) 1.6"] * 3
    return train(kind, texts, vocab=400, style="sentinels", lowercase=lowercase)


def test_words_without_tokens_are_outside() -> None:
    task = task_of("tagging")
    encoder = encoder_for("bert", task, max_length=6)
    example = Example(text="", words=("Nina", "\x00", *["Paris"] * 20), tags=("B-PER", "O", *["B-LOC"] * 20))
    (prediction,) = perfect(encoder, [example])
    assert len(prediction.tags) == 22 and prediction.tags[:2] == ("B-PER", "O") and prediction.tags[-1] == "O"


def test_what_cannot_be_scored_is_named() -> None:
    task, examples = task_of("classification"), [Example(text="a"), Example(text="b")]
    with pytest.raises(DataError, match=f"'{task.name}'.*'a'"):
        score(task, examples, [Prediction(label=0)] * 2)
    with pytest.raises(DataError, match=r"\b1\b.*\b2\b"):
        score(task, examples, [Prediction(label=0)])
    with pytest.raises(UsageError, match=r"\b3\b"):
        predict(model_for("bert", task), encoder_for("bert", task), examples, beams=3)


def test_averages_need_all_tasks() -> None:
    nine = {name: {"accuracy": 0.5} for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")}
    assert compute_suite_averages(nine) == {"glue": 0.5}
    assert compute_suite_averages({**nine, "mnli_mismatched": {"accuracy": 1.0}})["glue"] == pytest.approx(
        (8 * 0.5 + 0.75) / 9
    )
    assert compute_suite_averages({"cola": {"matthews": 1.0}}) == {}
    eight = {name: {"a": 1.0} for name in ("boolq", "cb", "copa", "multirc", "record", "superglue_rte", "wic", "wsc")}
    assert compute_suite_averages({**eight, "rte": {"a": 0.0}}) == {"superglue": 1.0}
