"""Domain-adaptive pre-training (Gururangan et al., 2020): continue pre-training on text of your domain.

    python examples/domain_adaptive_pretraining.py my_texts/ --base path/to/bert --train my_labels.csv

Prints the validation loss and masked accuracy on the domain, before and after; with a table of labelled texts, also the
test scores of both models after fine-tuning. Without --base, a tiny model is first pre-trained on docstrings of Python;
without texts, the domain is the documentation of pretune.
Time: 3 min of one core of a Neoverse-N1.
"""

import argparse
import json
from pathlib import Path

import pretune as pt

DOCS = Path(__file__).parents[1] / "docs"


def train_small_base(general: list[str], steps: int, out: Path) -> Path:
    """Pre-train a small model on general text, for users without a checkpoint."""
    tokenizer = pt.train_tokenizer("wordpiece", general, vocab=4096, lowercase=True)
    data = pt.prepare(general, tokenizer=tokenizer, out=out / "general")
    small = {"data.max_length": 64, "data.length_schedule": None}
    run = pt.pretrain(
        "bert-tiny", data=data, objective="masked", steps=steps, paper=True, out=out / "base", overrides=small
    )
    return run.path


def read_validation(run: Path) -> list[dict[str, float]]:
    """Return loss and accuracy on the validation text, from step 0 to the last."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["held_out"] for line in lines if "held_out" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("domain", nargs="*", default=[str(DOCS)], help="files or folders of text")
    parser.add_argument("--base", type=Path, help="run or Hugging Face directory of an encoder")
    parser.add_argument(
        "--general", nargs="+", default=["builtin:docs"], help="text to pre-train a base model, without --base"
    )
    parser.add_argument("--base-steps", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--train", help="CSV, TSV or JSONL with texts and labels, to fine-tune both models on")
    parser.add_argument("--out", type=Path, default=Path("runs/domain"))
    options = parser.parse_args()

    base = options.base or train_small_base(options.general, options.base_steps, options.out)
    data = pt.prepare(options.domain, tokenizer=base, out=options.out / "domain", holdout="10%")
    settings = {"data": data, "objective": "masked", "steps": options.steps, "out": options.out / "adapted"}
    run = pt.pretrain(init_from=base, **settings, overrides={"data.max_length": 64, "data.length_schedule": None})
    for when, metrics in (("before", read_validation(run.path)[0]), ("after", read_validation(run.path)[-1])):
        print(f"{when}: validation loss {metrics['loss']:.3f}, {metrics['accuracy']:.1%} of the masked tokens correct")
    if options.train:
        for name, model in (("base", base), ("adapted", run.path)):
            tuned = pt.finetune(model, train=options.train, out=options.out / f"tuned-{name}")
            print(f"fine-tuned from {name}: {tuned.score:.3f} on test")


if __name__ == "__main__":
    main()
