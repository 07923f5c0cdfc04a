"""Heads and adapters for a training loop of the user's own."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError

TEXTS = ["a lovely film", "dull", "lovely", "a dull film"]
LABELS = [1, 0, 1, 0]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    (folder / "corpus.txt").write_text("\n".join(TEXTS * 20), encoding="utf-8")
    tokenizer = pt.train_tokenizer("wordpiece", [folder / "corpus.txt"], vocab=100)
    model = pt.build("bert-tiny", vocab=tokenizer.vocab_size, width=16, heads=2, depth=2)
    pt.save(model, folder / "model")
    tokenizer.save(folder / "tokenizer")
    for file in (folder / "tokenizer").iterdir():
        file.rename(folder / "model" / file.name)
    return folder / "model"


@pytest.mark.parametrize(
    "method", [pt.LoRA(rank=2), pt.IA3(), pt.BitFit(), pt.Adapter(bottleneck=4)], ids=lambda one: type(one).__name__
)
def test_a_loop_of_the_users_own(base: Path, method: object) -> None:
    model = pt.add_head(pt.load(base), "classification", labels=["bad", "good"], dropout=0.0)
    pt.add_adapter(model, method)  # type: ignore[arg-type]
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    assert frozen
    optimizer = torch.optim.AdamW(model.trainable_parameters(), lr=1e-2)
    batch = model.tokenizer(TEXTS, labels=LABELS)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.loss(batch)
        (loss.sum / loss.count).backward()
        optimizer.step()
        losses.append(loss.sum.item() / loss.count.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(value, dict(model.named_parameters())[name]) for name, value in frozen.items())
    if isinstance(method, pt.LoRA):
        assert losses[-1] < 0.5 * losses[0] and model(batch).argmax(-1).tolist() == LABELS


def test_a_head_leaves_the_model_as_it_was(base: Path) -> None:
    model = pt.load(base)
    before = model(model.tokenizer(TEXTS)).logits
    headed = pt.add_head(model, "regression")
    assert headed(model.tokenizer(TEXTS)).shape == (4, 1)
    assert torch.equal(model(model.tokenizer(TEXTS)).logits, before)
    assert sum(p.numel() for p in headed.trainable_parameters()) == sum(p.numel() for p in headed.parameters())


def test_mistakes(base: Path) -> None:
    model = pt.load(base)
    with pytest.raises(UsageError, match="labels"):
        pt.add_head(model, "classification")
    with pytest.raises(UsageError, match="labels"):
        pt.add_head(model, "regression", labels=["a", "b"])
    with pytest.raises(UsageError, match="clasification"):
        pt.add_head(model, "clasification", labels=["a", "b"])  # type: ignore[arg-type]
    pt.add_adapter(model, pt.LoRA(rank=2))
    with pytest.raises(UsageError):
        pt.add_adapter(model, pt.LoRA(rank=2))
