"""`pretune show-batch`: what an objective does to a sentence."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pretune.cli._hints import free, hint, other, quoted
from pretune.cli._names import SHAPES, among, objectives
from pretune.cli._render import Column, Line, beside, cells, cut, padded, prose, show, table
from pretune.core import log

if TYPE_CHECKING:
    from pretune.runs.show_batch import Drawn, Example, Side, Sight

MOST = 24
"""So many tokens of a grid are drawn."""
_LABEL = 12
_TOKENS = {"special": "dim", "mask": "bold yellow", "random": "bold red", "kept": "bold cyan"}
_ROWS = {"order": "magenta", "span": "blue", "segment": "blue", "replaced": "dim"}
_SENTINELS = ("bold magenta", "bold green", "bold blue", "bold cyan", "bold red", "bold yellow")


def show_batch(
    objective: Annotated[
        str, typer.Argument(metavar="OBJECTIVE", autocompletion=objectives, help="See `pretune list objectives`.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="TEXT", help="A sentence; twice where an objective reads two segments."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="DIR", help="Pieces of a tokenizer, not words.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="NAME",
            autocompletion=among(*SHAPES),
            help="The model's: encoder, decoder, encoder-decoder, …",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of all that is drawn by chance.")] = 0,
    hide: Annotated[
        list[str] | None,
        typer.Option("--hide", metavar="WORDS", help="Hide these words, not words drawn by chance. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change it: rate=0.3. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what an objective does to a sentence.

    What is read, what is to be said, and what may attend to what.

    Example: pretune show-batch span_corruption --text "Thank you for inviting me." --hide "for inviting"
    """
    from pretune.core.config import parse_assignments
    from pretune.runs.show_batch import example
    from pretune.text.tokenizer import Tokenizer

    made = example(
        objective,
        texts=text or (),
        tokenizer=None if tokenizer is None else Tokenizer.load(tokenizer),
        shape=shape,
        seed=seed,
        settings=parse_assignments(settings or []),
        hide=hide or (),
    )
    if as_json:
        log.print_json(made.plain())
        return
    show(lambda width, colour: page(made, width, colour))
    given: list[object] = [word for option, words in (("--text", text), ("--hide", hide), ("--set", settings))
                           for one in words or () for word in (option, one)]  # fmt: skip
    given += [word for pair in (("--tokenizer", tokenizer), ("--shape", shape)) if pair[1] is not None for word in pair]
    hint("show-batch", objective, *given, "--seed", seed + 1)
    other(f"pretrain FAMILY --objective {objective} --data DATA --out {quoted(free('runs/base'))}")


def page(made: "Example", width: int, colour: bool = False) -> list[Line]:
    """An example as lines of at most so many cells; with `colour`, what colours mean is told."""
    lines = prose(made.title, "bold", width)
    lines += prose(made.about, "dim", width)
    lines += [[], *prose(f"{made.objective}: shape {made.shape}, seed {made.seed}", "dim", width)]
    lines += [line for told in _settings(made.settings) for line in prose(told, "dim", width, "    ")]
    for drawn in made.drawn:
        lines += _drawn(drawn, width, colour)
    for note in made.notes:
        lines += [[], *prose(note, "dim", width)]
    return lines


def _drawn(drawn: "Drawn", width: int, colour: bool) -> Iterator[Line]:
    """One sequence: both lines of text, the tokens in columns, who sees whom, and the loss."""
    paint = _styles(drawn)
    yield []
    if drawn.title:
        yield [(cut(f"── {drawn.title} ", width), "bold cyan")]
    yield from _sentence("in   ", drawn.reads, paint, width)
    yield from _sentence("out  ", drawn.says or "nothing this time; another --seed draws another", paint, width)
    for side in drawn.sides:
        yield []
        if len(drawn.sides) > 1:
            yield [(side.name, "bold cyan")]
        yield from _tokens(side, paint, width)
    yield []
    for fact in drawn.facts:
        yield from prose(fact, "", width)
    yield from prose(_loss(drawn), "", width)
    yield []
    yield [("Who may attend to whom", "bold"), (": rows look, columns are seen", "")]
    if colour:
        other = [("■ of the other side", "cyan")] if any(sight.cross for sight in drawn.sights) else []
        yield [("■ before  ", "blue"), ("■ itself  ", "bold"), ("■ ahead  ", "magenta"), *other]
    tall = max(len(sight.keys) for sight in drawn.sights) > 10
    yield from beside([_grid(sight, paint, tall) for sight in drawn.sights], width)


def _styles(drawn: "Drawn") -> Mapping[str, str]:
    """The styles of tokens that have one wherever they stand: the mask, and a colour for every sentinel."""
    found: dict[str, str] = {}
    sentinels = [
        token for side in drawn.sides for token, kind in zip(side.tokens, side.kinds, strict=True) if kind == "sentinel"
    ]
    for number, token in enumerate(sorted({*sentinels}, key=sentinels.index)):
        found[token] = _SENTINELS[number % len(_SENTINELS)]
    for side in drawn.sides:
        found |= {token: _TOKENS["mask"] for token, kind in zip(side.tokens, side.kinds, strict=True) if kind == "mask"}
    return found


def _sentence(name: str, text: str, paint: Mapping[str, str], width: int) -> Iterator[Line]:
    """A line of text behind its name, in colour where a token has one."""
    known = re.compile("|".join(re.escape(token) for token in sorted(paint, key=len, reverse=True)) or r"(?!)")
    for number, [(line, _)] in enumerate(prose(text, "", width - len(name))):
        painted: Line = [(name if not number else " " * len(name), "bold")]
        place = 0
        for found in known.finditer(line):
            painted += [(line[place : found.start()], ""), (found[0], paint[found[0]])]
            place = found.end()
        yield [*painted, (line[place:], "")]


def _tokens(side: "Side", paint: Mapping[str, str], width: int) -> list[Line]:
    """Tokens in columns: number, token, and what stands under it."""
    names = ["", "reads", *(row.name for row in side.rows)]
    columns = []
    for place, (token, kind) in enumerate(zip(side.tokens, side.kinds, strict=True)):
        values, styles = [str(place), token], ["dim", paint.get(token, _TOKENS.get(kind, ""))]
        for row in side.rows:
            value = row.values[place]
            values.append(value)
            styles.append(_row_style(row.name, value, paint))
        columns.append(Column(values=[cut(value, 24) for value in values], styles=styles))
    return table(Column(values=names, styles=["bold"] * len(names)), columns, width)


def _row_style(name: str, value: str, paint: Mapping[str, str]) -> str:
    if name == "shown as":
        return _TOKENS.get(value, "")
    if name == "replaced" and value == "yes":
        return "bold red"
    return _ROWS.get(name) or paint.get(value, "green")


def _grid(sight: "Sight", paint: Mapping[str, str], tall: bool) -> list[Line]:
    """A block for every token that may be seen: before, itself and ahead in three colours. Tall: two digits above."""
    rows, columns = min(len(sight.queries), MOST), min(len(sight.keys), MOST)
    labels = [cut(token, _LABEL) for token in sight.queries[:rows]]
    wide = max(map(cells, labels), default=0)
    lines: list[Line] = [[(sight.name, "bold")]]
    if tall:
        lines.append([(" " * (wide + 4), ""), ("".join(f"{n // 10 or ' '} " for n in range(columns)), "dim")])
    lines.append([(" " * (wide + 4), ""), ("".join(f"{n % 10} " for n in range(columns)), "dim")])
    for place, token, label, seen in zip(sight.places, sight.queries, labels, sight.seen, strict=False):
        line: Line = [(f"{place:>2} ", "dim"), (padded(label, wide) + " ", paint.get(token, ""))]
        line += [_block(key - place, sight.cross) if seen[key] else ("· ", "dim") for key in range(columns)]
        lines.append(line)
    if rows < len(sight.queries) or columns < len(sight.keys):
        lines.append([(f"the first {MOST} tokens of {max(len(sight.queries), len(sight.keys))}", "dim")])
    return lines


def _block(distance: int, cross: bool) -> tuple[str, str]:
    return "■ ", "cyan" if cross else "blue" if distance < 0 else "bold" if distance == 0 else "magenta"


def _loss(drawn: "Drawn") -> str:
    """The loss as a sum of averages."""
    terms = [
        f"{'' if term.weight == 1 else f'{term.weight:g} × '}{'mean' if term.name == 'loss' else term.name} over "
        f"{term.count} target{'' if term.count == 1 else 's'}"
        for term in drawn.terms
    ]
    return f"Loss: {' + '.join(terms)}."


def _settings(tree: Mapping[str, Any]) -> Iterator[str]:
    """Settings as `--set` has them: plain ones in a line, parts in lines of their own."""
    plain = [f"{name}={_value(value)}" for name, value in tree.items() if name != "kind" and not _parts(value)]
    if plain:
        yield " ".join(text for text in plain if not text.endswith("=none"))
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{name}={_value(value)}"
        elif _parts(value):
            yield from (f"{name}.{number}={_value(part)}" for number, part in enumerate(value))


def _parts(value: Any) -> bool:
    """Whether a setting is made of others."""
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(one, Mapping) for one in value))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = [f"{name}={_value(one)}" for name, one in value.items() if name != "kind" and one is not None]
        return f"{value['kind']}({', '.join(inner)})"
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower()
