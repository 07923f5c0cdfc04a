"""P13 and "no slower start": how long `pretune --help` takes, and a run from the command to the end of its first step.

    PYTHONPATH=src python bench/startup.py [--repeats 5] [--threads 1] [--out result.json]

Every number is that of a new process, from before it starts. A run is `pretune pretrain bert-tiny` on a small corpus
prepared beforehand, with its checks, its first evaluation and its first checkpoint; the peers are a script that imports
torch and takes one step of AdamW on a single weight, below which nobody gets, and one that takes a step of the same
model with transformers (collator, model, AdamW; no evaluation, nothing saved). Alternated; the least of each, for other
work on the machine only ever adds: of processor time, and by the clock. The goals, on a machine without other work:
0.3 s for the help, 5 s to the first step.

    PYTHONPATH=src python bench/startup.py --large DATA

`pretune pretrain bert-base` on prepared data, 65,536 tokens a step, compiled where there is a GPU: until our modules
are imported, until everything is opened, until the first step has ended; with the compiler's caches empty, and again.
The goal is 40 s.
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
whole, run = Loop._record, Loop.run
print("imported", time.time(), time.process_time(), flush=True)
def opened(self):
    print("opened", time.time(), time.process_time(), flush=True)
    return run(self)
def told(self, *given):
    whole(self, *given)
    if self.ranks.device.type == "cuda":
        import torch
        torch.cuda.synchronize()
    print("first", time.time(), time.process_time(), flush=True)
    os._exit(0)
Loop.run, Loop._record = opened, told
from pretune.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command, which ends with its first step."""
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
    """Seconds by the clock and of processor time until a process says so, or ends."""
    before = os.times()
    found = measure_phases(arguments, folder)
    after = os.times()
    return found.get("first", (found["end"][0], sum(after[2:4]) - sum(before[2:4])))


def measure_phases(arguments: list[str], folder: Path) -> dict[str, tuple[float, float]]:
    """Milestones of a process: wall-clock seconds since its start, and processor seconds."""
    begun = time.time()
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    ended = time.time()
    if done.returncode:
        raise SystemExit(f"{arguments[-1]}: {done.stderr[-2000:]}")
    lines = [line.split() for line in done.stdout.splitlines()]
    said = {line[0]: (float(line[1]) - begun, float(line[2])) for line in lines if len(line) == 3 and line[0] in PHASES}
    return {**said, "end": (ended - begun, 0.0)}


def measure_large_model(data: Path, out: Path | None) -> None:
    """A large model, with empty caches and again."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{name}/inductor", "TRITON_CACHE_DIR": f"{name}/triton"}
        for turn in ("empty caches", "again"):
            given = ["-c", FIRST, *LARGE, "--data", str(data.resolve()), "--out", f"run {turn}"]
            found[turn] = {mark: round(clock, 1) for mark, (clock, _) in measure_phases(given, Path(name)).items()}
            print(turn, json.dumps(found[turn]), flush=True)
    if out:
        out.write_text(json.dumps(found, indent=2))


def make_text() -> str:
    """A few thousand words that repeat."""
    words = [f"w{number * number % 997}" for number in range(40_000)]
    return "\n\n".join(" ".join(words[start : start + 60]) for start in range(0, len(words), 60))


def main() -> None:
    """Prepare, alternate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--large", type=Path, metavar="DATA", help="BERT-base on this data instead")
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
            ways = {
                "pretune --help": ["-m", "pretune", "--help"],
                "first step": ["-c", FIRST, *started, "--out", f"run-{turn}"],
                "torch and one step": ["-c", BARE],
                "transformers, one step": ["-c", PEER, "tok", "text.txt"],
            }
            for way, arguments in ways.items():
                found.setdefault(way, []).append(run(arguments, folder))
    least = {way: [round(min(values), 2) for values in zip(*rows, strict=True)] for way, rows in found.items()}
    line = {
        "seconds": {way: {"clock": clock, "processor": processor} for way, (clock, processor) in least.items()},
        "ratio": {
            "transformers to ours, processor": round(least["transformers, one step"][1] / least["first step"][1], 2),
            "ours to torch alone, processor": round(least["first step"][1] / least["torch and one step"][1], 2),
        },
        "threads": options.threads,
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(line, indent=2))
    if options.out:
        options.out.write_text(json.dumps(line, indent=2))


if __name__ == "__main__":
    main()
