"""Text-to-text: the answer is generated (Raffel et al., 2020); source and target by the task's template, if it has one.

source  cola sentence: The sailors rode. </s>          a decoder reads both as one sequence, and only
target  acceptable </s>                                the target counts for the loss

`encode_text_to_text` also encodes the tasks of other types for models that generate all answers. Users' tables have a
text and the text to generate.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pretune.adaptation.heads.base import TaskHead, find_start_token
from pretune.adaptation.heads.token import Generation
from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.core.types import IGNORE_INDEX
from pretune.data.sequences import Ints, Sequences
from pretune.tasks.encoding import (
    EncodingRules,
    Items,
    PooledSequences,
    TokenPool,
    build_items,
    compute_room,
    count_truncated,
    missing_value_error,
)
from pretune.tasks.example import Example, Examples
from pretune.tasks.table import TableRow
from pretune.tasks.table_reader import TableReader, UserTables
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import AnswerPrompt, Inputs, Scoring, SecondText, TaskType
from pretune.text.template import TEXT_A, TEXT_B, TokenTemplate


@dataclass(frozen=True, kw_only=True)
class TextInputs(Inputs):
    """A text, and the text to generate from it."""

    second_text: SecondText = "none"

    default_length = 512

    def build_head(self, task: Task) -> TaskHead:
        return Generation()

    def build_user_task(self, tables: UserTables) -> Task:
        reader = TextPairReader(**tables.pick_columns({"text": "source", "label": "target"}))
        return tables.build_task("generation", reader, ("rouge", "exact_match"))


@dataclass(frozen=True, kw_only=True)
class TextScoring(Scoring):
    """A text is compared with one or several references."""

    def format_gold(self, task: Task, example: Example) -> Any:
        return example.target


GENERATION = TaskType(
    name="generation",
    inputs=TextInputs(),
    scoring=TextScoring(
        gold="text",
        evaluator=AnswerPrompt(text="Text: {text}\nAnswer: {answer}", max_answer_tokens=64),
        baselines={"majority": "lead_words"},
    ),
)
"""A text to generate from a text."""


@spec
class TextPairReader(TableReader):
    """Reader of texts and the texts to generate from them."""

    def parse_row(self, row: TableRow) -> Example:
        target = row.get_text(self.label)
        return Example(text=row.get_text(self.text), target=target, answers=(target,), id=row.number)


def has_template(task: Task) -> bool:
    """Return True if examples can be written as text, and answers as text too."""
    return task.template is not None or task.kind == GENERATION.name


def encode_text_to_text(rules: EncodingRules, examples: Examples, *, training: bool) -> Items:
    """Encode a source and a target per example, or for a decoder both in one sequence.

    Without `training` there are no targets: the decoder side of an encoder-decoder is its start token, and a decoder's
    sequence ends where the answer begins.
    """
    pairs = get_type(rules.task).inputs.write(rules, examples, training=training)
    count = len(examples)
    if training:
        for number, (example, (_, target)) in enumerate(zip(examples, pairs, strict=True)):
            if target is None:
                raise missing_value_error(rules.task, number, example, "no target")
    targets = [target or "" if training else "" for _, target in pairs]
    pool = rules.tokenize([*(source for source, _ in pairs), *targets])
    build = _encode_two_sides if rules.spec.is_encoder_decoder else _encode_one_side
    sequences, lost = build(rules, pool, count, training)
    return build_items(sequences, count_truncated(lost, pool.lengths[:count]))


def spell_targets(rules: EncodingRules) -> tuple[str, ...]:
    """Return the targets of the task's template as the tokenizer decodes them.

    Raises:
        DataError: Two targets are decoded to the same text, or one has an unknown token.
    """
    targets = rules.task.template.targets if rules.task.template else ()
    spellings, unknown = tuple(map(rules.spell, targets)), rules.tokenizer.special.get("unk")
    for target, spelling in zip(targets, spellings, strict=True):
        problem, remedy = "", "rename it"
        ids = rules.tokenizer.encode(target, add_special_tokens=False, literal=True)
        if unknown in ids:
            problem = "has characters that are not in the vocabulary"
        elif not spelling:
            problem = "has no tokens"
        elif spellings.count(spelling) > 1:
            problem = f"is generated as {spelling[:40]!r}, and so is another label"
            if len(ids) > rules.max_new_tokens:
                remedy = f"set data.max_new_tokens (now {rules.max_new_tokens}) to {len(ids)} or more"
        if problem:
            raise DataError(
                f"task '{rules.task.name}': the label {target[:40]!r} {problem}; {remedy}, or use a classification "
                "head (--set tune.text_to_text=false)"
            )
    return spellings


def get_start_token(rules: EncodingRules) -> int:
    """Return the decoder's start token, of an encoder-decoder."""
    special, special_ids = rules.spec.special, rules.tokenizer.special
    role = next((role for role in ("bos", "pad", "eos") if role in special_ids), None)
    if role is not None and special.start is None and special.bos is None and not special.eos:
        return special_ids[role]
    return find_start_token(rules.spec)


def get_end_tokens(rules: EncodingRules) -> tuple[int, ...]:
    """Return the tokens that end a generated answer."""
    is_separate = rules.spec.is_encoder_decoder
    last, _ = _build_answer_template(rules).single[-1] if is_separate else rules.sequence_template.pair[-1]
    return (last,) if last >= 0 else rules.spec.special.eos


def count_answer_specials(rules: EncodingRules) -> int:
    """Return the number of special tokens generated with an answer, including its end token."""
    return _build_answer_template(rules).special_count if rules.spec.is_encoder_decoder else 1


def _build_answer_template(rules: EncodingRules) -> TokenTemplate:
    """Return the template of a target: the tokenizer's, with an end token if it has none."""
    template = rules.tokenizer.template
    last = template.single[-1][0]
    end = next(iter(rules.spec.special.eos), rules.tokenizer.special.get("eos", rules.tokenizer.special.get("sep")))
    if last >= 0 or end is None:
        return template
    return TokenTemplate(single=(*template.single, (end, 0)), pair=template.pair)


def _encode_two_sides(rules: EncodingRules, pool: TokenPool, count: int, training: bool) -> tuple[Sequences, Ints]:
    first = np.arange(count)
    source, lost = rules.fit(pool, first)
    start = get_start_token(rules)
    if not training:
        starts = Sequences(tokens=np.full(count, start), offsets=np.arange(count + 1))
        return replace(starts, source=_strip_fields(source.sequences)), lost
    target_lengths = np.minimum(pool.lengths[count:], rules.max_new_tokens)
    answers = pool.lay_out(_build_answer_template(rules), pool.offsets[count:-1], target_lengths).sequences
    decoder_inputs = np.roll(answers.tokens, 1)
    decoder_inputs[answers.offsets[:-1]] = start
    sequences = Sequences(
        tokens=decoder_inputs, offsets=answers.offsets, targets=answers.tokens, source=_strip_fields(source.sequences)
    )
    return sequences, lost + pool.lengths[count:] - target_lengths


def _encode_one_side(rules: EncodingRules, pool: TokenPool, count: int, training: bool) -> tuple[Sequences, Ints]:
    """Encode for a decoder: [start] source [delimiter] target [end]."""
    template, room = rules.sequence_template, compute_room(rules.sequence_template, rules.max_length, pair=True)
    full_target_lengths = pool.lengths[count:]
    target_lengths = np.minimum(full_target_lengths, min(rules.max_new_tokens, room - 1))
    max_source_length = room - (target_lengths if training else min(rules.max_new_tokens, room - 1))
    source_lengths = np.minimum(pool.lengths[:count], max_source_length)
    lost = pool.lengths[:count] - source_lengths + full_target_lengths - target_lengths
    place = [token for token, _ in template.pair].index(TEXT_B)
    prompt = TokenTemplate(single=tuple((token, 0) for token, _ in template.pair[:place]), pair=template.pair)
    prompts = pool.lay_out(prompt, pool.offsets[:count], source_lengths)
    if not training:
        return _strip_fields(prompts.sequences), lost
    answer_template = TokenTemplate(
        single=((TEXT_A, 0), *((token, 0) for token, _ in template.pair[place + 1 :])), pair=template.pair
    )
    answers = pool.lay_out(answer_template, pool.offsets[count:-1], target_lengths)
    return _join(prompts, answers), lost


def _join(prompts: PooledSequences, answers: PooledSequences) -> Sequences:
    """Join prompts and answers; the answers' tokens are the targets."""
    prompt, answer = prompts.sequences, answers.sequences
    sizes = np.stack((prompt.lengths, answer.lengths), axis=1).ravel()
    is_answer = np.repeat(np.tile([False, True], len(prompt)), sizes)
    tokens = np.empty(len(is_answer), dtype=np.int64)
    tokens[~is_answer], tokens[is_answer] = prompt.tokens, answer.tokens
    offsets = prompt.offsets + answer.offsets
    targets = np.append(np.where(is_answer, tokens, IGNORE_INDEX)[1:], IGNORE_INDEX)
    targets[offsets[1:] - 1] = IGNORE_INDEX
    return Sequences(tokens=tokens, offsets=offsets, targets=targets)


def _strip_fields(sequences: Sequences) -> Sequences:
    return Sequences(tokens=sequences.tokens, offsets=sequences.offsets)
