"""Where fine-tuned models are wrong: which label for which, and the mistakes they were surest of."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.config import check_record
from pretune.core.errors import CheckpointError
from pretune.core.format import format_count
from pretune.reports.charts import Series, draw_line_chart
from pretune.reports.load import PREDICTIONS, RunRecord
from pretune.reports.markup import NO_MARKUP, Child, Markup, element, join, note, table
from pretune.training.records import GoldScore, GoldTags

Facts = Mapping[str, Any]
MAX_CLASSES = 12
"""As many as a matrix has room for; of more the most frequent mistakes are listed."""
GOLD_RECORDS: dict[str, type[Any]] = {"regression": GoldScore, "tagging": GoldTags}
MAX_EXAMPLES, MAX_CHARACTERS = 8, 300
MAX_DOTS = 400


def render_errors(runs: Sequence[RunRecord]) -> Markup:
    """For each run a matrix (or a list, or dots) and examples."""
    found = [(run, shown) for run in runs if run.scores and (shown := join(_render_run(run))).html]
    names = [element("h3", run.name) if len(found) > 1 else NO_MARKUP for run, _ in found]
    return join(part for name, (_, shown) in zip(names, found, strict=True) for part in (name, shown))


def _render_run(run: RunRecord) -> Iterator[Markup]:
    assert run.scores is not None
    split, kind = run.scores["result"]["split"], run.scores["kind"]
    said = [one for one in run.predictions if one.get("split") == split and one.get("gold") is not None]
    if not said:
        return
    if record := GOLD_RECORDS.get(kind):
        for one in said:
            check_record(record, one, CheckpointError, f"{run.path / PREDICTIONS} of a task of {kind}")
    if kind == "regression":
        yield from _render_scatter(said)
    elif kind == "tagging":
        yield from _render_tags(said)
    elif kind in ("classification", "pair", "choice"):
        yield from _render_classes(said, kind)
    else:
        yield from _render_texts(said)


def _render_classes(predictions: Sequence[Facts], kind: str) -> Iterator[Markup]:
    found = Counter((str(one["gold"]), str(one.get("label", one.get("text", "nothing")))) for one in predictions)
    names = sorted({name for pair in found for name in pair})
    wrong = [one for one in predictions if one["gold"] != one.get("label")]
    yield element("p", f"{len(predictions) - len(wrong):,} of {len(predictions):,} are right.")
    if kind != "choice":
        yield render_matrix(names, found) if len(names) <= MAX_CLASSES else _render_confusions(found)
    yield _render_examples(sorted(wrong, key=lambda one: (-_get_confidence(one), str(one.get("id")))))


def render_matrix(names: Sequence[str], counts: Mapping[tuple[str, str], int]) -> Markup:
    """Rows are what is right, columns what was said; the deeper the colour, the more of the row."""
    rows: list[tuple[Child, ...]] = []
    for gold in names:
        total = max(sum(counts.get((gold, said), 0) for said in names), 1)
        cells = [_render_cell(counts.get((gold, said), 0), total, is_correct=gold == said) for said in names]
        rows.append((gold, *cells))
    return table(("right ↓ said →", *names), rows, kind="confusion")


def _render_cell(count: int, total: int, *, is_correct: bool) -> Markup:
    colour = "c2" if is_correct else "c4"
    return element(
        "span", f"{count:,}", kind=f"cell {colour}", style=f"--v:{count / total:.3f}", title=f"{count / total:.1%}"
    )


def _render_confusions(counts: Mapping[tuple[str, str], int]) -> Markup:
    wrong = sorted(
        ((pair, count) for pair, count in counts.items() if pair[0] != pair[1]), key=lambda one: (-one[1], one[0])
    )
    return table(
        ("right", "said", "how often"), [(gold, said, f"{count:,}") for (gold, said), count in wrong[:MAX_CLASSES]]
    )


def _render_examples(errors: Sequence[Facts]) -> Markup:
    if not errors:
        return note("Nothing was wrong.")
    few = min(len(errors), MAX_EXAMPLES)
    about = note(f"{format_count(few, 'mistakes')} with the highest probability, of {len(errors):,}.")
    return join([about, *(_render_error(one) for one in errors[:MAX_EXAMPLES])])


def _render_error(prediction: Facts) -> Markup:
    sure = _get_confidence(prediction)
    share = f" ({_format_confidence(sure)} sure)" if sure else ""
    texts = [str(prediction[name]) for name in ("input", "pair") if prediction.get(name)]
    return element(
        "div",
        *(element("p", _truncate(text)) for text in texts),
        element(
            "p",
            "said ",
            element("b", _format_answer(prediction)),
            f"{share}, right is ",
            element("b", _format_gold(prediction)),
            kind="said",
        ),
        kind="mistake",
    )


def _render_scatter(predictions: Sequence[Facts]) -> Iterator[Markup]:
    points = [(float(one["gold"]), float(one["score"])) for one in predictions if "score" in one]
    if not points:
        return
    step = max(len(points) // MAX_DOTS, 1)
    ends = (min(x for x, _ in points), max(x for x, _ in points))
    dots = Series("examples", tuple(points[::step]), style="dots")
    yield draw_line_chart(
        [dots, Series("right", ((ends[0],) * 2, (ends[1],) * 2), (), 7, "dashed")], x="right", y="said"
    )
    worst = sorted(
        predictions, key=lambda one: (-abs(float(one["gold"]) - float(one.get("score", 0))), str(one.get("id")))
    )
    yield note(f"{format_count(min(len(worst), MAX_EXAMPLES), 'examples')} with the largest error.")
    yield join(_render_error({**one, "label": f"{one.get('score', 0):.3g}"}) for one in worst[:MAX_EXAMPLES])


def _render_tags(predictions: Sequence[Facts]) -> Iterator[Markup]:
    pairs = [pair for one in predictions for pair in zip(one["gold"], one.get("tags", ()), strict=False)]
    right = sum(gold == tag for gold, tag in pairs)
    yield element("p", f"{right:,} of {format_count(len(pairs), 'tags')} right.")
    yield _render_confusions(Counter((str(gold), str(tag)) for gold, tag in pairs))
    worst = sorted(
        predictions,
        key=lambda one: (
            -sum(a != b for a, b in zip(one["gold"], one.get("tags", ()), strict=False)),
            str(one.get("id")),
        ),
    )
    for one in worst[:MAX_EXAMPLES]:
        wrong = [
            f"{word}: {tag}, right is {gold}"
            for word, gold, tag in zip(one.get("words", ()), one["gold"], one.get("tags", ()), strict=False)
            if gold != tag
        ]
        if wrong:
            text = " ".join(map(str, one.get("words", ())))
            yield element(
                "div",
                element("p", _truncate(text)),
                element("p", _truncate("; ".join(wrong)), kind="said"),
                kind="mistake",
            )


def _render_texts(predictions: Sequence[Facts]) -> Iterator[Markup]:
    """Spans and written answers: those that are not word for word right."""
    wrong = [one for one in predictions if not _is_exact(one)]
    yield element("p", f"{len(predictions) - len(wrong):,} of {len(predictions):,} are right word for word.")
    yield join(_render_error(one) for one in wrong[:MAX_EXAMPLES])


def _is_exact(prediction: Facts) -> bool:
    gold = prediction["gold"] if isinstance(prediction["gold"], list) else [prediction["gold"]]
    text = " ".join(str(prediction.get("text", "")).lower().split())
    return text in [" ".join(str(answer).lower().split()) for answer in gold] or (not gold and not text)


def _format_answer(prediction: Facts) -> str:
    return _truncate(str(prediction.get("label", prediction.get("text") or "nothing")))


def _format_gold(prediction: Facts) -> str:
    gold = prediction["gold"]
    return _truncate((" / ".join(map(str, gold)) or "nothing") if isinstance(gold, list) else str(gold))


def _get_confidence(prediction: Facts) -> float:
    """The probability of what was said."""
    shares = prediction.get("probabilities")
    values = [*shares.values()] if isinstance(shares, Mapping) else shares if isinstance(shares, list) else []
    return max((float(value) for value in values if isinstance(value, int | float)), default=0.0)


def _format_confidence(confidence: float) -> str:
    """A probability that is not 1 is not rounded to it.

    >>> _format_confidence(0.9), _format_confidence(0.996)
    ('90%', 'more than 99%')
    """
    return "more than 99%" if 0.995 <= confidence < 1 else f"{confidence:.0%}"


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
