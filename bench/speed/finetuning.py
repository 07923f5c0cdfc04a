"""Speed and score of fine-tuning a classifier (target P6), compared with the transformers Trainer.

    python -m bench.speed.finetuning --base MODEL --data tasks --task sst2 [--compile]
    python -m bench.speed.finetuning --base MODEL --build bert-base --data tasks --task mnli    # speed only

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
from pathlib import Path
from typing import Any

from bench import common

WARMUP = 0.1


def run_ours(base: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune with pretune."""
    from pretune.core import log
    from pretune.runs.finetune.entry import finetune

    log.set_quiet(True)
    overrides: dict[str, Any] = {
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
        arguments: dict[str, Any] = {"task": args.task, "data": args.data, "lr": args.lr, "steps": args.steps}
        arguments |= {"out": Path(folder) / "run", "baselines": "none", "overrides": overrides}
        seconds, run = common.time_call(lambda: finetune(base, **arguments), clock=common.wall_clock)
        metrics = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in metrics if "loss" in row]
    times = [(row["step"], row["seconds"]) for row in steps if row["step"] >= args.steps // 5]
    return {
        "examples_per_second": compute_rate(times, args.batch),
        "dev": next(iter(run.scores["model"]["scores"]["dev"].values())),
        "losses": [round(row["loss"], 4) for row in steps][:: max(len(steps) // 10, 1)],
        "whole_seconds": round(seconds, 1),
        "memory": run.scores["model"]["memory"],
    }


def compute_rate(times: list[tuple[int, float]], batch: int) -> float:
    """Return the examples per second between the first and the last pair of (step, seconds)."""
    (first_step, start), (last_step, end) = times[0], times[-1]
    return batch * (last_step - first_step) / (end - start)


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
    device = common.find_device()
    data = open_task(
        TaskConfig(name=args.task, data=str(args.data), train_examples=args.examples, max_eval_examples=args.dev)
    )
    tokenizer = AutoTokenizer.from_pretrained(base)
    limit = args.length or 128

    def encode(examples: list[Any]) -> list[dict[str, Any]]:
        texts = [(row.text,) if row.pair is None else (row.text, row.pair) for row in examples]
        inputs = [tokenizer(*text, truncation=True, max_length=limit) for text in texts]
        return [{**row, "labels": int(example.label)} for row, example in zip(inputs, examples, strict=True)]

    train, dev = encode(data.select_train(args.examples, 0)), encode(data.parts.dev)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(data.task.labels))
    times: list[tuple[int, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Records the time at the first fifth and at the end."""

        def on_step_end(self, args_: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step in (max(args.steps // 5, 1), args.steps):
                common.synchronize(device)
                times.append((state.global_step, common.wall_clock()))

    tuned_settings = {"train_sampling_strategy": "group_by_length", "dataloader_persistent_workers": True}
    tuned_settings |= {"dataloader_prefetch_factor": 8, "logging_nan_inf_filter": False}
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=args.batch, per_device_eval_batch_size=256,
            learning_rate=args.lr, max_steps=args.steps, warmup_steps=round(WARMUP * args.steps), weight_decay=0.01,
            bf16=device == "cuda", use_cpu=device == "cpu", logging_strategy="no",
            save_strategy="no", eval_strategy="no", report_to=[], seed=args.seed, dataloader_num_workers=2,
            torch_compile=args.their_compile, disable_tqdm=True, **(tuned_settings if args.their_best else {}),
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=settings, train_dataset=train, data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Clock()],
        )  # fmt: skip
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds, _ = common.time_call(trainer.train, clock=common.wall_clock)
        predictions = np.argmax(trainer.predict(dev).predictions, -1).tolist()
    score = METRICS.get(data.task.metrics[0])([row["labels"] for row in dev], predictions)
    return {
        "examples_per_second": compute_rate(times, args.batch),
        "dev": get_headline(score),
        "whole_seconds": round(seconds, 1),
        "memory": torch.cuda.max_memory_allocated() if device == "cuda" else None,
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
    parser = common.build_parser(__doc__)
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
        ours = run_ours(base, args)
        print(f"ours: {ours}", file=sys.stderr, flush=True)
        peer = run_trainer(base, args)
    ratio = ours["examples_per_second"] / peer["examples_per_second"]
    settings = {"task": args.task, "model": args.build or args.base.name, "batch": args.batch, "steps": args.steps}
    common.print_result({**settings, "pretune": ours, "trainer": peer, "ratio": round(ratio, 2)}, args.out)


if __name__ == "__main__":
    main()
