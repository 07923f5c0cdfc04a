"""An objective applied to a sentence: tokens, targets and attention mask of a real batch, for `pretune show-batch`.

    example = build_example("masked", texts=["The cat sat down."], seed=3)
    (side,) = example.sequences[0].sides  # two for an encoder-decoder
    side.tokens, side.targets, side.mask

Without a tokenizer, the words of the text are its tokens.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.core import config
from pretune.core.errors import UsageError, suggest
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.pairs import BROKEN_LABEL, INTACT_LABEL, double_template
from pretune.data.plan import BatchShape
from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences
from pretune.data.stream import Corruption
from pretune.nn.attention_mask import MaskSpec, build_context
from pretune.nn.two_stream import build_stream_masks
from pretune.objectives import OBJECTIVES
from pretune.objectives.base import MODEL_SHAPES, ModelShape, Objective, Vocabulary, build_template
from pretune.objectives.distill import Distill
from pretune.objectives.masked import MaskedLM, MaskingCorruption, mask_tokens
from pretune.objectives.mixture import Mixture, MixtureCorruption
from pretune.objectives.seq2seq import NoiseSpans
from pretune.objectives.span_corruption import SentinelCorruption
from pretune.text.sentences import split_sentences
from pretune.text.template import TEXT_B
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train

PARTY = "Thank you for inviting me to your party last week."
"""Example sentence of Raffel et al. (2020), figure 2."""
DANCE = "We danced until midnight."
OTHER_DOCUMENT = "Penguins cannot fly."
"""Start of another document."""
TRANSLATION = ("Thank you for inviting me.", "Danke, dass du mich eingeladen hast.")
TASK = ("translate English to German: That is good.", "Das ist gut.")
"""First task of figure 1 of the same paper."""
SIDE_NAMES = {"kept": "a text and its translation", "apart": "a source and a target text"}
"""The two texts of a pair by its kind, where one text cannot be split into them."""
MAX_TOKENS = 512
"""Maximum length of an example."""
SAMPLE_COUNT = 64
"""Number of samples drawn to find one sequence of each kind."""
STYLES: dict[ModelShape, tuple[str, ...]] = {
    "encoder": ("cls-sep",),
    "decoder": ("plain", "s-mask", "sentinels"),
    "encoder-decoder": ("s-mask", "sentinels"),
    "two-way": ("plain",),
    "generator-discriminator": ("cls-sep",),
    "two-stream": ("cls-last",),
}
"""Styles of special tokens by shape; the first that an objective supports is used."""

Texts = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSide:
    """Input of a model, or of one side of it."""

    name: str
    tokens: tuple[str, ...]
    targets: tuple[str, ...]  # "" for none
    mask: tuple[tuple[bool, ...], ...]  # a row per token: the tokens it attends to


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSequence:
    """One corrupted sequence."""

    label: int | None  # of a pair
    sides: tuple[ExampleSide, ...]
    counts: dict[str, int]  # targets of each term of the loss


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExample:
    """An objective applied to a text: a sequence for each label, attention mask and mode token."""

    objective: str
    title: str  # of the objective
    about: str  # description and paper
    settings: dict[str, object]
    shape: str
    seed: int
    sequences: tuple[ExampleSequence, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        return asdict(self)


def build_example(
    name: str,
    *,
    texts: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    shape: str | None = None,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    hide: Sequence[str] = (),
) -> BatchExample:
    """Apply an objective to texts for a model shape; without a tokenizer, words are the tokens.

    `hide` names words to mask instead of random ones.
    """
    named_objective = config.replace(OBJECTIVES.get(name)(), settings or {})
    # A distillation reads what its base objective reads.
    objective = named_objective.base if isinstance(named_objective, Distill) else named_objective
    model_shape = _resolve_shape(shape, objective)
    variants = list_variants(name, objective, texts)
    if tokenizer is None:
        tokenizer = train_word_tokenizer([text for pair, _ in variants for text in pair], objective, model_shape)
    corruption = objective.bind(Vocabulary.from_tokenizer(tokenizer), model_shape)
    sequences = []
    for pair, label in variants:
        sequence = build_sequence(tokenizer, model_shape, objective.pairs, pair, label)
        if hide:
            outputs = [_hide_words(name, corruption, tokenizer, sequence, hide, seed)]
        else:
            outputs = draw_kinds(corruption, sequence, seed)
        sequences += [_describe(_build_batch(output), objective, tokenizer, model_shape, label) for output in outputs]
    return BatchExample(
        objective=name,
        title=(sys.modules[type(named_objective).__module__].__doc__ or name).partition("\n")[0],
        about=OBJECTIVES.describe(name),
        settings=config.to_dict(named_objective),
        shape=model_shape,
        seed=seed,
        sequences=tuple(sequences),
    )


def _resolve_shape(shape: str | None, objective: Objective) -> ModelShape:
    """Return the shape of this name, by default the first that the objective trains."""
    if shape is None:
        return objective.shapes[0]
    for candidate in MODEL_SHAPES:
        if shape == candidate:
            return candidate
    raise UsageError(f"unknown shape '{shape[:60]}'{suggest(shape, MODEL_SHAPES)} (allowed: {', '.join(MODEL_SHAPES)})")


def list_variants(name: str, objective: Objective, texts: Sequence[str]) -> list[tuple[Texts, int]]:
    """Return the texts to show, one or a pair, each with its label; without texts, examples of papers."""
    if any(not text.strip() for text in texts):
        raise UsageError("--text is empty; pass at least one sentence")
    reads_documents = objective.reads_documents if isinstance(objective, Mixture) else objective.pairs is None
    if reads_documents and (objective.pairs is None or len(texts) <= 1):
        if len(texts) > 1:
            raise UsageError(f"{name} takes one text, got {len(texts)}; pass --text once")
        text = texts[0] if texts else f"{PARTY} {DANCE}" if objective.sentences else PARTY
        pairs = [] if texts or objective.pairs is None else [(TASK, IGNORE_INDEX)]
        return [((text,), IGNORE_INDEX), *pairs]
    defaults = {"kept": TRANSLATION, "apart": TASK}.get(objective.pairs or "", (PARTY, DANCE))
    first, second = _split_pair(name, objective, tuple(texts) or defaults)
    if objective.pairs in SIDE_NAMES:
        return [((first, second), IGNORE_INDEX)]
    broken = (second, first) if objective.pairs == "swapped" else (first, OTHER_DOCUMENT)
    return [((first, second), INTACT_LABEL), (broken, BROKEN_LABEL)]


def _split_pair(name: str, objective: Objective, texts: Texts) -> Texts:
    """Return two texts, or the segments of one, split at the sentence start nearest to its middle."""
    if len(texts) == 2:
        return texts
    expected_texts = SIDE_NAMES.get(objective.pairs or "")
    starts = split_sentences(texts[0])[1:] if len(texts) == 1 and expected_texts is None else []
    if not starts:
        expected_texts = expected_texts or "two segments of at least one sentence each"
        raise UsageError(f"{name} needs {expected_texts}; pass --text twice")
    middle = min(starts, key=lambda start: abs(start - len(texts[0]) / 2))
    return texts[0][:middle].strip(), texts[0][middle:].strip()


def train_word_tokenizer(texts: Sequence[str], objective: Objective, shape: ModelShape) -> Tokenizer:
    """Return a tokenizer of the words of the texts, with the special tokens that the objective needs."""
    first_error: UsageError | None = None
    for style in STYLES[shape]:
        tokenizer = train("words", [*dict.fromkeys(texts)], vocab=2**20, style=style, min_frequency=1)
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        if not len(vocabulary.list_ordinary_ids()):
            raise UsageError("--text has no words; pass at least one sentence")
        try:
            objective.bind(vocabulary, shape)
        except UsageError as error:
            first_error = first_error or error
        else:
            return tokenizer
    assert first_error is not None
    raise first_error


def build_sequence(tokenizer: Tokenizer, shape: ModelShape, pairs: str | None, texts: Texts, label: int) -> Sequences:
    """Return one sequence of a text or of a pair of this kind, with special tokens."""
    read = tokenizer.encode_batch(texts, literal=True)
    template = build_template(tokenizer, Vocabulary.from_tokenizer(tokenizer), shape)
    side = 0  # start of the second side
    if len(texts) == 2 and pairs == "apart":
        side = len(read[0]) + template.special_count
        template = double_template(template, is_bare=shape != "encoder-decoder")
    elif len(texts) == 2:
        side = len(read[0]) + [token for token, _ in template.pair].index(TEXT_B) - 1
    sequence = template.apply(*(read[number] for number in range(len(texts))))
    if sequence.is_special.all():
        raise UsageError(f"this tokenizer has no token for the text '{texts[0][:60]}'; use another")
    if len(sequence.ids) > MAX_TOKENS:
        raise UsageError(f"the text has {len(sequence.ids)} tokens, the maximum is {MAX_TOKENS}")
    words, sentences = np.ones((2, len(sequence.ids)), dtype=bool)
    words[~sequence.is_special], sentences[~sequence.is_special] = read.word_start, False
    start = np.flatnonzero(~sequence.is_special)
    for number, text in enumerate(texts):
        tokens = start[read.offsets[number] : read.offsets[number + 1]]
        words[tokens[:1]] = sentences[tokens[:1]] = True
        sentences[tokens[read.find_tokens(number, split_sentences(text))]] = True
    return Sequences(
        tokens=sequence.ids,
        offsets=np.array([0, len(sequence.ids)]),
        special=sequence.is_special,
        words=words,
        sentences=sentences,
        segments=sequence.segments if pairs not in (None, "apart") or template.has_segments else None,
        samples=np.zeros(1, dtype=np.int64),
        epochs=np.zeros(1, dtype=np.int64),
        labels=np.array([label]) if pairs in ("other", "swapped") else None,
        sides=np.array([side]),
    )


def draw_kinds(corruption: Corruption, sequence: Sequences, seed: int) -> list[Sequences]:
    """Return corruptions of a sequence: the first with each attention mask and mode token that is drawn."""
    copies = sequence.take(np.zeros(SAMPLE_COUNT, dtype=np.int64))
    samples = replace(copies, samples=np.arange(SAMPLE_COUNT))
    outputs = corruption.corrupt(samples, Counters.from_sequences(seed, samples, copies=corruption.copies))
    views = np.zeros(SAMPLE_COUNT, dtype=np.int64) if outputs.view is None else outputs.view
    inputs = outputs.source or outputs
    first_tokens = inputs.tokens[inputs.offsets[:-1]]
    mode_tokens = corruption.mode_tokens if isinstance(corruption, MixtureCorruption) else ()
    is_mode = np.isin(first_tokens, [token for token in mode_tokens if token is not None])
    _, index = np.unique(np.stack([views, np.where(is_mode, first_tokens, -1)]), axis=1, return_index=True)
    return [outputs.take(np.array([number])) for number in index]


def _hide_words(
    name: str, corruption: Corruption, tokenizer: Tokenizer, original: Sequences, hide: Sequence[str], seed: int
) -> Sequences:
    """Mask the named words of a sequence instead of random ones."""
    spans = sorted(_find_positions(tokenizer, original, words) for words in hide)
    positions = np.array([place for span in spans for place in span])
    if len(np.unique(positions)) < len(positions):
        raise UsageError("--hide names overlapping words; pass each word once")
    if isinstance(corruption, MaskingCorruption) and isinstance(corruption.objective, MaskedLM):
        rng = Counters.from_sequences(seed, original, copies=corruption.copies)
        return mask_tokens(original, positions, corruption.replacement, rng)
    if isinstance(corruption, SentinelCorruption):
        assert original.special is not None
        index = np.flatnonzero(~original.special)
        first = np.searchsorted(index, [span[0] for span in spans])
        length = np.array([len(span) for span in spans])
        sides = corruption.replace_spans(original, index, NoiseSpans(first, length, np.array([len(spans)])))
        return corruption.layout.combine(*sides)
    raise UsageError(f"--hide does not support {name}, only masked and span_corruption")


def _find_positions(tokenizer: Tokenizer, sequence: Sequences, text: str) -> list[int]:
    """Return the positions of the first occurrence of some words in a sequence."""
    assert sequence.special is not None
    ordinary, read = np.flatnonzero(~sequence.special), sequence.tokens[~sequence.special].tolist()
    for variant in (text, " " + text):  # a leading space may be part of a token
        word_ids = tokenizer.encode(variant, add_special_tokens=False, literal=True)
        for start in range(len(read) - len(word_ids) + 1 if word_ids else 0):
            if read[start : start + len(word_ids)] == word_ids:
                return [int(place) for place in ordinary[start : start + len(word_ids)]]
    raise UsageError(f"--hide '{text[:60]}' is not in the text; pass words exactly as they occur")


def _build_batch(sequence: Sequences) -> Batch:
    """Return the batch of one sequence."""
    source = None if sequence.source is None else max(int(sequence.source.lengths[0]), 1)
    shape = BatchShape(rows=1, length=max(int(sequence.lengths[0]), 1), source=source)
    return lay_out(sequence, np.zeros(1, dtype=np.int64), shape)


def _describe(
    batch: Batch, objective: Objective, tokenizer: Tokenizer, shape: ModelShape, label: int
) -> ExampleSequence:
    inputs: list[tuple[str, Batch, ModelShape]] = [(shape, batch, shape)]
    if batch.source is not None:
        inputs = [("encoder", batch.source, "encoder"), ("decoder", batch, "decoder")]
    sides = [
        ExampleSide(
            name=name,
            tokens=format_tokens(tokenizer, side.tokens),
            targets=format_tokens(tokenizer, place_targets(side)),
            mask=tuple(map(tuple, build_mask(side, side_shape).tolist())),
        )
        for name, side, side_shape in inputs
    ]
    counts = {name: int(count) for name, count in objective.counts(batch).items()}
    return ExampleSequence(label=None if label == IGNORE_INDEX else label, sides=tuple(sides), counts=counts)


def place_targets(batch: Batch) -> Tensor:
    """Return the target of every token [N], IGNORE_INDEX where there is none."""
    labels = torch.full_like(batch.tokens, IGNORE_INDEX)
    if batch.targets is not None:
        is_target = batch.targets.labels != IGNORE_INDEX
        labels[batch.targets.index[is_target]] = batch.targets.labels[is_target]
    return labels


def format_tokens(tokenizer: Tokenizer, ids: Tensor) -> tuple[str, ...]:
    """Return tokens as printable text; "" for negative ids."""
    texts = (tokenizer.get_token(i) if i >= 0 else "" for i in ids.tolist())
    return tuple("".join(c if c.isprintable() else "?" for c in text).replace(" ", "_") for text in texts)


def build_mask(batch: Batch, shape: ModelShape) -> Tensor:
    """Return the attention mask [q, k] of a model of this shape, built by the models' own functions.

    Of a two-way model it is that of the forward stack; of a two-stream model that of queries at the targets, and of
    content elsewhere.
    """

    def expand(mask: Tensor | None) -> Tensor:
        """Expand to [q, k]; None masks nothing."""
        size = (len(batch.tokens), len(batch.tokens))
        return torch.ones(size, dtype=torch.bool) if mask is None else mask.expand(1, 1, *size)[0, 0]

    if shape == "two-stream":
        content, query = build_stream_masks(batch)
        if query is None:
            return expand(content.mask)
        is_target = place_targets(batch) != IGNORE_INDEX
        return torch.where(is_target[:, None], expand(query.mask), expand(content.mask))
    spec = MaskSpec(causal=shape in ("decoder", "two-way"))
    return expand(build_context(batch, batch, spec, "eager", torch.float32).mask)
