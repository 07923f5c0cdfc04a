"""Rewards of held-out problems before and after GRPO, over several seeds.

    python -m bench.data.problems chain_sum problems/sums --train 1600 --set min_terms=2 max_terms=3 max_digits=1
    python -m bench.data.problems letter_counting problems/letters --train 1600 --set min_words=3 max_words=8
    python -m bench.quality.rewards problems/sums:number problems/letters:number --runs runs/rewards [--seeds 3]
        [--steps 100] [--model smollm2] [--set tune.grpo.samples=16] [--out result.json]

Each FOLDER:REWARD is a folder with train, dev and test.jsonl, and the check of its answers. All problems of test are
answered greedily by the model before training, and by the weights that are best on dev. Prints JSON: both mean rewards,
that of the most frequent reference as the answer to all, those of each seed, and the seconds of all of it.
"""

import json
import time
from pathlib import Path

import pretune as pt
from bench import common
from pretune.core.run_dir import RunDir

SETTINGS = {"data.max_new_tokens": 32, "train.batch": 32, "tune.grpo.samples": 16, "tune.grpo.temperature": 0.7}


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("tasks", nargs="+", metavar="FOLDER:REWARD")
    parser.add_argument("--runs", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--method", default="lora")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="settings, as JSON")
    options = parser.parse_args()
    typed = (text.partition("=") for text in options.set)
    settings = SETTINGS | {name: json.loads(value) for name, _, value in typed}
    rows = []
    for task in options.tasks:
        folder, _, reward = task.rpartition(":")
        start, out = time.monotonic(), options.runs / Path(folder).name
        run = pt.finetune(
            options.model,
            **{split: Path(folder) / f"{split}.jsonl" for split in ("train", "dev", "test")},
            reward=reward,
            method=options.method,
            out=out,
            seeds=options.seeds,
            steps=options.steps,
            lr=options.lr,
            baselines="majority,untuned",
            overrides=settings,
        )
        scores = json.loads(RunDir(out).scores.read_text())
        baselines = {row["name"]: row["score"] for row in scores["baselines"]}
        rows.append(
            {
                "task": Path(folder).name,
                "constant": baselines["frequent_answer"],
                "before": baselines["untuned"],
                "after": run.score,
                "seeds": scores["result"]["each"],
                "seconds": round(time.monotonic() - start, 1),
            }
        )
    common.print_result({"settings": settings, "tasks": rows}, options.out)


if __name__ == "__main__":
    main()
