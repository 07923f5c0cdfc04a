"""The page of a run: a table for each of words, BLiMP, fine-tuned tasks, learning curve, time and cost."""

from pathlib import Path
from typing import Any

NOTES = (
    "BabyLM's baselines of 2025 under the same limits (10M words, 100M seen) report 67.3 for GPT-2 and 71.7 for "
    "GPT-BERT with a causal focus, on BabyLM's own corpus and on its pipeline's selection of BLiMP. Here the text is "
    "other text, and all 67 sets of BLiMP are used: the numbers are no ranking. A tie counts as wrong."
)


def write_page(results: dict[str, Any], path: Path) -> None:
    """Write the results as Markdown."""
    words, blimp, cost, seconds = results["words"], results["blimp"], results["cost"], results["seconds"]
    phenomena = {
        name: (value, half) for half in ("development", "untouched") for name, value in blimp[half]["phenomena"].items()
    }
    ties, pairs = (sum(blimp[half][name] for half in ("development", "untouched")) for name in ("ties", "pairs"))
    lines = [
        "# Ten million words",
        "",
        f"BLiMP **{blimp['accuracy']:.1f}** on {blimp['sets']} sets, {seconds['total']:.0f} s from raw text to scores.",
        "",
        *_format_table(
            ("", ""),
            [
                (
                    "words of text",
                    f"{words['unique']:,} ({', '.join(f'{k}: {v:,}' for k, v in words['sources'].items())})",
                ),
                ("words seen", f"{words['seen']:,} ({results['epochs']:.3g} epochs)"),
                ("parameters, vocabulary", f"{results['parameters']:,}, {results['vocabulary']:,}"),
                ("seed", str(results["seed"])),
                *((f"validation {name}", f"{value:.4g}") for name, value in results["validation"].items()),
                *(("warning", text) for text in results["warnings"]),
            ],
        ),
        "## BLiMP by phenomenon",
        f"Scored {blimp['scoring']}, chosen by the development half "
        f"({', '.join(f'{name} {value:.1f}' for name, value in blimp['development_by_scoring'].items())}). "
        f"Development half {blimp['development']['accuracy']:.1f}, "
        f"untouched half {blimp['untouched']['accuracy']:.1f}; "
        f"{ties:,} ties in {pairs:,} pairs.",
        "",
        *_format_table(
            ("phenomenon", "accuracy", "half"),
            [(name, f"{value:.1f}", half) for name, (value, half) in sorted(phenomena.items())],
        ),
        NOTES,
        "",
        "## Fine-tuned tasks",
        *_format_table(
            ("task", "metric", "split", "score", "baselines"),
            [
                (name, task["metric"], task["split"], f"{task['score']:.4f}", _format_baselines(task["baselines"]))
                for name, task in results["finetuned"].items()
            ],
        ),
        "## Learning curve",
        *_format_table(
            ("step", "validation loss"), [(f"{point['step']:,}", f"{point['loss']:.4f}") for point in results["curve"]]
        ),
        "## Time and cost",
        *_format_table(("stage", "seconds"), [(name, f"{value:.1f}") for name, value in seconds.items()]),
        f"Pre-training on {cost['devices']} x {cost['device']}: {1000 * cost['kwh']:.3g} Wh ({cost['energy_label']}), "
        f"${cost['dollars']:.2f} ({cost['price_label']}).",
        "",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def _format_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)] + [""]


def _format_baselines(baselines: dict[str, float]) -> str:
    return ", ".join(f"{name} {score:.4f}" for name, score in baselines.items())
