"""A generator and a discriminator: what they share, what they count, how they are written down and read back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

import pretune as pt
from pretune.core import config
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.catalog import convert_to_shape, list_models, resolve
from pretune.models.cost import flops_per_token
from pretune.models.generator_discriminator import GeneratorDiscriminator, Pair, add_generator, build_pair
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import ModelShape
from pretune.models.verify import verify
from pretune.objectives.base import MODEL_SHAPES

TINY = {"width": 64, "depth": 2, "heads": 4, "vocab": 61, "positions": 24, "table": 12, "dropout": 0.0}


def tiny(**settings: object) -> Pair:
    return add_generator(resolve("electra-small", {**TINY, **settings}))


@pytest.mark.parametrize(
    ("size", "multiplier"), [("small", 1), ("base", 1 / 3), ("large", 1 / 4)], ids=["small", "base", "large"]
)
def test_the_released_generators(size: str, multiplier: float) -> None:
    """Width, heads, hidden layer, projection and head follow from the discriminator's and one number."""
    pair = add_generator(resolve(f"electra-{size}"), multiplier=multiplier)
    assert pair.generator == resolve(f"electra-{size}-generator")
    assert pair.discriminator == resolve(f"electra-{size}")


@pytest.mark.parametrize(("size", "width", "heads"), [("small", 64, 1), ("base", 256, 4), ("large", 256, 4)])
def test_the_generators_of_the_paper(size: str, width: int, heads: int) -> None:
    pair = convert_to_shape(resolve(f"electra-{size}"), ["generator-discriminator"])
    assert isinstance(pair, Pair) and pair.generator.encoder is not None
    block = pair.generator.encoder.blocks[0]
    assert (pair.generator.width, block.attention.heads, block.feedforward.hidden) == (width, heads, 4 * width)
    assert pair.generator.depth == pair.discriminator.depth and pair.generator.table == pair.discriminator.table
    assert list_models(pair) == (pair.generator, pair.discriminator)


@pytest.mark.parametrize(
    "pair",
    [
        tiny(),
        tiny(table=64),
        add_generator(resolve("bert-tiny", {"vocab": 61})),
        add_generator(resolve("roberta-base", {"vocab": 61, "width": 64, "depth": 1, "heads": 4}), multiplier=1),
        convert_to_shape(resolve("electra-base"), ["generator-discriminator"]),
    ],
    ids=["narrow-table", "plain-table", "another-family", "as-wide", "base"],
)
def test_counts_and_round_trip(pair: Pair) -> None:
    model = GeneratorDiscriminator(build_empty(pair.discriminator), build_empty(pair.generator))
    assert sum(p.numel() for p in model.parameters()) == pair.params().total
    bodies = [[part.tokens, part.encoder] for part in (model.generator, model.discriminator)]
    body = {id(p): p.numel() for modules in bodies for module in modules for p in module.parameters()}
    assert sum(body.values()) == pair.params().body
    assert config.from_dict(Pair, json.loads(json.dumps(config.to_dict(pair)))) == pair
    assert pair.shape == model.shape == "generator-discriminator" and model.spec == pair


def test_what_is_shared() -> None:
    model = build_pair(tiny(), seed=3)
    one, other = model.discriminator, model.generator
    assert one.encoder is not None and other.encoder is not None
    shared = {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}
    names = {name for name, p in other.named_parameters() if id(p) in shared}
    assert names == {
        "tokens.weight",
        "encoder.position.table.weight",
        "encoder.embed.segments.weight",
        "encoder.embed.norm.weight",
        "encoder.embed.norm.bias",
    }
    alone = pt.build(model.spec.discriminator, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), alone.parameters(), strict=True))
    again = pt.build(model.spec, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    other_seed = build_pair(tiny(), seed=4)
    drawn = [(a, b) for a, b in zip(model.parameters(), other_seed.parameters(), strict=True) if a.dim() > 1]
    assert not any(torch.equal(a, b) for a, b in drawn)


def load_pair(folder: Path) -> GeneratorDiscriminator:
    return GeneratorDiscriminator(pt.load(folder), pt.load(folder / "generator"))


def test_a_directory_is_the_discriminator_with_its_generator_inside(tmp_path: Path) -> None:
    model = build_pair(tiny())
    model.discriminator.assets.files["vocab.txt"] = b"a\nb\n"
    pt.save(model, tmp_path / "run")
    alone = pt.load(tmp_path / "run")
    assert isinstance(alone, LanguageModel) and alone.spec == model.spec.discriminator and alone.shape == "encoder"
    assert pt.load(tmp_path / "run" / "generator").spec == model.spec.generator
    again = load_pair(tmp_path / "run")
    assert again.spec == model.spec and (tmp_path / "run/generator/vocab.txt").read_bytes() == b"a\nb\n"
    for (name, a), (_, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    lines = verify(tmp_path / "run")
    assert any(line.startswith("generator/values: ") for line in lines)
    pt.save(again, tmp_path / "run", overwrite=True)
    assert load_pair(tmp_path / "run").spec == model.spec


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    pt.save(build_pair(tiny()), tmp_path / "run")
    file = tmp_path / "run/generator/model.safetensors"
    tensors = load_file(file)
    tensors["electra.embeddings.word_embeddings.weight"] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"'tokens.weight'"):
        load_pair(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"generator/model.safetensors: "):
        verify(tmp_path / "run")
    pt.save(pt.build(tiny().discriminator), tmp_path / "alone")
    with pytest.raises(CheckpointError, match="alone/generator: "):
        load_pair(tmp_path / "alone")


@torch.no_grad()
def test_flops_of_the_detector() -> None:
    """It runs at every position, whatever the share of targets."""
    model = build_pair(tiny()).eval()
    model.attention_backend = "eager"
    assert model.generator.attention_backend == "eager"
    with FlopCounterMode(display=False) as counter:
        model.detect(pt.batch([[3] * 16] * 4))
    each = flops_per_token(model.spec.discriminator, length=16, targets=0.0, training=False)
    assert counter.get_total_flops() == pytest.approx(64 * each, rel=1e-12)


def test_refused() -> None:
    with pytest.raises(UsageError, match="'decoder'"):
        add_generator(resolve("gpt2-small"))
    with pytest.raises(UsageError, match=r"multiplier .*1\.5"):
        add_generator(resolve("electra-small"), multiplier=1.5)
    pair = tiny()
    with pytest.raises(UsageError, match="vocabulary"):
        replace(pair, generator=replace(pair.generator, vocab=60))
    with pytest.raises(UsageError, match="detector"):
        replace(pair, discriminator=pair.generator)
    with pytest.raises(UsageError, match=r"two-way.*'t5'"):
        convert_to_shape(resolve("t5-small"), ["two-way"])


def test_shapes_are_those_of_the_objectives() -> None:
    assert get_args(ModelShape) == MODEL_SHAPES
