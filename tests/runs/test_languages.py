"""Language embeddings in pre-training: the languages of sources and sides, as the segments of a batch."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.objectives.masked import MaskedLM
from pretune.objectives.translation import Translation
from pretune.runs.config import DataConfig
from pretune.runs.training_data import TrainingData
from tests.runs.small import FAST, Prepared, shrunk


def open_data(path: Path, objective: Any, languages: tuple[str, ...], count: int | None) -> TrainingData:
    config = DataConfig(path=str(path), languages=languages, max_length=32)
    return TrainingData.open(config, objective, "encoder", languages=count)


def test_every_side_has_its_language(prepared: Prepared) -> None:
    """A text has the language of its source, a pair those of its two sides; the packing is that of no languages."""
    path = prepared("bpe", "s-mask", "both")
    options: dict[str, Any] = {"length": 32, "tokens": 512, "ranks": 1, "seed": 0, "has_fixed_slots": False}
    stream = open_data(path, Translation(), ("de", "en-de"), 3).build_stream("train", **options)
    plain = open_data(path, Translation(), (), None).build_stream("train", **options)
    seen = set()
    for step in range(4):
        (sequences, _), batch, other = stream.read_sequences(step), stream[step], plain[step]
        assert torch.equal(batch.tokens, other.tokens) and batch.segments is not None
        assert sequences.sources is not None and sequences.sides is not None
        parts = zip(batch.split(batch.segments), sequences.sources, sequences.sides, strict=True)
        for segments, source, side in parts:
            actual = segments.tolist()
            assert actual == ([1] * side + [0] * (len(actual) - side) if source else [0] * len(actual))
            seen.add(int(source))
    assert seen == {0, 1}


def test_sources_have_a_language_each(prepared: Prepared) -> None:
    data = open_data(prepared("bpe", "s-mask"), MaskedLM(), (), 3)
    assert data.languages is not None and data.languages.tolist() == [[0, 0]]


def test_languages_are_trained(prepared: Prepared, tmp_path: Path) -> None:
    """The embeddings of the data's languages change, the third stays; the run is loaded again."""
    changes = {**shrunk("xlm"), **FAST, "model.languages": 3, "data.languages": ["de", "en-de"]}
    run = pt.pretrain(
        "xlm-mlm-tlm-xnli15-1024",
        data=prepared("bpe", "s-mask", "both"),
        steps=3,
        overrides={**changes, "train.optimizer.weight_decay": 0.0},
        out=tmp_path / "run",
    )
    model = pt.load(run)
    started = build(resolve("xlm", {**shrunk("xlm"), "languages": 3, "vocab": model.spec.vocab}))
    moved = (model.encoder.embed.languages.weight - started.encoder.embed.languages.weight).abs().amax(1)
    assert (moved[:2] > 0).all() and moved[2] == 0
    model.set_language(1)
    assert pt.fill(model, "the <mask> sea")


@pytest.mark.parametrize(
    ("languages", "count", "message"),
    [
        ((), 3, "two languages.*data.languages"),
        (("en",), 3, "1 names for 2 sources"),
        (("fr", "en-de"), 2, "3 languages, but the model only 2"),
        (("de", "en-de"), None, "no language embeddings"),
    ],
)
def test_names_that_do_not_fit(prepared: Prepared, languages: tuple[str, ...], count: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_data(prepared("bpe", "s-mask", "both"), Translation(), languages, count)


@pytest.mark.parametrize("what", ["both", "pairs"])
def test_the_advised_spelling_is_accepted(prepared: Prepared, what: str) -> None:
    path = prepared("bpe", "s-mask", what)
    with pytest.raises(UsageError) as caught:
        open_data(path, Translation(), (), 3)
    advice = re.search(r"data\.languages=(\S+)", str(caught.value))
    assert advice is not None
    languages = config.replace(DataConfig(path=str(path)), {"languages": advice[1]}).languages
    data = open_data(path, Translation(), languages, 3)
    assert data.languages is not None and data.languages[-1].tolist() == [0, 1]


def test_validation_text_has_the_languages_and_weights_of_the_training_text(tmp_path: Path) -> None:
    """Sources that are given with `valid` come last, in the same order."""
    for name in ("en", "de", "en_valid", "de_valid"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{name} river stone light {n}" for n in range(40)))
    paths = {name: tmp_path / f"{name}.txt" for name in ("en", "de", "en_valid", "de_valid")}
    tokenizer = pt.train_tokenizer("wordpiece", [paths["en"], paths["de"]], vocab=120)
    valid = [paths["en_valid"], paths["de_valid"]]
    pt.prepare([paths["en"], paths["de"]], tokenizer=tokenizer, valid=valid, out=tmp_path / "data", workers=0)
    options: dict[str, Any] = {"length": 32, "tokens": 512, "ranks": 1, "seed": 0, "has_fixed_slots": False}
    for names in ((), ("en", "de"), ("en", "de", "en", "de")):
        data = open_data(tmp_path / "data", MaskedLM(), names, 2)
        for split in ("train", "valid"):
            segments = data.build_stream(split, **options)[0].segments
            assert segments is not None and {*segments.unique().tolist()} == {0, 1}, (names, split)
    with pytest.raises(UsageError, match="3 names for 4 sources"):
        open_data(tmp_path / "data", MaskedLM(), ("a", "b", "c"), 4)
    one = tmp_path / "one"
    pt.prepare([paths["en"], paths["de"]], tokenizer=tokenizer, valid=valid[:1], out=one, workers=0)
    with pytest.raises(UsageError, match="1 sources of validation text for 2"):
        open_data(one, MaskedLM(), (), 4)
    changes = {
        **FAST,
        **shrunk("bert-tiny"),
        "data.max_length": 32,
        "data.mixing": {"kind": "weighted", "weights": [3, 1]},
    }
    run = pt.pretrain(
        "bert-tiny", objective="masked", data=tmp_path / "data", steps=4, out=tmp_path / "run", overrides=changes
    )
    epochs = run.summary["epochs"]
    assert len(epochs) == 2 and epochs[str(paths["en"])] > 2 * epochs[str(paths["de"])]
