"""Fine-tuning with several ranks: what one process learns (R9), one decision, one writer, and ranks that die (R6, R8).

Plain SGD without dropout: weights are then sums of gradients, and show whatever is wrong with them. The last step of an
epoch has one example, so that one rank has none; and clipping is on, which needs the gradient of all.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.runs.prepare import prepare
from tests.data.texts import blocks
from tests.faults.runs import ENVIRONMENT, Child, Nursery, metrics, steps_of
from tests.inference.speakers import speaker
from tests.runs import tasked
from tests.runs.test_finetune_shapes import two_tasks

STEPS = 10
FAST = {"optimizer": "sgd", "batch": 8, "eval_every": 5, "log_every": 1, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("base"), dropout=0)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.classes(tmp_path_factory.mktemp("table") / "own.csv", 41)


@pytest.fixture(scope="module")
def alone(runs: Nursery, base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, everything trained."""
    out = tmp_path_factory.mktemp("alone") / "run"
    runs.run(command(base, out, f"--train={table}"))
    return out


def command(base: Path, out: Path, *more: str, **settings: Any) -> list[str]:
    given = {**{f"train.{name}": value for name, value in FAST.items()}, "tune.dropout": 0}
    given |= {path.replace("__", "."): value for path, value in settings.items()}
    sets = [f"--set={path}={value}" for path, value in given.items() if value is not None]
    return ["finetune", str(base), f"--out={out}", f"--steps={STEPS}", "--lr=0.3", "--baselines=none", *sets, *more]


def resume(out: Path) -> list[str]:
    return ["finetune", f"--out={out}", "--resume"]


def ended(children: list[Child], *codes: int) -> None:
    """All ranks have ended, so."""
    found = [child.wait() for child in children]
    assert found == [*codes], "\n--\n".join(child.errors() for child in children)


def run_twice(runs: Nursery, folder: Path, base: Path, *more: str, **settings: Any) -> tuple[Path, Path]:
    """A command by one process, and by two ranks."""
    alone, both = folder / "a" / "run", folder / "b" / "run"
    runs.run(command(base, alone, *more, **settings))
    ended(runs.ranks(command(base, both, *more, **settings)), 0, 0)
    return alone, both


def scores(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "scores.json").read_text())
    return found


def close(run: Path, other: Path, *, exact: float = 1e-6, judged: float = 1e-6) -> None:
    """Two runs learnt the same but for rounding, chose the same and left the same files."""
    mine, theirs = metrics(run), metrics(other)
    assert [(line["step"], line.get("tokens")) for line in mine] == [(x["step"], x.get("tokens")) for x in theirs]
    for term in ("loss", "norm"):
        found, wanted = ([line[term] for line in lines if term in line] for lines in (mine, theirs))
        assert found == pytest.approx(wanted, rel=1e-5, abs=exact), term
    assert [line["held_out"] for line in mine if "held_out" in line] == [
        pytest.approx(line["held_out"], rel=judged, abs=judged) for line in theirs if "held_out" in line
    ]
    files = [file.relative_to(other) for file in other.rglob("*.safetensors") if "checkpoints" not in file.parts]
    assert files
    for file in files:
        for name, value in load_file(other / file).items():
            torch.testing.assert_close(load_file(run / file)[name], value, rtol=1e-5, atol=exact, msg=name)
    models = [scores(one)["model"] for one in (run, other)]
    assert [models[0][name] for name in ("lr", "seed", "steps", "best_step")] == [
        models[1][name] for name in ("lr", "seed", "steps", "best_step")
    ]
    said = [[json.loads(line) for line in (one / "predictions.jsonl").read_text().splitlines()] for one in (run, other)]
    assert [one["id"] for one in said[0]] == [one["id"] for one in said[1]]
    assert {path.name for path in run.iterdir()} == {path.name for path in other.iterdir()}


@pytest.mark.slow
def test_sampled_answers_are_those_of_one_process(runs: Nursery, tmp_path: Path) -> None:
    """Each rank samples answers to its prompts; the last step of an epoch has one."""
    pt.save(speaker("llama-7b", "bpe", "endoftext"), tmp_path / "base")
    rows = [{"question": f"{number} and?", "answer": "[aeiou]"} for number in range(12)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data__max_new_tokens": 3, "tune__dropout": None, "train__batch": 4, "tune__grpo__samples": 4}
    alone, both = run_twice(
        runs, tmp_path, tmp_path / "base", f"--train={tmp_path / 'own.jsonl'}", "--reward=regex", **settings
    )
    close(both, alone)
    lines = [[line for line in metrics(run) if "reward" in line] for run in (alone, both)]
    for name in ("reward", "no_signal", "length"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]


GRADUAL = '--set=method.when={"kind": "epochs", "every": 0.5}'
PLATEAU = '--set=method.when={"kind": "plateau", "patience": 1}'
NORM = '{"mode": "mean", "layer": "own", "norm": {"kind": "batch_norm"}}'  # statistics of all ranks
METHODS: dict[str, tuple[str, ...]] = {
    "full": ("--method=full",),
    "lora": ("--method=lora",),
    "gradual": ("--method=gradual", GRADUAL),
    "plateau": ("--method=gradual", PLATEAU),
    "first": ("--method=freeze-first", "--set=tune.trainable_layers.layers=1"),
    "lora+gradual": ("--method=lora+gradual",),
    "decay": ("--method=full", "--set=tune.layer_decay=0.5"),
    "adam": ("--method=full", "--lr=0.01"),
    "batch-norm": ("--method=full", f"--set=tune.pooling={NORM}"),
    "batch-norm-frozen": ("--method=frozen", f"--set=tune.pooling={NORM}"),
    "probed": ("--set=tune.head=probe", '--set=tune.pooling={"mode": "mean"}'),
    **{
        name: (f"--method={name}",)
        for name in (
            "frozen",
            "last-only",
            "ulmfit",
            "scalar-mix",
            "from-scratch",
            "adapter",
            "prefix",
            "prompt",
            "qlora",
            "ia3",
            "bitfit",
        )
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plateau": {"train__eval_every": 2}, "adam": {"train__optimizer": "adam_w"},
    "scalar-mix": {"tune__scalar_mix__dropout": 0},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_learn_what_one_learns(
    runs: Nursery, base: Path, table: Path, alone: Path, tmp_path: Path, name: str
) -> None:
    """Whatever the method leaves to be trained, opens on the way, or has no gradient."""
    both, given = tmp_path / "b" / "run", (f"--train={table}", *METHODS[name])
    one, settings = alone, SETTINGS.get(name, {})
    if name != "full":
        one = tmp_path / "a" / "run"
        runs.run(command(base, one, *given, **settings))
    hook = ["only_rank", 1, "writes_nothing", str(both)]
    ended(runs.ranks(command(base, both, *given, **settings), hook=hook), 0, 0)
    close(both, one, exact=1e-6 if name != "adam" else 1e-4)
    assert scores(both)["result"]["scores"] == pytest.approx(scores(one)["result"]["scores"], abs=1e-6)


@pytest.mark.slow
def test_examples_that_cannot_be_shared_out_evenly(
    runs: Nursery, base: Path, table: Path, alone: Path, tmp_path: Path
) -> None:
    """Eight to three."""
    ended(runs.ranks(command(base, tmp_path / "run", f"--train={table}"), 3), 0, 0, 0)
    close(tmp_path / "run", alone)


@pytest.mark.slow
def test_micro_batches_of_ranks(runs: Nursery, base: Path, table: Path, tmp_path: Path) -> None:
    """Of a rank's share of the tokens of a step, so many are read at a time; in the last step most are empty."""
    alone, both = tmp_path / "a" / "run", tmp_path / "b" / "run"
    runs.run(command(base, alone, f"--train={table}", train__batch=32))
    ended(runs.ranks(command(base, both, f"--train={table}", train__batch=32, train__micro_tokens=1)), 0, 0)
    close(both, alone)
    state = json.loads((both / f"checkpoints/step-{STEPS:08}/state.json").read_text())
    assert state["facts"]["state"]["micro"] > 1


@pytest.mark.slow
def test_what_is_forgotten(runs: Nursery, base: Path, table: Path, tmp_path: Path) -> None:
    text = blocks(tmp_path / "text.txt", tasked.corpus())
    prepare([text], tokenizer=base, out=tmp_path / "data", holdout=0.1, workers=0)
    alone, both = run_twice(runs, tmp_path, base, f"--train={table}", f"--forgetting={tmp_path / 'data'}")
    found, wanted = (scores(one)["forgetting"] for one in (both, alone))
    assert found["before"] == wanted["before"] and found["after"] == pytest.approx(wanted["after"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scores", "tags", "spans", "heads", "written"])
def test_of_every_kind(runs: Nursery, base: Path, tmp_path: Path, kind: str) -> None:
    """Other heads, one after the other by turns (of which some have no gradient in a step), and answers in words."""
    given: tuple[str, ...] = ()
    model = base
    if kind == "scores":
        given = (f"--train={tasked.scores(tmp_path / 'own.csv', 41)}", "--text=one", "--pair=two", "--label=score")
    elif kind == "tags":
        given = (f"--train={tasked.tags(tmp_path / 'own.conll', 41)}",)
    elif kind == "spans":
        folder = tmp_path / "tasks" / "squad2"
        folder.mkdir(parents=True)
        for split, count in (("train-v2.0", 17), ("dev-v2.0", 7)):
            answer = [{"text": "sea", "answer_start": 8}]
            asked = [{"id": f"{i}", "question": "what is old?", "answers": answer * (i % 2)} for i in range(count)]
            pages = [{"title": "t", "paragraphs": [{"context": "the old sea is grey", "qas": asked}]}]
            (folder / f"{split}.json").write_text(json.dumps({"version": "v2.0", "data": pages}))
        given = ("--task=squad2", f"--data={tmp_path}")
    else:
        two_tasks(tmp_path, (17, 9))
        given = ("--task=cola,sst2", f"--data={tmp_path}")
    if kind == "written":
        model = tasked.make_base(tmp_path / "writer", "t5-small", kind="unigram", style="sentinels", dropout=0)
        given = (*given, "--set=data.max_new_tokens=4")
    dropout = {"tune__dropout": None} if kind == "written" else {}
    alone, both = run_twice(runs, tmp_path, model, *given, "--lr=0.05", **dropout)
    close(both, alone, exact=2e-6, judged=1e-3 if kind == "scores" else 1e-6)  # of values that are almost the same


@pytest.mark.slow
def test_all_stop_early_at_the_same_step(runs: Nursery, base: Path, table: Path, tmp_path: Path) -> None:
    given = (f"--train={table}", "--steps=60", "--seeds=2")
    alone, both = run_twice(runs, tmp_path, base, *given, train__patience=1, train__eval_every=2)
    for seed in (0, 1):
        trial = f"trials/labels-all-lr-0.3-seed-{seed}"
        found, wanted = (json.loads((one / trial / "trial.json").read_text()) for one in (both, alone))
        assert found["steps"] == wanted["steps"] < 60
        assert found["best_step"] == wanted["best_step"] and found["course"] == wanted["course"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), pytest.param(("svm", "probe"), marks=pytest.mark.slow)])
def test_rates_labels_and_baselines(
    runs: Nursery, base: Path, table: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """All trials of a command, one of them from random weights, while the first rank alone fits the rest."""
    out, names = tmp_path / "run", ("majority", *more, "random")
    given = (
        f"--train={table}",
        "--steps=2",
        "--lr=0.3,0.03",
        "--train-examples=10,all",
        f"--baselines={','.join(names)}",
    )
    children = runs.ranks(command(base, out, *given), hook=["only_rank", 1, "writes_nothing", str(out)])
    ended(children, 0, 0)
    found = scores(out)
    assert [row["name"] for row in found["baselines"]] == [*names]
    assert len(found["trials"]) == 3 and len(found["curve"]) == 2 and (out / "cost.json").is_file()
    assert "majority" in children[0].errors() and children[1].errors() == ""


@pytest.mark.parametrize(("first", "then"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_asked_to_stop_it_goes_on_with_another_number_of_ranks(
    runs: Nursery, base: Path, table: Path, alone: Path, tmp_path: Path, first: int, then: int
) -> None:
    """One rank is asked, at a step after which dev would be judged: all leave it, and save."""
    out = tmp_path / "run"

    def work(command: list[str], world: int, code: int, *hook: Any) -> None:
        ended(runs.ranks(command, world, hook) if world > 1 else [runs.start(command, hook)], *[code] * world)

    stop = ("signalled", 4, "SIGTERM")
    given = command(base, out, f"--train={table}")
    work(given, first, 75, *(("only_rank", 1, *stop) if first > 1 else stop))
    assert steps_of(out)[-1] == "step-00000005" and not (out / "scores.json").exists()
    work(resume(out), then, 0)
    close(out, alone)


@pytest.mark.slow
def test_one_of_two_ranks_is_killed(runs: Nursery, base: Path, table: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    children = runs.ranks(command(base, out, f"--train={table}"), hook=["only_rank", 1, "signalled", 5, "SIGKILL"])
    ended(children, 6, -signal.SIGKILL)
    assert "--resume" in children[0].line
    ended(runs.ranks(resume(out)), 0, 0)
    close(out, alone)


@pytest.mark.slow
def test_the_first_is_killed_while_the_other_waits(runs: Nursery, base: Path, table: Path, tmp_path: Path) -> None:
    given = (f"--train={table}", "--steps=2", "--baselines=majority")
    hook = ["only_rank", 0, "slow_baselines", 1.5, "SIGKILL"]
    children = runs.ranks(command(base, tmp_path / "run", *given), hook=hook)
    ended(children, -signal.SIGKILL, 6)
    assert "--resume" in children[1].line
    ended(runs.ranks(resume(tmp_path / "run")), 0, 0)


@pytest.mark.slow
def test_all_are_asked_to_stop_while_the_first_works_alone(
    runs: Nursery, base: Path, table: Path, tmp_path: Path
) -> None:
    out, given = tmp_path / "run", (f"--train={table}", "--steps=2", "--baselines=majority")
    children = runs.ranks(command(base, out, *given), hook=["slow_baselines", 1000])
    while not (out / "trial.json").exists() and not children[0].done(0.1):
        pass
    for child in children:
        child.kill(signal.SIGTERM)
    ended(children, 75, 75)  # long before the baselines would end
    assert "--resume" in children[1].line
    ended(runs.ranks(resume(out)), 0, 0)


@pytest.mark.slow
def test_others_wait_longer_than_their_patience_for_one_that_works(
    runs: Nursery, base: Path, table: Path, tmp_path: Path
) -> None:
    given = (f"--train={table}", "--steps=2", "--baselines=majority")
    hook = ["only_rank", 0, "slow_baselines", 15]
    ended(runs.ranks(command(base, tmp_path / "run", *given), hook=hook, PRETUNE_DISTRIBUTED_TIMEOUT="6"), 0, 0)


@pytest.mark.slow
def test_what_is_not_finite_on_one_rank_is_skipped_on_all(
    runs: Nursery, base: Path, table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    hook = ["only_rank", 1, "no_finite_class", 2, 2]
    ended(runs.ranks(command(base, out, f"--train={table}", "--steps=4"), hook=hook), 0, 0)
    assert [line["step"] for line in metrics(out) if line.get("skipped")] == [3]
    assert all(value.isfinite().all() for value in load_file(out / "model.safetensors").values())


def test_a_refusal_ends_all_ranks(runs: Nursery, base: Path, table: Path, tmp_path: Path) -> None:
    children = runs.ranks(command(base, tmp_path / "run", f"--train={table}", train__batch=1))
    ended(children, 2, 2)
    assert re.search(r"train\.batch 1\b.*\b2\b", children[0].line)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_language_model_first(runs: Nursery, tmp_path: Path) -> None:
    """`tune.lm_epochs`: both stages train with all ranks."""
    base = tasked.make_base(tmp_path, "gpt2-small", "bpe", "endoftext", dropout=0)
    table, settings = tasked.classes(tmp_path / "own.csv", 200), {"tune__lm_epochs": 2, "tune__lm_lr": 0.01}
    alone, both = run_twice(runs, tmp_path, base, f"--train={table}", **settings)
    stages = [run / "language_model" / "run" for run in (alone, both)]
    losses = [[line["held_out"]["loss"] for line in metrics(stage) if "held_out" in line] for stage in stages]
    assert len(losses[0]) > 1 and losses[1] == pytest.approx(losses[0], rel=1e-4)
    close(both, alone, exact=1e-4, judged=1e-4)


@pytest.mark.slow
def test_under_torchrun(base: Path, table: Path, alone: Path, tmp_path: Path) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pretune"]
    both = [*start, *command(base, tmp_path / "run", f"--train={table}")]
    found = subprocess.run(both, env=ENVIRONMENT, check=True, timeout=300, stdout=subprocess.PIPE, text=True)
    assert found.stdout.count("accuracy") == 1  # one of them tells it
    close(tmp_path / "run", alone)
