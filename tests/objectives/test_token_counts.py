"""Tokens of batches, counted from plans: those that a training run counts, for every objective and kind of samples."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.data.pairs import ParallelPairs
from pretune.data.plan import BatchShape, LengthSchedule, Phase
from pretune.data.samples import Documents
from pretune.data.sampling import Mixing, WeightedMixing
from pretune.data.stream import BatchStream, TokenCounter, count_run_tokens, find_steps
from pretune.objectives.base import ModelShape, Objective
from pretune.objectives.causal import CausalLM
from pretune.objectives.masked_seq2seq import MaskedSeq2seq
from pretune.objectives.mixture import Mixture, Part
from pretune.training.batch_transfer import BatchStats
from tests.data import test_parallel
from tests.data.corpora import FRAMES, opened, random_documents, some_documents
from tests.objectives import test_planned
from tests.objectives.test_planned import KINDS, VOCABULARY
from tests.selection import keep_quick, scale_examples

OBJECTIVES: dict[str, Objective] = {
    **test_planned.OBJECTIVES,
    "masked span": MaskedSeq2seq(),
    "masked spans and others": Mixture(parts=(Part(objective=MaskedSeq2seq(), mark=0), *test_planned.INNER.parts)),
    "causal": CausalLM(),
}
SHAPES: list[ModelShape] = ["encoder-decoder", "decoder"]
CASES = [(name, shape) for name, objective in OBJECTIVES.items() for shape in SHAPES if shape in objective.shapes]
cases = st.sampled_from(CASES)


def build_stream(
    samples: Any, case: tuple[str, ModelShape], *, window: int = 2**18, mixing: Mixing | None = None, rows: int = 4
) -> BatchStream:
    name, shape = case
    row = {"length": 40, "source": 36} if shape == "encoder-decoder" else {"length": 64}
    corruption = OBJECTIVES[name].bind(VOCABULARY, shape)
    sentences = OBJECTIVES[name].sentences
    options: dict[str, Any] = {"corruption": corruption, "sentences": sentences, "window": window, "mixing": mixing}
    return BatchStream(samples, BatchShape(rows=rows, **row), seed=1, **options)


def check_counts(stream: BatchStream) -> None:
    """Compare the counts of all steps of two epochs and one more with those of the batches."""
    counter, tokens = TokenCounter(stream), 0
    assert counter.count_tokens(0) == 0
    for step in range(stream.get_steps(1).stop + 1):
        batch_tokens = BatchStats.from_batches([stream[step]]).total_tokens
        tokens += batch_tokens
        assert counter.count_tokens(step + 1) == tokens and batch_tokens <= counter.capacity
        assert find_steps([counter], lambda steps: [steps], tokens) == step + 1
        assert find_steps([counter], lambda steps: [steps], tokens - batch_tokens + 1) == step + 1


@settings(max_examples=scale_examples(60))
@given(some_documents, st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(FRAMES)), cases, st.booleans())
def test_counts_are_exact(
    documents: Any, kind: str, frame: str, case: tuple[str, ModelShape], has_windows: bool
) -> None:
    """Of packed and ragged rows, whether epochs are equal or differ in their batches, lengths or both."""
    with opened(documents) as shards:
        samples = KINDS[kind].open(shards, FRAMES[frame])
        check_counts(build_stream(samples, case, window=7 if has_windows else 2**18))


@settings(max_examples=scale_examples(30))
@given(test_parallel.documents, cases, st.sampled_from(["around", "behind", "none"]))
def test_counts_of_pairs_are_exact(documents: list[tuple[int, int]], case: tuple[str, ModelShape], frame: str) -> None:
    apart: Any = "framed" if case[1] == "encoder-decoder" else "bare"
    with tempfile.TemporaryDirectory() as folder:
        shards = test_parallel.write(Path(folder), documents)
        check_counts(build_stream(ParallelPairs(limit=20, apart=apart).open(shards, FRAMES[frame]), case))


@pytest.mark.parametrize(("name", "shape"), keep_quick(CASES, *CASES[::3]))
def test_counts_of_mixed_sources_are_exact(name: str, shape: ModelShape) -> None:
    with opened(random_documents(3, 20)) as shards:
        samples = KINDS["documents"].open(shards, FRAMES["around"])
        check_counts(build_stream(samples, (name, shape), mixing=WeightedMixing(weights=(1.0, 2.0, 0.5))))


@settings(max_examples=scale_examples(30))
@given(some_documents, cases, st.integers(1, 3000), st.floats(0.05, 0.95))
def test_phases_reach_the_tokens_first(documents: Any, case: tuple[str, ModelShape], tokens: int, share: float) -> None:
    """A run of two phases reads at least the tokens, and one step fewer does not."""
    schedule = LengthSchedule(phases=(Phase(share=share, length=8), Phase(share=1 - share, length=16)))
    with opened(documents) as shards:
        streams = [
            build_stream(Documents(limit=phase.length).open(shards, FRAMES["after"]), case, rows=rows)
            for phase, rows in zip(schedule.phases, (3, 2), strict=True)
        ]
        counters = [TokenCounter(stream) for stream in streams]
        steps = find_steps(counters, schedule.divide, tokens)
        assert sum(schedule.divide(steps)) == steps
        assert count_run_tokens(counters, schedule.divide(steps - 1)) < tokens
        read = count_run_tokens(counters, schedule.divide(steps))
        assert tokens <= read < tokens + max(counter.capacity for counter in counters)


def test_a_long_run_plans_few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal epochs only those at an end are planned; of others the first, and their mean counts for the rest."""
    with opened(random_documents(3, 40)) as shards:
        samples = KINDS["documents"].open(shards, FRAMES["around"])
        planned: list[int] = []
        get_epoch = BatchStream.get_epoch
        monkeypatch.setattr(
            BatchStream, "get_epoch", lambda self, epoch: (planned.append(epoch), get_epoch(self, epoch))[1]
        )
        equal = TokenCounter(build_stream(samples, ("causal", "decoder")))
        per_epoch, batches = equal.count_tokens(len(equal.stream.get_steps(0))), len(equal.stream.get_steps(0))
        assert equal.count_tokens(10**6 * batches) == 10**6 * per_epoch and len({*planned}) <= 3
        planned.clear()
        varied = TokenCounter(build_stream(samples, ("prefix", "encoder-decoder")), max_epochs=5)
        mean = varied.count_tokens(varied.stream.get_steps(4).stop) / varied.stream.get_steps(4).stop
        assert varied.count_tokens(10**6) == pytest.approx(10**6 * mean, rel=1e-5) and max(planned) == 4
