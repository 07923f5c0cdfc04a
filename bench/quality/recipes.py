"""Settings of pre-training, compared at an equal number of floating-point operations, several runs side by side.

    python -m bench.quality.recipes PLAN.yaml --text FOLDER --work DIR --out runs.jsonl [--streams 14] [--seconds 540]

The plan has `base`, the settings of all runs, and `runs`, the changes of each: `model` (family and size), `vocab`,
`pflop` (10^15 floating-point operations of training) and any settings by path. Tokenizers are trained and data prepared
once for each vocabulary. Every finished run is a JSON line: validation loss (15 % of the tokens, whatever the run
masks), the loss by byte of text (comparable between vocabularies), its tokens, epochs, parameters and rate. With
`--streams 1` the rates are those of the device alone. Runs whose line exists are not repeated; none starts after
`--seconds`, and what still runs then is ended.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import common
from bench.quality.studies import start_mps

OWN_KEYS = ("name", "model", "vocab", "pflop")
SETTINGS = {"train.samples_every": 0, "train.eval_tokens": 300_000, "train.log_every": 50, "train.workers": 1}
SUMMARY_KEYS = ("tokens_per_second", "mfu", "seconds", "waiting")


def read_plan(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a plan: the settings of all with the changes of each, which are its name."""
    import yaml

    plan = yaml.safe_load(path.read_text())
    return [
        {**plan["base"], **run, "name": " ".join(f"{key}={json.dumps(value)}" for key, value in run.items()) or "base"}
        for run in plan["runs"]
    ]


def call(*arguments: str, seconds: float | None = None, log: Path | None = None) -> dict[str, Any]:
    """Run a command of pretune and return its JSON."""
    command = [sys.executable, "-m", "pretune", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if log is not None:
        log.write_text(done.stderr)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def prepare(text: Path, vocab: int, work: Path) -> None:
    """Train a tokenizer and prepare the data of a vocabulary, unless they exist."""
    tokenizer, data = work / f"tokenizer-{vocab}", work / f"data-{vocab}"
    if not (data / "card.json").exists():
        call("tokenizer", str(text), "--kind", "wordpiece", "--vocab", str(vocab), "--out", str(tokenizer))
        call("prepare", str(text), "--tokenizer", str(tokenizer), "--out", str(data))


def train(run: Mapping[str, Any], work: Path, end: float) -> dict[str, Any]:
    """Train a run and return its line; `end` is a time of `time.monotonic`."""
    data = work / f"data-{run['vocab']}"
    split = json.loads((data / "card.json").read_text())["splits"]["train"]
    settings = {**SETTINGS, **{key: value for key, value in run.items() if key not in OWN_KEYS}}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = ["pretrain", run["model"], "--data", str(data), *words]
    per_token = call(*command, "--tokens", "1000000", "--dry-run")["cost"]["flops_per_token"]
    tokens = int(run["pflop"] * 1e15 / per_token)
    out = work / "runs" / hashlib.sha256(run["name"].encode()).hexdigest()[:12]
    out.parent.mkdir(exist_ok=True)
    result = call(
        *[*command, "--tokens", str(tokens), "--out", str(out)],
        seconds=max(1.0, end - time.monotonic()),
        log=out.with_suffix(".log"),
    )
    loss = result["held_out"]["loss"]
    return {
        **run,
        "loss": round(loss, 4),
        "loss_by_byte": round(loss * split["tokens"] / split["bytes"], 4),
        "accuracy": round(result["held_out"].get("accuracy", 0.0), 4),
        "tokens": tokens,
        "epochs": round(tokens / split["tokens"], 2),
        **{key: result[key] for key in SUMMARY_KEYS if key in result},
    }


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="folder of text files")
    parser.add_argument("--work", type=Path, required=True, help="directory of the data and runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--streams", type=int, default=14, help="runs side by side")
    parser.add_argument("--seconds", type=float, default=540.0, help="limit of the whole")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    runs = read_plan(args.plan)
    names = {json.loads(line)["name"] for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda vocab: prepare(args.text, vocab, args.work), sorted({run["vocab"] for run in runs})))
    print(f"{args.seconds - (end - time.monotonic()):.0f} s: data", flush=True)
    if args.streams > 1:
        start_mps()

    def work(run: Mapping[str, Any]) -> None:
        if time.monotonic() > end:
            return
        try:
            line = train(run, args.work, end)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{run['name']}: {str(error)[-400:]}", flush=True)
            return
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{args.seconds - (end - time.monotonic()):.0f} s: {line['loss']:.4f} {run['name']}", flush=True)

    with ThreadPoolExecutor(args.streams) as pool:
        list(pool.map(work, [run for run in runs if run["name"] not in names]))


if __name__ == "__main__":
    main()
