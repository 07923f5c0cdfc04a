"""Startup time (target P13): `pretune --help`, and a run from the command to the end of its first step.

    PYTHONPATH=src python bench/startup.py [--repeats 5] [--threads 1] [--out result.json]

Every number is measured in a new process, from before its start. A run is `pretune pretrain bert-tiny` on a small
prepared corpus, including checks, the first evaluation and the first checkpoint. The peers are a script that imports
torch and takes one AdamW step on one parameter (a lower bound), and one that takes a step of the same model with
transformers (collator, model, AdamW; no evaluation or checkpoint). Prints JSON: CPU and wall-clock seconds, the minimum
of alternated repeats, since other load only adds time. Goals on an idle machine: 0.3 s and 5 s.

    PYTHONPATH=src python bench/startup.py --large DATA

`pretune pretrain bert-base` on prepared data, 65,536 tokens per step, compiled on a GPU: seconds until our modules are
imported, until the loop starts, and until the first step has ended; with empty compiler caches and again with full
ones. The goal is 40 s.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST = """
import os, sys, time
from pretune.training.loop import Loop
record, run = Loop._record, Loop.run
print("imported", time.time(), time.process_time(), flush=True)
def timed_run(self):
    print("opened", time.time(), time.process_time(), flush=True)
    return run(self)
def timed_record(self, *metrics):
    record(self, *metrics)
    if self.ranks.device.type == "cuda":
        import torch
        torch.cuda.synchronize()
    print("first", time.time(), time.process_time(), flush=True)
    os._exit(0)
Loop.run, Loop._record = timed_run, timed_record
from pretune.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command line and exits after the first step."""
LARGE = ("pretrain", "bert-base", "--objective", "masked", "--steps", "9", "--set", "data.samples=documents",
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
    before = os.times()
    found = measure_phases(arguments, folder)
    after = os.times()
    return found.get("first", (found["end"][0], sum(after[2:4]) - sum(before[2:4])))


def measure_phases(arguments: list[str], folder: Path) -> dict[str, tuple[float, float]]:
    """Return the wall-clock and CPU seconds of a process until each of its phases."""
    begun = time.time()
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    ended = time.time()
    if done.returncode:
        raise SystemExit(f"{arguments[-1]}: {done.stderr[-2000:]}")
    lines = [line.split() for line in done.stdout.splitlines()]
    said = {line[0]: (float(line[1]) - begun, float(line[2])) for line in lines if len(line) == 3 and line[0] in PHASES}
    return {**said, "end": (ended - begun, 0.0)}


def measure_large_model(data: Path, out: Path | None) -> None:
    """Measure BERT-base with empty and with full compiler caches."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{name}/inductor", "TRITON_CACHE_DIR": f"{name}/triton"}
        for turn in ("empty caches", "full caches"):
            given = ["-c", FIRST, *LARGE, "--data", str(data.resolve()), "--out", f"run {turn}"]
            found[turn] = {mark: round(clock, 1) for mark, (clock, _) in measure_phases(given, Path(name)).items()}
            print(turn, json.dumps(found[turn]), flush=True)
    if out:
        out.write_text(json.dumps(found, indent=2))


def make_text() -> str:
    """Create documents of 60 words with repeated words."""
    words = [f"w{number * number % 997}" for number in range(40_000)]
    return "\n\n".join(" ".join(words[start : start + 60]) for start in range(0, len(words), 60))


def main() -> None:
    """Prepare the data, alternate the commands and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--large", type=Path, metavar="DATA", help="measure BERT-base on this data instead")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1] / "src")
    if options.large:
        measure_large_model(options.large, options.out)
        return
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(make_text())
        run(
            ["-m", "pretune", "tokenizer", "text.txt", "--kind", "wordpiece", "--vocab", "1000", "--out", "tok"], folder
        )
        run(["-m", "pretune", "prepare", "text.txt", "--tokenizer", "tok", "--out", "data"], folder)
        found: dict[str, list[tuple[float, float]]] = {}
        for turn in range(options.repeats):
            started = ["pretrain", "bert-tiny", "--data", "data", "--objective", "masked", "--steps", "9"]
            commands = {
                "pretune --help": ["-m", "pretune", "--help"],
                "first step": ["-c", FIRST, *started, "--out", f"run-{turn}"],
                "torch, one step": ["-c", BARE],
                "transformers, one step": ["-c", PEER, "tok", "text.txt"],
            }
            for command, arguments in commands.items():
                found.setdefault(command, []).append(run(arguments, folder))
    least = {command: [round(min(values), 2) for values in zip(*rows, strict=True)] for command, rows in found.items()}
    line = {
        "seconds": {command: {"clock": clock, "processor": processor} for command, (clock, processor) in least.items()},
        "ratio": {
            "transformers / ours, CPU time": round(least["transformers, one step"][1] / least["first step"][1], 2),
            "ours / torch, CPU time": round(least["first step"][1] / least["torch, one step"][1], 2),
        },
        "threads": options.threads,
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(line, indent=2))
    if options.out:
        options.out.write_text(json.dumps(line, indent=2))


if __name__ == "__main__":
    main()
