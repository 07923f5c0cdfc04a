"""Log-probabilities of answers: those of each sequence alone, however the batch packs them."""

import numpy as np
import pytest
import torch

from pretune.adaptation.adapted import adapt
from pretune.adaptation.answer_logprobs import compute_answer_logprobs
from pretune.adaptation.heads.token import Generation
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, compute_offsets
from tests.inference.speakers import speaker


def test_sums_are_those_of_each_sequence_alone() -> None:
    """Two rows with filler; the tokens before the answers count for nothing, and one sequence has no answer."""
    model = adapt(speaker("llama-7b", "bpe", "endoftext"), Generation()).eval()
    lengths, first = [5, 7, 3, 6], [2, 1, 3, 4]
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 300, length) for length in lengths]
    labels = [
        np.append(np.where(np.arange(1, len(row)) < start, IGNORE_INDEX, row[1:]), IGNORE_INDEX)
        for row, start in zip(rows, first, strict=True)
    ]
    sequences = Sequences(
        tokens=np.concatenate(rows), offsets=compute_offsets(np.array(lengths)), targets=np.concatenate(labels)
    )
    batch = lay_out(sequences, np.array([0, 0, 1, 1]), BatchShape(rows=2, length=16))
    with torch.no_grad():
        answers = compute_answer_logprobs(model, batch)
        cells = batch.find_sequence_cells()
        for cell, row, start in zip(cells.tolist(), rows, first, strict=True):
            alone = lay_out(
                Sequences(tokens=row, offsets=np.array([0, len(row)])),
                np.array([0]),
                BatchShape(rows=1, length=len(row)),
            )
            logits = model(alone).log_softmax(-1)
            expected = sum(float(logits[place - 1, row[place]]) for place in range(start, len(row)))
            assert float(answers.sums[cell]) == pytest.approx(expected, abs=1e-4)
            assert int(answers.counts[cell]) == len(row) - start
    assert answers.counts.sum() == sum(lengths) - sum(first) and len(answers.sums) == batch.cells
