"""`pretune show-batch`: tokens, targets and attention mask of an objective."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretune.cli._options import SHAPES, OutputFormat, list_words
from pretune.cli._output import find_free_path, hint, hint_other, print_page, quote
from pretune.core import log
from pretune.core.api import Options, option, option_set
from pretune.core.log import Section, count_cells
from pretune.runs.options import SET

if TYPE_CHECKING:
    from pretune.objectives.example import BatchExample, ExampleSide

MAX_CELLS = 14
"""Width of a token."""
MAX_KEYS = 40
"""Maximum number of columns of a mask."""


@option_set
class ShowBatchOptions(Options):
    """Options of an example of an objective."""

    objective: str = option(
        "OBJECTIVE",
        "Objective of `pretune list objectives`.",
        is_required=True,
        names=("pretune.objectives:OBJECTIVES",),
    )
    text: Sequence[str] = option("--text TEXT", "Sentence; repeat for objectives with two segments.", default=())
    tokenizer: Path | None = option("--tokenizer DIR", "Tokenizer (default: split into words).")
    shape: str | None = option("--shape NAME", "Model shape: encoder, decoder, encoder-decoder, …", names=SHAPES)
    seed: int = option("--seed N", "Random seed.", default=0)
    hide: Sequence[str] = option("--hide WORDS", "Mask these words instead of random ones. Repeatable.", default=())
    settings: Mapping[str, str] | None = SET.field(about="Change a setting: rate=0.3. Repeatable.")


def show_batch(options: ShowBatchOptions, output: OutputFormat) -> None:
    """Show inputs, targets and attention mask of an objective.

    Prints the corrupted input, the targets, the loss, and which positions attend to which.

    Example: pretune show-batch span_corruption --text "Thank you for inviting me." --hide "for inviting"
    """
    from pretune.objectives.example import build_example
    from pretune.text.tokenizer import Tokenizer

    objective, settings = options.objective, options.settings or {}
    example = build_example(
        objective,
        texts=options.text,
        tokenizer=None if options.tokenizer is None else Tokenizer.load(options.tokenizer),
        shape=options.shape,
        seed=options.seed,
        settings=settings,
        hide=options.hide,
    )
    if output.as_json:
        log.print_json(example.to_dict())
        return
    note = "" if options.tokenizer else "Tokens are words here; use --tokenizer DIR for subwords."
    print_page(_replace_unencodable(example.title), _replace_unencodable(example.about), _build_sections(example), note)
    lists = (("--text", options.text), ("--hide", options.hide), ("--set", [*map("=".join, settings.items())]))
    words = [word for name, values in lists for value in values for word in (name, value)]
    hint("show-batch", objective, *words, *list_words(options, "tokenizer", "shape"), "--seed", options.seed + 1)
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
