"""Learning curves: five small models, one text, a few minutes each.

    python bench/learning.py --corpus TEXT… --valid TEXT… --tokenizers DIR --out RUNS --budget 3m

Prepares the text with each model's kind of tokenizer (DIR/tok-KIND-STYLE, trained before with `pretune tokenizer`),
then pre-trains each by its paper's objective and prints the held-out loss as it falls, what was read, and what the
run says of itself. `--only NAME,…` chooses, `--set PATH=VALUE` is passed on.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pretune as pt
from pretune.core.config import parse_assignments

SMALL = {"model.width": 256, "model.depth": 4, "model.heads": 4}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert-mini", "tok-wordpiece-cls-sep", {}),
    "gpt2": ("gpt2", "tok-bpe-endoftext", SMALL),
    "t5": ("t5", "tok-unigram-sentinels", SMALL),
    "bart": ("bart", "tok-bpe-s-mask", SMALL),
    "electra": ("electra-small", "tok-wordpiece-cls-sep", {**SMALL, "model.hidden": 1024}),
}


def main() -> None:
    """Prepare, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", nargs="+", required=True)
    parser.add_argument("--valid", nargs="+", required=True)
    parser.add_argument("--tokenizers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    changes = parse_assignments(given.set)
    for name in given.only.split(","):
        model, tokenizer, settings = MODELS[name]
        begun = time.monotonic()
        data = given.out / f"data-{tokenizer}"
        pt.prepare(given.corpus, tokenizer=given.tokenizers / tokenizer, out=data, valid=given.valid)
        prepared = time.monotonic() - begun
        run = pt.pretrain(
            model,
            data=data,
            budget=given.budget,
            out=given.out / name,
            overrides={"train.eval_every": 500, **settings, **changes},
        )
        lines = [json.loads(line) for line in (given.out / name / "metrics.jsonl").read_text().splitlines()]
        curve = [(line["step"], round(line["held_out"]["loss"], 4)) for line in lines if "held_out" in line]
        found = {**run.summary, "cost": None, "mfu": run.summary["cost"]["mfu"], "prepared": round(prepared, 1)}
        print(json.dumps({"model": name, "curve": curve, **found}), flush=True)


if __name__ == "__main__":
    main()
