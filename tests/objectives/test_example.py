"""What is shown of an objective is what it does: tokens, targets, their counts, and who sees whom."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sampling import Counters
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.example import (
    BatchExample,
    ExampleSequence,
    build_example,
    build_mask,
    build_sequence,
    format_tokens,
    list_variants,
    train_word_tokenizer,
)
from pretune.text.tokenizer import Tokenizer
from tests.contracts.objective_cases import MODELS
from tests.contracts.tiny import rough
from tests.selection import keep_quick
from tests.text.tokenizers import trained

CASES = [(name, shape) for name in OBJECTIVES for shape in OBJECTIVES.get(name)().shapes]
MASKS = [
    (name, shape, seed)
    for name, shape in CASES
    for seed in ((0, 1, 2) if name in ("multitask_masked", "mixture", "permuted") else (0,))
]
"""With several seeds where the mask is drawn."""


def taught(name: str, shape: ModelShape, seed: int = 0) -> tuple[Tokenizer, Objective, Batch]:
    """The first lesson of an example, made without any of what tells it."""
    objective = OBJECTIVES.get(name)()
    segments, label = list_variants(name, objective, ())[0]
    tokenizer = train_word_tokenizer(segments, objective, shape)
    one = build_sequence(tokenizer, shape, objective.pairs, segments, label)
    made = objective.bind(Vocabulary.from_tokenizer(tokenizer), shape).corrupt(one, Counters.from_sequences(seed, one))
    source = None if made.source is None else int(made.source.lengths[0])
    return (
        tokenizer,
        objective,
        lay_out(made, np.zeros(1, np.int64), BatchShape(rows=1, length=len(made.tokens), source=source)),
    )


def attended(model: Any, shape: ModelShape, batch: Batch) -> list[torch.Tensor]:
    """Where the first layer of a real model puts any weight, for each of its sides."""

    def where(found: tuple[tuple[torch.Tensor, ...], ...]) -> torch.Tensor:
        return (found[0][0] > 0).any(0)

    if shape == "two-way":
        return [where(model.forwards(batch, attention=True).attention)]
    if shape == "generator-discriminator":
        return [where(model.generator(batch, attention=True).attention)]
    out = model(batch, attention=True)
    if shape == "encoder-decoder":
        return [where(out.source.attention), where(out.attention)]
    return [where(out.attention)]


@pytest.mark.parametrize(("name", "shape", "seed"), MASKS)
def test_who_sees_whom_is_where_a_model_looks(name: str, shape: ModelShape, seed: int) -> None:
    tokenizer, _, batch = taught(name, shape, seed)
    told = [build_mask(batch, "decoder" if shape == "encoder-decoder" else shape)]
    told = told if batch.source is None else [build_mask(batch.source, "encoder"), *told]
    with torch.no_grad():
        looked = attended(rough(MODELS[shape](tokenizer.vocab)).eval(), shape, batch)
    assert [seen.tolist() for seen in looked] == [seen.tolist() for seen in told]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_what_is_told_is_the_lesson(name: str, shape: ModelShape) -> None:
    """Tokens and targets are those of the batch, spelled out, and terms count as the objective counts."""
    made = build_example(name, shape=shape)
    assert made.shape == shape and made.title and made.about
    for drawn in made.sequences:
        for side in drawn.sides:
            assert len(side.tokens) == len(side.targets) == len(side.mask)
            assert {len(seen) for seen in side.mask} == {len(side.tokens)}
    if name in ("multitask_masked", "mixture"):  # which show the first of each kind
        return
    tokenizer, objective, batch = taught(name, shape)
    objective = getattr(objective, "base", objective)  # a distillation shows that of its student alone
    labels = torch.full_like(batch.tokens, IGNORE_INDEX)
    assert batch.targets is not None
    labels[batch.targets.index] = batch.targets.labels
    *source, reads = made.sequences[0].sides
    assert reads.tokens == format_tokens(tokenizer, batch.tokens)
    assert reads.targets == format_tokens(tokenizer, labels)
    if batch.source is not None:
        assert source[0].tokens == format_tokens(tokenizer, batch.source.tokens)
    assert made.sequences[0].counts == {term: int(count) for term, count in objective.counts(batch).items()}


@pytest.mark.parametrize(("name", "shape"), keep_quick(CASES, *CASES[::4]))
def test_the_seed_decides(name: str, shape: ModelShape) -> None:
    more = {"rate": 0.4, "mean": 2.0} if name == "span_corruption" else {}  # one span alone is always the last
    assert build_example(name, shape=shape, seed=3) == build_example(name, shape=shape, seed=3)
    others = {str(build_example(name, shape=shape, seed=seed, settings=more).sequences) for seed in range(5)}
    assert (len(others) == 1) == (name in ("causal", "bidirectional", "supervised"))


def only(made: BatchExample) -> ExampleSequence:
    (drawn,) = made.sequences
    return drawn


def test_the_example_of_the_paper() -> None:
    encoder, decoder = only(build_example("span_corruption", hide=["for inviting", "last"])).sides
    x, y, z = (f"<extra_id_{n}>" for n in range(3))
    assert " ".join(encoder.tokens) == f"Thank you {x} me to your party {y} week . </s>"
    assert " ".join(decoder.targets) == f"{x} for inviting {y} last {z} </s>"


def test_masks_random_words_and_those_that_stay() -> None:
    side = only(build_example("masked", settings={"rate": 1.0, "split": [0.4, 0.3, 0.3]}, seed=1)).sides[0]
    kinds = {"mask": 0, "random": 0, "kept": 0}
    for token, label in zip(side.tokens, side.targets, strict=True):
        if not label:
            assert token in ("[CLS]", "[SEP]")
            continue
        kinds["mask" if token == "[MASK]" else "kept" if token == label else "random"] += 1
    assert all(kinds.values()) and sum(kinds.values()) == 11


def test_ways_to_read() -> None:
    """Each of the four is shown, with its own mask; a share of none is not."""
    made = build_example("multitask_masked")
    assert len(made.sequences) == 4
    ahead = [sum(seen[i + 1 :].count(True) for i, seen in enumerate(drawn.sides[0].mask)) for drawn in made.sequences]
    assert ahead[0] == ahead[2] == 78 and ahead[1] == 0 and 0 < ahead[3] <= 78
    assert len(build_example("multitask_masked", settings={"shares": [0.5, 0.5, 0, 0]}).sequences) == 2


def test_marks_of_a_mixture() -> None:
    *made, task = build_example("mixture", shape="encoder-decoder").sequences
    assert [drawn.sides[0].tokens[0] for drawn in made] == [f"<extra_id_{n}>" for n in (99, 98, 97)]
    assert " ".join(task.sides[1].targets) == "Das ist gut . </s>"


def test_pairs_belong_together_or_do_not() -> None:
    whole, broken = build_example("next_sentence").sequences
    assert (whole.label, broken.label) == (0, 1)
    assert "danced" in whole.sides[0].tokens + whole.sides[0].targets
    assert "Penguins" in broken.sides[0].tokens + broken.sides[0].targets
    ordered, swapped = build_example(
        "sentence_order", texts=["Ann ran. Bob sat."], settings={"masking.rate": 0.01}
    ).sequences
    assert " ".join(ordered.sides[0].tokens) == "[CLS] Ann ran . [SEP] Bob sat . [SEP]"
    assert " ".join(swapped.sides[0].tokens) == "[CLS] Bob sat . [SEP] Ann ran . [SEP]"


def test_permuted_tokens_see_what_came_before_in_their_order() -> None:
    (side,) = only(build_example("permuted", settings={"every": 2}, seed=2)).sides
    seen = [set(np.flatnonzero(row)) for row, target in zip(side.mask, side.targets, strict=True) if target]
    assert len(seen) > 2
    order = sorted(seen, key=len)
    assert all(before < after for before, after in itertools.pairwise(order))


@pytest.mark.parametrize(("kind", "style"), [("wordpiece", "cls-sep"), ("bpe", "s-mask"), ("unigram", "s-mask")])
def test_pieces_of_a_tokenizer(kind: str, style: str) -> None:
    tokenizer = trained(kind, style)
    text = "The value of an expression."
    made = build_example("masked", texts=[text], tokenizer=tokenizer, settings={"rate": 0.5})
    side = only(made).sides[0]
    read = [tokenizer.get_token(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert [label or token for token, label in zip(side.tokens, side.targets, strict=True)][1:-1] == read


def test_hidden_words_are_found_behind_a_space() -> None:
    tokenizer = trained("bpe", "s-mask")
    side = only(build_example("masked", texts=["The value of it."], tokenizer=tokenizer, hide=["value of"])).sides[0]
    assert "".join(side.targets).replace("Ġ", " ") == " value of"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"name": "maskd"}, "'maskd'.*'masked'"),
        ({"name": "masked", "shape": "decoder"}, "decoder.*encoder"),
        ({"name": "masked", "shape": "decodr"}, "'decodr'.*'decoder'"),
        ({"name": "masked", "texts": [" "]}, "--text"),
        ({"name": "masked", "texts": ["\x01"]}, "--text"),
        ({"name": "masked", "texts": ["a", "b"]}, "masked.*2.*--text"),
        ({"name": "masked", "texts": ["a " * 600]}, "602.*512"),
        ({"name": "sentence_order", "texts": ["One alone."]}, "sentence_order.*--text"),
        ({"name": "translation", "texts": ["One. Two."]}, "translation.*--text"),
        ({"name": "causal", "hide": ["you"]}, "--hide.*causal"),
        ({"name": "masked", "hide": ["dog"]}, "--hide 'dog'"),
        ({"name": "masked", "hide": ["you", "Thank you"]}, "--hide"),
        ({"name": "masked", "settings": {"rat": "1"}}, "'rat'.*'rate'"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: dict[str, Any], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        build_example(**arguments)


@pytest.mark.parametrize(("name", "shape"), keep_quick(CASES, *CASES[1::4]))
def test_a_single_word(name: str, shape: ModelShape) -> None:
    """Nothing, or all there is, may be hidden."""
    texts = ["Yes"] if OBJECTIVES.get(name)().pairs is None else ["Yes", "No"]
    assert build_example(name, shape=shape, texts=texts).sequences
