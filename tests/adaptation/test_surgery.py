"""Another vocabulary, more positions: what both have is kept, what is new begins as told, and all is saved."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation.surgery import (
    add_task_tokens,
    extract_encoder,
    find_missing_task_tokens,
    replace_vocabulary,
    resize_positions,
)
from pretune.core.errors import UsageError
from pretune.inference.generation_config import GenerationTokens
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel, build
from pretune.models.spec import Special
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough, tiny
from tests.runs import tasked

TEXT = "the lovely old sea house."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    model = pt.load(tasked.make_base(tmp_path_factory.mktemp("base")))
    assert isinstance(model, LanguageModel)
    return rough(model)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same words and others, of which there are more, in another order."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train("wordpiece", [*tasked.corpus(40), "lighthouse seaside " * 50], vocab=340, style="cls-sep").save(folder / "t")
    return Tokenizer.load(folder / "t")


def test_the_same_vocabulary_changes_nothing(base: LanguageModel) -> None:
    new_model = replace_vocabulary(base, get_tokenizer(base))
    batch = pt.batch([get_tokenizer(base).encode(TEXT, add_special_tokens=False)])
    torch.testing.assert_close(
        new_model(batch).logits, base(batch).logits[:, : new_model.spec.vocab], rtol=0, atol=1e-6
    )
    assert new_model.spec.special == base.spec.special


def test_generation_uses_the_new_vocabulary(tmp_path: Path) -> None:
    """Not the ids that a generation_config.json has for the old one, nor its other files."""
    old, new = (train("bpe", [text] * 9, vocab=size, style="endoftext") for text, size in (("a sea", 300), ("so", 280)))
    model = build(replace(tiny("gpt2"), vocab=old.vocab, special=Special(bos=old.special["bos"], eos=(7,))))
    model.assets.files, model.assets.tokenizer = {**old.build_files(), "merges.txt": b"a b"}, old
    pt.save(model, tmp_path / "old")
    loaded = pt.load(tmp_path / "old")
    assert isinstance(loaded, LanguageModel) and GenerationTokens.from_model(loaded).eos == (7,)
    new_model = replace_vocabulary(loaded, new)
    assert GenerationTokens.from_model(new_model).eos == new_model.spec.special.eos
    pt.save(new_model, tmp_path / "new")
    stored = json.loads((tmp_path / "new" / "generation_config.json").read_text())
    assert stored == {"bos_token_id": new.special["bos"]}
    assert not (tmp_path / "new" / "merges.txt").exists()


def test_tokens_keep_their_rows_and_new_ones_are_means(base: LanguageModel, other: Tokenizer) -> None:
    old = get_tokenizer(base)
    new_model = replace_vocabulary(base, other)
    assert (
        new_model.spec.vocab == other.vocab == len(new_model.tokens.weight)
        and get_tokenizer(new_model).sha256 == other.sha256
    )
    old_vocab, new_vocab = old.raw.get_vocab(), other.raw.get_vocab()
    common_tokens = [
        token for token in new_vocab if token in old_vocab and new_vocab[token] not in other.special.values()
    ]
    assert len(common_tokens) > 50 and any(new_vocab[token] != old_vocab[token] for token in common_tokens)
    for token in common_tokens:
        assert torch.equal(new_model.tokens.weight[new_vocab[token]], base.tokens.weight[old_vocab[token]])
        assert new_model.head is not None and base.head is not None
        assert torch.equal(new_model.head.bias[new_vocab[token]], base.head.bias[old_vocab[token]])  # type: ignore[index]
    for role, number in other.special.items():
        assert torch.equal(new_model.tokens.weight[number], base.tokens.weight[old.special[role]])
    assert "lighthouse" in new_vocab and "lighthouse" not in old_vocab
    pieces = old.encode("lighthouse", add_special_tokens=False)
    mean = base.tokens.weight[pieces].mean(0)
    torch.testing.assert_close(new_model.tokens.weight[new_vocab["lighthouse"]], mean)
    assert new_model.spec.special.pad == other.special["pad"]


@pytest.mark.parametrize(("kind", "style"), [("bpe", "s-mask"), ("unigram", "sentinels")])
def test_other_kinds_are_read_and_saved(base: LanguageModel, kind: str, style: str, tmp_path: Path) -> None:
    train(kind, tasked.corpus(), vocab=420, style=style).save(tmp_path / "t")
    new_model = replace_vocabulary(base, Tokenizer.load(tmp_path / "t"))
    assert torch.isfinite(new_model.tokens.weight).all()
    pt.save(new_model, tmp_path / "run")
    loaded_model = pt.load(tmp_path / "run")
    assert isinstance(loaded_model, LanguageModel)
    batch = pt.batch([get_tokenizer(loaded_model).encode(TEXT, add_special_tokens=False)])
    torch.testing.assert_close(loaded_model(batch).logits, new_model.eval()(batch).logits, rtol=0, atol=0)
    assert get_tokenizer(loaded_model).sha256 == get_tokenizer(new_model).sha256


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "opt", "bart"])
def test_a_longer_table_is_the_old_one_again(family: str, tmp_path: Path) -> None:
    """Short inputs give the same states as before; RoBERTa's and OPT's first rows stay where they are."""
    model = rough(build(tiny(family))).eval()
    room = model.spec.max_length
    assert room is not None
    new_model = resize_positions(model, 3 * room - 1)
    assert new_model.spec.max_length == 3 * room - 1
    ids = [[5, 7, 9, 4]]
    batch = pt.batch(source=ids, target=ids) if model.spec.is_encoder_decoder else pt.batch(ids)
    torch.testing.assert_close(new_model(batch).logits, model(batch).logits, rtol=0, atol=0)
    (stack, *_) = (
        stack_or_none for stack_or_none in (new_model.encoder, new_model.decoder) if stack_or_none is not None
    )
    table, offset = stack.position.table.weight, new_model.spec.stacks[0].position.offset  # type: ignore[union-attr]
    assert torch.equal(table[offset : offset + room - 1], table[offset + 2 * room :])
    pt.save(new_model, tmp_path / "run")
    torch.testing.assert_close(pt.load(tmp_path / "run")(batch).logits, model(batch).logits, rtol=0, atol=0)
    assert resize_positions(new_model, room).state_dict().keys() == model.state_dict().keys()


def test_what_cannot_be_done_is_told() -> None:
    with pytest.raises(UsageError):
        resize_positions(build(tiny("t5")), 100)
    with pytest.raises(UsageError, match=r"\b0\b"):
        resize_positions(build(tiny("bert")), 0)
    with pytest.raises(UsageError):
        replace_vocabulary(build(tiny("bert")), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "style", "expected"),
    [
        ("bpe", "endoftext", ["bos", "sep", "cls"]),
        ("words", "plain", ["sep"]),  # <s> and </s> are there
        ("wordpiece", "cls-sep", []),
        ("bpe", "s-mask", []),
    ],
)
def test_task_tokens_that_a_vocabulary_lacks(kind: str, style: str, expected: list[str]) -> None:
    assert find_missing_task_tokens(train(kind, ["a sea and a house"] * 3, vocab=400, style=style)) == expected


def test_task_tokens_leave_the_rest_as_it_was(tmp_path: Path) -> None:
    model = pt.load(tasked.make_base(tmp_path, "gpt", kind="bpe", style="endoftext", dropout=0)).eval()
    new_model = add_task_tokens(model, seed=3)
    assert new_model.spec.vocab == model.spec.vocab + 3
    assert torch.equal(new_model.tokens.weight[:-3], model.tokens.weight)
    new = new_model.tokens.weight[-3:].detach()
    assert new.abs().min() > 0 and new.std() < 0.05
    assert torch.equal(add_task_tokens(model, seed=3).tokens.weight, new_model.tokens.weight)
    assert not torch.equal(add_task_tokens(model, seed=4).tokens.weight[-3:], new)
    batch = pt.batch([[5, 6, 7], [8, 9]])
    torch.testing.assert_close(new_model(batch).logits[:, :-3], model(batch).logits)
    assert add_task_tokens(new_model) is new_model


@pytest.mark.parametrize("family", ["t5-table", "bart", "mass"])
def test_an_encoder_is_that_of_the_encoder_decoder(family: str, tmp_path: Path) -> None:
    model = rough(build(tiny(family))).eval()
    encoder = extract_encoder(model)
    whole = model(pt.batch(source=[[5, 6, 7], [8, 9]], target=[[1, 5], [1, 6]]), hidden=True)
    alone = encoder(pt.batch([[5, 6, 7], [8, 9]]), hidden=True)
    assert encoder.shape == "encoder" and whole.source.hidden is not None and alone.hidden is not None
    for left, right in zip(whole.source.hidden, alone.hidden, strict=True):
        torch.testing.assert_close(left[:5], right[:5], rtol=0, atol=1e-6)
    pt.save(encoder, tmp_path / "encoder")
    loaded = pt.load(tmp_path / "encoder")
    assert isinstance(loaded, LanguageModel) and loaded.spec == encoder.spec
    assert all(map(torch.equal, loaded.state_dict().values(), encoder.state_dict().values()))
    with pytest.raises(UsageError, match="encoder-decoder"):
        extract_encoder(encoder)
