"""Facts of a run as (name, value) rows, shared by model cards and reports.

`tree` is the content of run.json, `summary` that of the run's end, `scores` that of scores.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pretune.core.log import (
    COST_SPAN,
    TRAINING_TIME,
    format_count,
    format_dollars,
    format_duration,
    format_energy,
    format_examples,
    format_kilograms,
    format_number,
)

Facts = Mapping[str, Any]
Rows = list[tuple[str, str]]
ARROW = " → "
"""Separator between a sample's input and output."""
MAX_NUMBER = 1e100
SPLITS = {
    "valid": "Validation text",
    "train": "Training text (no validation text)",
    "prompts": "Texts of `train.prompts`",
}
"""Sources of samples, as metrics.jsonl names them."""
SCORE_HEADER = ("score", "interval", "better by", "p")
SOURCE_HEADER = ("source", "licence", "documents", "tokens")


def is_number(value: object) -> bool:
    """Return whether a value of a file is a number that can be drawn and averaged."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def build_pretraining_rows(tree: Facts, summary: Facts) -> Rows:
    """Return rows on pre-training: steps, tokens, optimizer, validation loss."""
    train, validation, unigram_loss = tree["train"], summary.get("held_out") or {}, summary.get("unigram_loss")
    return [
        ("parameters", f"{summary['parameters']:,}"),
        (
            "steps",
            f"{summary['steps']:,} of at most {format_count(train['batch_tokens'], 'tokens')}; "
            f"{summary['skipped']:,} skipped",
        ),
        ("tokens", f"{summary['tokens']:,}"),
        ("sequence length", format_lengths(tree["data"])),
        ("optimizer", format_optimizer(train)),
        ("seed", str(train["seed"])),
        *(
            (f"validation {term.replace('_', ' ')}", f"{value:.4g}")
            for term, value in validation.items()
            if value is not None
        ),
        *([] if unigram_loss is None else [("unigram loss", f"{unigram_loss:.4g}")]),
        *_build_early_stopping_rows(train, summary),
        *([("warning", ". ".join(summary["warnings"]))] if summary.get("warnings") else []),
    ]


def _build_early_stopping_rows(train: Facts, summary: Facts) -> Rows:
    """Return a row on the best weights of a run with early stopping."""
    if not train.get("patience") or summary.get("best_step") is None:
        return []
    return [("early stopping", f"weights of step {summary['best_step']:,}; patience {train['patience']} evaluations")]


def format_lengths(data: Facts) -> str:
    """Format the sequence length, after the shorter length of the first phase."""
    short, longest = data.get("length_schedule"), data["max_length"]
    if longest is None:
        return "not stated"
    return f"{longest:,}" if short is None or short[1] >= longest else f"{short[1]:,} then {longest:,}"


def format_optimizer(train: Facts) -> str:
    """Format the optimizer, its peak learning rate and its schedule."""
    return f"{train['optimizer']['kind']}, peak learning rate {train['lr']:g}, {train['schedule']['kind']} schedule"


def build_finetuning_rows(tree: Facts, scores: Facts) -> Rows:
    """Return rows on fine-tuning: method, learning rate, steps, examples, lengths."""
    model, counts = scores["model"], scores["counts"]
    share = f"{model['trained']:,} of {model['parameters']:,} parameters trainable"
    examples = format_count(counts["examples"], "examples")
    steps = f"{model['steps']:,}, each of {format_count(tree['train']['batch'], 'examples')}"
    return [
        ("method", f"{tree['method']['kind']}, {share} ({model['trained'] / model['parameters']:.2%})"),
        ("learning rate", f"{model['lr']:g}"),
        ("steps", f"{steps}; best at step {model['best_step']:,}"),
        ("examples", format_examples(scores["examples"], scores.get("pool", {}))),
        ("longest input", f"{format_count(counts['longest'], 'tokens')}; truncated: {counts['cut']:,} of {examples}"),
    ]


def build_cost_rows(cost: Facts) -> Rows:
    """Return rows on cost: device, time, FLOPs, energy, CO2e, price."""
    share = f" ({cost['mfu']:.1%} of peak)" if cost["mfu"] else ""
    method = "; ".join(f"{part['what']}: {part['how']}" for part in cost["energy"])
    return [
        ("device", f"{cost['devices']} x {cost['device']}"),
        (TRAINING_TIME, format_duration(cost["seconds"])),
        ("FLOPs", f"{format_number(cost['flops'], billion='G')}FLOP{share}"),
        (
            "energy",
            f"{format_energy(cost['kwh'])} ({cost['energy_label']}; {method}; {COST_SPAN}, "
            f"without {', '.join(cost['left_out'])})",
        ),
        ("CO2e", f"{format_kilograms(cost['co2e_kg'])} (at {cost['grid_g_per_kwh']:g} g/kWh)"),
        ("price", f"{format_dollars(cost['dollars'])} ({cost['price_label']})"),
    ]


def build_score_table(scores: Facts) -> list[tuple[str, ...]]:
    """Return a table with a header, a row for the run and one for each baseline, without empty columns."""
    result, name = scores["result"], scores["metric"]
    rows = [(f"this run ({name}, {result['split']})", f"{result['score']:.4f}", format_interval(result), "", "")]
    for baseline in scores["baselines"]:
        gap = baseline["against"]
        rows.append((baseline["name"], f"{baseline['score']:.4f}", "", format_difference(gap), f"{gap['p']:.3g}"))
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows)]
    return [tuple(row[column] for column in columns) for row in (("", *SCORE_HEADER), *rows)]


def format_interval(result: Facts) -> str:
    """Format the confidence interval over seeds and their standard deviation; empty for one seed."""
    if any(result.get(name) is None for name in ("std", "low", "high")):
        return ""
    seeds = len(result.get("each", ()))
    return f"{result['low']:.4f} to {result['high']:.4f} ({seeds} seeds, std {result['std']:.4f})"


def format_difference(gap: Facts) -> str:
    """Format the difference to a baseline with its confidence interval."""
    return f"{gap['difference']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})"


def build_notes(scores: Facts) -> Iterator[str]:
    """Yield notes on the scores: skipped baselines, learning curve, forgetting."""
    yield from scores["notes"]
    if scores["not_run"]:
        absent: dict[str, list[str]] = {}
        for name, reason in scores["not_run"].items():
            absent.setdefault(reason, []).append(name)
        yield "not run: " + "; ".join(f"{', '.join(names)} ({reason})" for reason, names in absent.items())
    for point in scores["curve"]:
        baselines = ", ".join(f"{name} {value:.4f}" for name, value in point["baselines"].items())
        details = "; ".join(part for part in (format_interval(point), baselines) if part)
        size = format_count(point["labels"], "examples")
        yield f"trained on {size}: {point['score']:.4f}{f' ({details})' if details else ''}"
    if scores["forgetting"]:
        forgetting = scores["forgetting"]
        yield (
            f"pre-training loss: {forgetting['before']['loss']:.4f} before, {forgetting['after']['loss']:.4f} after; "
            f"relative weight change {forgetting['distance']:.2%}"
        )


def collect_samples(lines: Iterable[Facts]) -> dict[str, list[tuple[int, str]]]:
    """Group the samples in metrics.jsonl by text, with their steps.

    >>> lines = [{"step": 9, "sample": "a [MASK] → dog"}, {"step": 9, "loss": 3}]
    >>> collect_samples([*lines, {"step": 20, "sample": "a [MASK] → ox"}])
    {'a [MASK]': [(9, 'dog'), (20, 'ox')]}
    """
    samples: dict[str, list[tuple[int, str]]] = {}
    for line in lines:
        if isinstance(text := line.get("sample"), str):
            read, _, answer = text.partition(ARROW)
            samples.setdefault(read, []).append((line["step"], answer))
    return samples


def describe_sample_source(lines: Iterable[Facts]) -> str:
    """Return the source of a run's samples; older runs did not record it.

    >>> describe_sample_source([{"step": 9, "loss": 3}, {"step": 9, "sample": "a [MASK] → dog", "split": "valid"}])
    'Validation text'
    """
    splits = dict.fromkeys(str(line.get("split")) for line in lines if "sample" in line)
    return ", ".join(SPLITS.get(split, "Text of an unknown split") for split in splits)


def describe_splits(card: Facts) -> Iterator[str]:
    """Yield the size of each split."""
    for name, split in card["splits"].items():
        tokens, documents, size = (format_count(split[unit], unit) for unit in ("tokens", "documents", "bytes"))
        yield f"{name}: {tokens} in {documents} ({size})"


def list_sources(card: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Yield the sources of the training text: name, licence, documents, tokens."""
    for source in card["sources"]:
        counts = source.get("train", {})
        licence = source.get("licence") or "not stated"
        yield source["name"], licence, f"{counts.get('documents', 0):,}", f"{counts.get('tokens', 0):,}"
