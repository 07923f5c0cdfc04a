"""metrics.jsonl through crashes and resumes; trackers that are there, and that are not."""

import errno
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import ResourceError, UsageError
from pretune.training.run_logger import MetricsLog, Trackers, read_metrics
from tests.selection import scale_examples

NAN, INF = float("nan"), float("inf")


def told(metrics: MetricsLog, steps: range) -> None:
    """As a run tells: a line a step, and another one every third."""
    for step in steps:
        metrics.write(step, {"loss": 1 / (step + 1)})
        if step % 3 == 0:
            metrics.write(step, {"held_out": step, "note": "ü"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of twelve steps without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    with MetricsLog(folder) as metrics:
        told(metrics, range(12))
    return (folder / "metrics.jsonl").read_bytes()


@settings(max_examples=scale_examples(60))
@given(data=st.data())
def test_a_resumed_file_is_that_of_a_run_without_interruption(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Killed at any byte, with a checkpoint at any step whose lines are all there."""
    folder = tmp_path_factory.mktemp("killed")
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    steps = [json.loads(line)["step"] for line in whole.splitlines()]
    cut = data.draw(st.integers(0, len(whole)))
    complete = [step for step in range(12) if cut >= max(e for e, s in zip(ends, steps, strict=True) if s == step)]
    later_value = data.draw(st.sampled_from([-1, *complete]))
    (folder / "metrics.jsonl").write_bytes(whole[:cut])
    with MetricsLog(folder, last_step=later_value) as metrics:
        told(metrics, range(later_value + 1, 12))
    assert (folder / "metrics.jsonl").read_bytes() == whole


def test_a_new_run_starts_afresh_and_a_lost_file_is_no_fault(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as metrics:
        told(metrics, range(5))
    with MetricsLog(tmp_path) as metrics:
        metrics.write(0, {"loss": 1.0})
        metrics.sync()
    assert read_metrics(tmp_path) == [{"step": 0, "loss": 1.0}]
    (tmp_path / "metrics.jsonl").unlink()
    MetricsLog(tmp_path, last_step=7).close()
    assert read_metrics(tmp_path) == []


def test_what_somebody_else_wrote_in_the_middle_stays(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nhello\n[1]\n{"step": 2}\n{"step": 3}\n{"step"')
    MetricsLog(tmp_path, last_step=2).close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\nhello\n[1]\n{"step": 2}\n'
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 2}]


def test_numbers_that_json_has_not_are_null_and_named(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as metrics:
        metrics.write(3, {"loss": NAN, "norm": -INF, "terms": {"a": 1.0, "b": INF}, "ok": False, "best": None})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=lambda name: pytest.fail(name)) == {
        "step": 3,
        "loss": None,
        "norm": None,
        "terms": {"a": 1.0, "b": None},
        "ok": False,
        "best": None,
        "nonfinite": ["loss", "norm", "terms.b"],
    }


@pytest.mark.parametrize("name", ["step", "nonfinite"])
def test_names_of_its_own(tmp_path: Path, name: str) -> None:
    with MetricsLog(tmp_path) as metrics, pytest.raises(UsageError, match=f"'{name}'"):
        metrics.write(0, {name: 1})


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with MetricsLog(tmp_path) as metrics:
        metrics.write(0, {"loss": 1.0})

        def half(file: int, data: bytes) -> int:
            if len(data) < 10:
                raise OSError(errno.ENOSPC, "full")
            return real(file, data[:-5])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(ResourceError, match=r"metrics\.jsonl"):
                metrics.write(1, {"loss": 2.0})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "loss": 1.0}\n'
        metrics.write(1, {"loss": 2.0})
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent/metrics\.jsonl"):
        MetricsLog(tmp_path / "absent")


@pytest.mark.parametrize("after", [None, 0])
def test_a_link_in_its_place_is_not_followed(tmp_path: Path, after: int | None) -> None:
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path, last_step=after)
    assert (tmp_path / "precious").read_text() == "keep"


class TestTrackers:
    @pytest.mark.parametrize("name", ["tensorboard", "wandb"])
    def test_a_missing_package_names_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        with pytest.raises(UsageError, match=rf"'{name}'.*pretune\[trackers\]"):
            Trackers([name], tmp_path)

    def test_an_unknown_one(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"'tensorbord'.*tensorboard, wandb.*'tensorboard'"):
            Trackers(["tensorbord"], tmp_path)

    def test_finite_numbers_go_to_an_offline_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        output: list[Any] = []

        class Run:
            def log(self, values: dict[str, float], step: int) -> None:
                output.append((step, values))

            def finish(self) -> None:
                output.append("end")

        fake: Any = ModuleType("wandb")
        fake.Settings = dict
        fake.init = lambda **options: output.append(options) or Run()
        monkeypatch.setitem(sys.modules, "wandb", fake)
        trackers = Trackers(["wandb", "wandb"], tmp_path / "run", config={"lr": 1})
        trackers.log(4, {"loss": 2.0, "norm": INF, "best": None})
        trackers.close()
        options, *rest = output
        assert (options["mode"], options["dir"], options["name"]) == ("offline", str(tmp_path / "run"), "run")
        assert rest == [(4, {"loss": 2.0}), "end"]

    def test_tensorboard_hides_what_is_taken_again(self, tmp_path: Path) -> None:
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        for start in (0, 3):
            trackers = Trackers(["tensorboard"], tmp_path, start=start)
            for step in range(start, 5):
                trackers.log(step, {"loss": step + start})
            trackers.close()
        events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("loss")] == [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 6),
            (4, 7),
        ]

    def test_none_at_all(self, tmp_path: Path) -> None:
        trackers = Trackers([], tmp_path)
        trackers.log(1, {"loss": 1.0})
        trackers.close()
        assert list(tmp_path.iterdir()) == []
