"""Problems whose answers can be verified: a decoder samples answers to chats, and learns from their rewards.

    {"question": "What is 12 + 30?", "answer": "42"}
    {"prompt": "Spell 'cat' backwards.", "completion": "tac"}
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

A reward is a metric of one answer against its reference: `number`, `exact`, `regex`, another metric of texts, or a
function of the user's. The reference is never a target.
"""

import json
import math
from dataclasses import dataclass, replace

from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError, suggest
from pretune.metrics import METRICS, get_headline
from pretune.metrics.rewards import describe_fault
from pretune.tasks.encoding import EncodingRules, Items
from pretune.tasks.example import Example, Examples, Prediction, Predictions
from pretune.tasks.table import TableRow, data_error, pick_column
from pretune.tasks.table_reader import UserTables, find_chat_form
from pretune.tasks.task import Task
from pretune.tasks.types.base import AnswerPrompt, Outputs, TaskType
from pretune.tasks.types.instruction import ChatInputs, InstructionReader
from pretune.tasks.types.text_to_text import TextScoring

REWARDS = ("exact", "number", "regex")


@spec
class RewardReader(InstructionReader):
    """Reader of problems and their references, which may be numbers or, as JSON, lists and objects."""

    def parse_row(self, row: TableRow) -> Example:
        if self.text != self.label:
            reference = row.require(self.label)
            try:
                as_json = json.dumps(reference, ensure_ascii=False, allow_nan=False)
            except ValueError:
                raise data_error(
                    f"{row.location}: '{self.label}' has a number that is not finite; fix the row"
                ) from None
            text = reference if isinstance(reference, str) else as_json
            row = row._replace(values={**row.values, self.label: text})
        return InstructionReader.parse_row(self, row)


@dataclass(frozen=True, kw_only=True)
class RewardInputs(ChatInputs):
    """A chat that asks for an answer."""

    def build_user_task(self, tables: UserTables) -> Task:
        name = tables.reward
        if name is None or name not in METRICS:
            problem = "no reward" if name is None else f"unknown reward '{name[-60:]}'{suggest(name, [*METRICS])}"
            raise UsageError(
                f"{problem}: choose --reward {', '.join(REWARDS)}, or a function of yours, --reward FILE.py:function "
                "(also where a run resumes: settings cannot name code)"
            )
        form = (find_chat_form(tables.train.columns) if tables.text is None and tables.label is None else None) or {
            "text": pick_column(tables.train, tables.text, "problem", "text"),
            "label": pick_column(tables.train, tables.label, "answer", "label"),
            "pair": tables.pair,
        }
        for table in tables.files.values():
            table.check_column(form["text"] or ""), table.check_column(form["label"] or "")
        reader = RewardReader(text=form["text"] or "", label=form["label"] or "", pair=form["pair"])
        task = tables.build_task("reward", reader, (name,))
        for example in tables.read(reader):
            compute_reward(task, example, example.target or "")
            if name not in METRICS.table:  # a function of the user's, which may be slow
                break
        return task

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode chats up to the place where the answer starts, also in training."""
        return ChatInputs.encode(self, rules, examples, training=False)


@dataclass(frozen=True, kw_only=True)
class RewardOutputs(Outputs):
    """An answer, and its reward if the reference is known."""

    def parse_answer(self, rules: EncodingRules, example: Example, text: str) -> Prediction:
        """Return an answer with its reward."""
        return Prediction(
            text=text, value=None if example.target is None else compute_reward(rules.task, example, text)
        )

    def combine(self, task: Task, predictions: Predictions, threshold: float | None = None) -> Prediction:
        """Return the most frequent answer."""
        return Outputs.combine(self, task, [replace(prediction, value=None) for prediction in predictions], threshold)


@dataclass(frozen=True, kw_only=True)
class RewardScoring(TextScoring):
    """The mean reward of the answers."""

    is_reward = True

    def score(self, task: Task, examples: Examples, predictions: Predictions) -> dict[str, float]:
        if not examples or len(examples) != len(predictions):
            return TextScoring.score(self, task, examples, predictions)  # raises
        rewards = [
            compute_reward(task, example, prediction.text or "") if prediction.value is None else prediction.value
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        return {task.metrics[0]: math.fsum(rewards) / len(rewards)}


def compute_reward(task: Task, example: Example, answer: str) -> float:
    """Return the reward of an answer; DataError with the row if the function raises, or returns no finite number."""
    place = f"task '{task.name}': row {example.id or repr(example.text[:40])}: reward '{task.metrics[0]}'"
    metric = METRICS.get(task.metrics[0])
    try:
        value = get_headline(metric([example.target], [answer]))
    except Exception as fault:  # any that the user's code may raise
        problem = str(fault) if isinstance(fault, DataError) else f"raised {describe_fault(fault)}"
        raise DataError(f"{place}: {problem}") from None
    if not math.isfinite(value):
        raise DataError(f"{place}: must be a finite number, got {value} for the answer {answer[:60]!r}")
    return value


REWARD = TaskType(
    name="reward",
    inputs=RewardInputs(),
    outputs=RewardOutputs(),
    scoring=RewardScoring(
        gold="text",
        evaluator=AnswerPrompt(text="Question: {text}\nAnswer: {answer}", max_answer_tokens=128),
        baselines={"majority": "frequent_answer", "untuned": "untuned", "few_shot": "few_shot"},
    ),
)
"""Problems whose answers are sampled and rewarded."""
