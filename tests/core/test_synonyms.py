"""Words of papers and of other libraries: each stands for something there is, and errors know it."""

import pytest

from pretune.adaptation import METHODS
from pretune.cli import main
from pretune.core import config
from pretune.core.errors import SYNONYMS, find_synonyms, suggest
from pretune.models.catalog import list_settings
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from pretune.runs.config import DataConfig, PretrainTrainConfig
from pretune.runs.finetune.config import FinetuneTrainConfig, SequenceConfig


def test_each_stands_for_something_there_is() -> None:
    trees = (PretrainTrainConfig(lr=1.0), FinetuneTrainConfig(lr=1.0), DataConfig(path="x"), SequenceConfig())
    paths = {path.rpartition(".")[2] for tree in trees for path in config.list_paths(tree)}
    known = {*paths, *list_settings(FAMILIES.get("bert")), *OBJECTIVES, *METHODS}
    assert {*SYNONYMS} <= known
    assert not {word for theirs in SYNONYMS.values() for word in theirs.split()} & known


def test_theirs_comes_before_what_is_spelled_alike() -> None:
    assert suggest("hidden_size", ["hidden", "width"]).count("'width'")
    assert suggest("hidden_size", ["hidden"]).count("'hidden'")
    assert find_synonyms("nothing of this kind") == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["pretrain", "bert-tiny", "--data=x", "--learning-rate=1"], "train.lr"),
        (["finetune", "x", "--learning-rate=1"], "'--lr'"),
        (["show", "bert-tiny", "--set=hidden_size=3"], "'width'"),
        (["show-batch", "mlm"], "'masked'"),
    ],
)
def test_errors_know_them(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert hint in capsys.readouterr().err
