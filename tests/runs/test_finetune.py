"""Fine-tuning as a whole: what is tried, what is chosen, what is left behind, and that it can be asked again."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.run_dir import RunDir
from pretune.models import catalog
from pretune.runs.finetune import features
from pretune.runs.finetune.adapted_model import build_adapted_model
from pretune.runs.finetune.config import FinetuneConfig, TaskConfig
from pretune.runs.finetune.defaults import (
    LAST_RATE,
    compute_default_rate,
    explain_rate,
    parse_method,
    read_base_spec,
)
from pretune.runs.finetune.entry import finetune
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.task_data import find_trainable_task, open_task
from pretune.runs.prepare import prepare
from pretune.runs.task_options import parse_example_counts
from pretune.training.distributed import Ranks
from pretune.training.optim.lamb import Lamb
from tests.conftest import Patch
from tests.runs import tasked
from tests.runs.configs import build_finetune_config
from tests.runs.small import FAST, Prepared, shrunk

MORE = ("freeze-first", "gradual", "ulmfit", "from-scratch", "adapter", "prefix", "lora", "qlora", "ia3", "bitfit")
QUICK = {"train.eval_examples": 40, "train.log_every": 5}


@pytest.fixture(scope="module")
def fine(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetunedRun:
    """A run that has learnt its task; not to be changed."""
    out = tmp_path_factory.mktemp("fine") / "run"
    return finetune(base, train=table, out=out, lr=3e-3, epochs=10, overrides=QUICK)


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]


class TestOne:
    """A run of one trial."""

    def test_it_learns_what_is_there_to_learn(self, fine: FinetunedRun) -> None:
        assert fine.score is not None and fine.score > 0.8
        simple = {row["name"]: row for row in fine.scores["baselines"]}
        assert set(simple) == {"majority", "svm", "vectors"}
        gap = simple["majority"]["against"]
        assert gap["difference"] == pytest.approx(fine.score - simple["majority"]["score"]) and gap["p"] < 0.05

    def test_one_file_is_divided_and_that_is_said(self, fine: FinetunedRun) -> None:
        assert fine.scores["examples"] == {"train": 96, "dev": 12, "test": 12}
        assert any("80/10/10" in note for note in fine.scores["notes"])
        assert fine.scores["balance"] == {"bad": 48, "good": 48}

    def test_the_directory_is_whole(self, fine: FinetunedRun) -> None:
        there = {path.name for path in fine.path.iterdir()}
        assert there >= {
            "config.json", "model.safetensors", "tokenizer.json", "README.md", "run.json", "metrics.jsonl",
            "scores.json", "predictions.jsonl", "cost.json", "task.json", "checkpoints",
        }  # fmt: skip
        card = (fine.path / "README.md").read_text()
        assert all(name in card for name in ("majority", "svm", "logistic"))

    def test_the_best_step_on_dev_is_what_is_kept(self, fine: FinetunedRun) -> None:
        course = fine.scores["trials"][0]["course"]
        best = max(point["dev"] for point in course)
        assert fine.scores["model"]["dev"] == best
        assert fine.scores["model"]["best_step"] == next(p["step"] for p in course if p["dev"] == best)

    def test_it_says_again_what_it_said(self, fine: FinetunedRun, table: Path) -> None:
        from pretune.runs.finetune.config import TaskConfig
        from pretune.runs.finetune.task_data import open_task

        parts = open_task(TaskConfig(train=str(table))).parts
        said = {line["id"]: line["label"] for line in lines(fine.path) if line["split"] == "test"}
        again = FinetunedRun.open(fine.path).predict([example.text for example in parts.test])
        assert [said[example.id] for example in parts.test] == [one["label"] for one in again]
        right = {line["id"]: (line["gold"], line["input"]) for line in lines(fine.path) if line["split"] == "test"}
        assert right == {one.id: (("bad", "good")[int(one.label or 0)], one.text) for one in parts.test}
        assert all(abs(sum(one["probabilities"].values()) - 1) < 1e-3 for one in again)

    def test_pt_load_gives_the_model(self, fine: FinetunedRun) -> None:
        model = pt.load(fine)
        assert isinstance(model, ModelWithHead) and model.spec.labels == ("bad", "good")  # type: ignore[attr-defined]

    def test_its_settings_repeat_it(self, fine: FinetunedRun, tmp_path: Path) -> None:
        again = finetune(config=fine.path / "run.json", out=tmp_path / "again", baselines="none")
        assert again.scores["result"]["each"] == fine.scores["result"]["each"]
        same = (again.path / "model.safetensors").read_bytes() == (fine.path / "model.safetensors").read_bytes()
        assert same

    def test_a_place_that_is_taken_is_refused(self, fine: FinetunedRun) -> None:
        with pytest.raises(UsageError, match=re.escape(str(fine.path))):
            RunDir(fine.path).check_free()

    @pytest.mark.slow
    def test_a_fine_tuned_run_is_a_base(self, fine: FinetunedRun, tmp_path: Path) -> None:
        """STILTs: the body goes on, with a new head."""
        other = tasked.scores(tmp_path / "scores.tsv", 60)
        found = finetune(fine, train=other, text="one", pair="two", label="score", out=tmp_path / "run", steps=3)
        assert found.scores["kind"] == "regression" and found.scores["metric"] == "pearson_spearman"
        assert {row["name"] for row in found.scores["baselines"]} == {"mean", "ridge", "ridge_vectors", "cosine"}
        assert "'regression'" in found.scores["not_run"]["bilstm"]


@pytest.fixture(scope="module")
def grid(base: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetunedRun:
    return finetune(
        base, train=table, out=tmp_path_factory.mktemp("grid") / "run", method="lora", lr=[1e-5, 1e-2],
        seeds=2, train_examples=[20, None], steps=6, baselines="majority", overrides=QUICK,
    )  # fmt: skip


class TestMany:
    """Rates, seeds, labels."""

    @pytest.mark.slow
    def test_the_rate_is_chosen_on_dev(self, grid: FinetunedRun) -> None:
        rates = {point["lr"]: point["dev"] for point in grid.scores["rates"]}
        assert set(rates) == {1e-5, 1e-2}
        assert grid.scores["model"]["lr"] == max(rates, key=lambda rate: rates[rate])

    def test_seeds_have_a_mean_and_an_interval(self, grid: FinetunedRun) -> None:
        found = grid.scores["result"]
        assert found["seeds"] == [0, 1] and found["score"] == pytest.approx(sum(found["each"]) / 2)
        assert found["low"] <= found["score"] <= found["high"]

    def test_the_curve_has_each_number_of_labels(self, grid: FinetunedRun) -> None:
        curve = grid.scores["curve"]
        assert [point["labels"] for point in curve] == [20, 96]
        assert all(set(point["baselines"]) == {"majority"} for point in curve)
        assert (grid.path / "curve.png").read_bytes()[:4] == b"\x89PNG" and (grid.path / "curve.svg").is_file()

    def test_trials_are_kept_without_their_checkpoints(self, grid: FinetunedRun) -> None:
        trials = sorted(path.name for path in (grid.path / "trials").iterdir())
        assert len(trials) == 5 and trials[0].startswith("labels-20-lr-")
        assert not any((grid.path / "trials" / name / "checkpoints").exists() for name in trials)

    def test_an_adapter_is_small_and_loads_with_its_head(self, grid: FinetunedRun, base: Path) -> None:
        small = sum(path.stat().st_size for path in grid.path.glob("*.safetensors"))
        assert small < (base / "model.safetensors").stat().st_size
        assert isinstance(pt.load(grid), ModelWithHead)

    def test_of_a_finished_run_nothing_is_left_to_resume(self, grid: FinetunedRun) -> None:
        before = (grid.path / "scores.json").read_bytes()
        assert finetune(out=grid.path, resume=True).scores == grid.scores
        assert (grid.path / "scores.json").read_bytes() == before


class TestWays:
    """Strategies and methods, alone and together."""

    @pytest.mark.parametrize(
        "method",
        [
            *("frozen", "last-only", "prompt", "lora+gradual", "scalar-mix"),
            *(pytest.param(name, marks=pytest.mark.slow) for name in MORE),
        ],
    )
    def test_each_runs_from_end_to_end(self, base: Path, table: Path, tmp_path: Path, method: str) -> None:
        found = finetune(
            base, train=table, out=tmp_path / "run", method=method, steps=4, baselines="none", overrides=QUICK
        )
        model = found.scores["model"]
        assert 0 < model["trained"] <= model["parameters"]
        assert (model["trained"] < model["parameters"]) is (method not in ("gradual", "ulmfit", "from-scratch"))
        said = {line["id"]: line for line in lines(found.path) if line["split"] == "test"}
        text = "the lovely sea."
        assert FinetunedRun.open(found.path).predict([text]) == found.predict([text]) and len(said) == 12

    @pytest.mark.parametrize(
        ("method", "moved", "still"),
        [
            ("scalar-mix+lora", "encoder.0.attention.q.a", "encoder.0.attention.q.weight"),
            pytest.param(
                "scalar-mix+last-only",
                "encoder.1.attention.q.weight",
                "encoder.0.attention.q.weight",
                marks=pytest.mark.slow,
            ),
            pytest.param("scalar-mix+full", "encoder.0.attention.q.weight", None, marks=pytest.mark.slow),
        ],
    )
    def test_layers_that_are_mixed_may_learn(
        self, base: Path, table: Path, tmp_path: Path, method: str, moved: str, still: str | None
    ) -> None:
        found = finetune(
            base, train=table, out=tmp_path / "run", method=method, steps=4, lr=1e-2, baselines="none", overrides=QUICK
        )
        now = dict(pt.load(found).model.named_parameters())
        begun = build_adapted_model(
            build_finetune_config(config=found.path),
            find_trainable_task("sst2"),
            Ranks(torch.device("cpu")),
        )
        was = dict(begun.model.model.named_parameters())
        assert not torch.equal(now[moved], was[moved]) and (still is None or torch.equal(now[still], was[still]))
        assert FinetunedRun.open(found.path).predict(["the sea"]) == found.predict(["the sea"])

    def test_a_probe_reads_what_the_frozen_model_knows(self, base: Path, table: Path, tmp_path: Path) -> None:
        found = finetune(base, train=table, out=tmp_path / "run", method="frozen", steps=1, baselines="probe")
        assert found.scores["baselines"][0]["name"] == "probe" and found.scores["baselines"][0]["score"] > 0.8

    def test_a_probe_reads_the_same_whatever_the_method(self, base: Path, table: Path, monkeypatch: Patch) -> None:
        opened, seen, read = open_task(TaskConfig(train=str(table))), [], features._compute_features
        monkeypatch.setattr(features, "_compute_features", lambda *given: seen.append(read(*given)) or seen[-1])
        some = opened.parts.train[:20]
        for method in ("full", "prompt"):
            features.predict_with_probe(
                build_finetune_config(base, train=table, method=method), opened.task, some, some, torch.device("cpu")
            )
        assert (seen[0] == seen[2]).all()

    def test_random_weights_are_not_those_of_the_base(self, base: Path) -> None:
        from pretune.runs.finetune.adapted_model import load_base_model
        from pretune.runs.finetune.config import BaseConfig

        kept, fresh = (load_base_model(BaseConfig(path=str(base), weights=w), seed=5) for w in ("pretrained", "random"))  # type: ignore[arg-type]
        assert not torch.equal(kept.tokens.weight, fresh.tokens.weight)

    @pytest.mark.slow
    def test_forgetting_is_measured(self, table: Path, tmp_path: Path) -> None:
        base = tasked.make_base(tmp_path)
        text = tmp_path / "stories.txt"
        text.write_text("\n\n".join(tasked.corpus()))
        data = prepare([text], tokenizer=base, out=tmp_path / "data", holdout=0.2, workers=0).path
        found = finetune(
            base, train=table, out=tmp_path / "run", lr=1e-2, steps=10, forgetting=data, baselines="none"
        ).scores["forgetting"]
        assert found["after"]["loss"] != found["before"]["loss"] and found["distance"] > 0
        assert found["by_part"]["embeddings"] > 0 and (tmp_path / "run/forgetting.svg").is_file()
        frozen = finetune(
            base, train=table, out=tmp_path / "other", method="frozen", steps=4, forgetting=data, baselines="none"
        ).scores["forgetting"]
        assert frozen["distance"] == 0 and frozen["difference"] == 0


class TestWishes:
    """From words to settings."""

    def test_names_of_methods(self, base: Path) -> None:
        found = build_finetune_config(base, task="sst2", method="ulmfit")
        assert (
            found.tune.layer_decay == pytest.approx(1 / 2.6)
            and type(found.train.schedule).__name__ == "SlantedTriangular"
        )
        both = build_finetune_config(base, task="sst2", method="lora+gradual", overrides={"method.rank": "2"})
        assert type(both.method).__name__ == "LoRA" and both.method.rank == 2  # type: ignore[union-attr]
        assert type(both.tune.trainable_layers).__name__ == "Gradual"

    def test_mixed_layers_are_frozen_unless_something_trains_them(self, base: Path) -> None:
        kinds = {
            name: build_finetune_config(base, task="sst2", method=name)
            for name in ("scalar-mix", "scalar-mix+lora", "scalar-mix+last-only", "scalar-mix+full")
        }
        assert [type(one.method).__name__ for one in kinds.values()] == ["Frozen", "LoRA", "Full", "Full"]
        assert all(one.tune.scalar_mix is not None for one in kinds.values())
        assert kinds["scalar-mix"].train.lr == kinds["scalar-mix+lora"].train.lr == 1e-3
        assert kinds["scalar-mix+full"].train.lr == build_finetune_config(base, task="sst2").train.lr

    def test_narrow_bodies_learn_faster(self, base: Path) -> None:
        spec = read_base_spec(base)
        rates = [compute_default_rate("full", replace(spec, width=width)) for width in (1024, 768, 384, 128)]
        assert rates == pytest.approx([3e-5, 3e-5, 8.49e-5, 4.41e-4], rel=1e-2)
        assert build_finetune_config(base, task="sst2").train.lr == 5e-4  # 32 wide
        assert build_finetune_config(base, task="sst2", method="lora").train.lr == compute_default_rate(
            "lora", replace(spec, width=768)
        )

    def test_briefly_pretrained_weights_learn_faster(self, base: Path, prepared: Prepared, tmp_path: Path) -> None:
        """As random ones do; not if their pre-training was long, had a low rate, or is not the run's own."""
        spec = read_base_spec(base)

        def read(model: Path, method: str = "full", width: int = 768, **wishes: Any) -> float:
            specs = {"base_spec": replace(spec, width=width)}
            return build_finetune_config(model, task="sst2", method=method, **specs, **wishes).train.lr

        wishes = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None, "train.lr": 8e-4}
        run = pt.pretrain("bert-tiny", data=prepared(), steps=2, out=tmp_path / "run", overrides=wishes).path
        assert [read(run, name) for name in ("full", "freeze-first", "gradual")] == [9e-5] * 3
        assert [read(run, width=width) for width in (512, 256, 32)] == [1.65e-4, 4e-4, 5e-4]
        assert read(run, width=512) == read(base, "from-scratch", width=512) and read(base, width=32) == 5e-4
        assert read(base) == 3e-5 and read(run, lr=1e-4) == 1e-4
        for model, name, values in (
            (run, "full", (0.85, 6.0)),
            (run, "gradual", (None, 3.0)),
            (base, "full", (None, 3.0)),
        ):
            tuning = build_finetune_config(model, task="sst2", method=name, base_spec=replace(spec, width=768))
            assert (tuning.tune.layer_decay, tuning.train.default_epochs) == values
        usual = {name: read(base, name) for name in ("lora", "from-scratch", "extra-layers", "last-only", "ulmfit")}
        assert {name: read(run, name) for name in usual} == usual
        for method, is_named in (("full", True), ("lora", False), ("from-scratch", False)):
            tuning = build_finetune_config(run, task="sst2", method=method, lr=4e-4)
            other_text = explain_rate(tuning.replace({"base.path": str(base)}))
            assert (explain_rate(tuning) != other_text) is is_named

        settings, cost = (json.loads(file.read_text()) for file in (RunDir(run).settings, RunDir(run).cost))
        for train, rate in (({"lr": 1e-4}, 5e-5), ({"lr": 4e-5}, 3e-5), ({"init_from": str(base)}, 3e-5)):
            RunDir(run).settings.write_text(json.dumps(settings | {"train": settings["train"] | train}))
            assert read(run) == rate
        for kind, rate in (("muon", 9e-5), ("adafactor", 3e-5)):  # whose updates are of one size, or not
            train = settings["train"] | {"optimizer": {"kind": kind}}
            RunDir(run).settings.write_text(json.dumps(settings | {"train": train}))
            assert read(run) == rate
        RunDir(run).settings.write_text(json.dumps(settings | {"train": settings["train"] | {"lr": 9e-3}}))
        assert [read(run, width=width) for width in (256, 128)] == [4.68e-4, 5e-4]
        RunDir(run).settings.write_text(json.dumps(settings))
        for steps, rate in ((20_000, 9e-5), (25_000, 7.2e-5), (10**6, 3e-5)):
            RunDir(run).cost.write_text(json.dumps(cost | {"run": cost["run"] | {"steps": steps}}))
            assert read(run) == rate
        RunDir(run).settings.write_text('{"train": 3}')
        assert read(run) == 3e-5

    def test_t5_has_the_optimizer_of_its_paper(self, base: Path) -> None:
        """Where all weights are trained, and no other optimizer is chosen; narrow and random ones have higher rates."""
        specs = {width: catalog.resolve("t5-small", {"width": width, "heads": 2}) for width in (1024, 384, 128)}

        def read(width: int = 384, **wishes: Any) -> tuple[str, str, float]:
            train = build_finetune_config(base, task="sst2", base_spec=specs[width], **wishes).train
            return type(train.optimizer).__name__, type(train.schedule).__name__, train.lr

        assert [read(width)[2] for width in specs] == pytest.approx([1e-3, 2.83e-3, 8e-3])
        assert read(method="full") == read() == ("Adafactor", "Constant", 2.83e-3)
        assert read(method="full+from-scratch") == ("Adafactor", "Constant", 8e-3)
        assert read(lr=5e-3) == ("Adafactor", "Constant", 5e-3)
        assert read(overrides={"train.optimizer": '{"kind": "adafactor"}'})[2] == 2.83e-3
        for method in ("lora", "gradual", "last-only", "freeze-first"):
            assert read(method=method)[0] == "AdamW"
        adam = read(overrides={"train.optimizer": '{"kind": "adam_w"}'})
        assert adam[0] == "AdamW" and adam[2] == compute_default_rate("full", specs[384])
        lamb = read(overrides={"train.optimizer": '{"kind": "lamb"}'})
        assert lamb[0] == "Lamb" and lamb[2] == Lamb().lr

    def test_a_new_head_on_a_frozen_model_learns_fast(self, base: Path) -> None:
        assert build_finetune_config(base, task="sst2", method="last-only").train.lr == LAST_RATE
        assert build_finetune_config(base, task="sst2", method="last-only", lr=1e-4).train.lr == 1e-4
        assert build_finetune_config(base, task="sst2", method="ulmfit").train.lr == 3e-3
        lora = build_finetune_config(base, task="sst2", method="lora").train.lr
        assert build_finetune_config(base, task="sst2", method="lora+last-only").train.lr == lora

    def test_new_weights_and_upper_halves_learn_faster(self, base: Path) -> None:
        spec = replace(read_base_spec(base), width=384)
        whole = compute_default_rate("full", spec)
        for name, times in (("freeze-first", 2), ("from-scratch", 3), ("freeze-first+from-scratch", 3)):
            assert parse_method(name, spec)[1]["train.lr"] == pytest.approx(times * whole, rel=1e-2)
        assert "train.lr" not in parse_method("lora+freeze-first", spec)[1]

    def test_a_tree_is_read_as_it_was_written(self, base: Path) -> None:
        found = build_finetune_config(base, task="sst2", method="adapter", epochs=2)
        assert FinetuneConfig.from_dict(json.loads(json.dumps(found.to_dict()))) == found

    @pytest.mark.parametrize(
        ("wish", "value"),
        [
            ({"method": "lra"}, "'lra'.*'lora'"),
            ({"method": "lora+ia3"}, "'lora.ia3'"),
            ({"method": "freeze-first+last-only"}, "'freeze-first.last-only'"),
            ({"method": "lora+last-only+gradual"}, "last-only and gradual"),
            ({"method": "frozen+gradual"}, "frozen and gradual"),
            ({"overrides": {"tune.layer_decai": 1}}, "'layer_decai'.*'layer_decay'"),
            ({"overrides": {"train.batch": 0}}, "train.batch .*0"),
            ({"steps": 3, "epochs": 2}, "steps.*epochs"),
            ({"label": "x"}, "--label"),
        ],
    )
    def test_what_cannot_be_is_refused(self, base: Path, wish: dict[str, Any], value: str) -> None:
        with pytest.raises(UsageError, match=value):
            build_finetune_config(base, task="sst2", **wish)

    def test_a_task_is_needed(self, base: Path) -> None:
        with pytest.raises(UsageError, match=r"--task.*--train"):
            build_finetune_config(base)

    def test_numbers_of_labels(self) -> None:
        assert parse_example_counts("50,all") == (50, None)
        with pytest.raises(UsageError, match=r"--train-examples .*'many'"):
            parse_example_counts("many")


class TestRefused:
    """What cannot be done is told before anything is computed or written."""

    @pytest.mark.parametrize(
        ("wish", "error", "told"),
        [
            ({"task": "blimp"}, UsageError, "pretune evaluate"),
            ({"task": "nothing"}, UsageError, "'nothing'"),
            ({"task": "xsum", "text": None}, UsageError, "generation"),
        ],
    )
    def test_tasks(self, base: Path, tmp_path: Path, wish: dict[str, Any], error: type[Exception], told: str) -> None:
        if wish["task"] == "xsum":
            from pretune.runs.finetune.adapted_model import build_task_head, load_base_model
            from pretune.runs.finetune.config import AdaptationConfig, BaseConfig
            from pretune.tasks import TASKS

            body = load_base_model(BaseConfig(path=str(base)), seed=0)
            with pytest.raises(error, match=told):
                build_task_head(TASKS.get("xsum"), body.spec, body.tokenizer, AdaptationConfig())
            return
        with pytest.raises(error, match=told):
            finetune(base, out=tmp_path / "run", **wish)
        assert not (tmp_path / "run").exists()

    def test_an_adapter_of_another_base(self, base: Path, table: Path, tmp_path: Path) -> None:
        finetune(base, train=table, out=tmp_path / "run", method="lora", steps=2, baselines="none", overrides=QUICK)
        other = tasked.make_base(tmp_path / "other", width=48, heads=2)
        kept = json.loads((tmp_path / "run/adapter.json").read_text())
        kept["base"] |= {"path": str(other), "relative": str(other)}
        (tmp_path / "run/adapter.json").write_text(json.dumps(kept))
        with pytest.raises(CheckpointError, match=r"adapter\.json.*\b32\b.*\b48\b"):
            FinetunedRun.open(tmp_path / "run").predict(["the sea"])

    def test_what_is_no_run(self, base: Path) -> None:
        with pytest.raises(CheckpointError, match=r"task\.json"):
            FinetunedRun.open(base)

    def test_more_labels_than_there_are(self, base: Path, table: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"\b5000\b.*\b96\b"):
            finetune(base, train=table, out=tmp_path / "run", train_examples=[5000])
