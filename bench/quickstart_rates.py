"""Learning rates and steps of the quick start, compared on reviews outside its test.

    PYTHONPATH=src python bench/quickstart_rates.py OUT --row full --labels 200 --rates 5e-5,1e-4 --steps 25,50

Everything is as `pretune quickstart` has it, but the test is 2,000 of the other reviews, which are in nothing else.
Prints a line of JSON for every rate and number of steps. `--pretrain SECONDS` pre-trains the small model first, for the
rows `own` and `random`.
"""

import argparse
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from pretune.core import log
from pretune.runs.build_config import resolve_device
from pretune.runs.quickstart import QuickstartRun, find_encoder, read_reviews
from pretune.runs.quickstart_plan import ROWS, SMALL_MODEL_ROWS, QuickstartPlan

DEV = 2000
"""Reviews that stand in for those of the test."""


def main() -> None:
    """Measure every combination."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--row", default="full", choices=[key for key, row in ROWS.items() if row.finetune_method])
    arguments.add_argument("--labels", type=int, default=200)
    arguments.add_argument("--rates", default="1e-4")
    arguments.add_argument("--steps", default="50")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--pretrain", type=float, default=60.0)
    arguments.add_argument("--device")
    args = arguments.parse_args()
    log.set_quiet(True)
    plan = QuickstartPlan()
    _, rest, names = read_reviews(None, plan)
    sizes, model = replace(plan, test=DEV), find_encoder(None)
    work = QuickstartRun(args.out, sizes, rest[:DEV], rest[DEV:], names, model, resolve_device(args.device), 360.0)
    work.prepare_data()
    if args.row in SMALL_MODEL_ROWS:
        work.pretrain(args.pretrain)
    for rate in map(float, args.rates.split(",")):
        ROWS[args.row] = replace(ROWS[args.row], lr=rate)
        for steps in map(int, args.steps.split(",")):
            shutil.rmtree(args.out / "tuned", ignore_errors=True)
            start = time.process_time()
            scores = [float(work.finetune(args.row, args.labels, seed, steps).mean()) for seed in range(args.seeds)]
            facts = {"row": args.row, "labels": args.labels, "lr": rate, "steps": steps, "each": scores}
            mean, spent = sum(scores) / len(scores), time.process_time() - start
            print(json.dumps({**facts, "mean": round(mean, 4), "cpu_seconds": round(spent, 1)}), flush=True)


if __name__ == "__main__":
    main()
