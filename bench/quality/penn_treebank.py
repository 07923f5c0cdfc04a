"""Perplexity of AWD-LSTM on the Penn Treebank, by word and with <eos>: 57.3 in Merity et al. (2018), after 500 epochs.

    python -m bench.quality.penn_treebank DIR --budget 15m                    # the paper's model on a GPU, one run
    python -m bench.quality.penn_treebank DIR --budget 15m --optimizer asgd   # as the paper trains it
    python -m bench.quality.penn_treebank DIR --small --tokens 1000000 --samples blocks,streams --seeds 3   # on a CPU

DIR gets the prepared text and the runs; a run that was stopped (SIGTERM) is resumed by the same command. 929,589 words
of training text, 73,760 of validation and 82,430 of test text, each line with an <eos>; 10,000 words. The test text is
read in order as one stream. `--samples blocks` trains on the same windows, shuffled and without a state. The result is
a JSON line per run: test and validation perplexity, and the curve (epochs, seconds, validation perplexity).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import pretune as pt
from bench import common
from pretune.core.run_dir import RunDir
from pretune.objectives.causal import CausalLM
from pretune.runs.config import DataConfig
from pretune.runs.training_data import TrainingData
from pretune.training.distributed import Ranks
from pretune.training.run_logger import read_metrics
from pretune.training.step import ModelWithLoss
from pretune.training.validation import compute_validation_loss

WINDOW = 70
SPLITS = ("train", "valid", "test")
TRAIN_TOKENS, WORDS = 929_589, 10_003
"""10,000 words with <unk> and <eos>, and three special tokens that the text does not have."""
MODEL = {
    "model.width": 400,
    "model.hidden": 1150,
    "model.depth": 3,
    "model.output_dropout": 0.4,
    "model.hidden_dropout": 0.25,
    "model.input_dropout": 0.4,
    "model.token_dropout": 0.1,
    "model.weight_dropout": 0.5,
}
SMALL = {"model.width": 128, "model.hidden": 256, "model.depth": 2}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    # The paper's: batches of 20, and an average of the weights from the first evaluations without progress.
    "asgd": {
        "train.batch_tokens": 20 * WINDOW,
        "train.optimizer": {"kind": "asgd", "lr": 30.0, "weight_decay": 1.2e-6, "nonmonotone_interval": 5},
        "train.schedule": {"kind": "constant"},
        "train.clip": 0.25,
    },
    # For a budget: larger batches, and a rate that reaches zero at its end.
    "adam": {
        "train.batch_tokens": 64 * WINDOW,
        "train.optimizer": {"kind": "adam_w", "lr": 3e-3, "betas": [0.8, 0.99], "eps": 1e-8, "weight_decay": 1.2e-6},
        "train.schedule": {"kind": "cosine", "warmup": 0.1},
        "train.clip": 0.25,
    },
}


def write_texts(folder: Path) -> dict[str, Path]:
    """Write the splits with an <eos> at the end of every line: each split is one document."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    for split, file in files.items():
        if not file.exists():
            lines = common.read_corpus(f"ptb/ptb.{split}").splitlines()
            file.write_text("".join(f"{line.strip()} <eos>\n" for line in lines))
    return files


def prepare(folder: Path) -> tuple[Path, Path]:
    """Prepare the text; the second directory has the test text in the place of the validation text."""
    files, tokenizer = write_texts(folder / "text"), folder / "tokenizer"
    if not tokenizer.exists():
        pt.train_tokenizer("whitespace", [files["train"]], vocab=WORDS, min_frequency=1, by="file").save(tokenizer)
    targets = {split: folder / f"data-{split}" for split in ("valid", "test")}
    for split, target in targets.items():
        pt.prepare([files["train"]], tokenizer=tokenizer, out=target, valid=[files[split]], by="file")
    return targets["valid"], targets["test"]


def train(data: Path, out: Path, arguments: argparse.Namespace, samples: str, seed: int) -> Path:
    """Train a model, or resume its training."""
    run = RunDir(out)
    if run.is_finished:
        return out
    if run.settings.exists():
        return pt.pretrain(out=out, resume=True).path
    overrides: dict[str, Any] = {
        **(SMALL if arguments.small else MODEL),
        **OPTIMIZERS[arguments.optimizer],
        "data.samples": samples,
        "data.max_length": WINDOW,
        "train.seed": seed,
        "train.samples_every": 0,
        **dict(setting.split("=", 1) for setting in arguments.set),
    }
    overrides.setdefault("train.eval_every", TRAIN_TOKENS // int(overrides["train.batch_tokens"]))  # every epoch
    length = {"tokens": arguments.tokens} if arguments.tokens else {"budget": arguments.budget}
    return pt.pretrain(
        "ulmfit", data=data, objective="causal", out=out, device=arguments.device, overrides=overrides, **length
    ).path


def evaluate(run: Path, data: Path, device: str, *, streams: int, has_state: bool) -> float:
    """Return the perplexity of the validation split of some data, with or without a state between the windows."""
    model = pt.load(run).to(device)
    samples = "streams" if has_state else "blocks"
    config = DataConfig(path=str(data), samples=samples, max_length=WINDOW)
    source = TrainingData.open(config, CausalLM(), model.shape, start=model.spec.special.start)
    stream = source.build_stream(
        "valid", length=WINDOW, tokens=streams * WINDOW, ranks=1, seed=0, has_fixed_slots=False
    )
    module = ModelWithLoss(model, CausalLM(), WINDOW)
    metrics = compute_validation_loss(module, stream, len(stream.get_steps(0)), Ranks(torch.device(device)))
    assert metrics is not None
    return metrics["perplexity"]


def read_curve(run: Path) -> list[list[float]]:
    """Return epochs, seconds and perplexity of each evaluation, those of the last logged step before it."""
    epochs, seconds, curve = 0.0, 0.0, []
    for line in read_metrics(run):
        if "tokens" in line:
            epochs, seconds = line["tokens"] / TRAIN_TOKENS, line["seconds"]
        if line.get("held_out"):
            curve.append([round(epochs, 2), round(seconds, 1), round(line["held_out"]["perplexity"], 2)])
    return curve


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("folder", type=Path, help="directory of the text and the runs")
    parser.add_argument("--budget", default="15m", help="time of training")
    parser.add_argument("--tokens", type=int, help="tokens of training, instead of a time")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    parser.add_argument("--samples", default="streams", help="streams, blocks, or both, comma-separated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="a model for a CPU")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="other settings of the runs")
    common.add_device_option(parser)
    arguments = parser.parse_args()
    data, test_data = prepare(arguments.folder)
    results = []
    for seed in range(arguments.seeds):
        for samples in arguments.samples.split(","):
            out = arguments.folder / f"{arguments.optimizer}-{samples}-{seed}{'-small' * arguments.small}"
            run = train(data, out, arguments, samples, seed)
            result: dict[str, Any] = {"run": out.name}
            for name, text in (("valid", data), ("test", test_data)):
                result[name] = round(evaluate(run, text, arguments.device, streams=1, has_state=True), 2)
            result["valid_without_state"] = round(evaluate(run, data, arguments.device, streams=16, has_state=False), 2)
            result["curve"] = read_curve(run)
            results.append(result)
            print(json.dumps(result), flush=True)
    common.write_result({"perplexity": results}, arguments.out)


if __name__ == "__main__":
    main()
