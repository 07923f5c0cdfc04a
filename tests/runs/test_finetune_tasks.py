"""Every task that is there, by its name: read, learnt for a few steps, scored beside baselines, and asked again."""

import os
from pathlib import Path

import pytest

from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.inference import evaluate_run
from pretune.tasks import TASKS
from pretune.tasks.types import EVALUATION_ONLY
from tests.conftest import ROOT
from tests.runs import tasked

DATA = Path(os.environ.get("PRETUNE_DATA") or ROOT.parent / "shared/data")
TRAINED = [name for name in TASKS if TASKS.get(name).kind not in EVALUATION_ONLY]
FEW = {"task.max_eval_examples": 24, "task.train_examples": 24, "data.max_length": 48}


def there(name: str) -> bool:
    return bool(TASKS.get(name).find_available(DATA))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("writer"), "gpt2-small", kind="bpe", style="endoftext")


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_task_by_its_name(name: str, encoder: Path, writer: Path, tmp_path: Path) -> None:
    if not there(name):
        pytest.skip(f"no files of '{name}' in {DATA}")
    task = TASKS.get(name)
    base = writer if task.kind == "generation" else encoder
    more = {"data.max_new_tokens": 4} if task.kind == "generation" else {}
    found = finetune(base, task=name, data=DATA, out=tmp_path / "run", steps=3, overrides={**FEW, **more}, force=True)
    result = found.scores["result"]
    assert -1 <= result["score"] <= 1 and result["examples"] <= 24
    assert found.scores["metric"] == task.metrics[0]
    assert found.scores["baselines"] or task.kind == "span"
    again = evaluate_run(found, data=DATA, split=None, max_examples=24)  # what was divided is divided again
    assert (again.split, again.counts["examples"]) == (result["split"], result["examples"])
    assert again.scores == pytest.approx(result["scores"])
