"""Recorded passes: the same run as without them; other forms, weights and frozen weights are recorded apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import pretune as pt
from pretune.core.types import Batch, Loss
from pretune.training import cuda_graph as replaying
from pretune.training.cuda_graph import MAX_GRAPHS, WARMUP_STEPS, CudaGraphRunner
from tests.training.test_loop import assert_same_weights, causal_batch, looped
from tests.training.test_loop import run as train

Pass = Callable[[], Loss]


class Taped:
    """Records as a graph does: what is run again writes to the tensors of the first time, and reads its inputs."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.made, self.played = parameters, 0, 0

    def __call__(self, run: Pass) -> tuple[Callable[[], None], Loss]:
        self.made += 1
        first = run()
        slopes = [(p, p.grad) for p in self.parameters if p.grad is not None]

        def again() -> None:
            self.played += 1
            for parameter in self.parameters:
                parameter.grad = None
            result = run()
            first.sum.copy_(result.sum)
            first.count.copy_(result.count)
            for parameter, slope in slopes:
                assert parameter.grad is not None
                slope.copy_(parameter.grad)
                parameter.grad = None

        return again, first


def taped(loop: Any) -> Taped:
    tape = Taped(list(loop.module.parameters()))
    loop.graph_runner = CudaGraphRunner(loop.module, tape)
    return tape


class Alike:
    """Batches of one form: eight sequences of six tokens."""

    def __init__(self, micro: int = 1, odd: tuple[int, ...] = ()) -> None:
        self.step, self.wait_seconds, self.odd, self.micro = 0, 0.0, odd, micro

    def __next__(self) -> list[Batch]:
        self.step += 1
        make = torch.Generator().manual_seed(self.step)
        size = 4 if self.step in self.odd else 8
        given = torch.randint(5, 60, (size, 6), generator=make).tolist()
        each = size // self.micro
        return [causal_batch(given[i : i + each]) for i in range(0, size, each)]


def run(steps: int, *, replay: bool, **options: Any) -> tuple[Any, Taped | None]:
    loop = looped()
    loop.batches = Alike(**options)
    tape = taped(loop) if replay else None
    train(loop, steps)
    return loop, tape


@pytest.mark.parametrize("odd", [(), (5, 8)])
def test_a_run_ends_with_the_same_weights_and_a_form_that_is_rare_is_not_recorded(odd: tuple[int, ...]) -> None:
    baseline, _ = run(10, replay=False, odd=odd)
    loop, tape = run(10, replay=True, odd=odd)
    assert tape is not None
    assert (tape.made, tape.played) == (1, 10 - WARMUP_STEPS - len(odd))
    assert loop.state.tokens == baseline.state.tokens
    assert_same_weights(loop, baseline)


def test_several_micro_batches_are_not_replayed() -> None:
    _, tape = run(8, replay=True, micro=2)
    assert tape is not None
    assert tape.made == 0


@pytest.mark.parametrize("change", ["frozen", "moved"])
def test_other_weights_are_recorded_apart(change: str) -> None:
    def changed(loop: Any, reports: Any) -> None:
        if loop.state.step == 6:
            weight = loop.module.model.tokens.weight
            if change == "frozen":
                weight.requires_grad_(False)
            else:
                weight.data = weight.data.clone()

    ends = []
    for replay in (False, True):
        loop = looped(hooks=[changed])
        loop.batches = Alike()
        tape = taped(loop) if replay else None
        train(loop, 14)
        ends.append(loop)
    assert tape is not None
    assert tape.made == 2
    assert_same_weights(ends[1], ends[0])


def test_only_so_many_are_kept() -> None:
    loop = looped()
    tape = taped(loop)
    assert loop.graph_runner is not None
    messages = {"loss": torch.tensor(8.0)}
    for size in range(1, MAX_GRAPHS + 3):
        for _ in range(WARMUP_STEPS + 2):
            loop.graph_runner(loop._forward_backward, causal_batch([[7] * 5] * size), messages)
            replaying.clear_gradients(loop.module.parameters())
    assert tape.made == MAX_GRAPHS + 2
    assert len(loop.graph_runner._recordings) == MAX_GRAPHS


def test_forms_that_come_in_turn_are_recorded_once_each() -> None:
    """Of more forms than are kept the first ones are replayed, and the rest is run; none is recorded twice."""
    loop = looped()
    tape = taped(loop)
    assert loop.graph_runner is not None
    turns, messages = 12, {"loss": torch.tensor(8.0)}
    for _ in range(turns):
        for task in range(MAX_GRAPHS + 2):
            loop.graph_runner(loop._forward_backward, replace(causal_batch([[7] * 5] * 2), task=task), messages)
            replaying.clear_gradients(loop.module.parameters())
    assert tape.made == MAX_GRAPHS and tape.played == MAX_GRAPHS * (turns - WARMUP_STEPS)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("operation not permitted\nwhen a stream is capturing"), "operation not permitted"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_what_cannot_be_recorded_goes_on_as_before(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(given: Pass) -> tuple[Callable[[], None], Loss]:
        given()
        raise error

    baseline, _ = run(8, replay=False)
    loop = looped()
    loop.batches, loop.graph_runner = Alike(), CudaGraphRunner(loop.module, refuses)
    train(loop, 8)
    assert_same_weights(loop, baseline)
    assert capsys.readouterr().err.count(said) == 1


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LESSONS = {
    "bert-tiny": "masked",
    "gpt2": "causal",
    "t5": "span_corruption",
    "electra": "replaced_token",
    "bart": "denoising",
    "xlnet": "permuted",
}


def trained(folder: Any, model: str, objective: str, data: Any, **changes: Any) -> list[float]:
    import json

    small = {"model.width": 128, "model.depth": 2, "model.heads": 2, "data.max_length": 64}
    settings = {"train.log_every": 1, "train.batch_tokens": 1024, "train.eval_tokens": 0, "train.lr": 1e-3}
    out = folder / f"{model}-{changes.get('train.cuda_graphs')}-{changes.get('train.compile')}"
    pt.pretrain(model, data=data, objective=objective, steps=12, out=out, overrides={**small, **settings, **changes})
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "norm" in row]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("text")
    words = [f"w{number * number % 997}" for number in range(30_000)]
    lines = [" ".join(words[index : index + 40]) + "." for index in range(0, len(words), 40)]
    (folder / "a.txt").write_text("\n\n".join(lines))
    return folder


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("model", "objective"), LESSONS.items())
def test_on_a_gpu_losses_are_those_of_single_kernels(
    tmp_path: Any, text: Any, model: str, objective: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings: list[Any] = []
    record = CudaGraphRunner._record_pass

    def spy(*arguments: Any) -> Any:
        recordings.append(record(*arguments))
        return recordings[-1]

    monkeypatch.setattr(CudaGraphRunner, "_record_pass", spy)
    style = {"gpt2": ("bpe", "endoftext"), "t5": ("unigram", "sentinels"), "bart": ("bpe", "s-mask")}
    kind, form = style.get(model, ("wordpiece", "cls-sep"))
    tokenizer = pt.train_tokenizer(kind, [text], vocab=600, style=form)
    data = pt.prepare([text], tokenizer=tokenizer, out=tmp_path / "data")
    result = {
        graphs: trained(tmp_path, model, objective, data, **{"train.cuda_graphs": graphs, "train.compile": compiled})
        for graphs in (False, True)
    }
    assert None not in recordings
    assert result[True] == pytest.approx(result[False], rel=2e-3)
    # NOTE: compiled, rows of a table add up their gradients with atomics, in any order, unless train.deterministic.
    assert result[True][:WARMUP_STEPS] == (
        pytest.approx(result[False][:WARMUP_STEPS], rel=1e-5) if compiled else result[False][:WARMUP_STEPS]
    )


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize(("model", "compiled"), [("electra", True), ("electra", False), ("bert-tiny", True)])
def test_on_a_gpu_deterministic_runs_are_bit_equal(tmp_path: Any, text: Any, model: str, compiled: bool) -> None:
    tokenizer = pt.train_tokenizer("wordpiece", [text], vocab=600, style="cls-sep")
    data = pt.prepare([text], tokenizer=tokenizer, out=tmp_path / "data")
    changes = {"train.compile": compiled, "train.deterministic": True}
    losses = [trained(tmp_path / str(number), model, LESSONS[model], data, **changes) for number in range(3)]
    assert losses[0] == losses[1] == losses[2]


@cuda
@pytest.mark.gpu
def test_on_a_gpu_a_failed_recording_leaves_training_sound(capsys: pytest.CaptureFixture[str]) -> None:
    device = torch.device("cuda", 0)

    def pass_of(batch: Batch, told: Any) -> Loss:
        dropped = nn.functional.dropout(layer(batch.tokens.float().view(1, -1)), 0.5)
        float(dropped.sum())  # waits, which a recording cannot
        loss = Loss(sum=dropped.sum(), count=torch.ones((), device=device))
        loss.normalize(told).backward()
        return loss.detach()

    batch = causal_batch([[7] * 16]).to(device)
    layer = nn.Linear(16, 4, device=device)
    replay = CudaGraphRunner(layer)
    for step in range(WARMUP_STEPS + 3):
        torch.cuda.manual_seed(step)
        loss = replay(pass_of, batch, {"loss": torch.ones((), device=device)})
        assert torch.isfinite(loss.sum)
        assert layer.weight.grad is not None
        replaying.clear_gradients(layer.parameters())
    assert replay._is_disabled and "warning" in capsys.readouterr().err
