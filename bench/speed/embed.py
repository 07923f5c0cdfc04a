"""Speed of embedding texts, compared with sentence-transformers: the same model, texts and vectors.

    python -m bench.speed.embed [MODEL] [--device cpu|cuda] [--texts N] [--rounds N] [--out FILE]
    python -m bench.speed.embed MODEL --corpus wikipedia-en/train-00 --texts 1000000 --dtype float16 --rounds 1
    python -m bench.speed.embed MODEL --single 3,6,12,40

MODEL is a directory that sentence-transformers can load; by default a model of the size of MiniLM-L6 (width 384, 6
layers) with random weights and a tokenizer trained here. The texts are distinct spans of this repository's docs and
code of mixed length (log-normal, median 18 words, 3 to 220). With `--corpus` they are sentences of a shared corpus: if
there are fewer than asked for, they are repeated with some words replaced by others of the corpus, so that all differ
and lengths are real. Both sides compute in the same precision, return numpy arrays in input order, and include
tokenization in the time. Rounds alternate and the best round of each side counts: wall-clock time on a GPU, CPU time of
all threads on a CPU. sentence-transformers runs with its default batch size of 32 and with 256; `--peer-batch best`
selects the fastest of 64, 256 and 1,024 on up to 20,000 texts. Prints JSON: texts per second, the ratio to each, and
the largest difference between the vectors.

`--single` measures queries instead: one text of so many words for each call, the sides alternated call by call; the
median counts.
"""

import argparse
import itertools
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import common

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import pretune as pt
from pretune.inference import sentence_modules
from pretune.inference.embed import build_embedder
from pretune.inference.pooling import Embedding, TextEncoder
from pretune.text.sentences import split_sentences

ROOT = common.ROOT
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


def save_random_model(folder: Path, words: Sequence[str]) -> Path:
    """Save a model with random weights of the size of MiniLM-L6, and return its directory."""
    (folder / "text.txt").write_text("\n".join(" ".join(words[i : i + 50]) for i in range(0, len(words), 50)))
    tokenizer = pt.train_tokenizer("wordpiece", [folder / "text.txt"], vocab=8192)
    model = pt.build("bert", seed=0, width=384, depth=6, heads=12, hidden=1536, vocab=tokenizer.vocab, positions=512)
    model.assets.files, model.assets.tokenizer = tokenizer.build_files(), tokenizer.raw
    model.assets.modules = sentence_modules.write_modules(TextEncoder(model, Embedding(normalise=True)))
    pt.save(model, folder / "model")
    return folder / "model"


def read_sentences(corpus: str, count: int) -> list[str]:
    """Return distinct sentences of a shared corpus: the first ones, or with replaced words if there are too few."""
    size = min(120 * count, 12_000_000)  # characters
    sentences: dict[str, None] = {}
    for document in common.read_corpus(corpus, size).split("\n\n"):
        for paragraph in document.splitlines():
            starts = [*split_sentences(paragraph), len(paragraph)]
            texts = (paragraph[start:end].strip() for start, end in itertools.pairwise(starts))
            sentences.update(dict.fromkeys(text for text in texts if text))
    originals = list(sentences)
    draw, words = random.Random(0), " ".join(originals).split()
    while len(sentences) < count:
        parts = draw.choice(originals).split()
        for _ in range(1 + len(parts) // 8):
            parts[draw.randrange(len(parts))] = draw.choice(words)
        sentences[" ".join(parts)] = None
    return list(sentences)[:count]


def widen_weights(folder: Path, out: Path) -> Path:
    """Return a copy of a model directory with fp32 weights; the directory itself if it has them."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    if all(tensor.dtype != torch.float16 for tensor in tensors.values()):
        return folder
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def choose_batch(model: Any, texts: list[str], device: str) -> int:
    """Return the batch size with which sentence-transformers is fastest."""
    clock = common.wall_clock if device == "cuda" else common.cpu_clock
    seconds = {
        size: common.time_call(lambda size=size: model.encode(texts, batch_size=size), clock=clock, device=device)[0]
        for size in (64, 256, 1024)
    }
    return min(seconds, key=lambda size: seconds[size])


def compare(folder: Path, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Alternate both sides and return the rates of their best rounds."""
    from sentence_transformers import SentenceTransformer

    device, count, dtype = options.device, len(texts), getattr(torch, options.dtype)
    theirs = SentenceTransformer(str(folder), device=device).to(dtype)
    ours = build_embedder(pt.load(folder, device=device, dtype=dtype))
    sample = texts[: min(max(64, count // 20), 20_000)]
    ours(sample)
    theirs.encode(sample)
    sizes = [choose_batch(theirs, sample, device)] if options.peer_batch == "best" else options.peer_batch.split(",")
    sides: dict[str, Callable[[], Any]] = {"pretune": lambda: ours(texts).vectors}
    for size in map(int, sizes):
        name = PEER if size == 32 else f"{PEER}, batch {size}"
        sides[name] = lambda size=size: theirs.encode(texts, batch_size=size)
    print(count, "texts; the peer's batches:", sizes, flush=True)
    best = dict.fromkeys(sides, float("inf"))
    vectors: dict[str, Any] = {}
    clock = common.wall_clock if device == "cuda" else common.cpu_clock
    for _ in range(options.rounds):
        for name, side in sides.items():
            seconds, vectors[name] = common.time_call(side, clock=clock, device=device)
            best[name] = min(best[name], seconds)
            print(name, round(seconds, 2), "s", flush=True)
    rates = {name: count / seconds for name, seconds in best.items()}
    ratios = common.compute_ratios(rates)
    first = next(iter(ratios))
    difference = float(np.abs(vectors["pretune"].astype(np.float32) - vectors[first].astype(np.float32)).max())
    return {
        "device": common.describe_device(device),
        "threads": torch.get_num_threads(),
        "texts": count,
        "words": round(sum(len(text.split()) for text in texts) / count, 1),
        "dtype": options.dtype,
        **{name: round(rate, 1) for name, rate in rates.items()},
        "ratio": ratios[first],
        "ratio to the best": min(ratios.values()),
        "goal": GOALS[device],
        "largest difference": difference,
        "same": difference < (1e-5 if options.dtype == "float32" else 5e-3),
    }


def compare_single(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Alternate calls with a single text and return the median milliseconds by number of words."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device=options.device)
    ours = build_embedder(folder, device=options.device)
    clock = common.wall_clock if options.device == "cuda" else common.cpu_clock
    words = read_words()
    rows: dict[str, dict[str, float]] = {}
    for count in options.single:
        texts = [" ".join(words[start : start + count]) for start in range(0, 60 * count, count)]
        sides: dict[str, Callable[[str], Any]] = {
            "pretune": lambda text: ours([text]).vectors,
            PEER: lambda text: theirs.encode([text], show_progress_bar=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for text in texts[:10] + texts:  # the first calls are slower
            for name, side in sides.items():
                seconds[name].append(
                    common.time_call(lambda side=side, text=text: side(text), clock=clock, device=options.device)[0]
                )
        medians = {name: 1000 * statistics.median(values[10:]) for name, values in seconds.items()}
        ratio = round(medians[PEER] / medians["pretune"], 2)
        rows[str(count)] = {name: round(value, 2) for name, value in medians.items()} | {"ratio": ratio}
    device = common.describe_device(options.device)
    return {"device": device, "threads": torch.get_num_threads(), "milliseconds by words": rows}


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    common.add_device_option(parser)
    parser.add_argument("--texts", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corpus", help="sentences of a shared corpus, for example wikipedia-en/train-00")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help="of both sides")
    parser.add_argument("--single", type=lambda text: [*map(int, text.split(","))], help="words of single texts")
    parser.add_argument("--peer-batch", default="32,256", help="comma-separated batch sizes of the peer, or best")
    options = parser.parse_args()
    count = options.texts or COUNTS[options.device]
    with tempfile.TemporaryDirectory() as folder:
        model = widen_weights(
            options.model or save_random_model(Path(folder), read_words()[:100_000]), Path(folder) / "wide"
        )
        if options.single:
            result = compare_single(model, options)
        else:
            texts = make_texts(count) if options.corpus is None else read_sentences(options.corpus, count)
            result = compare(model, texts, options)
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
