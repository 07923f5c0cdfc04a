"""What a stranger's checkpoint holds, judged by its tensors: names in today's form, heads, and whether it is tied."""

import re
from collections.abc import Mapping

import torch

from pretune.core.config.read import shown
from pretune.core.errors import CheckpointError
from pretune.models import tensor_files
from pretune.models.hf.config import Layout
from pretune.models.tensor_files import Stored


def recognise(
    layout: Layout, promised: frozenset[str] | None, tied: bool, stored: Mapping[str, Stored]
) -> tuple[dict[str, Stored], frozenset[str], bool]:
    """The tensors under their full names, the parts that are there, and whether the head is the token table.

    `promised` and `tied` are what the config claims. Errors name the file of the tensor they are about.
    """
    tensors = _renamed(layout, stored)
    return tensors, _parts(layout, promised, tensors), _tied(layout, tied, tensors)


def with_head(layout: Layout, parts: frozenset[str], tied: bool) -> frozenset[str]:
    """The parts, with the vocabulary head of a decoder where it needs no weights of its own, as its full class does."""
    head = layout.base.head
    if "head" in parts or head is None or layout.base.decoder is None:
        return parts
    if not tied or head.transform is not None or head.bias == "learned":
        raise CheckpointError(
            "no vocabulary head is in the weights, and it is not the token table; take one with its head"
        )
    return parts | {"head"}


def _renamed(layout: Layout, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """As in the full class: with the body's prefix, `gamma` and `beta` of old releases renamed, buffers left out."""
    every = layout.rules_of(layout.base)
    outside = {rule.theirs.split(".")[0] for rule in every if not rule.theirs.startswith(layout.prefix)}
    bare = not any(name.startswith(layout.prefix) for name in stored)
    out: dict[str, Stored] = {}
    for name, there in stored.items():
        new = re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
        if bare and new.split(".")[0] not in outside:
            new = layout.prefix + new
        if any(re.fullmatch(pattern, new) for pattern in layout.skipped):
            continue
        if new in out:
            raise CheckpointError(f"{there.file}: tensors {shown(out[new].key)} and {shown(name)} are the same weight")
        out[new] = there
    for name, twin in layout.twins.items():
        if twin in out:
            out[name] = out.pop(twin)
    return out


def _parts(layout: Layout, promised: frozenset[str] | None, stored: Mapping[str, Stored]) -> frozenset[str]:
    """Which heads are there: those its class must have, and those whose tensors lie in the file."""
    there = {part for part, mark in layout.marks.items() if mark in stored}
    if "pair" in there:
        there.add("pooler")  # which it reads
    if promised is None:  # no class is named: all but what the tensors would show
        promised = frozenset(part for part in next(iter(layout.classes.values())) if part not in layout.marks)
    if promised == {"pooler"}:  # NOTE: the bare class is often saved without its pooler
        promised = frozenset()
    return promised | there


def _tied(layout: Layout, tied: bool, stored: dict[str, Stored]) -> bool:
    """Decided by the tensors: a vocabulary matrix that is in the file and differs from the token table is untied.

    Copies of the table are taken out of `stored` on the way.
    """
    table = next(rule.theirs for rule in layout.rules_of(layout.base) if rule.ours == "tokens.weight")
    for copy in layout.copies:
        if copy in stored:
            if not _equal(stored.setdefault(table, stored[copy]), stored[copy]):
                raise CheckpointError(
                    f"{stored[copy].file}: tensor '{stored[copy].key}' differs from '{stored[table].key}', "
                    "but they must be one table"
                )
            del stored[copy]
    if layout.head not in stored or not tied:
        return tied
    head = stored.pop(layout.head)
    if _equal(stored.setdefault(table, head), head):
        return True
    stored[layout.head] = head
    return False


def _equal(a: Stored, b: Stored) -> bool:
    if a == b:
        return True
    return (
        a.shape == b.shape and {a.dtype, b.dtype} <= tensor_files.FLOATS and torch.equal(*tensor_files.values([a, b]))
    )
