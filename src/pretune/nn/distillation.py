"""Losses between a student and a teacher: soft targets, direction and error of states, error of attention scores.

Each is summed over its rows, so that parts of a batch add up. Gradients flow into the student only. Legend: M rows, K
classes, N tokens, W width, V vocabulary, H heads, R row length.

    soft targets (Hinton et al., 2015)   T² KL(softmax(t / T) || softmax(s / T))
    direction of states (Sanh et al., 2019)   1 - cos(s, t)
    states, embeddings (Jiao et al., 2020)   mean over W of (s - t)²
    attention (Jiao et al., 2020)   mean over heads and visible keys of (s - t)², of the scores before the softmax
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.nn.layers import get_compute_dtype
from pretune.nn.loss import LogitGradients, pad_to_alignment, scale_gradients, split_rows

LogitFactors = tuple[Tensor, Tensor, Tensor | None]
"""Rows `[M, W]`, matrix `[V, W]` and bias `[V]`, whose product are logits."""
_FLOATS_PER_LOGIT = 6  # of the working memory of a block


def compute_soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(teacher || student) of each row `[M]` of logits `[M, K]`, softened by the temperature.

    The factor keeps the size of gradients independent of the temperature (Hinton et al., 2015).
    """
    target = F.log_softmax(teacher.float() / temperature, dim=-1)
    prediction = F.log_softmax(student.float() / temperature, dim=-1)
    return temperature**2 * (target.exp() * (target - prediction)).sum(-1)


def compute_soft_binary_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(teacher || student) of every decision, given logits of two classes each `[M, K]`."""
    student, teacher = student.float() / temperature, teacher.float() / temperature
    probability = teacher.sigmoid()
    positive = probability * (F.logsigmoid(teacher) - F.logsigmoid(student))
    return temperature**2 * (positive + (1 - probability) * (F.logsigmoid(-teacher) - F.logsigmoid(-student)))


def sum_cosine_distances(student: Tensor, teacher: Tensor, is_row: Tensor) -> Tensor:
    """Return the sum of 1 - cos over the rows `[N, W]` for which `is_row` `[N]` is True."""
    return (1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1)).where(is_row, 0.0).sum()


def sum_squared_errors(student: Tensor, teacher: Tensor, is_row: Tensor) -> Tensor:
    """Return the mean squared error over the width, summed over the rows `[N, W]` for which `is_row` is True."""
    return (student.float() - teacher.float()).square().mean(-1).where(is_row, 0.0).sum()


def sum_score_errors(student: Tensor, teacher: Tensor, is_row: Tensor) -> Tensor:
    """Return the mean squared error of attention scores `[rows, H, R, R]`, summed over the queries of `is_row` `[N]`.

    The mean is over heads and over the keys that a query may attend to, those that neither side masks.
    """
    lowest = torch.finfo(student.dtype).min / 2
    is_visible = (student[:, :1] > lowest) & (teacher[:, :1] > lowest)
    errors = (student - teacher).masked_fill(~is_visible, 0.0).square().mean(1).sum(-1)  # [rows, R]
    return (errors / is_visible[:, 0].sum(-1).clamp(min=1)).where(is_row.view_as(errors), 0.0).sum()


def linear_soft_loss(student: LogitFactors, teacher: LogitFactors, is_row: Tensor, temperature: float) -> Tensor:
    """Return the sum of `compute_soft_loss` over the rows of `is_row` `[M]`, a block of rows at a time.

    Logits over a vocabulary are large: as in `linear_cross_entropy` neither logits nor softmax are saved. Where the
    tables differ in size (padded vocabularies) the tokens of the smaller one count.
    """
    total: Tensor = _LinearSoftLoss.apply(*student, *teacher, is_row, temperature)  # type: ignore[no-untyped-call]
    return total


class _LinearSoftLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        teacher_states: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor | None,
        is_row: Tensor,
        temperature: float,
    ) -> Tensor:
        device, vocab = states.device.type, min(weight.shape[0], teacher_weight.shape[0])
        dtype = get_compute_dtype(states)
        exact = torch.promote_types(dtype, torch.float32)
        with torch.autocast(device, enabled=False):
            rows, table, shift = _prepare(states, weight, bias, vocab, dtype)
            teacher_rows, teacher_table, teacher_shift = _prepare(
                teacher_states, teacher_weight, teacher_bias, vocab, dtype
            )
            total = torch.zeros((), device=states.device, dtype=exact)
            gradients = LogitGradients(ctx, rows, table, exact)
            for part in split_rows(rows, 4 * _FLOATS_PER_LOGIT * table.shape[0]):
                logits, counts = F.linear(rows[part], table, shift), is_row[part, None]
                target_logits = F.linear(teacher_rows[part], teacher_table, teacher_shift)[:, :vocab]
                prediction = F.log_softmax(logits[:, :vocab].to(exact) / temperature, dim=-1)
                target = F.log_softmax(target_logits.to(exact) / temperature, dim=-1)
                probabilities = target.exp()
                total += temperature**2 * (probabilities * (target - prediction)).where(counts, 0.0).sum()
                if any(ctx.needs_input_grad[:3]):
                    logits[:, vocab:] = 0
                    logits[:, :vocab] = (prediction.exp() - probabilities).where(counts, 0.0) * temperature
                gradients.add(logits, part)
        gradients.save(ctx, states, weight, bias)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return *scale_gradients(ctx, scale), None, None, None, None, None


def _prepare(rows: Tensor, weight: Tensor, bias: Tensor | None, vocab: int, dtype: torch.dtype) -> LogitFactors:
    table = pad_to_alignment(weight[:vocab].to(dtype))
    return rows.to(dtype), table, None if bias is None else pad_to_alignment(bias[:vocab].to(dtype))
