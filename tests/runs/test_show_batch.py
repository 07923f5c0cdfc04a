"""What is shown of an objective is what it does: tokens, targets, weights, and who sees whom."""

from typing import Any

import numpy as np
import pytest
import torch

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sampling import Counters
from pretune.models.bidirectional_lm import reverse_sequences
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import ModelShape, Objective
from pretune.runs.show_batch import BatchExample, ModelSide, ShownSequence, build_example
from pretune.runs.show_batch.describe import build_attention_maps
from pretune.runs.show_batch.texts import (
    TokenRenderer,
    build_piece_renderer,
    build_sequence,
    build_variants,
    build_word_renderer,
    select_default_texts,
)
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


def taught(name: str, shape: ModelShape, seed: int = 0) -> tuple[TokenRenderer, Objective, Batch]:
    """The first lesson of an example, made without any of what tells it."""
    objective = OBJECTIVES.get(name)()
    _, segments, label = build_variants(name, objective, select_default_texts(objective))[0]
    spelling = build_word_renderer(segments, objective, shape)
    one = build_sequence(spelling, shape, segments, label, objective.pairs)
    made = objective.bind(spelling.vocabulary, shape).corrupt(one, Counters.from_sequences(seed, one))
    source = None if made.source is None else int(made.source.lengths[0])
    return (
        spelling,
        objective,
        lay_out(made, np.zeros(1, np.int64), BatchShape(rows=1, length=len(made.tokens), source=source)),
    )


def row(side: ModelSide, name: str) -> tuple[str, ...]:
    return next(found.values for found in side.rows if found.name == name)


def attended(model: Any, shape: ModelShape, batch: Batch) -> list[torch.Tensor]:
    """Where the first layer of a real model puts any weight, for each kind of attention that it has."""

    def where(found: tuple[tuple[torch.Tensor, ...], ...]) -> torch.Tensor:
        return (found[0][0] > 0).any(0)

    if shape == "two-way":
        turned, index = reverse_sequences(batch)
        right = where(model.backwards(turned, attention=True).attention)
        return [where(model.forwards(batch, attention=True).attention), right[index][:, index]]
    if shape == "generator-discriminator":
        return [where(model.generator(batch, attention=True).attention)]
    out = model(batch, attention=True)
    if shape == "encoder-decoder":
        return [where(out.source.attention), where(out.attention), where(out.cross)]
    return [where(out.attention)]


@pytest.mark.parametrize(("name", "shape", "seed"), MASKS)
def test_who_sees_whom_is_where_a_model_looks(name: str, shape: ModelShape, seed: int) -> None:
    spelling, _, batch = taught(name, shape, seed)
    told = build_attention_maps(batch, shape, lambda ids: spelling.format_tokens(ids.tolist()))
    with torch.no_grad():
        looked = attended(rough(MODELS[shape](spelling.vocabulary.size)).eval(), shape, batch)
    if shape == "two-stream":  # the model tells the weights of queries where there are targets, else of content
        content, query = told
        rows = list(content.mask)
        for place, seen in zip(query.places, query.mask, strict=True):
            rows[place] = seen
        assert looked[0].tolist() == [list(seen) for seen in rows]
        return
    assert [seen.tolist() for seen in looked] == [[list(seen) for seen in sight.mask] for sight in told]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_what_is_told_is_the_lesson(name: str, shape: ModelShape) -> None:
    """Tokens and targets are those of the batch, spelled out, and terms count as the objective counts."""
    made = build_example(name, shape=shape)
    assert made.shape == shape and made.title and made.about and made.text
    for drawn in made.sequences:
        for side in drawn.sides:
            assert len(side.tokens) == len(side.kinds)
            assert all(len(found.values) == len(side.tokens) for found in side.rows)
        for sight in drawn.attention:
            assert len(sight.queries) == len(sight.places) == len(sight.mask)
            assert {len(seen) for seen in sight.mask} <= {len(sight.keys)}
    if name in ("multitask_masked", "mixture"):  # which show the first of each kind
        return
    spelling, objective, batch = taught(name, shape)
    objective = getattr(objective, "base", objective)  # a distillation shows that of its student alone
    labels = torch.full_like(batch.tokens, IGNORE_INDEX)
    assert batch.targets is not None
    labels[batch.targets.index] = batch.targets.labels
    first = made.sequences[0]
    reads = first.sides[1 if shape == "encoder-decoder" else 0]
    assert reads.tokens == spelling.format_tokens(batch.tokens.tolist())
    assert reads.rows[0].values == spelling.format_tokens(labels.tolist())
    if batch.source is not None:
        assert first.sides[0].tokens == spelling.format_tokens(batch.source.tokens.tolist())
    assert {term.name: term.count for term in first.terms} == {
        term: int(count) for term, count in objective.counts(batch).items()
    }


@pytest.mark.parametrize(("name", "shape"), keep_quick(CASES, *CASES[::4]))
def test_the_seed_decides(name: str, shape: ModelShape) -> None:
    more = {"rate": 0.4, "mean": 2.0} if name == "span_corruption" else {}  # one span alone is always the last
    assert build_example(name, shape=shape, seed=3) == build_example(name, shape=shape, seed=3)
    others = {str(build_example(name, shape=shape, seed=seed, settings=more).sequences) for seed in range(5)}
    assert (len(others) == 1) == (name in ("causal", "bidirectional", "supervised"))


def only(made: BatchExample) -> ShownSequence:
    (drawn,) = made.sequences
    return drawn


def test_the_example_of_the_paper() -> None:
    drawn = only(build_example("span_corruption", hide=["for inviting", "last"]))
    assert drawn.input == "Thank you <X> me to your party <Y> week."
    assert drawn.target == "<X> for inviting <Y> last <Z>"


def test_masks_random_words_and_those_that_stay() -> None:
    side = only(build_example("masked", settings={"rate": 1.0, "split": [0.4, 0.3, 0.3]}, seed=1)).sides[0]
    kinds = {"mask": 0, "random": 0, "kept": 0}
    for token, label, shown in zip(side.tokens, row(side, "target"), row(side, "shown as"), strict=True):
        if not label:
            assert shown == "" and token in ("[CLS]", "[SEP]")
            continue
        kinds[shown] += 1
        assert shown == ("mask" if token == "[MASK]" else "kept" if token == label else "random")
    assert all(kinds.values()) and sum(kinds.values()) == 11


def test_a_stretch_that_is_said_by_a_decoder_is_found_in_the_source() -> None:
    encoder, decoder = only(build_example("masked_seq2seq", settings={"split": [0.4, 0.3, 0.3]}, seed=2)).sides
    shown = row(encoder, "shown as")
    places = [place for place, value in enumerate(shown) if value]
    assert places == list(range(places[0], places[0] + len(decoder.tokens)))
    assert {"mask", "random", "kept"} == {value for value in shown if value}


def test_ways_to_read() -> None:
    """Each of the four is shown, with its own grid; a share of none is not."""
    made = build_example("multitask_masked")
    assert len({drawn.title for drawn in made.sequences}) == len(made.sequences) == 4
    ahead = [
        sum(seen[i + 1 :].count(True) for i, seen in enumerate(drawn.attention[0].mask)) for drawn in made.sequences
    ]
    assert ahead[0] == ahead[2] == 78 and ahead[1] == 0 and 0 < ahead[3] <= 78
    assert len(build_example("multitask_masked", settings={"shares": [0.5, 0.5, 0, 0]}).sequences) == 2


def test_marks_of_a_mixture() -> None:
    *made, task = build_example("mixture", shape="encoder-decoder").sequences
    assert all(f"[{mark}]" in drawn.title for drawn, mark in zip(made, "RSX", strict=True))
    assert [drawn.sides[0].tokens[0] for drawn in made] == ["[R]", "[S]", "[X]"]
    assert task.title and task.target == "Das ist gut."


def test_pairs_belong_together_or_do_not() -> None:
    whole, broken = build_example("next_sentence").sequences
    assert "danced" in whole.input + whole.target and "Penguins" in broken.input + broken.target
    ordered, swapped = build_example(
        "sentence_order", texts=["Ann ran. Bob sat."], settings={"masking.rate": 0.01}
    ).sequences
    assert (ordered.input, swapped.input) == ("Ann ran. Bob sat.", "Bob sat. Ann ran.")
    assert row(swapped.sides[0], "segment") == tuple("AAAAABBBB")


def test_a_generator_fills_the_blanks() -> None:
    """The discriminator reads what was drawn; a draw that is right is original."""
    seen, half = set(), {"masking.rate": 0.5}
    for seed in range(6):
        drawn = only(build_example("replaced_token", texts=["to be or not to be"], settings=half, seed=seed))
        generator, discriminator = drawn.sides
        for was, label, now, new in zip(
            generator.tokens,
            row(generator, "target"),
            discriminator.tokens,
            row(discriminator, "replaced"),
            strict=True,
        ):
            assert (new == "yes") == (now != (label or was))
            assert now != "[MASK]"
            seen.add((bool(label), new))
        assert [(term.name, term.weight) for term in drawn.terms] == [("generator", 1.0), ("discriminator", 50.0)]
    assert seen == {(False, "no"), (True, "yes"), (True, "no")}


def test_edges_of_spans() -> None:
    drawn = only(build_example("span_masked", settings={"boundary": {"kind": "boundary", "weight": 0.5}, "rate": 0.3}))
    assert [(term.name, term.weight) for term in drawn.terms] == [("masked", 1.0), ("boundary", 0.5)]
    spans = row(drawn.sides[0], "span")
    assert len(drawn.facts) == len({span for span in spans if span})
    for number, fact in enumerate(drawn.facts):
        places = [place for place, span in enumerate(spans) if span == str(number)]
        assert f"({places[0] - 1})" in fact and f"({places[-1] + 1})" in fact


def test_permuted_tokens_see_what_came_before_in_their_order() -> None:
    drawn = only(build_example("permuted", settings={"every": 2}, seed=2))
    ranks = [*map(int, row(drawn.sides[0], "order"))]
    query = next(sight for sight in drawn.attention if sight.name == "query stream")
    assert len(query.places) == sum(rank > 0 for rank in ranks) > 2
    for place, seen in zip(query.places, query.mask, strict=True):
        assert seen == tuple(rank < ranks[place] for rank in ranks)


@pytest.mark.parametrize("text", ["I don't know, (really) \"I\" don't!", "a.b. c , d", "no", "Ein Wort; zwei."])
def test_spaces_are_restored(text: str) -> None:
    assert only(build_example("causal", texts=[text])).input == text


@pytest.mark.parametrize(("kind", "style"), [("wordpiece", "cls-sep"), ("bpe", "s-mask"), ("unigram", "s-mask")])
def test_pieces_of_a_tokenizer(kind: str, style: str) -> None:
    tokenizer = trained(kind, style)
    text = "The value of an expression."
    made = build_example("masked", texts=[text], tokenizer=tokenizer, settings={"rate": 0.5})
    side = only(made).sides[0]
    read = [tokenizer.get_token(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    hidden = row(side, "target")
    assert [label or token for token, label in zip(side.tokens, hidden, strict=True)][1:-1] == read
    assert not made.notes
    assert (
        build_piece_renderer(tokenizer).format_line(tokenizer.encode(text, add_special_tokens=False)).replace(" .", ".")
        == text
    )


def test_hidden_words_are_found_behind_a_space() -> None:
    tokenizer = trained("bpe", "s-mask")
    side = only(build_example("masked", texts=["The value of it."], tokenizer=tokenizer, hide=["value of"])).sides[0]
    assert "".join(row(side, "target")).replace("Ġ", " ") == " value of"


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
