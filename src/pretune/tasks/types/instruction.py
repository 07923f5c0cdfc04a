"""Instructions: a decoder answers chats, written as text by its chat template; only the answers count for the loss.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
    {"instruction": "Add the numbers.", "input": "2 and 3", "output": "5"}
    {"prompt": "Hi", "completion": "Hello!"}

The columns tell the form. In training every answer of a chat is a target, with the token that ends its turn; the last
one is generated and scored. A model without a template gets the default one, which is saved with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.surgery import set_chat_template
from pretune.core.config import spec
from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Sequences, compute_offsets
from pretune.models.model import LanguageModel
from pretune.tasks.encoding import Counts, EncodingRules, Items, build_items
from pretune.tasks.example import Example, Examples, format_example
from pretune.tasks.table import BlankCellError, TableRow, data_error, is_blank, read_id
from pretune.tasks.table_reader import CHAT_FORMS, MESSAGES, TableReader, UserTables, find_chat_form
from pretune.tasks.task import Task
from pretune.tasks.types.base import AnswerPrompt, Inputs, SecondText, TaskType
from pretune.tasks.types.text_to_text import TextScoring
from pretune.text.chat import (
    ANSWER_ROLE,
    DEFAULT_TEMPLATE,
    ChatTemplate,
    Message,
    check_messages,
    encode_chat,
    encode_prompt,
    find_turn_end,
)

ROLES = ("user", ANSWER_ROLE)
"""Roles in turn, after a system message."""


@spec
class InstructionReader(TableReader):
    """Reader of chats: a column of messages, or a text, a second text, and the answer."""

    def parse_row(self, row: TableRow) -> Example:
        if self.text == self.label:
            messages = read_messages(row.require(self.text), row.location)
            if messages[-1]["role"] != ANSWER_ROLE:
                raise data_error(f"{row.location}: no answer: the last message must be of the role '{ANSWER_ROLE}'")
            *context, answer = messages
            if is_blank(answer["content"]):
                raise BlankCellError(row.location, self.text)
            return build_example(context, answer["content"], row.number)
        context = [build_message(row.get_text(self.text), row.values.get(self.pair or ""), row.location)]
        return build_example(context, row.get_text(self.label), row.number)

    def describe_columns(self, columns: Iterable[str]) -> str:
        if self.text == self.label:
            return f"column of messages: '{self.text}'"
        second = f", second text '{self.pair}'" if self.pair else ""
        return f"columns: text '{self.text}'{second}, answer '{self.label}'"


def build_message(text: str, second: object, location: str) -> Message:
    """Return the message of a text, and of a second one below it."""
    if second is not None and not isinstance(second, str):
        raise data_error(f"{location}: the input must be text, got {str(second)[:40]!r}; fix the row")
    return {"role": ROLES[0], "content": text if is_blank(second) else f"{text}\n\n{second}"}


def read_messages(value: object, location: str) -> list[Message]:
    """Return checked messages: a system message may come first, then user and assistant take turns."""
    try:
        messages = check_messages(value, location)
    except UsageError as error:
        raise data_error(str(error)) from None
    first = int(messages[0]["role"] == "system")
    for number, message in enumerate(messages[first:]):
        role = ROLES[number % 2]
        if message["role"] != role:
            raise data_error(
                f"{location}: message {number + first + 1} has the role '{message['role'][:40]}', expected '{role}': "
                "roles take turns (system first, if at all, then user, assistant, …)"
            )
    return messages


def build_example(context: Sequence[Message], answer: str | None, number: str) -> Example:
    """Return the example of the messages before an answer; None: it is not known."""
    contents = [message["content"] for message in context]
    is_single = len(context) == 1
    text = contents[0] if is_single else "\n".join(f"{message['role']}: {message['content']}" for message in context)
    messages = tuple((message["role"], message["content"]) for message in context)
    answers = () if answer is None else (answer,)
    return Example(text=text, target=answer, answers=answers, messages=messages, id=number)


def list_messages(example: Example, *, with_answer: bool) -> list[Message]:
    """Return the messages of an example, with its answer or without."""
    messages: list[Message] = [{"role": role, "content": content} for role, content in example.messages]
    return [*messages, {"role": ANSWER_ROLE, "content": example.target or ""}] if with_answer else messages


def add_shots(example: Example, shots: Examples) -> Example:
    """Return an example with solved ones as earlier turns, after its system message."""
    first = int(example.messages[:1] != () and example.messages[0][0] == "system")
    turns = [(*shot.messages[-1:], (ANSWER_ROLE, shot.target or "")) for shot in shots]
    earlier = tuple(message for turn in turns for message in turn)
    return replace(example, messages=(*example.messages[:first], *earlier, *example.messages[first:]))


@dataclass(frozen=True, kw_only=True)
class ChatInputs(Inputs):
    """A chat, and the answer to its last message."""

    second_text: SecondText = "none"

    default_length = 1024
    default_new_tokens = 128
    has_own_encoding = True

    def build_head(self, task: Task) -> TaskHead:
        return Generation()

    def prepare_model(self, model: LanguageModel) -> LanguageModel:
        """Give a model without a chat template the default one."""
        tokenizer = model.tokenizer
        if tokenizer is not None and tokenizer.chat_template is None:
            set_chat_template(model, DEFAULT_TEMPLATE)
        return model

    def build_user_task(self, tables: UserTables) -> Task:
        form = find_chat_form(tables.train.columns) or {}
        text, label = tables.text or form.get("text"), tables.label or form.get("label")
        if text is None or label is None:
            raise data_error(
                f"{tables.train.path}: no chats found; columns must be messages, or instruction, input and output, or "
                f"prompt and completion (it has {', '.join(tables.train.columns)[:200]}); name others with --text and "
                "--label"
            )
        pair = form.get("pair") if tables.text is None else tables.pair
        for table in tables.files.values():
            table.check_column(text), table.check_column(label)
        reader = InstructionReader(text=text, label=label, pair=pair)
        return tables.build_task("instruction", reader, ("rouge_l", "exact_match"))

    def read_input(self, fields: Mapping[str, object], text: str | None, pair: str | None, source: str) -> Example:
        """Return the example of a new chat: messages, or a text and a second one."""
        name = read_id(fields, source)
        if isinstance(value := fields.get(MESSAGES), list):
            messages = read_messages(value, source)
            return build_example(messages[: -1 if messages[-1]["role"] == ANSWER_ROLE else None], None, name)
        form = find_chat_form([*map(str, fields), *(label for _, _, label in CHAT_FORMS)]) or {}
        columns = {"text": text if text in fields else form.get("text"), "pair": pair or form.get("pair")}
        example = super().read_input(fields, columns["text"], None, source)
        message = build_message(example.text, fields.get(columns["pair"] or ""), source)
        return build_example([message], None, name)

    def encode(self, rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
        """Encode chats; with `training` the answers are targets, else a chat ends where its answer begins.

        What is too long loses its end in training, else its start.
        """
        chats = [list_messages(example, with_answer=training) for example in examples]
        sequences, counts = encode_chats(rules, examples, chats, has_answers=training)
        if training:
            check_answers(rules, counts)
        return build_items(sequences, counts)

    def get_end_tokens(self, rules: EncodingRules) -> tuple[int, ...]:
        """Return the tokens that end an answer: that of the template, and those of the model."""
        return tuple(dict.fromkeys((*find_turn_end(rules.tokenizer, _get_template(rules)), *rules.spec.special.eos)))


def encode_chats(
    rules: EncodingRules,
    examples: Examples,
    chats: Sequence[Sequence[Message]],
    *,
    has_answers: bool,
    last_only: bool = False,
) -> tuple[Sequences, Counts]:
    """Encode one chat of each example; its answers, if it has some, are targets, with `last_only` the last one."""
    if rules.spec.shape != "decoder":
        raise UsageError(f"instructions need a decoder; this model has the shape '{rules.spec.shape}'")
    template = _get_template(rules)
    room = rules.max_length if has_answers else max(rules.max_length - rules.max_new_tokens, 1)
    ids, targets, lost = list[Any](), list[Any](), np.zeros(len(chats), np.int64)
    no_answer = 0
    for number, (example, messages) in enumerate(zip(examples, chats, strict=True)):
        try:
            tokens, is_answer = (
                encode_chat(rules.tokenizer, template, messages, last_only=last_only)
                if has_answers
                else (encode_prompt(rules.tokenizer, template, messages), np.zeros(0, np.bool_))
            )
        except UsageError as error:
            raise DataError(f"task '{rules.task.name}': row {format_example(example)}: {error}") from None
        lost[number] = max(len(tokens) - room, 0)
        tokens = tokens[:room] if has_answers else tokens[-room:]
        ids.append(np.array(tokens, dtype=np.int64))
        if has_answers:
            labels = np.where(is_answer[:room], ids[-1], IGNORE_INDEX)
            targets.append(np.append(labels[1:], IGNORE_INDEX))
            no_answer += not is_answer[1:room].any()
    sequences = Sequences(
        tokens=np.concatenate(ids),
        offsets=compute_offsets(np.array([len(tokens) for tokens in ids])),
        targets=np.concatenate(targets) if has_answers else None,
    )
    counts = Counts(examples=len(chats), cut=int((lost > 0).sum()), lost=int(lost.sum()), answers_lost=no_answer)
    return sequences, counts


def check_answers(rules: EncodingRules, counts: Counts) -> None:
    """Raise DataError if all answers are cut."""
    if counts.answers_lost == counts.examples:
        problem = f"no answer is within data.max_length ({rules.max_length}) tokens; increase it"
        raise DataError(f"task '{rules.task.name}': {problem}")


def _get_template(rules: EncodingRules) -> ChatTemplate:
    return ChatTemplate.from_tokenizer(rules.tokenizer, rules.tokenizer.chat_template or DEFAULT_TEMPLATE)


INSTRUCTION = TaskType(
    name="instruction",
    inputs=ChatInputs(),
    scoring=TextScoring(
        gold="text",
        evaluator=AnswerPrompt(text="Instruction: {text}\nAnswer: {answer}", max_answer_tokens=128),
        baselines={"majority": "lead_words", "untuned": "untuned", "few_shot": "few_shot"},
    ),
)
"""Chats whose answers a decoder generates."""
