"""Our models against `transformers`: the same weights, the same numbers, in both directions."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library is not installed")

import pretune as pt
from pretune.core.errors import UsageError
from pretune.models.hf.checkpoint import describe_checkpoint
from tests.parity.cases import CASES, VOCAB, Case

EXACT = {"rtol": 0.0, "atol": 1e-5}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
LENGTHS = ((13, 11), (4, 17), (1, 1), (17, 2), (7, 7), (3, 5))  # target, source


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def reference(case: Case) -> Any:
    return case.build()


@pytest.fixture
def ours(reference: Any, tmp_path: Path) -> Any:
    reference.save_pretrained(tmp_path / "theirs")
    return pt.load(tmp_path / "theirs")


@cache
def texts() -> tuple[list[list[int]], list[list[int]]]:
    """Target and source sequences of unequal lengths, ids from 3 on (the specials are left out)."""
    rng = np.random.default_rng(5)
    return tuple([rng.integers(3, VOCAB, n[side]).tolist() for n in LENGTHS] for side in (0, 1))  # type: ignore[return-value]


def our_batch(model: Any, **more: Any) -> pt.Batch:
    target, source = texts()
    return (
        pt.batch(source=source, target=target, **more)
        if model.spec.is_encoder_decoder
        else pt.batch(target, row=20, **more)
    )


def padded(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, sequences))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in sequences])
    return tokens, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in sequences])


def run(reference: Any, both: bool, **more: Any) -> Any:
    """The reference on padded input, as a person would call it."""
    target, source = texts()
    tokens, mask = padded(target)
    if not both:
        return reference(tokens, attention_mask=mask, **more)
    read, read_mask = padded(source)
    # The decoder's padding comes after everything real and it is causal: no mask of its own is needed.
    return reference(read, attention_mask=read_mask, decoder_input_ids=tokens, **more)


def logits_of(out: Any) -> Tensor | None:
    return next((out[name] for name in ("prediction_logits", "logits") if name in out), None)


def our_logits(model: Any, out: pt.Output) -> Tensor | None:
    """Return the logits of a model's head: over the vocabulary, or per token."""
    return out.logits if model.detector is None else model.detector(out.states)


def assert_rows(found: list[Tensor], expected: Tensor, where: str) -> None:
    for i, part in enumerate(found):
        torch.testing.assert_close(part, expected[i, : part.shape[0]], **EXACT, msg=lambda m, i=i: f"{where}[{i}]: {m}")


@torch.no_grad()
def test_numbers(reference: Any, ours: Any) -> None:
    """Logits, every hidden state and all attention weights at the real positions."""
    both = ours.spec.is_encoder_decoder
    theirs = run(reference, both, output_hidden_states=True, output_attentions=True)
    batch = our_batch(ours)
    out = ours(batch, hidden=True, attention=True)
    if logits_of(theirs) is not None:
        assert_rows(batch.split(our_logits(ours, out)), logits_of(theirs), "logits")
    else:
        assert our_logits(ours, out) is None
    compare_states(out, theirs, batch, "decoder_" if both else "", ours)
    if both:
        compare_states(out.source, theirs, batch.source, "encoder_", ours)
        compare_attention(out.cross, theirs["cross_attentions"])


def compare_states(out: pt.Output, theirs: Any, batch: pt.Batch, side: str, ours: Any) -> None:
    states = theirs[f"{side}hidden_states"]
    assert len(out.hidden) == len(states)
    for layer, (mine, other) in enumerate(zip(out.hidden, states, strict=True)):
        if mine.shape[-1] != other.shape[-1]:  # the reference counts a narrower table's projection to the body
            assert ours.head.transform is not None and layer == len(states) - 1
            mine = ours.head.transform_states(mine)
        assert_rows(batch.split(mine), other, f"{side}hidden {layer}")
    torch.testing.assert_close(out.states, out.hidden[-1])
    compare_attention(out.attention, theirs[f"{side}attentions"])


def compare_attention(mine: Any, theirs: Any) -> None:
    assert len(mine) == len(theirs)
    for layer, other in zip(mine, theirs, strict=True):
        for i, weights in enumerate(layer):
            torch.testing.assert_close(weights, other[i, :, : weights.shape[1], : weights.shape[2]], **EXACT)


@torch.no_grad()
def test_fast_path(reference: Any, ours: Any) -> None:
    """The backend that is picked without attention weights gives the same logits."""
    theirs = run(reference, ours.spec.is_encoder_decoder)
    batch = our_batch(ours)
    out = ours(batch)
    expected = logits_of(theirs)
    if expected is None:
        assert_rows(batch.split(out.states), theirs[0], "states")
    else:
        assert_rows(batch.split(our_logits(ours, out)), expected, "logits")


@pytest.mark.parametrize("case", [case for case in CASES if "bare" not in case.name], ids=lambda case: case.name)
def test_gradients(case: Case, reference: Any, ours: Any) -> None:
    """Gradients of the mean loss over all real positions, for every parameter, through the name map."""
    target, _ = texts()
    labels = [[int(token * 7 % VOCAB) for token in row] for row in target]
    theirs = run(reference, ours.spec.is_encoder_decoder)
    expected = logits_of(theirs)
    assert expected is not None
    wanted, _ = padded(labels)
    real = padded(target)[1].bool()
    mean_loss(expected[real], wanted[real]).backward()
    batch = our_batch(ours, labels=labels)
    ours.train(False)
    said = our_logits(ours, ours(batch))
    assert said is not None
    mean_loss(said if ours.detector is None else said[batch.targets.index], batch.targets.labels).backward()
    _, rules, _, _ = describe_checkpoint(ours.spec)
    from pretune.models.hf.weights import plan_moves

    grads = dict(reference.named_parameters())
    mine = dict(ours.named_parameters())
    seen = 0
    for move in plan_moves([*mine, *dict(ours.named_buffers())], rules):
        if any(name not in mine or mine[name].grad is None for name in move.param_names):
            continue
        other = grads.get(move.tensor_name, grads.get(move.tensor_name.removeprefix("transformer.")))
        if other is None or other.grad is None:
            continue
        joined = move.packing.pack([mine[name].grad for name in move.param_names], ours.spec)
        torch.testing.assert_close(joined, other.grad, **CLOSE, msg=lambda m, n=move.tensor_name: f"{n}: {m}")
        seen += 1
    assert seen >= 0.9 * len([p for p in grads.values() if p.grad is not None])


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Over the vocabulary, or of one logit per token."""
    if logits.dim() == 1:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, (labels % 2).float())
    return torch.nn.functional.cross_entropy(logits, labels)


@torch.no_grad()
def test_back(case: Case, reference: Any, ours: Any, tmp_path: Path) -> None:
    """`transformers` loads our checkpoints without a warning and gives the same logits."""
    pt.save(ours, tmp_path / "ours")
    again, info = case.cls.from_pretrained(tmp_path / "ours", attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    expected, actual = run(reference, ours.spec.is_encoder_decoder), run(again.eval(), ours.spec.is_encoder_decoder)
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-6)
    third = pt.load(tmp_path / "ours")
    assert third.spec == ours.spec
    for (name, a), (_, b) in zip(ours.state_dict().items(), third.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@torch.no_grad()
@pytest.mark.parametrize("case", [case for case in CASES if case.name == "xlm"])
def test_languages(case: Case, reference: Any, ours: Any) -> None:
    """A language for every token, here two in each text; without languages nothing is added."""
    target, _ = texts()
    languages = [[(i + j // 3) % 5 for j in range(len(row))] for i, row in enumerate(target)]
    theirs = run(reference, False, langs=padded(languages)[0])
    batch = our_batch(ours, segments=languages)
    assert_rows(batch.split(ours(batch).logits), theirs.logits, "logits")
    theirs = run(reference, False, langs=torch.full_like(padded(target)[0], 3))
    with pytest.raises(UsageError, match="no language 5: this model has embeddings of 5 languages"):
        ours.set_language(5)
    ours.set_language(3)
    batch = our_batch(ours)
    assert_rows(batch.split(ours(batch).logits), theirs.logits, "one language")


@torch.no_grad()
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.endswith("-pretraining")], ids=lambda case: case.name
)
def test_pair_head(case: Case, reference: Any, ours: Any) -> None:
    theirs = run(reference, False)
    batch = our_batch(ours)
    actual = ours.pair(ours.pool(ours(batch).states, batch))
    cells = batch.sequence[[start for start, _ in batch.list_spans()]]
    torch.testing.assert_close(actual[cells], theirs[1], **EXACT)
