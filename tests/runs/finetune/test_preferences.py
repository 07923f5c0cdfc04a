"""Fine-tuning on preferences: every loss, the reference, scores of held-out pairs, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import adapt
from pretune.adaptation.answer_logprobs import compute_answer_logprobs
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.methods import METHODS
from pretune.core.errors import UsageError
from pretune.core.run_dir import RunDir
from pretune.runs.finetune.config import (
    AdaptationConfig,
    BaseConfig,
    FinetuneConfig,
    FinetuneTrainConfig,
    SequenceConfig,
    TaskConfig,
)
from pretune.runs.finetune.task_data import open_task
from pretune.runs.finetune.trial import FinetuneTrial, TrialContext
from pretune.tasks.stream import TaskStream
from pretune.training.distributed import Ranks
from tests.inference.speakers import bert, chatter

WORDS = ("cat", "dog", "boat", "sea", "sun", "tree")
REWARDS = {"preference_loss", "reward_accuracy", "reward_margin"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder, an encoder, and pairs of a polite and an impolite answer; and the same pairs exchanged."""
    folder = tmp_path_factory.mktemp("preferences")
    pt.save(chatter("llama-7b"), folder / "base")
    pt.save(bert(), folder / "bert")
    rows = [{"prompt": f"Say {a} {b}", "chosen": f"the {a}", "rejected": f"no {b}"} for a in WORDS for b in WORDS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    exchanged = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    (folder / "exchanged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in exchanged))
    return folder


def tune(base: Path, out: Path, model: str = "base", table: str = "pairs", **options: Any) -> dict[str, Any]:
    overrides = {"data.max_length": 48, "train.batch": 8, **options.pop("overrides", {})}
    settings = {"task": "preference", "method": "lora", "steps": 8, "lr": 1e-2, "baselines": "untuned", **options}
    pt.finetune(base / model, train=base / f"{table}.jsonl", out=out, overrides=overrides, **settings)
    scores: dict[str, Any] = json.loads(RunDir(out).scores.read_text())
    return scores


RUNS = [(None, "lora"), ("ipo", "full"), ("kto", "lora"), ("simpo", "lora"), ("orpo", "full")]


@pytest.mark.parametrize(("loss", "method"), RUNS)
def test_a_run(loss: str | None, method: str, base: Path, tmp_path: Path) -> None:
    overrides = {} if loss is None else {"tune.preference": loss}
    scores = tune(base, tmp_path / "run", method=method, overrides=overrides)
    result, (untuned,) = scores["result"]["scores"], scores["baselines"]
    assert scores["kind"] == "preference" and {*result} == {"choice_accuracy", "loss", "perplexity", *REWARDS}
    assert {*untuned["scores"]} == {"choice_accuracy", "loss", "perplexity"} and "samples" not in scores
    assert result["reward_accuracy"] == 1 and result["reward_margin"] > 0
    run = pt.load(tmp_path / "run")
    assert isinstance(pt.chat(run, "Say cat", temperature=0, max_new_tokens=3), str)
    pair = {"prompt": "Say cat sea", "chosen": "the cat", "rejected": "no sea"}
    first, second = pt.predict(tmp_path / "run", [pair, {**pair, "chosen": "no sea", "rejected": "the cat"}])
    assert first["probabilities"]["chosen"] == pytest.approx(second["probabilities"]["rejected"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["base", "bert"])
def test_a_reward_model(model: str, base: Path, tmp_path: Path) -> None:
    """A score for each answer, by a decoder or an encoder; without a vocabulary head there is no untuned one."""
    scores = tune(base, tmp_path / "run", model, overrides={"tune.preference": "reward_model"}, steps=20)
    assert {*scores["result"]["scores"]} == {"choice_accuracy"} and scores["result"]["score"] == 1
    assert ("untuned" in scores["not_run"]) == (model == "bert")
    (answer,) = pt.predict(tmp_path / "run", [{"prompt": "Say cat sea", "chosen": "the cat", "rejected": "no sea"}])
    assert answer["label"] == "chosen"


def open_trial(base: Path, table: str, method: str = "lora") -> FinetuneTrial:
    tuning = FinetuneConfig(
        base=BaseConfig(path=str(base / "base")),
        task=TaskConfig(train=str(base / f"{table}.jsonl")),
        method=METHODS.get(method)(),
        tune=AdaptationConfig(),
        data=SequenceConfig(max_length=48),
        train=FinetuneTrainConfig(steps=1, lr=1e-3),
    )
    return FinetuneTrial(tuning, TrialContext(task_data=open_task(tuning.task), ranks=Ranks(torch.device("cpu"))))


@pytest.mark.parametrize("method", ["lora", "full", "adapter"])
def test_the_reference_is_the_base_model(method: str, base: Path) -> None:
    """For training and held-out pairs; the loss of DPO starts at log 2, and no reward differs."""
    trial = open_trial(base, "pairs", method)
    plain = adapt(pt.load(base / "base"), Generation()).eval()
    items = trial.data.train[0]
    assert items.sequences.sequence_logits is not None
    batch = TaskStream(items, batch=len(items)).batch(0)
    with torch.no_grad():
        expected = compute_answer_logprobs(plain, batch).sums[batch.find_sequence_cells()]
    assert batch.teacher_logits is not None
    actual = batch.teacher_logits[batch.find_sequence_cells(), 0]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
    scores = trial._score_selection()
    assert scores["preference_loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert scores["reward_margin"] == pytest.approx(0, abs=1e-5)


def test_exchanged_answers_negate_the_margin(base: Path) -> None:
    margins = []
    for table in ("pairs", "exchanged"):
        trial = open_trial(base, table)
        with torch.no_grad():
            for parameter in trial.adapted_model.trainable_parameters.values():
                parameter.add_(torch.linspace(-0.3, 0.3, parameter.numel()).view_as(parameter))
        scores = trial._score_selection()
        margins.append(scores["reward_margin"])
    assert margins[0] == pytest.approx(-margins[1], rel=1e-4) and margins[0] != 0


OTHER_TYPE = {"overrides": {"tune.preference": "dpo"}, "task": "classification", "text": "prompt", "label": "chosen"}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("base", {"method": "prefix"}, "virtual tokens"),
        ("bert", {}, "decoder"),
        ("base", OTHER_TYPE, "tune.preference"),
    ],
)
def test_what_is_refused(model: str, options: dict[str, Any], words: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as fault:
        tune(base, tmp_path / "run", model, **options)
    assert "\n" not in str(fault.value) and not RunDir(tmp_path / "run").scores.exists()
