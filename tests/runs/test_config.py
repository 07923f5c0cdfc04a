"""From wishes to settings: what is typed, what is refused and how, and what a file changes. Nothing is trained."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.core import config
from pretune.core.config import to_dict
from pretune.core.errors import PretuneError, UsageError
from pretune.core.log import parse_duration
from pretune.models.families import FAMILIES
from pretune.nn.heads import SpanHead
from pretune.objectives.next_sentence import NextSentence
from pretune.objectives.span_masked import Boundary, SpanMaskedLM
from pretune.runs.config import PretrainConfig, PretrainTrainConfig
from pretune.runs.defaults import replace_heads
from pretune.runs.estimate import THIS_MACHINE, estimate_pretrain, measure_flops
from pretune.runs.finetune.config import (
    FinetuneTrainConfig,
)
from pretune.runs.pretrain import pretrain
from pretune.text.tokenizer import Tokenizer
from pretune.training.config import Cosine, InverseSquareRoot, LinearSchedule, SlantedTriangular, Stable, TrainConfig
from pretune.training.optim.lamb import Lamb
from tests.runs.configs import build_pretrain_config
from tests.runs.small import Prepared, shrunk


def refused(model: str | None = "bert-tiny", kind: type[PretuneError] = UsageError, **wishes: Any) -> str:
    """The one line with which a wish is refused."""
    with pytest.raises(kind) as error:
        build_pretrain_config(model, **{"device": "cpu", **wishes})
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def data(prepared: Prepared) -> Path:
    return prepared()


class TestPaths:
    def test_what_papers_did_is_the_default(self, data: Path) -> None:
        found = build_pretrain_config("bert-tiny", data=data, device="cpu")
        paper = FAMILIES.get("bert").training
        assert paper is not None
        assert config.get_kind(found.objective) == "next_sentence"
        assert found.data.schedule.phases[0].length == 128 and found.data.max_length == 512
        assert (found.train.epochs, found.train.batch_tokens, found.train.seed) == (1.0, 2048, 0)
        assert found.train.optimizer.weight_decay == 0.01 and found.train.optimizer.eps == 1e-6
        tokenizer = Tokenizer.load(data / "tokenizer")
        assert (found.model.vocab, found.model.special.pad) == (tokenizer.vocab, tokenizer.special["pad"])

    def test_text_is_typed_by_its_field(self, data: Path) -> None:
        changes = {
            "train.lr": "3e-4",
            "train.optimizer": "lamb",
            "train.clip": "null",
            "train.compile": "false",
            "data.length_schedule": "null",
            "objective.masking.rate": "0.3",
            "model.width": "64",
            "model.encoder.blocks.0.dropout": "0",
        }
        found = build_pretrain_config("bert-tiny", data=data, overrides=changes, device="cpu")
        assert found.train.lr == found.train.optimizer.lr == 3e-4 and isinstance(found.train.optimizer, Lamb)
        assert found.train.clip is None and found.train.compile is False and found.data.length_schedule is None
        assert isinstance(found.objective, NextSentence) and found.objective.masking.rate == 0.3
        assert found.model.width == 64 and found.model.last_stack.blocks[0].dropout == 0

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"train.lrr": "1"}, "train: unknown path 'lrr'; did you mean 'lr'?"),
            ({"trian.lr": "1"}, "unknown setting 'trian.lr'; did you mean 'train.lr'?"),
            ({"lr": "1"}, "unknown setting 'lr'"),
            ({"model.widht": "64"}, "unknown setting 'widht'; did you mean 'width'?"),
            ({"objective.masking.rat": "1"}, "objective: unknown path 'masking.rat'; did you mean 'masking.rate'?"),
            ({"data.maxlength": "1"}, "data: unknown path 'maxlength'; did you mean 'max_length'?"),
            ({"train.lr": "fast"}, "'fast'"),
            ({"train.lr": "-1"}, "got -1.0"),
            ({"train.precision": "fp4"}, "train.precision: 'fp4' is not allowed"),
            ({"train.max_checkpoints": "1"}, "train.max_checkpoints must be >= 2, got 1"),
            ({"train.schedule": "cosin"}, "did you mean 'cosine'?"),
            ({"train.lr": "1e-3", "train.optimizer.lr": "2e-3"}, "1e-3 and 2e-3; keep one"),
            ({"train.steps": "5", "train.tokens": "9"}, "steps and tokens; keep one"),
            ({"train.steps": "0"}, "train.steps must be > 0, got 0"),
            ({"data.max_length": "1"}, "data.max_length must be >= 2, got 1"),
            ({"model.heads": "3"}, "3"),
        ],
    )
    def test_what_cannot_be_is_refused(self, data: Path, changes: dict[str, str], told: str) -> None:
        assert told in refused(data=data, overrides=changes)

    def test_one_rate_with_two_names(self, data: Path) -> None:
        for changes in (
            {"train.optimizer.lr": "1e-3"},
            {"train.lr": 1e-3},
            {"train.optimizer": {"kind": "lamb", "lr": 1e-3}},
        ):
            found = build_pretrain_config("bert-tiny", data=data, overrides=changes, device="cpu").train
            assert found.lr == found.optimizer.lr == 1e-3

    def test_what_is_missing_is_asked_for(self, data: Path, tmp_path: Path) -> None:
        assert "model" in refused(None, data=data)
        assert "--data" in refused("bert-tiny")
        assert re.search("'brt'.*'bert'", refused("brt", data=data))
        assert re.search("'maskd'.*'masked'", refused(data=data, objective="maskd"))


class TestLengths:
    def test_one_length(self, data: Path) -> None:
        assert re.search("steps.*budget", refused(data=data, steps=1, budget="10s"))
        for wish in ({"steps": 0}, {"tokens": -1}, {"epochs": 0.0}, {"budget": 0.0}):
            assert f"train.{next(iter(wish))}" in refused(data=data, **wish)
        for text in ("", "soon", "-1m", "0s", "infh", "nan", "1w"):
            assert f"'{text}'" in refused(data=data, budget=text)
        assert (
            parse_duration("1.5h"),
            parse_duration("5min"),
            parse_duration("2 hours 10 s"),
            parse_duration("1d"),
        ) == (5400, 300, 7210, 86400)
        for text, remedy in (("6", "6m.*6s"), ("0", "90s.*10m"), ("1h30", "90s.*10m")):
            assert re.search(f"'{text}'.*{remedy}", refused(data=data, budget=text))
        found = build_pretrain_config("bert-tiny", data=data, overrides={"train.steps": "7"}, device="cpu").train
        assert found.steps == 7 and found.epochs is None
        assert re.search("steps.*tokens", refused(data=data, steps=3, overrides={"train.tokens": "7"}))

    def test_warm_ups_fit(self, data: Path) -> None:
        def schedule(name: str, **wishes: Any) -> Any:
            return build_pretrain_config(name, data=data, device="cpu", **wishes).train.schedule

        assert schedule("bert-tiny", steps=200) == LinearSchedule(warmup=20)
        assert schedule("bert-tiny", steps=10**6) == LinearSchedule(warmup=10_000)
        assert schedule("bert-tiny", steps=5) == LinearSchedule(warmup=0)
        assert schedule("bert-tiny", tokens=2048 * 200) == LinearSchedule(warmup=20)
        assert schedule("bert-tiny", steps=200, overrides={"train.schedule.warmup": "50"}) == LinearSchedule(warmup=50)
        assert schedule("bert-tiny", steps=200, overrides={"train.schedule.floor": "0.5"}) == LinearSchedule(
            warmup=20, floor=0.5
        )
        assert schedule("t5-small", steps=1000) == InverseSquareRoot(hold=100)
        assert schedule("mass", steps=1000) == InverseSquareRoot(warmup=100)
        assert schedule("bert-tiny", steps=9, overrides={"train.schedule": "cosine"}) == Cosine()

    def test_against_the_clock_all_come_down_to_zero(self, data: Path, prepared: Prepared) -> None:
        words = prepared("words", "plain")  # ELMo reads the characters of words
        for name in FAMILIES:
            paper = FAMILIES.get(name).training
            if paper is not None:
                family_data = words if paper.tokenizer[0] == "words" else data
                found = build_pretrain_config(
                    name, data=family_data, budget="1m", overrides=shrunk(name), device="cpu"
                ).train.schedule
                last = found.floor if isinstance(found, SlantedTriangular) else 0  # ULMFiT ends at 1 / 32 by design
                assert found.compute_factor_at(1.0, 10**5) == pytest.approx(last, abs=1e-12), name
                assert max(found.compute_factor_at(share / 20, 10 * share) for share in range(20)) > 0.9, name
        kept = build_pretrain_config(
            "gpt2", data=data, budget="1m", overrides={"train.schedule.floor": "0.1"}, device="cpu"
        )
        assert kept.train.schedule == Cosine(warmup=0.05, floor=0.1)
        assert build_pretrain_config("t5", data=data, budget=60, device="cpu").train.schedule == Stable(
            warmup=0.0, decay=0.2
        )


class TestFiles:
    def test_a_whole_tree_is_what_it_says(self, data: Path, tmp_path: Path) -> None:
        first = build_pretrain_config("bert-tiny", data=data, steps=30, device="cpu")
        (tmp_path / "run.json").write_text(json.dumps({**first.to_dict(), "environment": {"device": "tpu"}}))
        assert (
            build_pretrain_config(config=tmp_path / "run.json")
            == build_pretrain_config(config=tmp_path)
            == build_pretrain_config(config=first)
            == first
        )
        longer = build_pretrain_config(config=first, tokens=4096 * 50, overrides={"train.seed": "3"})
        assert (longer.train.steps, longer.train.tokens, longer.train.seed) == (None, 4096 * 50, 3)
        shorter = build_pretrain_config(config=first, steps=10)
        assert shorter.train.schedule == LinearSchedule(warmup=1)
        other = build_pretrain_config(config=first, objective="masked")
        assert other.model.pooler is None and first.model.pooler is not None
        assert "'gpt2'" in refused("gpt2", config=first)

    def test_a_part_of_a_tree(self, data: Path, tmp_path: Path) -> None:
        file = tmp_path / "run.yaml"
        file.write_text(
            f"model: bert-tiny\ndata: {data}\nobjective: masked\n"
            "train:\n  steps: 20\n  lr: 1e-3\n  schedule: {floor: 0.1}\n  optimizer: {kind: lamb}\n"
        )
        found = build_pretrain_config(config=file, device="cpu")
        assert (found.train.steps, found.train.lr, config.get_kind(found.objective)) == (20, 1e-3, "masked")
        assert found.train.schedule == LinearSchedule(warmup=2, floor=0.1) and isinstance(found.train.optimizer, Lamb)
        found = build_pretrain_config(
            "bert-mini", config=file, overrides={"train.lr": "2e-3"}, objective="span_masked", device="cpu"
        )
        assert found.model.width == 256 and found.train.lr == 2e-3 and config.get_kind(found.objective) == "span_masked"
        file.write_text(f"model: {{name: bert-tiny, depth: 1}}\ndata: {{path: {data}, max_length: 64}}\n")
        found = build_pretrain_config(config=file, device="cpu")
        assert found.model.depth == 1 and found.data.max_length == 64

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("trian: {lr: 1}", "'trian'.*'train'"),
            ("train: 5", "'train'.*int"),
            ("model: bert-tiny\ndata: DATA\ntrain: {lrr: 1}", "'lrr'.*'lr'"),
            ("model: bert-tiny\ndata: DATA\ntrain: {lr: []}", "lr: .*float.*list"),
            ("a: &x [1]\nb: *x", r"\*x"),
            ("- 1", r"run\.yaml"),
            ("{", r"run\.yaml.*YAML"),
            ("a: !!python/object:os.system {}", "python/object:os.system"),
        ],
    )
    def test_a_file_that_makes_no_sense(self, data: Path, tmp_path: Path, text: str, value: str) -> None:
        (tmp_path / "run.yaml").write_text(text.replace("DATA", str(data)))
        assert re.search(value, refused(None, config=tmp_path / "run.yaml"))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert "run.yaml" in refused(None, config=tmp_path / "run.yaml")
        assert "run.json" in refused(None, config=tmp_path)

    def test_the_tree_survives_json_and_has_one_hash(self, data: Path) -> None:
        found = build_pretrain_config("bert-tiny", data=data, device="cpu")
        again = PretrainConfig.from_dict(json.loads(json.dumps(found.to_dict())))
        assert again == found and again.sha256() == found.sha256()
        assert found.replace({"train.workers": 2, "data.path": "elsewhere"}).sha256() == found.sha256()
        assert found.replace({"train.seed": 2}).sha256() != found.sha256()

    def test_only_pretraining_narrows_the_residual_stream(self) -> None:
        assert PretrainTrainConfig(lr=1.0).residual_precision == "auto"
        assert PretrainTrainConfig(lr=1.0, residual_precision="bf16").residual_precision == "bf16"
        assert FinetuneTrainConfig(lr=1.0).residual_precision == TrainConfig(lr=1.0).residual_precision == "fp32"
        assert "residual_precision" not in to_dict(FinetuneTrainConfig(lr=1.0))


class TestHeads:
    def test_a_boundary_objective_brings_its_head(self, data: Path) -> None:
        plain = build_pretrain_config("bert-tiny", data=data, objective="masked", device="cpu").model
        for objective in (SpanMaskedLM(boundary=Boundary()), NextSentence(masking=SpanMaskedLM(boundary=Boundary()))):
            assert replace_heads(plain, objective).span == SpanHead()
        assert replace_heads(replace_heads(plain, SpanMaskedLM(boundary=Boundary())), SpanMaskedLM()).span is None

    def test_a_discriminator_gets_a_head_to_fill_masks(self, data: Path) -> None:
        found = build_pretrain_config("electra-small", data=data, objective="masked", device="cpu").model
        assert found.head is not None and found.detector is None
        assert build_pretrain_config("electra-small", data=data, device="cpu").model.detector is not None


class TestForecast:
    def test_what_a_run_will_take(self, data: Path) -> None:
        found = estimate_pretrain(build_pretrain_config("bert-tiny", data=data, steps=100, device="cpu"))
        assert 0 < found["tokens"] < 204_800, "the data fills no batch"
        assert found["flops"] == found["tokens"] * found["flops_per_token"]
        one = found["devices"]["h100"]
        assert one["seconds"] > 0 and one["dollars"] > 0
        twice = estimate_pretrain(build_pretrain_config("bert-tiny", data=data, steps=200, device="cpu"))
        assert twice["devices"]["h100"]["seconds"] == pytest.approx(2 * one["seconds"])

    def test_this_machine_has_a_row(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Measured for a moment, at the utilisation of a processor; a GPU that the table has is taken from there."""
        monkeypatch.setattr("pretune.runs.estimate.measure_flops", lambda device, dtype, size: 1e9)
        settings = build_pretrain_config("bert-tiny", data=data, steps=100, device="cpu")
        found = estimate_pretrain(settings)
        here = found["devices"][THIS_MACHINE]
        assert next(iter(found["devices"])) == THIS_MACHINE
        assert here["seconds"] == pytest.approx(found["flops"] / (0.3 * 1e9)) and here["dollars"] > 0
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
        on_gpu = estimate_pretrain(settings, "cuda")["devices"]
        assert on_gpu[THIS_MACHINE] == on_gpu["h200"]

    def test_speed_is_measured_in_a_moment(self) -> None:
        begun = time.process_time()
        assert 1e6 < measure_flops(torch.device("cpu"), torch.float32, 64) < 1e15
        assert time.process_time() - begun < 10

    def test_how_far_a_budget_comes(self, data: Path) -> None:
        found = estimate_pretrain(build_pretrain_config("bert-tiny", data=data, budget="10m", device="cpu"))
        assert found["tokens"] is None and found["devices"]["h100"]["seconds"] == 600
        assert found["devices"]["h100"]["tokens"] > 1e6

    def test_two_models_and_two_sides_are_counted(self, prepared: Prepared) -> None:
        alone = estimate_pretrain(
            build_pretrain_config("electra-small", data=prepared(), objective="masked", steps=9, device="cpu")
        )
        both = estimate_pretrain(build_pretrain_config("electra-small", data=prepared(), steps=9, device="cpu"))
        assert both["flops_per_token"] > 1.05 * alone["flops_per_token"] and both["parameters"] > alone["parameters"]
        assert (
            estimate_pretrain(
                build_pretrain_config("t5-small", data=prepared("unigram", "sentinels"), steps=9, device="cpu")
            )["flops"]
            > 0
        )


def test_unknown_names_in_yaml_and_arguments_are_refused(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("train:\n  eval_evry: 5\n")
    for settings in (file, {"train": {"eval_evry": 5}}):
        with pytest.raises(UsageError, match=r"'eval_evry'; did you mean 'eval_every'"):
            build_pretrain_config("bert-tiny", data=data, config=settings)
    with pytest.raises(UsageError, match=r"'init'.*'init_from'"):
        pretrain("bert-tiny", data=data, out=tmp_path / "run", init=tmp_path)
