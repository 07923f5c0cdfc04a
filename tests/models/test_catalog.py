"""From names and settings to specs: what is found, what follows, and what is refused."""

import tracemalloc
from typing import Any

import pytest

import pretune as pt
from pretune.core.config import list_paths
from pretune.core.errors import UsageError
from pretune.models.catalog import list_names, list_settings, parse_name, resolve
from pretune.models.families import FAMILIES
from pretune.models.spec import Normal
from pretune.nn.layers import RMSNorm
from pretune.nn.recurrent_stack import Recurrent
from tests.selection import keep_quick

TYPICAL = ("bert", "electra", "gpt2", "llama3", "bart", "t5", "xlnet", "elmo", "ulmfit")
"""Families of different shapes: encoders, decoders, both, two streams, and recurrent layers."""


def refused(name: str, settings: dict[str, Any] | None = None) -> str:
    """The one line with which a name or setting is refused."""
    with pytest.raises(UsageError) as error:
        resolve(name, settings)
    assert "\n" not in str(error.value)
    return str(error.value)


# Names


def test_names_are_found() -> None:
    for name in list_names():
        family, size = parse_name(name)
        assert f"{family}-{size}" == name and size in FAMILIES.get(family).sizes
    assert len(list_names()) == len({*list_names()}) == sum(len(FAMILIES.get(family).sizes) for family in FAMILIES)


def test_a_family_alone_is_its_usual_size() -> None:
    for family in FAMILIES:
        assert parse_name(family) == (family, FAMILIES.get(family).default)
        assert resolve(family) == resolve(f"{family}-{FAMILIES.get(family).default}")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("t5v1.1-small", ("t5v1.1", "small")),
        ("t5-table-lm", ("t5-table", "lm")),
        ("t5-table-enc-dec-half", ("t5-table", "enc-dec-half")),
        ("xlm-roberta-large", ("xlm-roberta", "large")),
        ("miniberta-med-small", ("miniberta", "med-small")),
        ("gpt2-xl", ("gpt2", "xl")),
    ],
)
def test_families_with_a_dash_or_a_dot(name: str, found: tuple[str, str]) -> None:
    assert parse_name(name) == found


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("brt", "bert"),
        ("BERT-base", "bert-base"),
        ("bert-bse", "base"),
        ("lama2-7b", "llama2-7b"),
        ("gpt-2", "gpt2"),
        ("t5-tabel", "t5-table"),
        ("t5v1-small", "t5v1.1-small"),
    ],
)
def test_did_you_mean(name: str, meant: str) -> None:
    assert f"'{meant}'" in refused(name)


@pytest.mark.parametrize("name", ["", "bert-", "-base", "xyzzy", "bert-base-uncased", "bert-base-"])
def test_unknown_names(name: str) -> None:
    assert f"'{name.removeprefix('bert-')}'" in refused(name)


# Settings


def test_derived_widths_follow() -> None:
    """Derived values are derived again; values that are set stay."""
    assert resolve("bert", {"width": 384, "heads": 6}).last_stack.blocks[0].feedforward.hidden == 4 * 384
    assert resolve("bert", {"width": 384, "hidden": 500}).last_stack.blocks[0].feedforward.hidden == 500
    assert resolve("llama", {"width": 384}).last_stack.blocks[0].feedforward.hidden == 1024
    assert resolve("t5", {"width": 64}).head.scale == 1 / 8
    by_path = resolve("bert", {"width": 384, "encoder.blocks.0.feedforward.hidden": 500})
    assert by_path.last_stack.blocks[0].feedforward.hidden == 500


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        ({"vocab": "8192"}, "vocab", 8192),
        ({"vocab": "30_000"}, "vocab", 30_000),
        ({"vocab": "3e4"}, "vocab", 30_000),
        ({"model.vocab": "64"}, "vocab", 64),
        ({"vocab": "9007199254"}, "vocab", 9007199254),
        ({"dropout": "0.25"}, "encoder.blocks.0.dropout", 0.25),
        ({"dropout": 0}, "encoder.blocks.0.attention.dropout", 0),
        ({"encoder.blocks.0.attention.window": "16"}, "encoder.blocks.0.attention.window", 16),
        ({"encoder.position": "rotary", "encoder.position.theta": "500"}, "encoder.position.theta", 500.0),
        ({"encoder.share": "1"}, "encoder.share", 1),
        ({"init.std": "1e-2"}, "init", Normal(std=0.01)),
        ({"encoder.norm": "rms_norm"}, "encoder.norm", RMSNorm()),
        ({"pooler": None, "pair": "none"}, "pooler", None),
    ],
)
def test_text_is_read_by_its_field(settings: dict[str, Any], path: str, value: Any) -> None:
    actual: Any = resolve("bert", settings)
    for part in path.split("."):
        actual = actual[int(part)] if part.isdecimal() else getattr(actual, part)
    assert actual == value and type(actual) is type(value)


def test_switches_and_what_can_be_empty() -> None:
    assert resolve("llama", {"tied": "True"}).head.tied and not resolve("llama3-1b", {"tied": "false"}).head.tied
    assert resolve("mistral", {"window": None}).last_stack.blocks[0].attention.window is None
    assert resolve("mistral", {"window": "none"}).last_stack.blocks[0].attention.window is None
    assert resolve("mistral", {"window": "64"}).last_stack.blocks[0].attention.window == 64
    assert resolve("llama3", {"kv_heads": None}).last_stack.blocks[0].attention.kv_heads is None
    assert resolve("bert", {"hidden": None}) == resolve("bert")


@pytest.mark.parametrize("family", keep_quick(FAMILIES, *TYPICAL))
def test_every_knob_of_a_recipe_does_something(family: str) -> None:
    """Two values that it takes give two specs."""
    knobs = list_settings(FAMILIES.get(family))
    assert {"width", "depth", "vocab"} <= set(knobs)
    assert "heads" in knobs or isinstance(resolve(family).last_stack, Recurrent), "only attention has heads"
    for knob, annotation in knobs.items():
        values = {bool: (True, False), float: (0.25, 0.5)}.get(
            annotation, (1, 2, 4, 6, 8, 16, 768, 1536, 1792, 3584, 4096)
        )
        actual = []
        for value in values:
            try:
                actual.append(resolve(family, {knob: value}))
            except UsageError:
                continue
        assert len(actual) > 1 and all(spec != actual[0] for spec in actual[1:]), knob


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"widht": 12}, ["'widht'", "'width'"]),
        ({"model.dept": 12}, ["'dept'", "'depth'"]),
        ({"encoder.depht": 12}, ["'encoder.depht'", "'encoder.depth'"]),
        ({"encoder.blocks.0.attention.head": 3}, ["'encoder.blocks.0.attention.heads'"]),
        ({"encoder.blocks.1.dropout": 0.1}, ["encoder.blocks"]),
        ({"decoder.depth": 3}, ["decoder"]),
        ({"": 3}, ["''"]),
        ({"width": "wide"}, ["width", "'wide'"]),
        ({"width": 1.5}, ["width", " 1.5"]),
        ({"width": "1.5"}, ["width", "'1.5'"]),
        ({"width": True}, ["width", "true"]),
        ({"width": None}, ["width", "null"]),
        ({"dropout": "nan"}, ["dropout", "'nan'"]),
        ({"dropout": "much"}, ["dropout", "'much'"]),
        ({"dropout": 1.5}, ["dropout", " 1.5"]),
        ({"hidden": "inf"}, ["hidden", "'inf'"]),
        ({"width": 12, "model.width": 24}, ["'width'", "model."]),
        ({"width": 512}, ["heads 12", "width 512"]),
        ({"heads": 5}, ["heads 5", "width 768"]),
        ({"encoder": None}, ["encoder"]),
        ({"encoder.position": "learnt"}, ["'learnt'", "'learned'"]),
    ],
)
def test_refused(settings: dict[str, Any], words: list[str]) -> None:
    message = refused("bert", settings)
    assert all(word in message for word in words)


ABSURD = {
    "bert": [
        *({knob: size} for knob in ("vocab", "width", "positions", "hidden", "depth") for size in (10**13, -1, 0)),
        {"width": 12 * 10**6, "depth": 10**4},
        {"vocab": "1e13"},
        {"vocab": 2**70},
        {"heads": 0},
        {"heads": 10**13},
        {"encoder.depth": 10**15},
        {"encoder.share": 0},
        {"encoder.share": 10**9, "encoder.depth": 10**9},
        {"encoder.embed.segments": 10**13},
        {"encoder.embed.segments": -1},
        {"encoder.position.rows": 0},
        {"pair.classes": 10**13},
        {"encoder.embed.factor": '{"width": 100000000000000}'},
        {"encoder.embed.factor": '{"width": 0}'},
    ],
    "t5": [{"head_width": 10**13}, {"head_width": 0}, {"encoder.position.buckets": 10**13}],
    "llama": [{"kv_heads": 0}, {"kv_heads": 3}, {"context": -5}, {"decoder.blocks.0.attention.window": 0}],
    "opt-350m": [{"table": 10**13}, {"table": 0}],
}


@pytest.mark.parametrize(
    ("name", "settings"), [(name, each) for name, several in ABSURD.items() for each in several], ids=str
)
def test_absurd_sizes_cost_nothing(name: str, settings: dict[str, Any]) -> None:
    """They are refused by arithmetic: nothing is built, no list of a billion layers is made."""
    tracemalloc.start()
    try:
        refused(name, settings)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


def test_build_takes_a_name_or_a_spec() -> None:
    small = {"width": 24, "heads": 2, "depth": 1, "vocab": 30, "positions": 8}
    model = pt.build("bert", **small)
    assert model.spec == resolve("bert", small)
    assert pt.build(model.spec).spec == model.spec
    assert pt.build(model.spec, vocab=40).spec.vocab == 40, "settings are never passed over"
    with pytest.raises(UsageError, match="vocap"):
        pt.build(model.spec, vocap=40)


@pytest.mark.parametrize("name", ["modernbert-base", "olmo2-1b", "gpt2-small", "bart-base"])
@pytest.mark.parametrize("vocab", [2, 1000])
def test_special_tokens_exist_in_the_vocabulary(name: str, vocab: int) -> None:
    published = resolve(name).special
    for spec in (resolve(name, {"vocab": vocab}), resolve(name, {"model.vocab": str(vocab)})):
        assert spec.special.pad == (published.pad if published.pad is not None and published.pad < vocab else None)
        assert spec.special.eos == tuple(end for end in published.eos if end < vocab)
        assert all(token is None or token < vocab for token in (spec.special.bos, spec.special.start))
    assert resolve(name, {"vocab": vocab, "special.bos": 1}).special.bos == 1


def test_special_tokens_of_a_spec_with_another_vocabulary() -> None:
    spec = resolve("gpt2-small", {"width": 24, "heads": 2, "depth": 1, "positions": 8})
    assert pt.build(spec, vocab=40).spec.special.eos == ()
    assert pt.build(spec).spec.special.eos == (50256,)


def test_every_path_of_a_spec_can_be_set_to_itself() -> None:
    spec = resolve("t5-table-prefix-lm")
    for path in list_paths(spec):
        value: Any = spec
        for part in path.split("."):
            value = value[int(part)] if part.isdecimal() else getattr(value, part)
        assert resolve("t5-table-prefix-lm", {path: value}) == spec
