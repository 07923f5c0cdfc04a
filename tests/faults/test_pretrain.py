"""A run of `pretune pretrain` under every fault (R1, R2, R4 to R6, R8): nothing is lost, and the result is the same."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.runs import (
    ALONE,
    ENVIRONMENT,
    STEPS,
    Child,
    Nursery,
    arguments,
    made_data,
    metrics,
    resume,
    same,
    steps_of,
)
from tests.selection import keep_quick


def begun(runs: Nursery, data: Path, out: Path, step: int) -> Path:
    """A run that was killed in the middle of a step."""
    runs.run(arguments(data, out, *ALONE), ["killed_after_saving", step], code=-signal.SIGKILL)
    return out


@pytest.fixture(scope="module")
def killed(runs: Nursery, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """… not to be changed; it has the checkpoints of steps 4 and 6."""
    out = begun(runs, data, tmp_path_factory.mktemp("killed") / "run", 7)
    assert steps_of(out)[-2:] == ["step-00000004", "step-00000006"]
    return out


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    """… to be changed."""
    return Path(shutil.copytree(killed, tmp_path / "run"))


def finished(runs: Nursery, out: Path, *more: str) -> Child:
    return runs.run(resume(out, *more))


class TestKilled:
    """R1: kill -9."""

    def again(self, data: Path, out: Path) -> list[str]:
        """The same command, or --resume where there is something to resume."""
        return resume(out) if steps_of(out) else arguments(data, out, *ALONE)

    def kills(self, runs: Nursery, data: Path, straight: Path, folder: Path, count: int, seed: int) -> int:
        """So many kills at random instants, in run after run until each is done; how many runs that took."""
        rng, done, out, patience = random.Random(seed), 0, folder / "0", 4.0
        while count:
            begun = time.monotonic()
            child = runs.start(self.again(data, out))
            if not child.done(rng.uniform(0.0, patience)):
                child.kill()
                count -= 1
            if child.wait() == 0:
                patience = min(patience, time.monotonic() - begun)
                assert same(out, straight)
                done += 1
                out = folder / str(done)
            else:
                assert child.code == -signal.SIGKILL, child.errors()
        runs.run(self.again(data, out))
        assert same(out, straight)
        return done + 1

    def test_at_two_instants(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path) -> None:
        self.kills(runs, data, straight, tmp_path, 2, seed=5)

    @pytest.mark.slow
    def test_at_fifty_instants(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path) -> None:
        self.kills(runs, data, straight, tmp_path, 50, seed=50)

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", range(1, 300, 11))
    def test_between_what_it_asks_of_the_disk(
        self, runs: Nursery, data: Path, straight: Path, tmp_path: Path, moment: int
    ) -> None:
        out = tmp_path / "run"
        child = runs.start(arguments(data, out, *ALONE), ["dies_at_call", moment])
        if child.wait() == 0:
            assert moment > 100, f"a whole run asked for less than {moment} things"
            pytest.skip(f"it asks for less than {moment} things")
        runs.run(self.again(data, out))
        assert same(out, straight)

    @pytest.mark.parametrize(
        "moment", [pytest.param(4, marks=pytest.mark.slow), 12, pytest.param(24, marks=pytest.mark.slow)]
    )
    def test_before_the_first_checkpoint_it_starts_again(
        self, runs: Nursery, data: Path, straight: Path, tmp_path: Path, moment: int
    ) -> None:
        out = tmp_path / "run"
        runs.run(arguments(data, out, *ALONE), ["dies_at_call", moment], code=-signal.SIGKILL)
        assert not steps_of(out)
        if (out / "run.json").exists():
            runs.run(resume(out))
        else:
            child = runs.run(resume(out), code=4)
            assert child.line.startswith("pretune: error: ") and "--resume" in child.line
            runs.run([*arguments(data, out, *ALONE), "--resume"])
        assert same(out, straight)

    def test_what_is_done_stays_as_it_is(self, runs: Nursery, straight: Path, tmp_path: Path) -> None:
        out = Path(shutil.copytree(straight, tmp_path / "run"))
        finished(runs, out)
        assert same(out, straight)

    @pytest.mark.slow
    def test_data_workers_do_not_outlive_a_run(self, runs: Nursery, data: Path, tmp_path: Path) -> None:
        child = runs.start(arguments(data, tmp_path / "run", *ALONE, train__workers=2), ["stops_at", 2])
        wait_for(lambda: stopped(child), child)
        workers = child.children()
        assert len(workers) >= 3  # itself and two more
        child.kill()
        child.wait()
        wait_for(lambda: not child.children(), child)


def stopped(child: Child) -> bool:
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2][0] == "T"


def wait_for(true: Callable[[], bool], child: Child, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, child.errors()
        time.sleep(0.02)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


FILES = ("MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json")
DAMAGES = [(name, damage) for name in FILES for damage in (truncate, flip, Path.unlink)]
QUICK = DAMAGES[::4]


class TestDamaged:
    """R2: the newest checkpoint is not what was written."""

    @pytest.mark.parametrize(
        ("name", "damage"),
        [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in DAMAGES],
    )
    def test_the_one_before_is_taken(
        self, runs: Nursery, straight: Path, copy: Path, name: str, damage: Callable[[Path], None]
    ) -> None:
        damage(copy / "checkpoints/step-00000006" / name)
        child = finished(runs, copy)
        damaged = f"{copy}/checkpoints/step-00000006"
        assert any(damaged in line and name in line for line in child.errors().splitlines())
        assert same(copy, straight)

    def test_when_none_is_whole_that_is_told(self, runs: Nursery, copy: Path) -> None:
        for name in steps_of(copy):
            flip(copy / "checkpoints" / name / "model.safetensors")
        child = runs.run(resume(copy), code=4)
        assert "step-00000006/model.safetensors" in child.line

    def test_metrics_that_are_torn_are_put_right(self, runs: Nursery, straight: Path, copy: Path) -> None:
        with (copy / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 7, "lo')
        finished(runs, copy)
        assert same(copy, straight)


class TestChanged:
    """R4: something is not what it was; refused before anything is computed."""

    def refused(self, runs: Nursery, out: Path, *more: str, code: int = 4) -> str:
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
        child = runs.run(resume(out, *more), code=code)
        assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
        assert child.errors().count("pretune: error: ") == 1, child.errors()
        return child.line

    def test_the_corpus(self, runs: Nursery, data: Path, tmp_path: Path) -> None:
        mine = Path(shutil.copytree(data.parent, tmp_path / "mine")) / "data"
        out = begun(runs, mine, tmp_path / "run", 3)
        shutil.rmtree(mine)
        made_data(mine.parent, first=1, tokenizer=False)
        assert f"{mine}: " in self.refused(runs, out)

    @pytest.mark.parametrize(("kind", "style"), [("bpe", "cls-sep"), ("bpe", "endoftext")])
    def test_the_tokenizer(self, runs: Nursery, data: Path, tmp_path: Path, kind: str, style: str, copy: Path) -> None:
        other = made_data(tmp_path / "other", kind=kind, style=style)
        line = self.refused(runs, copy, f"--data={other}")
        assert f"{other}: " in line and "tokenizer" in line

    def test_data_that_moved_is_the_same_data(
        self, runs: Nursery, data: Path, straight: Path, copy: Path, tmp_path: Path
    ) -> None:
        finished(runs, copy, f"--data={shutil.copytree(data, tmp_path / 'moved')}")
        assert same(copy, straight)

    @pytest.mark.slow
    def test_a_checkpoint_of_another_shape(self, runs: Nursery, data: Path, copy: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        runs.run(arguments(data, other, *ALONE, model__hidden=40), ["killed_after_saving", 7], code=-signal.SIGKILL)
        shutil.rmtree(copy / "checkpoints")
        shutil.copytree(other / "checkpoints", copy / "checkpoints")
        assert re.search(r"step-00000006: .*\bconfig\b", self.refused(runs, copy))

    @pytest.mark.parametrize(
        ("more", "told"),
        [
            (("--set=train.lr=0.5",), r"train\.lr\b.*\b0\.5\b"),
            (("--steps=40",), r"train\.steps\b.*\b10\b.*\b40\b"),
            (("--objective=span_masked",), r"objective\.kind\b.*\bmasked\b.*\bspan_masked\b"),
            (("--set=model.encoder.depth=3",), r"model\.encoder\.depth\b.*\b2\b.*\b3\b"),
            (("--set=data.max_length=16",), r"data\.max_length\b.*\b32\b.*\b16\b"),
        ],
    )
    def test_settings(self, runs: Nursery, copy: Path, more: tuple[str, ...], told: str) -> None:
        assert re.search(told, self.refused(runs, copy, *more))

    def test_the_same_command_again_with_resume(self, runs: Nursery, data: Path, straight: Path, copy: Path) -> None:
        runs.run([*arguments(data, copy, *ALONE), "--resume"])
        assert same(copy, straight)

    def test_another_command_with_resume(self, runs: Nursery, data: Path, copy: Path) -> None:
        child = runs.run([*arguments(data, copy, *ALONE, model__hidden=40), "--resume"], code=4)
        assert re.search(r"\bmodel\..*\bhidden\b.*\b48\b.*\b40\b", child.line)

    def test_what_changes_nothing_may_change(self, runs: Nursery, straight: Path, copy: Path) -> None:
        finished(runs, copy, "--set=train.checkpoint_every=3", "--set=train.max_checkpoints=4")
        assert same(copy, straight)
        assert len(steps_of(copy)) == 4

    def test_a_run_that_is_there_is_not_begun_again(self, runs: Nursery, data: Path, copy: Path) -> None:
        child = runs.run(arguments(data, copy, *ALONE), code=2)
        assert str(copy) in child.line and "--resume" in child.line


class TestDisk:
    """R5."""

    @pytest.mark.slow
    @pytest.mark.parametrize("step", [-1, 4, STEPS - 1])
    def test_full(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path, step: int) -> None:
        """From the start, while it runs, and at the very end."""
        out = tmp_path / "run"
        child = runs.run(arguments(data, out, *ALONE), ["no_room", step, 50_000], code=6)
        assert child.line.startswith("pretune: error: ") and str(out) in child.line
        assert step != 4 or steps_of(out)[-1] == "step-00000004"
        runs.run(arguments(data, out, *ALONE) if step < 0 else resume(out))
        assert same(out, straight)

    def test_not_writable(self, runs: Nursery, data: Path) -> None:
        child = runs.run(arguments(data, Path("/sys/run"), *ALONE), code=6)
        assert "'/sys/run" in child.line

    def test_a_file_in_its_place(self, runs: Nursery, data: Path, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("something")
        assert str(tmp_path / "run") in runs.run(arguments(data, tmp_path / "run", *ALONE), code=2).line

    @pytest.mark.slow
    def test_two_runs_in_one_place(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        first = runs.start(arguments(data, out, *ALONE), ["stops_at", 2])
        wait_for(lambda: stopped(first), first)
        assert "--resume" in runs.run(arguments(data, out, *ALONE), code=2).line
        second = runs.run(resume(out), code=2)
        assert f"pid {first.pid} " in second.line
        first.kill(signal.SIGCONT)
        assert first.wait() == 0
        assert same(out, straight)

    def test_a_stale_lock(self, runs: Nursery, straight: Path, copy: Path) -> None:
        holder = json.loads((copy / ".lock").read_text())["pid"]  # the run was killed
        assert f"pid {holder} " in finished(runs, copy).errors()
        assert same(copy, straight) and not (copy / ".lock").exists()


class TestNotFinite:
    """R6; the loop's own tests have more of it."""

    @pytest.mark.parametrize("value", ["nan", pytest.param("inf", marks=pytest.mark.slow)])
    def test_one_is_skipped(self, runs: Nursery, data: Path, tmp_path: Path, value: str) -> None:
        child = runs.run(arguments(data, tmp_path / "run", *ALONE), ["not_finite", 5, 5, value])  # the third step's
        assert re.search(r"step 2: .*\d", child.errors())  # with its samples
        lines = [line for line in metrics(tmp_path / "run") if "skipped" in line]
        assert [line["step"] for line in lines if line["skipped"]] == [3]
        assert lines[2]["loss"] is None and lines[2]["nonfinite"] == ["loss", "norm"]
        assert all(isinstance(line["loss"], float) for line in lines if not line["skipped"])

    @pytest.mark.slow
    def test_twenty_in_a_row_end_it(self, runs: Nursery, data: Path, tmp_path: Path) -> None:
        command = arguments(data, tmp_path / "run", "--objective=masked", "--steps=40", train__eval_tokens=0)
        child = runs.run(command, ["not_finite", 6, 10_000], code=5)
        assert re.search(r"\b20\b.*\b22\b", child.line)


MOMENTS: dict[str, tuple[list[object], int]] = {
    "in a step": (["signalled", 6, "SIGTERM"], 7),
    "in a step, by Ctrl-C": (["signalled", 6, "SIGINT"], 7),
    "in the first evaluation": (["signalled_while_judging", 1, "SIGTERM"], 0),
    "in an evaluation": (["signalled_while_judging", 2, "SIGTERM"], 5),
    "in the last evaluation": (["signalled_while_judging", 3, "SIGTERM"], STEPS),
    "in the first save": (["signalled_while_saving", 0, "SIGTERM"], 1),
    "in a save": (["signalled_while_saving", 4, "SIGTERM"], 4),
}
"""When a run is asked to stop, and the step after which it saves."""


class TestSignals:
    """R8."""

    @pytest.mark.parametrize("moment", keep_quick(MOMENTS, "in a step", "in an evaluation"))
    def test_it_saves_after_a_step(
        self, runs: Nursery, data: Path, straight: Path, tmp_path: Path, moment: str
    ) -> None:
        """An evaluation is left, and made later."""
        out, (hook, step) = tmp_path / "run", MOMENTS[moment]
        child = runs.run(arguments(data, out, *ALONE), hook, code=130 if "SIGINT" in hook else 75)
        assert steps_of(out)[-1] == f"step-{step:08}"
        assert re.search(rf"\bstep {step}\b", child.line)
        assert f"`pretune pretrain --out {out} --resume`" in child.line
        assert not child.children()
        finished(runs, out)
        assert same(out, straight)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
    def test_while_it_is_set_up(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path, name: str) -> None:
        out, code = tmp_path / "run", 75 if name == "SIGTERM" else 130
        child = runs.run(arguments(data, out, *ALONE), ["signalled_while_opening", name], code=code)
        assert name in child.line and "--resume" not in child.line
        runs.run(arguments(data, out, *ALONE))
        assert same(out, straight)

    @pytest.mark.slow
    def test_while_a_run_is_taken_up_again(self, runs: Nursery, straight: Path, copy: Path) -> None:
        runs.run(resume(copy), ["signalled_while_opening", "SIGTERM"], code=75)
        finished(runs, copy)
        assert same(copy, straight)

    @pytest.mark.slow
    @pytest.mark.parametrize("step", [3, 5])
    def test_where_steps_are_heard_of_late(
        self, runs: Nursery, data: Path, straight: Path, tmp_path: Path, step: int
    ) -> None:
        """As on a GPU: a save or an evaluation hears of its step, and of the request, in its own middle."""
        out = tmp_path / "run"
        runs.run(arguments(data, out, *ALONE), ["reads_late_and", "signalled", step, "SIGTERM"], code=75)
        assert steps_of(out)[-1] == f"step-{step + 1:08}"
        runs.run(resume(out), ["reads_late"])
        assert same(out, straight)

    @pytest.mark.slow
    def test_twice(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        child = runs.run(arguments(data, out, *ALONE), ["signalled", 6, "SIGINT", "SIGINT"], code=130)
        assert child.line.startswith("pretune: ") and steps_of(out)[-1] == "step-00000006"
        finished(runs, out)
        assert same(out, straight)

    @pytest.mark.slow
    def test_with_data_workers_nothing_is_left(self, runs: Nursery, data: Path, straight: Path, tmp_path: Path) -> None:
        out = tmp_path / "run"
        child = runs.start(arguments(data, out, *ALONE, train__workers=2), ["stops_at", 6])
        wait_for(lambda: stopped(child), child)
        os.killpg(child.pid, signal.SIGTERM)  # as schedulers do, to all of it
        os.killpg(child.pid, signal.SIGCONT)
        assert child.wait() == 75, child.errors()
        wait_for(lambda: not child.children(), child)
        finished(runs, out, "--set=train.workers=0")
        assert same(out, straight)

    def test_a_process_that_has_just_been_started(self, data: Path, tmp_path: Path) -> None:
        """As it is started by people: also while it imports."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pretune", *arguments(data, tmp_path / "run", *ALONE, "--steps=1000")],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=300)[1]
        assert process.returncode == 75, told
