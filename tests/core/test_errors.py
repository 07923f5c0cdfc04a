import os
import re
from pathlib import Path

import pytest

from pretune.adaptation import METHODS
from pretune.cli import main
from pretune.core import config, errors
from pretune.core.errors import SYNONYMS, PretuneError, explain_missing, find_synonyms, suggest, suggest_file
from pretune.models.catalog import list_settings
from pretune.models.families import FAMILIES
from pretune.objectives import OBJECTIVES
from pretune.runs.config import DataConfig, PretrainTrainConfig
from pretune.runs.finetune.config import FinetuneTrainConfig, SequenceConfig


def quoted(message: str) -> list[str]:
    """The values that a message quotes; a message without any must be empty."""
    values = re.findall("'[^']*'", message)
    assert values or not message
    return values


def test_exit_codes_are_the_documented_ones_and_differ() -> None:
    codes: dict[type[PretuneError], int] = {
        cls: cls.exit_code for cls in PretuneError.__subclasses__() if not cls.__module__.startswith("pretune.server")
    }  # errors of the server are answers to a request
    assert codes == {
        errors.UsageError: 2,
        errors.DataError: 3,
        errors.CheckpointError: 4,
        errors.DivergedError: 5,
        errors.ResourceError: 6,
        errors.StoppedError: 75,
        errors.UserInterruptError: 130,
    }


@pytest.mark.parametrize(
    ("word", "options", "expected"),
    [
        ("brt", ["gpt2", "bert", "roberta"], ["'bert'"]),
        ("BERT", ["bert"], ["'bert'"]),
        ("width", ["Width"], ["'Width'"]),
        ("zzz", ["bert"], []),
        ("bert", [], []),
    ],
)
def test_nearest(word: str, options: list[str], expected: list[str]) -> None:
    assert quoted(suggest(word, options)) == expected


def test_nearest_stays_fast_on_a_hostile_word() -> None:
    assert quoted(suggest("a" * 10_000_000, ["bert", "a" * 300])) in ([], [f"'{'a' * 300}'"])


class TestFiles:
    def test_the_closest_name_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "reviews.csv").touch()
        (tmp_path / "texts").mkdir()
        assert quoted(suggest_file(tmp_path / "review.csv")) == [f"'{tmp_path / 'reviews.csv'}'"]
        assert suggest_file(tmp_path / "quite another") == ""

    def test_a_folder_on_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "a.txt").touch()
        assert quoted(suggest_file(tmp_path / "text" / "a.txt")) == [f"'{tmp_path / 'texts' / 'a.txt'}'"]
        assert quoted(suggest_file(tmp_path / "text" / "b.txt")) == [f"'{tmp_path / 'texts'}'"]
        assert quoted(suggest_file(tmp_path / "zzz" / "b.txt")) == [f"'{tmp_path / 'zzz'}'"]

    @pytest.mark.parametrize("name", ["", "\0", "a" * 300])
    def test_names_that_no_file_can_have(self, name: str) -> None:
        assert suggest_file(name) == ""

    def test_what_is_no_file_is_named(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "file").touch()
        for path, kind in ((tmp_path, "folder"), (tmp_path / "pipe", "pipe"), ("/dev/zero", "device")):
            assert kind in explain_missing(path)
        reason = explain_missing(tmp_path / "file", "directory")
        assert "file" in reason and "directory" in reason
        assert quoted(explain_missing(tmp_path / "fil")) == [f"'{tmp_path / 'file'}'"]
        assert explain_missing("\0", remedy="; make one").endswith("; make one")


# Words of papers and of other libraries: each stands for something there is, and errors know it.


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
