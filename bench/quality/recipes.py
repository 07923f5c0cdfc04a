"""Settings of pre-training, compared on one machine: a queue of runs, each with the tasks that score it.

    python -m bench.quality.recipes PLAN.yaml --text FOLDER --work DIR --out runs.jsonl [--slots 14] [--seconds 540]

The plan has `base`, the settings of all runs, and `runs`, the changes of each. A run is given by

    name                its name (default: its changes)
    model, vocab        family and size, and the size of its vocabulary (of `tokenizer`, a kind, by default wordpiece,
                        and `style`, its special tokens, by default the usual ones)
    objective           instead of that of the model
    pflop, tokens       its length: 10^15 floating-point operations of training, or tokens; or
    budget              a time: the recipe or model is trained from `--text`, with nothing else chosen unless set
    share, files        share of each file of the text (0.04 of 28.9M words are 1.2M), and files by a part
                        of their name (default: all)
    slots               of `--slots`, how many it takes (default 1); `alone: true` runs without others, before them
    suite               list of settings of fine-tuning, each tried on `tasks` (default: all of bench.quality.suite), of
                        two slots each
    then                list of commands of pretune afterwards; {run} is the directory of the run
    only                a mapping that replaces `base`

and any settings by path. Data are prepared once for each vocabulary, kind and share. Each result is a JSON line: for a
run its validation loss (15 % of the tokens, whatever the run masks), the loss by byte of text (comparable between
vocabularies), tokens, epochs, parameters and rate. What has a line is not repeated. The plan is read again whenever the
file changes, so that the next runs can depend on the first results; nothing starts after `--seconds`, and what still
runs then is ended. Rates are those of the device alone only for runs that are `alone`.
"""

import argparse
import hashlib
import json
import lzma
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from bench import common
from bench.quality import suite
from bench.quality.studies import start_mps

Run = Mapping[str, Any]
OWN_KEYS = {
    *("name", "model", "vocab", "tokenizer", "style", "pflop", "tokens", "budget", "share", "files", "slots", "alone"),
    *("objective", "suite", "tasks", "then", "only", "seeds", "options"),
}
STYLES = {"wordpiece": "cls-sep", "bpe": "endoftext", "unigram": "sentinels"}
SETTINGS = {"train.samples_every": 0, "train.eval_tokens": 300_000, "train.log_every": 50, "train.workers": 1}
SUMMARY_KEYS = ("tokens_per_second", "mfu", "seconds", "waiting")


class Job(NamedTuple):
    """A step of the queue; it starts when the lines of `after` exist."""

    name: str
    work: Callable[[], dict[str, Any]]
    slots: int
    alone: bool
    after: str | None = None


def read_plan(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a plan: the settings of all with the changes of each, which are its name."""
    import yaml

    plan = yaml.safe_load(path.read_text())
    base = plan.get("base", {})
    return [
        {**(run.get("only", base)), **run, "name": run.get("name") or json.dumps(run)[1:-1].replace('"', "") or "base"}
        for run in plan["runs"]
    ]


def call(*arguments: str, end: float, log: Path | None = None) -> dict[str, Any]:
    """Run a command of pretune and return its JSON; it is ended at `end`, a time of `time.monotonic`."""
    command = [sys.executable, "-m", "pretune", *arguments, "--json"]
    seconds = max(1.0, end - time.monotonic())
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if log is not None:
        log.write_text(done.stderr)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def copy_share(text: Path, run: Run, out: Path) -> Path:
    """Write the part of the text that a run reads to `out`, cut between documents, and return the folder."""
    share, part = run.get("share", 1), run.get("files", "")
    if share == 1 and not part:
        return text
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(path for path in text.iterdir() if part in path.name):
        content = (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8").read()
        end = content.find("\n\n", int(share * len(content)))
        (out / path.name.removesuffix(".xz")).write_text(content[: end if end >= 0 else None], encoding="utf-8")
    return out


def name_data(run: Run) -> str:
    """Return the name of the data of a run."""
    kind = f"{run.get('tokenizer', 'wordpiece')}{run.get('style', '')}"
    return f"{kind}-{run['vocab']}-{run.get('share', 1)}{run.get('files', '')}"


def prepare(run: Run, text: Path, work: Path, end: float) -> dict[str, Any]:
    """Train a tokenizer and prepare the data of a run."""
    started = time.monotonic()
    name = name_data(run)
    text = copy_share(text, run, work / f"text-{name}")
    tokenizer, kind = work / f"tokenizer-{name}", run.get("tokenizer", "wordpiece")
    options = ("--kind", kind, "--style", run.get("style", STYLES[kind]), "--vocab", str(run["vocab"]))
    call("tokenizer", str(text), *options, "--out", str(tokenizer), end=end)
    card = call("prepare", str(text), "--tokenizer", str(tokenizer), "--out", str(work / f"data-{name}"), end=end)
    return {"seconds": round(time.monotonic() - started, 1), "splits": card.get("splits")}


def list_options(run: Run) -> list[str]:
    """Return the settings of a run as options; those of a budget are chosen by pretune."""
    settings = {key: value for key, value in run.items() if key not in OWN_KEYS}
    if "budget" not in run:
        settings = {**SETTINGS, **settings}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    return [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]


def train(run: Run, text: Path, work: Path, end: float) -> dict[str, Any]:
    """Train a run and return its line."""
    out = locate(run, work)
    out.parent.mkdir(parents=True, exist_ok=True)
    command = ["pretrain", run["model"], *list_options(run)]
    command += ["--objective", run["objective"]] if "objective" in run else []
    if "budget" in run:
        source = ("--data", str(work / f"data-{name_data(run)}")) if "vocab" in run else ("--text", str(text))
        result = call(
            *command, *source, "--budget", run["budget"], "--out", str(out), end=end, log=out.with_suffix(".log")
        )
        data = Path(json.loads((out / "run.json").read_text())["data"]["path"])
        tokens = result["tokens"]
    else:
        data = work / f"data-{name_data(run)}"
        command += ["--data", str(data)]
        tokens = run.get("tokens")
        if tokens is None:
            per_token = call(*command, "--tokens", "1000000", "--dry-run", end=end)["cost"]["flops_per_token"]
            tokens = int(run["pflop"] * 1e15 / per_token)
        result = call(*command, "--tokens", str(tokens), "--out", str(out), end=end, log=out.with_suffix(".log"))
    split = json.loads((data / "card.json").read_text())["splits"]["train"]
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


def locate(run: Run, work: Path) -> Path:
    """Return the directory of a run."""
    return work / "runs" / hashlib.sha256(run["name"].encode()).hexdigest()[:12]


def list_jobs(runs: list[dict[str, Any]], args: argparse.Namespace, end: float) -> Iterator[Job]:
    """Yield the steps of a plan: data, training, and what scores a run."""
    for run in runs:
        data = f"data {name_data(run)}" if "vocab" in run else None
        if data is not None:
            yield Job(data, lambda run=run: prepare(run, args.text, args.work, end), 1, False)  # type: ignore[misc]
        alone = bool(run.get("alone"))
        work = lambda run=run: train(run, args.text, args.work, end)  # type: ignore[misc]  # noqa: E731
        yield Job(run["name"], work, run.get("slots", 1), alone, data)
        out = locate(run, args.work)
        for settings in run.get("suite", ()):
            for task in run.get("tasks", [*suite.TASKS]):
                yield Job(
                    f"{run['name']} | {task} {json.dumps(settings)}",
                    lambda out=out, task=task, settings=settings, run=run: suite.finetune(  # type: ignore[misc]
                        out, task, settings,
                        data=args.tasks, seeds=run.get("seeds", 1), seconds=max(1.0, end - time.monotonic()),
                        options=run.get("options", ""),
                    ),
                    2, False, run["name"],
                )  # fmt: skip
        for command in run.get("then", ()):
            words = shlex.split(command.format(run=out))
            work = lambda words=words: {"result": call(*words, end=end)}  # type: ignore[misc]  # noqa: E731
            yield Job(f"{run['name']} | {command}", work, 1, False, run["name"])


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="folder of text files")
    parser.add_argument("--tasks", type=Path, help="directory of the task data, for suites")
    parser.add_argument("--work", type=Path, required=True, help="directory of the data and runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--slots", type=int, default=14, help="slots of the steps that run side by side")
    parser.add_argument("--seconds", type=float, default=540.0, help="limit of the whole")
    parser.add_argument("--wait", action="store_true", help="wait for changes of the plan until the limit")
    args = parser.parse_args()
    started = time.monotonic()
    end = started + args.seconds
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.slots > 1:
        start_mps()
    names = [json.loads(line)["name"] for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done, failed, running = {*names}, set[str](), dict[str, Job]()
    threads: list[Thread] = []

    def work(job: Job) -> None:
        begin = time.monotonic()
        try:
            line = {**job.work(), "name": job.name, "at": [round(begin - started), round(time.monotonic() - started)]}
        except Exception as error:  # a step that fails does not end the others
            failed.add(job.name)
            print(f"{job.name}: {str(error)[-400:]}", flush=True)
        else:
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            done.add(job.name)
            print(f"{line['at'][1]} s: {line.get('loss', line.get('score', ''))} {job.name}", flush=True)
        del running[job.name]

    while time.monotonic() < end:
        jobs = {job.name: job for job in list_jobs(read_plan(args.plan), args, end)}
        pending = [job for name, job in jobs.items() if name not in {*done, *failed, *running}]
        pending.sort(key=lambda job: not job.alone)  # the others side by side, after those
        if not running and not args.wait and all(job.after is not None and job.after not in done for job in pending):
            break
        for job in pending:
            busy = sum(job.slots for job in [*running.values()])
            is_free = not busy if job.alone else busy + job.slots <= max(args.slots, job.slots)
            if any(job.alone for job in [*running.values()]) or (job.after is not None and job.after not in done):
                continue
            if not is_free:
                break  # in the order of the plan
            running[job.name] = job
            threads.append(Thread(target=work, args=(job,)))
            threads[-1].start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
