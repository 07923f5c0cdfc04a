"""The quick start on a GPU, whole; then other rates and other sizes, judged on dev reviews, while there is time.

    PYTHONPATH=src python bench/quickstart_gpu.py runs/gpu --reviews reviews.csv --budget 150s --until 240 --try rates

The first is the command that a user types. `profile` says on stderr where the time of some rows goes. `rates`
fine-tunes its network in other ways, all at once, each in a process of its own; `sizes` pre-trains other networks for
`--seconds`, one after the other. What would end after `--until` seconds is ended. Prints one line of JSON for
everything; how long a part took beside others says little.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.recipes.quickstart.plan import plan_for
from pretune.recipes.quickstart.work import divided

RATES = (
    "full",
    "random",
    "lora",
    "gradual",
    "full tune=2e-5",
    "full tune=6e-5",
    "full tune=5e-4",
    "full tune=2e-3 decay=0.3",
    "random fresh=[1e-4,1.0]",
    "random fresh=[5e-4,1.0]",
    "random fresh=[1e-3,1.0]",
    "lora light=1e-4",
    "lora light=3e-4",
    "gradual tune=6e-5",
)
"""Rows, and what is changed in the plan. What the whole run has is here too: that was judged on test."""
SIZES = (
    "batch=16384",
    "batch=16384 lr=1e-3",
    "batch=16384 compile=false",
    "width=256 depth=4 heads=4 hidden=1024 batch=16384 lr=1e-3",
    "width=768 depth=6 heads=12 hidden=3072 batch=16384",
)
SHARED = ("tokenizer", "data", "start", "pretrain")


def whole(args: argparse.Namespace) -> None:
    """The command, and where its time went."""
    run = args.out / "whole"
    command = [sys.executable, "-m", "pretune", "quickstart", "--device", args.device, "--budget", args.budget]
    command += ["--reviews", str(args.reviews), "--out", str(run), "--json"]
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    ended(done, args)
    tell("whole", rc=done.returncode, s=round(time.monotonic() - args.began, 1))
    results = json.loads((run / "results.json").read_text())
    for stage in results["stages"]:
        tell("stage", name=stage["name"], s=stage["seconds"])
    for row in results["rows"]:
        tell("row", **{name: row[name] for name in ("method", "labels", "mean", "seeds", "each")})
    tell("pretrain", **spent(run / "pretrain"))
    for trial in sorted(run.glob("tuned/*/trial.json")):
        found = json.loads(trial.read_text())["summary"]
        tell("trial", run=trial.parent.name, **{name: x for name, x in found.items() if name != "cost"})


def rates(args: argparse.Namespace) -> None:
    """Other ways to fine-tune the network of the whole run, side by side."""
    base = beside(args)
    asked = [(row, changes) for row, *changes in map(str.split, RATES)]
    running = [begun(args, base, [row], changes, "--steps", "1", "--labels", "1000,5000") for row, changes in asked]
    for one in running:
        ended(one, args)


def profile(args: argparse.Namespace) -> None:
    """Where the time of rows goes: each twice, for the first of its kind takes longer."""
    rows, more = ["frozen", "full"], ("--steps", "1", "--labels", "200,1000", "--profile", "40")
    rated(args, beside(args), rows, [], *more)


def beside(args: argparse.Namespace) -> Path:
    """A place with the network of the whole run, where rows are judged on dev reviews."""
    base = args.out / "rates"
    if not base.is_dir():
        base.mkdir()
        for name in SHARED:
            (base / name).symlink_to((args.out / "whole" / name).resolve())
        plan = plan_for(args.device)
        texts = divided(args.reviews, plan)
        replace(texts, test=texts.dev).write(base / "texts", plan.watched)
    return base


def sizes(args: argparse.Namespace) -> None:
    """Other networks, one after the other."""
    for number, changes in enumerate(map(str.split, SIZES)):
        base = args.out / f"size-{number}"
        base.mkdir(exist_ok=True)
        for name in ("tokenizer", "data"):
            if not (base / name).exists():
                (base / name).symlink_to((args.out / "whole" / name).resolve())
        left = args.until - time.monotonic() + args.began
        if left < args.seconds + 15:
            return
        rated(args, base, ["frozen", "full"], changes, "--seconds", str(args.seconds), "--labels", "1000,5000")
        tell("pretrain", set=changes, **spent(base / "pretrain"))


def spent(run: Path) -> dict[str, Any]:
    """What a run of pre-training did in its time."""
    cost = json.loads((run / "cost.json").read_text())
    return {**cost["run"], "mfu": cost["mfu"]}


def begun(
    args: argparse.Namespace, base: Path, rows: list[str], changes: list[str], *more: str
) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("quickstart_rates.py")
    command = [sys.executable, script, base, "--device", args.device, "--reviews", args.reviews, *more]
    command += ["--rows", ",".join(rows), *(part for one in changes for part in ("--set", one))]
    threads = {"OMP_NUM_THREADS": "1"} if len(rows) == 1 else {}
    return subprocess.Popen(list(map(str, command)), env={**os.environ, **threads})


def ended(one: "subprocess.Popen[bytes]", args: argparse.Namespace) -> None:
    """Wait for it, but not for ever."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        one.wait(max(args.until - (time.monotonic() - args.began), 0.1))
    if one.poll() is None:
        tell("ended before it was done", command=one.args)
        one.terminate()
        one.wait()


def rated(args: argparse.Namespace, base: Path, rows: list[str], changes: list[str], *more: str) -> None:
    ended(begun(args, base, rows, changes, *more), args)


def tell(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, **facts}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--reviews", type=Path, required=True, help="a table with the columns text and label")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", default="150s")
    parser.add_argument("--until", type=float, default=240, help="seconds")
    parser.add_argument("--seconds", type=float, default=30, help="of pre-training other sizes")
    parser.add_argument("--try", dest="wanted", default="rates", help="some of profile, rates, sizes, or none")
    args = parser.parse_args()
    args.began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "whole").exists():
        whole(args)
    for name, work in (("profile", profile), ("rates", rates), ("sizes", sizes)):
        if name in args.wanted.split(","):
            work(args)
    tell("end", s=round(time.monotonic() - args.began, 1))


if __name__ == "__main__":
    main()
