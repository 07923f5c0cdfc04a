"""Preferences: of two answers to a prompt, one is chosen and one rejected.

    {"prompt": "Greet me.", "chosen": "Hello! How can I help?", "rejected": "What do you want?"}
    {"instruction": "Add the numbers.", "input": "2 and 3", "chosen": "5", "rejected": "6"}
    {"chosen": [{"role": "user", …}, {"role": "assistant", …}], "rejected": [{"role": "user", …}, …]}

The columns tell the form; `prompt` may be a list of messages, too, and answers a list of their message alone. A decoder
reads each answer after the prompt, written by its chat template, and compares the mean log-probabilities of a token;
only the last answer of a chat counts. With a reward head (`tune.preference=reward_model`) any model gives each a score.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pretune.adaptation.heads.sequence import build_group_labels
from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.models.model import LanguageModel
from pretune.tasks.encoding import EncodingRules, Floats, Items, build_items
from pretune.tasks.example import Example, Examples, Prediction
from pretune.tasks.table import BlankCellError, TableRow, data_error, is_blank, read_id
from pretune.tasks.table_reader import ANSWER_PAIR, TableReader, UserTables, find_preference_form
from pretune.tasks.task import Task
from pretune.tasks.types.base import Scoring, TaskType
from pretune.tasks.types.choice import ChoiceInputs, ChoiceOutputs
from pretune.tasks.types.classification import choose_best
from pretune.tasks.types.instruction import (
    ChatInputs,
    build_example,
    build_message,
    check_answers,
    encode_chats,
    list_messages,
    read_messages,
)
from pretune.text.chat import ANSWER_ROLE, Message


@spec
class PreferenceReader(TableReader):
    """Reader of pairs: the columns of the prompt (or, within the answers, that of the chosen one) and of a second
    text.
    """

    rejected_answer: str

    def parse_row(self, row: TableRow) -> Example:
        prompt: list[Message] = []
        if self.text != self.label and isinstance(value := row.require(self.text), list):
            prompt = value
        elif self.text != self.label:
            prompt = [build_message(row.get_text(self.text), row.values.get(self.pair or ""), row.location)]
        context, chosen_answer = _read_answer(prompt, row, self.label)
        rejected_context, rejected_answer = _read_answer(prompt, row, self.rejected_answer)
        if context != rejected_context:
            raise data_error(f"{row.location}: the messages before the chosen and the rejected answer differ")
        if chosen_answer.strip() == rejected_answer.strip():
            raise data_error(f"{row.location}: the chosen and the rejected answer are equal; remove the row")
        example = build_example(context, None, row.number)
        return replace(example, choices=(chosen_answer, rejected_answer), label=0)

    def describe_columns(self, columns: Iterable[str]) -> str:
        second = f", second text '{self.pair}'" if self.pair else ""
        prompt = "" if self.text == self.label else f"prompt '{self.text}'{second}, "
        return f"columns: {prompt}chosen answer '{self.label}', rejected answer '{self.rejected_answer}'"


def _read_answer(prompt: list[Message], row: TableRow, column: str) -> tuple[list[Message], str]:
    """Return the messages before an answer, and the answer: a text, its message, or all messages of the chat."""
    value = row.require(column)
    if not prompt and not isinstance(value, list):
        raise data_error(f"{row.location}: '{column}' has no prompt; name its column with --text")
    messages = value if isinstance(value, list) else [{"role": ANSWER_ROLE, "content": row.get_text(column)}]
    *context, answer = read_messages(
        messages if len(messages) > 1 else [*prompt, *messages], f"{row.location}: '{column}'"
    )
    if not context or answer["role"] != ANSWER_ROLE:
        raise data_error(
            f"{row.location}: '{column}' must end with an answer to a message, of the role '{ANSWER_ROLE}'"
        )
    if is_blank(answer["content"]):
        raise BlankCellError(row.location, column)
    return context, answer["content"]


@dataclass(frozen=True, kw_only=True)
class PreferenceInputs(ChatInputs):
    """A prompt and two answers, the chosen one first."""

    compares_answers = True

    def prepare_model(self, model: LanguageModel) -> LanguageModel:
        """Give a decoder without a chat template the default one."""
        return super().prepare_model(model) if model.spec.shape == "decoder" else model

    def build_user_task(self, tables: UserTables) -> Task:
        reader = _build_reader(tables.train.columns, tables.text, tables.pair)
        if reader is None:
            raise data_error(
                f"{tables.train.path}: no preferences found; columns must be chosen and rejected with prompt, or with "
                f"instruction and input, or lists of messages (it has {', '.join(tables.train.columns)[:200]})"
            )
        for table in tables.files.values():
            for column in (reader.text, reader.label, reader.rejected_answer):
                table.check_column(column)
        return tables.build_task("preference", reader, ("choice_accuracy",), labels=ANSWER_PAIR)

    def read_input(self, fields: Mapping[str, object], text: str | None, pair: str | None, source: str) -> Example:
        """Return the example of a new pair, in any of the forms."""
        names = [*map(str, fields)]
        reader = _build_reader(names, text if text in names else None, pair if pair in names else None)
        if reader is None:
            raise DataError(f"{source}: this task needs the fields 'chosen' and 'rejected', and a prompt")
        return replace(reader.parse_row(TableRow(source, fields)), id=read_id(fields, source))

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode both answers of each example after its messages; the tokens of the answers are targets."""
        if rules.spec.shape != "decoder":  # its head compares texts
            return ChoiceInputs().encode(rules, [replace(part, pair="") for part in examples], training=training)
        count = len(examples)
        owner = np.repeat(np.arange(count), len(ANSWER_PAIR))
        chats: list[list[Message]] = [
            [*list_messages(example, with_answer=False), {"role": ANSWER_ROLE, "content": answer}]
            for example in examples
            for answer in example.choices
        ]
        rows = [examples[i] for i in owner.tolist()]
        sequences, counts = encode_chats(rules, rows, chats, has_answers=True, last_only=True)
        if training:
            check_answers(rules, counts)
        sizes = np.full(count, len(ANSWER_PAIR))
        sequences = replace(sequences, labels=build_group_labels(sizes, np.zeros(count, dtype=np.int64)))
        return build_items(sequences, counts, examples=owner, sizes=sizes)


def _build_reader(columns: Iterable[str], text: str | None, pair: str | None) -> PreferenceReader | None:
    if (form := find_preference_form(columns)) is None:
        return None
    prompt, second, better, worse = form
    texts = (prompt, second) if text is None else (text, pair)
    return PreferenceReader(text=texts[0], pair=texts[1], label=better, rejected_answer=worse)


@dataclass(frozen=True, kw_only=True)
class PreferenceOutputs(ChoiceOutputs):
    """A score of each answer: of a head, or its mean log-probability of a token."""

    is_explainable = False

    def decode(self, rules: EncodingRules, examples: Examples, items: Items, logits: Floats) -> list[Prediction]:
        """Return the better answer of each example, from scores `[S, 1]` or sums and numbers of tokens `[S, 2]`."""
        tokens = np.maximum(logits[:, 1], 1) if logits.shape[1] == 2 else np.ones(len(logits), dtype=np.float32)
        scores = (logits[:, 0] / tokens).astype(np.float32)
        return [choose_best(row) for row in scores.reshape(len(examples), len(ANSWER_PAIR))]


PREFERENCE = TaskType(
    name="preference",
    inputs=PreferenceInputs(),
    outputs=PreferenceOutputs(),
    scoring=Scoring(gold="option", baselines={"svm": "tfidf", "untuned": "untuned"}),
)
"""The better of two answers to a prompt."""
