"""Every setting that a user gives is used or refused: all fields and kinds of all sections, as `--set` gives them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretune.core import config
from pretune.core.errors import PretuneError, UsageError
from pretune.runs.config import PretrainConfig
from pretune.runs.defaults import explain_rate
from pretune.runs.finetune import defaults as finetune_defaults
from pretune.runs.finetune.config import FinetuneConfig
from pretune.training.config import Optim
from pretune.training.optim.sgd import SGD
from tests.runs import configs as tuning
from tests.runs.configs import build_pretrain_config
from tests.runs.small import Prepared, shrunk
from tests.runs.variants import changes_of, holds, text_of
from tests.selection import keep_quick

OPTIMIZERS = config.specs.parse_annotation(Optim).specs


def check(settings: Any, section: str, change: Callable[[dict[str, str]], Any]) -> None:
    """Make every change of a section alone; the result has it, or there is none."""
    dropped = []
    for path, value in changes_of(getattr(settings, section), section):
        try:
            changed = change({path: text_of(value)})
        except PretuneError:
            continue
        dropped += [] if holds(changed.to_dict(), path, value) else [(path, value)]
    assert not dropped


class TestUsedOrRefused:
    @pytest.mark.parametrize("section", PretrainConfig.list_sections())
    def test_in_pretraining(self, prepared: Prepared, section: str) -> None:
        name = "bert-tiny"
        wishes: dict[str, Any] = {"data": prepared(), "device": "cpu"}
        settings = build_pretrain_config(name, overrides=shrunk(name), **wishes)
        check(
            settings, section, lambda given: build_pretrain_config(name, overrides={**shrunk(name), **given}, **wishes)
        )

    @pytest.mark.parametrize("section", PretrainConfig.list_sections())
    def test_in_a_tree(self, prepared: Prepared, section: str) -> None:
        settings = build_pretrain_config(
            "bert-tiny", data=prepared(), overrides=shrunk("bert-tiny"), device="cpu", steps=9
        )
        check(settings, section, lambda given: build_pretrain_config(config=settings, overrides=given, device="cpu"))

    @pytest.mark.parametrize("section", FinetuneConfig.list_sections())
    @pytest.mark.parametrize("method", keep_quick(["full", "lora"], "lora"))
    def test_in_finetuning(self, base: Path, table: Path, method: str, section: str) -> None:
        settings = tuning.build_finetune_config(base, train=table, method=method)
        check(
            settings,
            section,
            lambda given: tuning.build_finetune_config(base, train=table, method=method, overrides=given),
        )

    @pytest.mark.parametrize("section", FinetuneConfig.list_sections())
    def test_in_a_tree_of_finetuning(self, base: Path, table: Path, section: str) -> None:
        settings = tuning.build_finetune_config(base, train=table)
        check(settings, section, lambda given: tuning.build_finetune_config(config=settings, overrides=given))

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("model.special.pad", "3"),
            ("model.span", "span_head"),
            ("model.detector", '{"kind":"detector"}'),
            ("model.head", "null"),
        ],
    )
    def test_what_the_objective_and_the_tokenizer_decide_is_refused(
        self, prepared: Prepared, path: str, value: str
    ) -> None:
        with pytest.raises(UsageError, match=path):
            build_pretrain_config("bert-tiny", data=prepared(), overrides={path: value}, device="cpu")

    @pytest.mark.parametrize(
        ("option", "changes"),
        [
            ({"steps": 5}, {"train.steps": "7"}),
            ({"budget": "1m"}, {"train.budget": "90"}),
            ({"objective": "masked"}, {"objective.kind": "causal"}),
            ({}, {"data.path": "elsewhere"}),
            ({}, {"model.name": "gpt2-small"}),
        ],
    )
    def test_an_option_and_a_change_that_disagree(
        self, prepared: Prepared, option: dict[str, Any], changes: dict[str, str]
    ) -> None:
        with pytest.raises(UsageError, match=next(iter(changes))):
            build_pretrain_config("bert-tiny", data=prepared(), device="cpu", overrides=changes, **option)

    @pytest.mark.parametrize(
        ("option", "changes"),
        [
            ({"lr": 0.1}, {"train.lr": "0.2"}),
            ({"steps": 5}, {"train.steps": "7"}),
            ({"epochs": 2.0}, {"train.epochs": "3"}),
            ({}, {"base.path": "elsewhere"}),
            ({}, {"task.train": "elsewhere.csv"}),
        ],
    )
    def test_in_finetuning_too(self, base: Path, table: Path, option: dict[str, Any], changes: dict[str, str]) -> None:
        with pytest.raises(UsageError, match=next(iter(changes))):
            tuning.build_finetune_config(base, train=table, overrides=changes, **option)


class TestRates:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("name", ["bert-tiny", "t5-small"])
    def test_another_optimizer_has_its_own_default(self, prepared: Prepared, name: str, kind: str) -> None:
        wishes: dict[str, Any] = {"data": prepared(), "device": "cpu"}
        paper = build_pretrain_config(name, overrides=shrunk(name), **wishes)
        same = kind == config.get_kind(paper.train.optimizer)
        for given in (kind, f'{{"kind":"{kind}"}}', {"kind": kind}):
            settings = build_pretrain_config(name, overrides={**shrunk(name), "train.optimizer": given}, **wishes)
            assert settings.train.lr == settings.train.optimizer.lr
            assert settings.train.lr == (paper.train.lr if same else OPTIMIZERS[kind]().lr)
            named = (f"{settings.train.lr:g}", kind, config.get_kind(paper.train.optimizer))
            assert all(value in explain_rate(settings) for value in named)
        settings = build_pretrain_config(config=paper, overrides={"train.optimizer": kind})
        assert settings.train.lr == (paper.train.lr if same else OPTIMIZERS[kind]().lr)

    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_in_finetuning_too(self, base: Path, table: Path, kind: str) -> None:
        for method in ("lora", "ulmfit", "last-only"):
            usual = tuning.build_finetune_config(base, train=table, method=method).train
            found = tuning.build_finetune_config(base, train=table, method=method, overrides={"train.optimizer": kind})
            assert found.train.lr == found.train.optimizer.lr
            assert found.train.lr == (usual.lr if kind == "adam_w" else OPTIMIZERS[kind]().lr)
            named = (f"{found.train.lr:g}", kind, "adam_w")
            assert all(value in finetune_defaults.explain_rate(found) for value in named)
        other = tuning.build_finetune_config(config=found, method="full")  # a tree's own optimizer keeps its rate
        assert (other.train.lr == found.train.lr) is (kind != "adam_w")

    @pytest.mark.parametrize(
        "changes",
        [
            {"train.optimizer": '{"kind":"adam_w","lr":0.01}'},
            {"train.optimizer": '{"kind":"sgd","lr":0.01}'},
            {"train.optimizer": "sgd", "train.lr": "0.01"},
            {"train.optimizer": "sgd", "train.optimizer.lr": "0.01"},
            {"train.optimizer.lr": "0.01"},
            {"train.optimizer": SGD(lr=0.01)},
        ],
    )
    def test_a_rate_that_is_given_is_used(
        self, prepared: Prepared, base: Path, table: Path, changes: dict[str, Any]
    ) -> None:
        first = build_pretrain_config("bert-tiny", data=prepared(), overrides=changes, device="cpu")
        second = tuning.build_finetune_config(base, train=table, overrides=changes)
        for train in (first.train, second.train):
            assert train.lr == train.optimizer.lr == 0.01
        assert "0.01" in explain_rate(first)

    def test_two_rates_are_refused(self, prepared: Prepared, base: Path, table: Path) -> None:
        changes = {"train.optimizer": '{"kind":"adam_w","lr":0.01}', "train.lr": "0.02"}
        with pytest.raises(UsageError, match=r"train\.lr"):
            build_pretrain_config("bert-tiny", data=prepared(), overrides=changes, device="cpu")
        with pytest.raises(UsageError, match=r"train\.lr"):
            tuning.build_finetune_config(base, train=table, overrides=changes)

    def test_a_part_of_the_same_optimizer_keeps_the_rate(self, prepared: Prepared) -> None:
        paper = build_pretrain_config("bert-tiny", data=prepared(), device="cpu").train
        changes = {"train.optimizer": '{"kind":"adam_w","eps":1e-5}'}
        found = build_pretrain_config("bert-tiny", data=prepared(), overrides=changes, device="cpu").train
        assert (found.lr, found.optimizer.eps) == (paper.lr, 1e-5)

    def test_the_docs_have_the_defaults(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()
        for kind, cls in OPTIMIZERS.items():
            (line,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
            assert float(line.split("|")[3]) == cls().lr
