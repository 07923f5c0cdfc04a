"""Tasks whose answers are written: prompts, what every shape writes against the slow way, shots, scores and faults."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import DataError, UsageError
from pretune.evaluation import generative as written_module
from pretune.evaluation.few_shot import FewShotConfig
from pretune.evaluation.generative import (
    AnswerGenerator,
    _resolve_prompt,
    compute_scores,
    evaluate_generation,
    get_answer,
)
from pretune.evaluation.prompts import PromptTemplate
from pretune.inference.decode import generate_tokens
from pretune.inference.generate import Continuation
from pretune.inference.scoring import ScoringConfig
from pretune.inference.text_model import get_tokenizer
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.task import SplitFile, Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import AnswerPrompt
from pretune.tasks.types.span import NO_ANSWER
from tests.inference.scorers import scorer

SHORT = PromptTemplate(text="{text}: {answer}", join=" ")
SHOTS = [Example(text="sea", target="quiet"), Example(text="house", target="old")]
ASKED = [Example(text="the quiet sea", target="old"), Example(text="book", target="odd"), Example(text="Had nobody")]


def test_every_prompt_is_that_of_a_task_with_answers_to_write() -> None:
    for name in written_module.PROMPTS:
        assert isinstance(get_type(TASKS.get(name)).scoring.evaluator, AnswerPrompt), name
    languages = {name: written_module.PROMPTS[name].text for name in TASKS if name.startswith("wmt")}
    assert len(set(languages.values())) == len(languages) == 3


def slowly(family: str, text: str, given: bool, most: int) -> str:
    """The likeliest token again and again, the whole of it read anew each time."""
    model = scorer(family)
    tokenizer = get_tokenizer(model)
    ids, special, written = (
        tokenizer.encode(text, literal=True, add_special_tokens=False),
        tokenizer.special,
        list[int](),
    )
    # A sentinel ends what fills a blank; where no blank is asked for, it is a token like any other.
    ends = {*model.spec.special.eos, *(() if given else tokenizer.sentinels)}
    while len(written) < most:
        if family == "gpt2":
            batch = pt.batch([[special["bos"] if "bos" in special else special["eos"], *ids, *written]])
        else:
            mark = [] if given else [tokenizer.sentinels[0] if family == "t5" else special["mask"]]
            source = tokenizer.template.apply([*ids, *mark]).ids.tolist()
            said = mark if family == "t5" or given else source[: source.index(mark[0])]
            start = model.spec.special.start
            assert start is not None
            batch = pt.batch(source=[source], target=[[start, *said, *written]])
        with torch.no_grad():
            out = model(batch).logits
        token = int(out[-1].argmax())
        if token in ends:
            break
        written.append(token)
    decode = Continuation(tokenizer)
    whole = decode([*ids, *written]) if family != "t5" else ""
    tail = whole[len(decode(ids)) :] if whole else decode(written)
    return tail.strip().split("\n")[0].strip()


@pytest.mark.parametrize(("family", "given"), [("gpt2", False), ("t5", False), ("t5", True), ("bart", False)])
@pytest.mark.parametrize("shots", [0, 2])
def test_answers_are_those_of_the_slow_way(family: str, given: bool, shots: int) -> None:
    writer = AnswerGenerator(scorer(family), SHORT, SHOTS[:shots], ScoringConfig(conditional=given), max_tokens=6)
    found, lost = writer.generate(ASKED)
    read = [writer.render(example).removesuffix(" ____") for example in ASKED]
    assert found == [slowly(family, text, given, writer.max_new_tokens) for text in read]
    assert lost.truncated_texts == 0
    kept = ["", "house: old ", "sea: quiet house: old "]
    assert read == [f"{kept[shots - n]}{example.text}:" for n, example in zip(lost.dropped_shots, ASKED, strict=True)]


def test_answers_do_not_depend_on_who_else_is_asked() -> None:
    writer = AnswerGenerator(scorer("gpt2"), SHORT, SHOTS, max_tokens=5)
    alone, told = [writer.generate([example])[0][0] for example in ASKED], list[tuple[int, int]]()
    many, lost = writer.generate(ASKED * 30, lambda done, of: told.append((done, of)))
    assert many == alone * 30 and len(lost.dropped_shots) == 90
    assert told == [(64, 90), (90, 90)]


def test_fewer_at_a_time_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = AnswerGenerator(scorer("gpt2"), SHORT, max_tokens=5)
    wanted, tried = writer.generate(ASKED)[0], list[int]()

    def full(*given: Any, batch: int, **more: Any) -> Any:
        tried.append(batch)
        if batch > 2:
            raise torch.OutOfMemoryError
        return generate_tokens(*given, batch=batch, **more)

    monkeypatch.setattr(written_module, "generate_tokens", full)
    assert writer.generate(ASKED)[0] == wanted and tried == [64, 32, 16, 8, 4, 2]


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_shots_that_do_not_fit_are_dropped_and_long_questions_cut(family: str) -> None:
    writer = AnswerGenerator(scorer(family), SHORT, SHOTS * 6, max_tokens=4)
    assert writer.max_prompt_tokens is not None
    long = Example(text="nobody knew the old quiet odd house " * 12, target="x")
    texts, lost = writer.generate([ASKED[1], long])
    assert (
        len(texts) == 2 and 0 < lost.dropped_shots[0] < 12 and lost.dropped_shots[1] == 12 and lost.truncated_texts == 1
    )


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_an_encoder_writes_nothing(family: str) -> None:
    with pytest.raises(UsageError):
        AnswerGenerator(scorer(family), SHORT)


def test_prompts_are_there_for_all_such_tasks_and_end_in_the_blank() -> None:
    for name in TASKS:
        task = TASKS.get(name)
        if isinstance(get_type(task).scoring.evaluator, AnswerPrompt):
            prompt = _resolve_prompt(task, FewShotConfig())
            assert AnswerGenerator(scorer("gpt2"), prompt).prompt.text.endswith("{answer}"), name
    with pytest.raises(UsageError, match=r"\{answer\}"):
        AnswerGenerator(scorer("gpt2"), PromptTemplate(text="{text} {answer} is it"))


def test_scores() -> None:
    squad = TASKS.get("squad2")
    asked = [Example(text="who", pair="a b", answers=("a",)), Example(text="what", pair="a b")]
    assert compute_scores(squad, asked, ["a", "Unanswerable."])["f1"] == 1.0
    assert compute_scores(squad, asked, ["a", "b"])["exact_match"] == 0.5
    xsum = TASKS.get("xsum")
    found = compute_scores(xsum, [Example(text="the old sea was quiet", target="the old")], ["nothing"])
    assert next(iter(found.values())) == 0.0 and found["lead"] == 1.0
    assert [get_answer(example) for example in (asked[0], asked[1], Example(text="", target="a\nb"))] == [
        "a", NO_ANSWER, "a b",
    ]  # fmt: skip


@pytest.fixture
def squad(tmp_path: Path) -> Task:
    """Two articles, a question of each without an answer; train and dev alike."""
    questions = [
        {"id": f"{a}{q}", "question": f"who {q}", "answers": [{"text": "sea", "answer_start": 4}] if q else []}
        for a in range(2)
        for q in range(2)
    ]
    articles = [{"title": "t", "paragraphs": [{"context": "the sea", "qas": questions}]}]
    (tmp_path / "all.json").write_text(json.dumps({"data": articles}))
    file = SplitFile(path=str(tmp_path / "all.json"), reader=TASKS.get("squad2").splits["dev"][0].reader)
    splits = dict.fromkeys(("train", "dev"), (file,))
    return replace(TASKS.get("squad2"), splits=splits)


def test_a_task_from_its_files_to_a_result(squad: Task) -> None:
    found = evaluate_generation(scorer("t5"), squad, 2, FewShotConfig(show=True, seed=1))
    assert found.split == "dev" and found.shots == 2 and found.counts["examples"] == 4
    assert {"f1", "exact_match"} <= set(found.scores)
    assert found.prompt is not None and found.prompt.count("Answer: ") == 3 and NO_ANSWER in found.prompt
    assert any("2 shots" in note and "'train'" in note and "seed 1" in note for note in found.notes)
    alone = replace(squad, splits={"dev": squad.splits["dev"]})
    less = evaluate_generation(scorer("gpt2"), alone, 1)
    assert less.counts["examples"] == 3 and sum("'dev'" in note for note in less.notes) == 2
    asked = evaluate_generation(scorer("t5"), squad, 0, FewShotConfig(text_to_text=True, show=True))
    assert asked.prompt is not None and asked.prompt.startswith("question: who 0 context: the sea ____")


def test_shots_are_of_dev_where_nothing_is_for_training(squad: Task) -> None:
    alone = replace(squad, splits={"dev": squad.splits["dev"], "test": squad.splits["dev"]})
    found = evaluate_generation(scorer("t5"), alone, 1)
    assert found.split == "test" and found.counts["examples"] == 4
    assert any("1 shot" in note and "'dev'" in note for note in found.notes)


def test_bad_input(squad: Task) -> None:
    with pytest.raises(UsageError):
        evaluate_generation(scorer("gpt2"), squad, 0, FewShotConfig(calibrate=True))
    with pytest.raises(UsageError, match="--text-to-text"):
        evaluate_generation(scorer("t5"), replace(squad, template=None), 0, FewShotConfig(text_to_text=True))
    with pytest.raises(DataError):
        AnswerGenerator(scorer("gpt2"), SHORT).generate([])


@pytest.mark.slow
def test_real_tasks(shared_data: Path) -> None:
    for name, headline in (("squad1", "f1"), ("samsum", "rouge1")):
        task = TASKS.get(name)
        if not task.find_available(shared_data):
            pytest.skip(f"{name} is not there")
        result = pt.evaluate(scorer("t5"), name, data=shared_data, shots=[0, 1], limit=2)
        assert [found.shots for found in result] == [0, 1] and all(headline in found.scores for found in result)
