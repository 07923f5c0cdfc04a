"""Short names of installed models, wherever a model can be given."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core import hub
from pretune.core.errors import UsageError
from pretune.models.families import FAMILIES, make_missing_error
from pretune.studies.inputs import identify_input, inspect_input
from tests.runs import tasked

NAME, PACKAGE = "small-test-encoder", "pretune_test_package"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with one that holds a model."""
    folder = tmp_path_factory.mktemp("site")
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").write_text("raise RuntimeError('a package of data is not imported')")
    shutil.copytree(tasked.make_base(tmp_path_factory.mktemp("base")), folder / PACKAGE / "model")
    return folder


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(
        hub.INSTALLED_MODELS, NAME, hub.InstalledModel(PACKAGE, "model", "'pretune[quickstart]'", "A test.")
    )
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(site: Path, table: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site / PACKAGE / "model"


def test_no_short_name_is_one_of_a_family_or_of_the_hub() -> None:
    assert not {*hub.INSTALLED_MODELS} & {*FAMILIES}
    assert not any(hub.is_hub(name) or "/" in name for name in hub.INSTALLED_MODELS)


@pytest.mark.parametrize("name", [NAME, Path(NAME)])
def test_a_short_name_is_the_directory_of_the_package(model: Path, name: str | Path) -> None:
    assert hub.resolve_path(name) == model
    assert pt.load(name).spec == pt.load(model).spec


def test_a_local_directory_wins(model: Path, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert hub.resolve_path(NAME) == Path(NAME)


def test_a_model_that_is_not_installed_names_its_extra(table: None, capsys: Capture) -> None:
    with pytest.raises(UsageError, match=r"pip install 'pretune\[quickstart\]'"):
        hub.resolve_path(NAME)
    assert main(["fill", NAME, "a [MASK]"]) == 2
    assert "pretune[quickstart]" in capsys.readouterr().err
    assert main(["list", "models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][NAME]["path"] is None


@pytest.mark.parametrize("name", ["small-encoder", "small-decoder"])
def test_a_model_that_this_copy_lacks_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(hub.INSTALLED_MODELS, name, hub.INSTALLED_MODELS[name]._replace(path="pretrained/missing"))
    for words in (["fill", name, "a [MASK]"], ["generate", name, "a"], ["verify", name], ["predict", name]):
        assert main([*words, *(["--input", "x"] if words[0] == "predict" else [])]) == 2
        error = capsys.readouterr().err
        assert f"'{name}' is not installed" in error and "pretrained/missing" in error and error.count("\n") <= 2
    assert main(["list", "models", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][name]
    assert row["path"] is None and "install a release of pretune" in row["install"]
    assert main(["list", "models"]) == 0
    assert "install a release" in capsys.readouterr().out


def test_a_mistyped_short_name_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "'minilm'" in str(make_missing_error(Path("minlm")))


def test_the_list_shows_the_path(model: Path, capsys: Capture) -> None:
    assert main(["list", "models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*hub.INSTALLED_MODELS]
    assert str(model) in next(line for line in lines if line.startswith(NAME))
    assert main(["list", "models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][NAME]["path"] == str(model)


def test_a_study_finds_it(model: Path) -> None:
    path, size, problem = inspect_input(NAME, None)
    assert (path, problem) == (str(model), None) and size > 0
    assert identify_input(NAME, None) is None  # a package has a version


def test_the_commands_take_it(model: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "lines.txt").write_text("a lovely film\na dull film\n")
    table = tmp_path / "rows.csv"
    rows = [f"a {word} film,{label}" for word, label in [("lovely", "good"), ("dull", "bad")] * 8]
    table.write_text("\n".join(["text,label", *rows]))
    assert main(["embed", NAME, "--input", "lines.txt", "--out", "v.npy"]) == 0
    assert np.array_equal(np.load("v.npy"), pt.embed(model, ["a lovely film", "a dull film"]))
    assert main(["index", NAME, "--input", "lines.txt", "--out", "library"]) == 0
    assert main(["search", "library", "lovely"]) == 0
    options = ["--method", "lora", "--steps", "1", "--baselines", "none", "--out", "tuned"]
    assert main(["finetune", NAME, "--train", str(table), *options]) == 0
    assert json.loads(Path("tuned/run.json").read_text())["base"]["path"] == NAME
    assert json.loads(Path("tuned/adapter_config.json").read_text())["base_model_name_or_path"] == str(model)
    assert main(["predict", "tuned", "--input", "lines.txt"]) == 0
    assert main(["finetune", "--config", "tuned/run.json", "--dry-run"]) == 0
    assert main(["analyze", "diff", "tuned"]) == 0
    capsys.readouterr()
