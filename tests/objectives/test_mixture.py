"""Mixtures: each sequence gets one part's lesson, as often as its weight says, whatever else is in the batch."""

from dataclasses import replace

import numpy as np
import pytest

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Sequences
from pretune.objectives.causal import CausalLM
from pretune.objectives.denoising import Denoising, DocumentRotation
from pretune.objectives.masked import MaskedLM
from pretune.objectives.masked_seq2seq import MaskedSeq2seq
from pretune.objectives.mixture import Mixture, Part, build_denoisers
from pretune.objectives.multitask_masked import MultitaskMaskedLM
from pretune.objectives.prefix import PrefixLM
from pretune.objectives.span_corruption import SpanCorruption
from tests.contracts.restoring import sides
from tests.objectives.seq2seq_cases import EOS, SENTINELS, VOCABULARY, lists, rng, uniform

TWO = Mixture(parts=(Part(objective=PrefixLM(), weight=3.0), Part(objective=SpanCorruption())))
ROTATED = Denoising(noises=(DocumentRotation(),))


def marks_of(sequences: Sequences) -> np.ndarray:
    """The first token that is read of each."""
    side = sequences.source or sequences
    return side.tokens[side.offsets[:-1]]


def test_weights() -> None:
    spec = Mixture(parts=tuple(Part(objective=ROTATED, weight=w, mark=i) for i, w in enumerate((3.0, 1.0, 2.0))))
    text = uniform(6000, 4)
    after = spec.bind(VOCABULARY, "encoder-decoder").corrupt(text, rng(text))
    for mark, share in enumerate((1 / 2, 1 / 6, 1 / 3)):
        found = (marks_of(after) == SENTINELS[-1 - mark]).sum()
        assert abs(found - 6000 * share) < 3 * np.sqrt(6000 * share * (1 - share))


@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_each_lesson_is_that_of_its_part(shape: str) -> None:
    """Sequence by sequence it is what the part makes with counters of its own."""
    text = uniform(40, 30)
    after = TWO.bind(VOCABULARY, shape).corrupt(text, rng(text))
    parts = [part.objective.bind(VOCABULARY, shape) for part in TWO.parts]
    chosen = (rng(text).uniform(0) >= 0.75).astype(int)
    assert {*chosen} == {0, 1}
    for number, which in enumerate(chosen.tolist()):
        one = np.array([number])
        alone = parts[which].corrupt(text.take(one), rng(text).take(one).derive(which))
        assert sides(alone) == sides(after.take(one))
        if shape == "decoder":
            assert after.prefix[number] == (0 if alone.prefix is None else alone.prefix[0])


def test_marks_come_before_what_is_read() -> None:
    """In front of the source, or of the sequence: then the prefix is longer by one, and nothing is asked there."""
    text = uniform(50, 20)
    spec = Mixture(parts=(Part(objective=PrefixLM(), mark=1), Part(objective=CausalLM())))
    assert spec.shapes == ("decoder",)
    after = spec.bind(VOCABULARY, "decoder").corrupt(text, rng(text))
    marked = marks_of(after) == SENTINELS[-2]
    assert 10 < marked.sum() < 40
    for mark, tokens, targets, prefix in zip(
        marked.tolist(), lists(after), lists(after, "targets"), after.prefix.tolist(), strict=True
    ):
        asked = [(i, label) for i, label in enumerate(targets) if label != IGNORE_INDEX]
        assert all(tokens[i + 1] == label for i, label in asked)
        assert (prefix > 1 and asked[0][0] == prefix - 1) if mark else (prefix == 0 and asked[0][0] == 0)
        assert tokens[mark:] == lists(text)[0]


def test_parts_do_without_the_marks() -> None:
    """With five sentinels, two of them marks, two spans and the closing one are left."""
    few = replace(VOCABULARY, sentinels=SENTINELS[:5])
    spec = Mixture(parts=(Part(objective=SpanCorruption(), mark=0), Part(objective=SpanCorruption(), mark=1)))
    text = uniform(20, 200)
    after = spec.bind(few, "encoder-decoder").corrupt(text, rng(text))
    for shown, labels in sides(after):
        assert shown[0] in SENTINELS[3:5] and [t for t in shown[1:] if t in SENTINELS] == list(SENTINELS[:2])
        assert [t for t in labels if t in SENTINELS] == list(SENTINELS[:3])
    with pytest.raises(UsageError, match=r"\b2\b.*\b1\b"):
        spec.bind(replace(few, sentinels=SENTINELS[:1]), "decoder")


def test_bounds_are_the_largest() -> None:
    n = np.arange(1, 300)
    spec = Mixture(parts=(Part(objective=PrefixLM(), mark=0), Part(objective=SpanCorruption(specials=1))))
    source, target = spec.bind(VOCABULARY, "encoder-decoder").lengths(n)
    parts = [part.objective.bind(VOCABULARY, "encoder-decoder").lengths(n) for part in spec.parts]
    assert (source == np.maximum(parts[0][0] + 1, parts[1][0])).all()
    assert (target == np.maximum(parts[0][1], parts[1][1])).all()


def test_mixtures_of_mixtures() -> None:
    """The inner one draws for itself, and a sequence read alone is what it is among others."""
    spec = Mixture(parts=(Part(objective=TWO), Part(objective=ROTATED, weight=2.0)))
    text = uniform(30, 25)
    lesson = spec.bind(VOCABULARY, "encoder-decoder")
    after = lesson.corrupt(text, rng(text))
    for number in range(30):
        one = np.array([number])
        assert sides(lesson.corrupt(text.take(one), rng(text).take(one))) == sides(after.take(one))
    lengths = {len(labels) for _, labels in sides(after)}
    assert 26 in lengths and len(lengths) > 5


def test_an_encoder_reads_all_in_both_directions_but_where_told() -> None:
    spec = Mixture(parts=(Part(objective=MaskedLM()), Part(objective=MultitaskMaskedLM(shares=(0.0, 1.0, 0.0, 0.0)))))
    text = uniform(200, 20)
    after = spec.bind(VOCABULARY, "encoder").corrupt(text, rng(text))
    assert abs((after.view == 1).mean() - 0.5) < 0.11 and {*after.view.tolist()} == {0, 1}
    assert (after.prefix == 0).all()


def test_denoisers_are_those_of_the_paper() -> None:
    """Two regular, four extreme, one sequential; a fifth of the sequences are sequential."""
    parts = build_denoisers()
    spans = [(p.objective.rate, p.objective.mean, p.mark) for p in parts if isinstance(p.objective, SpanCorruption)]
    assert spans == [(0.15, 3, 0), (0.15, 8, 0), (0.5, 3, 2), (0.5, 8, 2), (0.15, 64, 2), (0.5, 64, 2)]
    assert Mixture().keep_document_parts().parts == parts == Mixture().parts[:-1] and {
        p.mark for p in build_denoisers(with_mode_tokens=False)
    } == {None}
    assert all(mean >= 12 or rate >= 0.5 for rate, mean, mark in spans if mark == 2)
    text = uniform(5000, 12)
    after = Mixture().bind(VOCABULARY, "encoder-decoder").corrupt(text, rng(text))
    for mark, share in enumerate((4 / 15, 1 / 5, 8 / 15)):
        found = (marks_of(after) == SENTINELS[-1 - mark]).sum()
        assert abs(found - 5000 * share) < 3 * np.sqrt(5000 * share * (1 - share))
    assert all(shown[-1] == EOS and labels[-1] == EOS for shown, labels in sides(after))


def test_what_cannot_be_mixed() -> None:
    with pytest.raises(UsageError, match=r"causal.*decoder.*masked_seq2seq.*encoder-decoder"):
        Mixture(parts=(Part(objective=CausalLM()), Part(objective=MaskedSeq2seq())))
    with pytest.raises(UsageError):
        Mixture(parts=())
    with pytest.raises(UsageError, match="copies"):
        Mixture(parts=(Part(objective=MaskedLM(copies=3)),)).bind(VOCABULARY, "encoder")
    with pytest.raises(UsageError, match="activation_penalty"):
        Mixture(parts=(Part(objective=CausalLM(activation_penalty=2.0)),))
    for wrong in ({"weight": 0.0}, {"mark": -1}):
        with pytest.raises(UsageError):
            Part(objective=CausalLM(), **wrong)


def test_what_the_parts_ask_for() -> None:
    assert Mixture(parts=(Part(objective=MaskedLM(words=True)),)).words and not Mixture().words
    assert Mixture(parts=(Part(objective=Denoising()),)).sentences and not Mixture().sentences
