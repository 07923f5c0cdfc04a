"""What a model makes of a text, on one line: the text, an arrow, and its blanks filled in or what follows it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import batch as lay_out
from pretune.text.tokenizer import Tokenizer

NEW_TOKENS = 16
"""Tokens that a decoder goes on with …"""
PROMPT_TOKENS = 16
"""… after so many of a text at most."""
MAX_BLANKS = 6
"""Blanks that are shown of a text."""
LINE_WIDTH = 160
SEPARATOR = " · "
"""Between what is said in two blanks: commas are answers too."""
EMPTY_TEXT = "(white space)"
FRAME_ROLES = ("cls", "sep", "bos", "pad")
GENERATIVE_SHAPES = ("decoder", "two-way")
"""Shapes of models that go on with a text."""


class SampleObjective:
    """What a model is asked to do instead of learning; it goes through the trainee, whose weights may be sharded."""

    def __init__(self, tokenizer: Tokenizer, prompts: Sequence[str] = ()) -> None:
        self.tokenizer, self.prompts = tokenizer, prompts

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """Nothing is counted."""
        return {}

    def loss(self, model: Any, batch: Sequence[Batch]) -> Any:
        """What it says of the prompts or, where there are none, of these rows of text."""
        if self.prompts:
            return answer_prompts(model, self.prompts, self.tokenizer)
        return generate_samples(model, batch, self.tokenizer)


def generate_samples(model: Any, rows: Sequence[Batch], tokenizer: Tokenizer) -> list[str]:
    """What a model makes of the first sequence of each row."""
    if model.shape in GENERATIVE_SHAPES and rows[0].prefix is None:
        return continue_texts(model, [_take_prompt(row) for row in rows], tokenizer)
    return [_fill_blanks(model, row, tokenizer) for row in rows]


def _take_prompt(row: Batch) -> list[int]:
    """The first half of a text, or less of it."""
    start, end = row.list_spans()[0]
    found: list[int] = row.tokens[start : start + min(max((end - start) // 2, 1), PROMPT_TOKENS)].tolist()
    return found


def continue_texts(model: Any, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[str]:
    """Texts, and what is likeliest to follow each, token by token: all of them at once, everything read anew."""
    writer = getattr(model, "forwards", model)
    longest, device = writer.spec.max_length, writer.tokens.weight.device
    whole = [[*text] for text in texts]
    for _ in range(NEW_TOKENS):
        if longest is not None and max(map(len, whole)) >= longest:
            break
        row = lay_out(whole).to(device)
        last = [end - 1 for _, end in row.list_spans()]
        for text, new in zip(whole, writer.logits(writer.states(row)[last]).argmax(-1).tolist(), strict=True):
            text.append(new)
    return [
        f"{_format_input(tokenizer, text)} → {_decode_line(tokenizer, more[len(text) :])}"
        for text, more in zip(texts, whole, strict=True)
    ]


def _fill_blanks(model: Any, row: Batch, tokenizer: Tokenizer) -> str:
    """What a model finds likeliest where it learns to say something."""
    reader = getattr(model, "generator", model)
    start, end = row.list_spans()[0]
    places, labels = find_targets(row)
    ids: list[int] = row.tokens[start:end].tolist()
    written = row.source is not None or model.shape in GENERATIVE_SHAPES
    shown = (
        [*zip(places, labels, strict=True)][:NEW_TOKENS]
        if written
        else _select_blanks(ids, places, labels, start, tokenizer)
    )
    index = row.tokens.new_tensor([place for place, _ in shown])
    found = reader.logits(reader.states(row).index_select(0, index)).argmax(-1).tolist()
    if row.source is not None:
        first, last = row.source.list_spans()[0]
        return f"{_format_input(tokenizer, row.source.tokens[first:last].tolist())} → {_decode_line(tokenizer, found)}"
    if written:  # what is read whole comes before the first that is said
        return f"{_format_input(tokenizer, ids[: places[0] - start + 1])} → {_decode_line(tokenizer, found)}"
    blanks = [
        f"{_decode_line(tokenizer, [one])}{'' if one == true else f' (not {_decode_line(tokenizer, [true])})'}"
        for one, (_, true) in zip(found, shown, strict=True)
    ]
    return f"{_format_input(tokenizer, ids)} → {SEPARATOR.join(blanks)}"


def find_targets(row: Batch) -> tuple[list[int], list[int]]:
    """Where the first sequence of a row is asked for something, and what is right there."""
    start, end = row.list_spans()[0]
    assert row.targets is not None
    real = (row.targets.labels != IGNORE_INDEX) & (row.targets.index >= start) & (row.targets.index < end)
    return row.targets.index[real].tolist(), row.targets.labels[real].tolist()


def _select_blanks(
    ids: list[int], places: list[int], labels: list[int], start: int, tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """Blanks that can be seen as such in the part of the text that is shown; else the first that are asked for."""
    mask, end = tokenizer.special.get("mask"), start + _count_shown_tokens(tokenizer, ids)
    pairs = [*zip(places, labels, strict=True)]
    seen = [(place, true) for place, true in pairs if ids[place - start] == mask and place < end]
    return (seen or pairs)[:MAX_BLANKS]


def answer_prompts(model: Any, prompts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """What a model makes of texts of one's own."""
    if model.shape in GENERATIVE_SHAPES:
        return continue_texts(model, [tokenizer.encode(text, add_special_tokens=False) for text in prompts], tokenizer)
    from pretune.inference.infill import infill  # NOTE: not before it is needed: a run starts sooner
    from pretune.inference.unmask import unmask

    reader, found = getattr(model, "generator", model), []
    for text in prompts:
        blanks = _find_blanks(text, model.shape, tokenizer)
        if reader.spec.is_encoder_decoder:
            options = infill(reader, tokenizer, blanks, k=1, max_tokens=8)
        else:
            options = unmask(reader, tokenizer, blanks, k=1, max_pieces=1)
        found.append(f"{_clean_line(text)} → {SEPARATOR.join(one[0].word if one else EMPTY_TEXT for one in options)}")
    return found


def check_prompts(prompts: Sequence[str], shape: str, max_length: int | None, tokenizer: Tokenizer) -> None:
    """Refuse texts that a model of a shape could not be asked about."""
    for text in prompts:
        if shape not in GENERATIVE_SHAPES:
            _find_blanks(text, shape, tokenizer)
        count, room = (
            len(tokenizer.encode(text, add_special_tokens=False)),
            None if max_length is None else max_length - NEW_TOKENS,
        )
        if not count or (room is not None and count > room):
            most = "" if room is None else f" to {room}"
            raise UsageError(f"train.prompts: '{text[:40]}' has {count} tokens; it may have 1{most}")


def _find_blanks(text: str, shape: str, tokenizer: Tokenizer) -> Any:
    from pretune.inference.mask_positions import Blanks

    mask = tokenizer.special.get("mask")
    own = [tokenizer.get_token(one) for one in tokenizer.sentinels] if shape == "encoder-decoder" else []
    try:
        return Blanks.find(text, mask_tokens=own or (None if mask is None else tokenizer.get_token(mask)))
    except UsageError as error:
        raise UsageError(f"train.prompts: {error}") from None


def _count_shown_tokens(tokenizer: Tokenizer, ids: list[int]) -> int:
    """How many first tokens of a text are shown, about."""
    size = len(" ".join(tokenizer.decode(ids).split()))
    return len(ids) if size <= LINE_WIDTH else len(ids) * LINE_WIDTH // size


def _format_input(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """What is read, without the tokens that every text has around it."""
    around = {tokenizer.special.get(role) for role in FRAME_ROLES}
    own = [place for place, one in enumerate(ids) if one not in around] or [0]
    return _decode_line(tokenizer, ids[own[0] : own[-1] + 1])


def _decode_line(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as text that fits on a line."""
    return _clean_line(tokenizer.decode([*ids])) or EMPTY_TEXT


def _clean_line(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= LINE_WIDTH else f"{text[: LINE_WIDTH - 1]}…"
