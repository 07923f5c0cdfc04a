"""Changes of weights: known changes are found where they are; LoRA counts as a change of what it adapts."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation.peft.vectors import BitFit
from pretune.analysis.weight_change import analyze_diff, compare_weights
from pretune.cli import main
from pretune.core.errors import UsageError
from pretune.text.tokenizer.training import train
from tests.analysis.models import FAMILY_NAMES, model_of
from tests.selection import keep_quick

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("family", keep_quick(FAMILY_NAMES, "bert"))
def test_a_change_is_found_in_its_layer(family: str) -> None:
    model = model_of(family)
    moved = copy.deepcopy(model)
    stack = "encoder" if model.spec.encoder is not None else "decoder"
    name = next(name for name, _ in moved.named_parameters() if name.startswith(f"{stack}.0.") and name.count(".") > 2)
    weight, before = moved.get_parameter(name), model.get_parameter(name).detach()
    with torch.no_grad():
        weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    changes = compare_weights(model, moved)
    layer = next(layer for layer in changes.layers if layer.name == f"{stack} 1")
    norm = math.sqrt(sum(float(p.detach().double().square().sum()) for n, p in model.named_parameters()
                         if n.startswith(f"{stack}.0.")))  # fmt: skip
    change = float((weight.detach() - before).double().norm())
    assert layer.distance == pytest.approx(change / norm, rel=1e-6)
    kind = next(kind for kind in layer.kinds if layer.kinds[kind].distance)
    assert name.split(".")[2].startswith(kind.removesuffix("s")) or kind == "norms"
    assert {other.name for other in changes.layers if other.distance} == {layer.name}
    assert changes.layers[-1].cosine == pytest.approx(1) and layer.cosine < 1
    assert changes.added == changes.removed == 0


def test_two_equal_models_have_not_moved() -> None:
    changes = compare_weights(model_of("t5"), model_of("t5"))
    assert changes.distance == 0 and changes.cosine == pytest.approx(1) and "0.00%" in repr(changes)
    assert sum(layer.params for layer in changes.layers) == sum(p.numel() for p in model_of("t5").parameters())


def test_other_architectures_are_refused(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(UsageError, match=r"differ in|no layer in common"):
        compare_weights(model_of("bert"), model_of("gpt2"))
    pt.save(model_of("bert"), tmp_path / "a")
    assert main(["analyze", "diff", str(tmp_path / "a")]) == 2
    assert "pass two models" in capsys.readouterr().err
    assert main(["analyze", "diff", *[str(tmp_path / "a")] * 3]) == 2
    assert main(["analyze", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 4
    assert main(["--quiet", "analyze", "diff", *[str(tmp_path / "a")] * 2, "--json"]) == 0
    capsys.readouterr()


def test_new_rows_of_tables_are_no_change(tmp_path: Path) -> None:
    model = model_of("bert")
    larger = copy.deepcopy(model)
    larger.tokens.weight = torch.nn.Parameter(torch.cat([model.tokens.weight.detach(), torch.ones(2, 32)]))
    changes = compare_weights(model, larger)
    assert changes.distance == 0 and changes.added == 64


def test_a_task_head_is_new_and_its_pooler_is_not() -> None:
    """The pooler becomes the first layer of the head; the pre-training heads are gone."""
    model = model_of("bert")
    tuned = pt.add_head(copy.deepcopy(model), "classification", labels=["a", "b"])
    with torch.no_grad():
        tuned.head.dense.weight.mul_(2)
    changes = analyze_diff(model, tuned)
    width = model.spec.width
    pooler = width * width + width
    pretraining = sum(p.numel() for n, p in model.named_parameters() if n.startswith(("head.", "pair.", "pooler.")))
    assert (changes.added, changes.removed) == (2 * width + 2, pretraining - pooler)
    heads = next(layer for layer in changes.layers if layer.name == "heads")
    assert heads.params == pooler and heads.distance > 0.9
    other = pt.add_head(copy.deepcopy(model), "classification", labels=["a", "b", "c"])
    changes = analyze_diff(tuned, other)
    assert (changes.added, changes.removed) == (3 * width + 3, 2 * width + 2)
    assert analyze_diff(tuned, tuned).added == 0


def test_biases_of_a_merged_adapter_were_zero() -> None:
    model, tuned = model_of("t5"), copy.deepcopy(model_of("t5"))
    method = BitFit()
    new_names = [name for name in method.apply(tuned) if name not in dict(model.named_parameters())]
    with torch.no_grad():
        for name in new_names:
            tuned.get_parameter(name).fill_(0.1)
    method.merge(tuned)
    changes = compare_weights(model, tuned, is_merged=True)
    count = sum(tuned.get_parameter(name).numel() for name in new_names)
    assert count and changes.added == 0 and changes.total.change_squares == pytest.approx(0.01 * count, rel=1e-5)
    assert {layer.name for layer in changes.layers if layer.distance} >= {"encoder 1", "decoder 1"}
    assert compare_weights(model, tuned).added == count


def test_the_final_norm_is_no_part_of_the_last_layer() -> None:
    model, moved = model_of("gpt2"), copy.deepcopy(model_of("gpt2"))
    with torch.no_grad():
        moved.get_parameter("decoder.norm.weight").add_(0.5)
    layers = {layer.name: layer for layer in compare_weights(model, moved).layers}
    assert [name for name, layer in layers.items() if layer.distance] == ["decoder norm"]
    assert [*layers["decoder norm"].kinds] == ["norms"]
    assert layers["decoder 2"].params == layers["decoder 1"].params


def test_other_families_and_other_numbers_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="family"):
        analyze_diff(model_of("gpt"), model_of("gpt2"))
    model, other = model_of("bert"), copy.deepcopy(model_of("bert"))
    tokenizer = train("wordpiece", ["other words of another text " * 9], vocab=model.spec.vocab)
    other.assets.tokenizer, other.assets.files = tokenizer.raw, tokenizer.build_files()
    changes = compare_weights(model, other)
    assert changes.added == changes.removed >= model.tokens.weight.numel()
    assert "encoder 1" in {layer.name for layer in changes.layers} and changes.distance == 0


@pytest.mark.slow
def test_lora_is_merged(tmp_path: Path, capsys: Capture) -> None:
    from tests.runs import tasked

    base = tasked.make_base(tmp_path)
    tasked.classes(tmp_path / "table.csv", 24)
    run = tmp_path / "lora"
    command = ["finetune", str(base), "--train", str(tmp_path / "table.csv"), "--method", "lora", "--steps", "3",
               "--baselines", "none", "--out", str(run), "--set", "train.lr=0.05",
               "--set", "train.eval_every=3"]  # fmt: skip
    assert main(["--quiet", *command]) == 0
    capsys.readouterr()
    assert main(["--quiet", "analyze", "diff", str(run), "--out", str(run / "analysis"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    layers = {row["layer"]: row for row in data["layers"]}
    assert layers["encoder 1"]["kinds"]["attention"]["distance"] > 0
    assert layers["embeddings"]["distance"] == 0 == layers["encoder 1"]["kinds"]["feedforward"]["distance"]
    assert (run / "analysis" / "diff.svg").is_file()
    both = analyze_diff(base, run)
    assert both.to_dict()["distance"] == data["distance"]
    page = tmp_path / "report.html"
    assert main(["--quiet", "report", str(run), "--out", str(page)]) == 0
    assert "weights moved by" in page.read_text()
