"""Ten million words: raw text to a tokenizer, a language model, its BLiMP scores, and fine-tuned tasks, in one command.

    python examples/ten_million_words/run.py --data DIR --out runs/ten

DIR has the texts of the recipe below `corpora/` and the tasks below `tasks/`; other texts: `--text FILE=SHARE`.
The limits are those of BabyLM's strict-small track: at most 10M words of text, tokenizer and validation text included,
and at most 100M words seen in training. Words are counted here. `recipe.json` has the settings; `--recipe FILE`
replaces them. BLiMP's phenomena are in two halves (`blimp_halves.json`): recipes are chosen by the first and the
validation loss, the second is only reported. A tie counts as wrong. Writes `results.json`, `page.md` and `report.html`
to the output folder.
"""

# ruff: noqa: E402
import time

START_TIME = time.monotonic()  # the imports below take seconds too

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from corpus import MAX_WORDS, parse_source, write_corpus
from page import write_page

import pretune as pt
from pretune.evaluation.minimal_pairs import evaluate_minimal_pairs
from pretune.inference.scoring import ScoringConfig
from pretune.tasks import TASKS
from pretune.tasks.example import Example

FOLDER = Path(__file__).parent
MAX_EPOCHS = 10
"""Ten passes over at most 10M words are at most 100M words seen."""
SCORINGS = {"causal": (False,), "both sides": (True,), "sum": (False, True)}
"""Whether a token is predicted from both sides; the last adds the scores of both ways."""


class Stopwatch:
    """Seconds of each stage of the command."""

    def __init__(self) -> None:
        self.stage_time = START_TIME
        self.seconds: dict[str, float] = {}

    def finish(self, stage: str) -> None:
        """Record the end of a stage."""
        now = time.monotonic()
        self.seconds[stage], self.stage_time = round(now - self.stage_time, 2), now
        print(f"{stage}: {self.seconds[stage]} s", flush=True)


def write_text(
    data: Path, recipe: dict[str, Any], out: Path, *, words: int = MAX_WORDS, seed: int = 0
) -> dict[str, int]:
    """Select the text of a recipe; returns the words of each source."""
    return write_corpus(recipe["texts"], out, folder=data, words=words, seed=seed)


def prepare(text: Path, recipe: dict[str, Any], out: Path) -> Any:
    """Train the tokenizer and tokenize the text; 1 % of the documents are for validation."""
    tokenizer = pt.train_tokenizer(inputs=[text], **recipe["tokenizer"])
    return pt.prepare([text], tokenizer=tokenizer, out=out)


def pretrain(data: Any, recipe: dict[str, Any], out: Path, *, seed: int = 0, device: str | None = None) -> Any:
    """Train the model of a recipe."""
    if recipe["epochs"] > MAX_EPOCHS:
        raise SystemExit(f"{recipe['epochs']} epochs of 10M words are above the limit of 100M words seen")
    overrides = {**recipe["settings"], "train.seed": seed}
    objective = overrides.pop("objective")
    config = {"model": {"name": recipe["model"]}, "objective": objective}
    return pt.pretrain(
        config=config, data=data, epochs=recipe["epochs"], out=out, overrides=overrides, device=device,
        stop_early=recipe.get("stop_early", False),
    )  # fmt: skip


def read_blimp(tasks: Path, limit: int | None = None) -> dict[str, list[Example]]:
    """Return the pairs of each half; `limit` is the number of pairs of a set."""
    halves = json.loads((FOLDER / "blimp_halves.json").read_text())
    pairs: dict[str, list[Example]] = {"development": [], "untouched": []}
    counts: dict[str, int] = {}
    for example in TASKS.get("blimp").read("test", tasks):
        counts[str(example.group)] = counts.get(str(example.group), 0) + 1
        if limit is None or counts[str(example.group)] <= limit:
            half = "development" if example.facts["linguistics_term"] in halves["development"] else "untouched"
            pairs[half].append(example)
    return pairs


def evaluate_blimp(model: Any, pairs: list[Example], scoring: str) -> dict[str, Any]:
    """Return accuracy (mean over sets), number of sets and ties, and accuracy by phenomenon."""
    precision = "bfloat16" if next(model.parameters()).is_cuda else "float32"
    configs = [ScoringConfig(bidirectional=both_sides, precision=precision) for both_sides in SCORINGS[scoring]]
    result = evaluate_minimal_pairs(model, pairs, *configs)
    return {
        "accuracy": 100 * result.scores["accuracy"],
        "sets": result.counts["sets"],
        "pairs": result.counts["pairs"],
        "ties": result.counts["ties"],
        "phenomena": {name: 100 * value for name, value in result.groups.items()},
    }


def evaluate_all_blimp(model: Any, blimp: dict[str, list[Example]], scorings: list[str]) -> dict[str, Any]:
    """Choose the way of scoring by the development half, then evaluate the other half and average over all sets."""
    development = {name: evaluate_blimp(model, blimp["development"], name) for name in scorings}
    best = max(development, key=lambda name: float(development[name]["accuracy"]))
    halves = {"development": development[best], "untouched": evaluate_blimp(model, blimp["untouched"], best)}
    sets = sum(half["sets"] for half in halves.values())
    return {
        "accuracy": sum(half["accuracy"] * half["sets"] for half in halves.values()) / sets,
        "sets": sets,
        "scoring": best,
        "development_by_scoring": {name: half["accuracy"] for name, half in development.items()},
        **halves,
    }


def finetune(
    model: Path, task: str, tasks: Path, out: Path, recipe: dict[str, Any], device: str | None
) -> dict[str, Any]:
    """Fine-tune on a task, and return its scores."""
    tuning = recipe["finetune"]
    tuned = pt.finetune(
        model, task=task, data=tasks, out=out, epochs=tuning["epochs"], baselines=tuning["baselines"],
        overrides=tuning["settings"], device=device,
    )  # fmt: skip
    result = tuned.scores["result"]
    baselines = {row["name"]: row["score"] for row in tuned.scores["baselines"]}
    return {
        "metric": tuned.scores["metric"],
        "split": result["split"],
        "score": result["score"],
        "baselines": baselines,
    }


def finetune_all(names: list[str], tasks: Path, out: Path, recipe: dict[str, Any], device: str) -> dict[str, Any]:
    """Fine-tune on several tasks: side by side on a GPU, which a small task hardly uses, in turn on a CPU."""
    arguments = {name: (out / "model", name, tasks, out / name, recipe, device) for name in names}
    if device == "cpu" or len(names) < 2:
        return {name: finetune(*arguments[name]) for name in names}
    threads = max(1, torch.get_num_threads() // len(names))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(names), context, torch.set_num_threads, (threads,)) as pool:
        jobs = {name: pool.submit(finetune, *arguments[name]) for name in names}
        return {name: job.result() for name, job in jobs.items()}


def write_results(results: dict[str, Any], out: Path, watch: Stopwatch) -> None:
    """Write what is known: results.json and page.md."""
    results["seconds"] = {**watch.seconds, "total": round(time.monotonic() - START_TIME, 2)}
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    write_page(results, out / "page.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(), help="folder with the texts of the recipe, and tasks/")
    parser.add_argument(
        "--text", action="append", help="file or folder of text instead of the recipe's, with its share: FILE=0.5"
    )
    parser.add_argument("--tasks", type=Path, help="BLiMP and the fine-tuning tasks (default: DATA/tasks)")
    parser.add_argument("--recipe", type=Path, default=FOLDER / "recipe.json")
    parser.add_argument("--words", type=int, default=MAX_WORDS, help="words of text, at most 10M")
    parser.add_argument("--limit", type=int, help="pairs of each set of BLiMP (default: all 1,000)")
    parser.add_argument("--finetune", default="rte,mrpc,cola", help="tasks to fine-tune on, or none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recipe, out, watch = json.loads(options.recipe.read_text()), options.out, Stopwatch()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    tasks, texts = options.tasks or options.data / "tasks", options.data
    if options.text:
        recipe["texts"], texts = dict(map(parse_source, options.text)), Path()

    counts = write_text(texts, recipe, out / "text.txt", words=options.words, seed=options.seed)
    watch.finish("text")
    data = prepare(out / "text.txt", recipe, out / "data")
    watch.finish("tokenizer and data")
    run = pretrain(data, recipe, out / "model", seed=options.seed, device=device)
    watch.finish("pre-training")
    model = pt.load(run).to(device).eval()
    blimp = evaluate_all_blimp(model, read_blimp(tasks, options.limit), recipe["scorings"])
    del model
    watch.finish("BLiMP")
    words, epochs = sum(counts.values()), max(run.summary["epochs"].values())
    curve = [json.loads(line) for line in (out / "model" / "metrics.jsonl").read_text().splitlines()]
    results = {
        "words": {"unique": words, "seen": round(words * epochs), "sources": counts},
        "epochs": epochs,
        "parameters": run.summary["parameters"],
        "vocabulary": data.vocab,
        "validation": run.summary["held_out"],
        "warnings": run.summary["warnings"],
        "curve": [{"step": line["step"], **line["held_out"]} for line in curve if "held_out" in line],
        "blimp": blimp,
        "finetuned": {},
        "cost": run.summary["cost"],
        "seed": options.seed,
        "recipe": recipe,
    }
    assert results["words"]["seen"] <= 100_000_000, "more than 100M words seen"
    write_results(results, out, watch)  # so that nothing is lost if fine-tuning ends early
    names = [] if options.finetune == "none" else options.finetune.split(",")
    results["finetuned"] = finetune_all(names, tasks, out, recipe, device)
    watch.finish("fine-tuning")
    pt.report([out / "model", *(out / name for name in names)], out=out / "report.html")
    watch.finish("report")
    write_results(results, out, watch)
    seconds = results["seconds"]["total"]
    print(f"BLiMP {blimp['accuracy']:.1f} on {blimp['sets']} sets, {seconds:.0f} s in all: {out}/page.md")


if __name__ == "__main__":
    main()
