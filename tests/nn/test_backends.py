"""All attention backends compute one thing: what a loop over sequences computes in double precision."""

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.models.catalog import build, resolve
from pretune.nn import attention as attention_module
from pretune.nn import stack as stack_module
from pretune.nn.attention_backends import attend
from pretune.nn.attention_mask import (
    MAX_BIAS_LENGTH,
    MAX_TILE_HEAD_WIDTH,
    MIN_SPARSE_LENGTH,
    BackendRequirements,
    MaskKind,
    MaskSpec,
    build_context,
    choose_backend,
    find_unsupported,
)
from pretune.nn.positions import Alibi, RelativeBias
from tests.selection import keep_quick

HEADS, SCALE = 4, 0.3
MIXED = (6, 3, 8, 1, 5)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of sequences and the kind of attention over it."""

    lengths: tuple[int, ...] = MIXED
    source: tuple[int, ...] | None = None
    row: int | None = 11
    causal: bool = False
    window: int | None = None
    prefix: tuple[int, ...] | None = None
    view: tuple[MaskKind, ...] | None = None
    bias: str | None = None
    kv_heads: int = HEADS

    @property
    def backends(self) -> list[str]:
        """Those that can compute it."""
        able = ["rows", "eager", "flex"]
        whole = len({*self.lengths, self.row or max(self.lengths)}) == 1 and len({*(self.source or (1,))}) == 1
        bare = self.bias is None and self.prefix is None and self.view is None
        if whole and bare and self.window is None:
            able.append("sdpa")
        if bare:
            able.append("varlen")
        if self.prefix is None and self.view is None:
            able.append("tiles")
        return able

    def batch(self) -> pt.Batch:
        target = [[0] * n for n in self.lengths]
        if self.source is None:
            made = pt.batch(target, row=self.row, prefix=self.prefix)
            return made if self.view is None else replace(made, view=self._per_cell(made, self.view))
        return pt.batch(source=[[0] * n for n in self.source], target=target, row=self.row)

    @staticmethod
    def _per_cell(batch: pt.Batch, values: tuple[int, ...]) -> Tensor:
        """One number of each sequence at its cell; elsewhere one that must not matter."""
        out = torch.full((batch.cells,), 2)
        out[[int(batch.sequence[start]) for start, _ in batch.list_spans()]] = torch.tensor(values)
        return out


BOTH, LEFT, RIGHT, PREFIX = MaskKind
CASES = {
    "full": Case(),
    "full-whole": Case(lengths=(7, 7, 7), row=7),
    "causal": Case(causal=True),
    "causal-whole": Case(lengths=(7, 7), row=7, causal=True),
    "causal-window": Case(causal=True, window=3),
    "causal-window-whole": Case(lengths=(7, 7), row=7, causal=True, window=3),
    "causal-window-wide": Case(causal=True, window=50),
    "window-of-one": Case(causal=True, window=1),
    "window-both-ways": Case(window=3),
    "prefix": Case(causal=True, prefix=(3, 0, 8, 1, 2)),
    "prefix-whole": Case(lengths=(7, 7, 7), row=7, causal=True, prefix=(3, 0, 7)),
    "prefix-window": Case(causal=True, window=3, prefix=(4, 0, 8, 1, 2)),
    "view-both": Case(view=(BOTH,) * 5),
    "view-left": Case(view=(LEFT,) * 5),
    "view-right": Case(view=(RIGHT,) * 5),
    "view-prefix": Case(view=(PREFIX,) * 5, prefix=(3, 0, 8, 1, 2)),
    "view-prefix-of-nothing": Case(view=(PREFIX,) * 5),
    "view-mixed": Case(view=(PREFIX, RIGHT, PREFIX, LEFT, BOTH), prefix=(3, 1, 5, 1, 2)),
    "view-whole": Case(lengths=(7, 7, 7, 7), row=7, view=(BOTH, LEFT, RIGHT, PREFIX), prefix=(0, 2, 3, 4)),
    "view-window": Case(window=3, view=(PREFIX, RIGHT, PREFIX, LEFT, BOTH), prefix=(3, 1, 5, 1, 2)),
    "view-relative": Case(bias="relative", view=(PREFIX, RIGHT, LEFT, LEFT, BOTH), prefix=(3, 1, 5, 1, 2)),
    "view-causal": Case(causal=True, view=(PREFIX, RIGHT, PREFIX, LEFT, BOTH), prefix=(3, 1, 5, 1, 2)),
    "alibi": Case(causal=True, bias="alibi"),
    "alibi-both-ways": Case(bias="alibi"),
    "alibi-whole": Case(lengths=(7, 7), row=7, bias="alibi"),
    "relative": Case(bias="relative"),
    "relative-causal-window": Case(causal=True, window=4, bias="relative"),
    "relative-prefix": Case(causal=True, bias="relative", prefix=(3, 0, 8, 1, 2)),
    "grouped": Case(kv_heads=2),
    "one-key-head": Case(kv_heads=1, causal=True),
    "grouped-alibi": Case(kv_heads=2, causal=True, bias="alibi"),
    "grouped-whole": Case(lengths=(7, 7), row=7, causal=True, kv_heads=2),
    "no-filler": Case(lengths=(3, 4, 2, 5, 7), row=7),
    "one-row": Case(lengths=(2, 9, 4), row=20, causal=True),
    "cross": Case(source=(4, 7, 2, 9, 3)),
    "cross-whole": Case(lengths=(5, 5), row=5, source=(8, 8)),
    "cross-grouped": Case(source=(4, 7, 2, 9, 3), kv_heads=2),
    "cross-filler-on-one-side": Case(lengths=(4, 2), row=6, source=(3, 3)),
}


class Inputs:
    """Random queries, keys and values, the batch, and the bias module, on a device."""

    def __init__(self, case: Case, device: str = "cpu", dtype: torch.dtype = torch.float32, head: int = 8) -> None:
        torch.manual_seed(11)
        self.case, self.queries = case, case.batch().to(device)
        self.keys = self.queries if self.queries.source is None else self.queries.source
        self.leaves = [
            torch.randn(len(side.tokens), heads, head).to(device, dtype).requires_grad_()
            for side, heads in ((self.queries, HEADS), (self.keys, case.kv_heads), (self.keys, case.kv_heads))
        ]
        self.bias: nn.Module | None = None
        if case.bias:
            spec = Alibi() if case.bias == "alibi" else RelativeBias(buckets=8, max_distance=12)
            self.bias = spec.build(width=1, heads=HEADS, head_width=head).to(device)
        if case.bias == "relative":
            assert self.bias is not None
            self.leaves.append(next(self.bias.parameters()))
        self.real = self.queries.sequence >= 0
        self.weights = torch.randn(len(self.queries.tokens), HEADS, head).to(device)  # of the outputs in the loss

    def run(self, backend: Any) -> Tensor:
        view = MaskSpec(causal=self.case.causal, window=self.case.window, bias=self.bias)
        q, k, v = self.leaves[:3]
        if not torch.is_grad_enabled():  # on a CPU one backend refuses what could ask for a gradient
            q, k, v = q.detach(), k.detach(), v.detach()
        made = build_context(self.queries, self.keys, view, backend, q.dtype)
        return attend(q, k, v, made, scale=SCALE, dropout=0.0)[0]

    def truth(self) -> Tensor:
        """Sequence by sequence and head by head, every pair looked at in turn, in double precision."""
        q, k, v = (leaf.double() for leaf in self.leaves[:3])
        group, case = HEADS // self.case.kv_heads, self.case
        out = torch.zeros_like(q)
        for s, ((start, end), (first, last)) in enumerate(
            zip(self.queries.list_spans(), self.keys.list_spans(), strict=True)
        ):
            n, m = end - start, last - first
            seen = torch.tensor([[self.may(i, j, s) for j in range(m)] for i in range(n)], device=q.device)
            distance = torch.tensor([[j - i for j in range(m)] for i in range(n)], device=q.device)
            for h in range(HEADS):
                scores = q[start:end, h] @ k[first:last, h // group].T * SCALE
                if case.bias == "alibi":
                    scores = scores - 2.0 ** (-8 * (h + 1) / HEADS) * distance.abs()
                elif case.bias == "relative":
                    scores = scores + self.leaves[3].double()[self.bias.compute_bucket(distance), h]
                scores = scores.masked_fill(~seen, float("-inf"))
                out[start:end, h] = scores.softmax(-1) @ v[first:last, h // group]
        return out

    def may(self, i: int, j: int, s: int) -> bool:
        past = not self.case.causal or j <= i or (self.case.prefix is not None and j < self.case.prefix[s])
        if self.case.view is not None:
            ahead = self.case.prefix is not None and j < self.case.prefix[s]
            past = past and {BOTH: True, LEFT: j <= i, RIGHT: j >= i, PREFIX: j <= i or ahead}[self.case.view[s]]
        return past and (self.case.window is None or abs(i - j) < self.case.window)

    def gradients(self, out: Tensor, *, filler: bool = False) -> list[Tensor]:
        """Of all leaves, for a loss over the real tokens, or over filler too."""
        weights = self.weights if filler else self.weights * self.real[:, None, None]
        return list(torch.autograd.grad((out.double() * weights).sum(), self.leaves))


def on(*backends: str) -> list[tuple[str, str]]:
    return [(name, backend) for name, case in CASES.items() for backend in backends if backend in case.backends]


SLOW = ("full-whole", "causal-whole", "causal-window-wide", "window-of-one", "prefix-window", "alibi-both-ways")
SLOW += ("one-key-head", "grouped-whole", "no-filler", "one-row", "cross-whole", "causal-window-whole", "alibi-whole")
SLOW += ("view-both", "view-left", "view-right", "view-prefix-of-nothing", "view-window", "view-causal")
"""Cases that flex skips, because it is slow on a CPU."""


@pytest.mark.parametrize(
    ("name", "backend"),
    on("rows", "eager", "sdpa") + keep_quick([pair for pair in on("flex") if pair[0] not in SLOW], ("causal", "flex")),
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_forward(name: str, backend: str) -> None:
    inputs = Inputs(CASES[name])
    with torch.no_grad():
        actual, expected = inputs.run(backend), inputs.truth()
    assert torch.isfinite(actual).all(), "filler too"
    torch.testing.assert_close(actual.double()[inputs.real], expected[inputs.real], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "backend"), on("rows", "eager", "sdpa"))
def test_gradient(name: str, backend: str) -> None:
    inputs = Inputs(CASES[name])
    expected = inputs.gradients(inputs.truth())
    actual = inputs.gradients(inputs.run(backend))
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    filler = inputs.keys.sequence < 0
    assert all((grad[filler] == 0).all() for grad in actual[1:3]), "nothing is learned from filler"
    assert all(torch.isfinite(grad).all() for grad in inputs.gradients(inputs.run(backend), filler=True))


def test_cases_hold_what_they_should() -> None:
    """Filler on one side only, several sequences in a row, rows of unequal lengths on the two sides."""
    batch = CASES["cross-filler-on-one-side"].batch()
    assert batch.source is not None and batch.rows == 2
    assert not (batch.source.sequence < 0).any() and (batch.sequence < 0).any()
    packed = CASES["cross"].batch()
    assert packed.source is not None and packed.source.length != packed.length
    assert packed.rows < len(MIXED) and {"sdpa", "varlen"} < set(CASES["causal-whole"].backends)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["rows", "eager", "flex"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_sequences_that_continue_another(backend: Any) -> None:
    """They attend to it and to themselves: as if each were written out."""
    shared = pt.batch([[0] * size for size in (4, 3, 2, 1, 5, 2)], row=10)  # the second and third continue the first
    parents = torch.arange(shared.cells)
    parents[1] = parents[2] = 0
    copies = torch.tensor([*range(7), *range(4), *range(7, 9)])
    whole = pt.batch([[0] * size for size in (7, 6)], row=7)
    states = torch.randn(3, len(shared.tokens), HEADS, 8, generator=torch.Generator().manual_seed(1))

    def run(batch: pt.Batch, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context = build_context(batch, batch, MaskSpec(causal=True), backend, q.dtype)
        return attend(q, k, v, context, scale=SCALE, dropout=0.0)[0]

    expected = run(whole, *torch.nn.functional.pad(states[:, copies], (0, 0, 0, 0, 0, 1)))[:13]
    actual = run(replace(shared, parents=parents), *states)
    torch.testing.assert_close(actual[copies], expected)
    torch.testing.assert_close(actual[10:], run(shared, *states)[10:])  # the other row


def test_weights_are_told() -> None:
    inputs = Inputs(CASES["grouped-alibi"])
    view = MaskSpec(causal=True, bias=inputs.bias)
    q, k, v = inputs.leaves[:3]
    made = build_context(inputs.queries, inputs.keys, view, "eager", q.dtype)
    out, weights = attend(q, k, v, made, scale=SCALE, dropout=0.0)
    assert weights is not None
    rows, length = inputs.queries.rows, inputs.queries.length
    assert weights.shape == (rows, HEADS, length, length)
    values = v.repeat_interleave(2, dim=1).view(rows, length, HEADS, -1).transpose(1, 2)
    torch.testing.assert_close((weights @ values).transpose(1, 2).flatten(0, 1), out, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["rows", "sdpa", "eager"])
def test_dropout_drops_and_keeps_the_mean(backend: Any) -> None:
    inputs = Inputs(CASES["full-whole"])
    q, k, v = (leaf.detach() for leaf in inputs.leaves[:3])
    made = build_context(inputs.queries, inputs.keys, MaskSpec(causal=False), backend, q.dtype)
    torch.manual_seed(0)
    draws = torch.stack([attend(q, k, v, made, scale=SCALE, dropout=0.25)[0] for _ in range(800)])
    expected = attend(q, k, v, made, scale=SCALE, dropout=0.0)[0]
    assert draws.std(0).max() > 0.1
    assert ((draws.mean(0) - expected).abs() < 6 * draws.std(0) / 800**0.5 + 1e-6).all()


# Which backend


CPU: dict[str, Any] = {
    "device": "cpu",
    "half": False,
    "one_per_row": False,
    "length": MIN_SPARSE_LENGTH,
    "bias": False,
    "prefix": False,
    "view": False,
    "window": None,
    "dropout": 0.0,
    "weights": False,
    "prefix_length": 0,
    "head": 64,
}
GPU = {**CPU, "device": "cuda", "half": True}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (CPU, "rows"),
        ({**CPU, "one_per_row": True}, "sdpa"),
        ({**CPU, "one_per_row": True, "dropout": 0.1}, "sdpa"),
        ({**CPU, "one_per_row": True, "window": MIN_SPARSE_LENGTH}, "sdpa"),
        ({**CPU, "one_per_row": True, "window": MIN_SPARSE_LENGTH - 1}, "rows"),
        ({**CPU, "one_per_row": True, "bias": True}, "rows"),
        ({**CPU, "one_per_row": True, "prefix": True}, "rows"),
        ({**CPU, "one_per_row": True, "view": True}, "rows"),
        ({**CPU, "one_per_row": True, "weights": True}, "eager"),
        ({**CPU, "prefix_length": 3}, "rows"),
        ({**CPU, "prefix_length": 3, "one_per_row": True, "window": MIN_SPARSE_LENGTH + 3}, "sdpa"),
        ({**CPU, "prefix_length": 3, "one_per_row": True, "window": MIN_SPARSE_LENGTH + 2}, "rows"),
        ({**GPU, "prefix_length": 3}, "flex"),
        ({**GPU, "prefix_length": 3, "dropout": 0.1}, "rows"),
        ({**GPU, "prefix_length": 3, "one_per_row": True}, "sdpa"),
        (GPU, "varlen"),
        ({**GPU, "length": MIN_SPARSE_LENGTH - 1}, "tiles"),
        ({**GPU, "half": False}, "rows"),
        ({**GPU, "dropout": 0.1}, "tiles"),
        ({**GPU, "dropout": 0.1, "head": 256}, "rows"),
        ({**GPU, "window": 128}, "varlen"),
        ({**GPU, "one_per_row": True}, "sdpa"),
        ({**GPU, "one_per_row": True, "window": 128}, "varlen"),
        ({**GPU, "bias": True}, "tiles"),
        ({**GPU, "bias": True, "one_per_row": True}, "tiles"),
        ({**GPU, "bias": True, "length": MAX_BIAS_LENGTH + 1}, "flex"),
        ({**GPU, "prefix": True}, "flex"),
        ({**GPU, "view": True}, "flex"),
        ({**GPU, "view": True, "dropout": 0.1}, "rows"),
        ({**GPU, "bias": True, "half": False}, "flex"),
        ({**GPU, "bias": True, "dropout": 0.1}, "tiles"),
        ({**GPU, "prefix": True, "dropout": 0.1}, "rows"),
        ({**GPU, "bias": True, "length": MIN_SPARSE_LENGTH - 1}, "tiles"),
        ({**CPU, "distances": True, "one_per_row": True}, "rows"),
        ({**GPU, "distances": True, "one_per_row": True, "dropout": 0.1}, "rows"),
        ({**GPU, "distances": True, "weights": True}, "eager"),
        ({**GPU, "weights": True}, "eager"),
        ({**GPU, "weights": True, "bias": True, "dropout": 0.1}, "eager"),
    ],
)
def test_pick(given: dict[str, Any], expected: str) -> None:
    assert choose_backend(BackendRequirements(**given)) == expected


@pytest.mark.parametrize("backend", ["sdpa", "varlen", "flex"])
def test_scores_of_distances_are_refused(backend: Any) -> None:
    """Where a kernel has no place for them."""
    needs = BackendRequirements(**{**GPU, "distances": True, "one_per_row": True})
    assert find_unsupported(backend, needs) == "scores of distances"
    assert find_unsupported("tiles", needs) is None


def test_pick_never_asks_for_what_a_backend_cannot_do() -> None:
    """Over all combinations: dropout, weights, bias, prefix, view, window and precision."""
    flags, lengths, windows = (False, True), (1, MIN_SPARSE_LENGTH - 1, MIN_SPARSE_LENGTH, 4096), (None, 8, 4096)
    for values in itertools.product(
        ("cpu", "cuda"), flags, flags, lengths, flags, flags, flags, windows, (0.0, 0.1), flags, (0, 3), (64, 256)
    ):
        device, half, whole, length, bias, prefix, view, window, dropout, weights, ahead, head = values
        needs = BackendRequirements(**dict(zip(CPU, values, strict=True)))
        chosen = choose_backend(needs)
        assert find_unsupported(chosen, needs) is None
        assert (chosen == "eager") == weights
        if chosen in ("varlen", "flex"):
            assert dropout == 0 and device == "cuda"
        if chosen == "tiles":
            assert half and device == "cuda" and head <= MAX_TILE_HEAD_WIDTH and not prefix and not view and not ahead
        if chosen == "varlen":
            assert half and not bias and not prefix and not view and not ahead
        if chosen == "sdpa":
            assert whole and not bias and not prefix and not view and (window is None or window >= length)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends that are used from now on, in order."""
    used: list[str] = []

    def watch(q: Tensor, k: Tensor, v: Tensor, scope: Any, **more: Any) -> Any:
        used.append(scope.backend)
        return attend(q, k, v, scope, **more)

    monkeypatch.setattr(attention_module, "attend", watch)
    return used


SMALL = {"width": 24, "depth": 2, "heads": 4, "vocab": 30}


@pytest.mark.parametrize("family", keep_quick(["bert", "llama", "t5", "mpt"], "mpt"))
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_a_forced_backend_is_used(family: str, seen: list[str]) -> None:
    """In every layer, of both halves and across, with the same result; asking for weights goes before it."""
    model = build(family, **SMALL).eval()
    tokens = [[1, 2, 3, 4], [5, 6], [7, 8, 9]]
    batch = pt.batch(source=tokens, target=tokens) if model.spec.is_encoder_decoder else pt.batch(tokens, row=7)
    expected = model(batch).logits
    assert set(seen) == {"rows"}
    layers = 6 if model.spec.is_encoder_decoder else 2
    for backend in ("eager", "flex", "rows"):
        seen.clear()
        model.attention_backend = backend
        torch.testing.assert_close(model(batch).logits, expected, rtol=0, atol=1e-5)
        assert seen == [backend] * layers
    seen.clear()
    model(batch, attention=True)
    assert seen == ["eager"] * layers


@pytest.mark.parametrize(
    ("backend", "family"),
    [("sdpa", "t5"), ("sdpa", "mpt"), ("sdpa", "mistral"), ("varlen", "t5"), ("varlen", "mpt")],
)
def test_a_forced_backend_never_computes_something_else(backend: Any, family: str) -> None:
    """One that cannot do what is asked is refused in one line, not left to give other numbers."""
    model = build(family, **SMALL, **({"kv_heads": 2, "window": 2} if family == "mistral" else {})).eval()
    model.attention_backend = backend
    tokens = [[1, 2, 3, 4], [5, 6, 7, 8]]
    with pytest.raises(UsageError, match=backend):
        model(pt.batch(source=tokens, target=tokens) if model.spec.is_encoder_decoder else pt.batch(tokens))


PACKED = pt.batch([[1, 2, 3, 4], [5, 6]], row=6)
VIEWED = replace(pt.batch([[1, 2, 3, 4]]), view=torch.tensor([MaskKind.CAUSAL, 0]))


@pytest.mark.parametrize(
    ("backend", "family", "batch", "message"),
    [
        ("sdpa", "gpt2", PACKED, "sdpa"),
        ("sdpa", "gpt2", pt.batch([[1, 2, 3, 4]], prefix=[2]), "sdpa"),
        ("sdpa", "bert", VIEWED, "mask per sequence"),
        ("varlen", "bert", VIEWED, "mask per sequence"),
        ("flex", "gpt2", PACKED, "dropout"),
        ("varlen", "gpt2", PACKED, "dropout"),
    ],
)
def test_a_forced_backend_never_forgets_a_mask_or_dropout(
    backend: Any, family: str, batch: pt.Batch, message: str
) -> None:
    model = build(family, **SMALL, dropout=0.1).train(message == "dropout")
    model.attention_backend = backend
    with pytest.raises(UsageError, match=message):
        model(batch)


def test_pick_is_told_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts of the batch and the spec; of several blocks with one window, the highest dropout."""
    asked: list[dict[str, Any]] = []

    def watch(needs: BackendRequirements) -> Any:
        asked.append(asdict(needs))
        return choose_backend(needs)

    monkeypatch.setattr(stack_module, "choose_backend", watch)
    spec = resolve("gpt2", {**SMALL, "dropout": 0.0})
    block = spec.decoder.blocks[0]
    dropping = replace(block, attention=replace(block.attention, dropout=0.1))
    near = replace(block, attention=replace(block.attention, window=4))
    model = build(replace(spec, decoder=replace(spec.decoder, depth=3, blocks=(block, dropping, near))))
    model.train()(pt.batch([[1, 2, 3], [4, 5]], row=5, prefix=[1, 0]))
    actual = {given["window"]: given for given in asked}
    assert set(actual) == {None, 4}
    assert actual[None]["dropout"] == 0.1, "or a backend is picked that cannot drop"
    assert (
        actual[4]["dropout"] == 0.0 and actual[4]["prefix"] and not actual[4]["one_per_row"] and not actual[4]["half"]
    )
    asked.clear()
    model.eval()(pt.batch([[1, 2, 3], [4, 5, 6]]))
    assert all(given["dropout"] == 0.0 and given["one_per_row"] and not given["prefix"] for given in asked)
    asked.clear()
    with torch.autocast("cpu", torch.bfloat16):
        model(pt.batch([[1, 2, 3]]))
    assert all(given["half"] for given in asked)


def test_pick_is_told_of_biases_and_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        stack_module, "choose_backend", lambda needs: asked.append(asdict(needs)) or choose_backend(needs)
    )
    model = build(config.replace(resolve("t5", SMALL), {"decoder.blocks.0.cross.dropout": 0.3})).train()
    model(pt.batch(source=[[1] * 9, [2] * 9], target=[[1, 2], [3, 4]]))
    encoder, decoder, across = asked
    assert encoder["bias"] and decoder["bias"] and not across["bias"]
    assert encoder["length"] == across["length"] == 9 and decoder["length"] == 2
    assert across["one_per_row"] and across["dropout"] == 0.3 and decoder["dropout"] == 0.1


# On a GPU: longer rows, so that kernels see several blocks

LONG = (100, 37, 128, 1, 60)
LONGER = {
    "full": Case(lengths=LONG, row=200),
    "full-whole": Case(lengths=(160, 160), row=160),
    "causal": Case(lengths=LONG, row=200, causal=True),
    "causal-whole": Case(lengths=(160, 160), row=160, causal=True),
    "causal-window": Case(lengths=LONG, row=200, causal=True, window=33),
    "window-both-ways": Case(lengths=LONG, row=200, window=33),
    "prefix": Case(lengths=LONG, row=200, causal=True, prefix=(70, 0, 128, 1, 2)),
    "view": Case(lengths=LONG, row=200, view=(PREFIX, RIGHT, LEFT, BOTH, BOTH), prefix=(70, 0, 0, 1, 2)),
    "alibi": Case(lengths=LONG, row=200, causal=True, bias="alibi"),
    "relative": Case(lengths=LONG, row=200, bias="relative"),
    "grouped": Case(lengths=LONG, row=200, causal=True, kv_heads=2),
    "cross": Case(lengths=LONG, row=200, source=(40, 90, 17, 130, 3)),
    "cross-filler-on-one-side": Case(lengths=(40, 20), row=60, source=(30, 30)),
}
PRECISION = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (2e-2, 6e-2)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", list(PRECISION), ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "backend"), [(name, b) for name, case in LONGER.items() for b in case.backends])
def test_on_a_gpu(name: str, backend: str, dtype: torch.dtype) -> None:
    if backend in ("varlen", "tiles") and dtype == torch.float32:
        pytest.skip(f"{backend} needs half precision")
    torch.compiler.reset()  # each case is compiled afresh: there is a limit to how often one function is
    inputs = Inputs(LONGER[name], "cuda", dtype, head=64)
    forward, backward = PRECISION[dtype]
    out, truth = inputs.run(backend), inputs.truth()
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.double()[inputs.real], truth[inputs.real], rtol=forward, atol=forward)
    actual, expected = inputs.gradients(out), inputs.gradients(truth)
    for mine, other in zip(actual, expected, strict=True):
        scale = float(other.abs().max().clamp(min=1.0))
        torch.testing.assert_close(mine, other, rtol=backward, atol=backward * scale)
    filler = inputs.keys.sequence < 0
    assert all((grad[filler] == 0).all() for grad in actual[1:3])
    assert all(torch.isfinite(grad).all() for grad in inputs.gradients(inputs.run(backend), filler=True))
