"""Configs of runs from the arguments of the public functions."""

from typing import Any

from pretune.runs import defaults
from pretune.runs.config import PretrainConfig
from pretune.runs.finetune import defaults as finetune_defaults
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.options import PretrainOptions
from pretune.runs.task_options import FinetuneOptions


def build_pretrain_config(model: str | None = None, **options: Any) -> PretrainConfig:
    stored = options.pop("config") if isinstance(options.get("config"), PretrainConfig) else None
    return defaults.build_pretrain_config(PretrainOptions(model=model, **options), stored)


def build_finetune_config(model: Any = None, *, base_spec: Any = None, **options: Any) -> FinetuneConfig:
    stored = options.pop("config") if isinstance(options.get("config"), FinetuneConfig) else None
    return finetune_defaults.build_finetune_config(FinetuneOptions(model=model, **options), stored, base_spec=base_spec)
