"""Character CNN: equal to the written-out formulae in any batch, with the published number of weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.nn.characters import CharacterCNN, CharacterEmbedding, Filters
from pretune.text.tokenizer.open_vocabulary import PADDING, spell

SMALL = CharacterCNN(filters=(Filters(width=1, count=3), Filters(width=3, count=5)), width=4, length=12)
WORDS = ["a", "cat", "Zürich", "antidisestablishment", "", "cats"]


def build() -> CharacterEmbedding:
    torch.manual_seed(0)
    return SMALL.build(width=7)


def encode(model: CharacterEmbedding, characters: list[int]) -> Tensor:
    """The formulae, for one word and one filter at a time."""
    vectors = [model.characters.weight[i] for i in characters]
    features = []
    for group in model.filters:
        assert isinstance(group, torch.nn.Conv1d)
        for weight, bias in zip(group.weight, group.bias if group.bias is not None else [], strict=True):
            places = range(len(vectors) - weight.shape[1] + 1)
            sums = [sum(weight[:, j] @ vectors[i + j] for j in range(weight.shape[1])) + bias for i in places]
            features.append(torch.stack([torch.relu(torch.as_tensor(value)) for value in sums]).max())
    x = torch.stack(features)
    for highway in model.highways:
        gate = torch.sigmoid(highway.gate(x))  # type: ignore[operator]
        x = gate * F.relu(highway.dense(x)) + (1 - gate) * x  # type: ignore[operator]
    return model.project(x)


def test_vectors_follow_the_formulae() -> None:
    model, table = build(), torch.from_numpy(spell(WORDS, SMALL.length))
    expected = torch.stack([encode(model, word) for word in table.tolist()])
    assert torch.allclose(model.encode_words(table), expected, atol=1e-6)
    tokens = torch.tensor([3, 1, 1, 5, 0, 3])
    out = model(tokens, table)
    assert torch.allclose(out, expected[tokens], atol=1e-6)
    (gradient,) = torch.autograd.grad(out.square().sum(), model.characters.weight)
    (expected_gradient,) = torch.autograd.grad(expected[tokens].square().sum(), model.characters.weight)
    assert torch.allclose(gradient, expected_gradient, atol=1e-5)


def test_a_short_word_does_not_depend_on_a_long_one() -> None:
    model, table = build(), torch.from_numpy(spell(WORDS, SMALL.length))
    alone = torch.cat([model.encode_words(table[i : i + 1]) for i in range(len(WORDS))])
    assert torch.allclose(alone, model.encode_words(table), atol=1e-6)
    assert (table[3] != PADDING).all()  # a word that fills its row


def test_the_number_of_weights_is_that_of_the_paper() -> None:
    sizes = {1: 32, 2: 32, 3: 64, 4: 128, 5: 256, 6: 512, 7: 1024}
    spec = CharacterCNN(filters=tuple(Filters(width=width, count=count) for width, count in sizes.items()))
    # 262 x 16 characters, 199,168 of filters, two highways of 2 x 2049 x 2048, and 2049 x 512 of the projection
    assert spec.params(width=512) == 4_192 + 199_168 + 16_785_408 + 1_049_088
    with torch.device("meta"):
        model = spec.build(width=512)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.params(width=512)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="filters see 9 characters, but a word has at most length = 8"):
        CharacterCNN(filters=(Filters(width=9, count=1),), length=8)
    with pytest.raises(UsageError, match="characters must be > 261"):
        CharacterCNN(filters=(Filters(width=1, count=1),), characters=256)
