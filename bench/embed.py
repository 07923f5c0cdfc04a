"""Speed of embedding texts, compared with sentence-transformers: the same model, texts and vectors.

    PYTHONPATH=src python bench/embed.py [MODEL] [--device cpu|cuda] [--texts N] [--rounds N] [--json FILE]

MODEL is a directory that sentence-transformers can load; by default a model of the size of MiniLM-L6 (width 384, 6
layers) with random weights and a tokenizer trained here. The texts are distinct spans of this repository's docs and
code of mixed length (log-normal, median 18 words, 3 to 220). Both sides compute in fp32, return numpy arrays in input
order, and include tokenization in the time. Rounds alternate and the best round of each side counts: wall-clock time on
a GPU, CPU time of all threads on a CPU. sentence-transformers runs with its default batch size of 32 and with 256.
Prints JSON: texts per second, the ratio to each, and the largest difference between the vectors.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import pretune as pt
from pretune.inference import sentence_modules
from pretune.inference.embed import build_embedder
from pretune.inference.pooling import Embedding, TextEncoder

ROOT = Path(__file__).resolve().parent.parent
GOALS = {"cpu": 1.5, "cuda": 2.0}
COUNTS = {"cpu": 300, "cuda": 20_000}


def read_words() -> list[str]:
    """Return the words of the docs and the source code."""
    files = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "src").rglob("*.py"))]
    return " ".join(file.read_text(encoding="utf-8") for file in files if file.is_file()).split()


def make_texts(count: int) -> list[str]:
    """Create distinct texts of mixed length."""
    rng, every = np.random.default_rng(0), read_words()
    found: dict[str, None] = {}
    while len(found) < count:
        length = int(np.clip(rng.lognormal(np.log(18), 0.8), 3, 220))
        start = int(rng.integers(len(every) - length))
        found[" ".join(every[start : start + length])] = None
    return list(found)


def save_random_model(folder: Path) -> Path:
    """Save a model with random weights of the size of MiniLM-L6, and return its directory."""
    every = read_words()[:100_000]
    (folder / "text.txt").write_text("\n".join(" ".join(every[i : i + 50]) for i in range(0, len(every), 50)))
    tokenizer = pt.train_tokenizer("wordpiece", [folder / "text.txt"], vocab=8192)
    model = pt.build("bert", seed=0, width=384, depth=6, heads=12, hidden=1536, vocab=tokenizer.vocab, positions=512)
    model.assets.files, model.assets.tokenizer = tokenizer.build_files(), tokenizer.raw
    model.assets.modules = sentence_modules.write_modules(TextEncoder(model, Embedding(normalise=True)))
    pt.save(model, folder / "model")
    return folder / "model"


def measure_seconds(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Return the seconds of a call (wall-clock on a GPU, CPU time on a CPU) and its result."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    begun = clock()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begun, found


def compare(folder: Path, device: str, count: int, rounds: int) -> dict[str, Any]:
    """Alternate both sides and return the rates of their best rounds."""
    from sentence_transformers import SentenceTransformer

    given = make_texts(count)
    theirs = SentenceTransformer(str(folder), device=device)
    ours = build_embedder(folder, device=device)
    works: dict[str, Callable[[], Any]] = {
        "pretune": lambda: ours(given).vectors,
        "sentence-transformers": lambda: theirs.encode(given),
        "sentence-transformers, batch 256": lambda: theirs.encode(given, batch_size=256),
    }
    some = given[: max(64, count // 20)]
    ours(some)
    theirs.encode(some)
    best = dict.fromkeys(works, float("inf"))
    vectors: dict[str, Any] = {}
    for _ in range(rounds):
        for name, work in works.items():
            seconds, vectors[name] = measure_seconds(work, device)
            best[name] = min(best[name], seconds)
    rates = {name: count / seconds for name, seconds in best.items()}
    difference = float(np.abs(vectors["pretune"] - vectors["sentence-transformers"]).max())
    mine = rates.pop("pretune")
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "texts": count,
        "pretune": round(mine, 1),
        **{name: round(rate, 1) for name, rate in rates.items()},
        "ratio": round(mine / rates["sentence-transformers"], 2),
        "ratio to the best": round(mine / max(rates.values()), 2),
        "goal": GOALS[device],
        "largest difference": difference,
        "same": difference < 1e-5,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--device", choices=GOALS, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--texts", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or save_random_model(Path(folder))
        found = compare(model, options.device, options.texts or COUNTS[options.device], options.rounds)
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
