"""What a model says while it learns: by default, now and then, of the same texts, at no price for what is learnt."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.data.plan import BatchShape
from pretune.reports.facts import SPLITS, describe_sample_source
from pretune.reports.page import report
from pretune.runs import samples
from pretune.runs.samples import SAMPLE_SHARES, SAMPLE_TEXTS, ProgressTrigger, count_samples, estimate_sample_cost
from pretune.training.checkpoints.manager import CheckpointHook
from pretune.training.distributed import Ranks
from pretune.training.run_logger import read_metrics
from pretune.training.step import TrainState
from tests.conftest import Capture, Patch
from tests.runs.small import FAST, Prepared, shrunk
from tests.runs.test_runs import run, same

STEPS = 120
LONG: dict[str, Any] = {"objective": "masked", "steps": STEPS, "overrides": {"train.eval_every": STEPS}}
CPU = Ranks(torch.device("cpu"))


def told(where: Path) -> list[tuple[int, str]]:
    return [(line["step"], line["sample"]) for line in read_metrics(where) if "sample" in line]


def seen(due: Any, steps: Sequence[int]) -> list[int]:
    return [step for step in steps if due(TrainState(step=step))]


class TestWhen:
    def test_a_few_times_in_a_run(self) -> None:
        due = ProgressTrigger(lambda state: state.step / 1000, 0.25, steps=1000)
        assert seen(due, range(1, 1001)) == [1, 100, 200, 400, 700, 1000]

    @pytest.mark.parametrize("at", [0, 1, 99, 100, 350, 999])
    def test_a_run_that_goes_on_is_looked_at_where_it_would_have_been(self, at: int) -> None:
        due = ProgressTrigger(lambda state: state.step / 1000, 0.25, steps=1000, last_progress=at / 1000)
        assert seen(due, range(at + 1, 1001)) == [one for one in (1, 100, 200, 400, 700, 1000) if one > at]

    def test_short_runs_less_often(self) -> None:
        for steps, found in ((2, []), (8, [8]), (50, [1, 50]), (100, [1, 10, 40, 100])):
            due = ProgressTrigger(lambda state, steps=steps: state.step / steps, 0.25, steps=steps)  # type: ignore[misc]
            assert seen(due, range(1, steps + 1)) == found

    @pytest.mark.parametrize("cost", [0.01, 0.25, 3.0])
    @pytest.mark.parametrize("steps", [1, 30, 100, 1000, 10**6])
    def test_it_costs_a_hundredth(self, steps: int, cost: float) -> None:
        count = count_samples(steps, cost)
        assert count * cost <= 0.01 * steps or (count == 1 and cost <= 0.05 * steps)
        assert count == len(SAMPLE_SHARES) or (count + 1) * cost > 0.01 * steps

    def test_against_the_clock(self) -> None:
        """Progress stands still while it is compiled; how many steps it will be is seen from those that were taken."""
        clock = [0.0, 0.0, 0.0, *(step / 250 for step in range(1, 251))]
        due = ProgressTrigger(lambda state: clock[state.step], 0.55)
        assert seen(due, range(1, 253)) == [3, 27, 102, 252]
        slow = ProgressTrigger(lambda state: (0.0, 0.0, 0.0, 0.3, 0.8, 1.0)[state.step], 0.42)
        assert seen(slow, range(1, 6)) == []  # one look would take a tenth of it

    def test_it_is_counted_what_is_read(self) -> None:
        shape = BatchShape(rows=16, length=128)
        assert estimate_sample_cost(shape, "encoder", 2048, CPU) == pytest.approx(3 * 0.02 + 3 * 128 / (3 * 2048))
        assert estimate_sample_cost(shape, "decoder", 2048, CPU) > estimate_sample_cost(shape, "encoder", 2048, CPU)
        assert (
            estimate_sample_cost(shape, "decoder", 65536, Ranks(torch.device("cuda"))) > 1.5
        )  # kernels are started one by one
        assert estimate_sample_cost(shape, "encoder", 2048, Ranks(torch.device("cpu"), world=4)) > estimate_sample_cost(
            shape, "encoder", 2048, CPU
        )


@pytest.fixture(scope="module")
def plain(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is told nothing about samples."""
    where = tmp_path_factory.mktemp("plain") / "run"
    run(prepared(), where, **LONG)
    return where


class TestRuns:
    @pytest.mark.slow
    def test_the_same_texts_at_every_look(self, plain: Path) -> None:
        found: dict[int, list[str]] = {}
        for step, text in told(plain):
            found.setdefault(step, []).append(text.split(" → ")[0])
        assert [*found] == [1, 12, 24, 48, 84, 120]
        assert len({*map(tuple, found.values())}) == 1 and len({*found[1]}) == SAMPLE_TEXTS
        assert all("[MASK]" in text and "[CLS]" not in text for text in found[1])
        assert len({text for _, text in told(plain)}) > SAMPLE_TEXTS  # it has learnt something

    @pytest.mark.slow
    def test_nothing_that_is_learnt_changes(self, plain: Path, prepared: Prepared, tmp_path: Path) -> None:
        run(prepared(), tmp_path / "none", **{**LONG, "overrides": {"train.samples_every": 0}})
        assert not told(tmp_path / "none") and same(plain, tmp_path / "none")

    @pytest.mark.slow
    def test_killed_and_resumed(self, plain: Path, prepared: Prepared, tmp_path: Path, monkeypatch: Patch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointHook, "__call__", lambda self, loop, reports: _at(self, loop, saved=40, over=50))
            with pytest.raises(ZeroDivisionError):
                run(prepared(), tmp_path / "run", **LONG)
        assert max(step for step, _ in told(tmp_path / "run")) == 48
        pt.pretrain(None, out=tmp_path / "run", resume=True)
        assert told(tmp_path / "run") == told(plain) and same(plain, tmp_path / "run")

    @pytest.mark.slow
    def test_what_goes_wrong_does_not_end_the_run(
        self,
        plain: Path,
        prepared: Prepared,
        tmp_path: Path,
        monkeypatch: Patch,
        capsys: Capture,
    ) -> None:
        def broken(*_: Any) -> None:
            raise RuntimeError("REASON\nREST")

        monkeypatch.setattr(samples.SampleObjective, "loss", broken)
        found = run(prepared(), tmp_path / "run", **LONG)
        errors = capsys.readouterr().err
        assert errors.count("REASON\n") == 1 and "REST" not in errors
        assert found.summary["steps"] == STEPS and not told(tmp_path / "run") and same(plain, tmp_path / "run")

    @pytest.mark.slow
    def test_report_and_card_show_them(self, plain: Path, tmp_path: Path) -> None:
        page = report([plain], tmp_path / "report.html").read_text()
        assert page.count('class="sample"') == SAMPLE_TEXTS and page.count("<b>step 48</b>") == SAMPLE_TEXTS
        card = (plain / "README.md").read_text()
        assert card.count("| 120 | `") == card.count("| 1 | `") == SAMPLE_TEXTS

    @pytest.mark.slow
    def test_their_split_is_recorded(self, plain: Path, prepared: Prepared, tmp_path: Path) -> None:
        """Training text is not called validation text, in no place."""
        changes = {"train.samples_every": 4, "train.eval_tokens": 0}
        for name, more in (("train", {}), ("prompts", {"train.prompts": ["a [MASK] here"]})):
            run(prepared(), tmp_path / name, objective="masked", steps=4, overrides={**changes, **more})
        for where, split in ((plain, "valid"), (tmp_path / "train", "train"), (tmp_path / "prompts", "prompts")):
            assert {line["split"] for line in read_metrics(where) if "sample" in line} == {split}
            pages = (report([where], tmp_path / "report.html").read_text(), (where / "README.md").read_text())
            source = describe_sample_source(read_metrics(where))
            assert source == SPLITS[split] and source in pages[1]
            assert not any(other in text for other in {*SPLITS.values()} - {source} for text in pages)

    def test_a_text_with_blanks_is_preferred(self, monkeypatch: Patch) -> None:
        class Row:
            def __init__(self, blanks: int) -> None:
                self.blanks = blanks

            def list_spans(self) -> list[int]:
                return [self.blanks] if self.blanks >= 0 else []

        class Held:
            shape = BatchShape(rows=8, length=32)

            def __init__(self, *blanks: int) -> None:
                self.rows = [*map(Row, blanks)]

            def batch(self, step: int, *, part: int, parts: int) -> Any:
                return self.rows[part]

        monkeypatch.setattr(samples, "find_targets", lambda row: ([0] * row.blanks, []))
        for blanks, best in (((0, 3, 1, 2, 5, 9, -1, -1), [3, 2, 5]), ((0, 3, 1, -1, 5, 9, -1, -1), [3, 0, 1])):
            held: Any = Held(*blanks)
            found: list[Any] = [*samples.select_rows(held)]
            assert [row.blanks for row in found] == best


def _at(saver: CheckpointHook, loop: Any, *, saved: int, over: int) -> None:
    if loop.state.step == saved:
        saver.save(loop, wait=True)
    if loop.state.step == over:
        raise ZeroDivisionError


class TestPrompts:
    @pytest.mark.parametrize(
        ("name", "objective", "kind", "style", "text"),
        [
            ("bert-tiny", "masked", "wordpiece", "cls-sep", "The old [MASK] was ___ there."),
            ("bert-tiny", "replaced_token", "wordpiece", "cls-sep", "The old [MASK]."),
            ("gpt2", "causal", "bpe", "endoftext", "The old"),
            ("t5-small", "span_corruption", "unigram", "sentinels", "The old <extra_id_0> was."),
        ],
    )
    def test_of_ones_own(
        self, name: str, objective: str, kind: str, style: str, text: str, prepared: Prepared, tmp_path: Path
    ) -> None:
        changes = {
            **shrunk(name),
            **FAST,
            "data.length_schedule": None,
            "train.prompts": [text],
            "train.samples_every": 2,
        }
        run(prepared(kind, style), tmp_path / "run", name, objective=objective, overrides=changes)
        found = told(tmp_path / "run")
        assert [step for step, _ in found] == [2, 4] and all(one.startswith(f"{text} → ") for _, one in found)

    def test_as_pretune_fill_answers(self, prepared: Prepared, tmp_path: Path) -> None:
        text = "The old [MASK] was there."
        changes = {"train.prompts": [text], "train.samples_every": 4}
        found = run(prepared(), tmp_path / "run", objective="masked", overrides=changes)
        assert told(tmp_path / "run") == [(4, f"{text} → {pt.fill(found.load(), text, k=1)[0][0].word}")]

    @pytest.mark.parametrize(("text", "value"), [("No blank.", "'No blank.'"), ("[MASK] " * 50, "50")])
    def test_what_cannot_be_asked_is_refused(self, text: str, value: str, prepared: Prepared, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"train\.prompts") as error:
            run(prepared(), tmp_path / "run", objective="masked", overrides={"train.prompts": [text]})
        assert value in str(error.value) and not (tmp_path / "run").exists()
