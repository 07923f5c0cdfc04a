"""Tokenizers in GGUF files: the tokens of transformers' classes, and of sentencepiece's algorithm on hard strings."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import CheckpointError
from pretune.core.gguf import GgufFile
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.files import parse_tokenizer
from pretune.text.tokenizer.gguf import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED, build_tokenizer
from tests.text.tokenizers import NASTY, trained

HARD = (*NASTY, "I'M WE'LL it'S", "12345 6 78", "x  y   z\n\n\nw", "ends in space ", "٣٤٥", "a_b-c/d", "Å A\u030a")


def read(entries: dict[str, Any]) -> Tokenizer:
    built = build_tokenizer(
        GgufFile(Path("model.gguf"), 0, {f"tokenizer.ggml.{name}": v for name, v in entries.items()})
    )
    assert built is not None
    return Tokenizer(parse_tokenizer(json.dumps(built[0]).encode(), "model.gguf"), built[1])


def byte_level(splitter: str, **entries: Any) -> tuple[Tokenizer, dict[str, int], list[tuple[str, str]]]:
    """Return a tokenizer with the vocabulary of a trained one, and that vocabulary with its merges."""
    raw = trained("bpe", "endoftext").raw
    vocab = raw.get_vocab(with_added_tokens=True)
    merges = [tuple(merge) for merge in json.loads(raw.to_str())["model"]["merges"]]
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [CONTROL if token.startswith("<|") else NORMAL for token in tokens]
    table = {
        "model": "gpt2",
        "pre": splitter,
        "tokens": tokens,
        "token_type": kinds,
        "merges": [*map(" ".join, merges)],
    }
    return read({**table, **entries}), vocab, merges


@pytest.mark.parametrize("splitter", ["gpt-2", "qwen2", "smollm"])
def test_byte_level_tokens(splitter: str) -> None:
    """Those of transformers where it has such a class; for SmolLM its GPT-2 on the pieces between digits."""
    tf = pytest.importorskip("transformers", reason="the reference library is not installed")
    ours, vocab, merges = byte_level(splitter)
    if splitter == "qwen2":
        theirs = tf.Qwen2Tokenizer(vocab=vocab, merges=merges)
    else:
        theirs = tf.GPT2Tokenizer(vocab=vocab, merges=merges)
    for text in HARD:
        pieces = [text]
        if splitter == "smollm":
            runs = ["".join(run) for _, run in itertools.groupby(text, key=str.isnumeric)]
            pieces = [part for run in runs for part in (run if run.isnumeric() else [run])]
        assert ours.encode(text) == [i for piece in pieces for i in theirs.encode(piece)], text
        assert ours.decode(ours.encode(text)) == text or splitter == "qwen2"


def test_pieces_of_llama3() -> None:
    ours, _, _ = byte_level("llama-bpe")
    split = ours.raw.pre_tokenizer.pre_tokenize_str("I'M 12345, don't\n\n x  y;")
    assert [piece for piece, _ in split] == "I 'M Ġ 123 45 , Ġdon 't ĊĊ Ġx Ġ Ġy ;".split()  # noqa: SIM905


def test_special_tokens_and_the_start() -> None:
    ours, vocab, _ = byte_level("llama-bpe", bos_token_id=0, eos_token_id=0)
    special = next(token for token, i in vocab.items() if i == 0)
    assert ours.encode("a")[0] == 0 and ours.special["bos"] == ours.special["eos"] == 0  # without the key, as llama.cpp
    ours, _, _ = byte_level("llama-bpe", bos_token_id=0, add_bos_token=False, add_eos_token=True, eos_token_id=0)
    assert ours.encode("a")[0] != 0 and ours.encode("a")[-1] == 0
    assert ours.encode(f"a{special}", add_special_tokens=False)[-1] == 0


PIECES = ["▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the", "th", "at", "▁c", "▁ca", "cat", "▁cat", "▁▁", "東", "'"]
SCORES = [
    -20.0,
    -21.0,
    -22.0,
    -23.0,
    -24.0,
    -25.0,
    -1.0,
    -2.0,
    -4.0,
    -3.0,
    -5.0,
    -6.0,
    -9.0,
    -8.0,
    -10.0,
    -7.0,
    -30,
    -31,
]


def sentencepiece(**entries: Any) -> Tokenizer:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *PIECES, "<tool>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES), USER_DEFINED]
    scores = [0.0] * 259 + [float(score) for score in SCORES] + [0.0]
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return read({"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, **roles, **entries})


def merge_by_score(text: str) -> list[str]:
    """Sentencepiece's BPE: of all neighbours that make a piece those with the best score, the leftmost first."""
    scores, symbols = dict(zip(PIECES, SCORES, strict=True)), list(text.replace(" ", SPACE))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores]
        if not pairs:
            break
        place = min(pairs)[1]
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    return [part for s in symbols for part in ([s] if s in scores else [f"<0x{b:02X}>" for b in s.encode()])]


@pytest.mark.parametrize(
    "text", ["the cat", "that  the   cathat", " the", "東 the é\N{GRINNING FACE}", "catthe ", "t h e", ""]
)
def test_sentencepiece(text: str) -> None:
    ours = sentencepiece()
    ids = ours.encode(text)
    assert ids[0] == 1  # its default
    assert [ours.get_token(i) for i in ids[1:]] == (merge_by_score(f" {text}") if text else [])
    assert ours.decode(ids[1:]) == text
    bare = sentencepiece(add_space_prefix=False, add_bos_token=False)
    assert [bare.get_token(i) for i in bare.encode(text)] == merge_by_score(text) and bare.decode(
        bare.encode(text)
    ) == text


def test_tokens_of_the_user_are_found_in_text() -> None:
    ours = sentencepiece(add_space_prefix=False, add_bos_token=False)
    ids = ours.encode("the<tool>the</s>")
    tool, end = ours.token_to_id("<tool>"), ours.token_to_id("</s>")
    assert tool in ids and ids[-1] == end and tool not in ours.special_ids and end in ours.special_ids


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": "bert"}, "'bert' is not supported"),
        ({"pre": "falcon"}, "'falcon' is not supported"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "twice"),
        ({"token_type": [1]}, "type"),
        ({"tokens": [1, 2]}, "type str"),
        ({"bos_token_id": 10**9}, "bos token"),
        ({"model": "llama", "scores": [1.0]}, "1 scores"),
        ({"model": "llama"}, "scores' is missing"),
    ],
)
def test_refusals(change: dict[str, Any], match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        byte_level("gpt-2", **change)
