"""Pairs of answers as JSON lines, for `pretune finetune`, from the JSON list of a book.

    python -m bench.data.preferences instruction-data-with-preference.json.gz FOLDER

The list is that of chapter 7 of rasbt/LLMs-from-scratch (Apache-2.0): 1,100 rows of instruction, input, chosen and
rejected. Writes train, dev and test.jsonl in a random order; pairs with equal answers are left out.
"""

import argparse
import gzip
import json
import random
from pathlib import Path

COLUMNS = ("instruction", "input", "chosen", "rejected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dev", type=int, default=100)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = options.list.read_bytes()
    rows = json.loads(gzip.decompress(data) if options.list.suffix == ".gz" else data)
    pairs = [row for row in rows if row["chosen"].strip() != row["rejected"].strip()]
    random.Random(options.seed).shuffle(pairs)
    held_out = options.dev + options.test
    splits = {"test": pairs[: options.test], "dev": pairs[options.test : held_out], "train": pairs[held_out:]}
    options.folder.mkdir(parents=True, exist_ok=True)
    for split, part in splits.items():
        lines = [json.dumps({name: row[name] for name in COLUMNS}, ensure_ascii=False) for row in part]
        (options.folder / f"{split}.jsonl").write_text("".join(line + "\n" for line in lines))
    print(f"{len(rows) - len(pairs)} equal pairs left out; {', '.join(f'{n}: {len(p)}' for n, p in splits.items())}")


if __name__ == "__main__":
    main()
