"""Chats as text: the template of a tokenizer, which writes messages as one text, and the answers in it.

    template = ChatTemplate(source, {"eos_token": "</s>"})
    template.render([{"role": "user", "content": "Hi"}], generation_prompt=True)
    # "<|user|>\\nHi</s>\\n<|assistant|>\\n"

An answer is found by its place, not by tags: the messages are rendered once more with marks as contents, and what is
between the marks must be in the text too. A token of an answer is one that the model generates: of the text that the
generation prompt lacks, up to the first special token after the content.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, UsageError
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.cache import replace_surrogates

ANSWER_ROLE = "assistant"
MARK = "\ue0f0"
"""A character that no text has, around the marks."""
MAX_SOURCE = 2**18
"""Characters of a template."""
DEFAULT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' ~ message['role'] ~ '|>\\n' ~ message['content'] | trim ~ eos_token ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""
"""Template of decoders without one that are tuned on chats."""


class Message(TypedDict):
    """A message of a chat."""

    role: str
    content: str


class ChatTemplate:
    """A Jinja2 template, rendered as `apply_chat_template` of transformers does, in a sandbox.

    Args:
        source: Template.
        tokens: Special tokens by the names that templates use, such as `bos_token`.

    Raises CheckpointError for a template that cannot be read.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source, self.tokens = source, dict(tokens)
        if len(source) > MAX_SOURCE:
            raise CheckpointError(f"chat template: must have <= {MAX_SOURCE} characters, got {len(source)}")
        from pretune.text.sandbox import ChatEnvironment

        self._lock = threading.Lock()
        self._environment = ChatEnvironment()
        try:
            self._template = self._environment.from_string(source)
        except Exception as fault:  # errors of syntax, of its own code, of Python's limits
            raise CheckpointError(f"chat template: cannot be read: {_describe(fault)}") from None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, source: str | None = None) -> "ChatTemplate":
        """Return the template of a tokenizer, or another one with its special tokens."""
        source = tokenizer.chat_template if source is None else source
        if source is None:
            raise UsageError(
                "the model has no chat template: choose one tuned on chats (smollm2), or tune this one with "
                "`pretune finetune MODEL --train chats.jsonl --type instruction`"
            )
        return _build_template(
            source, tuple((f"{role}_token", tokenizer.get_token(i)) for role, i in tokenizer.special.items())
        )

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """Return messages as text; with `generation_prompt` up to the place where the answer starts.

        Raises UsageError for messages that the template refuses, CheckpointError for other errors of the template.
        """
        from pretune.text.sandbox import RefusedMessagesError

        values: dict[str, Any] = {"messages": [dict(message) for message in messages], "tools": None, "documents": None}
        try:
            with self._lock:
                self._environment.steps = 0
                return self._template.render({**values, **self.tokens, "add_generation_prompt": generation_prompt})
        except RefusedMessagesError as fault:
            raise UsageError(f"the chat template refuses the messages: {_describe(fault)}") from None
        except Exception as fault:  # any that Python code may raise
            raise CheckpointError(f"chat template: {_describe(fault)}") from None


@functools.lru_cache(maxsize=16)
def _build_template(source: str, tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(tokens))


def _describe(fault: Exception) -> str:
    text = " ".join(str(fault).split())[:200] or type(fault).__name__
    return "".join(character if character.isprintable() else "?" for character in text)


def check_messages(messages: object, place: str = "messages") -> list[Message]:
    """Return messages if each has a role and a content; `place` names them in an error."""
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{place}: must be a list of messages, got {format_value(messages)}")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise UsageError(f"{place}: message {number} must have a role and a content, got {format_value(message)}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UsageError(
                    f"{place}: the {key} of message {number} must be text, got {format_value(message.get(key))}"
                )
        if not message["role"]:
            raise UsageError(f"{place}: the role of message {number} is empty")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


class AnswerSpan(NamedTuple):
    """An answer in the text of a chat: where it starts, where its content ends, and where the next content starts."""

    start: int
    end: int
    limit: int


def find_answers(template: ChatTemplate, messages: Sequence[Message], text: str) -> list[AnswerSpan]:
    """Return the answers in the text of messages. Raises UsageError if the template changes what they say."""
    every, answers = range(len(messages)), [i for i, message in enumerate(messages) if message["role"] == ANSWER_ROLE]
    contents = _locate_contents(template, messages, text, every) or _locate_contents(template, messages, text, answers)
    spans = []
    for i in answers:
        prompt = _render_prompt(template, messages[:i])
        if contents is None:
            spans.append(_locate_turn(template, messages[: i + 1], text, prompt))
            continue
        start, end = contents[i]
        earlier = max((contents[j][1] for j in contents if j < i), default=0)
        if prompt is not None and earlier <= len(prompt) <= start and text.startswith(prompt):
            start = len(prompt)
        spans.append(AnswerSpan(start, end, min((contents[j][0] for j in contents if j > i), default=len(text))))
    return spans


def _render_prompt(template: ChatTemplate, messages: Sequence[Message]) -> str | None:
    """Return the text before an answer; None if the template needs a message before it."""
    try:
        return template.render(messages, generation_prompt=True)
    except (UsageError, CheckpointError):
        return None


def _locate_turn(template: ChatTemplate, messages: Sequence[Message], text: str, prompt: str | None) -> AnswerSpan:
    """Return the last answer by the texts with and without it, for a template that depends on what answers say."""
    turn_text = template.render(messages)
    marked_messages: list[Message] = [*messages[:-1], {"role": ANSWER_ROLE, "content": MARK}]
    _, mark, ending = template.render(marked_messages).partition(MARK)
    if (
        prompt is None
        or not mark
        or not (text.startswith(turn_text) and turn_text.startswith(prompt) and turn_text.endswith(ending))
    ):
        raise UsageError(
            "the chat template changes the text of an answer; make it one that the template keeps as it is"
        )
    return AnswerSpan(len(prompt), max(len(turn_text) - len(ending), len(prompt)), len(turn_text))


def _locate_contents(
    template: ChatTemplate, messages: Sequence[Message], text: str, numbers: Sequence[int]
) -> dict[int, tuple[int, int]] | None:
    """Return where the contents of some messages are in the text; None if it is not the same text around them."""
    placeholders = {i: f"{MARK}{i}{MARK}" for i in numbers}
    marked_messages: list[Message] = [
        {"role": message["role"], "content": placeholders.get(i, message["content"])}
        for i, message in enumerate(messages)
    ]
    try:
        rest = template.render(marked_messages)
    except (UsageError, CheckpointError):
        return None
    if any(rest.count(mark) != 1 for mark in placeholders.values()) or MARK in text:
        return None
    order = sorted(numbers, key=lambda i: rest.index(placeholders[i]))
    parts = []
    for i in order:
        part, _, rest = rest.partition(placeholders[i])
        parts.append(part)
    parts.append(rest)
    return _align(text, parts, {i: messages[i]["content"] for i in order})


def _align(text: str, parts: Sequence[str], contents: Mapping[int, str]) -> dict[int, tuple[int, int]] | None:
    """Return the places of contents between parts; a template may strip them."""
    places, position = {}, len(parts[0])
    if not text.startswith(parts[0]):
        return None
    for part, (i, content) in zip(parts[1:], contents.items(), strict=True):
        spellings = (content, content.strip(), content.rstrip(), content.lstrip())
        fitting = [spelling for spelling in spellings if text.startswith(spelling + part, position)]
        if not fitting:
            return None
        places[i] = position, position + len(fitting[0])
        position += len(fitting[0]) + len(part)
    return places if position == len(text) else None


class ChatTokens(NamedTuple):
    """Token ids of a chat, and whether the model is to generate each of them."""

    ids: list[int]
    is_answer: NDArray[np.bool_]


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], *, last_only: bool = False
) -> ChatTokens:
    """Encode a chat with its answers, or with `last_only` the last of them."""
    text = replace_surrogates(template.render(messages))
    encoding = tokenizer.raw.encode(text, add_special_tokens=False)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    # NOTE: offsets may leave out spaces; a token has all characters since the one before.
    ends = np.maximum.accumulate(offsets[:, 1])
    starts = np.minimum(offsets[:, 0], np.append(0, ends)[:-1])
    is_special, numbers = np.isin(encoding.ids, [*tokenizer.special_ids]), np.arange(len(offsets))
    is_answer = np.zeros(len(offsets), np.bool_)
    for span in find_answers(template, messages, text)[-1 if last_only else 0 :]:
        is_answer |= (ends > span.start) & (starts < span.end)
        is_after = (starts >= span.end) & (starts < span.limit)
        if (is_after & is_special).any():
            is_answer |= is_after & (numbers <= (is_after & is_special).argmax())
    return ChatTokens(encoding.ids, is_answer)


def find_turn_end(tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """Return the special token that the template writes after an answer; none if there is none."""
    messages: list[Message] = [{"role": "user", "content": "a"}, {"role": ANSWER_ROLE, "content": "b"}]
    try:
        ids, is_answer = encode_chat(tokenizer, template, messages)
    except (UsageError, CheckpointError):
        return []
    last_token = np.array(ids)[is_answer][-1:].tolist()
    return [token for token in last_token if token in tokenizer.special_ids]


def encode_prompt(tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
    """Encode messages up to the place where the answer starts."""
    return tokenizer.encode(template.render(messages, generation_prompt=True), add_special_tokens=False)
