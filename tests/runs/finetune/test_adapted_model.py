"""What a strategy by its name comes to in the model that a run begins with: groups, rates, and what is opened later."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.freeze import Epochs, Plateau
from pretune.adaptation.scalar_mix import ScalarMixHead
from pretune.core.errors import UsageError
from pretune.inference.text_model import get_tokenizer
from pretune.runs.finetune.adapted_model import AdaptedModel, build_adapted_model, build_encoder
from pretune.runs.finetune.config import TaskConfig
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.task_data import open_task
from pretune.runs.finetune.trial import FinetuneTrial, TrialContext
from pretune.tasks.task import Task
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from pretune.training.distributed import Ranks
from pretune.training.optim import split_parts
from tests.runs import tasked
from tests.runs.configs import build_finetune_config
from tests.runs.small import FAST, Prepared, shrunk

CPU = Ranks(torch.device("cpu"))
PARTS = ["embeddings", "model.encoder.0", "model.encoder.1", "heads"]


def begun(base: Path, table: Path, method: str, **changes: Any) -> AdaptedModel:
    tuning = build_finetune_config(base, train=table, method=method, overrides=changes)
    return build_adapted_model(tuning, open_task(TaskConfig(train=str(table))).task, CPU)


@pytest.mark.parametrize(
    ("method", "trained"),
    [
        ("full", PARTS),
        ("frozen", PARTS[3:]),
        ("freeze-first", PARTS[2:]),
        ("last-only", PARTS[2:]),
        ("gradual", PARTS),
        ("lora", PARTS[1:]),
        ("lora+last-only", PARTS[2:]),
        ("bitfit+freeze-first", PARTS[2:]),
    ],
)
def test_parts_that_are_trained(base: Path, table: Path, method: str, trained: list[str]) -> None:
    found = begun(base, table, method)
    assert [
        part for part, names in split_parts(found.model).items() if {*names} & {*found.trainable_parameters}
    ] == trained
    assert {group.lr_factor for group in found.groups} == {1.0}


@pytest.mark.parametrize(("method", "factor"), [("ulmfit", 1 / 2.6), ("full", 0.5), ("lora", 0.5)])
def test_every_part_learns_slower_than_the_one_above(base: Path, table: Path, method: str, factor: float) -> None:
    found = begun(base, table, method, **({} if method == "ulmfit" else {"tune.layer_decay": factor}))
    rates = {group.part: group.lr_factor for group in found.groups}
    expected = {part: factor**above for above, part in enumerate(reversed(PARTS)) if part in rates}
    assert rates == pytest.approx(expected) and len(rates) == (3 if method == "lora" else 4)


@pytest.mark.parametrize("method", ["full", "lora", "prompt"])
def test_what_is_new_is_drawn_by_the_seed(base: Path, table: Path, method: str) -> None:
    one, same, other = (begun(base, table, method, **{"train.seed": seed}) for seed in (3, 3, 4))
    drawn = [name for name in one.trainable_parameters if name.endswith((".a", "prompt.table", "head.out.weight"))]
    assert len(drawn) == {"full": 1, "lora": 5, "prompt": 2}[method]
    for name in drawn:
        assert torch.equal(one.trainable_parameters[name], same.trainable_parameters[name])
        assert not torch.equal(one.trainable_parameters[name], other.trainable_parameters[name])


@pytest.mark.parametrize("method", ["gradual", "ulmfit", "lora+gradual"])
def test_parts_are_opened_from_above(base: Path, table: Path, method: str) -> None:
    found = begun(base, table, method)
    (hook,) = found.unfreezing
    free = [name for name, parameter in found.model.named_parameters() if parameter.requires_grad]
    assert free and all(name.startswith("head.") for name in free)
    hook.num_unfrozen = 1
    hook.update_requires_grad()
    more = {name for name, parameter in found.model.named_parameters() if parameter.requires_grad} - {*free}
    assert more and all(name.startswith("model.encoder.1.") for name in more)
    assert more <= {*found.trainable_parameters}


def test_when_they_are_opened_can_be_said(base: Path, table: Path) -> None:
    told = {"tune.trainable_layers": {"kind": "gradual", "when": {"kind": "plateau", "patience": 3}}}
    (hook,) = begun(base, table, "lora", **told).unfreezing
    assert hook.spec.when == Plateau(patience=3)
    (hook,) = begun(base, table, "gradual", **{"method.when": {"kind": "epochs", "every": 0.5}}).unfreezing
    assert hook.spec.when == Epochs(every=0.5)


@pytest.mark.parametrize("method", ["gradual", "lora+gradual"])
def test_a_run_tells_them_how_long_it_is(base: Path, table: Path, tmp_path: Path, method: str) -> None:
    """So that the second half belongs to the whole model."""
    tuning = build_finetune_config(base, train=table, method=method, steps=40)
    (hook,) = FinetuneTrial(tuning, TrialContext(task_data=open_task(tuning.task), ranks=CPU)).adapted_model.unfreezing
    assert (hook.epoch, hook.steps) == (3, 40)  # 96 examples in batches of 32


def test_what_a_head_lacks_cannot_be_set(base: Path, table: Path) -> None:
    with pytest.raises(UsageError, match=r"tune\.pooling.*'span'"):
        squad = Task(name="own", kind="span", metrics=("squad",), splits={})
        build_adapted_model(
            build_finetune_config(base, train=table, overrides={"tune.pooling": {"mode": "mean"}}),
            squad,
            CPU,
        )


def test_scores_of_ones_own_are_stretched_by_what_train_has(base: Path, tmp_path: Path) -> None:
    table = tasked.scores(tmp_path / "scores.tsv", 40)
    tuning = build_finetune_config(base, train=table, text="one", pair="two", label="score")
    opened = open_task(tuning.task)
    made = build_adapted_model(tuning, opened.task, CPU)
    values = [float(one.label or 0) for one in opened.parts.train]
    assert build_encoder(tuning, opened.task, made.model, opened.parts.train).rules.scale == (min(values), max(values))


@pytest.mark.parametrize(("method", "taken"), [("prompt", 20), ("prefix", 20), ("lora", 0)])
def test_the_text_is_shorter_by_what_stands_before_it(table: Path, tmp_path: Path, method: str, taken: int) -> None:
    base = tasked.make_base(tmp_path, positions=48)
    tuning = build_finetune_config(base, train=table, method=method)
    opened = open_task(tuning.task)
    made = build_adapted_model(tuning, opened.task, CPU)
    found = build_encoder(tuning, opened.task, made.model, opened.parts.train)
    assert found.rules.max_length == 48 - taken and found.slots == (20 if method == "prompt" else 0)
    long = build_finetune_config(base, train=table, method=method, overrides={"data.max_length": 40})
    if taken:
        with pytest.raises(UsageError, match=r"max_length.*\b40\b"):
            build_encoder(long, opened.task, made.model, opened.parts.train)
    else:
        assert build_encoder(long, opened.task, made.model, opened.parts.train).rules.max_length == 40


def test_of_two_ways_a_mix_reads_both(prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As ELMo is used: what reads from the right lies in the base's directory, and goes with the head."""
    data, small = prepared("bpe", "endoftext"), {**shrunk("gpt2-small"), **FAST}
    wish: dict[str, Any] = {"objective": "bidirectional", "steps": 2, "overrides": small}
    base = pt.pretrain("gpt2-small", data=data, out=tmp_path / "base", **wish)
    table = tasked.classes(tmp_path / "own.csv", 40)
    quick = {"train.eval_examples": 8, "data.max_length": 32, "tune.scalar_mix.lstm.hidden": 8}
    mixed: dict[str, Any] = {"method": "scalar-mix", "steps": 2, "baselines": "none", "overrides": quick}
    run = finetune(base, train=table, out=tmp_path / "run", **mixed)
    reader, right = pt.load(run).head, pt.load(base.path / "backward").state_dict()
    assert isinstance(reader, ScalarMixHead) and reader.backwards is not None
    assert all(torch.equal(weight, right[name]) for name, weight in reader.backwards.state_dict().items())
    assert reader.lstm.width == 16 and pt.predict(run, ["the sea"]) == run.predict(["the sea"])
    capsys.readouterr()
    finetune(base, train=table, out=tmp_path / "left", method="frozen", steps=1, baselines="none")
    assert "`scalar-mix`" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"tune\.scalar_mix\.ways .*backward/"):
        mixed["overrides"] = {**quick, "tune.scalar_mix.ways": "both"}
        finetune(base.path / "backward", train=table, out=tmp_path / "no", **mixed)


def test_a_base_with_another_vocabulary_and_more_positions(base: Path, tmp_path: Path) -> None:
    train("bpe", tasked.corpus(), vocab=300, style="s-mask").save(tmp_path / "tokenizer")
    table = tasked.classes(tmp_path / "own.csv", 40)
    changes = {"base.tokenizer": str(tmp_path / "tokenizer"), "base.positions": 200, "data.max_length": 150}
    run = finetune(base, train=table, out=tmp_path / "run", steps=1, baselines="none", overrides=changes)
    model = pt.load(run)
    assert isinstance(model, ModelWithHead) and model.model.spec.max_length == 200
    wanted = Tokenizer.load(tmp_path / "tokenizer")
    assert get_tokenizer(model).sha256 == wanted.sha256 and model.model.spec.vocab == wanted.vocab
    assert pt.predict(run, ["sea " * 120]) == run.predict(["sea " * 120])
    with pytest.raises(UsageError, match=r"base\.tokenizer.*'lora'"):
        build_finetune_config(base, train=table, method="lora", overrides=changes)
