"""Families beside BERT: pre-trained on the same text for the same number of words, then fine-tuned on four tasks.

    PYTHONPATH=src python bench/families.py --train train.txt.xz --valid valid.txt.xz --tasks TASKS --work DIR \
        [--passes 2] [--seconds 570] [--out families.json]

Rows: bert (masked tokens and next sentences), spanbert (single segments, spans and their boundaries), albert (shared
layers, sentence order), deberta-mlm (mask decoder), deberta-rtd (replaced tokens, with a generator of half the depth),
modernbert, elmo, ulmfit; `bert-random` is bert's shape fine-tuned from random weights. Transformers have one depth,
width and cased WordPiece vocabulary; elmo and ulmfit read words. All read each word of the text `--passes` times, in
sequences of at most `--length` tokens, with the objective, optimizer and schedule of their paper (elmo: AdamW) and the
rates below.

Fine-tuning: all weights of the transformers; a BiLSTM over the mixed layers of the frozen elmo; ulmfit's three stages.
Scores are those of dev and, where it has labels, of test; the best step is chosen on dev.

All runs share the device (`--jobs`), so times are not comparable; a task starts when its model is ready. After
`--seconds` the unfinished runs are stopped. A failure is reported in its row. The same command again continues with
what is missing in DIR. The last line is the result in short; FILE has all of it.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import common

Facts = dict[str, Any]
TASKS = {"sst2": 1, "conll2003": 1, "mrpc": 3, "rte": 3}
"""Seeds of each task."""
PIECES, WORDS = "wordpiece", "words"
SAVING_SECONDS = 15
"""Time to save an interrupted run."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A family: its published size, whose shape is replaced; learning rate; settings; and method of fine-tuning."""

    model: str
    lr: float
    tokens: str = PIECES
    settings: Facts = field(default_factory=dict)
    method: str | None = "full"  # None: that of the family's paper


SHORT_ELMO: Facts = {
    "train.optimizer": {"kind": "adam_w", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "train.schedule": {"kind": "linear", "warmup": 0.1},
}
"""Instead of the paper's Adagrad at a constant rate, which is for ten passes over a billion words."""
ROWS = {
    "deberta-rtd": Row(model="deberta-v3-base", lr=2e-4),
    "deberta-mlm": Row(model="deberta-v2-xlarge", lr=5e-4, settings={"model.conv": False}),
    "ulmfit": Row(model="ulmfit", lr=3e-3, tokens=WORDS, method=None),
    "elmo": Row(model="elmo-small", lr=1e-3, tokens=WORDS, settings=SHORT_ELMO, method="scalar-mix"),
    "bert": Row(model="bert-medium", lr=5e-4, settings={"data.length_schedule": None}),
    "spanbert": Row(model="spanbert-base", lr=5e-4),
    "albert": Row(model="albert-base", lr=2e-3),
    "modernbert": Row(model="modernbert-base", lr=1e-3, settings={"data.length_schedule": None}),
}
"""In the order in which they start: the slowest first."""
RANDOM = "bert-random"


def build_settings(row: Row, args: argparse.Namespace) -> Facts:
    """Return the settings of a pre-training run; ModernBERT's gated layers have 1.5 instead of 4 times the width."""
    settings: Facts = {"train.lr": row.lr, "data.max_length": args.length, "train.samples_every": 0}
    settings |= {
        "train.checkpoint_every": 1_000_000,
        "train.eval_tokens": args.eval_tokens,
        "train.workers": args.workers,
    }
    if row.tokens == PIECES:
        hidden = args.width * 3 // 2 if row.model.startswith("modernbert") else 4 * args.width
        settings |= {"model.width": args.width, "model.depth": args.depth, "model.heads": args.heads}
        settings |= {"model.hidden": hidden, "train.batch_tokens": args.batch_tokens}
    else:
        settings["train.batch_tokens"] = args.batch_words
        if args.hidden:  # smaller than published
            settings["model.hidden"] = args.hidden
    return {**settings, **row.settings}


# Jobs: each runs in a new process and returns what it found.


def prepare(kind: str, train: list[str], valid: list[str], vocab: int, work: str) -> Facts:
    """Train a tokenizer, unless it exists, and tokenize the text; return sizes of the text."""
    import pretune as pt

    tokenizer, data = Path(work, f"tok-{kind}"), Path(work, f"data-{kind}")
    if not tokenizer.exists():
        pt.train_tokenizer(kind, list(train), vocab=vocab).save(tokenizer)
    pt.prepare(list(train), valid=list(valid), tokenizer=pt.Tokenizer.load(tokenizer), out=data)
    card = json.loads((data / "card.json").read_text())["splits"]
    names = ("tokens", "bytes", "unknown_share")
    return {"vocab": vocab, **{split: {name: card[split][name] for name in names} for split in ("train", "valid")}}


def pretrain(model: str, data: str, out: str, passes: float, settings: Facts, device: str) -> Facts:
    """Pre-train one family; it is evaluated before the first step and ten times on the way."""
    import pretune as pt
    from pretune.runs.defaults import build_pretrain_config

    options: Facts = {"data": data, "epochs": passes}
    train = build_pretrain_config(model, overrides=settings, device=device, **options).train
    if is_resumed := any(Path(out, "checkpoints").glob("step-*")):
        options = {}
    else:
        shutil.rmtree(out, ignore_errors=True)
        options |= {"model": model, "overrides": settings}
    summary = pt.pretrain(**options, out=out, resume=is_resumed, device=device).summary
    return {
        "parameters": summary["parameters"],
        "steps": summary["steps"],
        "batch_tokens": train.batch_tokens,
        "lr": train.lr,
        "optimizer": str(train.optimizer),
        "schedule": str(train.schedule),
        "tokens": summary["tokens"],
        "flops": summary["cost"]["flops"],
        "seconds": summary["seconds"],
        "held_out": summary["held_out"],
        "curve": read_curve(Path(out)),
    }


def finetune(model: str, task: str, tasks: str, out: str, device: str, settings: Facts, **options: Any) -> Facts:
    """Fine-tune on one task; return the scores of each seed on dev, and on test if it has labels."""
    import pretune as pt

    options |= {"task": task, "data": tasks, "baselines": "none", "overrides": settings}
    run = pt.finetune(model, out=out, device=device, **options)
    trials = run.scores["trials"]
    names = [split for split in ("dev", "test") if split in trials[0]["scores"]]
    return {
        **{split: average([trial["scores"][split] for trial in trials]) for split in names},
        "each": [next(iter(trial["scores"]["dev"].values())) for trial in trials],
        "lr": trials[0]["lr"],
        "steps": trials[0]["steps"],
        "examples": trials[0]["labels"],
        "seconds": sum(trial["summary"]["seconds"] for trial in trials),
    }


def score_majority(tasks: str, names: list[str]) -> Facts:
    """Return the scores of the most frequent class, for CoNLL of the most frequent tag of each word."""
    from pretune.evaluation.baselines import run_baselines
    from pretune.runs.finetune.config import TaskConfig
    from pretune.runs.finetune.task_data import compute_scores, open_task

    scores: Facts = {}
    for name in names:
        task = open_task(TaskConfig(name=name, data=tasks))
        parts = {"dev": task.parts.dev, "test": task.parts.test}
        for split, examples in parts.items():
            if examples and task.task.type.has_answer(examples[0]):
                row = run_baselines(task.task, task.parts.train, examples, ["majority"])[0][0]
                scores.setdefault(name, {})[split] = compute_scores(task, examples, row.predictions)
    return scores


def average(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each score."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def read_curve(folder: Path) -> list[Facts]:
    """Return the validation metrics of a run so far, by step."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{"step": row["step"], **row["held_out"]} for row in rows if "held_out" in row]


# The runs.


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of a function of this script, once another job has succeeded."""

    function: Any
    options: Facts
    after: str | None = None


def run_job(function: Any, options: Facts, path: Path) -> None:
    """Call a function and write its result, or its error, as JSON; output goes to a file beside it."""
    log = path.with_suffix(".log").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        result = function(**options)
    except Exception as error:
        log.write(f"{error!r}\n")
        result = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.replace(path)


class Schedule:
    """Runs jobs in processes of their own, at most `workers` at a time, until a moment of `time.monotonic`."""

    def __init__(self, jobs: dict[str, Job], args: argparse.Namespace, deadline: float) -> None:
        self.jobs, self.args, self.deadline = jobs, args, deadline
        self.results: dict[str, Facts] = {}
        self.running: dict[str, BaseProcess] = {}
        self.context = multiprocessing.get_context("spawn")

    def get_path(self, name: str) -> Path:
        """Return the file of a job's result."""
        path: Path = self.args.work / "results" / f"{name}.json"
        return path

    def run(self) -> dict[str, Facts]:
        """Run all jobs, print a line about each, and return their results or errors."""
        waiting = dict(self.jobs)
        for name in [name for name in waiting if self.get_path(name).exists()]:
            result = json.loads(self.get_path(name).read_text())
            if "error" not in result:
                self.results[name] = result
                del waiting[name]
        while waiting or self.running:
            for name, process in [*self.running.items()]:
                if not process.is_alive():
                    self.finish(name, f"stopped with exit code {process.exitcode}")
            for name, job in [*waiting.items()]:
                if job.after is not None and "error" in self.results.get(job.after, {}):
                    self.report(name, {"error": f"needs {job.after}"})
                    del waiting[name]
                elif len(self.running) < self.args.jobs and (job.after is None or job.after in self.results):
                    self.start(name, job)
                    del waiting[name]
            if time.monotonic() > self.deadline:
                self.stop()
                for name in waiting:
                    self.report(name, {"error": "not started within the time limit"})
                break
            time.sleep(0.1)
        return self.results

    def stop(self) -> None:
        """Stop all runs; those of pre-training save a checkpoint, from which they continue the next time."""
        for process in self.running.values():
            process.terminate()
        end = time.monotonic() + SAVING_SECONDS
        for name, process in [*self.running.items()]:
            process.join(max(end - time.monotonic(), 0))
            process.kill()
            process.join()
            self.finish(name, "stopped at the time limit")

    def start(self, name: str, job: Job) -> None:
        """Start a job; what an interrupted fine-tuning run left is removed."""
        self.get_path(name).parent.mkdir(parents=True, exist_ok=True)
        self.get_path(name).unlink(missing_ok=True)
        if job.function is finetune:
            shutil.rmtree(job.options["out"], ignore_errors=True)
        self.running[name] = self.context.Process(target=run_job, args=(job.function, job.options, self.get_path(name)))
        self.running[name].start()

    def finish(self, name: str, fault: str) -> None:
        """Read the result of a process that has ended; without one, the fault is its error."""
        del self.running[name]
        path = self.get_path(name)
        result: Facts = {"error": fault}
        with contextlib.suppress(OSError, ValueError):
            result = json.loads(path.read_text())
        if "error" in result and self.jobs[name].function is pretrain:
            result["curve"] = read_curve(Path(self.jobs[name].options["out"]))
        self.report(name, result)

    def report(self, name: str, result: Facts) -> None:
        """Keep a result, print a line about it, and write all results so far."""
        self.results[name] = result
        shown = {key: result[key] for key in ("error", "held_out", "dev", "test", "seconds") if key in result}
        print(f"{time.monotonic() - self.args.started:5.0f} s  {name}: {json.dumps(shown)}", flush=True)
        common.write_result(self.results, self.args.out)


def build_jobs(args: argparse.Namespace, rows: list[str], tasks: list[str]) -> dict[str, Job]:
    """Return all runs by name: `ROW`, and `ROW TASK` after it."""
    work, jobs = args.work, {}
    for name in rows:
        row = ROWS[name]
        options: Facts = {"model": row.model, "data": str(work / f"data-{row.tokens}"), "out": str(work / name)}
        options |= {"passes": args.passes, "settings": build_settings(row, args), "device": args.device}
        jobs[name] = Job(function=pretrain, options=options)
    jobs["majority"] = Job(function=score_majority, options={"tasks": str(args.tasks), "names": tasks})
    for task in tasks:
        for name in [*rows, *([RANDOM] if "bert" in rows else [])]:
            base = "bert" if name == RANDOM else name
            settings: Facts = {"data.max_length": args.length, "train.max_checkpoints": 0}
            if task == "sst2" and args.examples:
                settings["task.train_examples"] = args.examples
            options = {"model": str(work / base), "task": task, "tasks": str(args.tasks), "settings": settings}
            options |= {"out": str(work / f"{name}-{task}"), "device": args.device, "steps": args.task_steps}
            options |= {"method": "from-scratch" if name == RANDOM else ROWS[name].method}
            options |= {"seeds": min(TASKS.get(task, 1), args.seeds)}
            jobs[f"{name} {task}"] = Job(function=finetune, options=options, after=base)
    return jobs


def collect(results: dict[str, Facts], text: dict[str, Facts], args: argparse.Namespace, rows: list[str]) -> Facts:
    """Return the table: one row per family, with the text in tokens, and the words that all rows have read."""
    table: Facts = {}
    for name in [*rows, RANDOM]:
        found = {key.partition(" ")[2]: value for key, value in results.items() if key.startswith(f"{name} ")}
        pretraining = {} if name == RANDOM else results.get(name, {})
        table[name] = {**pretraining, "tasks": found}
    return {
        "device": common.describe_device(args.device),
        "words_read": round(args.passes * text[WORDS]["train"]["tokens"]),
        "passes": args.passes,
        "length": args.length,
        "text": text,
        "majority": results.get("majority", {}),
        "rows": table,
    }


def shorten(value: Any) -> Any:
    """Return a result for one line: four digits, and of a curve the steps and the losses of its first term."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: shorten(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], dict) and "step" in value[0]:
        term = next(name for name in ("masked", "generator", "forward", "loss") if name in value[0])
        return [[row["step"], shorten(row[term])] for row in value]
    return [shorten(part) for part in value]


def main() -> None:
    """Run everything and print it."""
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--train", nargs="+", required=True, help="text files; .xz, .gz and others are read")
    parser.add_argument("--valid", nargs="+", required=True, help="validation text")
    parser.add_argument("--tasks", type=Path, default=common.find_data("tasks"), help="directory of task data")
    parser.add_argument("--work", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--only-tasks", default=",".join(TASKS), help="tasks, comma-separated")
    parser.add_argument("--seconds", type=float, default=570.0, help="limit of the whole script")
    parser.add_argument("--jobs", type=int, default=12, help="runs at a time")
    parser.add_argument("--passes", type=float, default=2.0, help="over the training text")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence, everywhere")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="of a step of a transformer")
    parser.add_argument("--batch-words", type=int, default=32_768, help="of a step of an LSTM")
    parser.add_argument("--vocab", type=int, default=16_384, help="pieces")
    parser.add_argument("--words", type=int, default=30_000, help="words of the vocabulary of elmo and ulmfit")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, help="units of the LSTM layers of elmo and ulmfit; default: as published")
    parser.add_argument("--examples", type=int, default=12_000, help="training examples of SST-2; 0: all")
    parser.add_argument("--task-steps", type=int, help="steps of fine-tuning; default: those of `pretune finetune`")
    parser.add_argument("--seeds", type=int, default=3, help="at most, of a task")
    parser.add_argument("--eval-tokens", type=int, default=1_000_000, help="of the validation text, at most")
    parser.add_argument("--workers", type=int, default=2, help="data workers of a run")
    args = parser.parse_args()
    args.started = time.monotonic()
    rows, tasks = args.rows.split(","), args.only_tasks.split(",")
    deadline = args.started + args.seconds
    args.work.mkdir(parents=True, exist_ok=True)
    sources: Facts = {"train": args.train, "valid": args.valid, "work": str(args.work)}
    sizes = {PIECES: args.vocab, WORDS: args.words}
    jobs = {
        f"text {kind}": Job(function=prepare, options={**sources, "kind": kind, "vocab": sizes[kind]}) for kind in sizes
    }
    found = Schedule(jobs, args, deadline).run()
    if any("error" in result for result in found.values()):
        sys.exit("the text could not be prepared")
    text = {kind: found[f"text {kind}"] for kind in sizes}
    results = Schedule(build_jobs(args, rows, tasks), args, deadline).run()
    result = collect(results, text, args, rows)
    common.write_result(result, args.out)
    print(json.dumps(shorten(result)), flush=True)


if __name__ == "__main__":
    main()
