"""Section of a report: errors of fine-tuned models, as confusion matrix and most confident mistakes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretune.core.config import check_record
from pretune.core.errors import CheckpointError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir
from pretune.reports import Markup, element, join, note, table
from pretune.reports.charts import Series, draw_line_chart
from pretune.reports.facts import Facts
from pretune.reports.load import RunRecord
from pretune.tasks.types import TASK_TYPES
from pretune.training.records import GoldScore, GoldTags

MAX_CLASSES = 12
"""Maximum size of a confusion matrix; beyond it, the most frequent confusions are listed."""
GOLD_RECORDS: dict[str, type[Any]] = {"score": GoldScore, "tags": GoldTags, "tree": GoldTags, "labels": GoldTags}
MAX_EXAMPLES, MAX_CHARACTERS = 8, 300
MAX_DOTS = 400


def render_errors(runs: Sequence[RunRecord]) -> Markup:
    """Render a confusion matrix, list or scatter plot for each run, with examples."""
    sections = [(run.name, section) for run in runs if run.scores and (section := join(_render_run(run)))]
    if len(sections) == 1:
        return sections[0][1]
    return join(part for name, section in sections for part in (element("h3", name), section))


def _render_run(run: RunRecord) -> Iterator[Markup]:
    assert run.scores is not None
    split, kind = run.scores["result"]["split"], run.scores["kind"]
    gold = TASK_TYPES.get(kind).scoring.gold if kind in TASK_TYPES else "text"
    predictions = [row for row in run.predictions if row.get("split") == split and row.get("gold") is not None]
    if not predictions:
        return
    if record := GOLD_RECORDS.get(gold):
        for row in predictions:
            check_record(record, row, CheckpointError, f"{RunDir(run.path).predictions} of a task of {kind}")
    match gold:
        case "score":
            yield from _render_scatter(predictions)
        case "tags" | "tree":
            yield from _render_tags(predictions)
        case "class" | "option":
            yield from _render_classes(predictions, has_matrix=gold == "class")
        case "labels":
            yield from _render_label_sets(predictions)
        case "clusters":
            count = sum(row["gold"] == row.get("clusters") for row in predictions)
            yield element("p", f"{count:,} of {len(predictions):,} documents with all clusters correct.")
        case _:
            yield from _render_texts(predictions)


def _render_label_sets(predictions: Sequence[Facts]) -> Iterator[Markup]:
    """Render the counts of each label, and the predictions with the most wrong labels."""
    gold_sets, predicted_sets = ([{*map(str, row.get(name, ()))} for row in predictions] for name in ("gold", "labels"))
    wrong = [len(g ^ p) for g, p in zip(gold_sets, predicted_sets, strict=True)]
    yield element("p", f"{wrong.count(0):,} of {len(predictions):,} with all labels correct.")
    sizes = [Counter(name for names in sets for name in names) for sets in (gold_sets, predicted_sets)]
    right = Counter(name for g, p in zip(gold_sets, predicted_sets, strict=True) for name in g & p)
    rows = [(name, *(f"{counts[name]:,}" for counts in (*sizes, right))) for name in sorted({*sizes[0], *sizes[1]})]
    yield table(("label", "gold", "predicted", "correct"), rows)
    order = sorted((i for i, count in enumerate(wrong) if count), key=lambda i: (-wrong[i], i))
    answers = {i: " / ".join(sorted(predicted_sets[i])) or "(empty)" for i in order[:MAX_EXAMPLES]}
    yield join(_render_error({**predictions[i], "label": text, "probabilities": {}}) for i, text in answers.items())


def _render_classes(predictions: Sequence[Facts], *, has_matrix: bool) -> Iterator[Markup]:
    pair_counts = Counter((str(row["gold"]), str(row.get("label", row.get("text", "(empty)")))) for row in predictions)
    names = sorted({name for pair in pair_counts for name in pair})
    wrong = [row for row in predictions if row["gold"] != row.get("label")]
    yield element("p", f"{len(predictions) - len(wrong):,} of {len(predictions):,} correct.")
    if has_matrix:
        yield render_matrix(names, pair_counts) if len(names) <= MAX_CLASSES else _render_confusions(pair_counts)
    yield _render_examples(sorted(wrong, key=lambda row: (-_get_confidence(row), str(row.get("id")))))


def render_matrix(names: Sequence[str], counts: Mapping[tuple[str, str], int]) -> Markup:
    """Render a confusion matrix; rows are gold labels, columns predictions, and colour is the share of the row."""
    rows = []
    for gold in names:
        row = {answer: counts.get((gold, answer), 0) for answer in names}
        shares = {answer: count / max(sum(row.values()), 1) for answer, count in row.items()}
        cells = [
            element(
                "span",
                f"{count:,}",
                kind="cell c2" if answer == gold else "cell c4",
                style=f"--v:{shares[answer]:.3f}",
                title=f"{shares[answer]:.1%}",
            )
            for answer, count in row.items()
        ]
        rows.append((gold, *cells))
    return table(("gold ↓ predicted →", *names), rows, kind="confusion")


def _render_confusions(counts: Mapping[tuple[str, str], int]) -> Markup:
    wrong = [(-count, gold, answer) for (gold, answer), count in counts.items() if gold != answer]
    rows = [(gold, answer, f"{-count:,}") for count, gold, answer in sorted(wrong)[:MAX_CLASSES]]
    return table(("gold", "predicted", "count"), rows)


def _render_examples(errors: Sequence[Facts]) -> Markup:
    if not errors:
        return note("No errors.")
    count = min(len(errors), MAX_EXAMPLES)
    about = note(f"{format_count(count, 'errors')} with the highest confidence, of {len(errors):,}.")
    return join([about, *(_render_error(row) for row in errors[:MAX_EXAMPLES])])


def _render_error(prediction: Facts) -> Markup:
    confidence = _get_confidence(prediction)
    share = f" ({_format_confidence(confidence)})" if confidence else ""
    answer, gold = element("b", _format_answer(prediction)), element("b", _format_gold(prediction))
    texts = [str(prediction[name]) for name in ("input", "pair") if prediction.get(name)]
    return _render_mistake(*texts, answer=join(["predicted ", answer, f"{share}, gold ", gold]))


def _render_mistake(*texts: str, answer: str) -> Markup:
    lines = [element("p", _truncate(text)) for text in texts]
    return element("div", *lines, element("p", answer, kind="said"), kind="mistake")


def _render_scatter(predictions: Sequence[Facts]) -> Iterator[Markup]:
    points = [(float(row["gold"]), float(row["score"])) for row in predictions if "score" in row]
    if not points:
        return
    step = max(len(points) // MAX_DOTS, 1)
    ends = tuple((gold, gold) for gold in (min(points)[0], max(points)[0]))
    dots, diagonal = Series("examples", tuple(points[::step]), style="dots"), Series("gold", ends, (), 7, "dashed")
    yield draw_line_chart([dots, diagonal], x="gold", y="predicted")
    gaps = [(-abs(float(row["gold"]) - float(row.get("score", 0))), str(row.get("id"))) for row in predictions]
    worst = [predictions[i] for i in sorted(range(len(gaps)), key=gaps.__getitem__)]
    yield note(f"{format_count(min(len(worst), MAX_EXAMPLES), 'examples')} with the largest error.")
    yield join(_render_error({**row, "label": f"{row.get('score', 0):.3g}"}) for row in worst[:MAX_EXAMPLES])


def _render_tags(predictions: Sequence[Facts]) -> Iterator[Markup]:
    pairs = [[*zip(row["gold"], row.get("tags", row.get("relations", ())), strict=False)] for row in predictions]
    counts = Counter((str(gold), str(tag)) for row_pairs in pairs for gold, tag in row_pairs)
    errors = [sum(gold != tag for gold, tag in row_pairs) for row_pairs in pairs]
    total = sum(map(len, pairs))
    yield element("p", f"{total - sum(errors):,} of {format_count(total, 'tags')} correct.")
    yield _render_confusions(counts)
    worst = sorted(range(len(errors)), key=lambda place: (-errors[place], str(predictions[place].get("id"))))
    for place in worst[:MAX_EXAMPLES]:
        words = [*map(str, predictions[place].get("words", ()))]
        word_pairs = zip(words, pairs[place], strict=False)
        if wrong := [f"{word}: {tag}, gold {gold}" for word, (gold, tag) in word_pairs if gold != tag]:
            yield _render_mistake(" ".join(words), answer=_truncate("; ".join(wrong)))


def _render_texts(predictions: Sequence[Facts]) -> Iterator[Markup]:
    """Render span and text answers that do not match the gold answer exactly, or those with the lowest rewards."""
    rewards = [row.get("score") for row in predictions]
    if all(isinstance(reward, int | float) for reward in rewards):
        worst = sorted(predictions, key=lambda row: (float(row["score"]), str(row.get("id"))))[:MAX_EXAMPLES]
        yield note(f"{format_count(len(worst), 'answers')} with the lowest rewards, of {len(predictions):,}.")
        yield join(
            _render_error({**row, "label": f"{row.get('text', '')} (reward {row['score']:.3g})"}) for row in worst
        )
        return
    wrong = [row for row in predictions if not _is_exact(row)]
    yield element("p", f"{len(predictions) - len(wrong):,} of {len(predictions):,} match exactly.")
    yield join(_render_error(row) for row in wrong[:MAX_EXAMPLES])


def _is_exact(prediction: Facts) -> bool:
    gold = prediction["gold"] if isinstance(prediction["gold"], list) else [prediction["gold"]]
    text = " ".join(str(prediction.get("text", "")).lower().split())
    return text in [" ".join(str(answer).lower().split()) for answer in gold] or (not gold and not text)


def _format_answer(prediction: Facts) -> str:
    return _truncate(str(prediction.get("label", prediction.get("text") or "(empty)")))


def _format_gold(prediction: Facts) -> str:
    gold = prediction["gold"]
    return _truncate((" / ".join(map(str, gold)) or "(empty)") if isinstance(gold, list) else str(gold))


def _get_confidence(prediction: Facts) -> float:
    """Return the probability of the prediction."""
    shares = prediction.get("probabilities")
    values = [*shares.values()] if isinstance(shares, Mapping) else shares if isinstance(shares, list) else []
    return max((float(value) for value in values if isinstance(value, int | float)), default=0.0)


def _format_confidence(confidence: float) -> str:
    """Format a probability; values below 1 are not rounded to 100%.

    >>> _format_confidence(0.9), _format_confidence(0.996)
    ('90%', 'more than 99%')
    """
    return "more than 99%" if 0.995 <= confidence < 1 else f"{confidence:.0%}"


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
