"""Fifty steps are those of transformers with torch's AdamW: same weights, same text, their loop as anybody writes it.

They read one padded row per sequence, we read packed rows in several micro-batches; both warm up, decay and clip.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

import pretune as pt
from pretune.core.types import Batch
from pretune.training.batch_transfer import BatchStats
from pretune.training.config import LinearSchedule
from pretune.training.distributed import Ranks
from pretune.training.loop import Loop
from pretune.training.optim import AdamW, build_parameter_groups
from pretune.training.step import ModelWithLoss, StepMetrics, TrainState
from tests.parity.cases import ENCODER, GPT

STEPS, ROWS, LONG = 50, 8, 24
RATE, DECAY, CLIP = 2e-3, 0.01, 1.0
SCHEDULE = LinearSchedule(warmup=5)
MASK, PAD, IGNORE = 4, 0, -100
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PEERS = {
    "masked": lambda: tf.BertForMaskedLM(tf.BertConfig(**ENCODER, **STILL)),
    "causal": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
}


def lesson(objective: str, step: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sequences of unequal lengths and their labels; the text is learnable: each token follows from the one before."""
    rng = np.random.default_rng(step)
    tokens = [(rng.integers(12) + np.arange(n) * 7) % 12 + 5 for n in rng.integers(4, LONG, ROWS)]
    if objective == "causal":
        return [one.tolist() for one in tokens], [[*one[1:].tolist(), IGNORE] for one in tokens]
    hidden = [rng.random(len(one)) < 0.3 for one in tokens]
    hidden[0][0] = True
    return (
        [np.where(hide, MASK, one).tolist() for one, hide in zip(tokens, hidden, strict=True)],
        [np.where(hide, one, IGNORE).tolist() for one, hide in zip(tokens, hidden, strict=True)],
    )


class Text:
    """The same for our loop: in so many micro-batches."""

    def __init__(self, objective: str, micro: int) -> None:
        self.objective, self.micro, self.step = objective, micro, 0
        self.wait_seconds, self.stats = 0.0, BatchStats()

    def __next__(self) -> list[Batch]:
        tokens, labels = lesson(self.objective, self.step)
        self.step += 1
        size = ROWS // self.micro
        return [pt.batch(tokens[i : i + size], labels=labels[i : i + size], row=2 * LONG) for i in range(0, ROWS, size)]

    def split(self, micro: int) -> None:
        raise AssertionError("there is memory enough")


def ours(model: Any, objective: str, micro: int) -> list[float]:
    found: list[StepMetrics] = []
    Loop(
        module=ModelWithLoss(model, pt.objective(objective)).train(),
        optimizer=AdamW(lr=RATE, weight_decay=DECAY).build(build_parameter_groups(model)),
        state=TrainState(),
        ranks=Ranks(torch.device("cpu")),
        lr_factor=lambda state: SCHEDULE.compute_factor(state.step, STEPS),
        hooks=[lambda loop, reports: found.extend(reports)],
        clip=CLIP,
    ).run(Text(objective, micro), lambda state: state.step >= STEPS)
    return [report.loss for report in found]


def padded(rows: list[list[int]], fill: int) -> torch.Tensor:
    return torch.tensor([row + [fill] * (LONG - len(row)) for row in rows])


def theirs(model: Any, objective: str) -> list[float]:
    exempt = ("bias", "LayerNorm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if not name.endswith(exempt)], "weight_decay": DECAY},
        {"params": [p for name, p in named if name.endswith(exempt)], "weight_decay": 0.0},
    ]
    spec = AdamW(lr=RATE, weight_decay=DECAY)
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=spec.betas, eps=spec.eps)
    scheduler = tf.get_linear_schedule_with_warmup(optimizer, 5, STEPS)
    losses = []
    for step in range(STEPS):
        tokens, labels = lesson(objective, step)
        ids, mask = padded(tokens, PAD), padded([[1] * len(row) for row in tokens], 0)
        # Their causal models shift labels themselves.
        wanted = padded([[IGNORE, *row[:-1]] for row in labels] if objective == "causal" else labels, IGNORE)
        loss = model(input_ids=ids, attention_mask=mask, labels=wanted).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("objective", PEERS)
def test_fifty_steps(tmp_path: Path, objective: str, micro: int) -> None:
    torch.manual_seed(3)
    peer = PEERS[objective]().train()
    peer.save_pretrained(tmp_path / "peer")
    mine = ours(pt.load(tmp_path / "peer"), objective, micro)
    wanted = theirs(peer, objective)
    assert len(mine) == STEPS and max(abs(a - b) for a, b in zip(mine, wanted, strict=True)) < 1e-4
    assert wanted[-1] < 0.8 * wanted[0]  # something was learnt
