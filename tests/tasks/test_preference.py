"""Preferences: forms of tables, the last answer as target, and rows that are refused with their number."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.adaptation.adapted import adapt
from pretune.adaptation.heads.token import Generation
from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example
from pretune.tasks.task import Task
from pretune.tasks.types.preference import PREFERENCE
from pretune.tasks.user_table import build_user_task
from tests.inference.speakers import chatter
from tests.text.chat_templates import chat

TASK = Task(name="own", kind="preference", metrics=("choice_accuracy",), splits={}, labels=("chosen", "rejected"))
ANSWERS = {"chosen": "Hello!", "rejected": "What?"}
HI = ("user", "Hi")
FORMS: dict[str, tuple[dict[str, Any], tuple[tuple[str, str], ...]]] = {
    "prompt": ({"prompt": "Hi", **ANSWERS}, (HI,)),
    "input": ({"instruction": "Hi", "input": "you", "output": "x", **ANSWERS}, (("user", "Hi\n\nyou"),)),
    "blank input": ({"instruction": "Hi", "input": "", **ANSWERS}, (HI,)),
    "chats": ({"chosen": chat("Hi", "Hello!"), "rejected": chat("Hi", "What?")}, (HI,)),
    "prompt beside chats": ({"prompt": "x", "chosen": chat("Hi", "Hello!"), "rejected": chat("Hi", "What?")}, (HI,)),
    "messages": (
        {
            "prompt": chat("a", "b", "Hi"),
            **{name: [{"role": "assistant", "content": text}] for name, text in ANSWERS.items()},
        },
        (("user", "a"), ("assistant", "b"), HI),
    ),
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_tables_and_of_new_pairs(form: str, tmp_path: Path) -> None:
    row, messages = FORMS[form]
    task = build_user_task({"train": write(tmp_path / "a.jsonl", row)})
    (example,) = task.read("train")
    assert (task.kind, task.labels) == ("preference", ("chosen", "rejected"))
    new = PREFERENCE.inputs.read_input(row, None, None, "line 1")
    for part in (example, new):
        assert (part.messages, part.choices, part.label) == (messages, ("Hello!", "What?"), 0)


def test_a_column_of_prompts_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"ask": "Hi", "note": "x", **ANSWERS})
    (example,) = build_user_task({"train": path}, text="ask").read("train")
    assert example.messages == (HI,)


USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "equal": ({"prompt": "Hi", "chosen": "Yes", "rejected": " Yes\n"}, "equal"),
    "equal chats": ({"chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT]}, "equal"),
    "other prompts": ({"chosen": chat("Hi", "a"), "rejected": chat("Ho", "b")}, "differ"),
    "order": ({"chosen": [ASSISTANT, USER], "rejected": chat("Hi", "b")}, "'chosen': message 1 has the role"),
    "late system": ({"prompt": [USER, {"role": "system", "content": "x"}], **ANSWERS}, "message 2 has the role"),
    "no answer": ({"chosen": chat("Hi", "a", "b"), "rejected": chat("Hi", "b")}, "'chosen' must end with an answer"),
    "no prompt": ({"chosen": [ASSISTANT], "rejected": "b"}, "message 1 has the role"),
    "texts alone": ({"chosen": "a", "rejected": "b"}, "no prompt"),
    "a number": ({"prompt": "Hi", "chosen": 3, "rejected": "b"}, "must be text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_that_are_refused(name: str, tmp_path: Path) -> None:
    row, words = REFUSED[name]
    fine = {"prompt": "a", **ANSWERS} if "prompt" in row else {"chosen": chat("Hi", "a"), "rejected": chat("Hi", "b")}
    with pytest.raises(DataError, match=r"a\.jsonl:2: ") as fault:
        build_user_task({"train": write(tmp_path / "a.jsonl", fine, row)})
    assert words in str(fault.value) and "\n" not in str(fault.value)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no preferences found"):
        build_user_task({"train": write(tmp_path / "a.jsonl", {"prompt": "a", "completion": "b"})}, type="preference")
    with pytest.raises(DataError, match="'chosen' and 'rejected'"):
        PREFERENCE.inputs.read_input({"prompt": "a"}, None, None, "line 1")


texts = st.text(min_size=1, max_size=12).filter(str.strip)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=3), st.booleans())
def test_targets_are_the_last_answers(rows: list[tuple[str, str, str]], has_turns: bool) -> None:
    """Both sequences of a pair have the same tokens before their answers; earlier answers are no targets."""
    model = adapt(copy.deepcopy(chatter("llama-7b")), Generation())
    turns = (HI, ("assistant", "He sat")) if has_turns else ()
    examples = [
        Example(text=text, messages=(*turns, ("user", text)), choices=(first, second), label=0)
        for text, first, second in rows
    ]
    items = TaskEncoder.from_task(TASK, model, max_length=512, max_new_tokens=8).encode(examples)
    sequences, tokenizer = items.sequences, model.tokenizer
    assert sequences.targets is not None and sequences.labels is not None and tokenizer is not None
    assert sequences.labels.tolist() == [0, -1] * len(rows) and items.sizes.tolist() == [2] * len(rows)
    prompts = []
    for start, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True):
        labels, tokens = sequences.targets[start:end], sequences.tokens[start:end]
        places = np.flatnonzero(labels != IGNORE_INDEX)
        assert (np.diff(places) == 1).all() and (tokens[places + 1] == labels[places]).all(), "one run, to its end"
        prompts.append(tokens[: places[0] + 1].tolist())
    assert prompts[::2] == prompts[1::2]
