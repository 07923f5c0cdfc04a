"""Dividing examples: a stratified, seeded order, of which every beginning is as mixed as the whole.

    train, dev = divide(examples, (0.9, 0.1), seed=0)
    fifty, more = subset(train, 50, seed=0), subset(train, 200, seed=0)      # the 50 are among the 200

The order follows the quota method of Balinski and Young (1975), made to share out seats: in the first n examples, for
every n, a class of share p has n x p examples, rounded up or down. Within a class the order is random, by the seed.
"""

from collections.abc import Sequence

from pretune.core.errors import DataError, UsageError
from pretune.core.seed import mix
from pretune.tasks.example import Example

_NUM_BINS = 5  # of a regression's scores: as many strata, equally full


def order_stratified(strata: Sequence[int | str], seed: int = 0) -> list[int]:
    """Indices in an order of which every beginning has each stratum's share, to within one.

    >>> ["aaabaaab"[at] for at in order_stratified("aaabaaab")]
    ['a', 'a', 'a', 'b', 'a', 'a', 'a', 'b']
    """
    waiting: dict[int | str, list[int]] = {}
    for at in sorted(range(len(strata)), key=lambda at: mix(seed, at)):
        waiting.setdefault(strata[at], []).append(at)
    names = sorted(waiting, key=str)
    total, taken = len(strata), dict.fromkeys(names, 0)
    sizes = {name: len(waiting[name]) for name in names}
    found: list[int] = []
    for seats in range(1, total + 1):
        allowed = [name for name in names if taken[name] * total < seats * sizes[name]]
        chosen = max(allowed, key=lambda name: sizes[name] / (taken[name] + 1))
        found.append(waiting[chosen][taken[chosen]])
        taken[chosen] += 1
    return found


def compute_strata(examples: Sequence[Example]) -> list[int | str]:
    """What examples are mixed by: their class, a fifth of the scores, or nothing at all."""
    labels = [example.label for example in examples]
    if any(isinstance(label, float) for label in labels):
        ranked = sorted(range(len(labels)), key=lambda at: float(labels[at] or 0))
        bins = [0] * len(labels)
        for rank, at in enumerate(ranked):
            bins[at] = rank * _NUM_BINS // len(labels)
        return [*bins]
    if any(example.choices for example in examples):
        return [0] * len(labels)  # the place of the right choice means nothing
    return ["" if label is None else int(label) for label in labels]


def sample_subset(
    examples: Sequence[Example], count: int, seed: int = 0, groups: Sequence[str | None] | None = None
) -> list[Example]:
    """`count` examples, stratified, in their old order; those of a smaller count are among those of a larger.

    With `groups`, one for each example (None: it stands alone), whole groups are drawn: as many as `count` has room
    for, and at least one.
    """
    if count < 1:
        raise UsageError(f"a subset needs 1 example or more, found {count}")
    if groups is None:
        return [examples[at] for at in sorted(order_stratified(compute_strata(examples), seed)[:count])]
    units: dict[object, list[int]] = {}
    for at, group in enumerate(groups):
        units.setdefault(at if group is None else group, []).append(at)
    drawn: list[int] = []
    members = [*units.values()]
    for place in order_stratified([0] * len(members), seed):
        if drawn and len(drawn) + len(members[place]) > count:
            break
        drawn += members[place]
    return [examples[at] for at in sorted(drawn)]


def divide(
    examples: Sequence[Example], shares: Sequence[float], seed: int = 0, group_field: str | None = None
) -> list[list[Example]]:
    """The examples in parts of these shares, each part in the old order; no example is lost or given twice.

    Each part is stratified to within one example a class, out of what the parts before it left. With `together`,
    the name of a field, examples that agree in it stay in one part; then groups are shared out, not examples.
    """
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise UsageError(f"shares must be above 0 and have the sum 1, found {', '.join(map(str, shares))}")
    units = _group_indices(examples, group_field)
    if len(units) < len(shares):
        what = "examples" if group_field is None else f"different values of '{group_field}'"
        raise DataError(f"{len(units)} {what} cannot be divided into {len(shares)} parts; give more data")
    kinds: list[int | str] = [0] * len(units) if group_field else compute_strata(examples)
    left = list(range(len(units)))
    parts: list[list[Example]] = []
    for place, share in enumerate(shares):
        last = place == len(shares) - 1
        room = len(left) - (len(shares) - place - 1)  # every later part gets something
        count = len(left) if last else max(1, min(room, round(share * len(units))))
        chosen = [left[at] for at in order_stratified([kinds[unit] for unit in left], mix(seed, place))[:count]]
        parts.append([examples[at] for at in sorted(at for unit in chosen for at in units[unit])])
        gone = set(chosen)
        left = [unit for unit in left if unit not in gone]
    return parts


def _group_indices(examples: Sequence[Example], group_field: str | None) -> list[list[int]]:
    """What may not be parted: indices of examples that agree in a field."""
    if group_field is None:
        return [[at] for at in range(len(examples))]
    found: dict[object, list[int]] = {}
    for at, example in enumerate(examples):
        found.setdefault(getattr(example, group_field), []).append(at)
    return [*found.values()]
