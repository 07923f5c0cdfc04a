"""What a stranger's checkpoint holds, judged by its tensors: names in today's form, heads, and whether it is tied."""

import re
from collections.abc import Mapping

import torch

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models import tensor_files
from pretune.models.hf.config import Layout
from pretune.models.tensor_files import TensorInfo


def detect_contents(
    layout: Layout, claimed_parts: frozenset[str] | None, tied: bool, infos: Mapping[str, TensorInfo]
) -> tuple[dict[str, TensorInfo], frozenset[str], bool]:
    """The tensors under their full names, the parts that are there, and whether the head is the token table.

    `promised` and `tied` are what the config claims. Errors name the file of the tensor they are about.
    """
    tensors = _rename_tensors(layout, infos)
    return tensors, _detect_parts(layout, claimed_parts, tensors), _detect_tying(layout, tied, tensors)


def add_tied_head(layout: Layout, parts: frozenset[str], tied: bool) -> frozenset[str]:
    """The parts, with the vocabulary head of a decoder where it needs no weights of its own, as its full class does."""
    head = layout.base.head
    if "head" in parts or head is None or layout.base.decoder is None:
        return parts
    if not tied or head.transform is not None or head.bias == "learned":
        raise CheckpointError(
            "no vocabulary head is in the weights, and it is not the token table; take one with its head"
        )
    return parts | {"head"}


def _rename_tensors(layout: Layout, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """As in the full class: with the body's prefix, `gamma` and `beta` of old releases renamed, buffers left out."""
    every = layout.get_rules(layout.base)
    outside = {rule.tensor_name.split(".")[0] for rule in every if not rule.tensor_name.startswith(layout.prefix)}
    bare = not any(name.startswith(layout.prefix) for name in tensors)
    out: dict[str, TensorInfo] = {}
    for name, there in tensors.items():
        new = re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
        if bare and new.split(".")[0] not in outside:
            new = layout.prefix + new
        if any(re.fullmatch(pattern, new) for pattern in layout.skipped_tensors):
            continue
        if new in out:
            raise CheckpointError(
                f"{there.file}: tensors {format_value(out[new].key)} and {format_value(name)} are the same weight"
            )
        out[new] = there
    for name, twin in layout.duplicates.items():
        if twin in out:
            out[name] = out.pop(twin)
    return out


def _detect_parts(
    layout: Layout, claimed_parts: frozenset[str] | None, tensors: Mapping[str, TensorInfo]
) -> frozenset[str]:
    """Which heads are there: those its class must have, and those whose tensors lie in the file."""
    there = {part for part, mark in layout.presence_keys.items() if mark in tensors}
    if "pair" in there:
        there.add("pooler")  # which it reads
    if claimed_parts is None:  # no class is named: all but what the tensors would show
        claimed_parts = frozenset(
            part for part in next(iter(layout.classes.values())) if part not in layout.presence_keys
        )
    if claimed_parts == {"pooler"}:  # NOTE: the bare class is often saved without its pooler
        claimed_parts = frozenset()
    return claimed_parts | there


def _detect_tying(layout: Layout, tied: bool, tensors: dict[str, TensorInfo]) -> bool:
    """Decided by the tensors: a vocabulary matrix that is in the file and differs from the token table is untied.

    Copies of the table are taken out of `stored` on the way.
    """
    table = next(rule.tensor_name for rule in layout.get_rules(layout.base) if rule.param_names == "tokens.weight")
    for copy in layout.copies:
        if copy in tensors:
            if not _are_equal(tensors.setdefault(table, tensors[copy]), tensors[copy]):
                raise CheckpointError(
                    f"{tensors[copy].file}: tensor '{tensors[copy].key}' differs from '{tensors[table].key}', "
                    "but they must be one table"
                )
            del tensors[copy]
    if layout.head not in tensors or not tied:
        return tied
    head = tensors.pop(layout.head)
    if _are_equal(tensors.setdefault(table, head), head):
        return True
    tensors[layout.head] = head
    return False


def _are_equal(a: TensorInfo, b: TensorInfo) -> bool:
    if a == b:
        return True
    return (
        a.shape == b.shape
        and {a.dtype, b.dtype} <= tensor_files.FLOAT_DTYPES
        and torch.equal(*tensor_files.read_tensors([a, b]))
    )
