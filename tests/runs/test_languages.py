"""Corpora of several languages: mixed as their papers mixed them, counted in epochs, with licences in the cards."""

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.data.prepare.run import prepare
from pretune.data.sampling import SmoothedMixing
from pretune.models.families import FAMILIES
from pretune.runs.defaults import build_pretrain_config
from pretune.text.tokenizer.training import train
from tests.data.texts import blocks, stories
from tests.runs.small import FAST, shrunk

LARGE, SMALL = "large.txt", "small.txt"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source that is eight times as large as the other, with licences and a filter."""
    folder = tmp_path_factory.mktemp("languages")
    texts = {LARGE: stories(160), SMALL: stories(20, 1000)}
    given = [blocks(folder / name, [*texts[name], texts[name][0]]) for name in texts]
    train("wordpiece", [*texts[LARGE], *texts[SMALL]], vocab=300, style="cls-sep").save(folder / "tok")
    licence = ["CC BY 4.0", f"*{SMALL}=own | text"]
    return prepare(given, tokenizer=folder / "tok", out=folder / "data", licence=licence, clean=["nfc"], workers=0).path


@pytest.fixture(scope="module")
def alone(data: Path) -> Path:
    given = str(data.parent / LARGE)
    return prepare([given], tokenizer=data / "tokenizer", out=data.parent / "alone", workers=0).path


@pytest.mark.parametrize(
    ("name", "mixing"),
    [
        ("xlm-roberta", SmoothedMixing(alpha=0.3)),
        ("xlm-roberta-large", SmoothedMixing(alpha=0.3)),
        ("bert-multilingual", SmoothedMixing(alpha=0.7)),
        ("bert", None),
        ("roberta", None),
    ],
)
def test_the_paper_s_exponent_is_the_default(data: Path, alone: Path, name: str, mixing: SmoothedMixing | None) -> None:
    assert build_pretrain_config(name, data=data, device="cpu").data.mixing == mixing
    assert build_pretrain_config(name, data=alone, device="cpu").data.mixing is None
    assert build_pretrain_config(name, data=data, overrides={"data.mixing": "null"}, device="cpu").data.mixing is None


def test_every_size_s_training_can_be_had() -> None:
    for family in FAMILIES:
        entry = FAMILIES.get(family)
        for size in entry.sizes:
            assert (entry.get_training(size) is None) == (entry.training is None)


def test_epochs_and_licences_stand_in_log_and_card(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {**shrunk("bert-multilingual"), **FAST, "data.length_schedule": None}
    run = pt.pretrain(
        "bert-multilingual", data=data, out=tmp_path / "run", objective="masked", epochs=2, overrides=changes
    )
    epochs = {Path(name).name: value for name, value in run.summary["epochs"].items()}
    assert epochs[SMALL] > epochs[LARGE] > 0 and epochs[SMALL] > 2
    err, card = capsys.readouterr().err, (tmp_path / "run" / "README.md").read_text()
    for name, value in epochs.items():
        assert f"{name} {value:.3g}" in err
        row = next(line for line in card.splitlines() if f"/{name} |" in line)
        assert row.endswith(f"| {value:.3g} |")
        assert ("CC BY 4.0" if name == LARGE else "own ? text") in row
    assert "nfc" in card and "story 0 begins" in card.lower()


def test_without_mixing_all_are_read_alike(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {**shrunk("bert-tiny"), **FAST, "data.length_schedule": None}
    run = pt.pretrain("bert-tiny", data=data, out=tmp_path / "run", objective="masked", epochs=1, overrides=changes)
    assert set(run.summary["epochs"].values()) == {1.0}
