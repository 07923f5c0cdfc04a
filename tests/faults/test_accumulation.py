"""Results depend neither on micro-batches nor on ranks, for every objective (R9).

Rows have unequal numbers of targets, so that a mean of means would be another number. Plain SGD: weights are then sums
of gradients, and show whatever is wrong with them.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pretune.objectives import OBJECTIVES
from pretune.objectives.base import ModelShape
from pretune.runs.prepare import prepare
from pretune.runs.pretrain import pretrain
from tests.data.texts import stories
from tests.faults.runs import Nursery, arguments, made_data, metrics
from tests.selection import keep_quick

STEPS = 3
MODELS: dict[ModelShape, str] = {
    "encoder": "bert-tiny",
    "decoder": "gpt2",
    "encoder-decoder": "bart",
    "generator-discriminator": "electra",
    "two-way": "gpt2",
    "two-stream": "xlnet",
}
OTHERS = {"span_corruption": "t5", "prefix": "t5", "mixture": "t5"}
"""Objectives that need other special tokens, or are another model's."""
TOKENIZERS = {
    "bert-tiny": ("wordpiece", "cls-sep"),
    "electra": ("wordpiece", "cls-sep"),
    "gpt2": ("bpe", "endoftext"),
    "bart": ("bpe", "s-mask"),
    "t5": ("unigram", "sentinels"),
    "xlnet": ("unigram", "cls-last"),
}


@pytest.fixture(scope="module")
def datas(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The same stories for every tokenizer, and beside them as pairs of their halves."""
    made = {}
    for key in dict.fromkeys(TOKENIZERS.values()):
        made[key] = made_data(tmp_path_factory.mktemp("data"), *key, count=60)
        folder = made[key].parent
        words = [story.split()[:16] for story in stories(60)]
        for side, half in (("x", slice(8)), ("y", slice(8, None))):
            (folder / side).write_text("".join(" ".join(story[half]) + "\n" for story in words))
        prepare(
            [f"pair:{folder}/x,{folder}/y"], tokenizer=folder / "tokenizer", out=folder / "pairs", holdout=0, workers=0
        )
    return made


def settings(name: str, micro_tokens: int, **more: Any) -> dict[str, Any]:
    """Eight rows or more a step, so many tokens of them at a time."""
    small = {"width": 16, "heads": 2, "depth": 1, "hidden": 24, "dropout": 0}
    small |= {"head_width": 8} if name == "t5" else {} if name == "xlnet" else {"positions": 128}
    train = {"optimizer": "sgd", "lr": 0.1, "batch_tokens": 256 if name not in ("bart", "t5") else 512, "log_every": 1}
    train |= {"micro_tokens": micro_tokens, "eval_tokens": 0, "samples_every": 0}
    return {
        **{f"model.{path}": value for path, value in small.items()},
        **{f"train.{path}": value for path, value in train.items()},
        "data.max_length": 32,
        **more,
    }


def micro(run: Path) -> int:
    """The micro-batches per rank and step that a run had."""
    state = json.loads((run / f"checkpoints/step-{STEPS:08}/state.json").read_text())
    return int(state["facts"]["state"]["micro"])


@pytest.mark.parametrize("objective", keep_quick(OBJECTIVES.list_names(), "masked"))
@pytest.mark.slow
def test_what_is_learnt(runs: Nursery, datas: dict[tuple[str, str], Path], tmp_path: Path, objective: str) -> None:
    name = OTHERS.get(objective) or MODELS[OBJECTIVES.get(objective)().shapes[0]]
    data = datas[TOKENIZERS["bart" if objective == "masked_next" else name]]  # it needs a mask token
    if OBJECTIVES.get(objective)().pairs in ("kept", "apart"):
        data = data.parent / "pairs"
    wishes = {"data": data, "objective": objective, "steps": STEPS}
    longer = {"mixture": 640, "denoising": 1024}  # their rows hold several sequences
    more = {"train.batch_tokens": longer[objective]} if objective in longer else {}
    if objective == "distill":
        teacher = pretrain(name, data=data, out=tmp_path / "teacher", steps=1, overrides=settings(name, 10_000))
        more |= {"objective.teacher": str(teacher), "objective.init": "random"}
        more |= {"objective.state_weight": 1, "objective.attention_weight": 1}
    whole, pairs, single = (
        pretrain(name, out=tmp_path / str(tokens), overrides=settings(name, tokens, **more), **wishes).path
        for tokens in (10_000, 256 if name in ("bart", "t5") else 64, 1)
    )
    given = {path.replace(".", "__"): value for path, value in settings(name, 64, **more).items()}
    options = ("--objective", objective, "--steps", str(STEPS))
    for child in runs.ranks(["--quiet", *arguments(data, tmp_path / "ranks", *options, name=name, **given)]):
        assert child.wait() == 0, child.errors()
    rows = micro(single)
    assert rows >= 8 and micro(whole) == 1 and 2 <= micro(pairs) <= rows // 2 and micro(tmp_path / "ranks") >= 2
    files = [file for file in whole.rglob("*.safetensors") if "checkpoints" not in file.parts]
    assert files
    for other in (pairs, single, tmp_path / "ranks"):
        found, wanted = metrics(other), metrics(whole)
        assert [line["tokens"] for line in found] == [line["tokens"] for line in wanted]
        for term in {*wanted[0]} - {"step", "rate", "tokens", "skipped"}:
            close = 1e-6 if term == "soft" else None  # a divergence near 0 is a difference of larger numbers
            values = [line[term] for line in wanted]
            assert [line[term] for line in found] == pytest.approx(values, rel=1e-5, abs=close), term
        for file in files:
            theirs = load_file(other / file.relative_to(whole))
            for key, value in load_file(file).items():
                torch.testing.assert_close(theirs[key], value, rtol=1e-5, atol=1e-6, msg=f"{file.name}: {key}")
