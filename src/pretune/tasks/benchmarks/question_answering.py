"""Questions: SQuAD with a passage; TriviaQA and Natural Questions without one, CoQA's dialogues, and ELI5.

SQuAD (Rajpurkar et al., 2016 and 2018) is published as JSON: articles of paragraphs of questions. `spans` are
characters of `pair`, the paragraph. The answers of the others are free text. Closed-book question answering (Roberts et
al., 2020) gives the model the question only; an answer counts if it equals one of the published aliases. A CoQA
question comes with its story and the turns before it, an ELI5 question with no text at all.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.io.files import parse_json
from pretune.tasks.benchmarks.readers import RowReader, build_task, list_files
from pretune.tasks.example import Example
from pretune.tasks.table import TableRow, data_error, read_text
from pretune.tasks.task import Task, Template


def read_squad(path: Path) -> Iterator[Example]:
    """Yield every question in order; raise DataError if an answer is not at its stated position."""
    name = os.fspath(path)
    data = parse_json("".join(read_text(path)), DataError, name)
    location = "data"
    try:
        for number, article in enumerate(data["data"]):
            for place, paragraph in enumerate(article["paragraphs"]):
                location = f"data[{number}].paragraphs[{place}]"
                for question in paragraph["qas"]:
                    yield _parse_question(
                        question, paragraph["context"], article.get("title", str(number)), f"{name}: {location}"
                    )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name}: {location} is not in SQuAD's format ({error!r})") from None


def _parse_question(question: dict[str, Any], context: str, title: str, location: str) -> Example:
    spans: list[tuple[int, int]] = []
    for answer in question["answers"]:
        start, text = answer["answer_start"], answer["text"]
        if context[start : start + len(text)] != text:
            raise DataError(f"{location}: answer {text[:40]!r} of question {question['id']!r} is not at {start}")
        spans.append((start, start + len(text)))
    return Example(
        text=question["question"],
        pair=context,
        spans=tuple(spans),
        answers=tuple(answer["text"] for answer in question["answers"]),
        id=str(question["id"]),
        group=title,
    )


_TEMPLATE = Template(source="question: {text} context: {pair}", target="{answer}")

SQUAD1 = Task(
    name="squad1",
    kind="span",
    metrics=("squad",),
    splits=list_files(
        read_squad, train="train-v1.1.json | train_subset.json 4000 part", dev="dev-v1.1.json | dev.json 10570"
    ),
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 1.1: the span of a paragraph that answers a question (Rajpurkar et al., 2016)"""

TRAIN_ARTICLES = 38
"""Articles of SQuAD's dev split, of 48, with which `squad1_articles` trains."""


@spec
class ArticleReader:
    """Reader of the articles for training or for the test: of a dev split, its first or its other ones."""

    is_test: bool = False

    def __call__(self, path: Path) -> Iterator[Example]:
        numbers: dict[str | None, int] = {}
        for example in read_squad(path):
            number = numbers.setdefault(example.group, len(numbers))
            if self.is_test == (path.name.startswith("dev") and number >= TRAIN_ARTICLES):
                yield example


SQUAD1_ARTICLES = Task(
    name="squad1_articles",
    kind="span",
    metrics=("squad",),
    splits={
        **list_files(ArticleReader(), train="*.json"),
        **list_files(ArticleReader(is_test=True), test="dev-v1.1.json | dev.json"),
    },
    folders=("squad1",),
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 1.1 in our split: 38 articles of the dev split train too, the other 10 are the test (Rajpurkar et al., 2016)"""

SQUAD2 = Task(
    name="squad2",
    kind="span",
    metrics=("squad2",),
    splits=list_files(read_squad, train="train-v2.0.json", dev="dev-v2.0.json | dev.json 11873"),
    template=_TEMPLATE,
    group_field="group",
)
"""SQuAD 2.0: SQuAD with questions that the paragraph does not answer (Rajpurkar et al., 2018)"""


_KIND_NAMES: dict[type[Any], str] = {str: "a text", list: "a list", dict: "an object"}


def read_triviaqa(path: Path) -> Iterator[Example]:
    """Yield the questions of TriviaQA's JSON: the value is the target, its aliases are accepted, too."""
    for location, row in _read_entries(path, "Data"):
        answer = _get(row, "Answer", location, dict)
        value = _get(answer, "Value", f"{location}.Answer", str)
        aliases = [*_get(answer, "Aliases", f"{location}.Answer", list), *answer.get("HumanAnswers", ())]
        yield Example(
            text=_get(row, "Question", location, str),
            target=value,
            answers=tuple(dict.fromkeys((value, *map(str, aliases)))),
            id=str(row.get("QuestionId", "")),
        )


TRIVIAQA = build_task(
    "triviaqa",
    "trivia question: {text}",
    list_files(
        read_triviaqa,
        train="unfiltered-web-train.json 87622 | qa/wikipedia-train.json",
        dev="unfiltered-web-dev.json 11313 | qa/wikipedia-dev.json",
    ),
    metrics=("triviaqa",),
    folders=("triviaqa", "triviaqa-unfiltered"),
)
"""TriviaQA without passages: trivia questions with aliases of their answers (Joshi et al., 2017)"""


def _make_nq_question(row: TableRow) -> Example:
    answers = row.get("answer")
    if isinstance(answers, str):
        answers = [answers]
    if not isinstance(answers, list) or not answers or not all(isinstance(text, str) for text in answers):
        raise data_error(f"{row.location}: 'answer' must be a list of at least one text, got {str(answers)[:40]!r}")
    return Example(text=row.get_text("question"), target=answers[0], answers=tuple(answers), id=row.number)


NQ_OPEN = build_task(
    "nq_open",
    "nq question: {text}",
    list_files(RowReader(make=_make_nq_question), train="NQ-open.train.jsonl 87925", dev="NQ-open.dev.jsonl 3610"),
    metrics=("exact_match",),
)
"""Natural Questions without passages: questions to a search engine (Kwiatkowski et al., 2019; Lee et al., 2019)"""


COQA_TURNS = 2
"""Earlier questions with their answers that come with a question of CoQA."""


def read_coqa(path: Path) -> Iterator[Example]:
    """Yield the questions of CoQA's JSON with the turns before them, as "Q: … A: … Q: …"."""
    for location, story in _read_entries(path, "data"):
        questions, answers = (_get(story, name, location, list) for name in ("questions", "answers"))
        if len(questions) != len(answers):
            raise DataError(f"{location}: {len(questions)} questions and {len(answers)} answers; one for each")
        extra_turns = story.get("additional_answers", {}).values()
        question_texts = [_get(turn, "input_text", f"{location}.questions", str) for turn in questions]
        answer_texts = [_get(turn, "input_text", f"{location}.answers", str) for turn in answers]
        references = [[_get(turn, "input_text", location, str) for turn in turns] for turns in extra_turns]
        if any(len(texts) != len(questions) for texts in references):
            raise DataError(f"{location}: additional_answers must have an answer to each of the questions")
        for number, (question, answer) in enumerate(zip(question_texts, answer_texts, strict=True)):
            first = max(number - COQA_TURNS, 0)
            history = zip(question_texts[first:number], answer_texts[first:number], strict=True)
            yield Example(
                text=" ".join([*(f"Q: {q} A: {a}" for q, a in history), f"Q: {question}"]),
                pair=_get(story, "story", location, str),
                target=answer,
                answers=(answer, *(texts[number] for texts in references)),
                id=f"{story.get('id', location)}-{number + 1}",
                group=str(story.get("id", location)),
            )


COQA = build_task(
    "coqa",
    "coqa question: {text} context: {pair}",
    list_files(read_coqa, train="coqa-train-v1.0.json 108647", dev="coqa-dev-v1.0.json 7983"),
    metrics=("coqa",),
    group_field="group",
)
"""CoQA: questions about a story, asked in a dialogue (Reddy et al., 2019)"""


def _make_eli5_question(row: TableRow) -> Example | None:
    """Return a question in KILT's format (`input`, `output`) or Reddit's (`title`, `answers` with scores).

    The target is the first answer, or that with the highest score; questions without one are skipped.
    """
    try:
        if "input" in row.values:
            question = row.get_text("input")
            texts = [output.get("answer") for output in row.get("output")]
        else:
            question = f"{row.get_text('title')} {row.values.get('selftext') or ''}".strip()
            answers = row.get("answers")
            order = sorted(zip(answers["score"], answers["text"], strict=True), key=lambda pair: -pair[0])
            texts = [text for _, text in order]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise data_error(
            f"{row.location}: expected 'output' with a list of objects, or 'answers' with lists 'text' and 'score'"
        ) from None
    texts = [text for text in texts if isinstance(text, str) and text.strip()]
    if not texts:
        return None
    name = str(row.values.get("id", row.values.get("q_id", "")))
    return Example(text=question, target=texts[0], answers=tuple(texts), id=name)


ELI5 = build_task(
    "eli5",
    "explain: {text}",
    list_files(
        RowReader(make=_make_eli5_question),
        train="eli5-train-kilt.jsonl | train.jsonl",
        dev="eli5-dev-kilt.jsonl 1507 | validation.jsonl",
        test="test.jsonl",
    ),
    metrics=("rouge",),
)
"""ELI5: long answers to questions, "explain like I'm five" (Fan et al., 2019)"""


def _read_entries(path: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a list in a JSON file, each with its location."""
    name = os.fspath(path)
    data = parse_json("".join(read_text(path)), DataError, name)
    entries = data.get(key) if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise DataError(f"{name}: expected an object with the list '{key}'")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise DataError(f"{name}: {key}[{number}] must be an object, got {type(entry).__name__}")
        yield f"{name}: {key}[{number}]", entry


def _get(entry: Any, key: str, location: str, kind: type[Any]) -> Any:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind):
        raise DataError(f"{location}: '{key}' must be {_KIND_NAMES[kind]}, got {str(value)[:40]!r}")
    return value
