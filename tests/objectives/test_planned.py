"""Plans that know what will be drawn: rows hold it, nothing is lost, and what was planned is what is applied."""

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.types import IGNORE_INDEX
from pretune.data.pairs import ParallelPairs, SegmentPairs
from pretune.data.plan import BatchShape
from pretune.data.samples import Blocks, Documents, Samples, Sentences
from pretune.data.sampling import Counters, WeightedMixing
from pretune.data.stream import BatchStream, compute_row_lengths
from pretune.objectives import OBJECTIVES as REGISTRY
from pretune.objectives.base import ModelShape, Objective, Vocabulary
from pretune.objectives.causal import CausalLM
from pretune.objectives.denoising import (
    Denoising,
    DocumentRotation,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
)
from pretune.objectives.mixture import Mixture, MixtureCorruption, Part, build_denoisers
from pretune.objectives.prefix import PrefixLM
from pretune.objectives.span_corruption import SpanCorruption
from pretune.objectives.supervised import SupervisedSeq2seq
from tests.data import test_parallel
from tests.data.corpora import CLS, FRAMES, SEP, every, opened, random_documents, some_documents, split
from tests.data.test_stream import same
from tests.selection import keep_quick, scale_examples

EXTRA = tuple(range(1_000_149, 1_000_050, -1))
VOCABULARY = Vocabulary(
    size=1_000_200, special=(CLS, SEP, *EXTRA[::-1]), roles=(("mask", EXTRA[-1]),), sentinels=EXTRA[:-1], start=CLS
)
INNER = Mixture(parts=(Part(objective=PrefixLM()), Part(objective=SpanCorruption(mean=1.0))))
OBJECTIVES: dict[str, Objective] = {
    "ul2": Mixture(parts=build_denoisers()),
    "ul2 and tasks": Mixture(),
    "two parts for pairs": Mixture(
        parts=(Part(objective=SpanCorruption()), *(Part(objective=SupervisedSeq2seq(), mark=i) for i in range(2)))
    ),
    "nested": Mixture(parts=(Part(objective=INNER, mark=0), Part(objective=Denoising(), weight=2.0))),
    "prefix": PrefixLM(),
    "spans": SpanCorruption(rate=0.4),
    "denoising": Denoising(),
    "all noises": Denoising(
        noises=(TokenDeletion(), SentencePermutation(), TextInfilling(), DocumentRotation(), TokenMasking())
    ),
}
KINDS: dict[str, Any] = {
    "documents": Documents(limit=16),
    "sentences": Sentences(limit=12),
    "blocks": Blocks(length=16),
    "swapped": SegmentPairs(limit=16, broken="swapped"),
    "sides": ParallelPairs(limit=16, apart="framed"),
    "bare": ParallelPairs(limit=16, apart="bare"),
}
frames = st.sampled_from(sorted(FRAMES))
kinds = st.sampled_from(sorted(KINDS))


def stream_of(samples: Samples, name: str, shape: ModelShape = "encoder-decoder", **options: Any) -> BatchStream:
    objective = OBJECTIVES[name]
    rows = {"rows": 4, "length": 40, "source": 36} if shape == "encoder-decoder" else {"rows": 4, "length": 64}
    given = {"seed": 1, "window": 50, **options}
    lesson = objective.bind(VOCABULARY, shape)
    return BatchStream(samples, BatchShape(**rows), corruption=lesson, sentences=objective.sentences, **given)


@given(some_documents, kinds, frames, st.integers(1, 60))
def test_what_is_known_before_a_cut(given: Any, kind: str, frame: str, full: int) -> None:
    """Lengths, sides and the number of special tokens, of every sample, whatever the kind, frame and shards."""
    with opened(given, full=full) as shards:
        samples = KINDS[kind].open(shards, FRAMES[frame])
        draws = every(samples)
        cut, known = samples.cut(draws), samples.measure_lengths(draws)
        assert (known.lengths == cut.lengths).all() and (known.second_lengths == 0).all()
        assert known.special_counts.tolist() == [sum(part) for part in split(cut, "special")]
        assert all(
            (one == other[draws.samples]).all() for one, other in zip(known, samples.measure_lengths(), strict=True)
        )


@given(
    test_parallel.documents, st.sampled_from(["around", "behind", "none"]), st.sampled_from([None, "framed", "bare"])
)
def test_what_is_known_of_sides(given: list[tuple[int, int]], frame: str, apart: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        samples = ParallelPairs(limit=24, apart=apart).open(test_parallel.write(Path(folder), given), FRAMES[frame])
        draws = every(samples)
        cut, known = samples.cut(draws), samples.measure_lengths(draws)
        assert known.special_counts.tolist() == [sum(part) for part in split(cut, "special")]
        assert (known.lengths == cut.lengths).all() and (
            np.where(known.second_lengths > 0, known.first_lengths, 0) == cut.sides
        ).all()


@settings(max_examples=scale_examples(40))
@given(some_documents, kinds, frames, st.sampled_from(sorted(OBJECTIVES)), st.integers(0, 2**64 - 1), st.booleans())
def test_every_sample_once_and_in_its_row(
    given: Any, kind: str, frame: str, name: str, seed: int, decoder: bool
) -> None:
    """In every epoch; what is longer than planned would not be laid out. Without chance all epochs are equally long."""
    with opened(given) as shards:
        samples = KINDS[kind].open(shards, FRAMES[frame])
        stream = stream_of(samples, name, "decoder" if decoder else "encoder-decoder", seed=seed)
        for epoch in range(2):
            found: list[int] = []
            for step in stream.get_steps(epoch):
                batch, (sequences, _) = stream[step], stream.read_sequences(step)
                found += sequences.samples.tolist()
                assert batch.targets is not None and sequences.targets is not None
                assert (batch.targets.labels != IGNORE_INDEX).sum() == (sequences.targets != IGNORE_INDEX).sum()
            assert sorted(found) == list(range(len(samples)))


@settings(max_examples=scale_examples(40))
@given(test_parallel.documents, st.sampled_from(sorted(OBJECTIVES)), st.integers(0, 2**32), st.booleans())
def test_pairs_once_and_in_their_rows(given: list[tuple[int, int]], name: str, seed: int, decoder: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kind = ParallelPairs(limit=20, apart="bare" if decoder else "framed")
        samples = kind.open(test_parallel.write(Path(folder), given), FRAMES["around"])
        stream = stream_of(samples, name, "decoder" if decoder else "encoder-decoder", seed=seed)
        found = [int(s) for step in stream.get_steps(0) for s in stream.read_sequences(step)[0].samples]
        assert sorted(found) == list(range(len(samples)))
        assert len([stream[step] for step in stream.get_steps(0)]) == stream.plan(0).batch_count


@given(some_documents, frames, st.sampled_from(["ul2", "prefix", "spans"]), st.integers(0, 2**32))
def test_plans_are_close(given: Any, frame: str, name: str, seed: int) -> None:
    """Of documents, to two tokens on each side: where special tokens stand is not known, nor whether one is the end."""
    with opened(given) as shards:
        samples = KINDS["documents"].open(shards, FRAMES[frame])
        stream = stream_of(samples, name, seed=seed)
        draws = samples.assign_partners(stream.mixture.draw_order(seed, 0))
        target, source = compute_row_lengths(samples, stream.corruption, draws)
        made = stream.corruption.corrupt(samples.cut(draws), Counters.from_sequences(seed, draws))
        assert ((target - made.lengths) <= 2).all() and ((source - made.source.lengths) <= 2).all()


@given(
    some_documents,
    kinds,
    frames,
    st.sampled_from(["denoising", "all noises"]),
    st.integers(0, 2**32),
    st.integers(0, 3),
)
def test_noises_leave_what_was_planned(given: Any, kind: str, frame: str, name: str, seed: int, epoch: int) -> None:
    """To the token."""
    lesson = OBJECTIVES[name].bind(VOCABULARY, "encoder-decoder")
    with opened(given) as shards:
        samples = KINDS[kind].open(shards, FRAMES[frame])
        draws = every(samples, seed, epoch)
        rng = Counters.from_sequences(seed, draws)
        cut = samples.cut(draws, sentences=True)
        made, (source, target) = lesson.corrupt(cut, rng), lesson.predict_lengths(samples.measure_lengths(draws), rng)
        assert (made.source.lengths == source).all() and (made.lengths == target).all()


@given(some_documents, kinds, st.integers(0, 2**32), st.integers(0, 3))
def test_the_part_that_is_planned_is_the_part_that_is_applied(given: Any, kind: str, seed: int, epoch: int) -> None:
    """Each part has a mark of its own, and an encoder reads it first."""
    spec = Mixture(
        parts=tuple(
            Part(objective=part, weight=weight, mark=number)
            for number, (part, weight) in enumerate([(SpanCorruption(), 1.0), (PrefixLM(), 2.0), (INNER, 0.5)])
        )
    )
    lesson = spec.bind(VOCABULARY, "encoder-decoder")
    assert isinstance(lesson, MixtureCorruption)
    marks = np.array(lesson.mode_tokens)
    with opened(given) as shards:
        samples = KINDS[kind].open(shards, FRAMES["around"])
        draws = every(samples, seed, epoch)
        rng = Counters.from_sequences(seed, draws)
        made, (source, target) = (
            lesson.corrupt(samples.cut(draws), rng),
            lesson.predict_lengths(samples.measure_lengths(draws), rng),
        )
        applied = (made.source.tokens[made.source.offsets[:-1]][:, None] == marks).argmax(1)
        for number, (part, which) in enumerate(
            (p, np.flatnonzero(applied == n)) for n, p in enumerate(lesson.corruptions)
        ):
            known, own = samples.measure_lengths(draws).take(which), rng.take(which).derive(number)
            read, said = part.predict_lengths(known, own)
            assert (source[which] == read + 1).all() and (target[which] == said).all()


@pytest.mark.parametrize("mixing", [None, WeightedMixing(weights=(1.0, 2.0, 0.5))], ids=["all", "mixed"])
@pytest.mark.parametrize("shape", ["encoder-decoder", "decoder"])
def test_whoever_asks_and_whenever(shape: ModelShape, mixing: Any) -> None:
    """Workers, ranks and a run that goes on find the same batches; so does one that never saw the epochs before."""
    with opened(random_documents(3, 20)) as shards:
        samples = KINDS["documents"].open(shards, FRAMES["around"])
        stream = stream_of(samples, "ul2", shape, mixing=mixing, window=2**18, fixed_slots=True)
        stop = stream.get_steps(1).stop
        expected = [stream[step] for step in range(stop)]
        sizes = {(len(batch.tokens), len(batch.offsets), len(batch.targets.labels)) for batch in expected}
        assert len(sizes) == 1
        sent = pickle.loads(pickle.dumps(stream))
        for step in [stop - 1, 0, stop // 2]:
            fresh = stream_of(samples, "ul2", shape, mixing=mixing, window=2**18, fixed_slots=True)
            assert same(fresh[step], expected[step]) and same(sent[step], expected[step])
            parts = [stream.batch(step, part=part, parts=4) for part in range(4)]
            assert [token for part in parts for token in part.tokens.tolist()] == expected[step].tokens.tolist()


def test_epochs_of_drawn_lengths_differ_and_are_found() -> None:
    """The same samples take another number of rows, so an epoch is found by counting those before it."""
    with opened(random_documents(3, 400)) as shards:
        samples = KINDS["documents"].open(shards, FRAMES["around"])
        stream = stream_of(samples, "prefix", window=2**18)
        counts = [len(stream.get_steps(epoch)) for epoch in range(6)]
        assert len({*counts}) > 1 and counts == [stream.plan(epoch).batch_count for epoch in range(6)]
        assert stream.locate_step(sum(counts[:5])) == (5, 0)
        still = stream_of(samples, "spans", window=2**18)
        assert {len(still.get_steps(epoch)) for epoch in range(6)} == {still.plan(0).batch_count}


def test_rows_of_few_kinds_have_slots_for_their_targets() -> None:
    """All documents alike: sequences of one part share rows, so rows differ more than chance alone would have it."""
    with opened([[14]] * 4000) as shards:
        samples = KINDS["documents"].open(shards, FRAMES["around"])
        lesson = OBJECTIVES["ul2"].bind(VOCABULARY, "decoder")
        stream = BatchStream(samples, BatchShape(rows=16, length=192), seed=0, corruption=lesson, fixed_slots=True)
        slots = stream.compute_part_shape(1).targets
        for step in stream.get_steps(0):
            batch, (sequences, _) = stream[step], stream.read_sequences(step)
            found = int((sequences.targets != IGNORE_INDEX).sum())
            assert found == int((batch.targets.labels != IGNORE_INDEX).sum()) <= slots < 16 * 192
        assert stream.plan(0).fill > 0.95


@pytest.mark.slow
def test_more_targets_than_slots_make_a_batch_of_another_form() -> None:
    """A part that is hardly ever drawn asks for far more than all others: nothing is lost, nothing fails."""
    rare = Mixture(parts=(Part(objective=SpanCorruption(), weight=500.0), Part(objective=CausalLM())))
    with opened([[20]] * 1200) as shards:
        samples = Documents(limit=22).open(shards, FRAMES["around"])
        stream = BatchStream(
            samples,
            BatchShape(rows=2, length=27),
            seed=1,
            corruption=rare.bind(VOCABULARY, "decoder"),
            fixed_slots=True,
        )
        slots, sizes = stream.compute_part_shape(1).targets, set()
        for step in stream.get_steps(0):
            batch, (sequences, _) = stream[step], stream.read_sequences(step)
            assert (batch.targets.labels != IGNORE_INDEX).sum() == (sequences.targets != IGNORE_INDEX).sum()
            sizes.add(len(batch.targets.labels))
        assert min(sizes) == slots and len(sizes) == 2


LENGTHS_CHANGE = ("prefix", "span_corruption", "denoising", "masked_seq2seq", "multitask_masked", "mixture")


@pytest.mark.parametrize(
    "kind", keep_quick([Documents(limit=60), Blocks(length=60)], Documents(limit=60)), ids=["documents", "blocks"]
)
@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in LENGTHS_CHANGE for shape in REGISTRY.get(name)().shapes]
)
def test_rows_and_slots_hold_what_comes_out(name: str, shape: ModelShape, kind: Documents | Blocks) -> None:
    """In every batch of an epoch, all targets are there, and all batches have one shape."""
    objective = REGISTRY.get(name)()
    room = BatchShape(rows=8, length=160, source=160 if shape == "encoder-decoder" else None)
    with opened(random_documents(3, 120)) as shards:
        stream = BatchStream(
            kind.open(shards, FRAMES["around"]),
            room,
            seed=1,
            corruption=objective.bind(VOCABULARY, shape),
            words=objective.words,
            sentences=objective.sentences,
            fixed_slots=True,
        )
        shapes = set()
        for step in stream.get_steps(0):
            batch, (sequences, _) = stream[step], stream.read_sequences(step)
            assert batch.targets is not None and sequences.targets is not None
            assert (batch.targets.labels != IGNORE_INDEX).sum() == (sequences.targets != IGNORE_INDEX).sum() > 0
            shapes.add((batch.tokens.shape, batch.offsets.shape, batch.targets.labels.shape))
            assert (batch.source is None) == (shape != "encoder-decoder")
        assert len(shapes) == 1
