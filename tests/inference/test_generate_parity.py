"""Token for token what `transformers.generate` writes: greedy and beams, penalties, prompts of unequal length."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import pretune as pt
from pretune.inference.decode import generate_tokens
from pretune.inference.decoding_state import GeneratedTokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GreedySearch
from tests.parity import cases
from tests.selection import keep_quick

NAMES = ("gpt2", "llama-gqa-bias", "mistral-window", "qwen3-windows", "mpt", "t5", "bart", "mbart")
MAIN = ("gpt2", "llama-gqa-bias", "t5", "bart")
ENDS, PAD, NEW = [11, 40], 96, 10
PROMPTS = ((5, 9, 31, 12, 7), (60, 3), (8, 15, 77, 44, 21, 90, 13, 6))


@cache
def pair(name: str, folder: Path) -> tuple[Any, Any]:
    """A reference with ends that it comes to now and then, and the same weights here."""
    result = {case.name: case for case in cases.CASES}[name]
    model = result.build()
    start = {"decoder_start_token_id": 2} if model.config.is_encoder_decoder else {}
    with torch.no_grad():  # texts of several lengths, none of which says the padding
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(1.6)
    model.generation_config = tf.GenerationConfig(
        eos_token_id=ENDS, pad_token_id=PAD, forced_eos_token_id=11 if name == "bart" else None, **start
    )
    model.save_pretrained(folder / name)
    return model, pt.load(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


def reference(model: Any, prompts: Any, **options: Any) -> list[list[int]]:
    """New tokens of every text, the end included, by one call with padding (to the left for a decoder)."""
    longest, both = max(map(len, prompts)), model.config.is_encoder_decoder
    ids = torch.full((len(prompts), longest), PAD)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        place = slice(0, len(prompt)) if both else slice(longest - len(prompt), None)
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, **options)
    return [cut(row) for row in out[:, 1 if both else longest :].tolist()]


def cut(tokens: list[int]) -> list[int]:
    """Up to the first end."""
    last = next((i for i, token in enumerate(tokens) if token in ENDS), len(tokens))
    return tokens[: last + 1]


def said(answers: list[list[GeneratedTokens]]) -> list[list[int]]:
    return [item.tokens for answer in answers for item in answer]


def same(ours: list[list[GeneratedTokens]], theirs: list[list[int]]) -> None:
    assert [tokens[:-1] if tokens[-1] in ENDS else tokens for tokens in theirs] == said(ours)
    ended = ["end" if tokens[-1] in ENDS else "length" for tokens in theirs]
    assert [item.finish_reason for answer in ours for item in answer] == ended


@pytest.mark.parametrize("name", NAMES)
def test_greedy(name: str, folder: Path) -> None:
    model, ours = pair(name, folder)
    result = generate_tokens(ours, PROMPTS, GenerationConfig(max_new_tokens=NEW, search=GreedySearch()))
    same(result, reference(model, PROMPTS))


BEAMS = {
    "plain": BeamSearch(beams=4),
    "early": BeamSearch(beams=3, length_penalty=2.0, early_stopping=True),
    "short": BeamSearch(beams=2, length_penalty=-1.0, early_stopping="never"),
    "never": BeamSearch(beams=4, length_penalty=0.5, early_stopping="never"),
}


@pytest.mark.parametrize(
    ("name", "beam"),
    [
        pytest.param(name, beam, marks=[] if kind == "plain" or name == "gpt2" else [pytest.mark.slow])
        for name in NAMES
        for kind, beam in BEAMS.items()
        if kind == "plain" or name in MAIN
    ],
)
def test_beams(name: str, beam: BeamSearch, folder: Path) -> None:
    model, ours = pair(name, folder)
    result = generate_tokens(ours, PROMPTS, GenerationConfig(max_new_tokens=NEW, search=beam, returns=2))
    options = {"length_penalty": beam.length_penalty, "early_stopping": beam.early_stopping}
    same(result, reference(model, PROMPTS, num_beams=beam.beams, num_return_sequences=2, **options))


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(beams=3, early_stopping=True)], ids=["greedy", "beams"])
@pytest.mark.parametrize(("penalty", "ngram"), keep_quick([(1.7, 0), (1.0, 2), (1.3, 3)], (1.3, 3)))
def test_penalties(name: str, search: GreedySearch | BeamSearch, penalty: float, ngram: int, folder: Path) -> None:
    """NOTE: the reference counts padding as tokens that were read, which must not happen to be what is written."""
    model, ours = pair(name, folder)
    decoding = GenerationConfig(max_new_tokens=NEW, search=search, repetition_penalty=penalty, no_repeat_ngram=ngram)
    options: dict[str, Any] = {"repetition_penalty": penalty, "no_repeat_ngram_size": ngram}
    if isinstance(search, BeamSearch):
        options |= {"num_beams": search.beams, "early_stopping": search.early_stopping}
    same(generate_tokens(ours, PROMPTS, decoding), reference(model, PROMPTS, **options))


def test_some_texts_end_and_some_do_not(folder: Path) -> None:
    """Or the comparisons above would say little about ends."""
    ended = {
        item.finish_reason
        for name in NAMES
        for answer in generate_tokens(
            pair(name, folder)[1], PROMPTS, GenerationConfig(max_new_tokens=NEW, search=BeamSearch(beams=4))
        )
        for item in answer
    }
    assert ended == {"end", "length"}


@pytest.mark.parametrize(
    "keys",
    [
        {"forced_bos_token_id": 7, "forced_eos_token_id": 40},
        {"force_bos_token_to_be_generated": True, "bos_token_id": 9, "forced_eos_token_id": None},
    ],
    ids=["forced", "first-releases"],
)
def test_tokens_that_only_the_config_forces(keys: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """Older directories have no generation_config.json. The save has one, so that `transformers` forces them too."""
    pair("bart", folder)[0].save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "generation_config.json").unlink()
    file = tmp_path / "theirs" / "config.json"
    text = json.loads(file.read_text()) | {"eos_token_id": ENDS, "pad_token_id": PAD, **keys}
    file.write_text(json.dumps(text))
    theirs = tf.BartForConditionalGeneration.from_pretrained(tmp_path / "theirs").eval()
    ours = pt.load(tmp_path / "theirs")
    result = generate_tokens(ours, PROMPTS, GenerationConfig(max_new_tokens=NEW, search=GreedySearch()))
    assert {tokens[0] for tokens in said(result)} == {keys.get("forced_bos_token_id", 9)}
    same(result, reference(theirs, PROMPTS))
    pt.save(ours, tmp_path / "ours")
    again = tf.BartForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    assert reference(again, PROMPTS) == reference(theirs, PROMPTS)
