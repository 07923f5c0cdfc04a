"""Speed and compression of tokenizer training, compared with the trainers of the library `tokenizers`.

    python -m bench.data.tokenizer_training                           5 MB of Wikipedia, with the peer
    python -m bench.data.tokenizer_training --megabytes 50 --alone    50 MB without the peer

The peer uses the same normalizer and pre-tokenizer on the same texts; `--alone` skips it (its unigram trainer takes
minutes on 50 MB). Each tokenizer is saved, loaded by `AutoTokenizer`, and must give the same ids on edge cases; then it
is trained again in another process and must have the same SHA-256. Prints seconds, CPU time, peak memory, the number of
tokens of wikipedia-en/valid (fewer is better), and the ratio. The text comes from $PRETUNE_DATA (default:
../shared/data next to the checkout).
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import common

EDGE_CASES = [
    "",
    "   ",
    "It's 3.14 (or 1,000)…\r\n\r\nnew\tline",
    "\0 a\x07b \x1b[31m",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪",
    "e\u0301 é \u0301",
    "العربية \u202eabc",
    "中文字符 text 한국어 ไทย",
    "\u200b\ufeff\u00ad \u00a0\u3000\u2028",
    "İstanbul ﬁne ½ Ω",
    "▁the Ġthe ##ing <0x41>",
    "\U0010ffff\ue000\u0378\ufffd",
    "[MASK] <mask> <extra_id_0> </s> [SEP]x<|endoftext|>",
    "x" * 1_000_000,
    "word " * 10_000,
]
KINDS = ("wordpiece", "bpe", "unigram", "characters", "words")


def read_texts(size: int) -> list[str]:
    """Return documents of wikipedia-en, about `size` bytes."""
    texts: list[str] = []
    for file in sorted(common.find_data("corpora/wikipedia-en").glob("train-*.txt.xz")):
        if size <= 0:
            break
        with lzma.open(file, "rt", encoding="utf-8") as raw:
            part = raw.read(size)
        texts += part.split("\n\n")
        size -= len(part.encode())
    return texts


def train_once(kind: str, megabytes: float, vocab: int, out: str) -> dict[str, Any]:
    """Train in this process; return time, memory and compression. Reading the text is not timed."""
    from pretune.text.tokenizer.training import train

    corpus = read_texts(int(megabytes * 1e6))
    cpu_start = common.cpu_clock()
    seconds, tokenizer = common.time_call(lambda: train(kind, corpus, vocab=vocab), clock=common.wall_clock)
    cpu_seconds = common.cpu_clock() - cpu_start
    tokenizer.save(out)
    valid = common.read_corpus("wikipedia-en/valid").split("\n\n")
    return {
        "seconds": seconds,
        "cpu": cpu_seconds,
        "megabytes": sum(len(text.encode()) for text in corpus) / 1e6,
        "vocab": tokenizer.vocab,
        "sha256": tokenizer.sha256,
        "tokens": len(tokenizer.encode_batch(valid).ids),
        "peak": measure_peak_memory(),
    }


def measure_peak_memory() -> float:
    """Return the peak memory of this process in MiB; `resource` would include the parent's."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM")), float("nan"))


def train_with_library(kind: str, megabytes: float, vocab: int) -> dict[str, float]:
    """Train with `tokenizers`, with our normalizer and pre-tokenizer; return seconds and compression."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from pretune.text.styles import KINDS as TABLE
    from pretune.text.styles import STYLES
    from pretune.text.tokenizer import training

    definition = TABLE[kind]
    model = {"wordpiece": models.WordPiece(unk_token="[UNK]"), "bpe": models.BPE(), "unigram": models.Unigram()}[kind]
    raw = Tokenizer(model)
    raw.normalizer = training.build_normaliser(definition, STYLES[definition.style], False, True)
    raw.pre_tokenizer = training.build_splitter(definition)
    trainer = {
        "wordpiece": lambda: trainers.WordPieceTrainer(
            vocab_size=vocab, min_frequency=2, limit_alphabet=600, special_tokens=["[UNK]"], show_progress=False
        ),
        "bpe": lambda: trainers.BpeTrainer(
            vocab_size=vocab, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
        "unigram": lambda: trainers.UnigramTrainer(
            vocab_size=vocab - 256, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        ),
    }[kind]()
    corpus = read_texts(int(megabytes * 1e6))
    seconds, _ = common.time_call(lambda: raw.train_from_iterator(corpus, trainer), clock=common.wall_clock)
    encodings = raw.encode_batch(common.read_corpus("wikipedia-en/valid").split("\n\n"), add_special_tokens=False)
    return {"seconds": seconds, "tokens": sum(len(encoding.ids) for encoding in encodings)}


def check_with_transformers(folder: Path) -> int:
    """Check that AutoTokenizer gives our ids on all edge cases, and return their number."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    import transformers

    from pretune.text.tokenizer import Tokenizer

    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in EDGE_CASES:
        sequence = ours.template.apply(ours.encode(text, add_special_tokens=False))
        assert sequence.ids.tolist() == theirs(text)["input_ids"], text[:40]
    return len(EDGE_CASES)


def run_child(*arguments: object) -> dict[str, Any]:
    """Run this script in another process and return its result."""
    command = [sys.executable, "-m", "bench.data.tokenizer_training", *map(str, arguments)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = common.build_parser(__doc__, out=False)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--alone", action="store_true", help="skip the peer")
    parser.add_argument("--side", choices=["ours", "library"], help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "ours":
        print(json.dumps(train_once(options.kind[0], options.megabytes, options.vocab, options.out)))
        return
    if options.side == "library":
        print(json.dumps(train_with_library(options.kind[0], options.megabytes, options.vocab)))
        return
    if not common.find_data("corpora").is_dir():
        print(f"skipped: needs text at {common.find_data('corpora')} (set PRETUNE_DATA)")
        return
    for kind in options.kind or KINDS:
        arguments = ("--kind", kind, "--megabytes", options.megabytes, "--vocab", options.vocab)
        with tempfile.TemporaryDirectory() as place:
            ours = run_child(*arguments, "--side", "ours", "--out", f"{place}/a")
            count = check_with_transformers(Path(place) / "a")
            repeat = run_child(*arguments, "--side", "ours", "--out", f"{place}/b")
            assert repeat["sha256"] == ours["sha256"], f"{kind}: not deterministic"
            assert (Path(place) / "a/tokenizer.json").read_bytes() == (Path(place) / "b/tokenizer.json").read_bytes()
        line = (
            f"{kind:<11} {ours['vocab']:>6,} of {ours['megabytes']:.1f} MB: {ours['seconds']:6.1f} s "
            f"({ours['cpu']:.1f} s CPU time), peak {ours['peak']:,.0f} MiB, {ours['tokens']:,} tokens; "
            f"deterministic, AutoTokenizer agrees on {count} edge cases"
        )
        if not options.alone and kind in ("wordpiece", "bpe", "unigram"):
            peer = run_child(*arguments, "--side", "library")
            line += (
                f"; library {peer['seconds']:.1f} s, {peer['tokens']:,} tokens; "
                f"ratio {peer['seconds'] / ours['seconds']:.2f}"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
