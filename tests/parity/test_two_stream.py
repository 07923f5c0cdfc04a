"""Both streams against `transformers`: a factorisation order as its permutation mask, targets as its target mapping."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

import pretune as pt
from pretune.core.errors import CheckpointError
from pretune.models.hf.checkpoint import describe_checkpoint
from pretune.models.hf.weights import plan_moves
from tests.parity.cases import VOCAB, XLNET, case

EXACT = {"rtol": 0.0, "atol": 1e-5}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
ORDERS = [
    [5, 0, 3, 1, 0, 0, 2, 0, 4, 0, 0],
    [1, 0, 0, 2, 0],
    [0, 1],
    [0, 5, 4, 3, 2, 1, 0, 0],
    [2, 3, 0, 1],
]
"""0 for context; every sequence has some, for the reference lets a query that may see nothing see everything."""


@pytest.fixture
def reference() -> Any:
    return case("xlnet", tf.XLNetLMHeadModel, tf.XLNetConfig, XLNET).build()


@pytest.fixture
def ours(reference: Any, tmp_path: Path) -> Any:
    reference.save_pretrained(tmp_path)
    return pt.load(tmp_path)


def texts() -> tuple[list[list[int]], list[list[int]]]:
    """Tokens, and their segments: two, the second from a place of its own on."""
    rng = np.random.default_rng(3)
    tokens = [rng.integers(3, VOCAB, len(order)).tolist() for order in ORDERS]
    return tokens, [[int(i > len(order) // 2) for i in range(len(order))] for order in ORDERS]


def our_batch(*, segmented: bool, row: int = 16, slots: int = 0) -> pt.Batch:
    tokens, segments = texts()
    labels = [
        [token if rank else -100 for token, rank in zip(*pair, strict=True)]
        for pair in zip(tokens, ORDERS, strict=True)
    ]
    batch = pt.batch(tokens, row=row, labels=labels, segments=segments if segmented else None)
    order = torch.zeros_like(batch.tokens)
    for (start, end), ranks in zip(batch.list_spans(), ORDERS, strict=True):
        order[start:end] = torch.tensor(ranks)
    spare = [torch.cat((part, part.new_full((slots,), fill))) for part, fill in
             ((batch.targets.index, 0), (batch.targets.labels, -100))]  # fmt: skip
    return replace(batch, order=order, targets=replace(batch.targets, index=spare[0], labels=spare[1]))


def masks() -> tuple[dict[str, Tensor], list[list[int]]]:
    """The reference's inputs, padded, and where the targets of each text are."""
    tokens, segments = texts()
    count, longest = len(tokens), max(map(len, tokens))
    at = [[i for i, rank in enumerate(order) if rank] for order in ORDERS]
    given = {
        "input_ids": torch.zeros(count, longest, dtype=torch.long),
        "attention_mask": torch.zeros(count, longest),
        "token_type_ids": torch.zeros(count, longest, dtype=torch.long),
        "perm_mask": torch.zeros(count, longest, longest),
        "target_mapping": torch.zeros(count, max(map(len, at)), longest),
    }
    for s, order in enumerate(ORDERS):
        n, rank = len(order), torch.tensor(order)
        given["input_ids"][s, :n] = torch.tensor(tokens[s])
        given["attention_mask"][s, :n] = 1
        given["token_type_ids"][s, :n] = torch.tensor(segments[s])
        given["perm_mask"][s, :n, :n] = ((rank[None] > 0) & (rank[None] >= rank[:, None])).float()
        for m, place in enumerate(at[s]):
            given["target_mapping"][s, m, place] = 1
    return given, at


def run(reference: Any, *, segmented: bool) -> tuple[Any, list[list[int]]]:
    given, at = masks()
    if not segmented:
        del given["token_type_ids"]
    return reference(**given, output_hidden_states=True, output_attentions=True), at


@torch.no_grad()
@pytest.mark.parametrize("segmented", [False, True])
def test_numbers(reference: Any, ours: Any, segmented: bool) -> None:
    """Logits at the targets; hidden states and weights of queries there, of the content elsewhere."""
    theirs, at = run(reference, segmented=segmented)
    batch = our_batch(segmented=segmented)
    out = ours(batch, hidden=True, attention=True)
    expected = torch.cat([theirs.logits[s, : len(places)] for s, places in enumerate(at)])
    torch.testing.assert_close(out.logits, expected, **EXACT)
    torch.testing.assert_close(ours(batch).logits, expected, **EXACT)  # without weights
    for layer, mine in enumerate(out.hidden):
        content, query = theirs.hidden_states[2 * layer : 2 * layer + 2]
        for s, found in enumerate(batch.split(mine)):
            merged = content[s, : len(found)].clone()
            merged[at[s]] = query[s, : len(at[s])]
            torch.testing.assert_close(found, merged, **EXACT)
    for mine, (content, query) in zip(out.attention, theirs.attentions, strict=True):
        for s, found in enumerate(mine):
            n = found.shape[-1]
            merged = content[s, :, :n, :n].clone()
            merged[:, at[s]] = query[s][:, at[s], :n]
            torch.testing.assert_close(found, merged, **EXACT)


@pytest.mark.parametrize("slots", [0, 4])
def test_gradients(reference: Any, ours: Any, slots: int) -> None:
    """For every parameter; spare target slots, which all point at the first token, add nothing."""
    theirs, at = run(reference, segmented=True)
    tokens, _ = texts()
    expected = torch.cat([theirs.logits[s, : len(places)] for s, places in enumerate(at)])
    wanted = torch.tensor([tokens[s][place] for s, places in enumerate(at) for place in places])
    torch.nn.functional.cross_entropy(expected, wanted, reduction="sum").backward()
    batch = our_batch(segmented=True, slots=slots)
    loss = ours.loss(ours.states(batch), batch)
    assert loss.count == len(wanted)
    loss.sum.backward()
    grads, mine = dict(reference.named_parameters()), dict(ours.named_parameters())
    moves = plan_moves(mine, describe_checkpoint(ours.spec)[1])
    assert len(moves) == len(mine) == len(grads)
    for move in moves:
        joined = move.packing.pack([mine[name].grad for name in move.param_names], ours.spec)
        torch.testing.assert_close(
            joined, grads[move.tensor_name].grad, **CLOSE, msg=lambda m, n=move.tensor_name: f"{n}: {m}"
        )


SEGMENTS = ([[0, 2, 0, 1, 3], [1, 0, 0, 2, 0]], [[0, 0, 1, 0, 2], [0, 3, 2, 1, 0]], [[2, 0, 1, 0, 0], [0, 1, 2, 3, 4]])
"""Orders of three segments of two texts."""


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 7, 100])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("segmented", [False, True])
def test_segment_memory(reference: Any, ours: Any, length: int, ordered: bool, segmented: bool) -> None:
    """Three segments in turn, each with the memory of those before, shorter and longer than a segment."""
    rng = np.random.default_rng(5)
    reference.transformer.mem_len = length
    memory, mems = ours.new_memory(length), None
    for orders in SEGMENTS:
        tokens = rng.integers(3, VOCAB, (2, 5))
        halves = np.array([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]])
        rank = torch.tensor(orders)
        given: dict[str, Tensor] = {"input_ids": torch.from_numpy(tokens)}
        if segmented:
            given["token_type_ids"] = torch.from_numpy(halves)
        if ordered:
            given["perm_mask"] = ((rank[:, None] > 0) & (rank[:, None] >= rank[:, :, None])).float()
            given["target_mapping"] = torch.eye(5).expand(2, 5, 5)
        theirs = reference(**given, mems=mems, use_mems=True, output_hidden_states=True)
        mems = theirs.mems
        labels = [[int(t) if ordered and r else -100 for t, r in zip(*pair, strict=True)]
                  for pair in zip(tokens, orders, strict=True)]  # fmt: skip
        batch = pt.batch(
            tokens.tolist(), labels=labels if ordered else None, segments=halves.tolist() if segmented else None
        )
        if ordered:
            batch = replace(batch, order=rank.flatten())
        out = ours(batch, memory=memory)
        wanted = theirs.logits.flatten(0, 1)
        torch.testing.assert_close(out.logits, wanted[batch.targets.index] if ordered else wanted, **EXACT)
        assert memory.tokens == min(length, mems[0].shape[0])
        for mine, other in zip(memory.layers, mems, strict=True):
            torch.testing.assert_close(mine, other.transpose(0, 1), **EXACT)
    assert len(memory.layers) == len(mems)


@pytest.mark.parametrize(
    ("key", "value"),
    [("attn_type", "uni"), ("bi_data", True), ("clamp_len", 8), ("same_length", True), ("d_head", 12)],
)
def test_what_is_refused(reference: Any, tmp_path: Path, key: str, value: Any) -> None:
    """Keys that would change the output are refused by name."""
    reference.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(CheckpointError, match=f"'{key}'"):
        pt.load(tmp_path)
