"""Recipes for ten million words, side by side: validation loss, and BLiMP's development half.

    PYTHONPATH=src python bench/ten_million_words.py --text TEXT --tasks DIR --work DIR [--variants 8k,8k-d15]

TEXT is what `examples/ten_million_words/corpus.py` writes (.xz is read, too), the first DIR the folder of BLiMP. A
variant is `recipe.json` of that example with a few changes (`VARIANTS`, or a JSON file of the same form with `--file`).
The untouched half of BLiMP is not scored. Several variants share the device (`--jobs`), so times are not comparable.
Variants that have finished in the working directory are not repeated, and none starts after `--seconds`.
"""

import argparse
import copy
import hashlib
import json
import lzma
import shutil
import sys
from pathlib import Path
from typing import Any

import common
from job_pool import Jobs

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ten_million_words"
Facts = dict[str, Any]
DROPOUT = "settings.model.decoder.blocks.0.dropout"
SENTENCES: Facts = {"settings.data.samples": "sentences", "settings.data.max_length": 128}
VARIANTS: dict[str, Facts] = {
    "recipe": {},
    "d15": {DROPOUT: 0.15},
    "8k": {"tokenizer.vocab": 8192},
    "8k-d15": {"tokenizer.vocab": 8192, DROPOUT: 0.15},
    "8k-d20": {"tokenizer.vocab": 8192, DROPOUT: 0.2},
    "sentences": SENTENCES,
    "sentences-d15": SENTENCES | {DROPOUT: 0.15},
    "sentences-d20": SENTENCES | {DROPOUT: 0.2},
    "sentences-8k": SENTENCES | {"tokenizer.vocab": 8192},
    "sentences-8k-d20": SENTENCES | {"tokenizer.vocab": 8192, DROPOUT: 0.2},
    "causal": {"settings.objective": {"kind": "causal"}, "scorings": ["causal"]},
}
"""Changes of the recipe; a dotted name is a place in it, and a setting's own name may have dots."""


def change(recipe: Facts, changes: Facts) -> Facts:
    """Return a copy of a recipe with some values replaced.

    >>> change({"settings": {"a.b": 1}, "epochs": 2}, {"settings.a.b": 3})
    {'settings': {'a.b': 3}, 'epochs': 2}
    """
    recipe = copy.deepcopy(recipe)
    for name, value in changes.items():
        section, _, rest = name.partition(".")
        if rest:
            recipe[section][rest] = value
        else:
            recipe[name] = value
    return recipe


def prepare(work: str, name: str, *, text: str, tokenizer: Facts) -> Facts:
    """Train a tokenizer and tokenize the text; return the number of tokens."""
    sys.path.insert(0, str(EXAMPLE))
    import run as example

    shutil.rmtree(Path(work) / name, ignore_errors=True)  # of an interrupted call
    data = example.prepare(Path(text), {"tokenizer": tokenizer}, Path(work) / name)
    return {"tokens": data.tokens}


def train(work: str, name: str, *, data: str, recipe: Facts, tasks: str, limit: int | None, **options: Any) -> Facts:
    """Pre-train a variant; return losses, cost, and accuracy on BLiMP's development half for each way of scoring."""
    sys.path.insert(0, str(EXAMPLE))
    import run as example

    import pretune as pt
    from pretune.core import log

    log.set_quiet(True)
    out = Path(work) / "models" / name
    shutil.rmtree(out, ignore_errors=True)  # of an interrupted call
    run = example.pretrain(Path(work) / data, recipe, out, seed=options["seed"], device=options["device"])
    model = pt.load(run).to(options["device"]).eval()
    pairs = example.read_blimp(Path(tasks), limit)["development"]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "validation": [round(row["held_out"]["loss"], 4) for row in rows if "held_out" in row],
        "blimp": {scoring: example.evaluate_blimp(model, pairs, scoring) for scoring in recipe["scorings"]},
        "parameters": run.summary["parameters"],
        "flops": run.summary["cost"]["flops"],
        "seconds": round(run.summary["seconds"], 1),
    }


def get_data_name(tokenizer: Facts) -> str:
    """Return the name of the data of a tokenizer, which variants share."""
    return "data-" + hashlib.sha256(json.dumps(tokenizer, sort_keys=True).encode()).hexdigest()[:8]


def describe(jobs: Jobs, name: str) -> str:
    """Return a line about a job that has ended."""
    if name in jobs.errors:
        return jobs.errors[name]
    facts = jobs.results[name]
    if "blimp" not in facts:
        return f"{facts['tokens']:,} tokens"
    scores = ", ".join(f"{scoring} {facts['blimp'][scoring]['accuracy']:.2f}" for scoring in facts["blimp"])
    losses = facts["validation"]
    return f"validation loss {losses[-1]:.3f} (best {min(losses):.3f}), BLiMP {scores}, {facts['seconds']} s"


def main() -> None:
    """Run the variants and print their scores."""
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--text", type=Path, required=True, help="at most ten million words")
    parser.add_argument("--tasks", type=Path, required=True, help="folder with BLiMP")
    parser.add_argument("--work", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--variants", default="", help="comma-separated; default: all")
    parser.add_argument("--file", type=Path, help="JSON with other variants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="pairs of each set; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="none starts later")
    args = parser.parse_args()
    common.print_result(run_variants(args), args.out)


def run_variants(args: argparse.Namespace) -> Facts:
    """Run all variants, each as soon as its data is there, and return what is known of them."""
    args.work.mkdir(parents=True, exist_ok=True)
    text = args.work / "text.txt"
    content = args.text.read_bytes()
    text.write_bytes(lzma.decompress(content) if args.text.suffix == ".xz" else content)
    known = VARIANTS if args.file is None else json.loads(args.file.read_text())
    base = json.loads((EXAMPLE / "recipe.json").read_text())
    names = args.variants.split(",") if args.variants else list(known)
    if unknown_names := [name for name in names if name not in known]:
        raise SystemExit(f"unknown variants: {', '.join(unknown_names)} (allowed: {', '.join(known)})")
    recipes = {name: change(base, known[name]) for name in names}
    jobs = Jobs(args.work, args.jobs, args.seconds, lambda name: (not name.startswith("data-"), name not in names))
    waiting = {name: get_data_name(recipe["tokenizer"]) for name, recipe in recipes.items()}
    for data, tokenizer in {waiting[name]: recipe["tokenizer"] for name, recipe in recipes.items()}.items():
        jobs.add(data, prepare, text=str(text), tokenizer=tokenizer)
    options = {"tasks": str(args.tasks), "limit": args.limit, "seed": args.seed, "device": args.device}
    for ended in jobs.run():
        print(f"{jobs.seconds:6.0f} s  {ended}: {describe(jobs, ended)}", file=sys.stderr, flush=True)
        for name in [name for name, data in waiting.items() if data == ended and ended in jobs.results]:
            jobs.add(name, train, data=waiting.pop(name), recipe=recipes[name], **options)
        result = {
            "device": common.describe_device(args.device),
            "seconds": round(jobs.seconds),
            "variants": {name: jobs.results[name] for name in names if name in jobs.results},
            "errors": jobs.errors,
        }
        common.write_result(result, args.out)
    return result


if __name__ == "__main__":
    main()
