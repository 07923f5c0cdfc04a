"""What ten minutes of two cores buy: film reviews with 200 and 1,000 labels, with and without pre-training.

    python -m bench.quality.ten_minutes --work runs/ten [--scratch 8m] [--continued 6m] [--read dev]

Rows: random weights (`--method from-scratch`), the same model pre-trained (`pretune pretrain encoder --text …`), the
installed encoder, the same encoder trained further (`--from minilm`), and TF-IDF with an SVM. Small models are
fine-tuned by the defaults of `pretune finetune`; the installed encoder, for which they take four minutes and more, by
the shorter settings of the quick start, before and after. All have the same training reviews, which each seed draws
anew, and 100 more for dev, and are scored on the same 1,000 short reviews: those of the quick start (test), or others
on which settings are chosen (dev). The unlabelled text is that of the other reviews of the package, long ones of IMDb
included (`--text short`: without them): neither those of test nor those of dev are in it.

Each result is a JSON line of `results.jsonl` with its seconds; what has a line is not repeated.
"""

import argparse
import csv
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import common
from pretune.evaluation.baselines.texts import SVM
from pretune.runs.quickstart import QuickstartPlan, read_reviews
from pretune.tasks.example import Example
from pretune.tasks.task import sample_subset
from pretune.text.corpora.builtin import Reviews

READ = 1000
"""Reviews of test, and of dev."""
DEV = 100
"""Reviews that select the best step of fine-tuning."""
NAMES = ("negative", "positive")
ENCODER = "minilm"
PRETRAINED: Mapping[str, tuple[str, ...]] = {"scratch": (), "continued": ("--from", ENCODER)}
"""Options of the rows that are pre-trained here."""
ROWS: Mapping[str, tuple[str, ...]] = {
    "svm": (),
    "random": ("scratch", "--method", "from-scratch"),
    "scratch": ("scratch",),
    "installed": (ENCODER,),
    "continued": ("continued",),
}
"""Model and options of fine-tuning."""
STEPS = dict(zip(QuickstartPlan().labels, QuickstartPlan().steps, strict=True))
SHORT_TUNING = ("--lr", "1e-4", "--set", "train.batch=16", "--steps")
"""Fine-tuning of the installed encoder, with a number of steps by labels."""


def call(*arguments: str, log: Path) -> dict[str, Any]:
    """Run a command of pretune, and return its JSON and seconds."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pretune", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log.write_text(done.stderr)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr[-1000:]}")
    return {**json.loads(done.stdout), "seconds": round(time.monotonic() - started, 1)}


def write_table(path: Path, examples: list[Example]) -> Path:
    """Write labelled reviews as a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = ((example.text, NAMES[int(example.label or 0)]) for example in examples)
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def write_texts(work: Path, text: str, hidden: set[str], short: list[Example]) -> Path:
    """Write the unlabelled text without the hidden reviews, and return its file."""
    path = work / f"{text}.jsonl"
    texts = [example.text for example in short]
    if text == "all":
        texts = [review for review, _ in Reviews().read_examples()]
    kept = [review for review in texts if review.strip() not in hidden]
    path.write_text("".join(json.dumps({"text": review}) + "\n" for review in kept), encoding="utf-8")
    print(f"{path}: {len(kept):,} reviews without their labels; none of test or dev is among them", flush=True)
    return path


def score(row: str, labels: int, seed: int, tables: tuple[list[Example], Path, Path], args: argparse.Namespace) -> Any:
    """Return the accuracy of a row."""
    train, dev, test = tables
    if row == "svm":
        started = time.monotonic()
        predict = SVM().fit([example.text for example in train], [int(example.label or 0) for example in train], seed=0)
        with test.open(newline="", encoding="utf-8") as file:
            lines = [*csv.DictReader(file)]
        answers = predict([line["text"] for line in lines])
        right = sum(NAMES[int(answer)] == line["label"] for answer, line in zip(answers, lines, strict=True))
        return {"score": right / len(lines), "seconds": round(time.monotonic() - started, 1)}
    name, *options = ROWS[row]
    table = write_table(args.work / f"train-{labels}-{seed}.csv", train)
    out = args.work / f"tuned-{row}-{labels}-{seed}"
    shutil.rmtree(out, ignore_errors=True)  # what was interrupted
    command = ["finetune", str(args.work / name) if name in PRETRAINED else name, *options, "--train", str(table)]
    command += ["--dev", str(dev), "--test", str(test), "--set", f"train.seed={seed}", "--baselines", "none"]
    if row in ("installed", "continued") and labels in STEPS:
        command += [*SHORT_TUNING, str(STEPS[labels])]
    done = call(*command, *shlex.split(args.tuning), "--out", str(out), log=out.with_suffix(".log"))
    return {"score": done["result"]["score"], "seconds": done["seconds"], "model": done["model"]}


def list_jobs(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yield the rows with their labels and seeds."""
    for labels in args.labels:
        for seed in range(args.seeds):
            for row in args.rows:
                yield row, labels, seed


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("--work", type=Path, required=True, help="directory of texts, runs and results.jsonl")
    parser.add_argument("--scratch", default="8m", metavar="TIME", help="budget of the small model")
    parser.add_argument("--continued", default="6m", metavar="TIME", help="budget of the installed encoder")
    parser.add_argument("--text", choices=("all", "short"), default="all", help="unlabelled reviews of the package")
    parser.add_argument("--read", choices=("test", "dev"), default="test", help="reviews that are scored")
    parser.add_argument("--labels", type=lambda text: [int(word) for word in text.split(",")], default=[200, 1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[*ROWS])
    parser.add_argument("--pretraining", default="", help="further options of `pretune pretrain`")
    parser.add_argument("--tuning", default="", help="further options of `pretune finetune`")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    test, rest, _ = read_reviews(None, QuickstartPlan(test=READ))
    dev, rest = rest[:READ], rest[READ:]
    text = write_texts(args.work, args.text, {example.text for example in (*test, *dev)}, rest)
    read = write_table(args.work / f"{args.read}.csv", test if args.read == "test" else dev)
    chosen, pool = write_table(args.work / "select.csv", rest[:DEV]), rest[DEV:]
    results = args.work / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []

    def add(line: dict[str, Any]) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")

    for name, options in PRETRAINED.items():
        stage, is_needed = f"pretrain {name}", any(ROWS[row][:1] == (name,) for row in args.rows)
        if is_needed and not any(line["row"] == stage for line in lines):
            command = ["pretrain", "encoder", "--text", str(text), "--budget", getattr(args, name), *options]
            command += shlex.split(args.pretraining)
            done = call(*command, "--out", str(args.work / name), log=args.work / f"{name}.log")
            add({"row": stage, "loss": done["held_out"]["loss"], **{key: done[key] for key in ("seconds", "tokens")}})
    known = {(line["row"], line.get("labels"), line.get("seed")) for line in lines}
    for row, labels, seed in list_jobs(args):
        if (row, labels, seed) not in known:
            train = sample_subset(sample_subset(pool, max(args.labels), seed), labels, seed)
            add({"row": row, "labels": labels, "seed": seed, **score(row, labels, seed, (train, chosen, read), args)})
    print(f"accuracy on {READ:,} short reviews ({args.read}), mean of {args.seeds} seeds; seconds of one fine-tuning")
    for row in args.rows:
        cells = []
        for labels in args.labels:
            found = [line for line in lines if (line["row"], line.get("labels")) == (row, labels)]
            scores, seconds = ([line[key] for line in found] for key in ("score", "seconds"))
            cells.append(f"{100 * statistics.mean(scores):6.1f} {statistics.mean(seconds):6.1f} s")
        print(f"{row:>10}", *cells, flush=True)


if __name__ == "__main__":
    main()
