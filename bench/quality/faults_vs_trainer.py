"""Fault tolerance of `pretune pretrain`, compared with the transformers Trainer under the same faults.

    python -m bench.quality.faults_vs_trainer [--out table.md]

A tiny BERT trains masked language modelling for ten steps of eight texts, with dropout, dynamic masking and a
checkpoint every second step. Prints a Markdown table of observed outcomes: exit codes, files, and final weights
compared with those of an uninterrupted run. The runs of pretune use the helpers of `tests/faults`.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file

from bench import common
from tests.data.texts import stories
from tests.faults.runs import ALONE, STEPS, Nursery, arguments, made_data, metrics, nursery, resume, steps_of

CHILD = (sys.executable, "-m", "bench.quality.faults_vs_trainer", "--child")
MAX_FILE_BYTES = 50_000
"""File size limit that simulates a full disk; the weights alone are larger."""


# --- The transformers Trainer: this script starts itself with the fault as an argument.


def train_with_trainer(
    out: Path, data: Path, *, resume: bool, fault: str, step: int, micro: int, workers: int, static_masks: bool
) -> None:
    """Train with the transformers Trainer and inject a fault at the end of a step."""
    import transformers as tf

    tokenizer = tf.AutoTokenizer.from_pretrained(data.parent / "tokenizer")
    texts = (data.parent / "stories.txt").read_text().split("\n\n")
    examples = [dict(tokenizer(text, truncation=True, max_length=32)) for text in texts]
    config = tf.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        **({"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if static_masks else {}),
    )
    torch.manual_seed(0)
    model = tf.BertForMaskedLM(config)
    training_arguments = tf.TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=8 // micro,
        gradient_accumulation_steps=micro,
        learning_rate=1e-3,
        warmup_steps=1,
        save_steps=2,
        save_total_limit=2,
        logging_steps=1,
        seed=0,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=workers,
    )
    collator = tf.DataCollatorForLanguageModeling(tokenizer)
    collate: Any = collator
    if static_masks:  # static masking, so that only the batches differ
        torch.manual_seed(1)
        examples = [{name: row[0] for name, row in collator([example]).items()} for example in examples]
        collate = functools.partial(_pad_batch, pad=tokenizer.pad_token_id)
    trainer = tf.Trainer(model, training_arguments, train_dataset=examples, data_collator=collate)
    if fault == "nan":
        _inject_nan(model, step * micro)
    elif fault:
        trainer.add_callback(_build_callback(tf.TrainerCallback, fault, step))
    trainer.train(resume_from_checkpoint=True if resume else None)
    trainer.save_model(str(out / "final"))
    (out / "log.json").write_text(json.dumps(trainer.state.log_history))


def _pad_batch(rows: list[dict[str, Any]], pad: int) -> dict[str, Any]:
    fills = {"labels": -100, "input_ids": pad}
    return {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, fills.get(name, 0)) for name in rows[0]
    }


def _inject_nan(model: Any, call: int) -> None:
    """Make the loss of one forward call NaN."""
    forward, calls = model.forward, 0

    @functools.wraps(forward)
    def forward_with_nan(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        output, calls = forward(*args, **kwargs), calls + 1
        if calls == call and output.loss is not None:
            output.loss = output.loss * math.nan
        return output

    model.forward = forward_with_nan


def _build_callback(base: type, fault: str, step: int) -> Any:
    def on_step_end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == step and fault == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        elif state.global_step == step:
            os.kill(os.getpid(), signal.Signals[fault])

    return type("Fault", (base,), {"on_step_end": on_step_end})()


class Trainer:
    """Runs of the transformers Trainer, each in a process of its own."""

    name = "transformers Trainer"
    files = ("model.safetensors", "optimizer.pt", "rng_state.pth")
    ignored_messages = ("%|", "mtime may not", "missing keys")
    """Parts of messages that every run prints, or every resumed run (tied weights)."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        self.error, self.messages = "", [""]

    def run(self, out: Path, *more: str, data: Path | None = None) -> int:
        """Run and return the exit code; `error` becomes the last line on stderr."""
        command = [
            sys.executable,
            "-m",
            "bench.quality.faults_vs_trainer",
            "--child",
            str(out),
            "--data",
            str(data or self.data),
            *more,
        ]
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=_build_environment()
        )
        lines = [line.strip() for line in process.stderr.replace("\r", "\n").splitlines()]
        lines = [line for line in lines if line and not any(word in line for word in self.ignored_messages)]
        self.messages, self.error = lines, (lines or [""])[-1]
        return process.returncode

    def run_until_kill(self, out: Path) -> Path:
        """Run until a kill in step 7, and return the output directory."""
        assert self.run(out, "--fault", "SIGKILL", "--step", "7") == -signal.SIGKILL, self.error
        return out

    def resume(self, out: Path, *more: str, data: Path | None = None) -> int:
        return self.run(out, "--resume", *more, data=data)

    def fault(self, out: Path, name: str, step: int) -> int:
        return self.run(out, "--fault", name, "--step", str(step))

    def newest(self, out: Path) -> Path | None:
        checkpoints = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return checkpoints[-1] if checkpoints else None

    def step(self, out: Path) -> int:
        newest = self.newest(out)
        return 0 if newest is None else int(newest.name.rpartition("-")[2])

    def weights(self, out: Path) -> dict[str, torch.Tensor]:
        return load_file(out / "final/model.safetensors")

    def first_loss(self, out: Path) -> float:
        return float(json.loads((out / "log.json").read_text())[0]["loss"])

    def micro(self, out: Path, count: int) -> int:
        return self.run(out, "--static-masks", "--micro", str(count))

    def workers(self, out: Path, count: int) -> int:
        return self.run(out, "--workers", str(count))

    def start_second(self, out: Path) -> tuple[int, str]:
        """Start a second run in the directory of a running one; return its exit code and error."""
        command = [
            sys.executable,
            "-m",
            "bench.quality.faults_vs_trainer",
            "--child",
            str(out),
            "--data",
            str(self.data),
        ]
        first = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_build_environment()
        )
        code = self.run(out)
        first.wait()
        return code, self.error


def _build_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


# --- pretune.


class Pretune:
    """Runs of `pretune pretrain`, each in a process of its own."""

    name = "pretune"
    files = ("model.safetensors", "optimizer.safetensors", "state.json")
    signals: ClassVar = {"nan": ["not_finite", 8, 8], "full": ["no_room", 4, MAX_FILE_BYTES]}

    def __init__(self, runs: Nursery, data: Path) -> None:
        self.runs, self.data = runs, data
        self.error, self.messages = "", [""]

    def run(self, command: list[str], hook: list[Any] | None = None) -> int:
        child = self.runs.start(command, hook or [])
        code = child.wait()
        self.messages = child.errors().splitlines()
        self.error = (self.messages or [""])[-1]
        return code

    def run_uninterrupted(self, out: Path, **settings: Any) -> int:
        return self.run(arguments(self.data, out, *ALONE, **settings))

    def run_until_kill(self, out: Path) -> Path:
        assert self.fault(out, "SIGKILL", 7) == -signal.SIGKILL, self.error
        return out

    def resume(self, out: Path, *more: str, data: Path | None = None) -> int:
        return self.run(resume(out, *more, *([] if data is None else [f"--data={data}"])))

    def fault(self, out: Path, name: str, step: int) -> int:
        hook = self.signals.get(name) or ["signalled", step - 1, name]
        return self.run(arguments(self.data, out, *ALONE), hook)

    def newest(self, out: Path) -> Path | None:
        steps = steps_of(out)
        return out / "checkpoints" / steps[-1] if steps else None

    def step(self, out: Path) -> int:
        newest = self.newest(out)
        return 0 if newest is None else int(newest.name.removeprefix("step-"))

    def weights(self, out: Path) -> dict[str, torch.Tensor]:
        return load_file(out / "model.safetensors")

    def first_loss(self, out: Path) -> float:
        return float(next(line["loss"] for line in metrics(out) if "loss" in line))

    def micro(self, out: Path, count: int) -> int:
        return self.run_uninterrupted(out, model__dropout=0, train__micro_tokens=256 // count)

    def workers(self, out: Path, count: int) -> int:
        return self.run_uninterrupted(out, train__workers=count)

    def start_second(self, out: Path) -> tuple[int, str]:
        first = self.runs.start(arguments(self.data, out, *ALONE), ["stops_at", 2])
        while not first.done(0.02) and Path(f"/proc/{first.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            pass
        code = self.run_uninterrupted(out)
        first.kill(signal.SIGCONT)
        first.wait()
        return code, self.error


# --- The faults.


def describe_outcome(side: Any, code: int, out: Path, reference_run: Path) -> str:
    """Describe the outcome of a resumed run, compared with an uninterrupted one."""
    if code:
        return f"does not resume: exit {code}, `{strip_paths(side.error)}`"
    weights, reference = side.weights(out), side.weights(reference_run)
    if all(torch.equal(weights[name], value) for name, value in reference.items()):
        return "same weights, bit for bit"
    largest = max(float((weights[name] - value).abs().max()) for name, value in reference.items())
    return f"different weights (by up to {largest:.0e}), {describe_warning(side)}"


def describe_warning(side: Any) -> str:
    """Describe the warning of a successful run."""
    return (
        f"exit 0, printed `{strip_paths(side.error)}`"
        if isinstance(side, Trainer) and side.error
        else "exit 0, no message"
    )


def strip_paths(text: str) -> str:
    """Shorten a message: paths become file names."""
    words = [Path(word).name if word.startswith(("/", "'/")) else word for word in text.split()]
    message = " ".join(words)
    return message if len(message) < 110 else message[:107] + "…"


def truncate_file(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def resume_from_damaged(
    side: Any, folder: Path, reference_run: Path, number: int, damage: Callable[[Path], None]
) -> str:
    out = side.run_until_kill(folder / f"damaged-{number}-{damage.__name__}")
    file = side.newest(out) / side.files[number]
    damage(file)
    outcome = describe_outcome(side, side.resume(out), out, reference_run)
    messages = [line for line in side.messages if file.name in line and file.parent.name in line and line != side.error]
    return outcome + (f"; printed `{strip_paths(messages[0])}`" if messages else "")


def repeat_run(side: Any, folder: Path, reference_run: Path) -> str:
    return describe_outcome(side, side.workers(folder / "again", 0), folder / "again", reference_run)


def resume_after_kill(side: Any, folder: Path, reference_run: Path) -> str:
    out = side.run_until_kill(folder / "killed")
    return describe_outcome(side, side.resume(out), out, reference_run)


def train_with_nan(side: Any, folder: Path) -> str:
    code = side.fault(folder / "nan", "nan", 5)
    weights = side.weights(folder / "nan")
    lost = sum(not bool(value.isfinite().all()) for value in weights.values())
    state = (
        f"{lost} of {len(weights)} tensors hold NaN" if lost else "the step is skipped and logged, weights are finite"
    )
    return f"{state}; exit {code}"


def resume_after_signal(side: Any, folder: Path, reference_run: Path, name: str) -> str:
    out = folder / name
    code = side.fault(out, name, 7)
    lost = 7 - side.step(out)
    outcome = f"exit {code}, " + (
        "saved after the step" if lost <= 0 else f"steps after the checkpoint of step {7 - lost} are lost"
    )
    return f"{outcome}; resumed: {describe_outcome(side, side.resume(out), out, reference_run)}"


def run_on_full_disk(side: Any, folder: Path, reference_run: Path) -> str:
    out = folder / "full"
    code = side.fault(out, "full", 5)
    return f"exit {code}; with free space again: {describe_outcome(side, side.resume(out), out, reference_run)}"


def compare_accumulation(side: Any, folder: Path) -> str:
    for count in (1, 8):
        assert side.micro(folder / f"micro-{count}", count) == 0, side.error
    single, eightfold = (side.weights(folder / f"micro-{count}") for count in (1, 8))
    difference = max(float((single[name] - value).abs().max()) for name, value in eightfold.items())
    losses = " and ".join(f"{side.first_loss(folder / f'micro-{count}'):.4f}" for count in (1, 8))
    return f"first loss {losses}; weights after {STEPS} steps differ by up to {difference:.0e}"


def run_with_workers(side: Any, folder: Path, reference_run: Path) -> str:
    return describe_outcome(side, side.workers(folder / "workers", 2), folder / "workers", reference_run)


def resume_with_other_text(side: Any, folder: Path, reference_run: Path, other: Path) -> str:
    out = side.run_until_kill(folder / "other")
    code = side.resume(out, data=other)
    return (
        f"refused, exit {code}: `{strip_paths(side.error)}`"
        if code
        else f"continues with the other text, {describe_warning(side)}"
    )


def start_two_runs(side: Any, folder: Path) -> str:
    code, error = side.start_second(folder / "two")
    if not code:
        return f"both runs write, {describe_warning(side)}"
    return f"{'refused' if isinstance(side, Pretune) else 'the second run fails'}, exit {code}: `{strip_paths(error)}`"


def build_table(sides: list[Any], folder: Path, other: Path) -> list[str]:
    """Inject every fault on every side; return the table as lines."""
    reference_run = {side.name: folder / side.name / "uninterrupted" for side in sides}
    for side in sides:
        code = (
            side.run(reference_run[side.name])
            if isinstance(side, Trainer)
            else side.run_uninterrupted(reference_run[side.name])
        )
        assert code == 0, side.error
    faults: dict[str, Callable[[Any, Path, Path], str]] = {
        "none: the same run again": repeat_run,
        "kill -9 in step 7, resumed": resume_after_kill,
        "newest checkpoint: weights truncated": lambda s, f, to: resume_from_damaged(s, f, to, 0, truncate_file),
        "newest checkpoint: optimizer missing": lambda s, f, to: resume_from_damaged(s, f, to, 1, Path.unlink),
        "newest checkpoint: run state missing (Trainer: RNG state)": lambda s, f, to: resume_from_damaged(
            s, f, to, 2, Path.unlink
        ),
        "NaN loss in one step": lambda s, f, to: train_with_nan(s, f),
        "SIGTERM in step 7": lambda s, f, to: resume_after_signal(s, f, to, "SIGTERM"),
        "Ctrl-C in step 7": lambda s, f, to: resume_after_signal(s, f, to, "SIGINT"),
        "disk full at the save of step 6": run_on_full_disk,
        "resumed with other text": lambda s, f, to: resume_with_other_text(s, f, to, other),
        "a second run in the same directory": lambda s, f, to: start_two_runs(s, f),
        "2 data workers instead of none": run_with_workers,
        "8 texts per step as 1 x 8 and as 8 x 1 (no dropout, static masks)": lambda s, f, to: compare_accumulation(
            s, f
        ),
    }
    lines = [f"| fault | {' | '.join(side.name for side in sides)} |", "|---|" + "---|" * len(sides)]
    for fault, work in faults.items():
        cells = []
        for side in sides:
            cells.append(work(side, folder / side.name, reference_run[side.name]))
            print(f"{fault} · {side.name}: {cells[-1]}", file=sys.stderr, flush=True)
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the table, or run the Trainer as a child process."""
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fault", default="", help=argparse.SUPPRESS)
    for name in ("--step", "--micro", "--workers"):
        parser.add_argument(name, type=int, default=int(name == "--micro"), help=argparse.SUPPRESS)
    for name in ("--resume", "--static-masks"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    out, child = options.pop("out"), options.pop("child")
    if child is not None:
        train_with_trainer(child, **options)
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        data, other = made_data(folder / "data"), _write_other_text(folder)
        runs = stack.enter_context(nursery(folder))
        text = "\n".join(build_table([Trainer(folder, data), Pretune(runs, data)], folder, other))
    print(text)
    if out is not None:
        out.write_text(text + "\n")


def _write_other_text(folder: Path) -> Path:
    """Prepare other stories with the same tokenizer."""
    shutil.copytree(folder / "data/tokenizer", folder / "other/tokenizer")
    data = made_data(folder / "other", first=500, tokenizer=False)
    assert (folder / "other/stories.txt").read_text().split("\n\n")[0] == stories(1, 500)[0]
    return data


if __name__ == "__main__":
    main()
