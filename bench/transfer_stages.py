"""First stages and multi-task runs of bench/transfer.py, for methods that need more than one fine-tuning run.

A first stage is computed once per process for each task (or source task) and seed, in a temporary folder.
"""

import gc
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
DESCRIPTIONS = {
    "decay": "`full` with layer-wise learning rate decay of 0.9 (`tune.layer_decay=0.9`)",
    "extra-layers": "two new blocks on top of the frozen model, trained with the head",
    "domain": "300 steps of 8,192 tokens of masked pre-training, with a new vocabulary head, on the training texts of "
    "the task (Gururangan et al., 2020), then `full`",
    "intermediate": "`full` on another task first, then `full` with a new head (Phang et al., 2018): MNLI (9,888 "
    "examples), and for tagging the other tagging task",
    "multi": "`full`, one model with a head each for all sentence tasks, and one for CoNLL-2003, UD and SQuAD; tasks "
    "are mixed at a temperature of 2",
}
"""Descriptions of the methods."""
DOMAIN = {"train.batch_tokens": 8192, "data.max_length": 128, "data.length_schedule": None, "train.compile": False}
DOMAIN_STEPS, STAGE_DEV_EXAMPLES = 300, 1500
"""Steps of pre-training on the texts of a task; dev examples for model selection of a first stage."""
SOURCES = {"conll2003": "ud_ewt", "ud_ewt": "conll2003"}
"""Intermediate task of some tasks; MNLI for all others."""
GROUPS = (("cola", "sst2", "mrpc", "stsb", "rte"), ("conll2003", "ud_ewt", "squad1"))
"""Tasks that are trained together."""


@dataclass(frozen=True, slots=True)
class Start:
    """Starting point of the fine-tuning of a cell: a base, a method of `pretune finetune`, and settings."""

    base: Path
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    first: Facts | None = None  # statistics of the first stage


@dataclass(slots=True)
class Stages:
    """First stages of one base model; `limits` are the settings that keep a task short."""

    base: Path
    data: Path
    limits: Mapping[str, Mapping[str, Any]]
    folder: Path
    batch: int
    epochs: float | None = None
    steps: int | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    cache: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def start(self, task: str, method: str, seed: int) -> Start:
        """Return the starting point of a cell; methods without a first stage start from the base."""
        if method == "decay":
            return Start(self.base, "full", {"tune.layer_decay": 0.9})
        if method not in ("domain", "intermediate"):
            return Start(self.base, method)
        source = task if method == "domain" else SOURCES.get(task, "mnli")
        key = (method, source, str(seed))
        if key not in self.cache:
            self.cache[key] = getattr(self, f"train_{method}")(source, seed, self.folder / "-".join(key))
            gc.collect()  # frees device memory of the stage before the cell is measured
        folder, facts = self.cache[key]
        return Start(folder, "full", {}, facts)

    def train_domain(self, task: str, seed: int, folder: Path) -> tuple[Path, Facts]:
        """Continue pre-training on the texts of a task's training examples, without labels."""
        import pretune as pt
        from pretune.runs.finetune.config import TaskConfig
        from pretune.runs.finetune.task_data import open_task

        start = time.perf_counter()
        examples = open_task(TaskConfig(name=task, data=str(self.data))).select_train(
            self.limit(task, "task.train_examples"), 0
        )
        texts = [text for example in examples for text in (example.text, example.pair, " ".join(example.words)) if text]
        folder.mkdir(parents=True)
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        data = pt.prepare([folder / "texts.jsonl"], tokenizer=self.base, out=folder / "data", holdout="2%", workers=0)
        steps = self.steps or DOMAIN_STEPS
        overrides = {**DOMAIN, "train.seed": seed, "train.workers": 0, "train.eval_every": steps}
        arguments: Facts = {"data": data, "objective": "masked", "steps": steps, "out": folder / "run"}
        run = pt.pretrain(init_from=self.base, **arguments, overrides=overrides)
        lines = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
        losses = [line["held_out"]["loss"] for line in lines if "held_out" in line]
        facts = {"tokens": data.tokens, "steps": steps, "held_out": [losses[0], losses[-1]]}
        return run.path, {**facts, "seconds": round(time.perf_counter() - start, 2)}

    def train_intermediate(self, task: str, seed: int, folder: Path) -> tuple[Path, Facts]:
        """Fine-tune on an intermediate task."""
        start = time.perf_counter()
        limits = {**self.limits.get(task, {}), "task.max_eval_examples": STAGE_DEV_EXAMPLES, "train.max_checkpoints": 0}
        run = self.finetune_full(task, seed, folder, limits)
        facts = {"task": task, "score": run.score, "steps": run.scores["trials"][0]["steps"]}
        return run.path, {**facts, "seconds": round(time.perf_counter() - start, 2)}

    def train_multi_task(self, task: str, seed: int) -> Facts:
        """Evaluate a task with the multi-task run of its group, trained on first use."""
        from pretune.runs.finetune.inference import evaluate_run
        from pretune.tasks import TASKS

        group = next(group for group in GROUPS if task in group)
        key = ("multi", *group, str(seed))
        if key not in self.cache:
            start = time.perf_counter()
            max_examples = max(self.limits.get(name, {}).get("task.train_examples", 0) for name in group)
            limits = {
                "task.max_examples_per_task": max_examples,
                "task.max_eval_examples": STAGE_DEV_EXAMPLES,
                "tune.temperature": 2.0,
            }
            run = self.finetune_full(",".join(group), seed, self.folder / "-".join(key), limits)
            self.cache[key] = run, time.perf_counter() - start
        run, seconds = self.cache[key]
        trial = run.scores["trials"][0]
        evaluation = evaluate_run(
            run.path, task=task, data=self.data, max_examples=self.limit(task, "task.max_eval_examples")
        )
        return {
            "trial": trial,
            "metric": TASKS.get(task).metrics[0],
            "split": evaluation["split"],
            "score": next(iter(evaluation["scores"].values())),
            "scores": evaluation["scores"],
            "dev": trial["scores"]["dev"][task],
            "together": list(group),
            "seconds": round(seconds, 2),  # for all tasks of the group
        }

    def limit(self, task: str, name: str) -> int | None:
        """Return a limit of a task; values from the command line are text."""
        value = {**self.limits.get(task, {}), **self.set}.get(name)
        return None if value is None else int(value)

    def finetune_full(self, task: str, seed: int, folder: Path, limits: Mapping[str, Any]) -> Any:
        """Run full fine-tuning."""
        from pretune.runs.finetune.entry import finetune

        settings = {"train.seed": seed, "train.batch": self.batch}
        arguments: Facts = {"epochs": self.epochs, "steps": self.steps, "overrides": {**limits, **settings, **self.set}}
        return finetune(self.base, task=task, data=self.data, out=folder, baselines="none", **arguments)
