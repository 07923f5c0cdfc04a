"""Language model fine-tuning before a task: pre-training continues on its training texts (Howard and Ruder, 2018).

    OUT/language_model/texts.jsonl     texts of the training examples, without labels
                       data/           the same, tokenized
                       run/            a run of `pretune pretrain --from BASE`, the base of all trials

The objective is that of the family's paper; the schedule is slanted triangular, and layers have discriminative rates.
It is resumed with the run, and shared by all of its trials.
"""

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

from pretune.core import io, log
from pretune.core.hub import resolve_path
from pretune.core.run_dir import PATHS_KEY, MovedPath, RunDir
from pretune.data.prepared_data import PreparedData
from pretune.models.hf import checkpoint
from pretune.runs.defaults import build_pretrain_config
from pretune.runs.estimate import estimate_pretrain
from pretune.runs.finetune.adapted_model import load_base_model
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.task_data import TaskData
from pretune.runs.options import PretrainOptions
from pretune.runs.prepare import prepare
from pretune.runs.pretrain import run_pretrain
from pretune.text.tokenizer import Tokenizer
from pretune.training.distributed import Ranks, run_on_rank_zero

FOLDER = "language_model"
LAYER_DECAY = 1 / 2.6
"""Learning rate of a layer relative to the one above."""
SAMPLE_TEXTS = 20_000
"""Number of texts on which the cost is estimated."""


def continue_pretraining(tuning: FinetuneConfig, task_data: TaskData, run_dir: RunDir, ranks: Ranks) -> FinetuneConfig:
    """Return the config of the trials, with the base pre-trained on the task's texts for `tune.lm_epochs`."""
    if tuning.base.weights == "random":
        return tuning
    folder = run_dir.path / FOLDER
    run = RunDir(folder / "run")
    is_named = ranks.is_first and PATHS_KEY in run_dir.read_settings()  # not by runs of earlier versions
    is_finished, is_started, is_named = ranks.broadcast_object((run.is_finished, run.settings.exists(), is_named))
    if not is_finished:
        if not is_started:
            run_on_rank_zero(ranks, lambda: _prepare_texts(tuning, list_texts(task_data), folder))
        log.info(f"language model on the task's texts: {tuning.tune.lm_epochs:g} epochs")
        options = PretrainOptions() if is_started else _build_options(tuning, folder)
        run_pretrain(replace(options, out=run.path, resume=is_started, device=ranks.device.type), ranks=ranks)
        ranks.wait()  # until the model is saved
    base = replace(tuning.base, path=str(run.path), tokenizer=None, positions=None, extra_layers=0)
    # The identity of the trials does not depend on the spelling of --out.
    moved_paths = {"base.path": MovedPath(base.path, f"{FOLDER}/{run.name}")} if is_named else {}
    return replace(tuning, base=base, moved_paths={**tuning.moved_paths, **moved_paths})


def estimate_language_model(tuning: FinetuneConfig, task_data: TaskData) -> dict[str, float] | None:
    """Return steps, tokens and FLOPs of the pre-training on the task's texts, or None if there is none.

    Texts are tokenized as in the run; of many, a sample.
    """
    if not tuning.tune.lm_epochs or tuning.base.weights == "random":
        return None
    texts = list_texts(task_data)
    sample = texts[:: math.ceil(len(texts) / SAMPLE_TEXTS)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / FOLDER
        _prepare_texts(tuning, sample, folder)
        settings = build_pretrain_config(_build_options(tuning, folder))
        estimate = estimate_pretrain(settings)
    return {name: round(estimate[name] * len(texts) / len(sample)) for name in ("steps", "tokens", "flops")}


def list_texts(task_data: TaskData) -> list[str]:
    """Return the different texts of all training examples, whatever `task.train_examples` is."""
    examples = task_data.parts.train
    texts = (text for example in examples for text in (example.text, example.pair, *example.choices) if text)
    return list(dict.fromkeys(texts))


def _prepare_texts(tuning: FinetuneConfig, texts: list[str], folder: Path) -> PreparedData:
    """Write texts and tokenize them."""
    io.remove(folder.parent, folder.name, FOLDER)  # of an interrupted preparation
    folder.mkdir()
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False, allow_nan=False) + "\n" for text in texts)
    io.atomic_write(folder / "texts.jsonl", lines)
    if tuning.base.changed_field is not None:
        checkpoint.save(load_base_model(tuning.base, seed=tuning.train.seed), folder / "base")
    tokenizer = Tokenizer.load(resolve_path(_get_base(tuning, folder)))
    return prepare([folder / "texts.jsonl"], tokenizer=tokenizer, out=folder / "data")


def _get_base(tuning: FinetuneConfig, folder: Path) -> str:
    return tuning.base.path if tuning.base.changed_field is None else str(folder / "base")


def _build_options(tuning: FinetuneConfig, folder: Path) -> PretrainOptions:
    """Return the options of the pre-training run."""
    settings: dict[str, object] = {
        "train.schedule": {"kind": "slanted"},
        "train.layer_decay": LAYER_DECAY,
        "train.seed": tuning.train.seed,
        "train.precision": tuning.train.precision,
    }
    if tuning.tune.lm_lr is not None:
        settings["train.lr"] = tuning.tune.lm_lr
    return PretrainOptions(
        init_from=_get_base(tuning, folder), data=folder / "data", epochs=tuning.tune.lm_epochs, overrides=settings
    )
