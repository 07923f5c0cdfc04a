"""T5 on your task (Raffel et al., 2020): any task with text as input and text as output.

    python examples/t5_on_your_task.py my_pairs.tsv --base path/to/t5 --inputs "12 May 2031"

The first line of the table names its columns. One row in twenty is held out; prints the exact matches on these rows.
Without --base a small T5 is trained from random weights, enough for the default task: dates as 1998-05-03.
Time: 4 min of one core of a Neoverse-N1.
"""

import argparse
import datetime as dt
import random
from pathlib import Path

import pretune as pt

SMALL = {"model.width": 128, "model.depth": 2, "model.heads": 4}


def make_dates(rows: int = 6000) -> list[str]:
    """Return the lines of a table of dates: several written formats, and ISO 8601."""
    rng, lines = random.Random(0), {"source\ttarget": None}
    for _ in range(rows):
        day = dt.date.fromordinal(rng.randrange(700_000, 760_000))
        date_format = rng.choice(["%d %B %Y", "%B %d, %Y", "%a %d %b %Y", "%d.%m.%Y"])
        lines[f"{day.strftime(date_format)}\t{day.isoformat()}"] = None  # without duplicates
    return list(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help="TSV with a source and a target per row")
    parser.add_argument("--base", type=Path, help="run or Hugging Face directory of a T5")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--inputs", nargs="*", default=["03 May 1998", "Tue 12 May 2031"])
    parser.add_argument("--out", type=Path, default=Path("runs/t5"))
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    header, *rows = options.table.read_text(encoding="utf-8-sig").splitlines() if options.table else make_dates()
    valid, train = rows[::20], [row for number, row in enumerate(rows) if number % 20]
    for name, part in (("valid", valid), ("train", train)):
        (options.out / f"{name}.tsv").write_text("\n".join([header, *part]) + "\n", encoding="utf-8")
    train_corpus, valid_corpus = (
        f"pair:{options.out / name}.tsv:{header.replace(chr(9), ',')}" for name in ("train", "valid")
    )
    tokenizer = options.base or pt.train_tokenizer("unigram", [train_corpus], vocab=500)
    data = pt.prepare([train_corpus], valid=[valid_corpus], tokenizer=tokenizer, out=options.out / "data")
    settings = {
        "data": data,
        "objective": "supervised",
        "steps": options.steps,
        "out": options.out / "model",
        "paper": True,
    }
    overrides = {"train.batch_tokens": 1024, "data.max_length": 32} | ({} if options.base else SMALL)
    run = pt.pretrain(None if options.base else "t5-small", init_from=options.base, overrides=overrides, **settings)

    model, (sources, targets) = pt.load(run), zip(*(row.split("\t") for row in valid[:100]), strict=True)
    outputs = pt.generate(model, [*sources, *options.inputs], temperature=0, max_new_tokens=20)
    correct = sum(text == target for text, target in zip(outputs, targets, strict=False))
    print(f"exact match on {correct} of {len(targets)} held-out rows")
    for source, text in zip(options.inputs, outputs[len(targets) :], strict=True):
        print(f"  {source} -> {text}")


if __name__ == "__main__":
    main()
