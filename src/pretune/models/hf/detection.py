"""Detection of the parts of a checkpoint from its tensors, and of a vocabulary head that is tied."""

import re
from collections.abc import Mapping

import torch

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.models import tensor_files
from pretune.models.hf.config import Layout
from pretune.models.tensor_files import TensorInfo


def detect_contents(
    layout: Layout, claimed_parts: frozenset[str] | None, is_tied: bool, infos: Mapping[str, TensorInfo]
) -> tuple[dict[str, TensorInfo], frozenset[str], bool]:
    """Return the tensors under their full names, the parts that are present, and True if the head is tied.

    `claimed_parts` and `is_tied` are the claims of the config. Errors name the file of the tensor.
    """
    tensors = _rename_tensors(layout, infos)
    return tensors, _detect_parts(layout, claimed_parts, tensors), _detect_tying(layout, is_tied, tensors)


def add_tied_head(layout: Layout, parts: frozenset[str], is_tied: bool) -> frozenset[str]:
    """Return the parts with a tied vocabulary head added, for a decoder that was saved without it."""
    head = layout.base.head
    if "head" in parts or head is None or layout.base.decoder is None:
        return parts
    if not is_tied or head.transform is not None or head.bias == "learned":
        raise CheckpointError(
            "the weights have no vocabulary head, and the head is not tied; use a checkpoint with its head"
        )
    return parts | {"head"}


def _rename_tensors(layout: Layout, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Rename tensors as in the full class: body prefix added, old `gamma` and `beta` renamed, buffers dropped."""
    every = layout.get_rules(layout.base)
    outside = {rule.tensor_name.split(".")[0] for rule in every if not rule.tensor_name.startswith(layout.prefix)}
    bare = not any(name.startswith(layout.prefix) for name in tensors)
    out: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        new = re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
        new = layout.aliases.get(new, new)
        if bare and new.split(".")[0] not in outside:
            new = layout.prefix + new
        if any(re.fullmatch(pattern, new) for pattern in layout.skipped_tensors):
            continue
        if new in out:
            raise CheckpointError(
                f"{info.file}: tensors {format_value(out[new].key)} and {format_value(name)} are the same weight"
            )
        out[new] = info
    for name, twin in layout.duplicates.items():
        if twin in out:
            out[name] = out.pop(twin)
    return out


def _detect_parts(
    layout: Layout, claimed_parts: frozenset[str] | None, tensors: Mapping[str, TensorInfo]
) -> frozenset[str]:
    """Return the heads of its class and those whose tensors are present."""
    present = {part for part, mark in layout.presence_keys.items() if mark in tensors}
    if "pair" in present:
        present.add("pooler")  # its input
    if claimed_parts is None:  # no class named: all parts that tensors cannot show
        claimed_parts = frozenset(
            part for part in next(iter(layout.classes.values())) if part not in layout.presence_keys
        )
    if claimed_parts == {"pooler"}:  # NOTE: the bare class is often saved without its pooler
        claimed_parts = frozenset()
    return claimed_parts | present


def _detect_tying(layout: Layout, is_tied: bool, tensors: dict[str, TensorInfo]) -> bool:
    """Return False if the file has a vocabulary matrix that differs from the token table.

    Removes copies of the table from `tensors`.
    """
    table = layout.token_table
    for copy in layout.copies:
        if copy in tensors:
            if not _are_equal(tensors.setdefault(table, tensors[copy]), tensors[copy]):
                raise CheckpointError(
                    f"{tensors[copy].file}: tensor '{tensors[copy].key}' differs from '{tensors[table].key}', "
                    "but both must be the token table"
                )
            del tensors[copy]
    if layout.head not in tensors or not is_tied:
        return is_tied
    head = tensors.pop(layout.head)
    if _are_equal(tensors.setdefault(table, head), head):
        return True
    tensors[layout.head] = head
    return False


def _are_equal(first: TensorInfo, second: TensorInfo) -> bool:
    if first == second:
        return True
    return (
        first.shape == second.shape
        and {first.dtype, second.dtype} <= tensor_files.FLOAT_DTYPES
        and torch.equal(*tensor_files.read_tensors([first, second]))
    )
