"""Schedules: the papers' formulas, transformers' values, and what all of them keep to."""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pretune.core.config import from_dict, replace, spec, to_dict
from pretune.core.errors import UsageError
from pretune.training.config import (
    Constant,
    Cosine,
    InverseSquareRoot,
    LinearSchedule,
    Schedule,
    SlantedTriangular,
    Stable,
)
from tests.selection import scale_examples

TOTAL = 1000

shares = st.floats(0, 0.5)
warmups = shares | st.integers(1, 400)
schedules: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(Constant, warmup=warmups),
    st.builds(LinearSchedule, warmup=warmups, floor=shares),
    st.builds(Cosine, warmup=warmups, floor=shares),
    st.builds(InverseSquareRoot, warmup=st.integers(0, 400), hold=st.integers(0, 400), cooldown=shares),
    st.builds(Stable, warmup=warmups, decay=shares, shape=st.sampled_from(["linear", "root"]), floor=shares),
    st.builds(SlantedTriangular, cut=st.floats(0.01, 0.9), ratio=st.floats(1, 100)),
)


def low(schedule: Schedule) -> float | None:
    """Return the final factor of a schedule; None if undefined."""
    if isinstance(schedule, Stable) and schedule.decay == 0:
        return None
    return getattr(schedule, "floor", None)


@settings(max_examples=scale_examples(40))
@example(InverseSquareRoot())
@example(Stable(decay=0.0))
@example(Stable(decay=1.0, warmup=0))
@given(schedules)
def test_factors_lie_between_0_and_1_and_end_at_the_floor(schedule: Schedule) -> None:
    factors = [schedule.compute_factor(step, TOTAL) for step in (*range(0, TOTAL, 7), *range(TOTAL - 5, TOTAL + 5))]
    timed = [
        schedule.compute_factor_at(step / TOTAL, step) for step in (*range(0, TOTAL, 7), *range(TOTAL - 5, TOTAL + 5))
    ]
    assert all(0 <= factor <= 1 + 1e-12 for factor in factors + timed)
    if low(schedule) is not None:
        assert factors[-5:] == pytest.approx([low(schedule)] * 5, abs=1e-12)
        assert timed[-5:] == pytest.approx([low(schedule)] * 5, abs=1e-12)


@settings(max_examples=scale_examples(40))
@given(schedules)
def test_factors_do_not_jump(schedule: Schedule) -> None:
    """Over a run a hundred times as long, in steps a hundred times as small, changes are small."""
    if isinstance(schedule, Stable) and schedule.shape == "root":
        return  # a root falls steeply where it begins
    fine, most = TOTAL * 100, 0.0
    shortest = min(_stretches(schedule, fine))
    for step in range(0, fine, 997):
        for factor in (schedule.compute_factor, lambda s, t: schedule.compute_factor_at(s / t, s)):
            most = max(most, abs(factor(step + 1, fine) - factor(step, fine)))
    assert most <= math.pi / shortest + 1e-9


def _stretches(schedule: Schedule, total: int) -> list[float]:
    """Return the number of steps of each slope."""
    result: list[float] = [total / 2]
    for name in ("warmup", "decay", "cooldown", "cut"):
        value = getattr(schedule, name, 0)
        if value:
            result.append(value * total if value < 1 else value)
    if isinstance(schedule, SlantedTriangular):
        result.append((1 - schedule.cut) * total)
    if isinstance(schedule, InverseSquareRoot):
        result.append(max(schedule.warmup + schedule.hold, 1))
    return result


@settings(max_examples=scale_examples(40))
@given(schedules)
def test_a_warm_up_only_rises(schedule: Schedule) -> None:
    name = "cut" if isinstance(schedule, SlantedTriangular) else "warmup"
    value = getattr(schedule, name)
    end = int(value * TOTAL if value < 1 else value)
    factors = [schedule.compute_factor(step, TOTAL) for step in range(end)]
    if not (isinstance(schedule, Stable | InverseSquareRoot) and end > 0.5 * TOTAL):
        assert all(a <= b + 1e-12 for a, b in pairwise(factors))


@settings(max_examples=scale_examples(40))
@given(schedules)
def test_after_the_warm_up_it_never_rises(schedule: Schedule) -> None:
    value = schedule.cut if isinstance(schedule, SlantedTriangular) else schedule.warmup
    begin = math.ceil(value * TOTAL if value < 1 else value)
    factors = [schedule.compute_factor(step, TOTAL) for step in range(begin, TOTAL + 1)]
    assert all(a >= b - 1e-12 for a, b in pairwise(factors))


@given(schedules, st.integers(0, TOTAL))
def test_time_and_steps_agree_where_the_run_is_even(schedule: Schedule, step: int) -> None:
    """Exactly so unless a warm-up is counted in steps; then within what has fallen by its end."""
    warmup = getattr(schedule, "warmup", 0)
    exact = warmup < 1 or isinstance(schedule, Constant | Stable | InverseSquareRoot)
    near = 1e-9 if exact else math.pi * warmup / TOTAL
    assert schedule.compute_factor_at(step / TOTAL, step) == pytest.approx(
        schedule.compute_factor(step, TOTAL), abs=near
    )


@settings(max_examples=scale_examples(40))
@given(schedules)
def test_schedules_are_plain_data(schedule: Schedule) -> None:
    @spec
    class Train:
        schedule: Schedule = LinearSchedule()

    assert from_dict(Train, to_dict(Train(schedule=schedule))) == Train(schedule=schedule)


def test_a_warm_up_is_a_share_or_a_number_of_steps() -> None:
    assert LinearSchedule(warmup=0.1).compute_factor(50, 1000) == 0.5
    assert LinearSchedule(warmup=100).compute_factor(50, 1000) == 0.5
    assert replace(LinearSchedule(), {"warmup": "0.25"}) == LinearSchedule(warmup=0.25)
    assert replace(LinearSchedule(), {"warmup": "500"}) == LinearSchedule(warmup=500)
    assert LinearSchedule(warmup=0).compute_factor(0, 10) == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: LinearSchedule(warmup=-1), r"warmup .*-1"),
        (lambda: LinearSchedule(warmup=1.5), r"warmup .*1\.5"),
        (lambda: Cosine(floor=1.5), r"floor .*1\.5"),
        (lambda: Stable(warmup=0.7, decay=0.5), r"warmup .*0\.7 .*0\.5"),
        (lambda: InverseSquareRoot(hold=-1), "hold .*-1"),
        (lambda: InverseSquareRoot(cooldown=2), "cooldown .*2"),
        (lambda: SlantedTriangular(cut=0.0), r"cut .*0\.0"),
        (lambda: SlantedTriangular(ratio=0.5), r"ratio .*0\.5"),
        (lambda: SlantedTriangular(restarts=(0.5, 0.25)), r"restarts .*0\.25"),
        (lambda: SlantedTriangular(restarts=(1.0,)), r"restarts .*1\.0"),
        (lambda: LinearSchedule(warmup=100).compute_factor(0, 100), r"\b100\b.*\b100\b"),
        (lambda: LinearSchedule().compute_factor(0, 0), r"got 0"),
        (lambda: SlantedTriangular().compute_factor(0, 0), r"got 0"),
    ],
)
def test_what_means_nothing_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrong()


# Papers


def test_slanted_triangles_are_the_papers() -> None:
    """Howard and Ruder (2018), equation 3, for a run whose cut is a whole step."""
    total, cut_frac, ratio = 1000, 0.1, 32
    cut = math.floor(total * cut_frac)
    for t in range(total + 1):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        assert SlantedTriangular().compute_factor(t, total) == pytest.approx((1 + p * (ratio - 1)) / ratio, abs=1e-12)


def test_inverse_square_roots_are_the_papers() -> None:
    noam, t5 = InverseSquareRoot(warmup=4000), InverseSquareRoot(hold=10_000)
    for step in (1, 10, 3999, 4000, 4001, 10_000, 50_000):
        vaswani = min(step**-0.5, step * 4000**-1.5) / 4000**-0.5
        assert noam.compute_factor(step, 10**5) == pytest.approx(vaswani)
        assert 0.01 * t5.compute_factor(step, 10**5) == pytest.approx(1 / math.sqrt(max(step, 10**4)))


def test_the_root_falls_as_published() -> None:
    """Hägele et al. (2024): 1 - √((n - N_decay_begin) / N_decay)."""
    schedule = Stable(warmup=0, decay=0.2, shape="root")
    for step in range(800, 1001, 20):
        assert schedule.compute_factor(step, 1000) == pytest.approx(1 - math.sqrt((step - 800) / 200), abs=1e-7)


@pytest.mark.parametrize("warmup", [0, 100])
def test_schedules_are_those_of_transformers(warmup: int) -> None:
    o = pytest.importorskip("transformers.optimization")
    run = {"num_warmup_steps": warmup, "num_training_steps": TOTAL}
    half = {**run, "num_cycles": 0.5}
    stable = {"num_warmup_steps": warmup, "num_stable_steps": TOTAL - warmup - 200, "num_decay_steps": 200}
    wsd = partial(o._get_wsd_scheduler_lambda, **stable, warmup_type="linear", min_lr_ratio=0.0, num_cycles=0.5)
    pairs = [
        (Constant(warmup=warmup), partial(o._get_constant_schedule_with_warmup_lr_lambda, num_warmup_steps=warmup)),
        (LinearSchedule(warmup=warmup), partial(o._get_linear_schedule_with_warmup_lr_lambda, **run)),
        (Cosine(warmup=warmup), partial(o._get_cosine_schedule_with_warmup_lr_lambda, **half)),
        (
            Cosine(warmup=warmup, floor=0.1),
            partial(o._get_cosine_schedule_with_warmup_lr_lambda, **half, min_lr_rate=0.1),
        ),
        (Stable(warmup=warmup, decay=0.2), partial(wsd, decay_type="linear")),
        (Stable(warmup=warmup, decay=0.2, shape="root"), partial(wsd, decay_type="1-sqrt")),
    ]
    if warmup:
        rooted = partial(o._get_inverse_sqrt_schedule_lr_lambda, num_warmup_steps=warmup, timescale=warmup)
        pairs.append((InverseSquareRoot(warmup=warmup), rooted))
    for ours, theirs in pairs:
        for step in range(TOTAL + 1):
            assert ours.compute_factor(step, TOTAL) == pytest.approx(theirs(step), abs=1e-7), (ours, step)


def test_a_restart_begins_another_triangle() -> None:
    """Of the length of its stage; the last ends with the run."""
    whole, staged = SlantedTriangular(), SlantedTriangular(restarts=(0.25, 0.5))
    for step in range(100):
        assert staged.compute_factor(step, 400) == pytest.approx(whole.compute_factor(step, 100))
        assert staged.compute_factor(100 + step, 400) == pytest.approx(whole.compute_factor(step, 100))
    for step in range(201):
        assert staged.compute_factor(200 + step, 400) == pytest.approx(whole.compute_factor(step, 200))
