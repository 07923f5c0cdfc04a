"""Fine-tuning of a model on a task by any method: `pt.finetune`.

run = pt.finetune("runs/bert", task="sst2", method="lora", out="runs/sst2")
run.predict(["a gorgeous, witty, seductive movie"])
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pretune.core.arguments import check_arguments
from pretune.core.config.specs import get_fields
from pretune.runs.finetune.config import AdaptationConfig, FinetuneTrainConfig, SequenceConfig
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.sweep import run_finetune

SETTING_PATHS = [
    f"{section}.{name}"
    for section, spec in (("train", FinetuneTrainConfig), ("data", SequenceConfig), ("tune", AdaptationConfig))
    for name in get_fields(spec)
]
"""Settings that `overrides` takes and that an unknown argument may mean."""


@check_arguments(SETTING_PATHS)
def finetune(
    model: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    train: str | os.PathLike[str] | None = None,
    dev: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    type: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    data: str | os.PathLike[str] | None = None,
    method: str | None = None,
    lr: float | Sequence[float] | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    train_examples: int | Sequence[int | None] | None = (),
    baselines: str | None = None,
    vectors: str | os.PathLike[str] | None = None,
    forgetting: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> FinetunedRun:
    """Fine-tune a model on a task, and save it to `out` with its scores, baselines and cost.

    Give a task by name, or a table as `train`. Learning rate and early stopping are chosen on the validation set; the
    headline score is that of the test set if there is one.

    Args:
        model: A pre-trained model: a run, a Hugging Face directory, or hf:OWNER/NAME.
        out: Output directory of the run.
        task: Name of a task (`pt.list_tasks`); several, comma-separated, are trained together.
        train: Table of training examples: CSV, TSV, JSONL or CoNLL.
        dev: Table of validation examples; None: a stratified split of `train`.
        test: Table of test examples.
        type: Type of the task of a table ("classification", "regression", "tagging" …); None: found from its labels.
        text: Column of the text.
        pair: Column of the second text.
        label: Column of the label.
        data: Directory of task data.
        method: "full" (default), "frozen", "gradual", "lora", "qlora", "adapter", …; see `pt.list_methods`.
        lr: Peak learning rate; several are compared on the validation set. None: the method's default.
        epochs: Passes over the training examples.
        steps: Optimizer steps, instead of epochs.
        seeds: Number of seeds; reports mean and 95 % confidence interval.
        train_examples: Number of training examples, None for all; several give a learning curve.
        baselines: "default", "all", "none", or names, comma-separated.
        vectors: File of word vectors (`pt.train_vectors`) for the baseline of static vectors.
        forgetting: Directory of `pt.prepare`: measure the pre-training loss on it before and after.
        resume: Continue the unfinished run in `out`; other arguments may be left out.
        force: Allow fewer than 5 training examples, or classes without any.
        config: Settings: a run.json, or a YAML file, or the same tree as a mapping.
        overrides: Settings by path, such as {"method.rank": 16, "train.batch": 64}; they go before `config`.
        device: "cpu" or "cuda"; None: a GPU if available.

    Returns:
        The run: its path, its headline score (`run.score`), `run.predict(inputs)`, `run.load()`.

    Raises:
        UsageError: invalid arguments, before anything is computed.
        DataError: a table that cannot be read as a task.
        CheckpointError: a damaged model, or a run in `out` that cannot be resumed.
    """
    counts = (train_examples,) if isinstance(train_examples, int) else train_examples
    options: dict[str, Any] = {
        "task": task, "type": type, "train": train, "dev": dev, "test": test, "text": text, "pair": pair,
        "label": label, "data": data, "force": force or None, "method": method, "epochs": epochs, "steps": steps,
        "settings": config, "changes": overrides,
    }  # fmt: skip
    return run_finetune(
        model,
        out=out,
        resume=resume,
        lr=lr,
        seeds=seeds,
        train_examples=counts or (),
        baselines=baselines,
        forgetting=forgetting,
        vectors=vectors,
        device=device,
        **options,
    )
