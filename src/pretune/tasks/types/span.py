"""Extractive question answering: the span of a passage that answers a question, or no answer.

    [CLS] who sang ? [SEP] it was Nina Simone . [SEP]
    START + END at [CLS] if the window has no answer; else START at "Nina", END at "Simone"

The question is encoded with each window of the passage (Devlin et al., 2019, section 4.2). Windows overlap by `stride`
tokens, as in `transformers`, so that an answer at the edge of one is inside the next. The question is not truncated
unless it would take more than half of the room. Answers are decoded from the logits of all windows (SQuAD 2.0's
evaluation script). Users' files have a question, a context and the answer, which is part of it, or are SQuAD's JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.token import END, START, Span
from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Bools, Ints, spread
from pretune.metrics import NO_ANSWER_METRICS
from pretune.metrics.question_answering import squad2
from pretune.tasks.benchmarks.question_answering import read_squad
from pretune.tasks.encoding import (
    EncodingRules,
    Floats,
    Items,
    PooledSequences,
    PredictedLogits,
    TokenPool,
    build_items,
    compute_room,
    count_truncated,
    deduplicate,
)
from pretune.tasks.example import AnswerCandidate, Example, Examples, Prediction, Predictions, format_example
from pretune.tasks.table import BlankRows, TableFile, TableRow, data_error, open_table
from pretune.tasks.table_reader import TableReader, UserTables
from pretune.tasks.task import Task, Template
from pretune.tasks.types.base import AnswerPrompt, Inputs, Outputs, Scoring, SecondText, TaskType

NUM_STARTS = 20
"""Number of best starts and ends of a window that are combined."""
MAX_ANSWER_TOKENS = 30
"""Maximum tokens of an answer."""
MAX_CANDIDATES = 5
"""Candidate answers kept per example."""
NO_ANSWER = "unanswerable"
"""Answer in words to a question without an answer."""
NUM_SPLITS = 3
"""Parts of a single file (train, dev and test): with fewer groups than these, groups are not kept together."""


def allows_no_answer(task: Task) -> bool:
    """Return True if questions may have no answer, which the task's metric scores."""
    return not NO_ANSWER_METRICS.isdisjoint(task.metrics)


@dataclass(frozen=True, kw_only=True)
class SpanInputs(Inputs):
    """A question and a passage, with the spans of its answers."""

    second_text: SecondText = "required"

    default_length = 384
    pair_field = "context"

    def build_head(self, task: Task) -> TaskHead:
        return Span()

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode the windows of each passage; `alignment` is the index of each token in its passage."""
        count = len(examples)
        passages, passage_ids = deduplicate([*map(get_passage, examples)])
        pool, passage_ids = rules.tokenize([*map(get_question, examples), *passages]), count + passage_ids
        question_lengths, passage_lengths = pool.lengths[:count], pool.lengths[passage_ids]
        room = compute_room(rules.sequence_template, rules.max_length, pair=True)
        max_question = np.where(question_lengths + passage_lengths <= room, room, room // 2)
        question_kept = np.minimum(question_lengths, max_question)
        width = room - question_kept  # [E] tokens of a window
        step = width - np.minimum(rules.stride, width // 2)
        windows = 1 + np.maximum(-(-(passage_lengths - width) // step), 0)
        owner = np.repeat(np.arange(count), windows)
        begin = spread(np.zeros_like(windows), windows) * step[owner]
        length = np.minimum(width[owner], passage_lengths[owner] - begin)
        start = pool.offsets[:-1]
        layout = pool.lay_out(
            rules.sequence_template, start[owner], question_kept[owner], start[passage_ids[owner]] + begin, length
        )
        owners = layout.sequences.find_owners()
        inside = layout.pool_index >= start[count]  # tokens of a passage, not of a question
        alignment = np.where(inside, layout.pool_index - start[passage_ids[owner[owners]]], -1)
        sequences = rules.set_segments(layout.sequences)
        lost = 0
        if training:
            targets, hit = _build_targets(rules.task, examples, pool, layout, alignment, passage_ids, owner)
            has_answer = np.array([bool(example.spans) for example in examples])
            lost = int((has_answer & (np.bincount(owner[hit], minlength=count) == 0)).sum())
            sequences = replace(sequences, targets=targets)
        counts = count_truncated(question_lengths - question_kept, question_lengths + passage_lengths)
        return build_items(sequences, replace(counts, answers_lost=lost), examples=owner, alignment=alignment)

    def open_file(self, path: Path, column_names: Sequence[str]) -> TableFile:
        return TableFile(path=path, form="squad") if is_squad(path) else open_table(path, column_names)

    def build_user_task(self, tables: UserTables) -> Task:
        train = tables.train
        reader: SpanReader | SquadReader = SquadReader()
        if train.form != "squad":
            reader = SpanReader(**tables.pick_columns({"text": "question", "pair": "passage", "label": "answer"}))
        elif tables.text or tables.label or tables.pair:
            raise UsageError(f"{train.path}: SQuAD's JSON has no columns to name; remove --text, --pair and --label")
        has_unanswerable, groups = False, set[str | None]()
        for example in tables.read(reader):
            has_unanswerable = has_unanswerable or not example.answers
            groups.add(example.group)
        return replace(
            tables.build_task("span", reader, ("squad2",) if has_unanswerable else ("squad",)),
            template=Template(source="question: {text} context: {pair}", target="{answer}"),
            group_field="group" if len(groups) >= NUM_SPLITS else None,  # SQuAD's articles
        )


@dataclass(frozen=True, kw_only=True)
class SpanOutputs(Outputs):
    """A logit of the start and one of the end per token, in several windows of a passage."""

    is_explainable = True

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the best answers over all windows; no answer if that scores higher and the task allows it."""
        assert items.alignment is not None
        passages, passage_ids = deduplicate([*map(get_passage, examples)])
        pool = rules.tokenize(passages)
        offsets = items.sequences.offsets
        null_index = 0 if items.sequences.source is not None else rules.slots  # token of the no-answer score
        nulls = np.full(len(examples), np.inf)
        spans_by_example: list[list[tuple[float, int, int]]] = [[] for _ in examples]
        for window, example in enumerate(items.examples):
            low, high = offsets[window], offsets[window + 1]
            nulls[example] = min(nulls[example], float(logits[low + null_index].sum()))
            spans_by_example[example] += _score_spans(logits[low:high], items.alignment[low:high])
        predictions: list[Prediction] = []
        for number, spans in enumerate(spans_by_example):
            starts = pool.starts[pool.offsets[passage_ids[number]] : pool.offsets[passage_ids[number] + 1]]
            best = _select_candidates(passages[passage_ids[number]], starts, spans)
            difference = float(nulls[number]) - best[0].score if best else np.finfo(np.float32).max.item()
            predictions.append(Prediction(candidates=best, null_score_diff=difference))
        return self.apply_threshold(rules.task, predictions, 0.0 if allows_no_answer(rules.task) else np.inf)

    def select_logits(
        self, rules: EncodingRules, example: Example, items: Items, logits: Floats, label: str | None = None
    ) -> PredictedLogits:
        """Return the start and the end of the best span of all windows."""
        assert items.alignment is not None
        offsets, alignment = items.sequences.offsets, items.alignment
        spans = [
            (score, window, first, last)
            for window in range(len(items.examples))
            for score, first, last in _score_spans(
                logits[slice(*offsets[window : window + 2])], alignment[slice(*offsets[window : window + 2])]
            )[:1]
        ]
        if not spans:
            raise UsageError("the passage has no tokens, so there is no answer to explain")
        _, window, first, last = max(spans)
        places = alignment[slice(*offsets[window : window + 2])]
        rows = (int(np.flatnonzero(places == first)[0]), int(np.flatnonzero(places == last)[0]))
        return PredictedLogits(sequence=window, rows=rows, columns=(0, 1), name="answer")

    def apply_threshold(self, task: Task, predictions: Predictions, threshold: float) -> list[Prediction]:
        """Return the predictions with no answer where `null_score_diff` is above the threshold."""
        results: list[Prediction] = []
        for prediction in predictions:
            difference = prediction.null_score_diff
            has_answer = bool(prediction.candidates) and (difference is None or difference <= threshold)
            best = prediction.candidates[0] if has_answer else None
            results.append(replace(prediction, text=best.text if best else "", span=best.span if best else None))
        return results

    def find_threshold(self, task: Task, examples: Examples, predictions: Predictions) -> float | None:
        """Return the threshold of no answer with the best F1, if the task has questions without an answer."""
        if not NO_ANSWER_METRICS.intersection(task.metrics[:1]):
            return None
        scores = _score_no_answer(examples, predictions)
        if not scores:
            raise UsageError("predictions have no null_score_diff; only a span head computes it")
        return scores["best_f1_threshold"]


@dataclass(frozen=True, kw_only=True)
class SpanScoring(Scoring):
    """An answer is compared with several references; a question without any has no answer."""

    def score(self, task: Task, examples: Examples, predictions: Predictions) -> dict[str, float]:
        """Return the official scores, and for questions without an answer those with the best threshold."""
        scores = super().score(task, examples, predictions)
        best = _score_no_answer(examples, predictions) if allows_no_answer(task) else {}
        return scores | {name: value for name, value in best.items() if name.startswith("best_")}

    def count_labels(self, task: Task, examples: Examples) -> Mapping[str, float]:
        unanswerable = sum(not example.answers for example in examples)
        return {"with an answer": len(examples) - unanswerable, "without": unanswerable}

    def format_gold(self, task: Task, example: Example) -> Any:
        return list(example.answers)


SPAN = TaskType(
    name="span",
    inputs=SpanInputs(),
    outputs=SpanOutputs(),
    scoring=SpanScoring(
        gold="span",
        evaluator=AnswerPrompt(
            text="{pair}\nQuestion: {text}\nAnswer: {answer}", max_answer_tokens=32, no_answer=NO_ANSWER
        ),
        baselines={"majority": "first_words", "svm": "near_words"},
    ),
)
"""The span of a passage that answers a question, or no answer."""


def get_question(example: Example) -> str:
    """Return the question; empty if the text is the passage."""
    return "" if example.pair is None else example.text


def get_passage(example: Example) -> str:
    """Return the passage."""
    return example.text if example.pair is None else example.pair


def find_tokens(starts: Ints, span: tuple[int, int]) -> tuple[int, int]:
    """Return the first and last token of a span of characters, from the start of each token.

    A token that begins before the span is included if the span begins inside it.

    >>> find_tokens(np.array([0, 3, 7, 12]), (3, 11))
    (1, 2)
    """
    token = int(np.searchsorted(starts, span[0], side="right")) - 1
    first = int(np.searchsorted(starts, starts[max(token, 0)], side="left"))
    return first, max(int(np.searchsorted(starts, span[1], side="left")) - 1, first)


def find_characters(text: str, starts: Ints, first: int, last: int) -> tuple[int, int]:
    """Return the span of characters from one token to another, up to the next token, without trailing white space.

    >>> find_characters("it was Nina.", np.array([0, 3, 7, 11]), 1, 2)
    (3, 11)
    """
    begin = int(starts[first])
    next_token = int(np.searchsorted(starts, starts[last], side="right"))
    end = int(starts[next_token]) if next_token < len(starts) else len(text)
    return begin, begin + len(text[begin:end].rstrip())


def _build_targets(
    task: Task,
    examples: Examples,
    pool: TokenPool,
    layout: PooledSequences,
    alignment: Ints,
    passage_ids: Ints,
    owner: Ints,
) -> tuple[Ints, Bools]:
    """Return the start and end targets of each window, and a mask of the windows that have an answer."""
    answer_tokens = np.full((len(examples), 2), -2)  # -2 is at no token
    for number, example in enumerate(examples):
        starts = pool.starts[pool.offsets[passage_ids[number]] : pool.offsets[passage_ids[number] + 1]]
        if not example.spans or not len(starts):
            continue
        span = example.spans[0]
        if not 0 <= span[0] < span[1] <= len(get_passage(example)):
            raise DataError(
                f"task '{task.name}': answer of example {number} ({format_example(example)}) must be inside its "
                f"{len(get_passage(example))} characters, got {span}"
            )
        answer_tokens[number] = find_tokens(starts, span)
    window = layout.sequences.find_owners()
    is_first, is_last = (alignment == answer_tokens[owner[window], side] for side in (0, 1))
    has_first, has_last = (np.bincount(window[is_edge], minlength=len(owner)) > 0 for is_edge in (is_first, is_last))
    hit: Bools = has_first & has_last
    targets = START * (is_first & hit[window]) + END * (is_last & hit[window])
    targets[layout.sequences.offsets[:-1][~hit]] = START + END
    return np.where(targets == 0, IGNORE_INDEX, targets), hit


def _score_spans(logits: Floats, alignment: Ints) -> list[tuple[float, int, int]]:
    """Return the best spans of a window: score, first and last token in the passage."""
    places = np.flatnonzero(alignment >= 0)
    if not len(places):
        return []
    start, end = logits[places, 0], logits[places, 1]
    first, last = (np.argsort(-side, kind="stable")[:NUM_STARTS] for side in (start, end))
    sums = start[first][:, None] + end[last][None]
    length = last[None] - first[:, None]
    sums = np.where((length >= 0) & (length < MAX_ANSWER_TOKENS), sums, -np.inf)
    if not np.isfinite(sums).any():  # no valid combination
        first = last = np.array([int((start + end).argmax())])
        sums = (start + end)[first][:, None]
    order = np.argsort(-sums, axis=None, kind="stable")[: 2 * MAX_CANDIDATES]
    rows, columns = np.unravel_index(order, sums.shape)
    return [
        (float(sums[row, column]), int(alignment[places[first[row]]]), int(alignment[places[last[column]]]))
        for row, column in zip(rows, columns, strict=True)
        if np.isfinite(sums[row, column])
    ]


def _select_candidates(
    text: str, starts: Ints, scored_spans: list[tuple[float, int, int]]
) -> tuple[AnswerCandidate, ...]:
    """Return the best answers as text, without duplicates."""
    candidates: dict[str, AnswerCandidate] = {}
    for score, first, last in sorted(scored_spans, key=lambda item: -item[0]):
        begin, end = find_characters(text, starts, first, last)
        if text[begin:end] and text[begin:end] not in candidates:
            candidates[text[begin:end]] = AnswerCandidate(text[begin:end], score, (begin, end))
        if len(candidates) == MAX_CANDIDATES:
            break
    return tuple(candidates.values())


def _score_no_answer(examples: Examples, predictions: Predictions) -> dict[str, float]:
    """Return SQuAD 2.0's scores over all thresholds of no answer; empty if a prediction has no `null_score_diff`."""
    differences = [p.null_score_diff for p in predictions if p.null_score_diff is not None]
    if len(differences) != len(predictions):
        return {}
    texts = [prediction.candidates[0].text if prediction.candidates else "" for prediction in predictions]
    return squad2([example.answers for example in examples], texts, no_answer=differences)


@spec
class SpanReader(TableReader):
    """Reader of questions whose answers are part of a context; an empty answer means no answer."""

    pair: str

    def parse_row(self, row: TableRow) -> Example:
        context = row.get_text(self.pair)
        answers, starts = _read_answers(row, self.label)
        spans = tuple(_find_answer(row, context, answer, start) for answer, start in zip(answers, starts, strict=True))
        return Example(text=row.get_text(self.text), pair=context, answers=answers, spans=spans, id=row.number)


@spec
class SquadReader(TableReader):
    """Reader of SQuAD's published JSON."""

    text: str = "question"
    pair: str = "context"
    label: str = "answers"

    def read(self, path: Path, blanks: BlankRows) -> Iterator[Example]:
        yield from read_squad(path)


def is_squad(path: Path) -> bool:
    """Return True for a SQuAD file, a single JSON document."""
    return ".json" in {suffix.lower() for suffix in path.suffixes[-2:]}


def _read_answers(row: TableRow, column: str) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Return answers and their starts, if known: text, a list of texts, or SQuAD's {"text", "answer_start"}."""
    value: Any = row.get(column)
    starts: Any = row.values.get("answer_start")
    if isinstance(value, dict):
        value, starts = value.get("text"), value.get("answer_start")
    texts = [value] if isinstance(value, str | None) else value
    if not isinstance(texts, list) or not all(isinstance(text, str | None) for text in texts):
        raise data_error(
            f"{row.location}: '{column}' must be text that is part of the context, got {str(value)[:40]!r}"
        )
    places: list[Any] = starts if isinstance(starts, list) else [starts] * len(texts)
    if len(places) != len(texts):
        raise data_error(f"{row.location}: {len(texts)} answers and {len(places)} starts; every answer needs one start")
    pairs = [
        (text, _parse_start(row, start)) for text, start in zip(texts, places, strict=True) if text and text.strip()
    ]
    return tuple(text for text, _ in pairs), tuple(start for _, start in pairs)


def _parse_start(row: TableRow, value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not str(value).isdecimal():
        raise data_error(f"{row.location}: 'answer_start' must be a character index, got {str(value)[:40]!r}")
    return int(value)


def _find_answer(row: TableRow, context: str, answer: str, start: int | None) -> tuple[int, int]:
    position = context.find(answer) if start is None else start
    if position < 0 or context[position : position + len(answer)] != answer:
        place = "" if start is None else f" at character {start}"
        raise data_error(f"{row.location}: answer {answer[:40]!r} is not in the context{place}; fix the row")
    return position, position + len(answer)
