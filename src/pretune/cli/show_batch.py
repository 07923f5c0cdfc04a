"""`pretune show-batch`: inputs, targets and attention masks of an objective.

Styled spans, columns and grids of blocks are rendered by rich where stdout is a terminal, as plain text otherwise, and
in ASCII where the encoding has no more.
"""

import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pretune.cli._options import AsJson, argument, complete_objectives, complete_shapes, option
from pretune.cli._output import find_free_path, hint, hint_other, quote
from pretune.core import log

if TYPE_CHECKING:
    from pretune.runs.show_batch import AttentionMap, BatchExample, ModelSide, ShownSequence


Line = list[tuple[str, str]]
"""Spans of text with their styles."""

WIDTH = 80
MAX_WIDTH = 120
_ASCII = str.maketrans({"■": "#", "─": "-", "·": ".", "…": "...", "×": "x", "’": "'"})
_GAP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Values of a column, with their styles."""

    values: Sequence[str]
    styles: Sequence[str]

    @property
    def width(self) -> int:
        return max(map(count_cells, self.values))


def count_cells(text: str) -> int:
    """Return the width in a terminal: some characters take two cells, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int) -> str:
    """Append spaces up to a width in cells."""
    return text + " " * (width - count_cells(text))


def truncate(text: str, width: int) -> str:
    """Cut a text to a width in cells."""
    if count_cells(text) <= width:
        return text
    while count_cells(text) >= width:
        text = text[:-1]
    return text + "…"


def wrap(text: str, style: str = "", width: int = WIDTH, indent: str = "") -> list[Line]:
    """Wrap a paragraph."""
    return [[(line, style)] for line in textwrap.wrap(text, width, subsequent_indent=indent)]


def render_table(names: Column, columns: Sequence[Column], width: int) -> list[Line]:
    """Render columns side by side behind the row names; columns that do not fit continue below."""
    blocks = _balance(columns, width - names.width - 1)
    lines: list[Line] = []
    for number, block in enumerate(blocks):
        lines += [[]] if number else []
        for row, name in enumerate(names.values):
            line = [(pad(name, names.width), names.styles[row])]
            line += [(" " + pad(column.values[row], column.width), column.styles[row]) for column in block]
            lines.append(line)
    return lines


def _balance(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """Split columns into as few blocks as possible, of about equal width."""
    block_count = len(_fill(columns, room))
    limits = range(sum(column.width + 1 for column in columns) // block_count, room)
    tries = (_fill(columns, limit) for limit in limits)
    return next((blocks for blocks in tries if len(blocks) == block_count), _fill(columns, room))


def _fill(columns: Sequence[Column], room: int) -> list[list[Column]]:
    blocks: list[list[Column]] = [[]]
    width = 0
    for column in columns:
        if blocks[-1] and width + column.width + 1 > room:
            blocks.append([])
            width = 0
        blocks[-1].append(column)
        width += column.width + 1
    return blocks


def place_side_by_side(blocks: Sequence[Sequence[Line]], width: int) -> list[Line]:
    """Place blocks of lines next to each other where they fit, else below."""
    rows: list[list[Sequence[Line]]] = [[]]
    row_width = 0
    for block in blocks:
        size = _measure_width(block)
        if rows[-1] and row_width + _GAP + size > width:
            rows.append([])
            row_width = 0
        row_width += size + (_GAP if rows[-1] else 0)
        rows[-1].append(block)
    lines: list[Line] = []
    for number, row in enumerate(rows):
        lines += [[]] if number else []
        for height in range(max(map(len, row), default=0)):
            line: Line = []
            for place, block in enumerate(row):
                part = block[height] if height < len(block) else []
                fill = _measure_width(block) - sum(count_cells(text) for text, _ in part)
                line += [*part, (" " * (fill + (_GAP if place < len(row) - 1 else 0)), "")]
            lines.append(line)
    return lines


def _measure_width(block: Sequence[Line]) -> int:
    return max(sum(count_cells(text) for text, _ in line) for line in block)


def print_lines(render: Callable[[int, bool], list[Line]]) -> None:
    """Print what `render(width, colour)` returns: at most 120 cells in a terminal, else 80 without colour."""
    encoding = sys.stdout.encoding or "utf-8"  # None: an in-memory stream
    if not sys.stdout.isatty():
        lines = ["".join(text for text, _ in line).rstrip() for line in render(WIDTH, False)]
        log.print_result("\n".join(_to_encodable(line, encoding) for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in render(max(min(console.width, MAX_WIDTH), 40), True):
        console.print(
            Text.assemble(*((_to_encodable(log.escape(text), encoding), style) for text, style in line)),
            no_wrap=True,
            overflow="ignore",
            crop=False,
        )


def _to_encodable(text: str, encoding: str) -> str:
    """Replace characters that the encoding lacks, keeping the width (but for dots)."""
    if not _is_encodable("■·…×─", encoding):
        text = text.translate(_ASCII)
    if _is_encodable(text, encoding):
        return text
    return "".join(c if _is_encodable(c, encoding) else "?" * count_cells(c) for c in text)


def _is_encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


MAX_GRID_TOKENS = 24
"""Maximum number of tokens drawn in a grid."""
_LABEL_WIDTH = 12
_TOKEN_STYLES = {"special": "dim", "mask": "bold yellow", "random": "bold red", "kept": "bold cyan"}
_ROW_STYLES = {"order": "magenta", "span": "blue", "segment": "blue", "replaced": "dim"}
_SENTINEL_STYLES = ("bold magenta", "bold green", "bold blue", "bold cyan", "bold red", "bold yellow")


def show_batch(
    objective: Annotated[str, argument("OBJECTIVE", "Objective of `pretune list objectives`.", complete_objectives)],
    text: Annotated[
        list[str] | None, option("--text TEXT", "Sentence; repeat for objectives with two segments.")
    ] = None,
    tokenizer: Annotated[Path | None, option("--tokenizer DIR", "Tokenizer (default: split into words).")] = None,
    shape: Annotated[
        str | None, option("--shape NAME", "Model shape: encoder, decoder, encoder-decoder, …", complete_shapes)
    ] = None,
    seed: Annotated[int, option("--seed N", "Random seed.")] = 0,
    hide: Annotated[
        list[str] | None, option("--hide WORDS", "Mask these words instead of random ones. Repeatable.")
    ] = None,
    settings: Annotated[list[str] | None, option("--set PATH=VALUE", "Change a setting: rate=0.3. Repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show inputs, targets and attention mask of an objective.

    Prints the corrupted input, the targets, the loss, and which positions attend to which.

    Example: pretune show-batch span_corruption --text "Thank you for inviting me." --hide "for inviting"
    """
    from pretune.core.config import parse_assignments
    from pretune.runs.show_batch import build_example
    from pretune.text.tokenizer import Tokenizer

    example = build_example(
        objective,
        texts=text or (),
        tokenizer=None if tokenizer is None else Tokenizer.load(tokenizer),
        shape=shape,
        seed=seed,
        settings=parse_assignments(settings or []),
        hide=hide or (),
    )
    if as_json:
        log.print_json(example.to_dict())
        return
    print_lines(lambda width, colour: render_page(example, width, colour))
    values_by_option: dict[str, Any] = {
        "--text": text,
        "--hide": hide,
        "--set": settings,
        "--tokenizer": tokenizer and [tokenizer],
        "--shape": shape and [shape],
    }
    options = [word for name, values in values_by_option.items() for value in values or () for word in (name, value)]
    hint("show-batch", objective, *options, "--seed", seed + 1)
    hint_other(f"pretrain FAMILY --objective {objective} --data DATA --out {quote(find_free_path('runs/base'))}")


def render_page(example: "BatchExample", width: int, colour: bool = False) -> list[Line]:
    """Return the lines of an example, at most `width` cells wide; with `colour`, add a legend."""
    lines = wrap(example.title, "bold", width)
    lines += wrap(example.about, "dim", width)
    lines += [[], *wrap(f"{example.objective}: shape {example.shape}, seed {example.seed}", "dim", width)]
    lines += [line for text in _format_settings(example.settings) for line in wrap(text, "dim", width, "    ")]
    for sequence in example.sequences:
        lines += _render_sequence(sequence, width, colour)
    for note in example.notes:
        lines += [[], *wrap(note, "dim", width)]
    return lines


def _render_sequence(sequence: "ShownSequence", width: int, colour: bool) -> Iterator[Line]:
    """Yield the lines of one sequence: input, output, token table, loss, attention grids."""
    paint = _choose_styles(sequence)
    yield []
    if sequence.title:
        yield [(truncate(f"── {sequence.title} ", width), "bold cyan")]
    yield from _render_sentence("in   ", sequence.input, paint, width)
    yield from _render_sentence("out  ", sequence.target or "no targets; try another --seed", paint, width)
    for side in sequence.sides:
        yield []
        if len(sequence.sides) > 1:
            yield [(side.name, "bold cyan")]
        yield from _render_tokens(side, paint, width)
    yield []
    for fact in sequence.facts:
        yield from wrap(fact, "", width)
    yield from wrap(_format_loss(sequence), "", width)
    yield []
    yield [("Attention mask", "bold"), (": rows attend to columns", "")]
    if colour:
        has_cross = any(attention_map.cross for attention_map in sequence.attention)
        cross_legend = [("■ cross-attention", "cyan")] if has_cross else []
        yield [("■ earlier  ", "blue"), ("■ same  ", "bold"), ("■ later  ", "magenta"), *cross_legend]
    tall = max(len(attention_map.keys) for attention_map in sequence.attention) > 10
    yield from place_side_by_side([_render_grid(maps, paint, tall) for maps in sequence.attention], width)


def _choose_styles(sequence: "ShownSequence") -> Mapping[str, str]:
    """Return styles by token: one for the mask, and a colour for every sentinel."""
    kinds = {token: kind for side in sequence.sides for token, kind in zip(side.tokens, side.kinds, strict=True)}
    sentinels = [token for token, kind in kinds.items() if kind == "sentinel"]
    styles = dict(zip(sentinels, itertools.cycle(_SENTINEL_STYLES), strict=False))
    return styles | {token: _TOKEN_STYLES["mask"] for token, kind in kinds.items() if kind == "mask"}


def _render_sentence(name: str, text: str, token_styles: Mapping[str, str], width: int) -> Iterator[Line]:
    """Yield a labelled line of text, with its tokens styled."""
    pattern = re.compile("|".join(re.escape(token) for token in sorted(token_styles, key=len, reverse=True)) or r"(?!)")
    for number, [(line, _)] in enumerate(wrap(text, "", width - len(name))):
        spans: Line = [(name if not number else " " * len(name), "bold")]
        place = 0
        for match in pattern.finditer(line):
            spans += [(line[place : match.start()], ""), (match[0], token_styles[match[0]])]
            place = match.end()
        yield [*spans, (line[place:], "")]


def _render_tokens(side: "ModelSide", token_styles: Mapping[str, str], width: int) -> list[Line]:
    """Return a table of tokens: position, input token, and the rows below it."""
    names = ["", "input", *(row.name for row in side.rows)]
    columns = []
    for place, (token, kind) in enumerate(zip(side.tokens, side.kinds, strict=True)):
        values, styles = [str(place), token], ["dim", token_styles.get(token, _TOKEN_STYLES.get(kind, ""))]
        for row in side.rows:
            value = row.values[place]
            values.append(value)
            styles.append(_choose_row_style(row.name, value, token_styles))
        columns.append(Column(values=[truncate(value, 24) for value in values], styles=styles))
    return render_table(Column(values=names, styles=["bold"] * len(names)), columns, width)


def _choose_row_style(name: str, value: str, token_styles: Mapping[str, str]) -> str:
    if name == "shown as":
        return _TOKEN_STYLES.get(value, "")
    if name == "replaced" and value == "yes":
        return "bold red"
    return _ROW_STYLES.get(name) or token_styles.get(value, "green")


def _render_grid(attention: "AttentionMap", token_styles: Mapping[str, str], tall: bool) -> list[Line]:
    """Return a grid with a block per visible position, coloured by direction. `tall`: two-digit position numbers."""
    rows, columns = min(len(attention.queries), MAX_GRID_TOKENS), min(len(attention.keys), MAX_GRID_TOKENS)
    labels = [truncate(token, _LABEL_WIDTH) for token in attention.queries[:rows]]
    wide = max(map(count_cells, labels), default=0)
    lines: list[Line] = [[(attention.name, "bold")]]
    if tall:
        lines.append([(" " * (wide + 4), ""), ("".join(f"{n // 10 or ' '} " for n in range(columns)), "dim")])
    lines.append([(" " * (wide + 4), ""), ("".join(f"{n % 10} " for n in range(columns)), "dim")])
    for place, token, label, visible in zip(attention.places, attention.queries, labels, attention.mask, strict=False):
        line: Line = [(f"{place:>2} ", "dim"), (pad(label, wide) + " ", token_styles.get(token, ""))]
        line += [
            _render_block(key - place, attention.cross) if visible[key] else ("· ", "dim") for key in range(columns)
        ]
        lines.append(line)
    if rows < len(attention.queries) or columns < len(attention.keys):
        lines.append([(f"first {MAX_GRID_TOKENS} of {max(len(attention.queries), len(attention.keys))} tokens", "dim")])
    return lines


def _render_block(distance: int, cross: bool) -> tuple[str, str]:
    return "■ ", "cyan" if cross else "blue" if distance < 0 else "bold" if distance == 0 else "magenta"


def _format_loss(sequence: "ShownSequence") -> str:
    """Format the loss as a weighted sum of means."""
    terms = [
        f"{'' if term.weight == 1 else f'{term.weight:g} × '}{'mean' if term.name == 'loss' else term.name} over "
        f"{term.count} target{'' if term.count == 1 else 's'}"
        for term in sequence.terms
    ]
    return f"Loss: {' + '.join(terms)}."


def _format_settings(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings in the syntax of `--set`: scalars on one line, nested configs on separate lines."""
    scalars = [
        f"{name}={_format_value(value)}" for name, value in tree.items() if name != "kind" and not _has_parts(value)
    ]
    if scalars:
        yield " ".join(text for text in scalars if not text.endswith("=none"))
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{name}={_format_value(value)}"
        elif _has_parts(value):
            yield from (f"{name}.{number}={_format_value(part)}" for number, part in enumerate(value))


def _has_parts(value: Any) -> bool:
    """Return whether a setting is a nested config."""
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(part, Mapping) for part in value))


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = [f"{name}={_format_value(part)}" for name, part in value.items() if name != "kind" and part is not None]
        return f"{value['kind']}({', '.join(inner)})"
    if isinstance(value, list):
        return f"[{','.join(map(_format_value, value))}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower()
