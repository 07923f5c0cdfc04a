"""Costs against the published formulas, against what torch counts, and against what autograd keeps."""

import dataclasses
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import pretune as pt
from pretune.core.config import replace
from pretune.core.errors import UsageError
from pretune.models import catalog, cost
from pretune.models.cost import (
    MemoryEstimate,
    count_params_by_part,
    count_visible_keys,
    estimate_cost,
    estimate_memory,
    estimate_target_share,
    flops_per_token,
)
from pretune.models.devices import DEVICES
from pretune.models.model import LanguageModel

SMALL = {"width": 64, "depth": 3, "heads": 4, "vocab": 97}
TINY: dict[str, tuple[str, dict[str, object], tuple[int, int]]] = {
    # name: (base, settings, source and target length; 0: there is none)
    "bert": ("bert-tiny", {**SMALL, "dropout": 0.0}, (64, 0)),
    "gpt2": ("gpt2-small", {**SMALL, "dropout": 0.0}, (0, 64)),
    "llama": ("llama2-7b", {**SMALL, "hidden": 176}, (0, 64)),
    "llama-grouped": ("llama3-8b", {**SMALL, "hidden": 176, "kv_heads": 2}, (0, 64)),
    "olmo2": ("olmo2-1b", {**SMALL, "hidden": 176}, (0, 64)),
    "pythia-parallel": ("pythia-14m", SMALL, (0, 64)),
    "opt-factorised": ("opt-350m", {**SMALL, "dropout": 0.0}, (0, 64)),
    "t5": ("t5-small", {**SMALL, "head_width": 24, "dropout": 0.0}, (32, 24)),
    "t5-gated": ("t5v1.1-small", {**SMALL, "head_width": 16, "hidden": 176, "dropout": 0.0}, (32, 24)),
    "t5-shared": ("t5-table-enc-dec-shared", {**SMALL, "dropout": 0.0}, (32, 24)),
    "bart": ("bart-base", {**SMALL, "dropout": 0.0}, (24, 32)),
}


def tiny(name: str) -> tuple[LanguageModel, pt.Batch, int]:
    """A small model, a batch of eight whole sequences with a target at every position, and its tokens."""
    base, settings, (source, target) = TINY[name]
    model = catalog.build(base, **settings)
    rows = 8
    read = [[3] * (target or source)] * rows
    labels = [[5] * (target or source)] * rows
    if source and target:
        batch = pt.batch(source=[[3] * source] * rows, target=read, labels=labels)
    else:
        batch = pt.batch(read, labels=labels)
    return model, batch, rows * (source + target)


def lengths(name: str) -> dict[str, int]:
    source, target = TINY[name][2]
    return {"length": source or target, **({"target_length": target} if source and target else {})}


class TestFlops:
    @pytest.mark.parametrize("length", [128, 512])
    @pytest.mark.parametrize("share", [0.15, 1.0])
    @pytest.mark.parametrize(("name", "L", "d"), [("bert-base", 12, 768), ("bert-large", 24, 1024)])
    def test_encoder_formula(self, name: str, L: int, d: int, length: int, share: float) -> None:  # noqa: N803
        P, V = 12 * d * d, 30522
        expected = 6 * L * P + 12 * L * d * length + share * 6 * (d * V + d * d)
        actual = flops_per_token(catalog.resolve(name), length=length, targets=share)
        assert actual == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(("name", "L", "d"), [("gpt2-small", 12, 768), ("gpt2-xl", 48, 1600)])
    def test_decoder_formula(self, name: str, L: int, d: int) -> None:  # noqa: N803
        P, V, S = 12 * d * d, 50257, 1024
        expected = 6 * (L * P + d * V) + 6 * L * d * S
        assert flops_per_token(catalog.resolve(name), length=S) == pytest.approx(expected, rel=1e-12)

    def test_numbers_of_the_page(self) -> None:
        bert = catalog.resolve("bert-base")
        assert flops_per_token(bert, length=512, targets=0.15) == pytest.approx(587_858_688, rel=1e-12)
        assert flops_per_token(catalog.resolve("gpt2-small"), length=1024) == pytest.approx(797_815_296, rel=1e-12)

    @pytest.mark.parametrize("name", TINY)
    def test_forward_is_what_torch_counts(self, name: str) -> None:
        """The naive backend multiplies the masked half of causal scores too: that half is added before comparing."""
        model, batch, tokens = tiny(name)
        model.attention_backend = "eager"
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(batch)
        expected = tokens * flops_per_token(model.spec, **lengths(name), training=False)
        if model.spec.decoder:
            heads, _, head = model.spec.decoder.blocks[0].attention.resolve_shape(width=64)
            rows, length = batch.rows, batch.length
            expected += model.spec.decoder.depth * rows * length * 4 * heads * head * (length / 2)
        assert counter.get_total_flops() == pytest.approx(expected, rel=1e-12)

    def test_training_is_three_times_forward(self) -> None:
        for name in ("bert-tiny", "llama2-7b", "t5-small"):
            spec = catalog.resolve(name)
            forward = flops_per_token(spec, length=128, training=False)
            assert flops_per_token(spec, length=128) == 3 * forward

    def test_an_example_is_shared_by_all_its_tokens(self) -> None:
        spec = catalog.resolve("t5-base")
        short, long = (flops_per_token(spec, length=512, target_length=n) * (512 + n) for n in (1, 114))
        assert short < long
        assert flops_per_token(spec, length=512) == flops_per_token(spec, length=512, target_length=512)

    def test_shared_layers_are_computed_each_time(self) -> None:
        spec = catalog.resolve("bert-small")
        shared = replace(spec, {"encoder.share": 1})
        assert flops_per_token(shared, length=128) == flops_per_token(spec, length=128)
        assert shared.params().total < spec.params().total

    def test_a_window_bounds_the_scores(self) -> None:
        mistral = catalog.resolve("mistral-7b")
        open_ = replace(mistral, {"decoder.blocks.0.attention.window": None})
        assert flops_per_token(mistral, length=4096) == flops_per_token(open_, length=4096)
        hidden = count_visible_keys(32768, None, causal=True) - count_visible_keys(32768, 4096, causal=True)
        scores = 3 * 4 * 4096 * 32 * hidden
        longer = flops_per_token(open_, length=32768) - flops_per_token(mistral, length=32768)
        assert longer == pytest.approx(scores, rel=1e-9)

    @given(length=st.integers(1, 60), window=st.integers(1, 80) | st.none(), causal=st.booleans())
    def test_seen_is_within_one_key_of_the_exact_count(self, length: int, window: int | None, causal: bool) -> None:
        allowed = 0
        for query in range(length):
            for key in range(length):
                near = window is None or abs(key - query) < window
                allowed += near and not (causal and key > query)
        actual = count_visible_keys(length, window, causal=causal)
        assert abs(actual - allowed / length) <= 1
        if window is None or window >= length:
            assert actual == (length / 2 if causal else length)

    @given(
        depth=st.integers(1, 40), share=st.integers(1, 40) | st.none(), kinds=st.integers(1, 4), size=st.integers(1, 3)
    )
    def test_every_layer_is_counted_once(self, depth: int, share: int | None, kinds: int, size: int) -> None:
        stack = catalog.resolve("bert-tiny").encoder
        assert stack is not None
        block = stack.blocks[0]
        blocks = tuple(replace(block, {"feedforward.hidden": 8 + i}) for i in range(kinds))
        share = None if share is None else min(share, depth)
        sizes = {"depth": depth * size, "share": share and share * size, "group_size": size}
        stack = type(stack)(**sizes, blocks=blocks)
        found: Counter[int] = Counter()
        for made, times in cost._iterate_blocks(stack):
            found[made.feedforward.hidden] += times
        assert +found == Counter(stack.layers[i].feedforward.hidden for i in stack.layer_indices)

    @pytest.mark.parametrize("bad", [{"length": 0}, {"length": 8, "targets": 1.5}, {"length": 8, "targets": math.nan}])
    def test_what_cannot_be(self, bad: dict[str, float]) -> None:
        name, value = list(bad.items())[-1]
        with pytest.raises(UsageError, match=rf"{name}.*{value}"):
            flops_per_token(catalog.resolve("bert-tiny"), **bad)  # type: ignore[arg-type]

    def test_usual_targets(self) -> None:
        shares = {name: estimate_target_share(catalog.resolve(name)) for name in ("bert", "gpt2", "t5", "xlnet")}
        assert shares == {"bert": 0.15, "gpt2": 1.0, "t5": 1.0, "xlnet": 1 / 6}


class TestParts:
    def test_they_add_up_for_every_published_size(self) -> None:
        for name in catalog.list_names():
            spec = catalog.resolve(name)
            assert sum(count_params_by_part(spec).values()) == spec.params().total, name
            assert min(count_params_by_part(spec).values()) > 0

    def test_they_are_what_the_modules_hold(self) -> None:
        model, _, _ = tiny("t5-shared")
        actual = count_params_by_part(model.spec)
        assert model.decoder is not None
        cross = [p for name, p in model.decoder.named_parameters() if ".cross." in name]
        assert actual["decoder cross-attention"] == sum(map(Tensor.numel, cross))
        assert "decoder attention" not in actual  # they are the encoder's
        assert actual["token table"] == model.tokens.weight.numel()


class Kept:
    """The bytes that autograd keeps for the backward pass, each storage once, those of the model left out."""

    def __init__(self, model: nn.Module) -> None:
        self.outside = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
        self.found: dict[int, int] = {}
        self.alive: list[Tensor] = []  # or an address might be used again

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.outside:
            self.found[storage.data_ptr()] = storage.nbytes()
            self.alive.append(tensor)
        return tensor

    @property
    def total(self) -> int:
        return sum(self.found.values())


FACTOR = 1.6
"""Allowed relative error of the estimate."""


class TestMemory:
    @pytest.mark.parametrize("name", TINY)
    def test_activations_are_what_autograd_keeps(self, name: str) -> None:
        model, batch, tokens = tiny(name)
        model.train()
        kept = Kept(model)
        with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
            model.loss(model.states(batch), batch)
        actual = estimate_memory(model.spec, tokens=tokens, **lengths(name), training=True, precision="fp32")
        assert 1 / FACTOR < kept.total / actual.activations < FACTOR

    def test_dropout_is_counted_by_the_byte(self) -> None:
        dry, wet = (catalog.resolve("bert-base", {"dropout": rate}) for rate in (0.0, 0.1))
        given = {"tokens": 512, "length": 512, "training": True, "targets": 0.0}
        more = [
            estimate_memory(wet, **given, precision=kind).activations
            - estimate_memory(dry, **given, precision=kind).activations
            for kind in ("fp32", "bf16")
        ]
        assert more == [512 * (12 * 2 + 1) * 768] * 2

    @pytest.mark.parametrize(("precision", "each"), [("fp32", 4), ("bf16", 6)])
    def test_training_state(self, precision: str, each: int) -> None:
        spec = catalog.resolve("bert-base")
        total = spec.params().total
        actual = estimate_memory(spec, tokens=512, length=512, training=True, precision=precision)  # type: ignore[arg-type]
        assert (actual.weights, actual.gradients, actual.optimizer) == (each * total, 4 * total, 8 * total)
        assert actual.cache == 0
        assert actual.total == (each + 12) * total + actual.activations

    def test_activations_grow_with_the_tokens(self) -> None:
        spec = replace(catalog.resolve("gpt2-small"), {"head": None})
        one, four = (
            estimate_memory(spec, tokens=n * 1024, length=1024, training=True, precision="bf16").activations
            for n in (1, 4)
        )
        assert four == pytest.approx(4 * one, rel=1e-6)

    def test_logits_are_bounded_by_a_block(self) -> None:
        """Beyond that a target costs its state and its gradient."""
        spec = catalog.resolve("gpt2-small")
        none, some = (
            estimate_memory(spec, tokens=2**20, length=1024, training=True, precision="bf16", targets=share).activations
            for share in (0.0, 1.0)
        )
        assert some - none == 2**20 * 2 * 2 * 768 + 4 * 50257 * 768 + (2 << 30)

    def test_bert_by_hand(self) -> None:
        """Per token and layer: 4 d read and normed, 4 d of attention, 8 d hidden, all of 4 bytes; dropout aside."""
        spec = catalog.resolve("bert-base", {"dropout": 0.0})
        actual = estimate_memory(spec, tokens=1, length=512, training=True, precision="fp32", targets=0.0)
        assert actual.activations == 4 * (12 * 16 * 768 + 768)

    @pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "t5", "bart"])
    def test_the_cache_is_the_one_that_is_built(self, name: str) -> None:
        model, _, _ = tiny(name)
        source, target = TINY[name][2]
        built = model.new_cache(3, target, source=source)
        stores = [store for layer in [*built.layers, *built.cross] for store in (layer.keys, layer.values)]
        size = sum(store.numel() for store in stores)
        actual = estimate_memory(
            model.spec, tokens=3 * (source + target), **lengths(name), training=False, precision="bf16"
        )
        assert actual.cache == 2 * size

    def test_inference(self) -> None:
        bert, gpt = catalog.resolve("bert-base"), catalog.resolve("gpt2-small")
        actual = estimate_memory(bert, tokens=512, length=512, training=False, precision="bf16")
        assert (actual.weights, actual.gradients, actual.optimizer, actual.cache) == (2 * bert.params().total, 0, 0, 0)
        assert 0 < actual.activations < 0.2 * actual.weights
        two = estimate_memory(gpt, tokens=2048, length=1024, training=False, precision="fp32")
        assert two.cache == 2 * 2 * 12 * 768 * 1024 * 4
        assert estimate_memory(gpt, tokens=1, length=1024, training=False, precision="fp32").cache == two.cache // 2

    def test_total_is_the_sum(self) -> None:
        assert MemoryEstimate(weights=1, gradients=2, optimizer=4, activations=8, cache=16).total == 31

    def test_an_empty_batch_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"\b0\b"):
            estimate_memory(catalog.resolve("bert"), tokens=0, length=8, training=True, precision="fp32")


class TestTwoStreams:
    LENGTH, ROWS = 96, 4

    def ordered(self, every: int) -> tuple[LanguageModel, pt.Batch]:
        """A model, and a batch in which every so many tokens there is a target, in the order of the text."""
        model = catalog.build("xlnet-base", **SMALL, dropout=0.0)
        labels = [5 if i % every == 0 else -100 for i in range(self.LENGTH)]
        batch = pt.batch([[3] * self.LENGTH] * self.ROWS, labels=[labels] * self.ROWS)
        order = torch.where(batch.positions % every == 0, 1 + batch.positions, 0)
        return model, dataclasses.replace(batch, order=order)

    @pytest.mark.parametrize("every", [1, 6])
    def test_forward_is_what_torch_counts(self, every: int) -> None:
        """Besides: keys of all distances once, scores of those that no key is at, and queries where there are none."""
        model, batch = self.ordered(every)
        model.attention_backend = "eager"
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(batch)
        S, W, N = self.LENGTH, 64, self.LENGTH * self.ROWS
        expected = N * flops_per_token(model.spec, length=S, targets=1 / every) / 3
        expected += 3 * (4 * S * W * W + 2 * W * S * N + 2 * W * S * (4 * N - 3 * N / every))
        assert counter.get_total_flops() == pytest.approx(expected, rel=1e-12)

    def test_without_an_order_there_is_one(self) -> None:
        model, batch = self.ordered(6)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.attention_backend = "eager"
            model(dataclasses.replace(batch, order=None))
        S, W, N = self.LENGTH, 64, self.LENGTH * self.ROWS
        expected = N * flops_per_token(model.spec, length=S, targets=1 / 6, training=False)
        expected += 3 * (4 * S * W * W + 2 * W * S * N)
        assert counter.get_total_flops() == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("every", [1, 6])
    def test_activations_are_what_autograd_keeps(self, every: int) -> None:
        model, batch = self.ordered(every)
        model.train()
        kept = Kept(model)
        with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
            model.loss(model.states(batch), batch)
        N = self.LENGTH * self.ROWS
        given = {"tokens": N, "length": self.LENGTH, "targets": 1 / every}
        actual = estimate_memory(model.spec, **given, training=True, precision="fp32")
        assert 1 / FACTOR < kept.total / actual.activations < FACTOR


class TestDevices:
    def test_the_table(self) -> None:
        assert [*DEVICES] == [
            *("h200", "h100", "a100", "l40s", "l4", "t4"),
            *("rtx4090", "rtx3090", "apple-m2", "laptop-cpu"),
        ]
        for name, device in DEVICES.items():
            assert device.name == name
            assert device.flops[device.precision] == max(device.flops.values())
            assert 0.1 <= device.utilisation <= 0.6
            assert device.rate == device.flops[device.precision] * device.utilisation
            assert (device.dollars_per_hour == device.watts / 1000 * 0.30) == device.is_owned
        assert DEVICES["h200"].flops["bf16"] == 989e12  # the rate that targets are judged by
        assert DEVICES["t4"].precision == "fp16"

    def test_an_estimate_by_hand(self) -> None:
        spec = catalog.resolve("bert-base")
        actual = estimate_cost(spec, 1e9, DEVICES["h200"], 512, 0.15)
        assert actual.flops == pytest.approx(5.87858688e17)
        assert actual.seconds == pytest.approx(5.87858688e17 / (989e12 * 0.4))
        assert actual.kwh == pytest.approx(actual.seconds / 3600 * 0.7)
        assert actual.co2_kg == pytest.approx(actual.kwh * 0.475)
        assert actual.dollars == pytest.approx(actual.seconds / 3600 * 3.80)
