"""Prompts as texts, shots, what is dropped, the scores of answers against the slow way, and calibration."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pretune.core.errors import DataError, UsageError
from pretune.evaluation import prompting
from pretune.evaluation.few_shot import FewShotConfig, evaluate_few_shot, read_questions
from pretune.evaluation.prompting import (
    CONTENT_FREE_INPUTS,
    ChoiceConfig,
    Prompter,
    average_content_free,
    make_content_free,
)
from pretune.evaluation.prompts import (
    PROMPTS,
    PromptTemplate,
    build_text_to_text_prompt,
    draw_shots,
    get_prompt,
    render_prompt,
)
from pretune.inference.scoring import ScoringConfig
from pretune.metrics.numeric import softmax
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.task import SplitFile
from pretune.tasks.user_table import build_user_task
from tests.inference.scorers import ids, log_softmax, scorer

SEA = PromptTemplate(text="{text} was {answer}", answers=("old", "quiet"), join=" ")
ASKED = [Example(text="The sea", label=1), Example(text="The house", label=0), Example(text="Nobody", label=1)]


@pytest.mark.parametrize(
    ("task", "example", "answer", "text", "judged"),
    [
        ("sst2", Example(text="a gorgeous film"), 1, "Review: a gorgeous film\nSentiment: positive", " positive"),
        (
            "boolq",
            Example(text="is it wet", pair="Water is wet."),
            1,
            "Water is wet.\nQuestion: is it wet?\nAnswer: yes",
            " yes",
        ),
        (
            "cb",
            Example(text="I think so.", pair="It is so."),
            2,
            "I think so.\nQuestion: It is so. True, False or Neither?\nAnswer: Neither",
            " Neither",
        ),
        (
            "rte",
            Example(text="He ran.", pair="He moved."),
            0,
            "He ran.\nQuestion: He moved. True or False?\nAnswer: True",
            " True",
        ),
        (
            "wic",
            Example(text="", pair="", facts={"word": "bank", "sentence1": "A bank.", "sentence2": "To bank."}),
            0,
            "A bank.\nTo bank.\nQuestion: Is the word 'bank' used in the same sense in the two sentences above?\n"
            "Answer: no",
            " no",
        ),
        (
            "copa",
            Example(text="It rained.", pair="What happened as a result?", choices=("We got wet.", "It was dry.")),
            0,
            "It rained.\nWhat happened as a result?\nWe got wet.",
            "We got wet.",
        ),
        (
            "winogrande",
            Example(text="The cup did not fit because _ was too big.", choices=("the cup", "the box")),
            1,
            "The cup did not fit because the box was too big.",
            " was too big.",
        ),
        (
            "arc",
            Example(text="What is hot?", choices=("ice", "fire")),
            1,
            "Question: What is hot?\nAnswer: fire",
            " fire",
        ),
    ],
)
def test_prompts_read_as_written_here(task: str, example: Example, answer: int, text: str, judged: str) -> None:
    prompt = PROMPTS[task]
    found = render_prompt(prompt, example, (prompt.answers or example.choices)[answer])
    assert found.text == text
    assert found.text[found.start : found.stop] == judged


@pytest.mark.parametrize(
    ("family", "task", "shots", "question", "text"),
    [
        (
            "gpt2",
            "boolq",
            [Example(text="is it dry", pair="It rained.", label=0), Example(text="is it wet", pair="A lake.", label=1)],
            Example(text="is it so", pair="So be it.", label=1),
            "It rained.\nQuestion: is it dry?\nAnswer: no\n\nA lake.\nQuestion: is it wet?\nAnswer: yes\n\n"
            "So be it.\nQuestion: is it so?\nAnswer: ____",
        ),
        (
            "bert",
            "sst2",
            [Example(text="dull and long", label=0)],
            Example(text="a gorgeous film", label=1),
            "Review: dull and long\nSentiment: negative.\n\nReview: a gorgeous film\nSentiment: ____.",
        ),
        (
            "t5",
            "winogrande",
            [Example(text="He is late because _ ran.", choices=("he", "she"), label=0)],
            Example(text="It broke since _ fell.", choices=("it", "he"), label=0),
            "He is late because he ran.\n\nIt broke since ____ fell.",
        ),
        (
            "gpt2",
            "cb",
            [],
            Example(text="I think so.", pair="It is so.", label=0),
            "I think so.\nQuestion: It is so. True, False or Neither?\nAnswer: ____",
        ),
    ],
)
def test_what_a_model_reads(
    monkeypatch: pytest.MonkeyPatch, family: str, task: str, shots: list[Example], question: Example, text: str
) -> None:
    monkeypatch.setattr(prompting, "get_max_length", lambda model: None)  # room for all of it
    assert Prompter(scorer(family), PROMPTS[task], shots).render(question) == text


def test_every_prompt_has_an_answer_for_every_label() -> None:
    for name in TASKS:
        task = TASKS.get(name)
        if task.kind in ("classification", "pair", "choice"):
            prompt = get_prompt(task)
            assert name in PROMPTS and len(prompt.answers) == len(task.labels), name
            assert len(set(prompt.answers)) == len(prompt.answers), name
        else:
            assert name not in PROMPTS
            with pytest.raises(UsageError, match=f"'{name}'.*{task.kind}"):
                get_prompt(task)


def test_a_full_stop_follows_where_a_model_reads_on() -> None:
    shots = [Example(text="The house", label=0)]
    assert Prompter(scorer("gpt2"), SEA, shots).render(ASKED[0]) == "The house was old The sea was ____"
    assert Prompter(scorer("bert"), SEA, shots).render(ASKED[0]) == "The house was old. The sea was ____."
    assert (
        Prompter(scorer("t5"), SEA, shots, ScoringConfig(conditional=True)).render(ASKED[0])
        == "The house was old The sea was ____"
    )
    assert render_prompt(PROMPTS["copa"], Example(text="a", pair="b"), "c.", ".").text == "a\nb\nc."


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
@pytest.mark.parametrize("shots", [0, 1])
def test_answers_are_as_likely_as_the_slow_way_says(family: str, shots: int) -> None:
    model = scorer(family)
    solved = [Example(text="Nobody", label=0)][:shots]
    found = Prompter(model, SEA, solved).score_choices(ASKED)
    special = model.tokenizer.special
    for example, scores in zip(ASKED, found.scores, strict=True):
        for answer, score in zip(SEA.answers, scores.tolist(), strict=True):
            stop = "" if family in ("gpt2", "llama") else "."
            before = (f"Nobody was old{stop} " if shots else "") + f"{example.text} was"
            tokens, context = ids(model, f"{before} {answer}"), len(ids(model, before))
            after = ids(model, f"{before} {answer}{stop}")[len(tokens) :]
            slow = 0.0
            for at in range(context, len(tokens)):
                if family in ("gpt2", "llama"):
                    row = log_softmax(model, [special["bos"], *tokens[:at]])[-1]
                elif family == "bert":
                    masks = [special["mask"]] * (len(tokens) - at)
                    row = log_softmax(model, [special["cls"], *tokens[:at], *masks, *after, special["sep"]])[1 + at]
                else:
                    sentinel = model.tokenizer.sentinels[0]
                    source = [*tokens[:context], sentinel, *after, special["eos"]]
                    row = log_softmax(model, [special["pad"], sentinel, *tokens[context:at]], source=[source])[-1]
                slow += float(row[tokens[at]])
            assert score == pytest.approx(slow, abs=1e-9)


def test_choices_may_be_compared_by_the_mean_of_tokens_or_bytes() -> None:
    model, prompt = scorer("gpt2"), PromptTemplate(text="{text} {answer}")
    example = Example(text="The sea", choices=("was quiet before", "old"), label=0)
    prompter = Prompter(model, prompt)
    sums = prompter.score_choices([example]).scores[0]
    tokens = [len(ids(model, f" {choice}")) for choice in example.choices]
    assert prompter.score_choices([example], ChoiceConfig(length="token")).scores[0] == pytest.approx(sums / tokens)
    assert prompter.score_choices([example], ChoiceConfig(length="byte")).scores[0] == pytest.approx(sums / [16, 3])


def test_bytes_are_those_of_the_scored_part() -> None:
    example = Example(text="It was _ before.", choices=("old", "quiet and old"), label=0)
    for part, sizes in (("answer", [3, 13]), ("after", [7, 7]), ("both", [11, 21])):
        prompt = PromptTemplate(text="{before}{answer}{after}", scored_part=part)  # type: ignore[arg-type]
        prompter = Prompter(scorer("gpt2"), prompt)
        sums = prompter.score_choices([example]).scores[0]
        assert prompter.score_choices([example], ChoiceConfig(length="byte")).scores[0] == pytest.approx(sums / sizes)


def test_calibration_divides_by_what_nothing_gives() -> None:
    model = scorer("gpt2")
    prompter = Prompter(model, SEA, [Example(text="Nobody", label=0)])
    plain = prompter.score_choices(ASKED).scores
    found = prompter.score_choices(ASKED, ChoiceConfig(calibrate=True)).scores
    empty = prompter.score_choices([make_content_free(ASKED[0], text) for text in CONTENT_FREE_INPUTS]).scores
    average = np.mean([np.exp(each) / np.exp(each).sum() for each in empty], axis=0)
    for before, after in zip(plain, found, strict=True):
        p = np.exp(before) / np.exp(before).sum()
        q = (p / average) / (p / average).sum()
        assert softmax(after) == pytest.approx(q)
    assert np.exp(average_content_free(empty)) == pytest.approx(average)
    with pytest.raises(UsageError):
        Prompter(model, PROMPTS["winogrande"]).score_choices(ASKED, ChoiceConfig(calibrate=True))


def test_shots_are_balanced_seeded_and_nested_in_nothing() -> None:
    pool = [Example(text=str(at), label=int(at % 5 == 0)) for at in range(50)]
    assert sum(int(shot.label or 0) for shot in draw_shots(pool, 8, seed=1)) == 4
    assert draw_shots(pool, 8, seed=1) == draw_shots(pool, 8, seed=1) != draw_shots(pool, 8, seed=2)
    assert len(draw_shots(pool, 99)) == 50
    assert len({shot.text for shot in draw_shots(pool, 30)}) == 30
    choices = [Example(text=str(at), choices=("a", "b"), label=at % 2) for at in range(9)]
    assert len(draw_shots(choices, 4)) == 4


def test_shots_that_do_not_fit_are_dropped_from_the_front() -> None:
    model = scorer("gpt2")  # 24 positions
    shots = [Example(text=text, label=0) for text in ("The old house before it", "The sea", "Nobody")]
    prompter = Prompter(model, SEA, shots)
    text = prompter.render(Example(text="The sea", label=1))
    assert text.startswith("The sea was old") and text.endswith("The sea was ____")
    found = prompter.score_choices(
        [Example(text="The sea", label=1), Example(text="The old sea and the quiet house", label=1)]
    )
    assert found.truncation.dropped_shots[0] == 1 and found.truncation.dropped_shots[1] >= 2
    assert found.truncation.truncated_texts == 0
    long = prompter.score_choices(
        [
            Example(
                text="The old and quiet house was the house before the sea was there and it was quiet and old", label=1
            )
        ]
    )
    assert long.truncation == ([3], 2)


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Path]:
    files = {}
    for split, rows in (("train", 12), ("test", 10)):
        files[split] = tmp_path / f"{split}.jsonl"
        lines = [
            {"text": ("The sea", "A house")[at % 2] + f" {at}", "label": ("wet", "dry")[at % 2]} for at in range(rows)
        ]
        files[split].write_text("\n".join(map(json.dumps, lines)))
    return files


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "bart", "xlnet"])
def test_a_table_of_ones_own_is_put_to_every_shape(family: str, table: dict[str, Path]) -> None:
    task = build_user_task(table)
    found = evaluate_few_shot(scorer(family), task, 2, FewShotConfig(show=True, seed=3))
    assert found.split == "test" and found.shots == 2 and found.counts["examples"] == 10
    assert found.scores["majority"] == 0.5 and 0 <= found.scores["accuracy"] <= 1
    assert found.prompt is not None and "dry | wet" in found.prompt
    assert any("2 classes" in note and "seed 3" in note for note in found.notes)
    assert evaluate_few_shot(scorer(family), task, 2, FewShotConfig(limit=4)).counts["examples"] == 4


def test_without_a_training_split_shots_are_taken_out(table: dict[str, Path]) -> None:
    task = build_user_task({"train": table["test"], "test": table["test"]})
    alone = build_user_task({"train": table["test"]})
    found = evaluate_few_shot(scorer("gpt2"), alone, 3, FewShotConfig(split="train"))
    assert found.counts["examples"] == 7
    assert sum("'train'" in note for note in found.notes) == 2
    many = evaluate_few_shot(scorer("gpt2"), task, 40)
    assert any("40 shots" in note and "10" in note for note in many.notes)
    assert many.counts["shots_dropped"] and many.counts["questions_with_fewer_shots"]


def test_shots_among_the_questions_are_told(table: dict[str, Path]) -> None:
    """The training file has the rows of the test file, too; then it has others."""
    for count in (1, 0):
        found = evaluate_few_shot(scorer("gpt2"), build_user_task(table), 2)
        assert sum("2 of 2 shots are among the evaluated examples" in note for note in found.notes) == count
        table["train"].write_text(table["train"].read_text().replace("The sea", "A lake").replace("A house", "A roof"))


def test_a_split_without_labels_is_passed_over(tmp_path: Path) -> None:
    for split, label in (("train", "\t1"), ("dev", "\t0")):
        (tmp_path / f"{split}.tsv").write_text(f"sentence\tlabel\nThe sea{label}\n")
    read = TASKS.get("sst2").splits["dev"][0].reader
    bare = lambda path: (replace(example, label=None) for example in read(path))  # noqa: E731
    splits = {
        "test": (SplitFile(str(tmp_path / "train.tsv"), bare),),
        "dev": (SplitFile(str(tmp_path / "dev.tsv"), read),),
    }
    task = replace(TASKS.get("sst2"), splits=splits)
    assert read_questions(task, FewShotConfig())[0] == "dev"
    with pytest.raises(DataError, match="'test'"):
        read_questions(task, FewShotConfig(split="test"))


def test_ties_are_wrong(table: dict[str, Path]) -> None:
    twins = PromptTemplate(text="{text} is {answer}", answers=("wet", "wet"))
    found = evaluate_few_shot(scorer("gpt2"), build_user_task(table), 0, FewShotConfig(prompt=twins))
    assert found.counts["ties"] == 10 and found.scores["accuracy"] == 0.0


def test_text_to_text_reads_the_template_and_writes_the_answer() -> None:
    prompt = build_text_to_text_prompt(TASKS.get("boolq"))
    found = render_prompt(prompt, Example(text="is it", pair="It is."), "True")
    assert found.text == "boolq question: is it passage: It is. True"
    assert found.text[found.start :] == " True"


def test_bad_input_is_one_line(table: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"\{answer\}.* 0 "):
        PromptTemplate(text="{text}")
    with pytest.raises(UsageError, match=r"\{answer\}.* 0 "):
        PromptTemplate(text="{text} {{answer}}")
    assert render_prompt(PromptTemplate(text="{{{answer}}}"), Example(text="a"), "b").text == "{b}"
    for text in ("{text {answer}", "}{answer}", "{{text}} {answer} {"):
        with pytest.raises(UsageError, match=re.escape(repr(text))):
            PromptTemplate(text=text)
    for text in ("{text.__class__} {answer}", "{0} {answer}", "{text!r} {answer}", "{text:>9} {answer}", "{} {answer}"):
        with pytest.raises(UsageError, match=r"\{text\}"):
            PromptTemplate(text=text)
    assert render_prompt(PromptTemplate(text="{{x}} {answer}"), Example(text="a"), "b").text == "{x} b"
    with pytest.raises(UsageError, match=r"\{word\}.*text, pair"):
        render_prompt(PromptTemplate(text="{word} {answer}"), Example(text="a"), "b")
    with pytest.raises(UsageError, match=r"shots .*-1"):
        evaluate_few_shot(scorer("gpt2"), build_user_task(table), -1)
    with pytest.raises(UsageError, match=r"'loud'.*sum, token, byte"):
        evaluate_few_shot(scorer("gpt2"), build_user_task(table), 0, FewShotConfig(length="loud"))
    with pytest.raises(DataError):
        Prompter(scorer("gpt2"), SEA).score_choices([])


@pytest.mark.slow
def test_real_tasks(shared_data: Path) -> None:
    for name, shots in (("boolq", 1), ("copa", 2), ("cb", 0)):
        task = TASKS.get(name)
        if not task.find_available(shared_data):
            pytest.skip(f"{name} is not there")
        found = evaluate_few_shot(scorer("t5"), task, shots, FewShotConfig(data=shared_data, limit=4, show=True))
        assert found.counts["examples"] == 4 and found.prompt is not None
