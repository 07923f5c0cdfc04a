"""Batches of answers that the model itself samples, with the rewards of a task.

    rollouts = Rollouts(TaskStream(items, batch=8), examples, encoder, model, GRPO(samples=8), seed=0)
    rollouts.batch(100)              # 8 prompts with 8 answers each, of the model's present weights

A batch is a function of its step and of the weights: random draws depend on the seed, the step, and the row of the
example, so a resumed run samples the same answers. No batch can be made ahead of its step.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.answer_logprobs import can_share_prompts
from pretune.adaptation.policy_gradient import FACTS, GRPO, compute_facts
from pretune.core.seed import mix
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import ROW_TOKENS, lay_out, pack_batches
from pretune.data.packing import pack
from pretune.data.plan import BatchShape
from pretune.data.sequences import Ints, Sequences, compute_offsets, reserve, share_prompts
from pretune.inference.decode import generate_tokens
from pretune.inference.decoding_state import GeneratedTokens
from pretune.inference.generation_config import GenerationConfig, GenerationTokens, Sampling
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Items, build_items
from pretune.tasks.example import Example
from pretune.tasks.predict import encode_prompts
from pretune.tasks.stream import DOUBLE_COST_LENGTH, TaskStream
from pretune.tasks.types.reward import compute_reward

SAMPLING = 12
"""Stream id of the random seed of samples. NOTE: a change changes every run."""
DECODED_ROWS = {"cpu": 64, "cuda": 512}
"""Answers that are sampled together."""
COST_SAMPLE = 500
"""Prompts from which the cost is estimated."""


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """Batches of sampled answers by step, with targets at their tokens and `FACTS` as labels."""

    stream: TaskStream  # the order of the prompts
    examples: list[Example]
    encoder: TaskEncoder
    model: ModelWithHead
    settings: GRPO
    seed: int
    precision: torch.dtype | None = None
    _prompts: list[list[int]] = field(init=False)
    _decoding: GenerationConfig = field(init=False)
    _tokens: GenerationTokens = field(init=False)

    def __post_init__(self) -> None:
        self._prompts, self._decoding, self._tokens = encode_prompts(self.encoder, self.examples)
        self._decoding = replace(self._decoding, search=Sampling(), returns=self.settings.samples)

    def steps(self, epoch: int) -> range:
        """Return the steps of an epoch."""
        return self.stream.steps(epoch)

    @property
    def _longest(self) -> int:
        """Tokens of the longest prompt with an answer, but for the last one."""
        return max(map(len, self._prompts)) + self._decoding.max_new_tokens - 1

    @property
    def shape(self) -> BatchShape:
        """Bound of the tokens of a batch: a row for each prompt."""
        return BatchShape(rows=self.stream.size, length=self.settings.samples * (self._longest + self.encoder.slots))

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        """Return the batch of a step, or one of several parts of its prompts, with answers of the present weights."""
        rows = self.stream.select(step, part, parts)
        if not len(rows):
            facts = compute_facts(np.zeros((0, self.settings.samples)), divide=False)
            return lay_out(join_answers([], [], facts), rows, EMPTY)
        answers, size, decode = self.sample(step, rows), self.settings.samples, self.encoder.rules.tokenizer.decode
        rewards = [
            compute_reward(self.encoder.task, self.examples[row], decode(answer.tokens, special=False).strip())
            for row, group in zip(rows, answers, strict=True)
            for answer in group
        ]
        facts = compute_facts(np.array(rewards).reshape(-1, size), divide=self.settings.divide)
        prompts = [self._prompts[row] for row in rows for _ in range(size)]
        can_skip = not self.settings.kl_weight  # without advantages, answers have no gradient but that of a divergence
        all_answers = [answer for group in answers for answer in group]
        sequences = join_answers(prompts, all_answers, facts, can_skip=can_skip)
        return self._pack(reserve(sequences, self.encoder.slots))

    def sample(self, step: int, rows: Ints) -> list[list[GeneratedTokens]]:
        """Return the answers to the prompts of some examples."""
        device = self.model.model.tokens.weight.device
        search = Sampling(temperature=self.settings.temperature, seed=mix(self.seed, SAMPLING, step) >> 1)
        with (
            torch.autocast(device.type, self.precision, enabled=self.precision is not None),
            torch.compiler.set_stance("force_eager"),
        ):
            return generate_tokens(
                self.model,
                [self._prompts[row] for row in rows],
                replace(self._decoding, search=search),
                batch=DECODED_ROWS.get(device.type, DECODED_ROWS["cuda"]),
                generation_tokens=self._tokens,
                numbers=rows.tolist(),
                capacity=self._longest,
            )

    def _pack(self, sequences: Sequences) -> Batch:
        """Return all sequences in one batch; answers to a prompt share it where that is cheaper."""
        size = self.settings.samples
        if can_share_prompts(self.model.model, self.encoder.slots):
            parts, owners = share_prompts(sequences, size)
            lengths = np.bincount(owners // size, weights=parts.lengths).astype(np.int64)
            if compute_cost(parts, int(lengths.max())) < compute_cost(sequences, int(sequences.lengths.max())):
                rows = pack(lengths, int(lengths.max()))[owners // size]
                order = np.argsort(rows, kind="stable")
                shape = BatchShape(rows=int(rows.max()) + 1, length=int(lengths.max()))
                return lay_out(parts.take(order), rows[order], shape)
        device = self.model.model.tokens.weight.device.type
        row = max(int(sequences.lengths.max()), ROW_TOKENS.get(device, ROW_TOKENS["cuda"])) + 8
        (all_answers,) = pack_batches(sequences, tokens=len(sequences) * row, device=device)
        return all_answers.batch


def compute_cost(sequences: Sequences, row: int) -> float:
    """Return the cost of sequences in rows of this length, in tokens of short rows."""
    return len(sequences.tokens) * (1 + row / DOUBLE_COST_LENGTH)


def imitate_answers(items: Items, samples: int, max_new_tokens: int) -> Items:
    """Return the first prompts with answers of the greatest length, for estimates of cost."""
    count = min(len(items), COST_SAMPLE)
    sequences = items.sequences.take(np.repeat(np.arange(count), samples))
    prompts = [part.tolist() for part in np.split(sequences.tokens, sequences.offsets[1:-1])]
    facts = compute_facts(np.zeros((count, samples)), divide=False)
    answers = [GeneratedTokens([0] * max_new_tokens, "length")] * len(prompts)
    return build_items(join_answers(prompts, answers, facts), items.counts)


EMPTY = BatchShape(rows=1, length=8)
"""Shape of a part without prompts."""


def join_answers(
    prompts: list[list[int]], answers: list[GeneratedTokens], facts: NDArray[np.float32], *, can_skip: bool = False
) -> Sequences:
    """Return prompts with their answers, whose tokens are the targets, the end token too; and with their `FACTS`.

    The last token is a target only. With `can_skip` of answers without a signal only the first token is left.
    """
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    ids = [
        np.array([*prompt, *answer.tokens, *(() if answer.end is None else (answer.end,))], dtype=np.int64)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    targets = [tokens[1:].copy() for tokens in ids]
    for labels, length in zip(targets, lengths, strict=True):
        labels[: length - 1] = IGNORE_INDEX
    sizes = np.array([int((labels != IGNORE_INDEX).sum()) for labels in targets], dtype=np.float32)
    joined_targets = np.concatenate([np.zeros(0, np.int64), *targets])
    sequences = Sequences(
        tokens=np.concatenate([np.zeros(0, np.int64), *(tokens[:-1] for tokens in ids)]),
        offsets=compute_offsets(np.array([len(tokens) for tokens in targets], dtype=np.int64)),
        targets=joined_targets,
        labels=np.column_stack((facts, sizes)),
    )
    is_skipped = (facts[:, FACTS.index("no_signal")] > 0) & can_skip
    is_skipped[:1] &= not is_skipped.all()  # so that every weight has a gradient, of 0
    if not is_skipped.any():
        return sequences
    joined_targets[sequences.offsets[:-1][is_skipped]] = IGNORE_INDEX  # of a prompt of one token
    return sequences.cut_ends(np.where(is_skipped, 1, sequences.lengths))
