"""Startup time (target P13): `pretune --help`, and a run from the command to the end of its first step.

    python -m bench.speed.startup [--repeats 5] [--threads 1] [--out result.json]

Every number is measured in a new process, from before its start. A run is `pretune pretrain bert-tiny` on a small
prepared corpus, including checks, the first evaluation and the first checkpoint. The peers are a script that imports
torch and takes one AdamW step on one parameter (a lower bound), and one that takes a step of the same model with
transformers (collator, model, AdamW; no evaluation or checkpoint). Prints JSON: CPU and wall-clock seconds, the minimum
of alternated repeats, since other load only adds time. Goals on an idle machine: 0.3 s and 5 s.

    python -m bench.speed.startup --large DATA

`pretune pretrain bert-base` on prepared data, 65,536 tokens per step, compiled on a GPU: seconds until our modules are
imported, until the loop starts, and until the first step has ended; with empty compiler caches and again with full
ones. The goal is 40 s.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import common

FIRST = """
import os, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook
from pretune.training.loop import Loop
run = Loop.run
print("imported", time.time(), time.process_time(), flush=True)
def timed_run(self, *arguments):
    print("opened", time.time(), time.process_time(), flush=True)
    return run(self, *arguments)
def stop(*_):
    import torch
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    print("first", time.time(), time.process_time(), flush=True)
    os._exit(0)
Loop.run = timed_run
register_optimizer_step_post_hook(stop)
from pretune.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command line and exits after the first step."""
LARGE = ("pretrain", "bert-base", "--paper", "--objective", "masked", "--steps", "9", "--set", "data.samples=documents",
         "--set", "data.max_length=512", "--set", "train.batch_tokens=65536")  # fmt: skip

BARE = """
import time, torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight], fused=True)
weight.sum().backward()
optimizer.step()
print("first", time.time(), time.process_time(), flush=True)
"""

PEER = """
import sys, time, torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
shape = BertConfig(vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=512)
model = BertForMaskedLM(shape).train()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
texts = open(sys.argv[2]).read().split("\\n\\n")[:16]
collate = DataCollatorForLanguageModeling(tokenizer)
model(**collate([tokenizer(text, truncation=True, max_length=128) for text in texts])).loss.backward()
optimizer.step()
print("first", time.time(), time.process_time(), flush=True)
"""

PHASES = ("imported", "opened", "first")


def run(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds until a process prints "first", or ends."""
    cpu_start = os.times()
    phases = measure_phases(arguments, folder)
    cpu_end = os.times()
    return phases.get("first", (phases["end"][0], sum(cpu_end[2:4]) - sum(cpu_start[2:4])))


def measure_phases(arguments: list[str], folder: Path) -> dict[str, tuple[float, float]]:
    """Return the wall-clock and CPU seconds of a process until each of its phases."""
    start = time.time()
    process = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    end = time.time()
    if process.returncode:
        raise SystemExit(f"{arguments[-1]}: {process.stderr[-2000:]}")
    lines = [line.split() for line in process.stdout.splitlines()]
    rows = [line for line in lines if len(line) == 3 and line[0] in PHASES]
    return {**{row[0]: (float(row[1]) - start, float(row[2])) for row in rows}, "end": (end - start, 0.0)}


def measure_large_model(data: Path, out: Path | None) -> None:
    """Measure BERT-base with empty and with full compiler caches."""
    result = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{name}/inductor", "TRITON_CACHE_DIR": f"{name}/triton"}
        for turn in ("empty caches", "full caches"):
            arguments = ["-c", FIRST, *LARGE, "--data", str(data.resolve()), "--out", f"run {turn}"]
            result[turn] = {
                phase: round(seconds, 1) for phase, (seconds, _) in measure_phases(arguments, Path(name)).items()
            }
            print(turn, json.dumps(result[turn]), flush=True)
    common.write_result(result, out)


def main() -> None:
    """Prepare the data, alternate the commands and print the times."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", type=Path, metavar="DATA", help="measure BERT-base on this data instead")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(common.ROOT / "src")
    if options.large:
        measure_large_model(options.large, options.out)
        return
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(common.make_documents(40_000, 997, 60))
        run(
            ["-m", "pretune", "tokenizer", "text.txt", "--kind", "wordpiece", "--vocab", "1000", "--out", "tok"], folder
        )
        run(["-m", "pretune", "prepare", "text.txt", "--tokenizer", "tok", "--out", "data"], folder)
        times: dict[str, list[tuple[float, float]]] = {}
        for turn in range(options.repeats):
            pretrain = ["pretrain", "bert-tiny", "--paper", "--data", "data", "--objective", "masked", "--steps", "9"]
            commands = {
                "pretune --help": ["-m", "pretune", "--help"],
                "first step": ["-c", FIRST, *pretrain, "--out", f"run-{turn}"],
                "torch, one step": ["-c", BARE],
                "transformers, one step": ["-c", PEER, "tok", "text.txt"],
            }
            for command, arguments in commands.items():
                times.setdefault(command, []).append(run(arguments, folder))
    minimum = {
        command: [round(min(values), 2) for values in zip(*rows, strict=True)] for command, rows in times.items()
    }
    result = {
        "seconds": {command: {"wall_clock": wall, "cpu": cpu} for command, (wall, cpu) in minimum.items()},
        "ratio": {
            "transformers / ours, CPU time": round(minimum["transformers, one step"][1] / minimum["first step"][1], 2),
            "ours / torch, CPU time": round(minimum["first step"][1] / minimum["torch, one step"][1], 2),
        },
        "threads": options.threads,
        "load": round(os.getloadavg()[0], 1),
    }
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
