"""Encoding and answers with what else there is: prompts, the language loss, held-out loss, mixtures of tasks."""

import pickle
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from pretune.adaptation.adapted import MultiTask, adapt, select_head
from pretune.adaptation.peft.prefix import PromptTuning
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import SmoothedMixing
from pretune.tasks.encoder import TaskEncoder, build_head
from pretune.tasks.encoding import mix_items
from pretune.tasks.predict import predict
from pretune.tasks.stream import MultiTaskStream, TaskStream
from pretune.tasks.types import score
from pretune.training.step import ModelWithLoss
from pretune.training.validation import LOCAL_RANK, compute_validation_loss
from tests.contracts.tiny import take_steps
from tests.tasks.small import body, examples_of, model_for, task_of


@pytest.mark.parametrize(
    ("shape", "kind"), [("bert", "span"), ("bert", "tagging"), ("gpt2", "generation"), ("t5", "span")]
)
def test_a_prompt_stands_before_what_is_read(shape: str, kind: str) -> None:
    task, examples = task_of(kind), examples_of(kind)
    model = deepcopy(model_for(shape, task))
    PromptTuning(count=3).apply(model.model)
    encoder = TaskEncoder.from_task(task, model, max_length=48, slots=3, max_new_tokens=4)
    loss = model.spec.loss(model, TaskStream(encoder.encode(examples), batch=8)[0]).mean()
    loss.backward()
    table = model.model.get_parameter("prompt.table")
    assert torch.isfinite(loss) and table.grad is not None and table.grad.abs().sum() > 0
    predictions = predict(model, encoder, examples)
    single_predictions = [predict(model, encoder, [example], tokens=8)[0] for example in examples[:2]]
    together, alone = ([(one.text, one.tags) for one in some] for some in (predictions[:2], single_predictions))
    assert together == alone
    if predictions[0].span is not None:
        assert (examples[0].pair or "")[slice(*predictions[0].span)] == predictions[0].text
    score(task, examples, predictions)


def test_the_next_token_is_learnt_beside_the_class() -> None:
    task, examples = task_of("classification"), examples_of("classification")
    model = adapt(body("gpt2"), replace(build_head(task, body("gpt2"), lm_loss_weight=0.5), dropout=0.0))
    encoder = TaskEncoder.from_task(task, model)
    items = encoder.encode(examples)
    assert items.sequences.targets is not None
    assert int((items.sequences.targets != IGNORE_INDEX).sum()) == len(items.sequences.tokens) - len(examples)
    stream = TaskStream(items, batch=8)
    with torch.no_grad():
        terms = model.spec.loss(model, stream[0]).get_terms()
    assert set(terms) == {"loss", "language"} and terms["language"].weight == 0.5
    assert all(prediction.label is not None for prediction in predict(model, encoder, examples))


def test_held_out_loss_reads_every_item_once() -> None:
    task, examples = task_of("choice"), examples_of("choice")
    model = model_for("bert", task)
    losses = []
    for batch in (3, 8):
        stream = TaskStream(TaskEncoder.from_task(task, model).encode(examples), batch=batch, seed=batch)
        loss = compute_validation_loss(ModelWithLoss(model, model.spec), stream, len(stream.steps(0)), LOCAL_RANK)
        assert loss is not None
        losses.append(loss["loss"])
        assert loss["accuracy"] * 8 == pytest.approx(round(loss["accuracy"] * 8))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_tasks_that_are_written_are_mixed_in_one_stream() -> None:
    names: tuple[str, ...] = ("classification", "span", "generation")
    items_by_task = [
        TaskEncoder.from_task(task_of(kind), model_for("t5", task_of(kind))).encode(examples_of(kind)) for kind in names
    ]
    items = mix_items([items_by_task[0], items_by_task[1], items_by_task[2]])
    assert items.counts.examples == 24 and len(items) == 24
    model = model_for("t5", task_of("generation"))
    stream = TaskStream(items, batch=6, seed=0, mixing=SmoothedMixing(alpha=0.5))
    tasks = {number // 8 for step in stream.steps(0) for number in stream.examples(step)}
    assert tasks == {0, 1, 2}
    with torch.no_grad():
        assert torch.isfinite(model.spec.loss(model, stream[0]).mean())


def test_several_heads_on_one_body_all_learn() -> None:
    kinds: tuple[str, ...] = ("tagging", "span", "classification")
    tasks = [task_of(kind) for kind in kinds]
    base = deepcopy(body("bert"))
    model = adapt(base, MultiTask(tuple(build_head(task, base) for task in tasks)), seed=3)
    views = [select_head(model, number) for number in range(len(tasks))]
    encoders = [TaskEncoder.from_task(task, view, max_length=32) for task, view in zip(tasks, views, strict=True)]
    streams = [
        TaskStream(encoder.encode(examples_of(kind)), batch=8) for encoder, kind in zip(encoders, kinds, strict=True)
    ]
    stream = MultiTaskStream(streams, seed=1)
    work = ModelWithLoss(model, model.spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    initial_state = {name: value.clone() for name, value in model.state_dict().items()}
    batches = [stream[step] for step in range(60)]
    assert all(int(model.spec.counts(batch)["loss"]) > 0 for batch in batches)
    losses: dict[int, list[float]] = {}
    for batch, loss in zip(batches, take_steps(optimizer, lambda step: work(batches[step]).mean(), 60), strict=True):
        losses.setdefault(batch.task, []).append(loss)
    assert sorted(losses) == [0, 1, 2], losses
    assert all(min(losses[task][-5:]) < 0.9 * losses[task][0] for task in (0, 1)), losses
    outputs = [name for name in initial_state if "out" in name]
    assert not any(torch.equal(model.state_dict()[name], initial_state[name]) for name in outputs)
    for view, encoder, kind in zip(views, encoders, kinds, strict=True):
        assert len(predict(view, encoder, examples_of(kind))) == 8
    with pytest.raises(UsageError, match=r"\b3\b"):
        select_head(model, 3)


def test_a_model_may_write_one_task_and_have_a_head_for_another() -> None:
    tasks = [task_of("generation"), task_of("pair")]
    model = adapt(body("t5"), MultiTask(tuple(build_head(task, body("t5")) for task in tasks)))
    for number, task in enumerate(tasks):
        view = select_head(model, number)
        encoder = TaskEncoder.from_task(task, view, max_new_tokens=3)
        batch = MultiTaskStream([TaskStream(encoder.encode(examples_of(task.kind)), batch=8)] * 2)[0]
        with torch.no_grad():
            assert torch.isfinite(model.spec.loss(model, replace(batch, task=number)).mean())
        assert len(predict(view, encoder, examples_of(task.kind)[:2])) == 2


def test_tasks_come_in_turn_by_their_temperature() -> None:
    task = task_of("classification")
    encoder, examples = TaskEncoder.from_task(task, model_for("bert", task)), examples_of("classification")
    large, small = (TaskStream(encoder.encode(examples * times), batch=4, seed=times) for times in (16, 2))
    orders = {}
    for temperature in (1.0, 2.0, 1e9):
        stream = MultiTaskStream([large, small], temperature=temperature, seed=5)
        for epoch in (0, 4):
            locations = [stream.locate_step(step) for step in stream.steps(epoch)]
            orders[temperature] = Counter(number for number, _ in locations)
            for number in (0, 1):  # each goes on where it was
                task_steps = [step for task, step in locations if task == number]
                assert task_steps == list(range(epoch * len(task_steps), (epoch + 1) * len(task_steps)))
    assert orders[1.0] == {0: 32, 1: 4} and orders[1e9] == {0: 18, 1: 18} and 4 < orders[2.0][1] < 18
    copy = pickle.loads(pickle.dumps(stream))
    assert torch.equal(copy[50].tokens, stream[50].tokens) and copy[50].task == stream[50].task
    assert {stream.batch(3, part=part, parts=2).task for part in (0, 1)} == {stream[3].task}
