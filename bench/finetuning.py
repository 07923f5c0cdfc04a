"""Speed and score of fine-tuning a classifier (target P6), compared with the transformers Trainer.

    PYTHONPATH=src python bench/finetuning.py --base MODEL --data tasks --task sst2 [--compile]
    PYTHONPATH=src python bench/finetuning.py --base MODEL --build bert-base --data tasks --task mnli    # speed only

Both sides start from the same weights (`--build`: random weights of that size, with the tokenizer of --base) and train
on the same examples for the same number of steps, in bf16 on a GPU, with AdamW, the same peak learning rate, linear
warmup and decay, and the dropout of the config. The Trainer pads each batch to its longest example and has its default
settings with two workers; `--their-best` groups examples by length, keeps workers alive and turns off the NaN check of
every loss, which synchronizes with the device (`--their-compile` compiles it with dynamic shapes). Prints JSON:
examples per second over the last four fifths of the steps (without startup and compilation), seconds of the whole call,
dev score and peak memory of both sides, and the ratio.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARMUP = 0.1


def run_ours(base: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune with pretune."""
    from pretune.core import log
    from pretune.runs.finetune.entry import finetune

    log.set_quiet(True)
    changes: dict[str, Any] = {
        "task.train_examples": args.examples,
        "task.max_eval_examples": args.dev,
        "data.max_length": args.length,
        "train.batch": args.batch,
        "train.eval_every": 10**9,
        "train.log_every": max(args.steps // 50, 1),
        "train.compile": str(args.compile).lower(),
        "train.seed": args.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        found = finetune(
            base, task=args.task, data=args.data, out=Path(folder) / "run", lr=args.lr, steps=args.steps,
            baselines="none", overrides=changes,
        )  # fmt: skip
        whole = time.perf_counter() - begun
        lines = [json.loads(line) for line in (found.path / "metrics.jsonl").read_text().splitlines()]
        marks = [(line["step"], line["seconds"]) for line in lines if "loss" in line]
    late = [mark for mark in marks if mark[0] >= args.steps // 5]
    (first, begin), (last, end) = late[0], late[-1]
    return {
        "examples_per_second": args.batch * (last - first) / (end - begin),
        "dev": next(iter(found.scores["model"]["scores"]["dev"].values())),
        "losses": [round(line["loss"], 4) for line in lines if "loss" in line][:: max(len(marks) // 10, 1)],
        "whole_seconds": round(whole, 1),
        "memory": found.scores["model"]["memory"],
    }


def run_trainer(base: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune with the transformers Trainer."""
    import numpy as np
    import torch
    import transformers
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from pretune.metrics import METRICS, get_headline
    from pretune.runs.finetune.config import TaskConfig
    from pretune.runs.finetune.task_data import open_task

    transformers.logging.set_verbosity_error()
    transformers.set_seed(args.seed)
    opened = open_task(
        TaskConfig(name=args.task, data=str(args.data), train_examples=args.examples, max_eval_examples=args.dev)
    )
    tokenizer = AutoTokenizer.from_pretrained(base)
    limit = args.length or 128

    def rows(examples: list[Any]) -> list[dict[str, Any]]:
        read = [(one.text,) if one.pair is None else (one.text, one.pair) for one in examples]
        made = [tokenizer(*texts, truncation=True, max_length=limit) for texts in read]
        return [{**found, "labels": int(one.label)} for found, one in zip(made, examples, strict=True)]

    train, dev = rows(opened.select_train(args.examples, 0)), rows(opened.parts.dev)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(opened.task.labels))
    marks: list[tuple[int, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Records the time at the first fifth and at the end."""

        def on_step_end(self, given: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step in (max(args.steps // 5, 1), args.steps):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                marks.append((state.global_step, time.perf_counter()))

    best = {"train_sampling_strategy": "group_by_length", "dataloader_persistent_workers": True}
    best |= {"dataloader_prefetch_factor": 8, "logging_nan_inf_filter": False}
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=args.batch, per_device_eval_batch_size=256,
            learning_rate=args.lr, max_steps=args.steps, warmup_steps=round(WARMUP * args.steps), weight_decay=0.01,
            bf16=torch.cuda.is_available(), use_cpu=not torch.cuda.is_available(), logging_strategy="no",
            save_strategy="no", eval_strategy="no", report_to=[], seed=args.seed, dataloader_num_workers=2,
            torch_compile=args.their_compile, disable_tqdm=True, **(best if args.their_best else {}),
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=settings, train_dataset=train, data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Clock()],
        )  # fmt: skip
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        trainer.train()
        whole = time.perf_counter() - begun
        said = np.argmax(trainer.predict(dev).predictions, -1).tolist()
    (first, begin), (last, end) = marks[0], marks[-1]
    score = METRICS.get(opened.task.metrics[0])([row["labels"] for row in dev], said)
    return {
        "examples_per_second": args.batch * (last - first) / (end - begin),
        "dev": get_headline(score),
        "whole_seconds": round(whole, 1),
        "memory": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    }


def build_base(size: str, base: Path, folder: Path) -> Path:
    """Save a model with random weights of a given size and the tokenizer of `base`."""
    import pretune as pt

    tokenizer_files = {path.name: path.read_bytes() for path in base.glob("*token*.json")}
    tokenizer_files |= {path.name: path.read_bytes() for path in base.glob("vocab.txt")}
    model = pt.build(size)
    model.assets.files = tokenizer_files
    pt.save(model, folder / "built")
    return folder / "built"


def main() -> None:
    """Measure both sides and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="model directory")
    parser.add_argument("--build", default=None, help="use random weights of this model size instead")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data of the tasks")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--examples", type=int, default=16_000, help="training examples")
    parser.add_argument("--dev", type=int, default=2_000, help="dev examples")
    parser.add_argument("--length", type=int, default=None, help="maximum tokens per example")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=None, help="default: one epoch")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile our model")
    parser.add_argument("--their-compile", action="store_true", help="compile the Trainer's model")
    parser.add_argument("--their-best", action="store_true", help="tuned settings of the Trainer")
    args = parser.parse_args()
    args.steps = args.steps or args.examples // args.batch
    with tempfile.TemporaryDirectory() as folder:
        base = build_base(args.build, args.base, Path(folder)) if args.build else args.base
        mine = run_ours(base, args)
        print(f"ours: {mine}", file=sys.stderr, flush=True)
        other = run_trainer(base, args)
    ratio = mine["examples_per_second"] / other["examples_per_second"]
    about = {"task": args.task, "model": args.build or args.base.name, "batch": args.batch, "steps": args.steps}
    print(json.dumps({**about, "pretune": mine, "trainer": other, "ratio": round(ratio, 2)}, indent=1))


if __name__ == "__main__":
    main()
