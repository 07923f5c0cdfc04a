"""Question answering, dialogue and translation: small files in the published formats, and their faults."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError
from pretune.evaluation.generative import PROMPTS
from pretune.evaluation.prompts import render_prompt
from pretune.metrics.question_answering import answer_f1, coqa, triviaqa
from pretune.tasks import TASKS
from pretune.tasks.example import Prediction
from pretune.tasks.types import get_type, score

TRIVIA = {
    "Data": [
        {
            "Answer": {"Aliases": ["Sunset Bld", "West Sunset Boulevard"], "Value": "Sunset Boulevard"},
            "Question": "Which musical premiered in the US on December 10th 1993?",
            "QuestionId": "tc_33",
            "SearchResults": [],
        }
    ],
    "Domain": "unfiltered",
    "Version": 1.0,
}  # fmt: skip
COQA: dict[str, Any] = {
    "version": "1.0",
    "data": [
        {
            "source": "mctest",
            "id": "3dr2",
            "story": "Once upon a time there lived a little white kitten named Cotton.",
            "questions": [
                {"input_text": "What color was Cotton?", "turn_id": 1},
                {"input_text": "Where did she live?", "turn_id": 2},
                {"input_text": "Did she live alone?", "turn_id": 3},
                {"input_text": "With whom?", "turn_id": 4},
            ],
            "answers": [
                {"span_start": 31, "span_end": 52, "span_text": "a little white kitten", "input_text": text}
                for text in ("white", "in a barn", "no", "unknown")
            ],
            "additional_answers": {
                "0": [{"input_text": text} for text in ("white", "barn", "No", "her mother")],
                "1": [{"input_text": text} for text in ("it was white", "inside", "no", "unknown")],
            },
        }
    ],
}  # fmt: skip
CHAT = """\
1 your persona: i like to remodel homes .
2 your persona: my favorite holiday is halloween .
3 hi , how are you doing ?\ti am remodeling a house .\t\tmy mom was single .|i am remodeling a house .|tea
4 which color ?\torange .\t\torange .|blue|i do not know
1 your persona: i am short .
2 hello\thi there\t\thi there|bye
"""
SOURCE = """\
<srcset setid="newstest2013" srclang="any">
<doc sysid="ref" docid="cnn/1" genre="news" origlang="en">
<p>
<seg id="1">A Republican strategy &amp; a plan</seg>
<seg id="2"> Two  lines
here </seg>
</p>
</doc>
<DOC docid="bbc/2">
<hl><seg id="1">Title</seg></hl>
</DOC>
</srcset>
"""
REFERENCE = SOURCE.replace("srcset", "refset").replace("Republican", "republikanische").replace("Title", "Titel")


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_triviaqa(tmp_path: Path) -> None:
    put(tmp_path, "triviaqa-unfiltered/unfiltered-web-dev.json", TRIVIA)
    task = TASKS.get("triviaqa")
    (example,) = task.read("dev", tmp_path)
    assert (example.target, example.id) == ("Sunset Boulevard", "tc_33")
    assert example.answers == ("Sunset Boulevard", "Sunset Bld", "West Sunset Boulevard")
    assert task.template is not None and task.template.fill(example)[0].startswith("trivia question: Which musical")
    assert score(task, [example], [Prediction(text="west sunset-boulevard!")]) == {"exact_match": 1.0, "f1": 1.0}
    assert score(task, [example], [Prediction(text="the Sunset")])["f1"] == pytest.approx(2 / 3)


def test_trivia_normalization_is_its_own() -> None:
    """Punctuation is a space there, so that two words stay two."""
    assert triviaqa([["Jay-Z"]], ["jay z"])["exact_match"] == 1 and triviaqa([["Jay-Z"]], ["jayz"])["exact_match"] == 0
    assert triviaqa([["an_apple`s"]], ["apple s"])["exact_match"] == 1


def test_natural_questions(tmp_path: Path) -> None:
    rows = [{"question": "where is the eiffel tower", "answer": ["Paris", "Paris , France"]}]
    put(tmp_path, "nq_open/NQ-open.dev.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    task = TASKS.get("nq_open")
    (example,) = task.read("dev", tmp_path)
    assert (example.target, example.answers) == ("Paris", ("Paris", "Paris , France"))
    assert score(task, [example], [Prediction(text="the paris france")]) == {"exact_match": 1.0}


def test_coqa(tmp_path: Path) -> None:
    put(tmp_path, "coqa/coqa-dev-v1.0.json", COQA)
    task = TASKS.get("coqa")
    examples = [*task.read("dev", tmp_path)]
    assert [example.id for example in examples] == ["3dr2-1", "3dr2-2", "3dr2-3", "3dr2-4"]
    assert examples[0].text == "Q: What color was Cotton?" and examples[0].answers == ("white", "white", "it was white")
    assert examples[3].text == (
        "Q: Where did she live? A: in a barn Q: Did she live alone? A: no Q: With whom?"
    )  # two turns before
    assert {example.group for example in examples} == {"3dr2"} and "white kitten" in (examples[0].pair or "")
    prompt = render_prompt(
        PROMPTS[task.name], examples[1], "in a barn"
    ).text  # without fine-tuning it has the story, too
    assert prompt.startswith("Once upon a time") and prompt.endswith("Q: Where did she live?\nA: in a barn")
    gold = [Prediction(text=example.target) for example in examples]
    # an answer is scored against all references but one, in turn; only one of the second question's is "in a barn"
    assert score(task, examples, gold)["exact_match"] == pytest.approx((1 + 2 / 3 + 1 + 1) / 4)


def test_coqa_scores() -> None:
    """By hand, as in CoQA's script: the best of the other references, averaged over the one left out."""
    assert coqa([["white"]], ["White."]) == {"f1": 1.0, "exact_match": 1.0}
    scores = coqa([["white", "white", "it was white"]], ["was white"])
    assert scores == pytest.approx({"f1": (0.8 + 0.8 + 2 / 3) / 3, "exact_match": 0.0})
    assert coqa([["a", ""]], [""]) == {"f1": 1.0, "exact_match": 1.0}  # nothing is left of "a" either


def test_eli5(tmp_path: Path) -> None:
    answers = {"a_id": ["x", "y"], "text": ["short", "Light scatters."], "score": [2, 9]}
    reddit = {"q_id": "5l", "title": "Why is the sky blue?", "selftext": "", "answers": answers}
    kilt = {"id": "1k", "input": "Why do cats purr?", "output": [{"answer": "They are content."}, {"provenance": []}]}
    empty = {"id": "2k", "input": "Why?", "output": [{"provenance": []}]}
    put(tmp_path, "eli5/validation.jsonl", json.dumps(reddit) + "\n")
    put(tmp_path, "eli5/eli5-train-kilt.jsonl", json.dumps(kilt) + "\n" + json.dumps(empty) + "\n")
    task = TASKS.get("eli5")
    (example,) = task.read("dev", tmp_path)
    assert (example.text, example.target, example.id) == ("Why is the sky blue?", "Light scatters.", "5l")
    assert example.answers == ("Light scatters.", "short")
    assert score(task, [example], [Prediction(text="short")])["rouge1"] == 1  # the best of the answers counts
    assert [found.target for found in task.read("train", tmp_path)] == ["They are content."]


def test_convai2(tmp_path: Path) -> None:
    put(tmp_path, "convai2/valid_self_original.txt", CHAT)
    task = TASKS.get("convai2")
    first, second, third = task.read("dev", tmp_path)
    persona = "i like to remodel homes .\nmy favorite holiday is halloween ."
    assert first.text == f"{persona}\nhi , how are you doing ?" and first.target == "i am remodeling a house ."
    assert second.text == f"{first.text}\ni am remodeling a house .\nwhich color ?"
    assert (third.text, third.target, third.group) == ("i am short .\nhello", "hi there", "2")
    assert get_type(task).scoring.gold == "text"  # whose perplexity is reported
    assert score(task, [second], [Prediction(text="orange and blue")]) == pytest.approx({"answer_f1": 0.5})
    assert answer_f1([["a b"]], [""]) == 0
    choices = [*TASKS.get("convai2_choice").read("dev", tmp_path)]
    assert [(len(example.choices), example.label) for example in choices] == [(3, 1), (3, 0), (2, 0)]


def test_wmt(tmp_path: Path) -> None:
    put(tmp_path, "wmt14_en_de/dev/newstest2013-src.en.sgm", SOURCE)
    put(tmp_path, "wmt14_en_de/dev/newstest2013-ref.de.sgm", REFERENCE)
    put(tmp_path, "wmt14_en_de/training/europarl-v7.de-en.en", "One\n\nThree\n")
    put(tmp_path, "wmt14_en_de/training/europarl-v7.de-en.de", "Eins\nZwei\nDrei\n")
    put(tmp_path, "wmt14_en_de/newstest2014.en", "Yes\n")
    put(tmp_path, "wmt14_en_de/newstest2014.de", "Ja\n")
    task = TASKS.get("wmt14_en_de")
    dev = [*task.read("dev", tmp_path)]
    assert [(example.text, example.id) for example in dev] == [
        ("A Republican strategy & a plan", "cnn/1-1"), ("Two lines here", "cnn/1-2"), ("Title", "bbc/2-1"),
    ]  # fmt: skip
    assert [example.target for example in dev] == ["A republikanische strategy & a plan", "Two lines here", "Titel"]
    assert [(found.text, found.target) for found in task.read("train", tmp_path)] == [
        ("One", "Eins"),
        ("Three", "Drei"),
    ]
    assert [found.target for found in task.read("test", tmp_path)] == ["Ja"]
    assert task.metrics == ("bleu", "chrf")


@pytest.mark.parametrize(
    ("task", "split", "name", "content"),
    [
        ("triviaqa", "dev", "unfiltered-web-dev.json", {"Data": [{"Question": "?"}]}),
        ("triviaqa", "dev", "unfiltered-web-dev.json", [1]),
        ("nq_open", "dev", "NQ-open.dev.jsonl", {"question": "?", "answer": []}),
        ("coqa", "dev", "coqa-dev-v1.0.json", {"data": [{**COQA["data"][0], "answers": []}]}),
        ("coqa", "dev", "coqa-dev-v1.0.json", {"data": [{**COQA["data"][0], "story": 3}]}),
        ("eli5", "dev", "validation.jsonl", {"title": "?", "answers": ["a"]}),
        ("eli5", "dev", "eli5-dev-kilt.jsonl", {"input": "?", "output": None}),
        ("convai2", "dev", "valid_self_original.txt", "hello\tworld\n"),
        ("convai2", "dev", "valid_self_original.txt", "1 hello\n"),
        ("convai2_choice", "dev", "valid_self_original.txt", "1 hello\tworld\t\ta|b\n"),
        ("wmt14_en_de", "dev", "newstest2013-src.en.sgm", SOURCE),  # its translation is missing
        ("wmt16_en_ro", "test", "newstest2016.en", "One\n"),
    ],
)
def test_a_fault_is_one_line(tmp_path: Path, task: str, split: str, name: str, content: Any) -> None:
    put(tmp_path, f"{task}/{name}" if task != "convai2_choice" else f"convai2/{name}", content)
    with pytest.raises(DataError, match=name.replace(".", r"\.")) as fault:
        [*TASKS.get(task).read(split, tmp_path)]
    assert "\n" not in str(fault.value)


def test_segments_must_agree(tmp_path: Path) -> None:
    put(tmp_path, "wmt14_en_de/newstest2013-src.en.sgm", SOURCE)
    for broken in (
        REFERENCE.replace('<seg id="2">', '<seg id="3">'),
        REFERENCE.replace('<seg id="2">', '<seg id="1">'),
        "x",
    ):
        put(tmp_path, "wmt14_en_de/newstest2013-ref.de.sgm", broken)
        with pytest.raises(DataError, match="newstest2013"):
            [*TASKS.get("wmt14_en_de").read("dev", tmp_path)]
