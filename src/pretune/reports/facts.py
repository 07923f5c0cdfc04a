"""What is known of a run as names and values: the rows that model cards and reports share.

A `tree` is what stands in run.json, a `summary` what a run says at its end, `scores` what stands in scores.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pretune.core.format import (
    COST_SPAN,
    TRAINING_TIME,
    format_count,
    format_dollars,
    format_duration,
    format_energy,
    format_kilograms,
    format_number,
)

Facts = Mapping[str, Any]
Rows = list[tuple[str, str]]
ARROW = " → "
"""Between a text and what a model makes of it."""
SPLITS = {
    "valid": "Validation text",
    "train": "Training text (no validation text was used)",
    "prompts": "Texts of `train.prompts`",
}
"""Sources of samples, as metrics.jsonl names them."""
HEADER = ("score", "interval", "better by", "p")


def build_pretraining_rows(tree: Facts, summary: Facts) -> Rows:
    """How a model was pre-trained, and how well."""
    train, held = tree["train"], summary.get("held_out") or {}
    return [
        ("parameters", f"{summary['parameters']:,}"),
        (
            "steps",
            f"{summary['steps']:,}, each of {format_count(train['batch_tokens'], 'tokens')}; {summary['skipped']:,} skipped",
        ),
        ("tokens read", f"{summary['tokens']:,}"),
        ("sequence length", format_lengths(tree["data"])),
        ("optimiser", format_optimizer(train)),
        ("seed", str(train["seed"])),
        *((f"held-out {term.replace('_', ' ')}", f"{value:.4g}") for term, value in held.items() if value is not None),
    ]


def format_lengths(data: Facts) -> str:
    """The longest sequence, after the shorter ones that came first."""
    short, longest = data.get("short"), data["max_length"]
    if longest is None:
        return "not stated"
    return f"{longest:,}" if short is None or short[1] >= longest else f"{short[1]:,} then {longest:,}"


def format_optimizer(train: Facts) -> str:
    """The optimiser, its rate and its schedule."""
    return f"{train['optimizer']['kind']}, peak rate {train['lr']:g}, {train['schedule']['kind']} schedule"


def build_finetuning_rows(tree: Facts, scores: Facts) -> Rows:
    """How a model was fine-tuned."""
    model, counts = scores["model"], scores["counts"]
    share = f"{model['trained']:,} of {model['parameters']:,} parameters trained"
    examples = format_count(counts["examples"], "examples")
    steps = f"{model['steps']:,}, each of {format_count(tree['train']['batch'], 'examples')}"
    return [
        ("method", f"{tree['method']['kind']}, {share} ({model['trained'] / model['parameters']:.2%})"),
        ("learning rate", f"{model['lr']:g}"),
        ("steps", f"{steps}; weights of step {model['best_step']:,}"),
        ("examples", format_examples(scores["examples"], scores.get("pool", {}))),
        ("longest", f"{format_count(counts['longest'], 'tokens')}; cut: {counts['cut']:,} of {examples}"),
    ]


def format_examples(counts: Mapping[str, int], pool: Mapping[str, int]) -> str:
    """The examples of each split that a run used, and how many they were drawn from where that is more.

    >>> format_examples({"train": 1000, "dev": 546, "test": 0}, {"train": 4907, "dev": 546})
    'train 1,000 of 4,907, dev 546'
    """
    return ", ".join(f"{split} {format_subset(count, pool.get(split))}" for split, count in counts.items() if count)


def format_subset(count: int, pool: int | None) -> str:
    """A number of examples, and how many they were drawn from.

    >>> format_subset(1000, 4907), format_subset(1000, 1000), format_subset(1000, None)
    ('1,000 of 4,907', '1,000', '1,000')
    """
    return f"{count:,}" if pool in (None, count) else f"{count:,} of {pool:,}"


def build_cost_rows(cost: Facts) -> Rows:
    """What a run cost, by name."""
    of = f" ({cost['mfu']:.1%} of the peak)" if cost["mfu"] else ""
    how = "; ".join(f"{part['what']}: {part['how']}" for part in cost["energy"])
    return [
        ("device", f"{cost['devices']} x {cost['device']}"),
        (TRAINING_TIME, format_duration(cost["seconds"])),
        ("FLOPs", f"{format_number(cost['flops'], billion='G')}FLOP{of}"),
        (
            "energy",
            f"{format_energy(cost['kwh'])} ({cost['energy_label']}; {how}; {COST_SPAN}, without {', '.join(cost['left_out'])})",
        ),
        ("CO2e", f"{format_kilograms(cost['co2e_kg'])} (at {cost['grid_g_per_kwh']:g} g/kWh)"),
        ("price", f"{format_dollars(cost['dollars'])} ({cost['price_label']})"),
    ]


def build_score_rows(scores: Facts) -> Iterator[tuple[str, ...]]:
    """The result and the baselines, one row each."""
    found, name = scores["result"], scores["metric"]
    yield f"this run ({name}, {found['split']})", f"{found['score']:.4f}", format_interval(found), "", ""
    for one in scores["baselines"]:
        gap = one["against"]
        yield one["name"], f"{one['score']:.4f}", "", format_difference(gap), f"{gap['p']:.3g}"


def format_interval(result: Facts) -> str:
    """The interval over seeds, and their standard deviation; nothing for one seed."""
    if any(result.get(name) is None for name in ("std", "low", "high")):
        return ""
    seeds = len(result.get("each", ()))
    return f"{result['low']:.4f} to {result['high']:.4f} ({seeds} seeds, std {result['std']:.4f})"


def format_difference(gap: Facts) -> str:
    """By how much a run is better, and the interval of that."""
    return f"{gap['difference']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})"


def build_notes(scores: Facts) -> Iterator[str]:
    """What has to be said beside the numbers."""
    yield from scores["notes"]
    if scores["not_run"]:
        absent: dict[str, list[str]] = {}
        for name, why in scores["not_run"].items():
            absent.setdefault(why, []).append(name)
        yield "not run: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in absent.items())
    for point in scores["curve"]:
        beside = ", ".join(f"{name} {value:.4f}" for name, value in point["baselines"].items())
        more = "; ".join(part for part in (format_interval(point), beside) if part)
        yield f"learnt from {format_count(point['labels'], 'labels')}: {point['score']:.4f}{f' ({more})' if more else ''}"
    if scores["forgetting"]:
        found = scores["forgetting"]
        yield (
            f"the pre-training loss went from {found['before']['loss']:.4f} to {found['after']['loss']:.4f}; weights "
            f"moved by {found['distance']:.2%} of their length"
        )


def collect_samples(lines: Iterable[Facts]) -> dict[str, list[tuple[int, str]]]:
    """What a model made of each text while it learnt, with the steps, out of the lines of metrics.jsonl.

    >>> collect_samples([{"step": 9, "sample": "a [MASK] → dog"}, {"step": 9, "loss": 3}, {"step": 20, "sample": "a [MASK] → ox"}])
    {'a [MASK]': [(9, 'dog'), (20, 'ox')]}
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for line in lines:
        if isinstance(text := line.get("sample"), str):
            read, _, answer = text.partition(ARROW)
            found.setdefault(read, []).append((line["step"], answer))
    return found


def describe_sample_source(lines: Iterable[Facts]) -> str:
    """Return the source of a run's samples; older runs did not record it.

    >>> describe_sample_source([{"step": 9, "loss": 3}, {"step": 9, "sample": "a [MASK] → dog", "split": "valid"}])
    'Validation text'
    """
    splits = dict.fromkeys(str(line.get("split")) for line in lines if "sample" in line)
    return ", ".join(SPLITS.get(split, "Text of a split that was not recorded") for split in splits)


def describe_splits(card: Facts) -> Iterator[str]:
    """How much text each split has."""
    for name, split in card["splits"].items():
        tokens, documents, size = (format_count(split[what], what) for what in ("tokens", "documents", "bytes"))
        yield f"{name}: {tokens} in {documents} ({size})"


def list_sources(card: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Where text came from, under which licence, and how much of it was trained on."""
    for one in card["sources"]:
        used = one.get("train", {})
        licence = one.get("licence") or "not stated"
        yield one["name"], licence, f"{used.get('documents', 0):,}", f"{used.get('tokens', 0):,}"
