"""`pretune show-batch`: tokens, targets and attention mask of an objective."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pretune.cli._options import SHAPES, OutputFormat
from pretune.cli._output import find_free_path, hint, hint_other, print_page, quote
from pretune.core import log
from pretune.core.api import Option
from pretune.core.log import Section, count_cells
from pretune.runs.options import SET

if TYPE_CHECKING:
    from pretune.objectives.example import BatchExample, ExampleSide

MAX_CELLS = 14
"""Width of a token."""
MAX_KEYS = 40
"""Maximum number of columns of a mask."""


def show_batch(
    objective: Annotated[
        str, Option("OBJECTIVE", "Objective of `pretune list objectives`.", names=("pretune.objectives:OBJECTIVES",))
    ],
    text: Annotated[
        list[str] | None, Option("--text TEXT", "Sentence; repeat for objectives with two segments.")
    ] = None,
    tokenizer: Annotated[Path | None, Option("--tokenizer DIR", "Tokenizer (default: split into words).")] = None,
    shape: Annotated[
        str | None, Option("--shape NAME", "Model shape: encoder, decoder, encoder-decoder, …", names=SHAPES)
    ] = None,
    seed: Annotated[int, Option("--seed N", "Random seed.")] = 0,
    hide: Annotated[
        list[str] | None, Option("--hide WORDS", "Mask these words instead of random ones. Repeatable.")
    ] = None,
    settings: Annotated[dict[str, str] | None, replace(SET, about="Change a setting: rate=0.3. Repeatable.")] = None,
    *,
    output: OutputFormat,
) -> None:
    """Show inputs, targets and attention mask of an objective.

    Prints the corrupted input, the targets, the loss, and which positions attend to which.

    Example: pretune show-batch span_corruption --text "Thank you for inviting me." --hide "for inviting"
    """
    from pretune.objectives.example import build_example
    from pretune.text.tokenizer import Tokenizer

    example = build_example(
        objective,
        texts=text or (),
        tokenizer=None if tokenizer is None else Tokenizer.load(tokenizer),
        shape=shape,
        seed=seed,
        settings=settings or {},
        hide=hide or (),
    )
    if output.as_json:
        log.print_json(example.to_dict())
        return
    note = "" if tokenizer else "Tokens are words here; use --tokenizer DIR for subwords."
    print_page(_replace_unencodable(example.title), _replace_unencodable(example.about), _build_sections(example), note)
    values_by_option = {
        "--text": text,
        "--hide": hide,
        "--set": [f"{path}={value}" for path, value in (settings or {}).items()],
        "--tokenizer": tokenizer and [tokenizer],
        "--shape": shape and [shape],
    }
    options = [word for name, values in values_by_option.items() for value in values or () for word in (name, value)]
    hint("show-batch", objective, *options, "--seed", seed + 1)
    hint_other(f"pretrain FAMILY --objective {objective} --data DATA --out {quote(find_free_path('runs/base'))}")


def _build_sections(example: "BatchExample") -> list[Section]:
    """Return the settings, and a table for each side of each sequence."""
    import yaml

    settings = {name: value for name, value in example.settings.items() if name != "kind" and value is not None}
    text = yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10**6).strip("{}\n")
    title = f"{example.objective}: shape {example.shape}, seed {example.seed}{', ' * bool(text)}{text}"
    sections = [Section(title=title)]
    for sequence in example.sequences:
        label = "" if sequence.label is None else f"label {sequence.label}, "
        terms = [f"{count} {'targets' if name == 'loss' else name}" for name, count in sequence.counts.items()]
        loss = f"loss over {' and '.join(terms)}" if any(sequence.counts.values()) else "no targets; try another --seed"
        for side in sequence.sides:
            suffix = f", {loss}" if side is sequence.sides[-1] else ""
            sections.append(_build_section(f"{label}{side.name}{suffix}", side))
    return sections


def _build_section(title: str, side: "ExampleSide") -> Section:
    """Return a row per token with its target and its row of the mask."""
    size = min(len(side.tokens), MAX_KEYS)
    cut = f" (first {size} of {len(side.tokens)})" if size < len(side.tokens) else ""
    header = ("", "token", "target", f"attends to{cut}")
    rows = [("", "", "", "".join(str(place % 10) for place in range(size)))]
    for place, (token, target, mask) in enumerate(zip(side.tokens, side.targets, side.mask, strict=True)):
        cells = "".join("#" if visible else "." for visible in mask[:size])
        rows.append((str(place), _fit(token), _fit(target), cells))
    return Section(title=title, rows=rows, header=header)


def _fit(token: str) -> str:
    """Return a token in the encoding of stdout, cut to `MAX_CELLS`."""
    token = _replace_unencodable(token)
    if count_cells(token) <= MAX_CELLS:
        return token
    while count_cells(token) > MAX_CELLS - 2:
        token = token[:-1]
    return f"{token}.."


def _replace_unencodable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"  # None: an in-memory stream
    return text.encode(encoding, "replace").decode(encoding)
