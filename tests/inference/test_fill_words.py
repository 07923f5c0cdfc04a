"""Words of several tokens: in any script, of any kind of tokenizer, and no longer than the model."""

from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.inference import unmask as unmask_module
from pretune.inference.fill import count_fill_sequences
from pretune.inference.unmask import get_piece_masks
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.runs.defaults import set_special_tokens
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough
from tests.data.texts import stories
from tests.inference.speakers import SMALL, bert, roberta

FRENCH = ["Le café était fermé. La fiancée née à l'été préféré élève désespérée café décédé."] * 50
STEMS, ENDINGS = ("किताब", "कहान", "पुस्तक", "भाषा"), ("ियाँ", "ों", "ी", "ाओं")
HINDI = [" ".join(stem + ending for stem in STEMS for ending in ENDINGS)] * 50
MALTESE = ["Ġorġ u Ġanni marru ġo Ġnien."] * 50


def build_model(name: str, tokenizer: Tokenizer) -> LanguageModel:
    spec = set_special_tokens(resolve(name, {"vocab": tokenizer.vocab, **SMALL[name]}), tokenizer)
    model = rough(build(spec)).eval()
    model.assets.tokenizer, model.assets.files = tokenizer.raw, tokenizer.build_files()
    return model


def list_continuations(tokenizer: Tokenizer) -> set[str]:
    masks = get_piece_masks(tokenizer, tokenizer.vocab)
    return {tokenizer.decode([i]) for i in torch.nonzero(masks.continues_word).flatten().tolist()}


@pytest.mark.parametrize(
    ("kind", "style", "texts", "pieces"),
    [
        ("bpe", "s-mask", FRENCH, {"mé", "té", "cédé"}),  # spelled mÃ© in the vocabulary
        ("unigram", "s-mask", HINDI, {"ा", "ि", "ँ", "क"}),  # vowel signs are no letters
        ("characters", "cls-sep", FRENCH, {"é", "a"}),
        ("characters", "cls-sep", MALTESE, {"Ġ", "ġ"}),  # not the marker of byte-level vocabularies
    ],
)
def test_letters_of_any_script_continue_words(kind: str, style: str, texts: list[str], pieces: set[str]) -> None:
    continuations = list_continuations(train(kind, texts, vocab=420, style=style))
    assert pieces <= continuations
    assert not {piece for piece in continuations if not piece or set(piece) & set("\ufffd .,' ")}


def test_whole_words_have_no_continuation() -> None:
    assert list_continuations(train("words", MALTESE, vocab=60, style="cls-sep")) == set()


def test_words_have_whole_characters() -> None:
    model = build_model("roberta-base", train("bpe", FRENCH, vocab=420, style="s-mask"))
    words = [answer.word for answer in pt.fill(model, "La <mask> née", k=40, pieces=3)[0]]
    assert len(words) == 40 and not any("\ufffd" in word for word in words)
    assert any("é" in word[1:] for word in words)


def test_characters_form_words() -> None:
    tokenizer = train("characters", stories(40), vocab=300, style="cls-sep")
    answers = pt.fill(build_model("bert-tiny", tokenizer), "the [MASK] sat", k=60, pieces=3)[0]
    assert {len(answer.tokens) for answer in answers} == {1, 2, 3}
    for answer in answers:
        assert tokenizer.decode(answer.tokens) == answer.word and answer.word[1:].isalnum() == (len(answer.word) > 1)


@pytest.mark.parametrize("make", [bert, roberta])
def test_every_token_of_a_word_takes_a_position(make: Any) -> None:
    """The longest text that fits has room for all tokens of the word; one more is refused before anything runs."""
    model = make()
    positions = model.spec.max_length
    mask = model.tokenizer.get_token(model.tokenizer.special["mask"])
    texts = ["the " * count + mask for count in range(60)]
    lengths = [len(model.tokenizer.encode(text)) for text in texts]
    fitting = max(i for i, length in enumerate(lengths) if length + 2 <= positions)
    assert pt.fill(model, texts[fitting], k=1, pieces=3)[0]
    with pytest.raises(UsageError, match=rf"\b{lengths[fitting + 1]}\b.*\b{positions - 2}\b"):
        pt.fill(model, texts[fitting + 1], k=1, pieces=3)
    assert pt.fill(model, texts[fitting + 1], k=1)[0]


def test_a_prefix_takes_positions() -> None:
    model = build_model("bert-tiny", bert().tokenizer)
    pt.PrefixTuning(count=4).apply(model)
    texts = ["the " * count + "[MASK]" for count in range(60)]
    lengths = [len(model.tokenizer.encode(text)) for text in texts]
    fitting = max(i for i, length in enumerate(lengths) if length <= 44)
    assert pt.fill(model, texts[fitting], k=1)[0]
    with pytest.raises(UsageError, match=r"\b44\b"):
        pt.fill(model, texts[fitting + 1], k=1)


@pytest.mark.parametrize(("masks", "k", "pieces"), [(1, 5, None), (2, 2, 2), (3, 1, 4)])
def test_sequences_are_counted_before_the_work(
    masks: int, k: int, pieces: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compute, sequences = bert(), unmask_module._compute_logprobs, 0

    def count_queries(model: LanguageModel, queries: Any) -> Any:
        nonlocal sequences
        sequences += len(queries)
        return compute(model, queries)

    monkeypatch.setattr(unmask_module, "_compute_logprobs", count_queries)
    pt.fill(model, "The [MASK] went. " * masks, k=k, pieces=pieces)
    assert sequences == count_fill_sequences(model, masks, k=k, pieces=pieces)
