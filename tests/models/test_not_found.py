"""Models that are not there: what the message offers."""

from pathlib import Path

import pytest

import pretune as pt
from pretune.core.errors import CheckpointError
from pretune.models.families import FAMILIES, format_hub_name, list_sizes, make_missing_error

PUBLISHED = {
    "bert-base-uncased": "google-bert",
    "bert-large-cased-whole-word-masking": "google-bert",
    "roberta-base": "FacebookAI",
    "xlm-roberta-base": "FacebookAI",
    "gpt2": "openai-community",
    "t5-small": "google-t5",
    "electra-small-discriminator": "google",
    "distilbert-base-uncased": "distilbert",
    "bart-base": "facebook",
    "all-MiniLM-L6-v2": "sentence-transformers",
}


@pytest.mark.parametrize(("name", "owner"), PUBLISHED.items())
def test_names_of_the_hub_are_offered_as_they_are_written_here(
    name: str, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert format_hub_name(name) == f"hf:{owner}/{name}"
    with pytest.raises(CheckpointError, match=f"hf:{owner}/{name}") as caught:
        pt.load(name)
    is_size = name in FAMILIES or any(name == f"{family}-{size}" for family in FAMILIES for size in list_sizes(family))
    assert ("pretune pretrain" in str(caught.value)) == is_size  # a command that works, or none


def test_an_owner_and_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hf:owner/model" in str(make_missing_error(Path("owner/model")))
    (tmp_path / "runs").mkdir()
    assert "hf:" not in str(make_missing_error(Path("runs/model"))).replace(
        "hf:OWNER/NAME", ""
    )  # a path that was mistyped


@pytest.mark.parametrize("name", ["../x", "a/b/c", "/etc", "my-run", "bert-tiny", ""])
def test_what_is_no_name_of_the_hub(name: str) -> None:
    assert format_hub_name(name) is None


def test_a_size_of_a_family_is_trained() -> None:
    assert "pretune pretrain bert-tiny" in str(make_missing_error(Path("bert-tiny")))
