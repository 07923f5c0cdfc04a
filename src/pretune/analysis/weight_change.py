"""Change of weights between two models of one architecture: how far each layer, and each part of it, moved.

    changes = pt.analyze_diff("runs/sst2")                 # from its base model
    changes = pt.analyze_diff("runs/base", "runs/sst2")    # of two runs
    changes.distance, changes.layers[0].distance, changes.layers[0].kinds["attention"].cosine

The distance is |after - before| / |before| over all weights of a layer, the cosine that of both as one vector.
Adapters that can be merged (LoRA, IA3, BitFit) are merged first: they count as changes of the weights they adapt.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.io import load_with_method
from pretune.adaptation.peft.io import ADAPTER_FILE
from pretune.analysis.held_out import ModelSource, find_base
from pretune.analysis.pictures import Analysis
from pretune.core.api import check_arguments
from pretune.core.config import check_path
from pretune.core.errors import CheckpointError, UsageError
from pretune.inference.text_model import get_language_model
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer
from pretune.training.optim import HEADS_PART, split_parts

OTHER_KIND = "other"
POOLER_PREFIX, HEAD_PREFIX = "pooler.", "task_head."
"""Prefixes of the weights of a task head: those that may be the pooler of its base model, and others."""


@dataclass(slots=True)
class WeightChange:
    """Sums over weights: squares of the change, of the values before and after, and their products."""

    change_squares: float = 0.0
    initial_squares: float = 0.0
    final_squares: float = 0.0
    products: float = 0.0
    params: int = 0

    @property
    def distance(self) -> float:
        """Norm of the change relative to that of the initial weights; 0 if nothing changed."""
        if not self.change_squares:
            return 0.0
        return math.sqrt(self.change_squares / self.initial_squares) if self.initial_squares else math.inf

    @property
    def cosine(self) -> float:
        """Cosine of the weights before and after."""
        norms = math.sqrt(self.initial_squares * self.final_squares)
        return self.products / norms if norms else 1.0 if not self.change_squares else 0.0

    def add(self, initial: Tensor, final: Tensor) -> None:
        """Add a weight; both tensors have the same shape."""
        first, last = initial.detach().double().cpu(), final.detach().double().cpu()
        self.change_squares += float((last - first).square().sum())
        self.initial_squares += float(first.square().sum())
        self.final_squares += float(last.square().sum())
        self.products += float((first * last).sum())
        self.params += first.numel()

    def to_dict(self) -> dict[str, Any]:
        """Return distance, cosine and number of parameters; an infinite distance (weights that were 0) is None."""
        distance = self.distance if math.isfinite(self.distance) else None
        return {"distance": distance, "cosine": max(-1.0, min(1.0, self.cosine)), "params": self.params}


@dataclass(slots=True)
class LayerChange(WeightChange):
    """The change of a layer, of the embeddings or of the heads, in total and by kind of weights."""

    name: str = ""
    kinds: dict[str, WeightChange] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the layer, its change, and that of each kind."""
        kinds = {kind: change.to_dict() for kind, change in self.kinds.items()}
        return {"layer": self.name, **WeightChange.to_dict(self), "kinds": kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChanges(Analysis):
    """Changes of all layers. `added` and `removed` count weights that only one model has, or rows of its tables."""

    initial: str  # name of the model
    final: str
    total: WeightChange
    layers: list[LayerChange]
    added: int
    removed: int

    @property
    def distance(self) -> float:
        """Relative change of all weights."""
        return self.total.distance

    @property
    def cosine(self) -> float:
        """Cosine of all weights before and after."""
        return self.total.cosine

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per layer and kind; the kind "all" is the layer."""
        return [
            {"layer": layer.name, "kind": kind} | WeightChange.to_dict(change)
            for layer in self.layers
            for kind, change in [("all", layer), *layer.kinds.items()]
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all changes as plain data."""
        return {
            "kind": "diff",
            "before": self.initial,
            "after": self.final,
            **self.total.to_dict(),
            "added": self.added,
            "removed": self.removed,
            "layers": [layer.to_dict() for layer in self.layers],
        }

    def __repr__(self) -> str:
        return f"WeightChanges({self.initial!r} to {self.final!r}: {self.distance:.2%}, cosine {self.cosine:.6f})"


@check_arguments()
def analyze_diff(
    model: ModelSource, final: ModelSource | None = None, *, base: str | os.PathLike[str] | None = None
) -> WeightChanges:
    """Compare the weights of two models of one architecture, layer by layer.

    Args:
        model: The first model; or, if it is the only one, a run that is compared with the model it started from.
        final: The second model.
        base: Base model of adapters, if it was moved.

    Raises:
        UsageError: The models have different architectures, or the only one has no known start.
    """
    if final is None:
        if isinstance(model, nn.Module):
            raise UsageError("one model has no known start; pass two models")
        model, final = find_base(Path(model)), model
    initial, last = (open_merged(source, base) for source in (model, final))
    names = [str(source) if not isinstance(source, nn.Module) else "model" for source in (model, final)]
    families = [merged_model.model.spec.family for merged_model in (initial, last)]
    if families[0] != families[1]:
        raise UsageError(
            f"'{names[0]}' is of the family {families[0]}, '{names[1]}' of {families[1]}; compare models of one"
        )
    return compare_weights(
        initial.model, last.model, names=names, heads=(initial.head, last.head), is_merged=last.is_merged
    )


class MergedModel(NamedTuple):
    """A language model, its task head, and whether an adapter was merged into it."""

    model: LanguageModel
    head: nn.Module | None
    is_merged: bool = False


def open_merged(model: ModelSource, base: str | os.PathLike[str] | None = None) -> MergedModel:
    """Return a language model on the CPU with its adapter merged, and its task head, if it has one.

    An adapter that cannot be merged stays as it is.
    """
    if isinstance(model, nn.Module):
        return MergedModel(get_language_model(model), model.head if isinstance(model, ModelWithHead) else None)
    folder = check_path(model)
    is_adapter = (folder / ADAPTER_FILE).is_file()
    loaded_model, method = load_with_method(folder, base=Path(base) if base is not None and is_adapter else None)
    language_model = get_language_model(loaded_model)
    is_merged = method is not None and method.is_mergeable
    if method is not None and is_merged:
        method.merge(language_model)
    return MergedModel(
        language_model, loaded_model.head if isinstance(loaded_model, ModelWithHead) else None, is_merged
    )


def compare_weights(
    initial_model: LanguageModel,
    final_model: LanguageModel,
    *,
    names: Sequence[str] = ("before", "after"),
    heads: tuple[nn.Module | None, nn.Module | None] = (None, None),
    is_merged: bool = False,
) -> WeightChanges:
    """Compare the weights that two models share; of tables with new rows (added tokens), the common rows.

    `heads` are the task heads of fine-tuned models. A weight that a merged adapter added (a bias) was 0. Tables of
    tokens are left out if the tokenizers number tokens differently.
    """
    initial_weights, final_weights = (
        {**dict(model.named_parameters()), **_list_head_weights(head)}
        for model, head in zip((initial_model, final_model), heads, strict=True)
    )
    total, added_count, removed_count = WeightChange(), 0, 0
    layers: list[LayerChange] = []
    parts = split_layers(initial_model)
    if is_merged:
        for part, part_names in split_layers(final_model).items():
            new_names = [name for name in part_names if name not in initial_weights]
            parts.setdefault(part, []).extend(new_names)
            initial_weights |= {name: torch.zeros_like(final_weights[name]) for name in new_names}
    known_names = {name for part_names in parts.values() for name in part_names}
    parts.setdefault(HEADS_PART, []).extend(name for name in initial_weights if name not in known_names)
    has_common_tokens = _number_tokens_alike(initial_model, final_model)
    for part, part_names in parts.items():
        layer = LayerChange(name=_name_layer(part))
        for name in part_names:
            initial, final = initial_weights[name], final_weights.get(name)
            is_other_head = final is not None and name.startswith(HEAD_PREFIX) and final.shape != initial.shape
            is_other_vocabulary = not has_common_tokens and _has_row_per_token(name, initial, initial_model)
            if final is None or is_other_head or is_other_vocabulary:
                removed_count += initial.numel()
                added_count += 0 if final is None else final.numel()
                continue
            first, last, extra = _cut_rows(name, initial, final)
            added_count, removed_count = added_count + max(extra, 0), removed_count + max(-extra, 0)
            kind = _find_kind(part, name)
            changes = [] if kind is None else [layer.kinds.setdefault(kind, WeightChange())]
            for change in (total, layer, *changes):
                change.add(first, last)
        if layer.params:
            layers.append(layer)
    added_count += sum(weight.numel() for name, weight in final_weights.items() if name not in initial_weights)
    blocks = [part for part in split_parts(initial_model) if "." in part]
    if not any(layer.name == _name_layer(part) for layer in layers for part in blocks):
        raise UsageError(f"'{names[0]}' and '{names[1]}' have no layer in common; compare models of one architecture")
    if not all(math.isfinite(layer.change_squares) for layer in layers):
        raise CheckpointError(
            "weights are not finite: a model is damaged or diverged; `pretune verify` names the tensor"
        )
    return WeightChanges(
        initial=names[0], final=names[1], total=total, layers=layers, added=added_count, removed=removed_count
    )


def split_layers(model: nn.Module) -> dict[str, list[str]]:
    """Return the parameter names by part, as `split_parts`, but with the final norm of a stack as a part of its own."""
    names_by_part: dict[str, list[str]] = {}
    for part, names in split_parts(model).items():
        for name in names:
            is_after = "." in part and not name.startswith(f"{part}.")
            names_by_part.setdefault(name.rpartition(".")[0] if is_after else part, []).append(name)
    return names_by_part


def _number_tokens_alike(initial_model: LanguageModel, final_model: LanguageModel) -> bool:
    """Return whether the ids that two tokenizers share are of the same tokens; unknown tokenizers count as equal."""
    first, last = initial_model.tokenizer, final_model.tokenizer
    if not isinstance(first, Tokenizer) or not isinstance(last, Tokenizer) or first.sha256 == last.sha256:
        return True
    return all(first.raw.id_to_token(i) == last.raw.id_to_token(i) for i in range(min(first.vocab, last.vocab)))


def _has_row_per_token(name: str, weight: Tensor, model: LanguageModel) -> bool:
    return weight.shape[:1] == (model.spec.vocab,) and ("tokens" in name or name.startswith("head"))


def _list_head_weights(head: nn.Module | None) -> dict[str, Tensor]:
    """Return the weights of a task head; a first layer that was the pooler of the base model has its name."""
    weights = [] if head is None else head.named_parameters()
    return {f"{POOLER_PREFIX if name.startswith('dense.') else HEAD_PREFIX}{name}": weight for name, weight in weights}


def _cut_rows(name: str, initial: Tensor, final: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the common rows of a weight, and the number of values that only the final one has (or lost)."""
    if initial.shape == final.shape:
        return initial, final, 0
    if initial.dim() != final.dim() or initial.shape[1:] != final.shape[1:] or ".weight" not in f".{name}":
        raise UsageError(
            f"the models differ in '{name}': shape {[*initial.shape]} and {[*final.shape]}; compare models of one "
            "architecture"
        )
    if not ("tokens" in name or "position" in name or "embed" in name or name.startswith("head")):
        raise UsageError(
            f"the models differ in '{name}': {len(initial)} and {len(final)} rows; compare models of one architecture"
        )
    rows = min(len(initial), len(final))
    return initial[:rows], final[:rows], final.numel() - initial.numel()


def _name_layer(part: str) -> str:
    """Return the name of a part for people: blocks are counted from 1.

    >>> _name_layer("encoder.0"), _name_layer("embeddings")
    ('encoder 1', 'embeddings')
    """
    stack, _, number = part.rpartition(".")
    return f"{stack.replace('.', ' ')} {int(number) + 1}" if stack and number.isdecimal() else part.replace(".", " ")


def _find_kind(part: str, name: str) -> str | None:
    """Return the kind of a weight inside a block: its module, or "norms"; None outside of blocks.

    >>> _find_kind("encoder.0", "encoder.0.attention.q.weight"), _find_kind("encoder.0", "encoder.0.attention_norm.w")
    ('attention', 'norms')
    """
    if "." not in part:
        return None
    inner = name.removeprefix(f"{part}.") if name.startswith(f"{part}.") else name.partition(".")[2]
    module = inner.partition(".")[0]
    is_norm = "norm" in module or "norm" in part.rpartition(".")[2]
    return "norms" if is_norm else module if "." in inner else OTHER_KIND
