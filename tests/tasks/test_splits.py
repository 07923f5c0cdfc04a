"""Dividing and thinning out: disjoint, exhaustive, stratified to within one, nested."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.loading import load_task
from pretune.tasks.splits import compute_strata, divide, order_stratified, sample_subset

LABELS = st.lists(st.integers(0, 5), min_size=3, max_size=80)


def made(labels: list[int]) -> list[Example]:
    return [Example(text=f"text {at}", label=label, id=str(at)) for at, label in enumerate(labels)]


@settings(max_examples=60)
@given(labels=LABELS, seed=st.integers(0, 2**32))
def test_every_beginning_is_stratified(labels: list[int], seed: int) -> None:
    found = order_stratified(labels, seed)
    assert sorted(found) == list(range(len(labels)))
    whole, so_far = Counter(labels), Counter[int]()
    for count, at in enumerate(found, start=1):
        so_far[labels[at]] += 1
        assert all(abs(so_far[label] - count * size / len(labels)) < 1 for label, size in whole.items())


@settings(max_examples=60)
@given(labels=LABELS, seed=st.integers(0, 2**32), shares=st.sampled_from([(0.9, 0.1), (0.8, 0.1, 0.1), (0.5, 0.5)]))
def test_parts_are_disjoint_exhaustive_and_stratified(labels: list[int], seed: int, shares: tuple[float, ...]) -> None:
    examples = made(labels)
    parts = divide(examples, shares, seed)
    assert sorted(int(example.id) for part in parts for example in part) == list(range(len(labels)))
    assert all(parts)
    pool = Counter(labels)
    for part in parts:  # out of what the parts before it left
        got, size = Counter(int(example.label or 0) for example in part), sum(pool.values())
        assert all(abs(got[label] - len(part) * many / size) < 1 for label, many in pool.items())
        assert [int(example.id) for example in part] == sorted(int(example.id) for example in part)
        pool -= got
    assert parts == divide(examples, shares, seed)


@settings(max_examples=40)
@given(labels=LABELS, seed=st.integers(0, 9), small=st.integers(1, 40), more=st.integers(0, 40))
def test_subsets_are_nested(labels: list[int], seed: int, small: int, more: int) -> None:
    examples = made(labels)
    few, many = sample_subset(examples, small, seed), sample_subset(examples, small + more, seed)
    assert len(few) == min(small, len(labels)) and {*few} <= {*many} <= {*examples}


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), small=st.integers(1, 40), more=st.integers(0, 40))
def test_a_subset_has_whole_groups(sizes: list[int], small: int, more: int) -> None:
    groups = [str(at) for at, size in enumerate(sizes) for _ in range(size)]
    examples = [Example(text="x", label=at % 2, id=str(at), group=group) for at, group in enumerate(groups)]
    few, many = sample_subset(examples, small, 3, groups), sample_subset(examples, small + more, 3, groups)
    assert {*few} <= {*many} and few
    drawn = Counter(example.group for example in few)
    assert all(drawn[group] == sizes[int(group or 0)] for group in drawn)
    assert len(few) <= small or len(drawn) == 1  # a group that is larger than the limit is not parted
    assert len(few) + max(sizes) > small or len(few) == len(examples)
    assert sample_subset(examples, len(few), 3, groups) == few
    alone: list[str | None] = [None] * len(examples)
    assert len(sample_subset(examples, small, 3, alone)) == min(small, len(examples))


def test_another_seed_gives_another_division() -> None:
    examples = made([0, 1] * 50)
    assert divide(examples, (0.9, 0.1), 0)[1] != divide(examples, (0.9, 0.1), 1)[1]


def test_scores_are_mixed_by_fifths() -> None:
    examples = [Example(text="x", label=float(at)) for at in range(100)]
    _, dev = divide(examples, (0.9, 0.1))
    assert Counter(int(float(example.label or 0) // 20) for example in dev) == dict.fromkeys(range(5), 2)
    assert compute_strata([Example(text="x", choices=("a", "b"), label=1)]) == [0]


def test_groups_stay_together() -> None:
    examples = [Example(text="x", group=str(at // 7), id=str(at)) for at in range(70)]
    parts = divide(examples, (0.8, 0.1, 0.1), group_field="group")
    groups = [{example.group for example in part} for part in parts]
    assert [len(found) for found in groups] == [8, 1, 1]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_faults() -> None:
    with pytest.raises(DataError, match=r"\b2\b.*\b3\b"):
        divide(made([0, 1]), (0.8, 0.1, 0.1))
    with pytest.raises(UsageError, match=r"0\.8, 0\.1"):
        divide(made([0, 1]), (0.8, 0.1))
    with pytest.raises(UsageError, match=r"\b0\b"):
        sample_subset(made([0, 1]), 0)


@pytest.mark.parametrize(
    ("name", "sizes", "divided"),
    [
        ("wnli", (635, 71, 0), ()),
        ("copa", (400, 100, 0), ()),
        ("sst5", (8544, 1101, 2210), ()),
        ("boolq", (2616, 327, 327), ("'dev'", "3,270", "80/10/10")),
        ("qnli", (4370, 546, 547), ("'dev'", "5,463", "80/10/10")),
        ("mr", (8530, 1066, 1066), ("'all'", "10,662", "80/10/10")),
        ("samsum", (736, 82, 819), ("'dev'", "818", "90/10")),
        ("scitail", (1701, 213, 212), ("'test'", "2,126", "80/10/10")),
    ],
)
def test_tasks_for_a_run(name: str, sizes: tuple[int, int, int], divided: tuple[str, ...], shared_data: Path) -> None:
    parts = load_task(TASKS.get(name), shared_data)
    assert (len(parts.train), len(parts.dev), len(parts.test)) == sizes
    assert len(parts.notes) == bool(divided) and all(value in parts.notes[0] for value in divided)


def test_articles_are_not_parted(shared_data: Path) -> None:
    parts = load_task(TASKS.get("squad2"), shared_data)
    titles = [{example.group for example in part} for part in (parts.train, parts.dev, parts.test)]
    assert sum(map(len, titles)) == 35 == len(set.union(*titles))
