"""Masks and number of targets, compared with DataCollatorForPermutationLanguageModeling of `transformers`.

Ours differs in three points, each on purpose: later targets see the real tokens of earlier ones (there: a mask);
special tokens are plain context (there they may see targets, so that what is to be predicted leaks through them); and
the order is over the whole sequence (there: over halves, for the memory of the segment before).
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library is not installed")

from tokenizers import Tokenizer, models
from transformers import DataCollatorForPermutationLanguageModeling, PreTrainedTokenizerFast

from pretune.core.types import IGNORE_INDEX
from pretune.data.sampling import Counters
from pretune.data.sequences import Sequences, compute_offsets
from pretune.objectives.base import Vocabulary
from pretune.objectives.permuted import PermutationLM

COUNT, LENGTH, SPECIAL = 120, 384, (0, 383)


@cache
def texts() -> np.ndarray:
    tokens = np.random.default_rng(2).integers(5, 90, (COUNT, LENGTH))
    tokens[:, SPECIAL[0]], tokens[:, SPECIAL[1]] = 2, 3
    return tokens


@cache
def theirs() -> tuple[Tensor, Tensor]:
    """Their permutation masks, and which tokens are targets."""
    words = {name: i for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(90))])}
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), **roles)
    torch.manual_seed(0)
    made = DataCollatorForPermutationLanguageModeling(tokenizer=tokenizer)(texts().tolist())
    return made["perm_mask"], made["labels"] != -100


@cache
def ours() -> tuple[Tensor, Tensor, Tensor]:
    """Masks of the same form from our order, which tokens are targets, and the order."""
    tokens = texts()
    sequences = Sequences(
        tokens=tokens.reshape(-1),
        offsets=compute_offsets(np.full(COUNT, LENGTH)),
        special=np.isin(np.arange(COUNT * LENGTH) % LENGTH, SPECIAL),
        samples=np.arange(COUNT),
        epochs=np.zeros(COUNT, dtype=np.int64),
    )
    lesson = (
        PermutationLM()
        .bind(Vocabulary(size=95), "two-stream")
        .corrupt(sequences, Counters.from_sequences(0, sequences))
    )
    order = torch.from_numpy(lesson.order).view(COUNT, LENGTH)
    return masked(order), torch.from_numpy(lesson.targets).view(COUNT, LENGTH) != IGNORE_INDEX, order


def masked(order: Tensor) -> Tensor:
    """1: i may not attend to j."""
    return ((order[:, None] > 0) & (order[:, None] >= order[:, :, None])).float()


def ordinary(values: Any) -> Any:
    return values[..., SPECIAL[0] + 1 : SPECIAL[1]]


def rules(mask: Tensor, targets: Tensor) -> None:
    """Of one text, all rows but those of special tokens: who hides from whom."""
    inside = slice(SPECIAL[0] + 1, SPECIAL[1])
    hidden = mask.bool()
    assert not hidden[:, ~targets].any(), "context is seen by all"
    assert hidden[inside][~targets[inside]][:, targets].all(), "context sees no target"
    among = hidden[targets][:, targets]
    assert among.diagonal().all(), "no target sees itself"
    assert (among ^ among.T ^ torch.eye(len(among), dtype=torch.bool)).all(), "of two targets, one sees the other"
    assert torch.sort((~among).sum(1)).values.tolist() == [*range(len(among))], "they stand in one order"


@pytest.mark.parametrize("made", [lambda: theirs(), lambda: ours()[:2]], ids=["theirs", "ours"])
def test_rules(made: Any) -> None:
    mask, targets = made()
    for s in range(0, COUNT, 10):
        rules(mask[s], targets[s])


def test_their_masks_are_orders() -> None:
    """From how many targets a target sees follows our rank, and from our ranks their mask."""
    mask, targets = theirs()
    seen = ((mask == 0) & targets[:, None]).sum(-1)
    order = torch.where(targets, 1 + seen, 0)
    actual = masked(order)
    inside = slice(SPECIAL[0] + 1, SPECIAL[1])
    assert torch.equal(actual[:, inside], mask[:, inside])


def test_shares() -> None:
    """A sixth of the ordinary tokens within 3 sigma: ours of 1 / 6, and of each other."""
    ways = [ordinary(targets).float().mean(1) for targets in (theirs()[1], ours()[1])]
    means, errors = [float(way.mean()) for way in ways], [float(way.std()) / COUNT**0.5 for way in ways]
    assert abs(means[1] - 1 / 6) < 3 * errors[1]
    assert abs(means[0] - means[1]) < 3 * (errors[0] ** 2 + errors[1] ** 2) ** 0.5


def test_spans() -> None:
    """Stretches of neighbouring targets have the same lengths as often."""
    actual = []
    for targets in (theirs()[1], ours()[1]):
        flat = ordinary(targets).reshape(-1).numpy().astype(np.int8)
        edges = np.diff(flat, prepend=0, append=0)
        actual.append(np.bincount(np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1), minlength=12)[:12])
    for length in range(1, 9):
        a, b = (int(counts[length]) for counts in actual)
        assert abs(a - b) < 4 * (a + b) ** 0.5, (length, a, b)
    assert actual[0].sum() > 2_000


def reach(mask: Tensor) -> Tensor:
    """Return the contents that the query of each token depends on through any number of layers."""
    direct = mask == 0
    content = direct | torch.eye(len(mask), dtype=torch.bool)
    for _ in range(3):
        content = (content.float() @ content.float()) > 0
    return (direct.float() @ content.float()) > 0


def test_nothing_leaks_through_special_tokens() -> None:
    """In our masks no query ever learns of its own token; in theirs some do, by what a special token has seen."""
    leaks = {"theirs": 0, "ours": 0}
    for name, (mask, targets) in {"theirs": theirs(), "ours": ours()[:2]}.items():
        for s in range(3):
            leaks[name] += int(reach(mask[s]).diagonal()[targets[s]].sum())
    assert leaks["ours"] == 0
    assert leaks["theirs"] > 20
