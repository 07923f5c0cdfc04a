"""What to type next: every verb but `env` ends with one command that works as it stands.

    next: pretune finetune runs/base --train labelled.csv --out runs/base-tuned

It is shell-quoted and names only what is there, or what the command is to make. A second line, `or:`, may have words
in capitals for what we cannot know.
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
"""Data of fewer tokens is read ten times in about a minute or two by the smallest models."""
MIN_DOCUMENTS = 20
"""Of fewer documents hardly any are held out, let alone two with neighbouring sentences."""
_SMALL_MODEL = ("--set", "model.width=256", "--set", "model.depth=4", "--set", "model.heads=4")


def hint(*words: object, silent: bool = False, stdin: str = "") -> None:
    """Say the next command, without its `pretune`; `silent` where JSON was asked for; `piped` is text that it reads."""
    if not silent:
        log.info(f"next: {f'echo {quote(stdin)} | ' if stdin else ''}{format_command(*words)}")


def hint_other(text: str, *, silent: bool = False) -> None:
    """Say another command, in which words in capitals are to be replaced."""
    if not silent:
        log.info(f"or: pretune {text}")


def format_command(*words: object) -> str:
    """A command as one types it.

    >>> format_command("predict", Path("my runs/a"), "--input", "new.csv")
    "pretune predict 'my runs/a' --input new.csv"
    """
    return shlex.join(["pretune", *map(str, words)])


def quote(path: object) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))


def find_free_path(path: str | Path) -> Path:
    """The path, or one like it that is not there yet."""
    first = Path(path)
    return next(
        one
        for one in (first.with_name(f"{first.stem}{mark}{first.suffix}") for mark in _generate_suffixes())
        if not one.exists() and not one.is_symlink()
    )


def suggest_use(run: object, spec: "Model") -> list[object]:
    """What to ask a model that was just made: to fill a blank, to write on, or whether it is whole."""
    if spec.head is None:
        return ["verify", run]
    if spec.encoder is not None:
        return ["fill", run, "This is the ___ of it."]
    return ["generate", run, "This is"]


def suggest_pretraining(data: Path, split: "ShardSplit") -> list[object]:
    """How to pre-train on prepared data: a small model of a family that reads such tokens, for a few minutes."""
    tokens = split.tokens
    from pretune.cli._names import find_family

    added = json.loads((data / "tokenizer" / "tokenizer.json").read_text("utf-8")).get("added_tokens", [])
    family, sizes = find_family({str(token["content"]) for token in added})
    small = [size for size in ("tiny", "mini") if size in sizes]
    name = f"{family}-{small[0 if tokens < SMALL_DATA_TOKENS else -1]}" if small else family
    length = ("--epochs", "10") if tokens < SMALL_DATA_TOKENS else ("--budget", "10m")
    apart = split.documents < MIN_DOCUMENTS or 2 * split.sentences < 3 * split.documents
    what = ("--objective", "masked") if apart and _reads_pairs(family) else ()
    return [
        "pretrain",
        name,
        "--data",
        data,
        *what,
        *length,
        *(() if small else _SMALL_MODEL),
        "--out",
        find_free_path("runs/base"),
    ]


def _reads_pairs(family: str) -> bool:
    """Whether its paper learns from neighbouring sentences, which documents of one sentence do not have."""
    from pretune.models.families import FAMILIES
    from pretune.objectives import OBJECTIVES

    training = FAMILIES.get(family).training
    return training is not None and OBJECTIVES.get(str(training.objective["kind"]))().pairs in ("other", "swapped")


def _generate_suffixes() -> Iterator[str]:
    return itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
