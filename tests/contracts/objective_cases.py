"""Cases of the contract tests of objectives: every registered objective, tokenizers of every kind, tiny models.

A registered objective is a case. Add a line to one of these tables if the tests need to know more about it: `VARIANTS`
(other settings to test), `MODELS` (a tiny model of a shape), `RESTORE` (a function that restores the text from input
and targets, if labels are not at the masked tokens), `LOSSY` (the text cannot be restored) and `DETERMINISTIC`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from pretune.adaptation.teacher import attach_teacher, freeze_teacher
from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.pairs import double_template
from pretune.data.plan import BatchShape
from pretune.data.samples import read_pieces
from pretune.data.sampling import Counters
from pretune.data.sequences import Bools, Ints, Sequences, spread
from pretune.models import catalog
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.nn.heads import SpanHead
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import Corruption, ModelShape, Objective, Vocabulary
from pretune.objectives.causal import CausalLM
from pretune.objectives.denoising import (
    Denoising,
    DocumentRotation,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
)
from pretune.objectives.distill import Distill
from pretune.objectives.masked import MaskedLM
from pretune.objectives.masked_next import MaskedNextToken
from pretune.objectives.mixture import Mixture, Part, build_denoisers
from pretune.objectives.multitask_masked import MultitaskMaskedLM
from pretune.objectives.next_sentence import NextSentence, SentenceOrder
from pretune.objectives.replaced_token import ReplacedToken
from pretune.objectives.span_corruption import SpanCorruption
from pretune.objectives.span_masked import Boundary, NGram, SpanMaskedLM
from pretune.objectives.supervised import SupervisedSeq2seq
from pretune.text.styles import KINDS, STYLES
from pretune.text.template import TEXT_B
from pretune.text.tokenizer import Tokenizer
from tests.contracts.restoring import restore_concatenated, restore_prefix, restore_span, restore_spans
from tests.contracts.tiny import rough
from tests.text.tokenizers import corpus, trained

VARIANTS: dict[str, Objective] = {
    "masked-words": MaskedLM(words=True),
    "masked_next-falling": MaskedNextToken(masking=MaskedLM(rate=0.3, final_rate=0.15, words=True)),
    "mixture-hybrid": Mixture(parts=(Part(objective=CausalLM(), weight=3.0), Part(objective=MaskedNextToken()))),
    "masked-static-40": MaskedLM(rate=0.4, copies=3, split=(1.0, 0.0, 0.0)),
    "span_masked-boundary": SpanMaskedLM(boundary=Boundary()),
    "span_masked-ngram": SpanMaskedLM(spans=NGram(), replace_by="token"),
    "next_sentence-words": NextSentence(masking=MaskedLM(words=True)),
    "sentence_order-spans": SentenceOrder(masking=SpanMaskedLM(boundary=Boundary())),
    "replaced_token-words": ReplacedToken(masking=MaskedLM(rate=0.25, split=(1.0, 0.0, 0.0), words=True), weight=10.0),
    "span_corruption-prefix": SpanCorruption(prefix=True, closing=False),
    "denoising-five": Denoising(
        noises=(SentencePermutation(), DocumentRotation(), TextInfilling(), TokenDeletion(), TokenMasking()),
    ),
    "multitask_masked-spread": MultitaskMaskedLM(shares=(0.1, 0.3, 0.3, 0.3)),
    "mixture-encoder": Mixture(parts=(Part(objective=MaskedLM()), Part(objective=MultitaskMaskedLM(), weight=2.0))),
    "mixture-documents": Mixture(parts=build_denoisers()),
    "mixture-tasks": Mixture(
        parts=(
            Part(objective=SpanCorruption()),
            Part(objective=SupervisedSeq2seq(), weight=3.0),
            Part(objective=CausalLM(), mark=0),
        )
    ),
    "distill-layers": Distill(hard_weight=0.0, state_weight=1.0, embedding_weight=1.0, attention_weight=1.0),
    "supervised-prefix": SupervisedSeq2seq(prefix=True),
    "mixture-nested": Mixture(
        parts=(Part(objective=Mixture(), weight=0.5), Part(objective=Denoising(prefix=True), mark=1)),
    ),
}
"""Objectives with other settings than the default, tested like the registered ones."""

CASES: dict[str, Objective] = {**{name: OBJECTIVES.get(name)() for name in OBJECTIVES}, **VARIANTS}


def _encoder(vocab: int) -> nn.Module:
    spec = resolve("bert-tiny", {**SMALL, "vocab": vocab, "dropout": 0.0})
    return build(replace(spec, span=SpanHead(rows=6, place_width=8)))


def _partnered(family: str, shape: ModelShape, vocab: int) -> nn.Module:
    spec = resolve(family, {**SMALL, "vocab": vocab, "positions": 2 * LONG, "dropout": 0.0})
    return catalog.build_any(catalog.convert_to_shape(spec, [shape]))


SMALL = {"width": 32, "depth": 2, "heads": 2, "hidden": 48}
LONG = 64
"""Maximum sequence length of the tiny models."""

MODELS: dict[ModelShape, Callable[[int], nn.Module]] = {
    "encoder": _encoder,
    "decoder": lambda vocab: build(resolve("gpt2", {**SMALL, "vocab": vocab, "positions": 2 * LONG, "dropout": 0.0})),
    "encoder-decoder": lambda vocab: build(resolve("t5-table", {**SMALL, "vocab": vocab, "dropout": 0.0})),
    "generator-discriminator": lambda vocab: _partnered("electra", "generator-discriminator", vocab),
    "two-way": lambda vocab: _partnered("gpt2", "two-way", vocab),
    "two-stream": lambda vocab: build(resolve("xlnet", {**SMALL, "vocab": vocab, "dropout": 0.0})),
}
"""By shape: a function from the vocabulary size to a tiny model."""


def _in_place(before: Sequences, after: Sequences) -> Ints:
    """Restore a text whose labels are at the masked tokens."""
    assert after.targets is not None
    return np.where(after.targets == IGNORE_INDEX, after.tokens, after.targets)


def _untouched(before: Sequences, after: Sequences) -> Ints:
    return after.tokens


def _before(before: Sequences, after: Sequences) -> Ints:
    """Restore a text whose labels are one position before the masked tokens."""
    assert after.targets is not None
    labels = np.concatenate(([IGNORE_INDEX], after.targets[:-1]))
    return np.where(labels == IGNORE_INDEX, after.tokens, labels)


def _target(before: Sequences, after: Sequences) -> Ints:
    """Restore a text that is the target."""
    assert after.targets is not None
    return after.targets[after.targets != IGNORE_INDEX]


RESTORE: dict[str, Callable[[Sequences, Sequences], Ints]] = {
    "causal": _untouched,
    "bidirectional": _untouched,
    "masked_next": _before,
    "prefix": restore_prefix,
    "span_corruption": restore_spans,
    "denoising": _target,
    "autoencoder": _target,
    "masked_seq2seq": restore_span,
    "supervised": restore_concatenated,
}
"""By objective: a function that restores the flat tokens of the texts; the default is `_in_place`."""

LOSSY: frozenset[str] = frozenset({"mixture"})
"""Objectives whose input and targets do not contain the whole text."""

DETERMINISTIC: frozenset[str] = frozenset({"causal", "bidirectional", "supervised", "autoencoder"})
"""Objectives that sample nothing."""


def restore(name: str, before: Sequences, after: Sequences) -> Ints | None:
    """Restore the text from input and targets; None for a lossy objective."""
    name = name.partition("-")[0]
    return None if name in LOSSY else RESTORE.get(name, _in_place)(before, after)


@dataclass(frozen=True)
class Text:
    """The corpus as tokens of one tokenizer: the part of `Shards` that `SequencePieces.read` uses."""

    tokens: Ints
    words: Bools
    sentences: Ints

    def take(self, start: Ints, length: Ints) -> Ints:
        return self.tokens[spread(start, length)]

    def take_words(self, start: Ints, length: Ints) -> Bools:
        return self.words[spread(start, length)]


@cache
def text_of(kind: str, style: str) -> Text:
    """Tokenize the corpus; about every twelfth word is marked as the start of a sentence."""
    found = trained(kind, style).encode_batch(list(corpus()), literal=True)
    words = np.flatnonzero(found.word_start)
    return Text(found.ids.astype(np.int64), found.word_start, words[words * 2654435761 % 97 < 8])


@dataclass(frozen=True)
class Setting:
    """An objective bound to a tokenizer and a model shape."""

    name: str
    shape: ModelShape
    objective: Objective
    corruption: Corruption
    vocabulary: Vocabulary
    kind: str
    style: str

    @property
    def tokenizer(self) -> Tokenizer:
        return trained(self.kind, self.style)

    def sequences(self, lengths: Sequence[int], seed: int = 0) -> Sequences:
        """Return texts of these lengths in the tokenizer's template; pairs for objectives of pairs.

        The second side is longer if it is the target; for a mixture every third text is single.
        """
        text, template = text_of(self.kind, self.style), self.tokenizer.template
        length = np.asarray(lengths, dtype=np.int64)
        start = np.random.default_rng(seed).integers(0, len(text.tokens) - 2100, len(length))
        pairs, apart = self.objective.pairs is not None, self.objective.pairs == "apart"
        second = (length - length // 4 if apart else length // 2) if pairs else np.zeros_like(length)
        second = np.where(length > 1, second, 0)
        if isinstance(self.objective, Mixture):
            second[1::3] = 0
        template = double_template(template, is_bare=self.shape != "encoder-decoder") if apart else template
        pieces = template.wrap_pair(start, length - second, start + length - second, second)
        made = read_pieces(
            pieces,
            text,  # type: ignore[arg-type]
            words=self.objective.words,
            sentences=self.objective.sentences,
            segments=(pairs and not apart) or template.has_segments,
        )
        ahead = template.special_count if apart else [token for token, _ in template.pair].index(TEXT_B) - 1
        number = np.arange(len(length)) * 7 + seed * 1000
        labels = np.where(second > 0, number // 7 % 2, IGNORE_INDEX) if pairs and not apart else None
        sides = np.where(second > 0, length - second + ahead, 0) if pairs else None
        return replace(made, samples=number, epochs=number * 0, labels=labels, sides=sides)

    def corrupt(self, sequences: Sequences, seed: int = 0) -> Sequences:
        return self.corruption.corrupt(
            sequences, Counters.from_sequences(seed, sequences, copies=self.corruption.copies)
        )

    def model(self) -> Any:
        """Build a tiny model of the shape, with random weights everywhere."""
        return rough(MODELS[self.shape](self.vocabulary.size))

    def attach(self, model: Any) -> Any:
        """Return the objective that trains a model: a distillation with a teacher of the same size."""
        if not isinstance(self.objective, Distill):
            return self.objective
        return attach_teacher(self.objective, model, freeze_teacher(build(model.spec, seed=9)), source="teacher")


@cache
def setting(name: str, shape: ModelShape, kind: str = "wordpiece") -> Setting:
    """Bind an objective to a tokenizer of a kind, in the first style that has the special tokens it needs."""
    objective, refused = CASES[name], ""
    for style in dict.fromkeys((KINDS[kind].style, "cls-sep", "s-mask", *STYLES)):
        try:
            vocabulary = Vocabulary.from_tokenizer(trained(kind, style))
            return Setting(name, shape, objective, objective.bind(vocabulary, shape), vocabulary, kind, style)
        except UsageError as error:
            refused = str(error)
    raise AssertionError(refused)


def together(sequences: Sequences, per_row: int) -> Batch:
    """Build a batch of all sequences, `per_row` in each row."""
    row = np.arange(len(sequences)) // per_row
    source = sequences.source
    shape = BatchShape(
        rows=int(row[-1]) + 1,
        length=_room(sequences, row),
        source=None if source is None else _room(source, row),
    )
    return lay_out(sequences, row, shape)


def _room(sequences: Sequences, row: Ints) -> int:
    return max(int(np.bincount(row, weights=sequences.lengths).max()), 1)


def parts(sequences: Sequences) -> Mapping[str, Any]:
    """Return the arrays of sequences and of their sources by name."""
    found = {name: getattr(sequences, name) for name in Sequences.__dataclass_fields__ if name != "source"}
    if sequences.source is not None:
        found |= {f"source.{name}": value for name, value in parts(sequences.source).items()}
    return {name: value for name, value in found.items() if value is not None}


def alike(one: Sequences, other: Sequences) -> None:
    """Assert that two sequences have equal arrays."""
    first, second = parts(one), parts(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def by_sequence(values: Ints, offsets: Ints) -> Iterable[list[int]]:
    ends = offsets.tolist()
    listed = values.tolist()
    return (listed[start:end] for start, end in pairwise(ends))
