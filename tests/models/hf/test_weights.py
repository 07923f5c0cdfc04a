"""Name maps and packings: there and back without loss, every parameter once."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import pretune as pt
from pretune.models.catalog import resolve
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import iterate_weights
from pretune.models.hf.weights import FusedPacking, InterleavedPacking, LeadingAxisPacking, Rule, plan_moves
from pretune.models.model import build_empty
from tests.contracts.tiny import CASES, model_of

# Packings


def numbered(*shape: int) -> Tensor:
    return torch.arange(int(torch.tensor(shape).prod())).reshape(shape)


def there_and_back(packing: Any, tensors: list[Tensor], spec: Any) -> Tensor:
    """Ours into one of theirs and out again, and theirs out and in again."""
    packed = packing.pack(tensors, spec)
    assert packed.numel() == sum(tensor.numel() for tensor in tensors)
    sizes = [tensor.shape[0] for tensor in tensors]
    actual = packing.unpack(packed, sizes, spec)
    assert all(torch.equal(a, b) for a, b in zip(actual, tensors, strict=True))
    assert torch.equal(packing.pack(actual, spec), packed)
    return packed


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_leading_axis(shape: list[int]) -> None:
    assert there_and_back(LeadingAxisPacking(), [numbered(*shape)], CASES["gpt2-small"]).shape == (1, *shape)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(0, 7), st.booleans())
def test_fused(sizes: list[int], width: int, turned: bool) -> None:
    """One tensor, and several of any heights (grouped keys), as matrices and as biases."""
    parts = [numbered(n, width) + 1000 * i if width else numbered(n) + 1000 * i for i, n in enumerate(sizes)]
    packed = there_and_back(FusedPacking(is_transposed=turned), parts, CASES["gpt2-small"])
    whole = torch.cat(parts)
    assert torch.equal(packed, whole.T if turned and width else whole)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 7))
def test_interleaved(heads: int, head: int, width: int) -> None:
    """Head by head: rows of q, k and v of one head stand together."""
    spec = resolve("pythia", {"heads": heads, "width": heads * 8, "depth": 1, "vocab": 9})
    shape = (heads * head, width) if width else (heads * head,)
    parts = [numbered(*shape) + 1000 * i for i in range(3)]
    packed = there_and_back(InterleavedPacking(), parts, spec)
    for h in range(heads):
        for i, part in enumerate(parts):
            start = (3 * h + i) * head
            assert torch.equal(packed[start : start + head], part[h * head : (h + 1) * head])


# Plans


def test_plan_by_hand() -> None:
    rules = [
        Rule(("a.{i}.q.{p}", "a.{i}.k.{p}"), "b.{i}.qk.{p}", FusedPacking()),
        Rule("c.weight", "d.kernel"),
        Rule("unused.{i}.weight", "nowhere.{i}.weight"),
    ]
    names = ["a.0.q.weight", "a.0.k.weight", "a.12.q.bias", "a.12.k.bias", "c.weight"]
    moves = plan_moves(names, rules)
    assert [(move.param_names, move.tensor_name) for move in moves] == [
        (("a.0.q.weight", "a.0.k.weight"), "b.0.qk.weight"),
        (("a.12.q.bias", "a.12.k.bias"), "b.12.qk.bias"),
        (("c.weight",), "d.kernel"),
    ]


@pytest.mark.parametrize("name", ["c.bias", "c.weight2", "xc.weight", "a.x.q.weight", "a.0.q.scale", "axq"])
def test_plan_refuses_a_name_without_a_rule(name: str) -> None:
    rules = [Rule("a.{i}.q.{p}", "b.{i}.{p}"), Rule("c.weight", "d.weight")]
    with pytest.raises(KeyError, match=name):
        plan_moves(["c.weight", name], rules)


def laid_out() -> list[tuple[str, Any]]:
    """Every case of a family with a layout, and every size at its real shape."""
    actual = [(name, spec) for name, spec in CASES.items() if not name.startswith("made")]
    return [(name, spec) for name, spec in actual if FAMILIES.get(spec.family).layout is not None]


@pytest.mark.parametrize(("name", "spec"), laid_out(), ids=[name for name, _ in laid_out()])
def test_layouts_map_everything_once(name: str, spec: Any) -> None:
    layout = FAMILIES.get(spec.family).layout
    assert layout is not None
    names = [path for path, _ in iterate_weights(build_empty(spec))]
    rules = layout.get_rules(spec)
    moves = plan_moves(names, rules)
    assert sorted(our for move in moves for our in move.param_names) == sorted(names)
    theirs = [move.tensor_name for move in moves]
    assert len(theirs) == len({*theirs}), "two of ours in one of theirs"
    assert not any("{" in path for path in theirs)
    for path in names:  # by one rule alone: the order of the rules decides nothing
        assert len([rule for rule in rules if fits(rule, path)]) == 1, path


def fits(rule: Rule, path: str) -> bool:
    """Return True if a rule has the parameter, as the first of its group or a later one."""
    ours = (rule.param_names,) if isinstance(rule.param_names, str) else rule.param_names
    patterns = [re.escape(our).replace(r"\{i\}", r"\d+").replace(r"\{p\}", "(weight|bias)") for our in ours]
    return any(re.fullmatch(pattern, path) for pattern in patterns)


def test_every_layout_is_tried() -> None:
    """Also those parts of a layout that no size of ours has: untied heads, other classes."""
    with_layout = {family for family in FAMILIES if FAMILIES.get(family).layout is not None}
    assert {spec.family for _, spec in laid_out()} == with_layout
    assert len(with_layout) >= 20


# Files


def test_any_length_of_header_is_read(tmp_path: Path) -> None:
    """A safetensors file starts with the length of its header: no value of it makes the file something else."""
    folder = tmp_path / "model"
    pt.save(model_of("gpt2-small"), folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (folder / "MANIFEST.json").unlink(missing_ok=True)
    starts = set()
    for pad in range(0, 256, 8):
        save_file(tensors, file, metadata={"format": "pt", "pad": "x" * pad})
        starts.add(file.read_bytes()[0])
        assert torch.equal(pt.load(folder).tokens.weight, tensors["transformer.wte.weight"])
    assert starts == {*range(0, 256, 8)}, "every first byte there is"
