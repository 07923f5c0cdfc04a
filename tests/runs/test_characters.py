"""Runs of a model that reads characters in both directions: exact resume, words never seen, evaluation, bad input."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.cli import main
from pretune.evaluation.perplexity import evaluate_perplexity
from pretune.models.tensor_files import _SHARED_TOKENIZERS
from pretune.runs.finetune.sweep import FinetuneSweep
from pretune.text.tokenizer.open_vocabulary import OpenTokenizer
from tests.conftest import Capture, Patch, run_command
from tests.runs.small import FAST, Prepared, shrunk

SETTINGS = {**shrunk("elmo-small"), **FAST, "model.depth": 2, "train.checkpoint_every": 2, "data.samples": "documents"}
TEXTS = ["The old zyzzyva knew the house.", "Nobody had a quokka there, she said."]


@pytest.fixture(scope="module")
def run(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps with a sampled softmax of 20 words."""
    overrides = {**SETTINGS, "model.head.sampling.samples": 20}
    out = tmp_path_factory.mktemp("characters") / "run"
    return pt.pretrain(
        "elmo-small", data=prepared("words", "plain"), out=out, steps=4, overrides=overrides, device="cpu"
    ).path


def test_a_resumed_run_is_the_same(run: Path, tmp_path: Path) -> None:
    """Sampled words too: they are drawn from the seed of the step."""
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    for name in ("model.safetensors", "config.json", "MANIFEST.json", "cost.json"):
        (copy / name).unlink()
    pt.pretrain(out=copy, resume=True, device="cpu")
    first, second = (load_file(path / "model.safetensors") for path in (run, copy))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluation = next(line for line in reversed(metrics) if "clipped_outputs" in line.get("held_out", line))
    values = evaluation.get("held_out", evaluation)
    assert {"forward", "backward", "clipped_outputs", "clipped_cells"} <= {*values}


def test_words_never_seen_are_read_by_their_characters(run: Path, tmp_path: Path) -> None:
    model = pt.load(run)
    tokenizer = model.tokenizer
    assert isinstance(tokenizer, OpenTokenizer) and tokenizer.token_to_id("zyzzyva") is None
    one, other = model.eval()(tokenizer(["the zyzzyva"])), model(tokenizer(["the quokka"]))
    assert not torch.allclose(one.states[2], other.states[2], atol=1e-5)
    assert torch.allclose(one.logits[:2], other.logits[:2], atol=1e-6)  # from left to right
    words = pt.embed(model, ["zyzzyva", "quokka", "zyzzyva"])
    assert np.allclose(words[0], words[2], atol=1e-6) and not np.allclose(words[0], words[1], atol=1e-5)
    assert words.shape == (3, model.spec.width)
    again = pt.load(run)  # texts may be encoded by the tokenizer of another copy of the model
    assert again.tokenizer is tokenizer
    assert torch.equal(again.eval()(tokenizer(TEXTS)).states, model(tokenizer(TEXTS)).states)


def test_perplexity_of_both_directions(run: Path) -> None:
    """Against the logits of each direction, one text at a time; words outside the vocabulary are unknown targets."""
    model = pt.load(run).eval()
    tokenizer = model.tokenizer
    result = evaluate_perplexity(model, TEXTS)
    unknown, nats, count = tokenizer.special["unk"], {False: 0.0, True: 0.0}, 0
    for text in TEXTS:
        ids = tokenizer.encode(text)
        for is_backward in (False, True):
            sequence = ids[::-1] if is_backward else ids
            with torch.no_grad():
                logprobs = model.get_direction(backward=is_backward)(pt.batch([sequence])).logits.log_softmax(-1)
            labels = [i if i < tokenizer.vocab else unknown for i in sequence[1:-1]]
            nats[is_backward] -= float(sum(logprobs[place, label] for place, label in enumerate(labels)))
        count += len(ids) - 2
    assert result.scores["perplexity"] == pytest.approx(math.exp(nats[False] / count), rel=1e-5)
    assert result.scores["backward_perplexity"] == pytest.approx(math.exp(nats[True] / count), rel=1e-5)
    assert result.counts["unknown"] >= 2
    assert evaluate_perplexity(model.train(), TEXTS).scores == result.scores  # without dropout


@pytest.mark.parametrize(
    "method", ["scalar-mix", *(pytest.param(name, marks=pytest.mark.slow) for name in ("full", "lora", "adapter"))]
)
def test_fine_tuning_and_prediction_read_new_words(run: Path, tmp_path: Path, method: str, monkeypatch: Patch) -> None:
    """With two seeds: ids of new words are those of one tokenizer, which is forgotten with the model of a trial."""
    run_trial = FinetuneSweep._run_trial

    def run_and_forget(sweep: FinetuneSweep, *arguments: Any) -> None:
        run_trial(sweep, *arguments)
        _SHARED_TOKENIZERS.clear()

    monkeypatch.setattr(FinetuneSweep, "_run_trial", run_and_forget)
    for sample in ("runs.finetune.adapted_model.SAMPLE_EXAMPLES", "tasks.encoder.LENGTH_SAMPLE"):
        monkeypatch.setattr(f"pretune.{sample}", 1)  # as with many examples: few are tokenized again
    rows = [f"the {word}{i} was {good},{good}" for i in range(16) for word, good in (("zx", "fine"), ("qy", "bad"))]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *rows]))
    tuned = pt.finetune(
        run,
        train=tmp_path / "table.csv",
        out=tmp_path / "tuned",
        method=method,
        epochs=1,
        seeds=2,
        baselines="none",
        device="cpu",
    )
    first, second = tuned.predict(["the unheardof was fine", "the otherword was fine"])
    assert first["label"] in ("fine", "bad") and first["probabilities"] != second["probabilities"]


@pytest.mark.slow
def test_commands(run: Path, tmp_path: Path, capsys: Capture) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS))
    for command in (
        ["evaluate", str(run), "--text", str(text)],
        ["generate", str(run), "The old"],
        ["embed", str(run), "--input", str(text), "--out", str(tmp_path / "vectors.npy")],
        ["neighbors", str(run), "zyzzyva", "--in", "a zyzzyva ran", "--corpus", str(text)],
        ["verify", str(run)],
        ["show", "elmo-original"],
    ):
        assert main(command) == 0, capsys.readouterr().err
    assert "backward_perplexity" in capsys.readouterr().out


def test_data_without_words_is_refused(prepared: Prepared, tmp_path: Path, capsys: Capture) -> None:
    command = ["pretrain", "elmo-small", "--data", str(prepared()), "--out", str(tmp_path / "run"), "--steps", "1"]
    error = run_command(capsys, command, code=2).err.strip().splitlines()[-1]
    assert "needs word boundaries, but the tokenizer (WordPiece) splits words into pieces" in error
    assert not (tmp_path / "run").exists()
