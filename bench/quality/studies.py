"""Run several studies on a preemptible machine, and keep what is finished.

    PRETUNE_DATA=FOLDER python -m bench.quality.studies bart-noise labels --work DIR --out FILE.tar.gz

`--together` studies run at the same time, each with `--jobs` steps side by side, on an NVIDIA GPU under MPS. Every few
seconds the archive is written: results, tokenizers, and the records of finished steps, which are small. On another
machine `--restore` continues with them: finished cells are not run again, and what an unfinished one needs is. After
`--seconds`, or with a signal, all studies are stopped; the same command goes on. Exit code 75 if not all are finished.
With `--first` only these steps run, which need no GPU: tokenizers, for an archive that saves their time elsewhere;
prepared data, while something else uses the GPU.

With `--plan FILE --lease N` the studies and rows are those of one lease, one study after the other, and each takes the
equal steps of those before it. `--plan FILE --dry-run` prints what each lease takes:

    PRETUNE_DATA=FOLDER python -m bench.quality.studies --plan bench/quality/plans/claims.yaml --dry-run
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import common
from pretune.studies.compare import CompareOptions, build_plan
from pretune.studies.execute import Execution
from pretune.studies.plan import Plan, Step
from pretune.studies.study_dir import StudyDir

POLL_SECONDS, SAVE_SECONDS, STOP_SECONDS = 0.5, 10.0, 60.0
UNFINISHED = 75
RATE, START_SECONDS = 0.23 * 989e12, 15.0
"""FLOP/s of a large pre-training alone on an H200 and seconds until its first step, as measured in the log."""
SECONDS = {"finetune": 4.0, "evaluate": 2.0, "embeddings": 10.0}
"""Seconds of smaller steps, of which six or seven run side by side."""
KEPT_FILES = ("plan.json", "study.json", "study.md", "study.html", "steps/*.json", "steps/tokenizer-*/*")


def start_mps() -> None:
    """Let several processes use the GPU at the same time, if there is one."""
    if common.find_device() == "cuda" and shutil.which("nvidia-cuda-mps-control"):
        os.environ.setdefault("CUDA_MPS_PIPE_DIRECTORY", "/tmp/pretune-mps")
        os.environ.setdefault("CUDA_MPS_LOG_DIRECTORY", "/tmp/pretune-mps-log")
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)


def save(work: Path, out: Path) -> None:
    """Write the archive of results, records and messages; the old one stays until the new one is complete."""
    target = out.with_name(f"{out.name}.part")
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(
            {path for pattern in KEPT_FILES for path in work.glob(f"*/{pattern}")} | {*work.glob("*.log")}
        ):
            archive.add(path, str(path.relative_to(work)))
    target.replace(out)


def restore(archive_path: Path, work: Path) -> None:
    """Unpack the archive of another machine."""
    with tarfile.open(archive_path) as archive:
        archive.extractall(work, filter="data")


def read_leases(path: Path) -> list[dict[str, list[str]]]:
    """Return the leases of a plan: the rows of each study, none for all of them."""
    import yaml

    leases: list[list[dict[str, Any]]] = yaml.safe_load(path.read_text())["leases"]
    return [{job["study"]: job.get("rows", []) for job in lease} for lease in leases]


def print_plan(leases: Sequence[dict[str, list[str]]], scale: str) -> None:
    """Print what each lease takes: pre-trainings that none before it in the same lease has, and all other steps."""
    finished: set[str] = set()
    plans: dict[str, Plan] = {}
    for number, lease in enumerate(leases, 1):
        steps: dict[str, Step] = {}
        for study, rows in lease.items():
            if study not in plans:
                plans[study] = build_plan(CompareOptions(study=study, scale=scale))
            plan = plans[study]
            keys = plan.list_steps([cell for cell in plan.cells if not rows or cell.row in rows])
            pending = {key for key in keys if key not in finished}
            for key in reversed(keys):  # weights do not move: a pre-training runs again for what is left of it
                if key in pending:
                    pending.update(plan.steps[key].file_inputs)
            steps |= {key: plan.steps[key] for key in keys if key in pending}
        finished |= steps.keys()
        runs = [step.estimate for step in steps.values() if step.action == "pretrain"]
        pretrain_seconds = sum(estimate.flops / RATE + START_SECONDS for estimate in runs)
        counts = {action: sum(step.action == action for step in steps.values()) for action in SECONDS}
        other_seconds = sum(count * SECONDS[action] for action, count in counts.items())
        names = "; ".join(f"{name} ({', '.join(rows) or 'all'})" for name, rows in lease.items())
        print(
            f"| {number} | {names} | {len(runs)} | {sum(e.flops for e in runs) / 1e15:.0f} | {pretrain_seconds:.0f} | "
            f"{counts['finetune']} | {other_seconds:.0f} | {pretrain_seconds + other_seconds:.0f} |"
        )


def start(name: str, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a study in its own group of processes."""
    out = args.work / Path(name).stem
    options = ["--scale", args.scale, "--out", str(out)]
    options += [] if args.jobs is None else ["--jobs", str(args.jobs)]
    options += [word for row in args.rows.get(name, ()) for word in ("--row", row)]
    others = [path.parent for path in sorted(args.work.glob("*/plan.json")) if path.parent != out]
    options += [word for other in others for word in ("--share", str(other))]
    options += [word for setting in args.set for word in ("--set", setting)]
    with (args.work / f"{Path(name).stem}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pretune", "compare", name, *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run_first_steps(names: Sequence[str], args: argparse.Namespace) -> None:
    """Run the steps without a model, of all studies, in this process."""
    for name in names:
        overrides = dict(setting.split("=", 1) for setting in args.set)
        plan = build_plan(CompareOptions(study=name, scale=args.scale, overrides=overrides, device="cpu"))
        study_dir = StudyDir(args.work / Path(name).stem)
        cells = [cell for cell in plan.cells if not args.rows.get(name) or cell.row in args.rows[name]]
        keys = [key for key in plan.list_steps(cells) if plan.steps[key].action in args.first]
        Execution(plan, study_dir, keys, device="cpu").run()
    save(args.work, args.out)


@contextlib.contextmanager
def catch_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set, so that the studies end before this process, and are saved."""
    event = threading.Event()
    previous_handlers = {
        number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield event
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def run(names: Sequence[str], args: argparse.Namespace, stop: threading.Event) -> dict[str, int]:
    """Run the studies until a signal or the end of the time; returns the exit code of each that ended by itself."""
    begin, last_save = time.monotonic(), 0.0
    waiting, running, codes = [*names], dict[str, subprocess.Popen[bytes]](), dict[str, int]()
    while (waiting or running) and time.monotonic() - begin < args.seconds and not stop.is_set():
        while waiting and len(running) < args.together:
            running[waiting[0]] = start(waiting[0], args)
            waiting.pop(0)
        for name, process in [*running.items()]:
            if process.poll() is not None:
                codes[name] = running.pop(name).returncode
                print(f"{time.monotonic() - begin:.0f} s: {name}: exit code {codes[name]}", flush=True)
        if time.monotonic() - last_save > SAVE_SECONDS:
            save(args.work, args.out)
            last_save = time.monotonic()
        stop.wait(POLL_SECONDS)
    for process in running.values():
        process.send_signal(signal.SIGTERM)  # it saves what runs, and ends its workers
    for process in running.values():
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    save(args.work, args.out)
    return codes


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("studies", nargs="*", help="names, or YAML files")
    parser.add_argument("--plan", type=Path, help="YAML file of leases, instead of studies")
    parser.add_argument("--lease", type=int, help="number of a lease of the plan, from 1")
    parser.add_argument("--dry-run", action="store_true", help="print what the leases of the plan take")
    parser.add_argument("--scale", default="gpu", choices=("class", "gpu", "full"))
    parser.add_argument("--jobs", type=int, help="steps of a study side by side; default: by the device")
    parser.add_argument("--together", type=int, help="studies at the same time (default: 2; of a plan 1)")
    parser.add_argument("--seconds", type=float, default=560.0, help="after which all are stopped")
    parser.add_argument("--work", type=Path, help="directory of the studies")
    parser.add_argument("--out", type=Path, help="archive: .tar.gz")
    parser.add_argument("--restore", type=Path, help="archive of another machine")
    parser.add_argument("--first", nargs="+", choices=("tokenizer", "data"), help="run only these steps")
    parser.add_argument("--set", action="append", default=[], help="setting of all studies, as in pretune compare")
    args = parser.parse_args()
    leases = [] if args.plan is None else read_leases(args.plan)
    if args.dry_run:
        print_plan(leases, args.scale)
        return
    args.rows = leases[args.lease - 1] if args.lease else {}
    args.studies = [*args.studies, *args.rows]
    args.together = args.together or (1 if args.lease else 2)
    if not args.studies or args.work is None or args.out is None:
        parser.error("pass studies, or --plan and --lease; and --work and --out")
    args.work.mkdir(parents=True, exist_ok=True)
    if args.restore is not None:
        restore(args.restore, args.work)
    if args.first:
        run_first_steps(args.studies, args)
        return
    start_mps()
    with catch_signals() as stop:
        codes = run(args.studies, args, stop)
    for name in args.studies:
        folder = args.work / Path(name).stem
        finished = len([*folder.glob("steps/*.json")])
        print(f"{name}: {finished} steps finished, {'done' if codes.get(name) == 0 else 'not done'}")
    sys.exit(0 if all(codes.get(name) == 0 for name in args.studies) else UNFINISHED)


if __name__ == "__main__":
    main()
