"""What a stranger's checkpoint holds, judged by its tensors: names in today's form, heads, and whether it is tied."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from pretune.core.errors import CheckpointError
from pretune.models import files
from pretune.models.files import Stored
from pretune.models.huggingface import Layout


def recognise(
    layout: Layout, found: Mapping[str, Any], stored: Mapping[str, Stored]
) -> tuple[dict[str, Stored], frozenset[str], bool]:
    """The tensors under their full names, the parts that are there, and whether the head is the token table."""
    tensors = _renamed(layout, stored)
    parts = _parts(layout, found, tensors)
    return tensors, parts, _tied(layout, found, tensors)


def _renamed(layout: Layout, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """As in the full class: with the body's prefix, `gamma` and `beta` of old releases renamed, buffers left out."""
    every = layout.rules_of(layout.template())
    outside = {rule.theirs.split(".")[0] for rule in every if not rule.theirs.startswith(layout.prefix)}
    bare = not any(name.startswith(layout.prefix) for name in stored)
    out = {}
    for name, there in stored.items():
        new = re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
        if bare and new.split(".")[0] not in outside:
            new = layout.prefix + new
        if not any(re.fullmatch(pattern, new) for pattern in layout.skipped):
            out[new] = there
    for name, twin in layout.twins.items():
        if twin in out:
            out[name] = out.pop(twin)
    return out


def _parts(layout: Layout, found: Mapping[str, Any], stored: Mapping[str, Stored]) -> frozenset[str]:
    """Which heads are there: those its class must have, and those whose tensors lie in the file."""
    classes = found.get("architectures") or []
    if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise CheckpointError("architectures must be a list of class names")
    shown = {part for part, mark in layout.marks.items() if mark in stored}
    if not classes:  # silent: all but what the tensors would show
        return frozenset(shown | {part for part in next(iter(layout.classes.values())) if part not in layout.marks})
    if classes[0] not in layout.classes:
        raise CheckpointError(f"class '{classes[0]}' is not supported; known: {', '.join(layout.classes)}")
    required = layout.classes[classes[0]]
    if required == {"pooler"}:  # NOTE: the bare class is often saved without its pooler
        required = frozenset()
    return frozenset(required | shown)


def _tied(layout: Layout, found: Mapping[str, Any], stored: dict[str, Stored]) -> bool:
    """Decided by the tensors: a vocabulary matrix that is in the file and differs from the token table is untied.

    Copies of the table are taken out of `stored` on the way.
    """
    table = next(rule.theirs for rule in layout.rules_of(layout.template()) if rule.ours == "tokens.weight")
    for copy in layout.copies:
        if copy in stored:
            if table not in stored:
                stored[table] = stored[copy]
            elif not _equal(stored[table], stored[copy]):
                raise CheckpointError(f"{stored[copy].file}: '{copy}' and '{table}' should be one table but differ")
            del stored[copy]
    if layout.head not in stored:
        return found.get("tie_word_embeddings") is not False
    if found.get("tie_word_embeddings") is False:
        return False
    if table not in stored:
        stored[table] = stored.pop(layout.head)
        return True
    if _equal(stored[table], stored[layout.head]):
        del stored[layout.head]
        return True
    return False


def _equal(a: Stored, b: Stored) -> bool:
    return a.shape == b.shape and torch.equal(*files.values([a, b]))
