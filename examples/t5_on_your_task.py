"""T5 on your task (Raffel et al., 2020): whatever can be written as text in, text out.

    python examples/t5_on_your_task.py my_pairs.tsv --base path/to/t5 --ask "12 May 2031"

The first line of the table names its columns. One row in twenty is held out: printed is how many of those are written
exactly. Without a base a small T5 starts from random weights, enough for the task by default: dates as 1998-05-03.
Time: 4 min of one core of a Neoverse-N1.
"""

import argparse
import datetime as dt
import random
from pathlib import Path

import pretune as pt

SMALL = {"model.width": 128, "model.depth": 2, "model.heads": 4}


def make_dates(rows: int = 6000) -> list[str]:
    """A table of dates as people write them, and as computers do."""
    draw, lines = random.Random(0), {"source\ttarget": None}
    for _ in range(rows):
        day = dt.date.fromordinal(draw.randrange(700_000, 760_000))
        form = draw.choice(["%d %B %Y", "%B %d, %Y", "%a %d %b %Y", "%d.%m.%Y"])
        lines[f"{day.strftime(form)}\t{day.isoformat()}"] = None  # none is there twice
    return list(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("table", nargs="?", type=Path, help="TSV: what is read, a tab, what is to be written")
    arguments.add_argument("--base", type=Path, help="a run or a Hugging Face directory of a T5")
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--ask", nargs="*", default=["03 May 1998", "Tue 12 May 2031"])
    arguments.add_argument("--out", type=Path, default=Path("runs/t5"))
    asked = arguments.parse_args()

    asked.out.mkdir(parents=True, exist_ok=True)
    header, *rows = asked.table.read_text(encoding="utf-8-sig").splitlines() if asked.table else make_dates()
    valid, train = rows[::20], [row for number, row in enumerate(rows) if number % 20]
    for name, part in (("valid", valid), ("train", train)):
        (asked.out / f"{name}.tsv").write_text("\n".join([header, *part]) + "\n", encoding="utf-8")
    read, held = (f"pair:{asked.out / name}.tsv:{header.replace(chr(9), ',')}" for name in ("train", "valid"))
    tokenizer = asked.base or pt.train_tokenizer("unigram", [read], vocab=500)
    data = pt.prepare([read], valid=[held], tokenizer=tokenizer, out=asked.out / "data")
    goal = {"data": data, "objective": "supervised", "steps": asked.steps, "out": asked.out / "model"}
    changes = {"train.batch_tokens": 1024, "data.max_length": 32} | ({} if asked.base else SMALL)
    run = pt.pretrain(None if asked.base else "t5-small", init_from=asked.base, overrides=changes, **goal)

    model, (sources, targets) = pt.load(run), zip(*(row.split("\t") for row in valid[:100]), strict=True)
    said = pt.generate(model, [*sources, *asked.ask], temperature=0, max_new_tokens=20)
    right = sum(text == target for text, target in zip(said, targets, strict=False))
    print(f"exactly right on {right} of {len(targets)} held-out rows")
    for source, text in zip(asked.ask, said[len(targets) :], strict=True):
        print(f"  {source} -> {text}")


if __name__ == "__main__":
    main()
