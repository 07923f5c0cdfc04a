"""Optimisers: equal to their formulas and their peers, skipped without a trace, saved and restored exactly."""

import functools
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pretune.core.config import from_dict, replace, spec, to_dict
from pretune.core.errors import CheckpointError, UsageError
from pretune.training.config import InverseSquareRoot, Optim
from pretune.training.optim import (
    CHUNK_SIZE,
    AdamW,
    ParameterGroup,
    build_parameter_groups,
    clip_gradients,
    get_state_tensors,
    load_state,
    set_rates,
    step_if,
)
from pretune.training.optim.adafactor import Adafactor
from pretune.training.optim.lamb import Lamb
from pretune.training.optim.muon import Muon, orthogonalize
from pretune.training.optim.sgd import ASGD, SGD, Adagrad, AveragedDescent
from tests.selection import keep_quick

SPECS: dict[str, Optim] = {
    "adamw": AdamW(lr=1e-2),
    "adamw-uncorrected": AdamW(lr=1e-2, bias_correction=False),
    "adafactor": Adafactor(weight_decay=0.1),
    "adafactor-unscaled": Adafactor(lr=1e-3, scale_parameter=False),
    "adafactor-unfactored": Adafactor(factor_moments=False),
    "lamb": Lamb(lr=1e-2),
    "lamb-uncorrected": Lamb(lr=1e-2, bias_correction=False),
    "muon": Muon(lr=1e-2),
    "muon-shape": Muon(lr=2e-2, scale="shape", nesterov=False, weight_decay=0.0),
    "sgd": SGD(lr=0.1, weight_decay=0.1),
    "sgd-momentum": SGD(lr=0.1, momentum=0.9),
    "asgd": ASGD(lr=0.1, weight_decay=0.1),
    "adagrad": Adagrad(lr=0.1, weight_decay=0.1),
}
YES, NO = torch.tensor(True), torch.tensor(False)


class Toy(nn.Module):
    """Everything that an optimiser tells apart: a table, blocks with matrices of one shape, norms, biases, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 9)) for _ in "ab"])
        self.head = nn.Linear(9, 3)
        self.gain = nn.Parameter(torch.ones(()))


def toy(seed: int = 0) -> Toy:
    torch.manual_seed(seed)
    model = Toy()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def slopes(model: nn.Module, seed: int) -> None:
    """Fresh gradients; a few are -0, where a sum and a choice differ."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        if parameter.numel() > 2:
            parameter.grad.flatten()[:2] = -0.0


def bits(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: tensor.detach().reshape(-1).view(torch.int32).tolist() for name, tensor in tensors.items()}


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[int]]:
    return bits({**model.state_dict(), **get_state_tensors(optimizer, model)})


def begun(name: str, model: nn.Module) -> torch.optim.Optimizer:
    optimizer = SPECS[name].build(build_parameter_groups(model))
    if isinstance(optimizer, AveragedDescent):
        optimizer.trigger()
    return optimizer


@pytest.fixture(params=SPECS, ids=str)
def made(request: pytest.FixtureRequest) -> "Made":
    def make() -> tuple[Toy, torch.optim.Optimizer]:
        model = toy()
        return model, begun(request.param, model)

    return make


Made = Callable[[], tuple[Toy, torch.optim.Optimizer]]


@pytest.mark.parametrize("poison", keep_quick([math.nan, math.inf, 1.0], math.inf))
@pytest.mark.parametrize("ok", [NO, torch.tensor(0.0)], ids=["bool", "number"])
def test_a_skipped_step_changes_not_one_bit(made: Made, poison: float, ok: Tensor) -> None:
    model, optimizer = made()
    with torch.no_grad():
        model.head.weight[0, 0] = model.table.weight[0, 0] = -0.0
    for taken in range(3):  # before the first step, and later
        previous = everything(model, optimizer)
        slopes(model, 10)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.reshape(-1)[0] = poison
        step_if(optimizer, ok)
        assert everything(model, optimizer) == previous
        slopes(model, taken)
        step_if(optimizer, YES)
        assert everything(model, optimizer) != previous


def test_a_run_with_a_skipped_step_is_the_run_without_it(made: Made) -> None:
    ends = []
    for skipped in ([], [0], [2, 3]):
        model, optimizer = made()
        for taken in range(5):
            if taken in skipped:
                slopes(model, 99)
                assert model.gain.grad is not None
                model.gain.grad.fill_(math.nan)
                step_if(optimizer, NO)
            slopes(model, taken)
            set_rates(optimizer, 1 / (1 + taken))
            step_if(optimizer, YES)
        ends.append(everything(model, optimizer))
    assert ends[0] == ends[1] == ends[2]


def test_a_step_that_is_taken_is_a_plain_step(made: Made) -> None:
    ends = []
    for asked in (True, False):
        model, optimizer = made()
        for taken in range(3):
            slopes(model, taken)
            if asked:
                step_if(optimizer, YES)
            else:
                optimizer.step()
        ends.append(everything(model, optimizer))
        assert not hasattr(optimizer, "found_inf")
    assert ends[0] == ends[1]


def test_weights_without_a_gradient_stay(made: Made) -> None:
    model, optimizer = made()
    slopes(model, 0)
    model.head.weight.grad = model.blocks[0][0].weight.grad = None  # type: ignore[union-attr, index]
    previous = everything(model, optimizer)
    step_if(optimizer, YES)
    later_value = everything(model, optimizer)
    changed = {name for name in model.state_dict() if previous[name] != later_value[name]}
    assert changed == set(model.state_dict()) - {"head.weight", "blocks.0.0.weight"}
    assert all(
        previous[name] == later_value[name]
        for name in previous
        if name.startswith(("head.weight", "blocks.0.0.weight"))
    )


def test_all_state_is_there_from_the_start(made: Made) -> None:
    model, optimizer = made()
    previous = {name: tuple(tensor.shape) for name, tensor in get_state_tensors(optimizer, model).items()}
    slopes(model, 0)
    step_if(optimizer, YES)
    assert previous == {name: tuple(tensor.shape) for name, tensor in get_state_tensors(optimizer, model).items()}


def test_training_lowers_a_loss(made: Made) -> None:
    model, optimizer = made()
    torch.manual_seed(3)
    aims = [torch.randn_like(parameter) for parameter in model.parameters()]
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = sum(((p - aim) ** 2).sum() for p, aim in zip(model.parameters(), aims, strict=True))
        assert isinstance(loss, Tensor)
        loss.backward()
        step_if(optimizer, YES)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


# State


def test_saved_and_restored_a_run_goes_on_bit_for_bit(made: Made) -> None:
    model, optimizer = made()
    for taken in range(3):
        slopes(model, taken)
        step_if(optimizer, YES)
    saved = {name: tensor.clone() for name, tensor in get_state_tensors(optimizer, model).items()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    repeat, other = made()
    repeat.load_state_dict(weights)
    load_state(other, repeat, saved)
    for taken in range(3, 5):
        for m, o in ((model, optimizer), (repeat, other)):
            slopes(m, taken)
            step_if(o, YES)
    assert everything(model, optimizer) == everything(repeat, other)


def test_state_is_known_by_names_whatever_the_groups() -> None:
    model = toy()
    item = AdamW().build(build_parameter_groups(model))
    many = AdamW().build(build_parameter_groups(model, lr_factor=lambda above: 0.5**above))
    slopes(model, 0)
    step_if(item, YES)
    load_state(many, model, get_state_tensors(item, model))
    assert bits(get_state_tensors(item, model)) == bits(get_state_tensors(many, model))
    assert list(get_state_tensors(item, model))[:4] == [
        "gain.exp_avg",
        "gain.exp_avg_sq",
        "gain.step",
        "table.weight.exp_avg",
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("head.bias.step"), "'head.bias.step'"),
        (lambda s: s.update({"head.extra": torch.ones(1)}), "'head.extra'"),
        (
            lambda s: s.update({"head.bias.exp_avg": torch.ones(4)}),
            r"'head.bias.exp_avg'.*float32 \[4\].*float32 \[3\]",
        ),
        (
            lambda s: s.update({"gain.step": torch.ones((), dtype=torch.int64)}),
            r"'gain.step'.*int64 \[\].*float32 \[\]",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused_by_name(spoil: Callable[[dict[str, Tensor]], Any], message: str) -> None:
    model = toy()
    optimizer = AdamW().build(build_parameter_groups(model))
    tensors = {name: torch.full_like(tensor, 7.0) for name, tensor in get_state_tensors(optimizer, model).items()}
    previous = everything(model, optimizer)
    spoil(tensors)
    with pytest.raises(CheckpointError, match=message):
        load_state(optimizer, model, tensors)
    assert everything(model, optimizer) == previous


def test_state_of_another_model_is_a_mistake() -> None:
    optimizer = AdamW().build(build_parameter_groups(toy()))
    with pytest.raises(UsageError):
        get_state_tensors(optimizer, toy())


def test_an_optimiser_that_cannot_skip_is_refused() -> None:
    model = toy()
    with pytest.raises(UsageError, match="'RMSprop'"):
        step_if(torch.optim.RMSprop(model.parameters()), YES)


# Specs


def test_specs_are_plain_data() -> None:
    @spec
    class Train:
        optim: Optim = AdamW()

    for made in SPECS.values():
        assert from_dict(Train, to_dict(Train(optim=made))).optim == made
    assert replace(Train(), {"optim.lr": "3e-4", "optim.betas": "[0.9,0.98]"}).optim == AdamW(
        lr=3e-4, betas=(0.9, 0.98)
    )
    assert from_dict(Train, {"optim": {"kind": "muon", "rest": {"lr": 1e-4}}}).optim == Muon(rest=AdamW(lr=1e-4))
    assert (Muon(lr=0.3, weight_decay=0.2).rest_spec.lr, Muon(lr=0.3, weight_decay=0.2).rest_spec.weight_decay) == (
        0.3,
        0.2,
    )


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        (lambda: AdamW(lr=-1.0), r"^\w+\.lr .*\-1\.0"),
        (lambda: AdamW(betas=(0.9, 1.0)), r"^\w+\.betas\.1 .*1\.0"),
        (lambda: Adafactor(clip=0.0), r"^\w+\.clip .*0\.0"),
        (lambda: Adafactor(eps=(0.0, 1e-3)), r"^\w+\.eps\.0 .*0\.0"),
        (lambda: Lamb(betas=(-0.1, 0.9)), r"^\w+\.betas\.0 .*\-0\.1"),
        (lambda: Muon(momentum=1.0), r"^\w+\.momentum .*1\.0"),
        (lambda: SGD(momentum=1.5), r"^\w+\.momentum .*1\.5"),
        (lambda: Adagrad(eps=0.0), r"^\w+\.eps .*0\.0"),
        (lambda: ASGD(weight_decay=-1.0), r"^\w+\.weight_decay .*\-1\.0"),
        (lambda: AdamW(lr=math.nan), r"^\w+\.lr .*nan"),
    ],
)
def test_numbers_without_a_meaning_are_refused(wrong: Callable[[], object], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        wrong()


def test_rates_are_peaks_times_a_factor() -> None:
    model = toy()
    optimizer = Muon(lr=0.5, rest=AdamW(lr=0.1)).build(
        build_parameter_groups(model, lr_factor=lambda above: 0.5**above)
    )
    set_rates(optimizer, 0.5)
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert rates["blocks.1.0.weight"] == 0.5 * 0.5 * 0.5
    assert rates["head.weight"] == 0.1 * 0.5
    assert rates["table.weight"] == 0.1 * 0.5**3 * 0.5
    slopes(model, 0)
    previous = everything(model, optimizer)
    set_rates(optimizer, 0.0)
    step_if(optimizer, YES)
    later_value = everything(model, optimizer)
    assert all(previous[name] == later_value[name] for name in model.state_dict())


# Peers and formulas


def loose(weights: list[Tensor], **facts: Any) -> list[ParameterGroup]:
    """One group of bare weights."""
    parameters = tuple(nn.Parameter(weight.clone()) for weight in weights)
    names = tuple(f"w{i}" for i in range(len(weights)))
    return [
        ParameterGroup(
            part="all", names=names, parameters=parameters, **{"has_decay": True, "is_matrix": False, **facts}
        )
    ]


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def race(
    ours: Optim, groups: list[ParameterGroup], peer: Callable[[list[nn.Parameter]], Any], steps: int = 6
) -> Iterator[Any]:
    """Both from the same weights with the same gradients: pairs of weights after every step."""
    mine = ours.build(groups)
    weights = groups[0].parameters
    theirs = [nn.Parameter(weight.detach().clone()) for weight in weights]
    other = peer(theirs)
    for taken in range(steps):
        result = drawn(*(tuple(weight.shape) for weight in weights), seed=50 + taken)
        for weight, their, slope in zip(weights, theirs, result, strict=True):
            weight.grad, their.grad = slope.clone(), slope.clone()
        step_if(mine, YES)
        other.step()
        yield from zip(weights, theirs, strict=True)


SHAPES = ((5, 7), (5, 7), (9, 4), (6,), ())


DECAYED: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1}
ADAM: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("ours", "peer", "options"),
    [
        (AdamW(**ADAM), torch.optim.AdamW, {**ADAM, "fused": True}),
        (AdamW(**ADAM), torch.optim.AdamW, {**ADAM, "foreach": True}),
        (SGD(**DECAYED), torch.optim.SGD, DECAYED),
        (SGD(**DECAYED, momentum=0.9), torch.optim.SGD, {**DECAYED, "momentum": 0.9}),
        (Adagrad(**DECAYED), torch.optim.Adagrad, DECAYED),
        (Adagrad(**DECAYED, initial_accumulator=1.0), torch.optim.Adagrad, {**DECAYED, "initial_accumulator_value": 1}),
    ],
)
def test_an_optimiser_is_torchs(ours: Optim, peer: Callable[..., Any], options: dict[str, Any]) -> None:
    for mine, theirs in race(ours, loose(drawn(*SHAPES)), functools.partial(peer, **options)):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


class Written:
    """Adam and LAMB as their formulas say."""

    def __init__(self, weights: list[nn.Parameter], ours: AdamW | Lamb, *, trust: bool = False) -> None:
        self.weights = [(w, torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
        self.ours, self.trust, self.taken = ours, trust, 0

    @torch.no_grad()
    def step(self) -> None:
        self.taken += 1
        ours, (b1, b2) = self.ours, self.ours.betas
        first, second = (1 - b**self.taken if ours.bias_correction else 1.0 for b in (b1, b2))
        for w, m, v in self.weights:
            assert w.grad is not None
            m.copy_(b1 * m + (1 - b1) * w.grad)
            v.copy_(b2 * v + (1 - b2) * w.grad**2)
            r = (m / first) / ((v / second).sqrt() + ours.eps) + ours.weight_decay * w
            ratio = float(w.norm() / r.norm()) if self.trust and w.norm() > 0 and r.norm() > 0 else 1.0
            w -= ours.lr * ratio * r


def test_adamw_without_bias_correction_is_the_formula() -> None:
    ours = AdamW(lr=1e-2, eps=1e-6, weight_decay=0.01, bias_correction=False)
    for mine, baseline in race(ours, loose(drawn(*SHAPES)), lambda weights: Written(weights, ours)):
        torch.testing.assert_close(mine, baseline, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adafactor_is_that_of_transformers(scaled: bool, decay: float) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    ours = Adafactor(lr=1e-2, scale_parameter=scaled, weight_decay=decay)
    options: dict[str, Any] = {"relative_step": False, "scale_parameter": scaled, "weight_decay": decay, "lr": 1e-2}
    groups = loose(drawn(*SHAPES, (3, 4, 5)))
    for mine, their in race(ours, groups, lambda p: optimization.Adafactor(p, **options)):
        torch.testing.assert_close(mine, their, rtol=1e-5, atol=1e-6)


def test_relative_steps_are_a_schedule() -> None:
    optimization = pytest.importorskip("transformers.optimization")
    groups = loose(drawn(*SHAPES))
    ours = Adafactor(lr=1e-2).build(groups)
    theirs = [nn.Parameter(weight.detach().clone()) for weight in groups[0].parameters]
    other = optimization.Adafactor(theirs, relative_step=True)
    for taken in (*range(3), *range(20_000, 20_003)):
        for state in (*ours.state.values(), *other.state.values()):
            state["step"] = torch.tensor(float(taken)) if isinstance(state["step"], Tensor) else taken
        set_rates(ours, InverseSquareRoot(hold=10_000).compute_factor(taken + 1, 10**6))
        for weight, their, slope in zip(groups[0].parameters, theirs, drawn(*SHAPES, seed=taken), strict=True):
            weight.grad, their.grad = slope, slope
        step_if(ours, YES)
        other.step()
    for weight, their in zip(groups[0].parameters, theirs, strict=True):
        torch.testing.assert_close(weight, their, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trust", [True, False])
def test_lamb_is_its_formula(trust: bool) -> None:
    ours = Lamb(lr=1e-2, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1 if trust else 0.0)
    groups = loose([*drawn(*SHAPES), torch.zeros(3)], has_decay=trust)
    for mine, baseline in race(ours, groups, lambda weights: Written(weights, ours, trust=trust)):
        torch.testing.assert_close(mine, baseline, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
def test_orthogonalising_keeps_directions_and_evens_lengths(shape: tuple[int, int]) -> None:
    matrices = torch.stack(drawn(shape, shape))
    u, s, v = torch.linalg.svd(orthogonalize(matrices, 5, torch.float32), full_matrices=False)
    assert float(s.min()) > 0.6 and float(s.max()) < 1.3
    first, _, last = torch.linalg.svd(matrices, full_matrices=False)
    # What is left of the polar factor is symmetric and positive: the directions are those of the matrix.
    core = first.mT @ (u * s[:, None]) @ v @ last.mT
    torch.testing.assert_close(core, torch.diag_embed(core.diagonal(dim1=1, dim2=2)), rtol=0, atol=1e-3)
    assert bool((core.diagonal(dim1=1, dim2=2) > 0.6).all())


@pytest.mark.parametrize(("scale", "peer"), [("rms", "match_rms_adamw"), ("shape", "original")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs(scale: Any, peer: str, nesterov: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, as torch computes; on CPU ours computes in float32."""
    monkeypatch.setattr(
        "pretune.training.optim.muon.orthogonalize", lambda x, n, dtype: orthogonalize(x, n, torch.bfloat16).to(x.dtype)
    )
    ours = Muon(lr=1e-2, scale=scale, nesterov=nesterov, weight_decay=0.1)
    shapes = ((8, 12), (8, 12), (12, 8), (9, 9))
    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "nesterov": nesterov, "adjust_lr_fn": peer}
    for mine, their in race(ours, loose(drawn(*shapes), is_matrix=True), lambda p: torch.optim.Muon(p, **options)):
        torch.testing.assert_close(mine, their, rtol=0, atol=2e-3)


def test_muon_leaves_the_rest_to_adamw() -> None:
    model, twin = toy(), toy()
    muon = Muon(rest=AdamW(lr=1e-2, weight_decay=0.3)).build(build_parameter_groups(model))
    adam = AdamW(lr=1e-2, weight_decay=0.3).build(build_parameter_groups(twin))
    for taken in range(3):
        for m, o in ((model, muon), (twin, adam)):
            slopes(m, taken)
            step_if(o, YES)
    pairs = zip(model.state_dict().items(), twin.state_dict().values(), strict=True)
    same = {name for (name, mine), other in pairs if torch.equal(mine, other)}
    matrices = {f"blocks.{i}.{j}.weight" for i in (0, 1) for j in (0, 2)}
    assert same == set(model.state_dict()) - matrices


def test_muon_without_matrices_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="adam_w"):
        Muon().build(build_parameter_groups(nn.Linear(3, 3)))


def test_asgd_is_torchs_from_its_trigger_on() -> None:
    groups = loose(drawn(*SHAPES))
    ours = ASGD(lr=0.1, weight_decay=0.1).build(groups)
    weights = groups[0].parameters

    def advance(seed: int, *also: tuple[list[nn.Parameter], torch.optim.Optimizer]) -> None:
        for parameters, optimizer in ((list(weights), ours), *also):
            for weight, slope in zip(parameters, drawn(*SHAPES, seed=seed), strict=True):
                weight.grad = slope
            optimizer.step()

    advance(1)
    assert all(torch.equal(ours.state[weight]["average"], weight) for weight in weights)
    ours.trigger()
    theirs = [nn.Parameter(weight.detach().clone()) for weight in weights]
    other = torch.optim.ASGD(theirs, lr=0.1, t0=0, lambd=0.0, weight_decay=0.1)
    for seed in range(2, 8):
        advance(seed, (theirs, other))
        ours.trigger()  # a second time changes nothing
        for weight, their in zip(weights, theirs, strict=True):
            torch.testing.assert_close(weight, their, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(ours.state[weight]["average"], other.state[their]["ax"], rtol=1e-5, atol=1e-6)
    remaining = [weight.detach().clone() for weight in weights]
    with ours.use_averages():
        assert all(torch.allclose(w, other.state[t]["ax"], atol=1e-5) for w, t in zip(weights, theirs, strict=True))
        assert not torch.equal(weights[0], remaining[0])
    assert all(torch.equal(weight, was) for weight, was in zip(weights, remaining, strict=True))


def test_many_weights_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for most in (CHUNK_SIZE, 10):
        monkeypatch.setattr("pretune.training.optim.CHUNK_SIZE", most)
        for name in ("lamb", "adafactor", "muon", "sgd-momentum"):
            model = toy()
            optimizer = SPECS[name].build(build_parameter_groups(model))
            slopes(model, 0)
            step_if(optimizer, YES)
            ends.append({key: value.clone() for key, value in model.state_dict().items()})
    for full, cut in zip(ends[:4], ends[4:], strict=True):
        torch.testing.assert_close(full, cut, rtol=1e-5, atol=1e-6)


# Devices


@pytest.mark.gpu
@pytest.mark.parametrize("name", SPECS)
def test_no_step_waits_for_the_device(name: str) -> None:
    """And there, too, a skipped step changes not one bit, whereas one that is taken does what it does on CPU."""
    model, twin = toy().cuda(), toy()
    optimizer, other = begun(name, model), begun(name, twin)
    yes, no = YES.cuda(), NO.cuda()
    for taken in range(3):
        slopes(model, taken)
        slopes(twin, taken)
        previous = everything(model, optimizer)
        torch.cuda.set_sync_debug_mode("error")
        try:
            set_rates(optimizer, 0.5)
            finite = clip_gradients(model.parameters(), 1.0).isfinite()
            step_if(optimizer, no & finite)
            torch.cuda.set_sync_debug_mode("default")
            assert everything(model, optimizer) == previous
            torch.cuda.set_sync_debug_mode("error")
            step_if(optimizer, yes & finite)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        set_rates(other, 0.5)
        clip_gradients(twin.parameters(), 1.0)
        step_if(other, YES)
    near = 0.05 if name.startswith("muon") else 1e-5  # on CUDA matrices are orthogonalised in bfloat16
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=0, atol=near)


@pytest.mark.slow
def test_sharded_weights_take_the_same_steps() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_shards, args=(port,), nprocs=2)  # type: ignore[no-untyped-call]


def _shards(rank: int, port: int) -> None:
    """One of two ranks: every optimiser on a whole model and on a sharded one."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for name in SPECS:
        model, twin = toy(), toy()
        del model.gain, twin.gain  # one number cannot be sharded
        fully_shard(twin, mesh=mesh)
        optimizer, other = begun(name, model), begun(name, twin)
        for taken in range(3):
            slopes(model, taken)
            for weight, shard in zip(model.parameters(), twin.parameters(), strict=True):
                assert isinstance(shard, DTensor) and weight.grad is not None
                shard.grad = distribute_tensor(weight.grad.clone(), mesh, shard.placements)
            norm, same = clip_gradients(model.parameters(), 1.0), clip_gradients(twin.parameters(), 1.0)
            torch.testing.assert_close(norm, same)
            step_if(optimizer, YES)
            step_if(other, YES)
            step_if(other, NO)
        gathered = {key: whole(value) for key, value in get_state_tensors(other, twin).items()}
        load_state(other, twin, gathered)
        assert bits({key: whole(value) for key, value in get_state_tensors(other, twin).items()}) == bits(gathered)
        torch.testing.assert_close(get_state_tensors(optimizer, model), gathered, rtol=1e-5, atol=1e-6)
        for weight, shard in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(weight.detach(), whole(shard.detach()), rtol=1e-5, atol=1e-6)
    dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


# Clipping


def test_clipping_is_torchs() -> None:
    for limit in (0.5, 1000.0):
        model, twin = toy(), toy()
        slopes(model, 0)
        slopes(twin, 0)
        norm = clip_gradients(model.parameters(), limit)
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(twin.parameters(), limit))
        for mine, their in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, their.grad)
        torch.testing.assert_close(clip_gradients(model.parameters(), None), norm.clamp(max=limit), rtol=1e-5, atol=0)


def test_a_norm_is_float32_whatever_the_gradients() -> None:
    weight = nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    norm = clip_gradients([weight], 1.0)
    assert norm.dtype == torch.float32 and float(norm) == 64.0
    torch.testing.assert_close(weight.grad.float(), torch.full((4096,), 1 / 64), rtol=1e-2, atol=0)


def test_a_norm_tells_of_one_bad_number() -> None:
    model = toy()
    for bad in (math.nan, math.inf):
        slopes(model, 0)
        assert model.gain.grad is not None
        model.gain.grad.fill_(bad)
        assert not bool(clip_gradients(model.parameters(), 1.0).isfinite())
    assert float(clip_gradients([], 1.0)) == 0.0
    with pytest.raises(UsageError, match=r"clip .*0"):
        clip_gradients(model.parameters(), 0)
