"""Where fine-tuned models are wrong: which label for which, and the mistakes they were surest of."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.config import check_record
from pretune.core.counted import counted
from pretune.core.errors import CheckpointError
from pretune.reports.charts import Series, line_chart
from pretune.reports.load import PREDICTIONS, Ran
from pretune.reports.markup import NOTHING, Child, Markup, element, joined, note, table
from pretune.training.records import RightScore, RightTags

Facts = Mapping[str, Any]
CLASSES = 12
"""As many as a matrix has room for; of more the most frequent mistakes are listed."""
GOLD: dict[str, type[Any]] = {"regression": RightScore, "tagging": RightTags}
MISTAKES, SHOWN = 8, 300
DOTS = 400


def mistakes(runs: Sequence[Ran]) -> Markup:
    """For each run a matrix (or a list, or dots) and examples."""
    found = [(run, shown) for run in runs if run.scores and (shown := joined(_of(run))).html]
    names = [element("h3", run.name) if len(found) > 1 else NOTHING for run, _ in found]
    return joined(part for name, (_, shown) in zip(names, found, strict=True) for part in (name, shown))


def _of(run: Ran) -> Iterator[Markup]:
    assert run.scores is not None
    split, kind = run.scores["result"]["split"], run.scores["kind"]
    said = [one for one in run.said if one.get("split") == split and one.get("gold") is not None]
    if not said:
        return
    if record := GOLD.get(kind):
        for one in said:
            check_record(record, one, CheckpointError, f"{run.path / PREDICTIONS} of a task of {kind}")
    if kind == "regression":
        yield from _scattered(said)
    elif kind == "tagging":
        yield from _tags(said)
    elif kind in ("classification", "pair", "choice"):
        yield from _classes(said, kind)
    else:
        yield from _texts(said)


def _classes(said: Sequence[Facts], kind: str) -> Iterator[Markup]:
    found = Counter((str(one["gold"]), str(one.get("label", one.get("text", "nothing")))) for one in said)
    names = sorted({name for pair in found for name in pair})
    wrong = [one for one in said if one["gold"] != one.get("label")]
    yield element("p", f"{len(said) - len(wrong):,} of {len(said):,} are right.")
    if kind != "choice":
        yield matrix(names, found) if len(names) <= CLASSES else _confusions(found)
    yield _examples(sorted(wrong, key=lambda one: (-_sure(one), str(one.get("id")))))


def matrix(names: Sequence[str], found: Mapping[tuple[str, str], int]) -> Markup:
    """Rows are what is right, columns what was said; the deeper the colour, the more of the row."""
    rows: list[tuple[Child, ...]] = []
    for gold in names:
        total = max(sum(found.get((gold, said), 0) for said in names), 1)
        cells = [_cell(found.get((gold, said), 0), total, right=gold == said) for said in names]
        rows.append((gold, *cells))
    return table(("right ↓ said →", *names), rows, kind="confusion")


def _cell(count: int, total: int, *, right: bool) -> Markup:
    colour = "c2" if right else "c4"
    return element(
        "span", f"{count:,}", kind=f"cell {colour}", style=f"--v:{count / total:.3f}", title=f"{count / total:.1%}"
    )


def _confusions(found: Mapping[tuple[str, str], int]) -> Markup:
    wrong = sorted(
        ((pair, count) for pair, count in found.items() if pair[0] != pair[1]), key=lambda one: (-one[1], one[0])
    )
    return table(
        ("right", "said", "how often"), [(gold, said, f"{count:,}") for (gold, said), count in wrong[:CLASSES]]
    )


def _examples(wrong: Sequence[Facts]) -> Markup:
    if not wrong:
        return note("Nothing was wrong.")
    few = min(len(wrong), MISTAKES)
    about = note(f"{counted(few, 'mistakes')} with the highest probability, of {len(wrong):,}.")
    return joined([about, *(_mistake(one) for one in wrong[:MISTAKES])])


def _mistake(one: Facts) -> Markup:
    sure = _sure(one)
    share = f" ({_share(sure)} sure)" if sure else ""
    texts = [str(one[name]) for name in ("input", "pair") if one.get(name)]
    return element(
        "div",
        *(element("p", _cut(text)) for text in texts),
        element("p", "said ", element("b", _answer(one)), f"{share}, right is ", element("b", _gold(one)), kind="said"),
        kind="mistake",
    )


def _scattered(said: Sequence[Facts]) -> Iterator[Markup]:
    points = [(float(one["gold"]), float(one["score"])) for one in said if "score" in one]
    if not points:
        return
    step = max(len(points) // DOTS, 1)
    ends = (min(x for x, _ in points), max(x for x, _ in points))
    dots = Series("examples", tuple(points[::step]), style="dots")
    yield line_chart([dots, Series("right", ((ends[0],) * 2, (ends[1],) * 2), (), 7, "dashed")], x="right", y="said")
    worst = sorted(said, key=lambda one: (-abs(float(one["gold"]) - float(one.get("score", 0))), str(one.get("id"))))
    yield note(f"{counted(min(len(worst), MISTAKES), 'examples')} with the largest error.")
    yield joined(_mistake({**one, "label": f"{one.get('score', 0):.3g}"}) for one in worst[:MISTAKES])


def _tags(said: Sequence[Facts]) -> Iterator[Markup]:
    pairs = [pair for one in said for pair in zip(one["gold"], one.get("tags", ()), strict=False)]
    right = sum(gold == tag for gold, tag in pairs)
    yield element("p", f"{right:,} of {counted(len(pairs), 'tags')} right.")
    yield _confusions(Counter((str(gold), str(tag)) for gold, tag in pairs))
    worst = sorted(
        said,
        key=lambda one: (
            -sum(a != b for a, b in zip(one["gold"], one.get("tags", ()), strict=False)),
            str(one.get("id")),
        ),
    )
    for one in worst[:MISTAKES]:
        wrong = [
            f"{word}: {tag}, right is {gold}"
            for word, gold, tag in zip(one.get("words", ()), one["gold"], one.get("tags", ()), strict=False)
            if gold != tag
        ]
        if wrong:
            text = " ".join(map(str, one.get("words", ())))
            yield element(
                "div", element("p", _cut(text)), element("p", _cut("; ".join(wrong)), kind="said"), kind="mistake"
            )


def _texts(said: Sequence[Facts]) -> Iterator[Markup]:
    """Spans and written answers: those that are not word for word right."""
    wrong = [one for one in said if not _same(one)]
    yield element("p", f"{len(said) - len(wrong):,} of {len(said):,} are right word for word.")
    yield joined(_mistake(one) for one in wrong[:MISTAKES])


def _same(one: Facts) -> bool:
    gold = one["gold"] if isinstance(one["gold"], list) else [one["gold"]]
    text = " ".join(str(one.get("text", "")).lower().split())
    return text in [" ".join(str(answer).lower().split()) for answer in gold] or (not gold and not text)


def _answer(one: Facts) -> str:
    return _cut(str(one.get("label", one.get("text") or "nothing")))


def _gold(one: Facts) -> str:
    gold = one["gold"]
    return _cut((" / ".join(map(str, gold)) or "nothing") if isinstance(gold, list) else str(gold))


def _sure(one: Facts) -> float:
    """The probability of what was said."""
    shares = one.get("probabilities")
    values = [*shares.values()] if isinstance(shares, Mapping) else shares if isinstance(shares, list) else []
    return max((float(value) for value in values if isinstance(value, int | float)), default=0.0)


def _share(sure: float) -> str:
    """A probability that is not 1 is not rounded to it.

    >>> _share(0.9), _share(0.996)
    ('90%', 'more than 99%')
    """
    return "more than 99%" if 0.995 <= sure < 1 else f"{sure:.0%}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
