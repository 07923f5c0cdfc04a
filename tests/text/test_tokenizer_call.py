"""A tokenizer called on texts: batches for a model, without padding or truncation that nobody asked for."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.core.types import Batch

TEXTS = ["a lovely film", "dull", "the cat sat on the mat and saw a bird"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> pt.Tokenizer:
    folder = tmp_path_factory.mktemp("text")
    (folder / "corpus.txt").write_text("\n".join(TEXTS * 20), encoding="utf-8")
    return pt.train_tokenizer("wordpiece", [folder / "corpus.txt"], vocab=120)


def split(batch: Batch) -> list[list[int]]:
    return [part.tolist() for part in batch.split(batch.tokens)]


def test_a_batch_has_the_ids_of_encode(tokenizer: pt.Tokenizer) -> None:
    batch = tokenizer(TEXTS)
    assert split(batch) == [tokenizer.encode(text) for text in TEXTS]
    first, *_, last = tokenizer.encode("dull")
    assert (first, last) == (tokenizer.special["cls"], tokenizer.special["sep"])
    assert tokenizer.encode("dull", add_special_tokens=False) == tokenizer.encode("dull")[1:-1]
    assert tokenizer.decode(tokenizer.encode("dull"), special=False) == "dull"
    assert tokenizer.vocab_size == len(tokenizer)
    assert split(tokenizer("dull")) == [tokenizer.encode("dull")]


def test_a_pair_has_segments(tokenizer: pt.Tokenizer) -> None:
    pairs = [("a film", "dull"), ("the cat", "a bird")]
    batch = tokenizer(pairs)
    assert split(batch) == [tokenizer.encode(*pair) for pair in pairs]
    same = tokenizer([first for first, _ in pairs], [second for _, second in pairs])
    assert torch.equal(batch.tokens, same.tokens) and batch.segments is not None and same.segments is not None
    assert torch.equal(batch.segments, same.segments) and batch.segments.max() == 1
    assert tokenizer(TEXTS).segments is None


def test_truncation_only_where_it_is_asked_for(tokenizer: pt.Tokenizer) -> None:
    lengths = [len(tokens) for tokens in split(tokenizer(TEXTS))]
    assert max(lengths) > 8
    assert [len(tokens) for tokens in split(tokenizer(TEXTS, max_length=8))] == [min(8, length) for length in lengths]


def test_labels_are_those_of_the_sequences(tokenizer: pt.Tokenizer) -> None:
    batch = tokenizer(TEXTS, labels=[1, 0, 1])
    assert batch.labels is not None and batch.labels[batch.find_sequence_cells()].tolist() == [1, 0, 1]
    with pytest.raises(UsageError, match="2 labels"):
        tokenizer(TEXTS, labels=[1, 0])


@pytest.mark.parametrize("texts", [3, [3], [["a", "b", "c"]], None])
def test_what_is_no_text(tokenizer: pt.Tokenizer, texts: object) -> None:
    with pytest.raises(UsageError):
        tokenizer(texts)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="2 texts and 1"):
        tokenizer(["a", "b"], ["c"])


def test_a_model_gives_the_same_as_for_each_text_alone(tokenizer: pt.Tokenizer, tmp_path: Path) -> None:
    model = pt.build("bert-tiny", vocab=tokenizer.vocab_size, width=16, heads=2, depth=2).eval()
    batch = tokenizer(TEXTS)
    packed = pt.batch([tokenizer.encode(text) for text in TEXTS])
    with torch.no_grad():
        together = batch.split(model(batch).logits)
        for logits, other, text in zip(together, packed.split(model(packed).logits), TEXTS, strict=True):
            alone = model(tokenizer(text)).logits
            torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(logits, other, rtol=1e-5, atol=1e-5)


def test_texts_share_rows_without_padding(tokenizer: pt.Tokenizer) -> None:
    few = tokenizer(TEXTS)
    assert few.rows == 1 and len(few.tokens) == sum(len(tokenizer.encode(text)) for text in TEXTS)
    many = tokenizer(TEXTS * 30, labels=[0, 1, 2] * 30)
    assert split(many) == [tokenizer.encode(text) for text in TEXTS] * 30
    assert many.labels is not None and many.labels[many.find_sequence_cells()].tolist() == [0, 1, 2] * 30
    assert len(many.tokens) < 30 * sum(len(tokenizer.encode(text)) for text in TEXTS) * 1.3
    long = tokenizer(["a lovely film " * 40, "dull", "dull"])
    assert long.rows == 2 and long.length == len(tokenizer.encode("a lovely film " * 40))
    same = tokenizer(["dull"] * 3)  # of one length: no mask is needed
    assert same.one_per_row and same.rows == 3 and len(same.tokens) == 3 * len(tokenizer.encode("dull"))


def test_labels_by_name(tokenizer: pt.Tokenizer) -> None:
    model = pt.build("bert-tiny", vocab=tokenizer.vocab_size, width=16, heads=2, depth=1)
    model.assets.tokenizer = tokenizer
    headed = pt.add_head(model, "classification", labels=["bad", "good"])
    assert headed.tokenizer is not None and headed.tokenizer.sha256 == tokenizer.sha256
    batch, numbered = headed.tokenizer(TEXTS, labels=["good", "bad", "good"]), headed.tokenizer(TEXTS, labels=[1, 0, 1])
    assert batch.labels is not None and numbered.labels is not None and torch.equal(batch.labels, numbered.labels)
    assert torch.isfinite(headed.loss(batch).sum)
    with pytest.raises(UsageError, match=r"'goood'.*'good'.*bad, good"):
        headed.tokenizer(TEXTS, labels=["good", "goood", "bad"])
    with pytest.raises(UsageError, match=r"label 2\b.*bad, good"):
        headed.tokenizer(TEXTS, labels=[0, 1, 2])
    with pytest.raises(UsageError, match="'good'"):
        tokenizer(TEXTS, labels=["good", "bad", "good"])
    several = pt.add_head(model, "multi_label", labels=["funny", "long", "sad"])
    assert several.tokenizer is not None
    batch = several.tokenizer(TEXTS, labels=[["sad", "funny"], [], ["long"]])
    assert batch.labels is not None
    assert batch.labels[batch.find_sequence_cells()].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert torch.isfinite(several.loss(batch).sum)
    assert model.tokenizer is tokenizer and tokenizer.labels == ()


def test_a_batch_prints_in_a_few_lines(tokenizer: pt.Tokenizer) -> None:
    shown = repr(tokenizer(TEXTS * 100, labels=[0, 1, 2] * 100))
    assert len(shown.splitlines()) == 3 and len(shown) < 400
    assert "300 sequences" in shown and "labels [" in shown and "filler" in shown
    pair = repr(pt.batch(source=[[5, 6, 7]], target=[[1]]))
    assert pair.count("Batch(") == 2 and "5 6 7" in pair and "1 sequence," in pair and "tensor(" not in pair
    assert "meta" in repr(tokenizer(TEXTS).to("meta"))
