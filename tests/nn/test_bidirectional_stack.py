"""Both directions of a recurrent stack, held against torch's modules and the written-out equations with clipping."""

import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.core.errors import UsageError
from pretune.models.catalog import resolve
from pretune.models.cost import count_params_by_part, estimate_memory, flops_per_token
from pretune.models.model import LanguageModel, build
from pretune.nn.lstm import LSTMLayer
from pretune.training.validation import take_clip_counts
from tests.contracts import laws
from tests.contracts.tiny import model_of, rough

SEQUENCES = [[5, 6, 7], [8, 9, 10, 11, 12], [3], [4, 5, 6]]


def make_model(scale: float = 1.0) -> LanguageModel:
    settings = {"width": 12, "hidden": 9, "filters": 64, "vocab": 20, "dropout": 0.0}
    model = rough(build(resolve("elmo-small", settings))).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(scale if ".project." in name else 1.0)
    return model


def read(layer: LSTMLayer, x: Tensor, bound: float | None) -> tuple[Tensor, int]:
    """One sequence [n, W] by the equations; also the number of values that the bound changes."""
    output, cell = torch.zeros(layer.width, dtype=x.dtype), torch.zeros(layer.hidden, dtype=x.dtype)
    outputs, beyond = [], 0
    assert layer.project is not None
    for step in x:
        gates = layer.input.weight @ step + layer.input.bias + layer.recurrent.weight @ output
        i, f, g, o = gates.chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        cell = cell if bound is None else cell.clamp(-bound, bound)
        output = layer.project.weight @ (o.sigmoid() * cell.tanh())
        beyond += 0 if bound is None else int((output.abs() > bound).sum())
        output = output if bound is None else output.clamp(-bound, bound)
        outputs.append(output)
    return torch.stack(outputs), beyond


def read_both(model: LanguageModel, sequence: list[int], bound: float | None) -> tuple[list[Tensor], int]:
    """The layers of one sequence: the word vector twice, then both directions side by side."""
    x = model.embed_tokens(torch.tensor(sequence))
    left, right = x, x.flip(0)
    layers, beyond = [torch.cat((x, x), -1)], 0
    for depth, layer in enumerate(model.encoder):
        (ahead, first), (behind, second) = read(layer.forwards, left, bound), read(layer.backwards, right, bound)
        left, right = (ahead + left, behind + right) if depth else (ahead, behind)
        layers.append(torch.cat((left, right.flip(0)), -1))
        beyond += first + second
    return layers, beyond


@torch.no_grad()
def test_layers_follow_the_equations() -> None:
    """With clipping in the written-out recurrence, without it on torch's LSTM; projections are large enough to clip."""
    model, batch = make_model(scale=8.0), pt.batch(SEQUENCES, row=9)
    for backend, bound in ((None, None), ("eager", 3.0)):
        model.attention_backend = backend
        hidden = model(batch, hidden=True).hidden
        beyond = 0
        for number, sequence in enumerate(SEQUENCES):
            layers, count = read_both(model, sequence, bound)
            beyond += count
            for found, expected in zip(hidden, layers, strict=True):
                torch.testing.assert_close(batch.split(found)[number], expected)
        assert (beyond > 0) == (backend == "eager")


def test_each_direction_is_an_lstm_with_projection() -> None:
    model, batch = make_model(), pt.batch(SEQUENCES, row=9)
    states = batch.split(model.states(batch))
    total = torch.zeros((), dtype=torch.float64)
    for number, sequence in enumerate(SEQUENCES):
        sides = []
        for name in ("forwards", "backwards"):
            x = model.embed_tokens(torch.tensor(sequence))
            x = x if name == "forwards" else x.flip(0)
            for depth, layer in enumerate(model.encoder):
                part = getattr(layer, name)
                weights = {"weight_ih_l0": part.input.weight, "weight_hh_l0": part.recurrent.weight}
                weights["weight_hr_l0"] = part.project.weight
                biases = {"bias_ih_l0": part.input.bias, "bias_hh_l0": torch.zeros_like(part.input.bias)}
                lstm = nn.LSTM(part.input.in_features, part.hidden, proj_size=part.width).double()
                y = torch.func.functional_call(lstm, {**weights, **biases}, (x,))[0]
                x = y + x if depth else y
            sides.append(x if name == "forwards" else x.flip(0))
        torch.testing.assert_close(states[number], torch.cat(sides, -1))
        total = total + torch.cat(sides, -1).square().sum()
    parameters = [model.encoder[0].backwards.recurrent.weight, model.tokens.characters.weight]
    expected = torch.autograd.grad(total, parameters)
    for found, reference in zip(
        torch.autograd.grad(torch.cat(states).square().sum(), parameters), expected, strict=True
    ):
        torch.testing.assert_close(found, reference)


@torch.no_grad()
def test_values_beyond_the_bounds_are_counted_on_torchs_lstm() -> None:
    model, batch = make_model(scale=8.0), pt.batch(SEQUENCES, row=9)
    take_clip_counts(model)
    model.states(batch)
    counts = take_clip_counts(model)
    assert counts is not None and take_clip_counts(model) is None
    outputs, all_outputs, _, all_cells = counts.tolist()
    assert (all_outputs, all_cells) == (12 * 6 * 4, 4 * 9 * 4)  # tokens or sequences, units, layers and directions
    expected = 0
    for sequence in SEQUENCES:
        left = right = model.embed_tokens(torch.tensor(sequence))
        right = right.flip(0)
        for depth, layer in enumerate(model.encoder):
            ahead, behind = read(layer.forwards, left, None)[0], read(layer.backwards, right, None)[0]
            expected += int((ahead.abs() > 3).sum() + (behind.abs() > 3).sum())
            left, right = (ahead + left, behind + right) if depth else (ahead, behind)
    assert outputs == expected > 0
    model.attention_backend = "eager"
    model.states(batch)
    assert take_clip_counts(model) is None


def test_one_direction_is_a_decoder_with_the_same_weights() -> None:
    model, batch = make_model(), pt.batch(SEQUENCES, row=9)
    forward = model.get_direction()
    assert forward.shape == "decoder" and forward.head is model.head
    torch.testing.assert_close(forward(batch).logits, model(batch).logits)
    torch.testing.assert_close(forward.states(batch), model.compute_directional_states(batch)[0])
    backward, reversed_batch = model.get_direction(backward=True), pt.batch([s[::-1] for s in SEQUENCES], row=9)
    rights = zip(
        batch.split(model.compute_directional_states(batch)[1]),
        reversed_batch.split(backward.states(reversed_batch)),
        strict=True,
    )
    for found, expected in rights:
        torch.testing.assert_close(found, expected.flip(0))
    assert forward.new_cache(1, 4).capacity == 4


@pytest.mark.parametrize("backward", [False, True])
def test_a_direction_keeps_the_laws_of_decoders(backward: bool) -> None:
    direction = model_of("elmo-small").get_direction(backward=backward)
    laws.no_future_leak(direction)
    laws.packed_is_alone(direction)
    laws.cache_is_no_cache(direction, (4, 1, 3))


def test_costs_count_characters_both_directions_and_samples() -> None:
    spec = resolve("elmo-original")
    parts = count_params_by_part(spec)
    assert parts == {
        "characters": 18_037_856,
        "recurrent layers": 75_563_008,
        "vocabulary head": 793_471 * 513,
    }
    training, inference = (flops_per_token(spec, length=20, training=training) for training in (True, False))
    exact, sampled = 2 * 2 * 512 * 793_471, 2 * 2 * 512 * 8193  # two directions, a product and a sum
    assert inference - exact == pytest.approx(training / 3 - sampled)
    assert estimate_memory(spec, tokens=4096, length=32, training=True, precision="bf16").activations > 0


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(UsageError, match="its head needs tied=False"):
        resolve("elmo-small", {"head.tied": True})
    with pytest.raises(UsageError, match="width of two directions must be even"):
        resolve("elmo-small", {"width": 255})
    model = make_model()
    with pytest.raises(UsageError, match="a cache needs a decoder"):
        model.new_cache(1, 4)
    with pytest.raises(UsageError, match="token id 20 has no spelling: there are 20"):
        model(pt.batch([[1, 20]]))
    with pytest.raises(UsageError, match="has no two directions"):
        model.get_direction().get_direction()
