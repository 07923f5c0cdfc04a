"""A rank's share of a step: parts of every size add up to the whole, and one without examples changes nothing."""

from pathlib import Path

import pytest
import torch

from pretune.adaptation.adapted import ModelWithHead
from pretune.runs.finetune.adapted_model import TaskEncoders, build_adapted_model
from pretune.runs.finetune.task_data import open_task
from pretune.tasks.stream import MultiTaskStream, TaskStream
from pretune.training.distributed import Ranks
from tests.runs import tasked
from tests.runs.configs import build_finetune_config
from tests.selection import keep_quick

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def gradients(
    model: ModelWithHead, stream: TaskStream | MultiTaskStream, step: int, part: int, parts: int
) -> tuple[int, dict[str, torch.Tensor]]:
    """How many targets a part of a step has, and the gradients of its summed loss."""
    model.zero_grad()
    batch = stream.batch(step, part=part, parts=parts).to(model.model.tokens.weight.device)
    loss = model.spec.loss(model, batch)
    loss.normalize({name: torch.ones((), device=loss.sum.device) for name in loss.get_terms()}).backward()  # type: ignore[no-untyped-call]
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return int(loss.count), found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", keep_quick(["classes", "mean", "scores", "tags", "written"], "classes", "written"))
def test_shares_add_up(tmp_path: Path, kind: str, fixed: bool, device: str) -> None:
    more = {"text": "one", "pair": "two", "label": "score"} if kind == "scores" else {}
    base = tasked.make_base(tmp_path, dropout=0)
    if kind == "written":
        base = tasked.make_base(tmp_path / "t5", "t5-small", kind="unigram", style="sentinels", dropout=0)
    made = tasked.scores if kind == "scores" else tasked.tags if kind == "tags" else tasked.classes
    table = made(tmp_path / ("own.conll" if kind == "tags" else "own.csv"), 17)
    changes = {"train.batch": 4, "train.precision": "fp32", **({} if kind == "written" else {"tune.dropout": 0})}
    changes |= {"tune.pooling": {"mode": "mean"}} if kind == "mean" else {}
    tuning = build_finetune_config(base, train=table, overrides=changes, **more)
    opened = open_task(tuning.task)
    begun = build_adapted_model(tuning, opened.task, Ranks(torch.device(device)))
    reader = TaskEncoders.from_model(tuning, opened, begun.model, opened.parts.train)
    stream = reader.build_stream(reader.encode(opened.parts.train), tuning, fixed_shape=fixed)
    last = stream.steps(0)[-1]
    for step, parts in ((0, 3), (last, 3)):
        count, whole = gradients(begun.model, stream, step, 0, 1)
        shares = [gradients(begun.model, stream, step, part, parts) for part in range(parts)]
        assert sum(one for one, _ in shares) == count > 0
        for name, value in whole.items():
            summed = sum(found[name] for _, found in shares if name in found)
            assert isinstance(summed, torch.Tensor)
            torch.testing.assert_close(summed, value, rtol=1e-4, atol=1e-5, msg=name)
    assert 0 in [one for one, _ in shares]  # of the last step, which has fewer examples than parts
