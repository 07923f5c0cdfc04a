"""Several tasks in one run: how often each is read follows from the temperature that was set."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from pretune.runs.finetune.adapted_model import TaskEncoders, build_adapted_model
from pretune.runs.finetune.task_data import open_task
from pretune.tasks.stream import MultiTaskStream, TaskStream
from pretune.training.distributed import Ranks
from tests.runs import tasked
from tests.runs.configs import build_finetune_config
from tests.runs.test_finetune_shapes import two_tasks

SIZES = (160, 32)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoLA with 160 examples and SST-2 with 32."""
    home = tmp_path_factory.mktemp("two")
    two_tasks(home, SIZES)
    return home


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("writer"), "t5-small", kind="unigram", style="sentinels")


def shares(base: Path, data: Path, temperature: float) -> list[float]:
    """How much of an epoch is of each task."""
    changes = {"tune.temperature": temperature, "train.batch": 8}
    tuning = build_finetune_config(base, task="cola,sst2", data=data, overrides=changes)
    opened = open_task(tuning.task)
    made = build_adapted_model(tuning, opened.task, Ranks(torch.device("cpu")))
    reader = TaskEncoders.from_model(tuning, opened, made.model, opened.parts.train)
    stream = reader.build_stream(reader.encode(opened.parts.train), tuning)
    counts: Counter[int] = Counter()
    for step in stream.steps(0):
        if isinstance(stream, MultiTaskStream):
            counts[stream.locate_step(step)[0]] += 1
        else:
            assert isinstance(stream, TaskStream)
            counts.update(int(number >= SIZES[0]) for number in stream.examples(step))
    return [counts[task] / counts.total() for task in (0, 1)]


@pytest.mark.parametrize("shape", ["heads", "words"])
def test_small_tasks_come_more_often_the_higher_it_is(shape: str, base: Path, writer: Path, data: Path) -> None:
    model = base if shape == "heads" else writer
    by_size, some, even = (shares(model, data, temperature) for temperature in (1.0, 2.0, 1e6))
    assert by_size == pytest.approx([5 / 6, 1 / 6], abs=0.02)
    root = 5**0.5
    assert some == pytest.approx([root / (1 + root), 1 / (1 + root)], abs=0.03)
    assert even == pytest.approx([0.5, 0.5], abs=0.02)
