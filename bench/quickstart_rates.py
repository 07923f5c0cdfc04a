"""The quick start's own code with other numbers, judged on dev reviews: what its plan was chosen by.

    OMP_NUM_THREADS=1 PYTHONPATH=src python bench/quickstart_rates.py runs/rates --steps 200 --rows frozen,full,random

Everything is as `pretune quickstart` does it, but for two things: rows are judged on the dev reviews, which are in
neither train nor test, and pre-training takes so many steps, so that what else the machine does changes no score.
`--seconds` is for a GPU that does nothing else. `--set lr=3e-4` changes the plan. Vocabulary, tokens, vectors and a
network of the same `--name` that lie in the directory already are used again. Prints one line of JSON for every score,
with the seconds and the processor seconds that it took; `--profile 30` says on stderr where they went.
"""

import argparse
import contextlib
import cProfile
import json
import pstats
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pretune.core import log
from pretune.data.prepare import Data
from pretune.recipes.quickstart.begin import averages, begin, piece_vectors
from pretune.recipes.quickstart.plan import Plan, plan_for
from pretune.recipes.quickstart.stages import Stages
from pretune.recipes.quickstart.tuning import Judge, encoder, other_encoder
from pretune.recipes.quickstart.work import Work, divided
from pretune.text.tokenizer import Tokenizer


def changed(plan: Plan, pairs: list[str]) -> Plan:
    """A plan with other numbers: `length=128`, `fresh=[0.01, 0.3]`."""
    known = {field.name for field in fields(plan)}
    given = {name: json.loads(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    assert given.keys() <= known, f"the plan has: {', '.join(sorted(known))}"
    return replace(plan, **{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def prepared(args: argparse.Namespace, plan: Plan) -> Work:
    """Text as tokens, the start, and the network that is judged; what is there is not made again."""
    texts = divided(args.reviews, plan)
    work = Work(args.out, plan, replace(texts, test=texts.dev), Stages(7, 1e9), args.device)
    trained = args.steps or args.seconds
    work.base = args.out / args.name if trained else args.out / "start"
    if not (args.out / "texts").is_dir():
        work.texts.write(args.out / "texts", plan.watched)
    if (args.out / "tokenizer").is_dir():
        work.tokenizer = Tokenizer.load(args.out / "tokenizer")
    else:
        timed("read", work.read)
    if "static" in args.rows or not (args.out / "start").is_dir():
        work.static = timed("vectors", lambda: piece_vectors(Data.open(args.out / "data"), plan, args.device))
        begin(work.tokenizer, work.static, plan, args.out / "start")
    if trained and not work.base.is_dir():
        timed("pretrain", lambda: work.pretrain(args.seconds, args.steps), steps=args.steps, seconds=args.seconds)
    return work


def judged(work: Work, judge: Judge, row: str, labels: int, seed: int) -> float:
    """The score of one row."""
    plan = work.plan
    if row in ("majority", "svm"):
        return judge.majority(labels, seed) if row == "majority" else judge.words(labels, seed)
    if row == "static":
        return judge.linear(row, lambda texts: averages(work.static, work.tokenizer, texts), labels, seed)
    if row in ("frozen", "other"):
        path = work.base if row == "frozen" else other_encoder()
        assert path is not None, "pip install 'pretune[quickstart]'"
        return judge.linear(row, encoder(path, plan.length, work.device), labels, seed)
    return judge.network(row, work.base, labels, seed)


def timed(what: str, work: Any, lines: int = 0, **facts: Any) -> Any:
    """Do it, and tell what came out and how many processor seconds it took."""
    begun, clock = time.process_time(), time.monotonic()
    with cProfile.Profile() if lines else contextlib.nullcontext() as watched:
        found = work()
    if watched is not None:
        print(f"--- {what} {facts}", file=sys.stderr)
        pstats.Stats(watched, stream=sys.stderr).sort_stats("cumtime").print_stats(lines)
        pstats.Stats(watched, stream=sys.stderr).sort_stats("tottime").print_stats(lines // 2)
    spent = {"cpu_s": round(time.process_time() - begun, 1), "s": round(time.monotonic() - clock, 1)}
    score = {"score": round(found, 4)} if isinstance(found, float) else {}
    print(json.dumps({"what": what, **facts, **score, **spent}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="pretrain", help="of the network that is pre-trained, or of the trials")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="of pre-training; without: the network as it starts")
    length.add_argument("--seconds", type=float, help="of pre-training")
    parser.add_argument("--rows", default="frozen,full,random", type=lambda text: text.split(","))
    parser.add_argument("--labels", default=[1000], type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--reviews", type=Path, help="a table with the columns text and label")
    parser.add_argument("--profile", type=int, default=0, metavar="LINES")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    log.set_quiet(True)
    plan = changed(plan_for(args.device), args.set)
    work = prepared(args, plan)
    trials = args.out / f"tuned-{time.time_ns()}"
    judge = Judge(work.texts, plan, args.out / "texts", trials, args.device)
    for labels in args.labels:
        for row in args.rows:
            for seed in range(args.first, args.first + args.seeds):
                facts = {"labels": labels, "seed": seed, "network": work.base.name, "set": args.set}
                timed(row, lambda r=row, n=labels, s=seed: judged(work, judge, r, n, s), args.profile, **facts)


if __name__ == "__main__":
    main()
