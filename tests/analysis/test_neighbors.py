"""Neighbours: the states of words by their definition, one text at a time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.analysis.neighbors import WORD_PATTERN, compute_token_vectors, compute_word_states, neighbors
from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.inference.text_model import get_tokenizer
from tests.inference.readers import decoder, encoder

SENTENCE = "a child plays music"
CORPUS = [
    "the cat plays",
    "money in the bank",
    "",
    SENTENCE,
    "The dog-house, old; a bird's tree",
    "Plays 12 plays",
    "…!",
]


def state(model: Any, text: str, start: int, end: int, layer: int | None) -> torch.Tensor:
    """The mean state of the tokens that start inside some characters, the text read by itself."""
    tokenizer = get_tokenizer(model)
    found = tokenizer.encode_batch([text])
    laid = tokenizer.template.apply(found[0])
    with torch.no_grad():
        hidden = model(pt.batch([laid.ids]), hidden=True).hidden[-1 if layer is None else layer]
    places = np.flatnonzero(~laid.is_special)[(found.starts >= start) & (found.starts < end)]
    return torch.nn.functional.normalize(hidden[torch.from_numpy(places)].mean(0), dim=0)


@pytest.mark.parametrize("make", [encoder, decoder])
@pytest.mark.parametrize("layer", [None, 0, 1])
def test_in_context(make: Any, layer: int | None) -> None:
    model = make()
    query = state(model, SENTENCE, 8, 13, layer)
    expected = {}
    for line, text in enumerate(CORPUS, 1):
        for match in [] if text == SENTENCE else WORD_PATTERN.finditer(text):
            expected[line, match.start()] = float(query @ state(model, text, *match.span(), layer))
    found = neighbors(model, "Plays", SENTENCE, CORPUS, k=50, layer=layer)
    assert found.word_count == len(expected) == len(found.context)
    for one in found.context:
        assert one.score == pytest.approx(expected[one.line, one.start], abs=1e-5)
        assert CORPUS[one.line - 1][one.start : one.start + len(one.word)] == one.word
    assert [one.score for one in found.context] == sorted((one.score for one in found.context), reverse=True)


@pytest.mark.parametrize("same_word", [False, True])
def test_states_of_a_corpus_are_computed_once(same_word: bool) -> None:
    model = encoder()
    states, vectors = compute_word_states(model, CORPUS, layer=1), compute_token_vectors(model)
    found = neighbors(model, "plays", SENTENCE, states, layer=1, same_word=same_word, token_vectors=vectors)
    expected = neighbors(model, "plays", SENTENCE, CORPUS, layer=1, same_word=same_word)
    assert (found.pieces, found.word_count, found.static) == (expected.pieces, expected.word_count, expected.static)
    assert [one[:4] for one in found.context] == [one[:4] for one in expected.context]
    assert [one.score for one in found.context] == pytest.approx([one.score for one in expected.context], abs=1e-6)
    with pytest.raises(UsageError, match="layer 1"):
        neighbors(model, "plays", SENTENCE, states)
    with pytest.raises(DataError):
        neighbors(model, "plays", SENTENCE, compute_word_states(model, ["", " "]))


def test_only_the_word_itself() -> None:
    found = neighbors(encoder(), "plays", SENTENCE, CORPUS, k=2, same_word=True)
    assert (
        found.word_count == 3 and {one.word.lower() for one in found.context} == {"plays"} and len(found.context) == 2
    )


def test_without_context() -> None:
    model = encoder()
    found = neighbors(model, "plays", SENTENCE, CORPUS, k=3)
    tokenizer = get_tokenizer(model)
    table = torch.nn.functional.normalize(model.tokens.weight.detach(), dim=-1)
    pieces = tokenizer.encode("plays", add_special_tokens=False)
    assert found.pieces == tuple(tokenizer.get_token(i) for i in pieces)
    query = torch.nn.functional.normalize(model.tokens.weight.detach()[pieces].mean(0), dim=0)
    order = [i for i in (-(table @ query)).argsort().tolist() if i not in {*pieces, *tokenizer.special_ids}]
    assert [one.word for one in found.static] == [tokenizer.get_token(i) for i in order[:3]]


def test_tokens_are_told_as_people_read_them() -> None:
    """Without the mark of the space before them; bytes that are no character as they are spelled."""
    model = decoder()
    found = neighbors(model, "plays", SENTENCE, CORPUS, k=400)
    words = {one.word for one in found.static}
    assert "the" in words and not any(word.startswith("Ġ") and len(word) > 1 for word in words)
    assert not any("\ufffd" in word for word in words)


def test_invalid_arguments() -> None:
    model = encoder()
    with pytest.raises(UsageError, match="'play'"):
        neighbors(model, "play", SENTENCE, CORPUS)
    with pytest.raises(DataError, match="'music'"):
        neighbors(model, "music", SENTENCE, CORPUS, same_word=True)
    with pytest.raises(DataError):
        neighbors(model, "music", SENTENCE, [SENTENCE, "…"])
    with pytest.raises(UsageError, match=r"\b0\b"):
        neighbors(model, "plays", SENTENCE, CORPUS, k=0)
    with pytest.raises(UsageError, match=r"'music'.*\b40\b"):
        neighbors(model, "music", "bird " * 50 + "music", CORPUS)
    assert neighbors(model, "plays", SENTENCE, ["bird " * 50], k=1).truncated_lines == 1


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pt.save(encoder(), tmp_path / "m")
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS))
    arguments = ["neighbors", str(tmp_path / "m"), "plays", "--in", SENTENCE, "--corpus", str(tmp_path / "corpus.txt")]
    assert main([*arguments, "-k", "2", "--device", "cpu"]) == 0
    assert "[plays]" in capsys.readouterr().out
    assert main([*arguments, "--same", "--json", "--device", "cpu", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == 3
