"""Text to text (Raffel et al., 2020): what is read and what is to be written, by the task's template.

source  cola sentence: The sailors rode. </s>          a decoder reads both, one after the other, and only
target  acceptable </s>                                what is to be written counts
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pretune.core.errors import UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.data.ragged import Ints
from pretune.data.sequence_template import A, B, SequenceTemplate
from pretune.data.sequences import Sequences
from pretune.tasks.encode.base import EncodingRules, missing_value_error, read_classes, read_scores
from pretune.tasks.encode.items import Counts, Items, build_items
from pretune.tasks.encode.token_pool import PooledSequences, TokenPool, compute_room
from pretune.tasks.example import Example


def encode(rules: EncodingRules, examples: Sequence[Example], *, training: bool) -> Items:
    """A source and a target for each example, or where there is one side only both in one sequence.

    Without `training` there are no targets: an encoder-decoder's side is its start alone, a decoder's sequence ends
    where the answer should begin.
    """
    if training:
        _check_labels(rules, examples)
    pairs = [fill_template(rules, example) for example in examples]
    count = len(examples)
    if training:
        for number, (example, (_, target)) in enumerate(zip(examples, pairs, strict=True)):
            if target is None:
                raise missing_value_error(rules.task, number, example, "no target")
    pool = rules.tokenize(
        [*(source for source, _ in pairs), *((target or "") if training else "" for _, target in pairs)]
    )
    build = _encode_two_sides if rules.spec.is_encoder_decoder else _encode_one_side
    sequences, lost = build(rules, pool, count, training)
    empty = int((pool.lengths[:count] == 0).sum())
    counts = Counts(examples=count, cut=int((lost > 0).sum()), lost=int(lost.sum()), empty=empty)
    return build_items(sequences, counts=counts)


def fill_template(rules: EncodingRules, example: Example) -> tuple[str, str | None]:
    """(source, target) of an example."""
    template = rules.task.template
    if template is None:
        return example.text, example.target
    if rules.task.kind == "regression":  # NOTE: a target needs a score, and as a float
        source, target = template.fill(replace(example, label=float(example.label or 0)))
        return source, None if example.label is None else target
    return template.fill(example)


def get_start_token(rules: EncodingRules) -> int:
    """What a decoder reads first, where an encoder reads the text."""
    special = rules.spec.special
    start = special.start if special.start is not None else next(iter(special.eos), special.bos)
    if start is None:
        known = rules.tokenizer.special
        start = next((known[role] for role in ("bos", "pad", "eos") if role in known), None)
    if start is None:
        raise UsageError("the decoder has no start token; set special.start, special.eos or special.bos of the model")
    return start


def get_end_tokens(rules: EncodingRules) -> tuple[int, ...]:
    """The tokens that end what is written."""
    last = _build_answer_frame(rules).single[-1][0] if rules.spec.is_encoder_decoder else rules.frame.pair[-1][0]
    return (last,) if last >= 0 else rules.spec.special.eos


def count_answer_specials(rules: EncodingRules) -> int:
    """How many special tokens are written with an answer, its end among them."""
    return _build_answer_frame(rules).special_count if rules.spec.is_encoder_decoder else 1


def _build_answer_frame(rules: EncodingRules) -> SequenceTemplate:
    """What stands around a target: the layout, closed by the token that ends texts where it is open."""
    frame = SequenceTemplate.from_template(rules.tokenizer.template)
    last = frame.single[-1][0]
    end = next(iter(rules.spec.special.eos), rules.tokenizer.special.get("eos", rules.tokenizer.special.get("sep")))
    return frame if last >= 0 or end is None else SequenceTemplate(single=(*frame.single, (end, 0)), pair=frame.pair)


def _encode_two_sides(rules: EncodingRules, pool: TokenPool, count: int, training: bool) -> tuple[Sequences, Ints]:
    first = np.arange(count)
    source, lost = rules.fit(pool, first)
    start = get_start_token(rules)
    if not training:
        begun = Sequences(tokens=np.full(count, start), offsets=np.arange(count + 1))
        return replace(begun, source=_strip_fields(source.sequences)), lost
    kept = np.minimum(pool.lengths[count:], rules.new_tokens)
    written = pool.lay_out(_build_answer_frame(rules), pool.offsets[count:-1], kept).sequences
    read = np.roll(written.tokens, 1)
    read[written.offsets[:-1]] = start
    made = Sequences(
        tokens=read, offsets=written.offsets, targets=written.tokens, source=_strip_fields(source.sequences)
    )
    return made, lost + pool.lengths[count:] - kept


def _encode_one_side(rules: EncodingRules, pool: TokenPool, count: int, training: bool) -> tuple[Sequences, Ints]:
    """[start] source [delimiter] target [end]"""
    frame, space = rules.frame, compute_room(rules.frame, rules.max_length, pair=True)
    second = pool.lengths[count:]
    kept = np.minimum(second, min(rules.new_tokens, space - 1))
    longest = space - (kept if training else min(rules.new_tokens, space - 1))
    first = np.minimum(pool.lengths[:count], longest)
    lost = pool.lengths[:count] - first + second - kept
    place = [token for token, _ in frame.pair].index(B)
    prompt = SequenceTemplate(single=tuple((token, 0) for token, _ in frame.pair[:place]), pair=frame.pair)
    read = pool.lay_out(prompt, pool.offsets[:count], first)
    if not training:
        return _strip_fields(read.sequences), lost
    close = SequenceTemplate(single=((A, 0), *((token, 0) for token, _ in frame.pair[place + 1 :])), pair=frame.pair)
    written = pool.lay_out(close, pool.offsets[count:-1], kept)
    return _join(read, written), lost


def _join(prompts: PooledSequences, answers: PooledSequences) -> Sequences:
    """Prompts and what follows each of them; the tokens that follow are the targets."""
    a, b = prompts.sequences, answers.sequences
    sizes = np.stack((a.lengths, b.lengths), axis=1).ravel()
    second = np.repeat(np.tile([False, True], len(a)), sizes)
    tokens = np.empty(len(second), dtype=np.int64)
    tokens[~second], tokens[second] = a.tokens, b.tokens
    offsets = a.offsets + b.offsets
    targets = np.append(np.where(second, tokens, IGNORE_INDEX)[1:], IGNORE_INDEX)
    targets[offsets[1:] - 1] = IGNORE_INDEX
    return Sequences(tokens=tokens, offsets=offsets, targets=targets)


def _strip_fields(sequences: Sequences) -> Sequences:
    return Sequences(tokens=sequences.tokens, offsets=sequences.offsets)


def _check_labels(rules: EncodingRules, examples: Sequence[Example]) -> None:
    """Refuse labels that cannot be written."""
    if rules.task.kind == "regression":
        read_scores(rules, examples)
    elif rules.task.template is not None and rules.task.template.targets:
        read_classes(rules.task, examples)
