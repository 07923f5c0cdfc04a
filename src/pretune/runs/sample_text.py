"""Samples of a model on one line: the input, an arrow, and masked words filled in or a continuation."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import batch as lay_out
from pretune.text.tokenizer import Tokenizer

NEW_TOKENS = 16
"""Number of tokens that a decoder generates."""
PROMPT_TOKENS = 16
"""Maximum length of a prompt."""
MAX_BLANKS = 6
"""Maximum number of masked words shown."""
LINE_WIDTH = 160
SEPARATOR = " · "
"""Separator of predictions; commas can be predictions."""
EMPTY_TEXT = "(white space)"
TEMPLATE_ROLES = ("cls", "sep", "bos", "pad")
GENERATIVE_SHAPES = ("decoder", "two-way")
"""Shapes of models that continue a text."""


class SampleObjective:
    """Objective that generates samples instead of a loss, through the loss module, whose weights may be sharded."""

    def __init__(self, tokenizer: Tokenizer, prompts: Sequence[str] = ()) -> None:
        self.tokenizer, self.prompts = tokenizer, prompts

    def counts(self, batch: Any) -> dict[str, Tensor]:
        """Return no counts."""
        return {}

    def loss(self, model: Any, batch: Sequence[Batch]) -> Any:
        """Return samples for the prompts or, without prompts, for these rows."""
        if self.prompts:
            return answer_prompts(model, self.prompts, self.tokenizer)
        return generate_samples(model, batch, self.tokenizer)


def generate_samples(model: Any, rows: Sequence[Batch], tokenizer: Tokenizer) -> list[str]:
    """Return a sample for the first sequence of each row."""
    if model.shape in GENERATIVE_SHAPES and rows[0].prefix is None:
        return continue_texts(model, [_take_prompt(row) for row in rows], tokenizer)
    return [_fill_blanks(model, row, tokenizer) for row in rows]


def _take_prompt(row: Batch) -> list[int]:
    """Return the first half of a text, at most `PROMPT_TOKENS`."""
    start, end = row.list_spans()[0]
    prompt: list[int] = row.tokens[start : start + min(max((end - start) // 2, 1), PROMPT_TOKENS)].tolist()
    return prompt


def continue_texts(model: Any, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[str]:
    """Continue texts by greedy decoding, as one batch and without a cache."""
    writer = getattr(model, "forwards", model)
    longest, device = writer.spec.max_length, writer.tokens.weight.device
    sequences = [[*text] for text in texts]
    for _ in range(NEW_TOKENS):
        if longest is not None and max(map(len, sequences)) >= longest:
            break
        row = lay_out(sequences).to(device)
        last = [end - 1 for _, end in row.list_spans()]
        for text, new in zip(sequences, writer.logits(writer.states(row)[last]).argmax(-1).tolist(), strict=True):
            text.append(new)
    return [
        f"{_format_input(tokenizer, text)} → {_decode_line(tokenizer, sequence[len(text) :])}"
        for text, sequence in zip(texts, sequences, strict=True)
    ]


def _fill_blanks(model: Any, row: Batch, tokenizer: Tokenizer) -> str:
    """Fill the targets of a row with the most probable tokens."""
    reader = getattr(model, "generator", model)
    start, end = row.list_spans()[0]
    places, labels = find_targets(row)
    ids: list[int] = row.tokens[start:end].tolist()
    is_generative = row.source is not None or model.shape in GENERATIVE_SHAPES
    targets = (
        [*zip(places, labels, strict=True)][:NEW_TOKENS]
        if is_generative
        else _select_blanks(ids, places, labels, start, tokenizer)
    )
    index = row.tokens.new_tensor([place for place, _ in targets])
    predictions = reader.logits(reader.states(row).index_select(0, index)).argmax(-1).tolist()
    if row.source is not None:
        first, last = row.source.list_spans()[0]
        source = _format_input(tokenizer, row.source.tokens[first:last].tolist())
        return f"{source} → {_decode_line(tokenizer, predictions)}"
    if is_generative:  # the input precedes the first target
        return f"{_format_input(tokenizer, ids[: places[0] - start + 1])} → {_decode_line(tokenizer, predictions)}"
    blanks = [
        _decode_line(tokenizer, [prediction])
        + ("" if prediction == true else f" (not {_decode_line(tokenizer, [true])})")
        for prediction, (_, true) in zip(predictions, targets, strict=True)
    ]
    return f"{_format_input(tokenizer, ids)} → {SEPARATOR.join(blanks)}"


def find_targets(row: Batch) -> tuple[list[int], list[int]]:
    """Return positions and labels of the first sequence's targets."""
    start, end = row.list_spans()[0]
    assert row.targets is not None
    real = (row.targets.labels != IGNORE_INDEX) & (row.targets.index >= start) & (row.targets.index < end)
    return row.targets.index[real].tolist(), row.targets.labels[real].tolist()


def _select_blanks(
    ids: list[int], places: list[int], labels: list[int], start: int, tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """Return the masked targets in the shown part of the text; if there are none, the first targets."""
    mask, end = tokenizer.special.get("mask"), start + _count_shown_tokens(tokenizer, ids)
    pairs = [*zip(places, labels, strict=True)]
    masked_targets = [(place, true) for place, true in pairs if ids[place - start] == mask and place < end]
    return (masked_targets or pairs)[:MAX_BLANKS]


def answer_prompts(model: Any, prompts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return samples for the user's prompts."""
    if model.shape in GENERATIVE_SHAPES:
        return continue_texts(model, [tokenizer.encode(text, add_special_tokens=False) for text in prompts], tokenizer)
    from pretune.inference.fill import infill  # NOTE: not before it is needed: a run starts sooner
    from pretune.inference.unmask import unmask

    reader, lines = getattr(model, "generator", model), []
    for text in prompts:
        blanks = _find_blanks(text, model.shape, tokenizer)
        if reader.spec.is_encoder_decoder:
            options = infill(reader, tokenizer, blanks, k=1, max_tokens=8)
        else:
            options = unmask(reader, tokenizer, blanks, k=1, max_pieces=1)
        words = [candidates[0].word if candidates else EMPTY_TEXT for candidates in options]
        lines.append(f"{_clean_line(text)} → {SEPARATOR.join(words)}")
    return lines


def check_prompts(prompts: Sequence[str], shape: str, max_length: int | None, tokenizer: Tokenizer) -> None:
    """Raise for prompts that a model of this shape cannot handle."""
    for text in prompts:
        if shape not in GENERATIVE_SHAPES:
            _find_blanks(text, shape, tokenizer)
        count, room = (
            len(tokenizer.encode(text, add_special_tokens=False)),
            None if max_length is None else max_length - NEW_TOKENS,
        )
        if not count or (room is not None and count > room):
            limit = "" if room is None else f" to {room}"
            raise UsageError(f"train.prompts: '{text[:40]}' has {count} tokens, allowed are 1{limit}")


def _find_blanks(text: str, shape: str, tokenizer: Tokenizer) -> Any:
    from pretune.inference.unmask import Blanks

    mask = tokenizer.special.get("mask")
    mask_tokens = [tokenizer.get_token(token) for token in tokenizer.sentinels] if shape == "encoder-decoder" else []
    try:
        return Blanks.find(text, mask_tokens=mask_tokens or (None if mask is None else tokenizer.get_token(mask)))
    except UsageError as error:
        raise UsageError(f"train.prompts: {error}") from None


def _count_shown_tokens(tokenizer: Tokenizer, ids: list[int]) -> int:
    """Estimate how many tokens of a text fit on the line."""
    size = len(" ".join(tokenizer.decode(ids).split()))
    return len(ids) if size <= LINE_WIDTH else len(ids) * LINE_WIDTH // size


def _format_input(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode the input without the surrounding special tokens."""
    template_ids = {tokenizer.special.get(role) for role in TEMPLATE_ROLES}
    inner_places = [place for place, token in enumerate(ids) if token not in template_ids] or [0]
    return _decode_line(tokenizer, ids[inner_places[0] : inner_places[-1] + 1])


def _decode_line(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode tokens to one line."""
    return _clean_line(tokenizer.decode([*ids])) or EMPTY_TEXT


def _clean_line(text: str) -> str:
    text = " ".join(text.split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= LINE_WIDTH else f"{text[: LINE_WIDTH - 1]}…"
