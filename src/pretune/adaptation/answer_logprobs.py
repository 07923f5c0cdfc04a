"""Log-probabilities of answers: those of a batch's targets, and their sums over the sequences of the batch.

    answers = compute_answer_logprobs(model, batch)      # targets are the tokens of the answers
    (answers.sums / answers.counts.clamp(min=1))[cell]   # mean log-probability of a token of the answer

Legend: M target slots, C cells.
"""

from typing import NamedTuple

from torch import Tensor

from pretune.adaptation.heads.base import HeadedModel
from pretune.adaptation.heads.token import get_targets
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.models.model import LanguageModel
from pretune.nn.stack import Stack


class AnswerLogProbs(NamedTuple):
    """Log-probabilities of the targets of a batch with their cells, and sums and numbers of targets of each cell."""

    tokens: Tensor  # [M] 0 for unused slots
    cells: Tensor  # [M] 0 for unused slots
    sums: Tensor  # [C]
    counts: Tensor  # [C]


def can_share_prompts(model: LanguageModel, slots: int) -> bool:
    """Return whether answers may continue one prompt in a batch, given the number of virtual tokens before a text.

    NOTE: the fast kernels of a GPU have no mask for it.
    """
    decoder, is_cpu = model.spec.decoder, model.tokens.weight.device.type == "cpu"
    return is_cpu and isinstance(decoder, Stack) and not decoder.counts_columns and not slots


def compute_answer_logprobs(model: HeadedModel, batch: Batch) -> AnswerLogProbs:
    """Return the log-probabilities of the targets of a batch, with gradients."""
    tokens, cells = model.model.logprobs(model.states(batch), batch), find_target_cells(batch)
    return AnswerLogProbs(
        tokens, cells, tokens.new_zeros(batch.cells).index_add(0, cells, tokens), count_targets(batch)
    )


def find_target_cells(batch: Batch) -> Tensor:
    """Return the cell of each target `[M]`; 0 for unused slots."""
    targets = get_targets(batch)
    return batch.sequence.index_select(0, targets.index).masked_fill(targets.labels == IGNORE_INDEX, 0).long()


def count_targets(batch: Batch) -> Tensor:
    """Return the number of targets of each cell `[C]`."""
    is_target = (get_targets(batch).labels != IGNORE_INDEX).long()
    return is_target.new_zeros(batch.cells).index_add(0, find_target_cells(batch), is_target)
