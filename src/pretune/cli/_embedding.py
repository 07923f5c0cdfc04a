"""`pretune finetune --type embedding`: contrastive training of sentence embeddings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.cli._hints import hint, hint_other, quote
from pretune.core import log
from pretune.core.errors import UsageError, suggest
from pretune.core.format import format_count

NAME = "embedding"


def is_embedding(task: str | None) -> bool:
    """Return whether a task trains embeddings: `embedding` (from a file) or `embedding:snli` (from a task's pairs)."""
    return task is not None and task.partition(":")[0] == NAME


def resolve_task(task: str | None) -> str:
    """Return the task of `--type embedding`: pairs of a file, or those of a named task.

    >>> resolve_task(None), resolve_task("snli"), resolve_task("embedding:snli")
    ('embedding', 'embedding:snli', 'embedding:snli')
    """
    return task if task is not None and is_embedding(task) else NAME if task is None else f"{NAME}:{task}"


def train_embedding_run(
    model: str | None,
    task: str,
    out: Path,
    *,
    invalid_options: Mapping[str, Any],
    changes: Mapping[str, str],
    as_json: bool,
    **options: Any,
) -> None:
    """Train embeddings and print their scores before and after; raise if an option in `invalid_options` is set."""
    for name, value in invalid_options.items():
        if value:
            raise UsageError(f"{name} is not supported with --type {NAME}; see docs/embeddings.md")
    from pretune.core.config import list_paths
    from pretune.runs.embedding.train import EmbeddingTrainConfig, train_embeddings

    paths = list_paths(EmbeddingTrainConfig())
    for name in changes:
        if name not in paths:
            raise UsageError(f"unknown setting '{name}'{suggest(name, paths)} ({', '.join(paths)})")
    run = train_embeddings(model, out=out, task=task.partition(":")[2] or None, overrides=changes, **options)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        return
    if as_json:
        log.print_json(run.scores)
    else:
        initial, final = run.scores["before"], run.scores["after"]
        changes_text = "".join(f", {name} {initial[name]:.4f} -> {value:.4f}" for name, value in final.items())
        log.print_result(
            f"{run}: {format_count(run.scores['steps'], 'steps')}, loss {run.scores['loss']:.4f}{changes_text}"
        )
    hint("verify", run, silent=as_json)
    hint_other(f"embed {quote(run)} --input FILE --out vectors.npy", silent=as_json)
