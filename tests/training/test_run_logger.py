"""The books of a run: what is written when, what a resumed run keeps, and the sums at the end."""

import re
from pathlib import Path
from typing import Any

import pytest

from pretune.core.run_dir import RunDir
from pretune.training.batch_transfer import BatchStats
from pretune.training.config import TrainConfig
from pretune.training.cost import build_flops_counter
from pretune.training.progress import Progress
from pretune.training.run_logger import RunLogger, read_metrics
from tests.contracts.tiny import tiny
from tests.training.test_loop import Parts, looped, run


class Counted(Parts):
    """Batches that are counted, as a feed counts them."""

    stats = BatchStats()

    def __next__(self) -> Any:
        result = super().__next__()
        self.stats = BatchStats.from_batches(result)
        return result


def kept(where: Path, steps: int, *, done: Any = None, every: int = 1) -> tuple[RunLogger, Any]:
    """A loop with a journal, taken to a step; with `done` it goes on from there."""
    loop = looped(2)
    loop.batches = Counted(2)
    if done is not None:
        loop.state, loop.batches.step = done.state, done.state.step
        loop.module.load_state_dict(done.module.state_dict())
        loop.optimizer.load_state_dict(done.optimizer.state_dict())
    config = TrainConfig(lr=1e-2, log_every=every)
    journal = RunLogger(
        RunDir(where),
        loop,
        config,
        count_flops=build_flops_counter(tiny("gpt2")),
        progress=Progress("tiny", total=steps),
        is_resumed=done is not None,
    )
    loop.hooks = [journal]
    with journal:
        run(loop, steps)
        journal.flush(loop)
    return journal, loop


def steps_of(where: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_metrics(where)]


def test_lines(tmp_path: Path) -> None:
    _, loop = kept(tmp_path, 7, every=3)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [3, 6]
    assert [*lines[0]] == ["step", "loss", "norm", "rate", "tokens", "skipped", "seconds"]
    assert lines[0]["tokens"] < lines[1]["tokens"] < loop.state.tokens
    assert loop.state.metrics_bytes == (tmp_path / "metrics.jsonl").stat().st_size


def test_a_resumed_run_has_the_lines_of_one_that_was_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    kept(tmp_path / "a", 6)
    _, half = kept(tmp_path / "b", 3)
    with (tmp_path / "b/metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 1}\n{"step": 5, "lo')  # what a crash left behind the checkpoint
    kept(tmp_path / "b", 6, done=half)
    assert steps_of(tmp_path / "a") == steps_of(tmp_path / "b")


def test_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FLOPs and tokens are those of all processes; the table says what was held out."""
    _, half = kept(tmp_path, 3)
    previous = half.state.meter["flops"]
    journal, loop = kept(tmp_path, 6, done=half)
    loop.state.eval_metrics = {"loss": 2.0, "perplexity": 7.4, "accuracy": 0.5}
    capsys.readouterr()
    result = journal.summarize(loop)
    assert (
        result["cost"]["flops"] > 1.5 * previous > 0 and result["steps"] == 6 and result["held_out"]["accuracy"] == 0.5
    )
    messages = capsys.readouterr().err
    for name, value in (("loss", "2.0000"), ("perplexity", "7.4"), ("accuracy", "0.5"), ("steps", "6")):
        assert re.search(rf"{name} +{value}\n", messages)
