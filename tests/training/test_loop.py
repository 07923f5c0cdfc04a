"""The loop: the same as plain torch, whatever the micro-batches; it skips, halves, and counts."""

import copy
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.core.errors import DivergedError, ResourceError
from pretune.core.types import Batch, Loss
from pretune.objectives import build_objective as objective
from pretune.training.distributed import Ranks
from pretune.training.loop import MAX_SKIPPED_STEPS, DivergenceGuard, Loop
from pretune.training.optim import AdamW, build_parameter_groups
from pretune.training.step import ModelWithLoss, StepMetrics, TrainState
from tests.contracts.tiny import VOCAB, tiny

CPU = Ranks(torch.device("cpu"))


def sequences(step: int, count: int = 8) -> list[list[int]]:
    """Sequences of unequal lengths, by the step."""
    make = torch.Generator().manual_seed(step)
    lengths = torch.randint(2, 12, (count,), generator=make).tolist()
    return [torch.randint(5, VOCAB, (n,), generator=make).tolist() for n in lengths]


def causal_batch(given: list[list[int]]) -> Batch:
    return pt.batch(given, row=16, labels=[[*item[1:], -100] for item in given])


class Parts:
    """Eight sequences a step, in so many micro-batches."""

    def __init__(self, micro: int) -> None:
        self.micro, self.step, self.wait_seconds = micro, 0, 0.0

    def __next__(self) -> list[Batch]:
        given, size = sequences(self.step), 8 // self.micro
        self.step += 1
        return [causal_batch(given[i : i + size]) for i in range(0, 8, size)]

    def split(self, micro: int) -> None:
        self.micro, self.step = micro, self.step - 1


def looped(micro: int = 1, *, work: Any = None, hooks: Sequence[Any] = (), **options: Any) -> Loop:
    """A loop over a tiny decoder without dropout.

    NOTE: some gradients (that of a bias of keys) are zero but for rounding, which a small eps would blow up.
    """
    model = pt.build(tiny("gpt2"), seed=1)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    loop = Loop(
        module=ModelWithLoss(model, work or objective("causal")).eval(),
        optimizer=AdamW(lr=1e-2, eps=1e-4).build(build_parameter_groups(model)),
        state=TrainState(),
        ranks=CPU,
        lr_factor=lambda state: 1.0,
        hooks=hooks,
        **options,
    )
    loop.batches = Parts(micro)
    return loop


def run(loop: Loop, steps: int = 5) -> None:
    """Train until a step."""
    loop.run(loop.batches, lambda state: state.step >= steps)


class Told:
    """Keeps what hooks are told."""

    def __init__(self) -> None:
        self.reports: list[StepMetrics] = []

    def __call__(self, loop: Loop, reports: Sequence[StepMetrics]) -> None:
        self.reports += reports


def weights(loop: Loop) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in loop.module.model.named_parameters()}


def assert_same_weights(loop: Loop, baseline: Loop, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    for name, value in weights(baseline).items():
        torch.testing.assert_close(weights(loop)[name], value, rtol=rtol, atol=atol, msg=name)


def test_the_same_as_plain_torch() -> None:
    loop = looped(clip=0.5)
    model = copy.deepcopy(loop.module.model)
    exempt = {id(p) for group in loop.optimizer.param_groups if not group["weight_decay"] for p in group["params"]}
    decayed = [
        q for q, p in zip(model.parameters(), loop.module.model.parameters(), strict=True) if id(p) not in exempt
    ]
    rest = [q for q in model.parameters() if all(q is not p for p in decayed)]
    baseline = torch.optim.AdamW(
        [{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=1e-2, weight_decay=0.01, eps=1e-4
    )
    messages = Told()
    loop.hooks = [messages]
    run(loop)
    for step in range(5):
        batch = causal_batch(sequences(step))
        logits = model(batch).logits
        loss = nn.functional.cross_entropy(logits, batch.targets.labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        baseline.step()
        baseline.zero_grad()
        assert messages.reports[step].loss == pytest.approx(loss.item(), rel=1e-5)
        assert messages.reports[step].norm == pytest.approx(norm.item(), rel=1e-4)
        assert messages.reports[step].tokens == sum(map(len, sequences(step)))
    for (name, mine), theirs in zip(weights(loop).items(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("micro", [2, 4, 8])
def test_micro_batches_do_not_change_what_is_learnt(micro: int) -> None:
    item, several = looped(1), looped(micro)
    run(item)
    run(several)
    assert item.state.tokens == several.state.tokens == sum(sum(map(len, sequences(step))) for step in range(5))
    assert_same_weights(several, item, rtol=1e-4, atol=1e-5)


class Wrapped:
    """The causal objective, for a loss that is another."""

    def __init__(self) -> None:
        self.inner, self.step = objective("causal"), 0

    def counts(self, batch: Batch) -> Any:
        return self.inner.counts(batch)


class Poisoned(Wrapped):
    """An objective whose loss is not finite at some steps."""

    def __init__(self, bad: Callable[[int], bool], value: float = math.nan) -> None:
        super().__init__()
        self.bad, self.value = bad, value

    def loss(self, model: Any, batch: Batch) -> Loss:
        result = self.inner.loss(model, batch)
        self.step += 1
        if not self.bad(self.step - 1):
            return result
        return Loss(sum=result.sum * self.value, count=result.count)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_is_skipped_and_counted(value: float) -> None:
    heard: list[str] = []
    loop = looped(
        work=Poisoned(lambda step: step == 2, value),
        hooks=[DivergenceGuard(heard.append, lambda step: [7, 8])],
    )
    run(loop)
    assert loop.state.skipped_steps == 1 and loop.state.consecutive_skips == 0
    assert all(value.isfinite().all() for value in weights(loop).values())
    assert len(heard) == 1 and heard[0].startswith("step 2: ") and heard[0].endswith("samples 7, 8")
    # The weights are those of a run that never saw that step.
    other = looped()
    other.batches = Without(2)
    run(other, 4)
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(loop).items())


class Without(Parts):
    """The same steps but one."""

    def __init__(self, left_out: int) -> None:
        super().__init__(1)
        self.left_out = left_out

    def __next__(self) -> list[Batch]:
        if self.step == self.left_out:
            self.step += 1
        return super().__next__()


def test_a_weight_that_is_not_finite_ends_the_run() -> None:
    loop = looped(hooks=[DivergenceGuard(lambda text: None)])
    with torch.no_grad():
        next(loop.module.model.parameters())[:] = math.nan
    with pytest.raises(DivergedError, match=rf"\b{MAX_SKIPPED_STEPS}\b"):
        run(loop, 100)
    assert loop.state.step == MAX_SKIPPED_STEPS


class Full(Wrapped):
    """A device whose memory holds micro-batches of so many sequences."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def loss(self, model: Any, batch: Batch) -> Loss:
        if batch.rows > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return self.inner.loss(model, batch)


def test_out_of_memory_halves_the_micro_batch_and_nothing_else() -> None:
    calm, tight = looped(), looped(work=Full(2))
    run(calm, 3)
    run(tight, 3)
    assert tight.state.micro > 1 and tight.state.min_micro == tight.state.micro
    assert tight.state.tokens == calm.state.tokens
    assert_same_weights(tight, calm, rtol=1e-4, atol=1e-5)


def test_out_of_memory_with_one_row_is_told() -> None:
    with pytest.raises(ResourceError, match=r"\b1 x 16\b.*train\.batch_tokens"):
        run(looped(work=Full(0)), 3)


def test_a_leap_of_the_loss_is_flagged() -> None:
    heard: list[str] = []
    watch = DivergenceGuard(heard.append, lambda step: list(range(20)))
    loop = looped(work=Poisoned(lambda step: step == 30, 50.0), hooks=[watch])
    loop.optimizer.param_groups[0]["peak"] = loop.optimizer.param_groups[1]["peak"] = 1e-5
    run(loop, 40)
    assert watch.spikes == [30] and len(heard) == 1
    assert re.search(r"step 30\b.*6, 7\b.*\b12\b", heard[0])


def test_dropout_is_a_function_of_the_step() -> None:
    losses = []
    for start_time in (0, 2):
        loop = looped()
        loop.module.train()
        for part in loop.module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.5
        loop.lr_factor = lambda state: 0.0
        messages = Told()
        loop.hooks = [messages]
        loop.state.step = loop.batches.step = start_time
        run(loop, 4)
        losses.append([report.loss for report in messages.reports])
    assert losses[0][2:] == losses[1] and len({*losses[0]}) == 4
