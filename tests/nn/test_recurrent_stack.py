"""LSTM layers over ragged batches, held against torch's modules and the written-out equations."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pretune as pt
from pretune.adaptation.heads.sequence import Classification
from pretune.core.errors import UsageError
from pretune.data.plan import BatchShape
from pretune.inference.decode import check_can_generate
from pretune.models.catalog import resolve
from pretune.models.cost import count_params_by_part, estimate_memory, flops_per_token
from pretune.models.model import LanguageModel, build
from pretune.models.spec import Model
from pretune.nn.heads import Head
from pretune.nn.lstm import LSTM, StepLayout
from pretune.nn.recurrent_stack import Recurrent
from pretune.objectives.causal import CausalLM
from pretune.training.config import TrainConfig
from pretune.training.cuda_graph import build_cuda_graph

RAGGED = [[5, 6, 7], [8, 9, 10, 11, 12], [3], [4, 5, 6]]
EVEN = [[5, 6, 7], [8, 9, 10], [3, 4, 5]]


def make_spec(*blocks: LSTM, **settings: Any) -> Model:
    stack = Recurrent(blocks=blocks or (LSTM(hidden=7), LSTM(hidden=6)), **settings)
    return Model(family="made", vocab=20, width=stack.blocks[-1].width, decoder=stack, head=Head())


def build_reference(model: LanguageModel) -> list[nn.LSTM]:
    """torch's own layers with a model's weights."""
    layers = []
    for layer in model.decoder:
        lstm = nn.LSTM(layer.input.in_features, layer.hidden, proj_size=layer.spec.projection or 0, batch_first=True)
        second = torch.zeros_like(layer.input.bias) if layer.recurrent.bias is None else layer.recurrent.bias
        parts = {
            "weight_ih_l0": layer.input.weight,
            "weight_hh_l0": layer.recurrent.weight,
            "bias_ih_l0": layer.input.bias,
            "bias_hh_l0": second,
        }
        if layer.project is not None:
            parts["weight_hr_l0"] = layer.project.weight
        lstm.double().load_state_dict(parts)
        layers.append(lstm)
    return layers


@pytest.mark.parametrize("sequences", [RAGGED, EVEN], ids=["ragged", "even"])
@pytest.mark.parametrize("backend", [None, "eager"])
def test_states_are_those_of_torch(sequences: list[list[int]], backend: Any) -> None:
    """One sequence at a time, with a projection, a residual and one bias; the gradients too."""
    spec = make_spec(
        LSTM(hidden=9, projection=6, biases=1), LSTM(hidden=8, projection=6, residual=True), LSTM(hidden=6)
    )
    model = build(spec).double()
    model.attention_backend = backend
    batch = pt.batch(sequences)
    out = model(batch, hidden=True)
    reference, total = build_reference(model), torch.zeros((), dtype=torch.float64)
    for i, sequence in enumerate(sequences):
        x = model.tokens.weight[torch.tensor(sequence)][None]
        for depth, lstm in enumerate(reference):
            y = lstm(x)[0]
            x = y + x if depth == 1 else y
            torch.testing.assert_close(batch.split(out.hidden[depth + 1])[i], x[0])
        total = total + x.pow(2).sum()
    assert (out.states[batch.sequence < 0] == 0).all()
    parameters = [model.decoder[0].recurrent.weight, model.decoder[1].project.weight, model.tokens.weight]
    ours = torch.autograd.grad(out.states.pow(2).sum(), parameters)
    theirs = torch.autograd.grad(
        total, [reference[0].weight_hh_l0, reference[1].weight_hr_l0, model.tokens.weight], allow_unused=True
    )
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected)


def test_cached_steps_run_the_recurrence_of_the_backend() -> None:
    """With clipping, the written-out recurrence differs from that of torch."""
    model = build(make_spec(LSTM(hidden=5, projection=4, cell_clip=0.05, output_clip=0.02)), seed=1).eval()
    sequence, logits = [3, 1, 4, 1, 5, 9, 2, 6], {}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
        for backend in (None, "eager"):
            model.attention_backend = backend
            logits[backend] = model(pt.batch([sequence])).logits
            cache = model.new_cache(1, len(sequence))
            model(pt.batch([sequence[:2]]), cache=cache)
            steps = [model.step(torch.tensor([token]), cache)[0] for token in sequence[2:]]
            torch.testing.assert_close(torch.stack(steps), logits[backend][2:])
    assert not torch.allclose(logits[None], logits["eager"])


def test_clipping_is_exact_in_the_written_out_recurrence_only() -> None:
    spec = make_spec(LSTM(hidden=5, projection=4, cell_clip=0.05, output_clip=0.02))
    model = build(spec, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    layer, sequence = model.decoder[0], [3, 1, 4, 1, 5, 9, 2, 6]
    output, cell, expected, hits = torch.zeros(4), torch.zeros(5), [], 0
    for x in model.tokens.weight[torch.tensor(sequence)]:
        i, f, g, o = (
            layer.input.weight @ x + layer.input.bias + layer.recurrent.weight @ output + layer.recurrent.bias
        ).chunk(4)
        cell = i.sigmoid() * g.tanh() + f.sigmoid() * cell
        hits += int((cell.abs() > 0.05).sum())
        cell = cell.clamp(-0.05, 0.05)
        output = layer.project.weight @ (o.sigmoid() * cell.tanh())
        hits += int((output.abs() > 0.02).sum())
        output = output.clamp(-0.02, 0.02)
        expected.append(output)
    assert hits > 5
    fast = model(pt.batch([sequence])).states
    model.decoder.exact = True
    torch.testing.assert_close(model(pt.batch([sequence])).states, torch.stack(expected))
    assert not torch.allclose(fast, torch.stack(expected))
    cache = model.new_cache(1, 9)
    model(pt.batch([sequence[:3]]), cache=cache)
    for token in sequence[3:]:
        logits = model.step(torch.tensor([token]), cache)
    torch.testing.assert_close(logits[0], model.tokens.weight @ expected[-1])


def test_dropout_is_the_same_in_all_steps() -> None:
    """Of a sequence for units, of a batch for token types, and of a pass for recurrent weights."""
    batch = pt.batch([[5, 6, 5, 7], [5, 6]], row=7)
    layout = StepLayout.from_batch(batch)
    torch.manual_seed(0)
    kept = [part != 0 for part in batch.split(layout.to_batch(layout.drop_units(torch.ones(6, 50), 0.5)))]
    assert all((part == part[0]).all() for part in kept) and not torch.equal(kept[0][0], kept[1][0])
    assert 0.3 < kept[0][0].float().mean() < 0.7
    stack = build(make_spec(token_dropout=0.5)).decoder
    for seed in range(8):
        torch.manual_seed(seed)
        x = stack.train()._embed_inputs(torch.ones(7, 6), batch)[: 4 + 2].view(6, 6)
        by_type = {token: x[i] for i, token in enumerate([5, 6, 5, 7])}
        for i, token in enumerate([5, 6, 5, 7, 5, 6]):
            assert torch.equal(x[i], by_type[token]) and set(x[i].tolist()) <= {0.0, 2.0}
    dropped = build(make_spec(LSTM(hidden=6, weight_dropout=0.5))).train()
    weights = dropped.decoder[0]._compute_weights(torch.float32)
    assert 0.3 < (weights[1] == 0).float().mean() < 0.7 and not (weights[0] == 0).any()
    full = dropped.decoder[0].recurrent.weight
    torch.testing.assert_close(weights[1], torch.where(weights[1] == 0, 0.0, 2 * full))


def test_activation_checkpointing_changes_no_gradient() -> None:
    spec = make_spec(LSTM(hidden=7, weight_dropout=0.3, dropout=0.2), LSTM(hidden=6), input_dropout=0.2)
    gradients: list[list[Tensor]] = []
    for is_on in (False, True):
        model = build(spec).train()
        model.decoder.activation_checkpointing = is_on
        torch.manual_seed(3)
        model(pt.batch(RAGGED)).logits.pow(2).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_weights_and_biases_start_as_in_torch() -> None:
    layer = build(make_spec(LSTM(hidden=256))).decoder[0]
    for parameter in layer.parameters():
        bound = 1 / math.sqrt(256)
        assert parameter.abs().max() <= bound and abs(parameter.std().item() - bound / math.sqrt(3)) < 0.1 * bound


def test_cost_counts_matrix_products() -> None:
    spec = make_spec(LSTM(hidden=9, projection=6), LSTM(hidden=6))
    weights = 4 * 9 * (6 + 6) + 9 * 6 + 4 * 6 * (6 + 6)
    assert flops_per_token(spec, length=10, targets=0.5, training=False) == 2 * weights + 0.5 * 2 * 20 * 6
    assert count_params_by_part(spec) == {"token table": 120, "recurrent layers": weights + 8 * 9 + 8 * 6}
    cache = [estimate_memory(spec, tokens=n, length=n, training=False, precision="fp32").cache for n in (10, 500)]
    assert cache == [4 * (6 + 9 + 6 + 6)] * 2  # whatever the length
    longer = [estimate_memory(spec, tokens=n, length=n, training=True, precision="fp32").activations for n in (50, 100)]
    assert longer[0] < longer[1]


def test_captured_steps_are_not_chosen() -> None:
    """Lengths of sequences are needed on the host."""
    shape = BatchShape(rows=2, length=8, sequences=2, slots=8)
    model = build(make_spec())
    for setting in (None, True):
        config = TrainConfig(lr=1e-3, cuda_graphs=setting)
        assert build_cuda_graph(shape, model.spec, config, torch.device("cpu"), model) is None


@pytest.mark.parametrize(
    ("blocks", "width", "message"),
    [
        ((LSTM(hidden=7),), 6, "must have the width of the model, 6, got 7"),
        ((LSTM(hidden=7, residual=True), LSTM(hidden=6)), 6, "equal input and output widths, got 6 and 7"),
    ],
)
def test_layers_that_do_not_fit(blocks: tuple[LSTM, ...], width: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Model(family="made", vocab=9, width=width, decoder=Recurrent(blocks=blocks))


@pytest.mark.parametrize("projection", [8, 9])
def test_a_projection_is_narrower(projection: int) -> None:
    with pytest.raises(UsageError, match=str(projection)):
        LSTM(hidden=8, projection=projection)


@pytest.mark.parametrize("backend", [None, "eager"])
def test_gradients_reach_the_last_tokens_only(backend: Any) -> None:
    """The state is carried through the whole sequence; what lies before the window has no gradient."""
    texts, window = [[3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15], [16, 17, 18]], 3
    plain = make_spec(LSTM(hidden=7, projection=5), LSTM(hidden=6), input_dropout=0.3)
    spec = make_spec(*plain.decoder.blocks, input_dropout=0.3, gradient_window=window)
    full, windowed = build(plain).double(), build(spec).double()
    batch = pt.batch(texts, row=11)
    for model in (full.train(), windowed.train()):
        model.attention_backend = backend
    torch.manual_seed(1)
    expected = full.states(batch)
    torch.manual_seed(1)
    out = windowed(batch, hidden=True)
    torch.testing.assert_close(out.states, expected)
    out.states.sum().backward()
    used = windowed.tokens.weight.grad.abs().amax(1) > 0
    assert used.nonzero().flatten().tolist() == sorted(token for text in texts for token in text[-window:])
    with torch.no_grad():
        torch.testing.assert_close(windowed.eval().states(batch), full.eval().states(batch))


def test_long_windows_are_the_whole_text() -> None:
    plain = make_spec()
    spec = make_spec(*plain.decoder.blocks, gradient_window=9)
    gradients = []
    for model in (build(plain).train(), build(spec).train()):
        model.states(pt.batch(RAGGED, row=12)).pow(2).sum().backward()
        gradients.append([p.grad for p in model.decoder.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_backward_models_read_from_the_end() -> None:
    """As a model of the same weights reads reversed texts: states, loss and gradient window; they generate nothing."""
    plain = make_spec(LSTM(hidden=7), LSTM(hidden=6))
    spec = make_spec(*plain.decoder.blocks, backward=True)
    forward, backward = build(plain).eval(), build(spec).eval()
    turned = [text[::-1] for text in RAGGED]
    batch, reversed_batch = pt.batch(RAGGED, row=9), pt.batch(turned, row=9)
    for found, expected in zip(
        batch.split(backward.states(batch)), reversed_batch.split(forward.states(reversed_batch)), strict=True
    ):
        torch.testing.assert_close(found, expected.flip(0))
    losses = []
    for model, texts in ((backward, RAGGED), (forward, turned)):
        labels = pt.batch(texts, row=9, labels=[[*text[1:], -100] for text in texts])
        losses.append(CausalLM().loss(model, labels))
    torch.testing.assert_close(losses[0].sum, losses[1].sum)
    assert losses[0].count == losses[1].count == 8
    window = build(make_spec(*plain.decoder.blocks, backward=True, gradient_window=2)).train()
    window.states(pt.batch([[3, 4, 5, 6]])).sum().backward()
    assert (window.tokens.weight.grad.abs().amax(1) > 0).nonzero().flatten().tolist() == [3, 4]  # read last
    with pytest.raises(UsageError, match="reads texts from their end"):
        check_can_generate(backward)
    with pytest.raises(UsageError, match="reads texts from their end"):
        backward.new_cache(1, 4)
    pooling = Classification(classes=2).resolve(resolve("ulmfit", {"backward": True})).pooling
    assert pooling is not None and pooling.modes == ("first", "max", "mean")
