"""Instructions: forms of tables, answers as targets whatever the packing, cuts, and rows that are refused."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.surgery import set_chat_template
from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.tasks.encoder import TaskEncoder, build_head
from pretune.tasks.example import Example
from pretune.tasks.predict import answer_perplexity, predict
from pretune.tasks.stream import TaskStream
from pretune.tasks.task import Task
from pretune.tasks.types.instruction import INSTRUCTION, add_shots, build_example, list_messages
from pretune.tasks.user_table import build_user_task
from pretune.text.chat import ChatTemplate, encode_chat
from tests.inference.speakers import bert, chatter, gpt, t5
from tests.text.chat_templates import TEMPLATES, chat

TASK = Task(name="own", kind="instruction", metrics=("rouge_l", "exact_match"), splits={})
CONTENTS = [["a", "b"], ["The cat sat", "She is."], ["He", "no", "Why?", "The end of it"], ["x y z", "w " * 9]]
EXAMPLES = [build_example(chat(*row[:-1]), row[-1], str(number)) for number, row in enumerate(CONTENTS)]


def model_of(template: str | None = None) -> ModelWithHead:
    model = copy.deepcopy(chatter("llama-7b"))
    if template is not None:
        set_chat_template(model, TEMPLATES[template])
    return adapt(model, Generation()).eval()


def encoder_of(model: ModelWithHead, **options: Any) -> TaskEncoder:
    return TaskEncoder.from_task(TASK, model, **{"max_length": 64, "max_new_tokens": 8, **options})


@pytest.mark.parametrize("name", ["default", "turns", "instructions"])
def test_targets_are_the_answers(name: str) -> None:
    """Token by token those of the template's text; of a chat of several turns every answer."""
    model = model_of(name)
    tokenizer = model.model.tokenizer
    assert tokenizer is not None
    template = ChatTemplate.from_tokenizer(tokenizer)
    items = encoder_of(model, max_length=512).encode(EXAMPLES)
    sequences = items.sequences
    assert sequences.targets is not None and items.counts.cut == 0
    for number, example in enumerate(EXAMPLES):
        span = slice(*sequences.offsets[number : number + 2])
        ids, is_answer = encode_chat(tokenizer, template, list_messages(example, with_answer=True))
        assert sequences.tokens[span].tolist() == ids
        targets = sequences.targets[span]
        assert targets[-1] == IGNORE_INDEX
        assert np.where(is_answer[1:], ids[1:], IGNORE_INDEX).tolist() == targets[:-1].tolist()
    prompts = encoder_of(model, max_length=512).encode(EXAMPLES, training=False).sequences
    for number, example in enumerate(EXAMPLES):
        text = template.render(list_messages(example, with_answer=False), generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert prompts.tokens[slice(*prompts.offsets[number : number + 2])].tolist() == ids


def compute_loss(model: ModelWithHead, batches: Any) -> tuple[float, float]:
    losses = [model.spec.loss(model, batch) for batch in batches]
    return sum(float(loss.sum) for loss in losses), sum(float(loss.count) for loss in losses)


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(len(EXAMPLES))), st.integers(1, 4), st.integers(1, 3))
def test_loss_does_not_depend_on_packing_or_accumulation(order: list[int], size: int, parts: int) -> None:
    """The same sum over the same tokens, one chat at a time, in batches of any size, in any number of parts."""
    model = model_of()
    encoder = encoder_of(model)
    with torch.no_grad():
        single = [TaskStream(encoder.encode([example]), batch=1).batch(0) for example in EXAMPLES]
        expected = compute_loss(model, single)
        stream = TaskStream(encoder.encode([EXAMPLES[i] for i in order]), batch=size, seed=3)
        batches = [stream.batch(step, part=part, parts=parts) for step in stream.steps(0) for part in range(parts)]
        assert compute_loss(model, batches) == pytest.approx(expected, rel=1e-5)
    assert answer_perplexity(model, encoder, EXAMPLES) == pytest.approx(np.exp(expected[0] / expected[1]), rel=1e-5)


def test_loss_is_that_of_transformers(tmp_path: Path) -> None:
    """One chat at a time, with labels of -100 outside the answers: the mean over all answers' tokens."""
    transformers = pytest.importorskip("transformers")
    model = model_of()
    pt.save(model.model, tmp_path / "model")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    nats = count = 0.0
    for example in EXAMPLES:
        messages = list_messages(example, with_answer=True)
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        own = model.model.tokenizer
        assert own is not None
        our_ids, is_answer = encode_chat(own, ChatTemplate.from_tokenizer(own), messages)
        assert our_ids == ids
        labels = torch.tensor(np.where(is_answer, ids, IGNORE_INDEX)[None])
        with torch.no_grad():
            nats += float(peer(torch.tensor([ids]), labels=labels).loss) * int(is_answer[1:].sum())
        count += int(is_answer[1:].sum())
    assert np.log(answer_perplexity(model, encoder_of(model), EXAMPLES)) == pytest.approx(nats / count, abs=1e-5)


def test_long_chats_are_cut_and_counted() -> None:
    model = model_of()
    whole = encoder_of(model, max_length=512).encode(EXAMPLES)
    lengths = whole.sequences.lengths
    cut = encoder_of(model, max_length=int(lengths.max()) - 3).encode(EXAMPLES)
    assert (cut.counts.cut, cut.counts.lost, cut.counts.answers_lost) == (1, 3, 0)
    tiny = encoder_of(model, max_length=6)
    assert tiny.encode(EXAMPLES).counts.answers_lost == 3
    with pytest.raises(DataError, match=r"data\.max_length \(6\)"):
        tiny.encode(EXAMPLES[1:])
    short = tiny.encode(EXAMPLES, training=False)
    assert (short.sequences.lengths == 1).all(), "room for the answer"


def test_answers_are_generated_up_to_the_end_of_the_turn() -> None:
    """They are those of `pt.chat`, and shots are earlier turns."""
    model = model_of()
    answers = predict(model, encoder_of(model), EXAMPLES)
    for example, answer in zip(EXAMPLES, answers, strict=True):
        messages = list_messages(example, with_answer=False)
        assert answer.text == pt.chat(model, messages, temperature=0, max_new_tokens=9).strip()
    shot = add_shots(build_example(chat("q", system="S"), None, "1"), EXAMPLES[:2])
    assert [role for role, _ in shot.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert shot.messages[1:3] == (("user", "a"), ("assistant", "b")) and shot.messages[-1] == ("user", "q")


ROWS = {
    "messages": [{"messages": chat(f"q{i}", f"a{i}", system="Be.")} for i in range(6)],
    "alpaca": [{"Instruction": f"q{i}", "input": "" if i % 2 else "in", "output": f"a{i}"} for i in range(6)],
    "completions": [{"prompt": f"q{i}", "completion": f"a{i}", "id": i} for i in range(6)],
}


@pytest.mark.parametrize("form", ROWS)
@pytest.mark.parametrize("is_list", [False, True])
def test_forms_of_tables(form: str, is_list: bool, tmp_path: Path) -> None:
    """The columns tell the form, of JSON lines and of a list of objects."""
    file = tmp_path / ("a.json" if is_list else "a.jsonl")
    rows = ROWS[form]
    file.write_text(json.dumps(rows, indent=1) if is_list else "".join(json.dumps(row) + "\n" for row in rows))
    task = build_user_task({"train": file})
    assert task.kind == "instruction" and task.metrics[0] == "rouge_l"
    examples = [*task.read("train")]
    assert [example.target for example in examples] == [f"a{i}" for i in range(6)]
    first = {"messages": ("system", "Be."), "alpaca": ("user", "q0\n\nin"), "completions": ("user", "q0")}[form]
    assert examples[0].messages[0] == first and examples[1].messages[-1] == ("user", "q1")
    reader = task.splits["train"][0].reader
    assert "answer" in reader.describe_columns(()) or form == "messages"  # type: ignore[attr-defined]
    new = {name: value for name, value in rows[0].items() if name not in ("output", "completion")}
    read = INSTRUCTION.inputs.read_input(new, reader.text, reader.pair, "input 0")  # type: ignore[attr-defined]
    assert read.messages == examples[0].messages
    assert INSTRUCTION.inputs.read_input({"text": "q"}, reader.text, reader.pair, "x").messages == (("user", "q"),)  # type: ignore[attr-defined]


BAD: list[tuple[Any, str]] = [
    ({"messages": chat("a")}, "no answer"),
    ({"messages": []}, "blank"),
    ({"messages": "hi"}, "list of messages"),
    ({"messages": [{"role": "user"}]}, "content of message 1"),
    ({"messages": chat("a", " ")}, "blank"),
    ({"messages": chat("a", "b")[::-1]}, "expected 'user'"),
    ({"messages": [*chat("a"), *chat("a", "b")]}, "expected 'assistant'"),
    ({"messages": [*chat("a", "b"), {"role": "system", "content": "s"}, *chat("a", "b")]}, "role 'system'"),
    ({"messages": [{"role": "tool", "content": "s"}, *chat("a", "b")]}, "role 'tool'"),
]


@pytest.mark.parametrize(("row", "problem"), BAD)
def test_bad_rows_are_named(row: Any, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(part) + "\n" for part in (ROWS["messages"][0], row)))
    with pytest.raises(DataError) as caught:
        build_user_task({"train": file}, strict=True)
    message = str(caught.value)
    assert f"{file}:2" in message and problem in message and "\n" not in message


def test_bad_tables(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for content, problem in (("[{}, 1]", ":2: expected a list"), ("[{", "bad JSON"), ('[{"prompt": "a"}]', "no chats")):
        file.write_text(content)
        with pytest.raises(DataError, match=problem):
            build_user_task({"train": file}, type="instruction")
    file.write_text(json.dumps([{"a": "x", "b": "y"}] * 2))
    task = build_user_task({"train": file}, type="instruction", text="a", label="b")
    assert [example.target for example in task.read("train")] == ["y", "y"]


def test_models_and_messages_that_are_refused() -> None:
    with pytest.raises(UsageError, match="decoder"):
        build_head(TASK, bert())
    with pytest.raises(UsageError, match="decoder"):
        TaskEncoder.from_task(TASK, adapt(copy.deepcopy(t5()), Generation()), max_length=32).encode(EXAMPLES)
    model = model_of("turns")
    with pytest.raises(DataError, match=r"row id '7'.*System role not supported"):
        encoder_of(model).encode([build_example(chat("a", system="S"), "b", "7")])
    example = Example(text="a", target="b", messages=(("user", "a"),), id="1")
    assert replace(example, messages=()) != example


def test_default_template_is_saved_with_the_model() -> None:
    model = INSTRUCTION.inputs.prepare_model(copy.deepcopy(gpt()))
    assert model.tokenizer is not None and model.tokenizer.chat_template == TEMPLATES["default"]
    assert model.assets.files["chat_template.jinja"].decode() == TEMPLATES["default"]
    own = chatter()
    assert INSTRUCTION.inputs.prepare_model(own) is own and own.tokenizer.chat_template != TEMPLATES["default"]  # type: ignore[union-attr]
