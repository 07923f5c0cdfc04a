"""Domain-adaptive pre-training (Gururangan et al., 2020): go on pre-training a model on text like yours.

    python examples/domain_adaptive_pretraining.py my_texts/ --base path/to/bert --train my_labels.csv

Printed is how well the model predicts hidden words of held-out text of the domain, before and after; with a table of
labelled texts, also what fine-tuning scores from either model. Without a base, a tiny one is first pre-trained on
docstrings of Python; without texts, the domain is the documentation of pretune.
Time: 3 min of one core of a Neoverse-N1.
"""

import argparse
import json
from pathlib import Path

import pretune as pt

DOCS = Path(__file__).parents[1] / "docs"


def train_small_base(general: list[str], steps: int, out: Path) -> Path:
    """A small model of general text, for people who have no checkpoint at hand."""
    tokenizer = pt.train_tokenizer("wordpiece", general, vocab=4096, lowercase=True)
    data = pt.prepare(general, tokenizer=tokenizer, out=out / "general")
    small = {"data.max_length": 64, "data.length_schedule": None}
    run = pt.pretrain("bert-tiny", data=data, objective="masked", steps=steps, out=out / "base", overrides=small)
    return run.path


def read_validation(run: Path) -> list[dict[str, float]]:
    """Loss and accuracy on held-out text, from before the first step to the end."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["held_out"] for line in lines if "held_out" in line]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("domain", nargs="*", default=[str(DOCS)], help="files or folders of text")
    arguments.add_argument("--base", type=Path, help="a run or a Hugging Face directory of an encoder")
    arguments.add_argument("--general", nargs="+", default=["builtin:docs"], help="text for a base, if none is given")
    arguments.add_argument("--base-steps", type=int, default=200)
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--train", help="CSV, TSV or JSONL with texts and labels, to fine-tune both models on")
    arguments.add_argument("--out", type=Path, default=Path("runs/domain"))
    asked = arguments.parse_args()

    base = asked.base or train_small_base(asked.general, asked.base_steps, asked.out)
    data = pt.prepare(asked.domain, tokenizer=base, out=asked.out / "domain", holdout="10%")
    goal = {"data": data, "objective": "masked", "steps": asked.steps, "out": asked.out / "adapted"}
    run = pt.pretrain(init_from=base, **goal, overrides={"data.max_length": 64, "data.length_schedule": None})
    for when, found in (("before", read_validation(run.path)[0]), ("after", read_validation(run.path)[-1])):
        print(f"{when}: loss {found['loss']:.3f}, {found['accuracy']:.1%} of the hidden words of the domain right")
    if asked.train:
        for name, model in (("base", base), ("adapted", run.path)):
            fine = pt.finetune(model, train=asked.train, out=asked.out / f"tuned-{name}")
            print(f"fine-tuned from {name}: {fine.score:.3f} on test")


if __name__ == "__main__":
    main()
