"""Dividing and thinning out: disjoint, exhaustive, stratified to within one, nested."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from pretune.tasks.task import compute_strata, divide, load_task, order_stratified, sample_subset
from tests.selection import scale_examples

LABELS = st.lists(st.integers(0, 5), min_size=3, max_size=80)


def make_examples(labels: list[int]) -> list[Example]:
    return [Example(text=f"text {index}", label=label, id=str(index)) for index, label in enumerate(labels)]


@settings(max_examples=scale_examples(60))
@given(labels=LABELS, seed=st.integers(0, 2**32))
def test_every_beginning_is_stratified(labels: list[int], seed: int) -> None:
    order = order_stratified(labels, seed)
    assert sorted(order) == list(range(len(labels)))
    totals, counts = Counter(labels), Counter[int]()
    for count, index in enumerate(order, start=1):
        counts[labels[index]] += 1
        assert all(abs(counts[label] - count * size / len(labels)) < 1 for label, size in totals.items())


@settings(max_examples=scale_examples(60))
@given(labels=LABELS, seed=st.integers(0, 2**32), shares=st.sampled_from([(0.9, 0.1), (0.8, 0.1, 0.1), (0.5, 0.5)]))
def test_parts_are_disjoint_exhaustive_and_stratified(labels: list[int], seed: int, shares: tuple[float, ...]) -> None:
    examples = make_examples(labels)
    parts = divide(examples, shares, seed)
    assert sorted(int(example.id) for part in parts for example in part) == list(range(len(labels)))
    assert all(parts)
    pool = Counter(labels)
    for part in parts:  # out of what the parts before it left
        got, size = Counter(int(example.label or 0) for example in part), sum(pool.values())
        assert all(abs(got[label] - len(part) * class_size / size) < 1 for label, class_size in pool.items())
        assert [int(example.id) for example in part] == sorted(int(example.id) for example in part)
        pool -= got
    assert parts == divide(examples, shares, seed)


@settings(max_examples=scale_examples(40))
@given(labels=LABELS, seed=st.integers(0, 9), small=st.integers(1, 40), more=st.integers(0, 40))
def test_subsets_are_nested(labels: list[int], seed: int, small: int, more: int) -> None:
    examples = make_examples(labels)
    smaller, larger = sample_subset(examples, small, seed), sample_subset(examples, small + more, seed)
    assert len(smaller) == min(small, len(labels)) and {*smaller} <= {*larger} <= {*examples}


@settings(max_examples=scale_examples(40))
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), small=st.integers(1, 40), more=st.integers(0, 40))
def test_a_subset_has_whole_groups(sizes: list[int], small: int, more: int) -> None:
    groups = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    examples = [Example(text="x", label=index % 2, id=str(index), group=group) for index, group in enumerate(groups)]
    smaller, larger = sample_subset(examples, small, 3, groups), sample_subset(examples, small + more, 3, groups)
    assert {*smaller} <= {*larger} and smaller
    group_counts = Counter(example.group for example in smaller)
    assert all(group_counts[group] == sizes[int(group or 0)] for group in group_counts)
    assert len(smaller) <= small or len(group_counts) == 1  # a group that is larger than the limit is not parted
    assert len(smaller) + max(sizes) > small or len(smaller) == len(examples)
    assert sample_subset(examples, len(smaller), 3, groups) == smaller
    no_groups: list[str | None] = [None] * len(examples)
    assert len(sample_subset(examples, small, 3, no_groups)) == min(small, len(examples))


def test_another_seed_gives_another_division() -> None:
    examples = make_examples([0, 1] * 50)
    assert divide(examples, (0.9, 0.1), 0)[1] != divide(examples, (0.9, 0.1), 1)[1]


def test_scores_are_mixed_by_fifths() -> None:
    examples = [Example(text="x", label=float(value)) for value in range(100)]
    _, dev = divide(examples, (0.9, 0.1))
    assert Counter(int(float(example.label or 0) // 20) for example in dev) == dict.fromkeys(range(5), 2)
    assert compute_strata([Example(text="x", choices=("a", "b"), label=1)]) == [0]


def test_groups_stay_together() -> None:
    examples = [Example(text="x", group=str(index // 7), id=str(index)) for index in range(70)]
    parts = divide(examples, (0.8, 0.1, 0.1), group_field="group")
    groups = [{example.group for example in part} for part in parts]
    assert [len(group) for group in groups] == [8, 1, 1]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_faults() -> None:
    with pytest.raises(DataError, match=r"\b2\b.*\b3\b"):
        divide(make_examples([0, 1]), (0.8, 0.1, 0.1))
    with pytest.raises(UsageError, match=r"0\.8, 0\.1"):
        divide(make_examples([0, 1]), (0.8, 0.1))
    with pytest.raises(UsageError, match=r"\b0\b"):
        sample_subset(make_examples([0, 1]), 0)


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
