"""Distillation of tiny models of every shape, against the terms written out from the models' own outputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretune.adaptation.teacher import attach_teacher, copy_layers, detach_teacher, freeze_teacher, map_stacks
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.layout import batch as make_batch
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.nn.relative_attention import RelativeAttention
from pretune.objectives.causal import CausalLM
from pretune.objectives.distill import Distill, DistillationWeights
from pretune.objectives.next_sentence import NextSentence
from pretune.objectives.permuted import PermutationLM
from pretune.objectives.span_corruption import SpanCorruption

VOCAB = 40
ALL = {"soft_weight": 5.0, "hard_weight": 2.0, "cosine_weight": 1.0, "state_weight": 0.5}
ALL |= {"embedding_weight": 0.25, "attention_weight": 3.0}
SHAPES = {"bert-tiny": Distill(**ALL), "gpt2": Distill(base=CausalLM(), **ALL)}
SHAPES |= {"t5-table": Distill(base=SpanCorruption(), **ALL)}


def make_model(name: str, *, depth: int, width: int = 16, seed: int = 0) -> LanguageModel:
    settings = {"width": width, "depth": depth, "heads": 2, "hidden": 24, "vocab": VOCAB, "dropout": 0.0}
    model = build(resolve(name, settings), seed=seed).eval()
    with torch.no_grad():
        for weight in model.parameters():  # larger weights, so that the models differ
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def make_pair(name: str, width: int = 16) -> tuple[LanguageModel, LanguageModel]:
    return make_model(name, depth=2, width=width), freeze_teacher(make_model(name, depth=4, seed=1))


def make_tokens(*lengths: int) -> list[list[int]]:
    return [np.random.default_rng(length).integers(5, VOCAB, length).tolist() for length in lengths]


def make(name: str) -> Batch:
    """Three sequences in two rows, with filler and labels at some tokens."""
    tokens = make_tokens(7, 3, 5)
    labels = [[token if place % 3 == 1 else -100 for place, token in enumerate(row)] for row in tokens]
    if name == "t5-table":
        return make_batch(source=make_tokens(4, 6, 2), target=tokens, labels=labels)
    return make_batch(tokens, row=11, labels=labels)


def expect(name: str, student: LanguageModel, teacher: LanguageModel, batch: Batch) -> dict[str, tuple[Any, int]]:
    """The mean of each term from the public outputs of both models, sequence by sequence."""
    outputs = [model(batch, hidden=True) for model in (student, teacher)]
    labels = batch.targets.labels  # type: ignore[union-attr]
    logits, targets = (output.logits / 2.0 for output in outputs)
    soft = 4 * F.kl_div(logits.log_softmax(-1), targets.softmax(-1), reduction="sum")
    cosines = F.cosine_similarity(outputs[0].states, outputs[1].states)
    count, tokens = len(labels), sum(end - start for start, end in batch.list_spans())
    terms = {
        SHAPES[name].base.name: (F.cross_entropy(2 * logits, labels, reduction="sum"), count),
        "soft": (soft, count),
        "cosine": (sum((1 - part).sum() for part in batch.split(cosines)), tokens),
    }
    states, embeddings = torch.zeros(()), torch.zeros(())
    sides = [(batch, *outputs)]
    if batch.source is not None:
        sides.append((batch.source, outputs[0].source, outputs[1].source))
        tokens += sum(end - start for start, end in batch.source.list_spans())
    for side, output, reference in sides:
        for layer, teacher_layer in ((1, 2), (2, 4)):
            error = (output.hidden[layer] - reference.hidden[teacher_layer]).square().mean(1)
            states = states + sum(part.sum() for part in side.split(error))
        error = (output.hidden[0] - reference.hidden[0]).square().mean(1)
        embeddings = embeddings + sum(part.sum() for part in side.split(error))
    return terms | {"states": (states, tokens), "embeddings": (embeddings, tokens)}


@pytest.mark.parametrize("name", SHAPES)
def test_terms_are_those_of_the_papers(name: str) -> None:
    student, teacher = make_pair(name)
    batch, objective = make(name), SHAPES[name]
    distillation = attach_teacher(objective, student, teacher, source="teacher")
    loss = distillation.loss(student, batch)
    terms, expected = loss.get_terms(), expect(name, student, teacher, batch)
    counts = distillation.counts(batch)
    assert [*terms] == [*counts] == [*expected, "attention"]
    for term, (total, count) in expected.items():
        torch.testing.assert_close(terms[term].sum, total, msg=term)
        assert int(terms[term].count) == int(counts[term]) == count
    weights = [2.0, 5.0, 1.0, 0.5, 0.25, 3.0]
    assert [term.weight for term in terms.values()] == weights
    mean = sum(weight * term.sum / term.count for weight, term in zip(weights, terms.values(), strict=True))
    torch.testing.assert_close(loss.mean(), mean)
    loss.mean().backward()
    assert all(weight.grad is None for weight in teacher.parameters())
    assert all(weight.grad is not None for key, weight in student.named_parameters() if ".attention." in key)


@pytest.mark.parametrize("name", ["bert-tiny", "gpt2"])
def test_attention_scores_are_products_of_queries_and_keys(name: str) -> None:
    """The scores of the first layer, from its own projections; and the term is their mean squared difference."""
    student, teacher = make_pair(name)
    batch = make(name)
    scores = []
    for model in (student, teacher):
        stack = model.run_stacks(batch, hidden=True, scores=True)[0]
        layer = next(iter(model.encoder or model.decoder))  # type: ignore[arg-type]
        x = layer.attention_norm.pre(stack.hidden[0])
        q, k, _ = layer.attention.project(x, None)
        products = torch.einsum("qhd,khd->hqk", q, k) * layer.attention.scale
        spans = batch.list_spans()
        for (start, end), found in zip(spans, model(batch, attention=True).attention[0], strict=True):
            row, column = divmod(start, batch.length)
            part = stack.attention[0][row, :, column : column + end - start, column : column + end - start]
            causal = torch.ones(end - start, end - start, dtype=torch.bool).tril()
            seen = causal if name == "gpt2" else torch.ones_like(causal)
            torch.testing.assert_close(part[:, seen], products[:, start:end, start:end][:, seen])
            torch.testing.assert_close(part.softmax(-1), found)
        scores.append(model.run_stacks(batch, scores=True)[0].attention)
    objective = replace(SHAPES[name], layers=(1, 3))
    term = attach_teacher(objective, student, teacher, source="teacher").loss(student, batch).get_terms()["attention"]
    total = torch.zeros(())
    for layer, teacher_layer in ((0, 0), (1, 2)):
        for start, end in batch.list_spans():
            row, column = divmod(start, batch.length)
            for place in range(column, column + end - start):
                keys = slice(column, place + 1 if name == "gpt2" else column + end - start)
                difference = scores[0][layer][row, :, place, keys] - scores[1][teacher_layer][row, :, place, keys]
                total = total + difference.square().mean()
    torch.testing.assert_close(term.sum, total)


def test_attention_maps_are_built_only_for_their_term() -> None:
    student, teacher = make_pair("bert-tiny")
    called = []
    for model in (student, teacher):
        run = model.run_stacks
        model.run_stacks = lambda *a, _run=run, **k: called.append(k) or _run(*a, **k)  # type: ignore[method-assign]
    attach_teacher(Distill(), student, teacher, source="teacher").loss(student, make("bert-tiny"))
    assert called == [{"hidden": False, "scores": False}] * 2


def test_soft_targets_at_all_positions() -> None:
    student, teacher = make_pair("bert-tiny")
    batch = make("bert-tiny")
    objective = Distill(soft_positions="all", temperature=1.0)
    terms = attach_teacher(objective, student, teacher, source="teacher").loss(student, batch).get_terms()
    logits = [model(replace(batch, targets=None)).logits for model in (student, teacher)]
    real = batch.sequence >= 0
    expected = F.kl_div(logits[0][real].log_softmax(-1), logits[1][real].softmax(-1), reduction="sum")
    torch.testing.assert_close(terms["soft"].sum, expected)
    assert int(terms["soft"].count) == 15


def test_widths_that_differ_are_projected() -> None:
    student, teacher = make_pair("bert-tiny", width=8)
    batch = make("bert-tiny")
    names = set(student.state_dict())
    distillation = attach_teacher(SHAPES["bert-tiny"], student, teacher, source="teacher", seed=3)
    states, embeddings = student.projections["states"].weight, student.projections["embeddings"].weight  # type: ignore[index,union-attr]
    assert states.shape == (16, 8) and not torch.equal(states, embeddings)
    terms = distillation.loss(student, batch).get_terms()
    hidden, reference = (model(batch, hidden=True).hidden for model in (student, teacher))
    real = batch.sequence >= 0
    expected = sum((hidden[m] @ states.T - reference[2 * m])[real].square().mean(1).sum() for m in (1, 2))
    torch.testing.assert_close(terms["states"].sum, expected)
    error = (hidden[0] @ embeddings.T - reference[0])[real].square().mean(1).sum()
    torch.testing.assert_close(terms["embeddings"].sum, error)
    detach_teacher(student)
    assert set(student.state_dict()) == names


def test_a_base_objective_with_pairs_reads_the_states_once() -> None:
    spec = resolve("bert-tiny", {"width": 16, "depth": 2, "heads": 2, "hidden": 24, "vocab": VOCAB, "dropout": 0.0})
    student, teacher = build(spec).eval(), freeze_teacher(build(spec, seed=1))
    batch = replace(make("bert-tiny"), labels=torch.tensor([1, 0, -100, 1, -100]))
    distillation = attach_teacher(Distill(base=NextSentence()), student, teacher, source="teacher")
    terms = distillation.loss(student, batch).get_terms()
    assert [*terms] == ["masked", "pair", "soft", "cosine"]
    expected = NextSentence().loss(student, batch).get_terms()
    for name in ("masked", "pair"):
        torch.testing.assert_close(terms[name].sum, expected[name].sum)
        assert terms[name].weight == 2.0


def test_evaluation_is_the_loss_of_the_student_alone() -> None:
    student, teacher = make_pair("bert-tiny")
    assert attach_teacher(Distill(), student, teacher, source="t").to_evaluation() == Distill().base
    layers = Distill(soft_weight=0, hard_weight=0, cosine_weight=0, state_weight=1)
    evaluation = attach_teacher(layers, student, teacher, source="t").to_evaluation()
    assert [*evaluation.loss(student, make("bert-tiny")).get_terms()] == ["states"]


def test_layers_are_copied() -> None:
    student, teacher = make_pair("bert-tiny")
    assert copy_layers(student, teacher, Distill(), "teacher")
    weights, source = student.state_dict(), teacher.state_dict()
    for name, copied in (("encoder.0.", "encoder.0."), ("encoder.1.", "encoder.3."), ("tokens", "tokens")):
        for key in (key for key in weights if key.startswith(name)):
            assert torch.equal(weights[key], source[key.replace(name, copied)]), key
    narrow = make_model("bert-tiny", depth=2, width=8)
    assert not copy_layers(narrow, teacher, Distill(), "teacher")
    with pytest.raises(
        UsageError, match=r"runs/t: 'tokens.weight' of the student has the shape .*objective.init=random"
    ):
        copy_layers(narrow, teacher, Distill(init="teacher"), "runs/t")


@pytest.mark.parametrize(
    ("weights", "student", "teacher", "message"),
    [
        ({"layers": (1, 2, 3)}, 2, 4, r"layers \[1, 2, 3\] do not map 2 student layers"),
        ({"layers": (1, 5)}, 2, 4, "ascending layers from 1 to 4"),
        ({"layers": (3, 1)}, 2, 4, "do not map"),
        ({}, 5, 4, "a student of 5 layers is deeper than its teacher of 4; set layers"),
    ],
)
def test_a_mapping_that_does_not_fit(weights: dict[str, Any], student: int, teacher: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DistillationWeights(**weights).map_layers(student, teacher)


def test_pairs_that_cannot_be_compared() -> None:
    wide, narrow = (resolve("bert-tiny", {"width": 24, "depth": 2, "heads": heads, "vocab": 9}) for heads in (4, 2))
    weights = DistillationWeights(attention_weight=1.0)
    with pytest.raises(UsageError, match="runs/t: 4 attention heads in layer 1 of the teacher, 2 in layer 1"):
        map_stacks(weights, narrow, wide, "runs/t")
    with pytest.raises(UsageError, match="a teacher of the shape 'decoder' cannot teach one of 'encoder'"):
        map_stacks(weights, narrow, resolve("gpt2"), "runs/t")
    other = replace(narrow.encoder.blocks[0], attention=RelativeAttention(heads=2))  # type: ignore[union-attr, arg-type]
    relative = replace(narrow, encoder=replace(narrow.encoder, blocks=(other,)))  # type: ignore[type-var]
    with pytest.raises(UsageError, match="attention scores of 'bert' are not comparable"):
        map_stacks(weights, narrow, relative, "runs/t")
    with pytest.raises(UsageError, match="attention scores of 'deberta' are not comparable"):
        map_stacks(weights, resolve("bert-base"), resolve("deberta-v3-base"), "runs/t")


def test_settings_that_train_nothing() -> None:
    with pytest.raises(UsageError, match="all weights of a distillation are 0"):
        Distill(soft_weight=0, hard_weight=0, cosine_weight=0)
    with pytest.raises(UsageError, match=r"the objective 'permuted' .*cannot be distilled"):
        Distill.from_base(PermutationLM(), "runs/t")
    with pytest.raises(UsageError, match="needs a teacher; use --teacher RUN"):
        Distill().loss(make_model("bert-tiny", depth=1), make("bert-tiny"))
