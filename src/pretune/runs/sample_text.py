"""What a model makes of a text, on one line: the text, an arrow, and its blanks filled in or what follows it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE, Batch
from pretune.data.layout import batch as lay_out
from pretune.text.tokenizer import Tokenizer

NEW = 16
"""Tokens that a decoder goes on with …"""
READ = 16
"""… after so many of a text at most."""
SHOWN = 6
"""Blanks that are shown of a text."""
WIDTH = 160
BETWEEN = " · "
"""Between what is said in two blanks: commas are answers too."""
NOTHING = "(white space)"
AROUND = ("cls", "sep", "bos", "pad")
WRITERS = ("decoder", "two-way")
"""Shapes of models that go on with a text."""


class Saying:
    """What a model is asked to do instead of learning; it goes through the trainee, whose weights may be sharded."""

    def __init__(self, tokenizer: Tokenizer, prompts: Sequence[str] = ()) -> None:
        self.tokenizer, self.prompts = tokenizer, prompts

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """Nothing is counted."""
        return {}

    def loss(self, model: Any, batch: Sequence[Batch]) -> Any:
        """What it says of the prompts or, where there are none, of these rows of text."""
        if self.prompts:
            return answers(model, self.prompts, self.tokenizer)
        return said(model, batch, self.tokenizer)


def said(model: Any, rows: Sequence[Batch], tokenizer: Tokenizer) -> list[str]:
    """What a model makes of the first sequence of each row."""
    if model.shape in WRITERS and rows[0].prefix is None:
        return gone_on(model, [_beginning(row) for row in rows], tokenizer)
    return [_filled(model, row, tokenizer) for row in rows]


def _beginning(row: Batch) -> list[int]:
    """The first half of a text, or less of it."""
    start, end = row.spans()[0]
    found: list[int] = row.tokens[start : start + min(max((end - start) // 2, 1), READ)].tolist()
    return found


def gone_on(model: Any, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[str]:
    """Texts, and what is likeliest to follow each, token by token: all of them at once, everything read anew."""
    writer = getattr(model, "forwards", model)
    longest, device = writer.spec.longest, writer.tokens.weight.device
    whole = [[*text] for text in texts]
    for _ in range(NEW):
        if longest is not None and max(map(len, whole)) >= longest:
            break
        row = lay_out(whole).to(device)
        last = [end - 1 for _, end in row.spans()]
        for text, new in zip(whole, writer.logits(writer.states(row)[last]).argmax(-1).tolist(), strict=True):
            text.append(new)
    return [
        f"{_read(tokenizer, text)} → {_text(tokenizer, more[len(text) :])}"
        for text, more in zip(texts, whole, strict=True)
    ]


def _filled(model: Any, row: Batch, tokenizer: Tokenizer) -> str:
    """What a model finds likeliest where it learns to say something."""
    reader = getattr(model, "generator", model)
    start, end = row.spans()[0]
    places, labels = targets(row)
    ids: list[int] = row.tokens[start:end].tolist()
    written = row.source is not None or model.shape in WRITERS
    shown = [*zip(places, labels, strict=True)][:NEW] if written else _shown(ids, places, labels, start, tokenizer)
    index = row.tokens.new_tensor([place for place, _ in shown])
    found = reader.logits(reader.states(row).index_select(0, index)).argmax(-1).tolist()
    if row.source is not None:
        first, last = row.source.spans()[0]
        return f"{_read(tokenizer, row.source.tokens[first:last].tolist())} → {_text(tokenizer, found)}"
    if written:  # what is read whole comes before the first that is said
        return f"{_read(tokenizer, ids[: places[0] - start + 1])} → {_text(tokenizer, found)}"
    blanks = [
        f"{_text(tokenizer, [one])}{'' if one == true else f' (not {_text(tokenizer, [true])})'}"
        for one, (_, true) in zip(found, shown, strict=True)
    ]
    return f"{_read(tokenizer, ids)} → {BETWEEN.join(blanks)}"


def targets(row: Batch) -> tuple[list[int], list[int]]:
    """Where the first sequence of a row is asked for something, and what is right there."""
    start, end = row.spans()[0]
    assert row.targets is not None
    real = (row.targets.labels != IGNORE) & (row.targets.index >= start) & (row.targets.index < end)
    return row.targets.index[real].tolist(), row.targets.labels[real].tolist()


def _shown(
    ids: list[int], places: list[int], labels: list[int], start: int, tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """Blanks that can be seen as such in the part of the text that is shown; else the first that are asked for."""
    mask, end = tokenizer.special.get("mask"), start + _fit(tokenizer, ids)
    pairs = [*zip(places, labels, strict=True)]
    seen = [(place, true) for place, true in pairs if ids[place - start] == mask and place < end]
    return (seen or pairs)[:SHOWN]


def answers(model: Any, prompts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """What a model makes of texts of one's own."""
    if model.shape in WRITERS:
        return gone_on(model, [tokenizer.encode(text) for text in prompts], tokenizer)
    from pretune.inference.infill import infill  # NOTE: not before it is needed: a run starts sooner
    from pretune.inference.unmask import unmask

    reader, found = getattr(model, "generator", model), []
    for text in prompts:
        blanks = _blanks(text, model.shape, tokenizer)
        if reader.spec.both:
            options = infill(reader, tokenizer, blanks, k=1, most=8)
        else:
            options = unmask(reader, tokenizer, blanks, k=1, most=1)
        found.append(f"{_line(text)} → {BETWEEN.join(one[0].word if one else NOTHING for one in options)}")
    return found


def check(prompts: Sequence[str], shape: str, longest: int | None, tokenizer: Tokenizer) -> None:
    """Refuse texts that a model of a shape could not be asked about."""
    for text in prompts:
        if shape not in WRITERS:
            _blanks(text, shape, tokenizer)
        count, room = len(tokenizer.encode(text)), None if longest is None else longest - NEW
        if not count or (room is not None and count > room):
            most = "" if room is None else f" to {room}"
            raise UsageError(f"train.prompts: '{text[:40]}' has {count} tokens; it may have 1{most}")


def _blanks(text: str, shape: str, tokenizer: Tokenizer) -> Any:
    from pretune.inference.mask_positions import Blanks

    mask = tokenizer.special.get("mask")
    own = [tokenizer.token(one) for one in tokenizer.sentinels] if shape == "encoder-decoder" else []
    try:
        return Blanks.find(text, own=own or (None if mask is None else tokenizer.token(mask)))
    except UsageError as error:
        raise UsageError(f"train.prompts: {error}") from None


def _fit(tokenizer: Tokenizer, ids: list[int]) -> int:
    """How many first tokens of a text are shown, about."""
    size = len(" ".join(tokenizer.decode(ids).split()))
    return len(ids) if size <= WIDTH else len(ids) * WIDTH // size


def _read(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """What is read, without the tokens that every text has around it."""
    around = {tokenizer.special.get(role) for role in AROUND}
    own = [place for place, one in enumerate(ids) if one not in around] or [0]
    return _text(tokenizer, ids[own[0] : own[-1] + 1])


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as text that fits on a line."""
    return _line(tokenizer.decode([*ids])) or NOTHING


def _line(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
