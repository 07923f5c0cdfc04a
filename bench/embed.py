"""Speed of embedding texts, compared with sentence-transformers: the same model, texts and vectors.

    PYTHONPATH=src python bench/embed.py [MODEL] [--device cpu|cuda] [--texts N] [--rounds N] [--out FILE]

MODEL is a directory that sentence-transformers can load; by default a model of the size of MiniLM-L6 (width 384, 6
layers) with random weights and a tokenizer trained here. The texts are distinct spans of this repository's docs and
code of mixed length (log-normal, median 18 words, 3 to 220). Both sides compute in fp32, return numpy arrays in input
order, and include tokenization in the time. Rounds alternate and the best round of each side counts: wall-clock time on
a GPU, CPU time of all threads on a CPU. sentence-transformers runs with its default batch size of 32 and with 256.
Prints JSON: texts per second, the ratio to each, and the largest difference between the vectors.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import pretune as pt
from pretune.inference import sentence_modules
from pretune.inference.embed import build_embedder
from pretune.inference.pooling import Embedding, TextEncoder

ROOT = Path(__file__).resolve().parent.parent
PEER = "sentence-transformers"
GOALS = {"cpu": 1.5, "cuda": 2.0}
COUNTS = {"cpu": 300, "cuda": 20_000}


def read_words() -> list[str]:
    """Return the words of the docs and the source code."""
    files = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *sorted((ROOT / "src").rglob("*.py"))]
    return " ".join(file.read_text(encoding="utf-8") for file in files if file.is_file()).split()


def make_texts(count: int) -> list[str]:
    """Create distinct texts of mixed length."""
    rng, words = np.random.default_rng(0), read_words()
    texts: dict[str, None] = {}
    while len(texts) < count:
        length = int(np.clip(rng.lognormal(np.log(18), 0.8), 3, 220))
        start = int(rng.integers(len(words) - length))
        texts[" ".join(words[start : start + length])] = None
    return list(texts)


def save_random_model(folder: Path) -> Path:
    """Save a model with random weights of the size of MiniLM-L6, and return its directory."""
    words = read_words()[:100_000]
    (folder / "text.txt").write_text("\n".join(" ".join(words[i : i + 50]) for i in range(0, len(words), 50)))
    tokenizer = pt.train_tokenizer("wordpiece", [folder / "text.txt"], vocab=8192)
    model = pt.build("bert", seed=0, width=384, depth=6, heads=12, hidden=1536, vocab=tokenizer.vocab, positions=512)
    model.assets.files, model.assets.tokenizer = tokenizer.build_files(), tokenizer.raw
    model.assets.modules = sentence_modules.write_modules(TextEncoder(model, Embedding(normalise=True)))
    pt.save(model, folder / "model")
    return folder / "model"


def compare(folder: Path, device: str, count: int, rounds: int) -> dict[str, Any]:
    """Alternate both sides and return the rates of their best rounds."""
    from sentence_transformers import SentenceTransformer

    texts = make_texts(count)
    theirs = SentenceTransformer(str(folder), device=device)
    ours = build_embedder(folder, device=device)
    sides: dict[str, Callable[[], Any]] = {
        "pretune": lambda: ours(texts).vectors,
        PEER: lambda: theirs.encode(texts),
        f"{PEER}, batch 256": lambda: theirs.encode(texts, batch_size=256),
    }
    sample = texts[: max(64, count // 20)]
    ours(sample)
    theirs.encode(sample)
    best = dict.fromkeys(sides, float("inf"))
    vectors: dict[str, Any] = {}
    clock = common.wall_clock if device == "cuda" else common.cpu_clock
    for _ in range(rounds):
        for name, side in sides.items():
            seconds, vectors[name] = common.time_call(side, clock=clock, device=device)
            best[name] = min(best[name], seconds)
    rates = {name: count / seconds for name, seconds in best.items()}
    ratios = common.compute_ratios(rates)
    difference = float(np.abs(vectors["pretune"] - vectors[PEER]).max())
    return {
        "device": common.describe_device(device),
        "threads": torch.get_num_threads(),
        "texts": count,
        **{name: round(rate, 1) for name, rate in rates.items()},
        "ratio": ratios[PEER],
        "ratio to the best": min(ratios.values()),
        "goal": GOALS[device],
        "largest difference": difference,
        "same": difference < 1e-5,
    }


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    common.add_device_option(parser)
    parser.add_argument("--texts", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or save_random_model(Path(folder))
        result = compare(model, options.device, options.texts or COUNTS[options.device], options.rounds)
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
