"""CoVe (McCann et al., 2017): the encoder of a translator, frozen, below a scalar mix and a BiLSTM.

    PRETUNE_DATA=FOLDER python -m bench.quality.cove DIR [--budget 5m] [--task sst2] [--examples 1000] [--seeds 3]
                                                         [--width 64]

An encoder-decoder translates English captions to German (Multi30k, 29,000 pairs). Its encoder becomes a model of its
own (`extract_encoder`), whose layers a task reads (`--method scalar-mix`). Beside it: the same encoder with random
weights, and the baselines of the task, of which `vectors` and `bilstm` have skip-gram vectors of the same captions and
some news. Training examples and heads are drawn anew for each seed, the translator is one. Prints the scores as JSON;
DIR keeps the runs.
"""

import json
from pathlib import Path
from typing import Any

import pretune as pt
from bench import common
from pretune.adaptation.surgery import extract_encoder
from pretune.models.model import build

TRAIN = {
    "train.samples_every": 0,
    "train.eval_tokens": 8000,
    "data.max_length": 48,
}
FINETUNE = {
    "tune.scalar_mix.lstm.hidden": 64,
    "data.max_length": 64,
    "train.eval_every": 50,
    "task.max_eval_examples": 600,
}
VOCAB = 4000


def choose_size(width: int) -> dict[str, object]:
    """Return the settings of a translator: deeper, in larger batches and at a lower rate if it is wide."""
    layers = {"model.width": width, "model.depth": 2 + width // 256, "model.heads": max(2, width // 64)}
    batch = {"train.batch_tokens": 32 * width, "train.lr": 4e-3 * (64 / width) ** 0.5}
    return {**layers, "model.hidden": 4 * width, **batch}


def pretrain_translator(folder: Path, budget: str, width: int) -> Path:
    """Prepare the captions, train the translator, and save its encoder and one with random weights."""
    captions = common.find_data("corpora/multi30k")
    pair = f"pair:{captions}/train.en.xz,{captions}/train.de.xz"
    valid = f"pair:{captions}/val.en.xz,{captions}/val.de.xz"
    general = str(common.find_data("corpora/wikinews-en/valid.txt.xz"))  # the vocabulary is not that of captions alone
    if not (folder / "tok").exists():
        tokenizer = pt.train_tokenizer("unigram", [pair, general], vocab=VOCAB, style="sentinels", lowercase=True)
        tokenizer.save(folder / "tok")
    data = pt.prepare([pair], tokenizer=folder / "tok", valid=[valid], out=folder / "data")
    run = folder / "translator"
    pt.pretrain(
        "t5-table",
        data=data,
        objective="supervised",
        out=run,
        budget=budget,
        resume=True,
        overrides={**choose_size(width), **TRAIN},
    )
    translator = pt.load(run)
    pt.save(extract_encoder(translator), folder / "encoder", overwrite=True)
    untrained = build(translator.spec, seed=1)
    untrained.assets = translator.assets
    pt.save(extract_encoder(untrained), folder / "random", overwrite=True)
    if not (folder / "vectors.txt").exists():
        pt.train_vectors([f"{captions}/train.en.xz", general], width=64, by="line", out=folder / "vectors.txt")
    return run


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    run = pretrain_translator(args.folder, args.budget, args.width)
    rows: dict[str, list[float]] = {}
    for seed in range(args.seeds):
        for name in ("encoder", "random"):
            fine = pt.finetune(
                args.folder / name,
                task=args.task,
                method="scalar-mix",
                train_examples=[args.examples],
                baselines="majority,svm,vectors,bilstm" if name == "encoder" else "none",
                vectors=args.folder / "vectors.txt",
                out=args.folder / f"{args.task}-{name}-{seed}",
                resume=True,
                steps=args.steps,
                overrides={**FINETUNE, "task.split_seed": seed, "train.seed": seed},
            )
            rows.setdefault(name, []).append(fine.score)
            for row in read_baselines(fine.path):
                rows.setdefault(row["name"], []).append(row["score"])
    means = {name: round(sum(scores) / len(scores), 4) for name, scores in rows.items()}
    common.print_result({"task": args.task, "translator": read_losses(run), "scores": rows, "means": means}, args.out)


def read_losses(run: Path) -> dict[str, Any]:
    """Return the last evaluation of a pre-training."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next((line for line in reversed(lines) if "held_out" in line), {})


def read_baselines(run: Path) -> list[dict[str, Any]]:
    """Return the baselines that a run measured."""
    scores = json.loads((run / "scores.json").read_text())
    return list(scores["baselines"])


if __name__ == "__main__":
    main()
