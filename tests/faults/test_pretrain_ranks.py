"""Runs of `pretune pretrain` with other numbers of workers and ranks (R3), and ranks that die (R6, R8)."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from tests.faults.runs import ALONE, ENVIRONMENT, Child, Nursery, arguments, metrics, resume, same, steps_of

CLOSE = 1e-6
"""Relative: sums are made in another order."""


def ended(children: list[Child], *codes: int) -> None:
    """All ranks have ended, so."""
    found = [child.wait() for child in children]
    assert found == [*codes], "\n--\n".join(child.errors() for child in children)


def losses(run: Path) -> list[float]:
    lines = [line for line in metrics(run) if not {"sample", "event"} & {*line}]
    return [line["held_out"]["loss"] if "held_out" in line else line["loss"] for line in lines]


def asked(run: Path) -> list[tuple[int, str]]:
    """Log of the collectives of a run."""
    return [(line["step"], line["sample"].split(" → ")[0]) for line in metrics(run) if "sample" in line]


def close(run: Path, other: Path) -> None:
    """Two runs are the same but for rounding."""
    assert losses(run) == pytest.approx(losses(other), rel=CLOSE)
    assert [line.get("tokens") for line in metrics(run)] == [line.get("tokens") for line in metrics(other)]
    mine, theirs = load_file(run / "model.safetensors"), load_file(other / "model.safetensors")
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=2e-5, msg=name)


def still(data: Path, out: Path, **settings: Any) -> list[str]:
    """A run without dropout, whose numbers depend on the rank."""
    return arguments(data, out, *ALONE, model__dropout=0, **settings)


@pytest.fixture(scope="module")
def alone(runs: Nursery, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, no dropout."""
    out = tmp_path_factory.mktemp("alone") / "run"
    runs.run(still(data, out))
    return out


@pytest.fixture(scope="module")
def spread(runs: Nursery, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two ranks, in both ways."""
    folder = tmp_path_factory.mktemp("spread")
    for how in ("ddp", "fsdp"):
        ended(runs.ranks(still(data, folder / how, train__parallel=how)), 0, 0)
    return {how: folder / how for how in ("ddp", "fsdp")}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_data_workers_change_nothing(runs: Nursery, data: Path, straight: Path, tmp_path: Path, workers: int) -> None:
    runs.run(arguments(data, tmp_path / "run", *ALONE, train__workers=workers))
    assert same(tmp_path / "run", straight)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_ranks_are_one(alone: Path, spread: dict[str, Path], how: str) -> None:
    close(spread[how], alone)
    assert asked(spread[how]) == asked(alone) != []


def test_shards_are_written_as_one_model(alone: Path, spread: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    run = spread["fsdp"]
    model, batch = pt.load(run).eval(), pt.batch([[2, 7, 8, 9, 3]])
    peer = transformers.AutoModelForMaskedLM.from_pretrained(run).eval()
    with torch.no_grad():
        mine, theirs = model(batch).logits, peer(torch.tensor([[2, 7, 8, 9, 3]])).logits[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert {path.name for path in run.iterdir()} == {path.name for path in alone.iterdir()}
    assert len(transformers.AutoTokenizer.from_pretrained(run)) == model.spec.vocab


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then", "how"),
    [
        (2, 1, "fsdp"),
        (1, 2, "ddp"),
        pytest.param(1, 2, "fsdp", marks=pytest.mark.slow),
        pytest.param(2, 1, "ddp", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    runs: Nursery, data: Path, alone: Path, tmp_path: Path, first: int, then: int, how: str
) -> None:
    out = tmp_path / "run"

    def work(command: list[str], world: int, code: int, *hook: Any) -> None:
        ended(runs.ranks(command, world, hook) if world > 1 else [runs.start(command, hook)], *[code] * world)

    parallel = how if first > 1 else "ddp"
    work(still(data, out, train__parallel=parallel), first, 75, "signalled", 6, "SIGTERM")
    work(resume(out, f"--set=train.parallel={how if then > 1 else 'ddp'}"), then, 0)
    close(out, alone)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_ranks_average_weights_alike(runs: Nursery, data: Path, tmp_path: Path, how: str) -> None:
    """The trigger follows from the validation loss, on which all ranks agree; a resumed run keeps it."""
    asgd = '{"kind":"asgd","lr":0.5,"nonmonotone_interval":0}'
    more = {"train__optimizer": asgd, "train__eval_every": 1, "train__schedule": "constant"}
    runs.run(still(data, tmp_path / "alone", **more))
    ended(runs.ranks(still(data, tmp_path / "ranks", train__parallel=how, **more)), 0, 0)
    ranks = still(data, tmp_path / "resumed", train__parallel=how, **more)
    ended(runs.ranks(ranks, 2, ("signalled", 8, "SIGTERM")), 75, 75)
    ended(runs.ranks(resume(tmp_path / "resumed")), 0, 0)
    events = [[line for line in metrics(tmp_path / name) if "event" in line] for name in ("alone", "ranks", "resumed")]
    assert events[0] == events[1] == events[2] and len(events[0]) == 1
    close(tmp_path / "ranks", tmp_path / "alone")
    assert same(tmp_path / "ranks", tmp_path / "resumed")


@pytest.mark.parametrize(
    ("when", "last"),
    [
        (("signalled", 6), "step-00000008"),
        pytest.param(("signalled_while_judging", 2), "step-00000005", marks=pytest.mark.slow),
    ],
)
def test_one_of_two_ranks_is_asked_to_stop(
    runs: Nursery, data: Path, alone: Path, tmp_path: Path, when: tuple[str, int], last: str
) -> None:
    out = tmp_path / "run"
    ended(runs.ranks(still(data, out), hook=["only_rank", 1, *when, "SIGTERM"]), 75, 75)
    assert steps_of(out)[-1] == last
    ended(runs.ranks(resume(out)), 0, 0)
    close(out, alone)


@pytest.mark.slow
def test_one_of_two_ranks_is_killed(runs: Nursery, data: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    children = runs.ranks(still(data, out), hook=["only_rank", 1, "signalled", 6, "SIGKILL"])
    ended(children, 6, -signal.SIGKILL)
    assert "--resume" in children[0].line
    ended(runs.ranks(resume(out)), 0, 0)
    close(out, alone)


@pytest.mark.slow
def test_one_of_two_ranks_stands_still(runs: Nursery, data: Path, tmp_path: Path) -> None:
    children = runs.ranks(
        still(data, tmp_path / "run"), hook=["only_rank", 1, "stops_at", 6], PRETUNE_DISTRIBUTED_TIMEOUT="10"
    )
    assert children[0].wait() == 6, children[0].errors()
    assert "--resume" in children[0].line
    children[1].kill()
    children[1].wait()


@pytest.mark.slow
def test_what_is_not_finite_on_one_rank_is_skipped_on_all(runs: Nursery, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended(runs.ranks(still(data, out), hook=["only_rank", 1, "not_finite", 2, 2]), 0, 0)  # in the third step
    assert [line["step"] for line in metrics(out) if line.get("skipped")] == [3]
    assert all(value.isfinite().all() for value in load_file(out / "model.safetensors").values())


def test_a_refusal_ends_all_ranks(runs: Nursery, alone: Path, data: Path) -> None:
    children = runs.ranks(still(data, alone))
    assert children[0].wait() == 2 and str(alone) in children[0].line and "--resume" in children[0].line
    assert children[1].wait(60) in (2, 6)


@pytest.mark.slow
def test_streams_of_two_ranks_are_those_of_one(runs: Nursery, data: Path, tmp_path: Path) -> None:
    """Each rank has a part of the streams, with its part of the carried state."""
    sizes = {"model__width": 16, "model__hidden": 24, "model__depth": 2, "data__max_length": 12}
    rates = {f"model__{kind}_dropout": 0 for kind in ("output", "hidden", "input", "token", "weight")}
    train = {"train__batch_tokens": 96, "train__eval_every": 4, "train__samples_every": 0}
    one, two = (
        arguments(data, tmp_path / out, "--steps=8", name="ulmfit-small", **sizes, **rates, **train)
        for out in ("one", "two")
    )
    runs.run(one)
    ended(runs.ranks(two), 0, 0)
    close(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_under_torchrun(data: Path, alone: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pretune"]
    subprocess.run([*command, *still(data, tmp_path / "run")], env=ENVIRONMENT, check=True, timeout=300)
    close(tmp_path / "run", alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-tiny", "encoder"])
def test_the_first_rank_plans_for_all(runs: Nursery, data: Path, tmp_path: Path, name: str) -> None:
    """The others measure nothing, and have its settings."""
    sets = {"train__samples_every": 0, "train__workers": 0, "model__width": 32, "model__depth": 1, "model__heads": 2}
    command = arguments(data, tmp_path / "run", "--budget=6s", name=name, **sets, train__batch_tokens=None)
    ended(runs.ranks(command, hook=["measured_on_rank", 0]), 0, 0)
    environment = json.loads((tmp_path / "run/run.json").read_text())["environment"]
    assert environment["world"] == 2 and environment["plan"]["expected"]["tokens"] > 0
