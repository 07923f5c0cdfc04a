"""Recipes for ten million words, side by side: validation loss, and BLiMP's development half.

    PYTHONPATH=src python bench/ten_million_words.py --data DIR --work DIR [--variants recipe,cased] [--epochs 3]

The first DIR has corpora/ and tasks/ (`bench/pack.py ten-million-words`). A variant is `recipe.json` of the example
with a few changes (`VARIANTS`, or a JSON file of the same form with `--file`). The untouched half of BLiMP is not
scored. Several variants share the device (`--jobs`), so times are not comparable.
Variants that have finished in the working directory are not repeated, and none starts after `--seconds`.
"""

import argparse
import copy
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import common
from job_pool import Jobs

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ten_million_words"
Facts = dict[str, Any]
VARIANTS: dict[str, Facts] = {
    "recipe": {},
    "cased": {"tokenizer.lowercase": False},
    "bpe": {"tokenizer": {"kind": "bpe", "vocab": 8192, "style": "s-mask"}},
    "16k": {"tokenizer.vocab": 16384},
    "4k": {"tokenizer.vocab": 4096},
    "documents": {"settings.data.samples": "documents", "settings.data.max_length": 256},
    "d20": {"settings.model.decoder.blocks.0.dropout": 0.2},
    "decay-0.3": {"settings.train.optimizer": {"kind": "muon", "lr": 0.003, "weight_decay": 0.3}},
    "decay-1": {"settings.train.optimizer": {"kind": "muon", "lr": 0.003, "weight_decay": 1.0}},
    "causal": {"settings.objective": {"kind": "causal"}, "scorings": ["causal"]},
    "books-wiki-news": {
        "texts": {
            "corpora/books-en": 5,
            "corpora/wikipedia-en": 3,
            "corpora/wikinews-en": 1.7,
            "corpora/tinystories": 0.3,
        }
    },
    "books-reviews": {
        "texts": {"corpora/books-en": 4.6, "builtin:reviews": 3, "corpora/wikipedia-en": 2, "corpora/tinystories": 0.4}
    },
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


def prepare(work: str, name: str, *, folder: str, recipe: Facts) -> Facts:
    """Select the text, train a tokenizer and tokenize; return the words of each source and the number of tokens."""
    sys.path.insert(0, str(EXAMPLE))
    import run as example

    shutil.rmtree(Path(work) / name, ignore_errors=True)  # of an interrupted call
    text = Path(work) / f"{name}.txt"
    words = example.write_text(Path(folder), recipe, text)
    data = example.prepare(text, recipe, Path(work) / name)
    return {"words": words, "tokens": data.tokens}


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


def get_data_name(recipe: Facts) -> str:
    """Return the name of the data of a recipe, which variants with the same texts and tokenizer share."""
    facts = {name: recipe[name] for name in ("texts", "tokenizer")}
    return "data-" + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def describe(jobs: Jobs, name: str) -> str:
    """Return a line about a job that has ended."""
    if name in jobs.errors:
        return jobs.errors[name]
    facts = jobs.results[name]
    if "blimp" not in facts:
        return f"{sum(facts['words'].values()):,} words, {facts['tokens']:,} tokens"
    scores = ", ".join(f"{scoring} {facts['blimp'][scoring]['accuracy']:.2f}" for scoring in facts["blimp"])
    losses = facts["validation"]
    return f"validation loss {losses[-1]:.3f} (best {min(losses):.3f}), BLiMP {scores}, {facts['seconds']} s"


def main() -> None:
    """Run the variants and print their scores."""
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder with corpora/ and tasks/")
    parser.add_argument("--work", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--variants", default="", help="comma-separated; default: all")
    parser.add_argument("--file", type=Path, help="JSON with other variants")
    parser.add_argument("--epochs", type=int, help="fewer than those of the recipe, to compare texts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="pairs of each set; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="variants at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="none starts later")
    args = parser.parse_args()
    common.print_result(run_variants(args), args.out)


def run_variants(args: argparse.Namespace) -> Facts:
    """Run all variants, each as soon as its data is there, and return what is known of them."""
    args.work.mkdir(parents=True, exist_ok=True)
    known = VARIANTS if args.file is None else json.loads(args.file.read_text())
    base = json.loads((EXAMPLE / "recipe.json").read_text())
    names = args.variants.split(",") if args.variants else list(known)
    if unknown_names := [name for name in names if name not in known]:
        raise SystemExit(f"unknown variants: {', '.join(unknown_names)} (allowed: {', '.join(known)})")
    if args.epochs:
        base["epochs"] = args.epochs
    recipes = {name: change(base, known[name]) for name in names}
    jobs = Jobs(args.work, args.jobs, args.seconds, lambda name: (not name.startswith("data-"), name not in names))
    waiting = {name: get_data_name(recipe) for name, recipe in recipes.items()}
    for data, recipe in {waiting[name]: recipe for name, recipe in recipes.items()}.items():
        jobs.add(data, prepare, folder=str(args.data), recipe=recipe)
    options = {"tasks": str(args.data / "tasks"), "limit": args.limit, "seed": args.seed, "device": args.device}
    for ended in jobs.run():
        print(f"{jobs.seconds:6.0f} s  {ended}: {describe(jobs, ended)}", file=sys.stderr, flush=True)
        for name in [name for name, data in waiting.items() if data == ended and ended in jobs.results]:
            jobs.add(name, train, data=waiting.pop(name), recipe=recipes[name], **options)
        result = {
            "device": common.describe_device(args.device),
            "seconds": round(jobs.seconds),
            "data": {name: facts for name, facts in jobs.results.items() if name.startswith("data-")},
            "variants": {name: jobs.results[name] for name in names if name in jobs.results},
            "errors": jobs.errors,
        }
        common.write_result(result, args.out)
    return result


if __name__ == "__main__":
    main()
