"""Vectors taught by several ranks: examples that are compared with those of other ranks, too, give what one gives."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.runs import Child, Nursery, metrics
from tests.runs import tasked

STEPS = 10


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("base"), dropout=0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of 25 examples each; some texts stand in several of them. With eight a step, the last step has one."""
    folder, words = tmp_path_factory.mktemp("tables"), tasked.WORDS
    rows = [
        (f"the {words[i % 13]} {words[i % 7]}", f"a {words[i % 13]} house", f"old {words[(i + 3) % 13]}")
        for i in range(25)
    ]
    scored = [(*row[:2], f"{i % 5}") for i, row in enumerate(rows)]
    labelled = [(*row[:2], ("no", "yes")[i % 2]) for i, row in enumerate(rows)]
    return {
        "in_batch": tasked.table(folder / "pairs.tsv", ("anchor", "positive"), [row[:2] for row in rows]),
        "triplet": tasked.table(folder / "triplets.jsonl", ("anchor", "positive", "negative"), rows),
        "cosine": tasked.table(folder / "scores.csv", ("sentence1", "sentence2", "score"), scored),
        "classes": tasked.table(folder / "classes.csv", ("sentence1", "sentence2", "label"), labelled),
    }


def command(base: Path, table: Path, out: Path, *more: str) -> list[str]:
    options = [f"--steps={STEPS}", "--lr=1e-3", "--set=batch=8", *more]
    return ["finetune", str(base), "--task=embedding", f"--train={table}", f"--out={out}", *options]


def ended(children: list[Child], *codes: int) -> None:
    found = [child.wait() for child in children]
    assert found == [*codes], "\n--\n".join(child.errors() for child in children)


def close(run: Path, other: Path, base: Path, blind: str = "nothing") -> None:
    """The same loss, the same gradient and the same weights, but for rounding, and they have moved.

    `blind` is a weight that the loss does not depend on: Adam makes steps of what is rounding alone.
    """
    (mine,), (theirs,) = metrics(run), metrics(other)
    for name in ("loss", "norm", "tokens"):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-5), name
    first, found, wanted = (load_file(one / "model.safetensors") for one in (base, run, other))
    for name, value in wanted.items():
        if not name.endswith(blind):
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, msg=name)
    assert max(float((value - first[name]).abs().max()) for name, value in wanted.items() if name in first) > 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", ["in_batch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("triplet", "cosine", "classes"))]
)
def test_two_ranks_learn_what_one_learns(
    runs: Nursery, base: Path, tables: dict[str, Path], tmp_path: Path, loss: str
) -> None:
    more = (f"--set=loss={loss}", f"--dev={tables['triplet']}")
    alone, both = tmp_path / "a" / "run", tmp_path / "b" / "run"
    runs.run(command(base, tables[loss], alone, *more))
    hook = ["only_rank", 1, "writes_nothing", str(both)]
    ended(runs.ranks(command(base, tables[loss], both, *more), hook=hook), 0, 0)
    close(both, alone, base, "layer.1.output.LayerNorm.bias" if loss == "triplet" else "nothing")
    found, wanted = (json.loads((one / "scores.json").read_text()) for one in (both, alone))
    assert found["before"] == wanted["before"] and found["steps"] == wanted["steps"] == STEPS
    assert {path.name for path in both.iterdir()} == {path.name for path in alone.iterdir()}


@pytest.mark.slow
def test_it_goes_on_with_one_rank(runs: Nursery, base: Path, tables: dict[str, Path], tmp_path: Path) -> None:
    alone, out, table = tmp_path / "a" / "run", tmp_path / "b" / "run", tables["in_batch"]
    runs.run(command(base, table, alone))
    ended(runs.ranks(command(base, table, out), hook=["only_rank", 1, "signalled", 4, "SIGTERM"]), 75, 75)
    runs.run(command(base, table, out, "--resume"))
    close(out, alone, base)
