"""Hints: every verb but `env` prints the next command, ready to run.

    next: pretune finetune runs/base --train labelled.csv --out runs/base-tuned

The command is shell-quoted and names only paths that exist or that it creates. A second line, `or:`, may have
placeholders in capitals.
"""

import itertools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.core import log

if TYPE_CHECKING:
    from pretune.data.shards.index import ShardSplit
    from pretune.models.spec import Model

SMALL_DATA_TOKENS = 300_000
"""Below this, the smallest models train ten epochs in a minute or two."""
MIN_DOCUMENTS = 20
"""Below this, the validation split is too small for pairs of neighbouring sentences."""
_SMALL_MODEL = ("--set", "model.width=256", "--set", "model.depth=4", "--set", "model.heads=4")


def hint(*words: object, silent: bool = False, stdin: str = "") -> None:
    """Log the next command (without `pretune`), unless `silent`; `stdin` is text to pipe into it."""
    if not silent:
        log.info(f"next: {f'echo {quote(stdin)} | ' if stdin else ''}{format_command(*words)}")


def hint_other(text: str, *, silent: bool = False) -> None:
    """Log an alternative command; words in capitals are placeholders."""
    if not silent:
        log.info(f"or: pretune {text}")


def format_command(*words: object) -> str:
    """Return a shell-quoted command.

    >>> format_command("predict", Path("my runs/a"), "--input", "new.csv")
    "pretune predict 'my runs/a' --input new.csv"
    """
    return shlex.join(["pretune", *map(str, words)])


def quote(path: object) -> str:
    """Return a shell-quoted path."""
    return shlex.quote(str(path))


def find_free_path(path: str | Path) -> Path:
    """Return the path, or a similar one that does not exist yet."""
    first = Path(path)
    return next(
        candidate
        for candidate in (first.with_name(f"{first.stem}{mark}{first.suffix}") for mark in _generate_suffixes())
        if not candidate.exists() and not candidate.is_symlink()
    )


def suggest_use(run: object, spec: "Model") -> list[object]:
    """Return a command that tries a new model: fill a blank, generate text, or verify."""
    if spec.head is None:
        return ["verify", run]
    if spec.encoder is not None:
        return ["fill", run, "This is the ___ of it."]
    return ["generate", run, "This is"]


def suggest_pretraining(data: Path, split: "ShardSplit") -> list[object]:
    """Return a command that pre-trains a small model of a matching family on prepared data for a few minutes."""
    tokens = split.tokens
    from pretune.cli._names import find_family

    added_tokens = json.loads((data / "tokenizer" / "tokenizer.json").read_text("utf-8")).get("added_tokens", [])
    family, sizes = find_family({str(token["content"]) for token in added_tokens})
    small = [size for size in ("tiny", "mini") if size in sizes]
    name = f"{family}-{small[0 if tokens < SMALL_DATA_TOKENS else -1]}" if small else family
    length = ("--epochs", "10") if tokens < SMALL_DATA_TOKENS else ("--budget", "10m")
    lacks_neighbors = split.documents < MIN_DOCUMENTS or 2 * split.sentences < 3 * split.documents
    objective = ("--objective", "masked") if lacks_neighbors and _reads_pairs(family) else ()
    return [
        "pretrain",
        name,
        "--data",
        data,
        *objective,
        *length,
        *(() if small else _SMALL_MODEL),
        "--out",
        find_free_path("runs/base"),
    ]


def _reads_pairs(family: str) -> bool:
    """Return whether the paper's objective needs pairs of neighbouring sentences."""
    from pretune.models.families import FAMILIES
    from pretune.objectives import OBJECTIVES

    training = FAMILIES.get(family).training
    return training is not None and OBJECTIVES.get(str(training.objective["kind"]))().pairs in ("other", "swapped")


def _generate_suffixes() -> Iterator[str]:
    return itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
