"""Token vectors from counts: tokens of the same texts are near, and others keep what they had."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation import cooccurrence
from pretune.adaptation.cooccurrence import ADDED_SHARE, TOKEN_SCALE, count_token_vectors, rotate
from pretune.data.prepared_data import PreparedData
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer
from tests.conftest import Patch

FRUIT, TOOLS = ("apple", "pear", "plum"), ("hammer", "saw", "nail")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("counted")
    lines = [" ".join(words[n // 3**k % 3] for k in range(5)) for n in range(60) for words in (FRUIT, TOOLS)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    tokenizer = pt.train_tokenizer("words", folder / "text.txt", vocab=20, by="line", style="cls-sep")
    return pt.prepare([folder / "text.txt"], tokenizer=tokenizer, by="line", out=folder / "data", holdout=0)


def build(data: PreparedData) -> LanguageModel:
    model: LanguageModel = pt.build("modernbert", vocab=data.vocab, width=16, depth=1, heads=1, hidden=16)
    return model


def test_tokens_of_the_same_texts_are_near(data: PreparedData, monkeypatch: Patch) -> None:
    model, before = build(data), build(data).tokens.weight.detach()
    shards = data.open_shards()
    count_token_vectors(model, shards, is_new=True)
    after, vocabulary = model.tokens.weight.detach(), Tokenizer.load(data.tokenizer).raw.get_vocab()
    fruit, tools = ([vocabulary[word] for word in words] for words in (FRUIT, TOOLS))
    near = torch.cosine_similarity(after[fruit[0]], after[fruit[1:]])
    far = torch.cosine_similarity(after[fruit[0]], after[tools])
    assert near.min() > far.max() + 0.03
    changed = (before != after).any(1)
    assert sorted(changed.nonzero()[:, 0].tolist()) == sorted(fruit + tools)
    assert after[changed].std().item() == pytest.approx(TOKEN_SCALE)
    again = build(data)
    count_token_vectors(again, shards, is_new=True)
    assert torch.equal(again.tokens.weight, after)

    monkeypatch.setattr(cooccurrence, "COUNTED_TOKENS", 5)  # the first text only, in which no token is frequent
    count_token_vectors(part := build(data), shards, is_new=True)
    assert torch.equal(part.tokens.weight, before)


def test_trained_vectors_keep_what_they_hold(data: PreparedData, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cooccurrence, "ADDED_WIDTH", 4)
    model, before = build(data), build(data).tokens.weight.detach()
    count_token_vectors(model, data.open_shards(), is_new=False)
    added = model.tokens.weight.detach() - before
    known = added.any(1)
    old = before[known]
    assert known.sum() == 6
    assert added[known].norm(dim=1).mean() / (old - old.mean(0)).norm(dim=1).mean() == pytest.approx(
        ADDED_SHARE, rel=1e-4
    )


def test_rotated_vectors_keep_their_angles() -> None:
    vectors, target = torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(0))
    rotated = rotate(vectors, torch.cat((target, vectors), 1))
    ratio = (rotated @ rotated.T) / (vectors @ vectors.T)
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-3)


def test_runs_begin_with_them(data: PreparedData, tmp_path: Path) -> None:
    shape = {"model.width": 16, "model.depth": 1, "model.heads": 1}
    sets = {"train.lr": 1e-6, "train.token_vectors": "counted", "data.max_length": 8}
    run = pt.pretrain("modernbert", data=data, steps=1, out=tmp_path / "run", overrides=shape | sets, device="cpu")
    first = run.load().tokens.weight.detach()
    assert first.std().item() > 0.05 > build(data).tokens.weight.std().item()
    more = pt.pretrain(init_from=run, data=data, steps=1, out=tmp_path / "more", overrides=sets, device="cpu")
    assert (more.load().tokens.weight.detach() - first).abs().max() > 1e-3
