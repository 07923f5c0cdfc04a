"""Prompts of groups of sequences, taken out: written out again they are the same sequences."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, compute_offsets, share_prompts

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=6)
GROUP = st.tuples(TOKENS, st.lists(TOKENS, min_size=2, max_size=2))


@settings(max_examples=60, deadline=None)
@given(st.lists(GROUP, min_size=1, max_size=4))
def test_written_out_they_are_the_sequences(groups: list[tuple[list[int], list[list[int]]]]) -> None:
    """Tokens, targets, labels and positions; no target is in a prompt."""
    rows = [(prompt, answer) for prompt, answers in groups for answer in answers]
    targets = [[IGNORE_INDEX] * (len(prompt) - 1) + [*answer, 9] for prompt, answer in rows]
    whole = Sequences(
        tokens=np.concatenate([[*prompt, *answer] for prompt, answer in rows]),
        offsets=compute_offsets(np.array([len(row) for row in targets])),
        targets=np.concatenate(targets),
        labels=np.arange(len(rows)),
    )
    parts, owners = share_prompts(whole, 2)
    assert parts.parents is not None and parts.targets is not None and parts.labels is not None
    room = int(np.bincount(owners // 2, weights=parts.lengths).max())
    batch = lay_out(parts, owners // 2, BatchShape(rows=len(groups), length=room))
    spans = batch.list_spans()
    answers = [i for i in range(len(parts)) if parts.labels[i] != IGNORE_INDEX]
    assert parts.labels[answers].tolist() == [*range(len(rows))]
    assert len(parts.tokens) == sum(len(row) for row in targets) - sum(len(prompt) - 1 for prompt, _ in groups)
    for i, (prompt, answer), labels in zip(answers, rows, targets, strict=True):
        back = int(parts.parents[i])
        indices = [i - back, i] if back else [i]
        places = [place for index in indices for place in range(*spans[index])]
        assert batch.tokens[places].tolist() == [*prompt, *answer]
        assert batch.positions[places].tolist() == [*range(len(places))]
        assert np.concatenate([parts.targets[slice(*parts.offsets[j : j + 2])] for j in indices]).tolist() == labels
        if back:
            assert batch.parents is not None and batch.parents[batch.sequence[spans[i][0]]] == batch.sequence[places[0]]
