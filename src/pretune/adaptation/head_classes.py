"""Task heads in the classes of `transformers`: layout, tensors and config keys, in both directions.

In peft's layout (`modules_to_save`) an adapter belongs to such a class: tensor names start as in that class, and the
head's tensors are stored with the adapter's, under the class's own names.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead, SingleHead
from pretune.adaptation.heads.base import TaskHead
from pretune.adaptation.heads.sequence import Choice, Classification, MultiLabel, Regression
from pretune.adaptation.heads.token import Span, Tagging
from pretune.adaptation.peft.peft_format import ROOT_PREFIX, PeftAdapter, PeftConfig
from pretune.core import config
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, PretuneError
from pretune.models.families import FAMILIES
from pretune.models.hf import checkpoint
from pretune.models.hf.config import HfConfig, allow_null, check_rate, check_size, make_unsupported_error
from pretune.models.hf.weights import HeadLayout, plan_moves
from pretune.models.model import LanguageModel
from pretune.models.spec import Model

PROBLEM_TYPES = {
    "single_label_classification": Classification,
    "multi_label_classification": MultiLabel,
    "regression": Regression,
}
"""Heads of one class of `transformers`, by its `problem_type`."""

BARE_PREFIX = "base_model."
"""Prefix of tensor names if the method adds nothing to the model's modules."""

TASK_TYPES = {
    **dict.fromkeys(("classification", "multi_label", "regression"), "SEQ_CLS"),
    "tagging": "TOKEN_CLS",
    "span": "QUESTION_ANS",
}
"""peft's task type for each kind of head; it has none for multiple choice."""


def export_head(model: ModelWithHead) -> checkpoint.SavedHead | None:
    """Return the head in the layout of the equivalent `transformers` class; None if there is no such class."""
    if model.head is None:
        return None
    spec, tensors = model.model.spec, get_tensors(model.head)
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if getattr(model.spec, "scalar_mix", None) is not None:
        return None
    if layout is None or spec.parts or checkpoint.describe_checkpoint(spec)[0]["model_type"] != layout.model_type:
        return None
    kind = "classification" if type(model.spec) in PROBLEM_TYPES.values() else config.get_kind(model.spec)
    pooling = getattr(model.spec, "pooling", None)
    narrow = spec.table != spec.width and spec.decoder is not None  # NOTE: such a class reads the projected states
    fitting = [
        (name, task)
        for name, task in layout.task_heads.items()
        if task.kind == kind and (task.pooling == pooling or task.write_fields is not None)
    ]
    if not fitting or narrow:
        return None
    name, task = fitting[0]
    if task.ignores_start and spec.special.start not in (None, *spec.special.eos):
        return None
    if spec.is_encoder_decoder and kind == "classification" and not _ends_with_eos(model.model):
        return None
    keys = build_head_config(model.spec)
    if task.read_fields is not None and task.write_fields is not None:
        try:
            keys |= task.write_fields(model.spec)
            fields = task.read_fields(HfConfig(checkpoint.describe_checkpoint(spec)[0] | keys))
        except (PretuneError, AttributeError, StopIteration):
            return None
        if any(getattr(model.spec, name) != value for name, value in fields.items()):
            return None
    head_tensors = {move.tensor_name: tensors[move.param_names[0]] for move in plan_moves(tensors, task.rules)}
    prefix = layout.prefix if task.prefix is None else task.prefix
    return checkpoint.SavedHead({"architectures": [name], **keys}, head_tensors, prefix)


def _ends_with_eos(model: LanguageModel) -> bool:
    """Return whether texts end with the end token, at which the classes of `transformers` pool an encoder-decoder."""
    eos, tokenizer = model.spec.special.eos, model.tokenizer
    return len(eos) == 1 and (tokenizer is None or tokenizer.template.single[-1][0] == eos[0])


def build_head_config(head: TaskHead) -> dict[str, object]:
    """Return the config keys of a `transformers` class for a head."""
    if isinstance(head, Classification | MultiLabel | Tagging):
        names = head.labels or _make_default_labels(head.classes)
    else:
        names = ("LABEL_0", "LABEL_1") if isinstance(head, Span) else ("LABEL_0",)
    keys = {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}
    problem = next((name for name, head_class in PROBLEM_TYPES.items() if type(head) is head_class), None)
    problem_key = {"problem_type": problem} if problem else {}
    return {**keys, **problem_key, "classifier_dropout": getattr(head, "dropout", 0.0)}


def parse_head_config(hf_config: HfConfig, task: HeadLayout, rows: int) -> SingleHead:
    """Return the head spec for the config of a `transformers` class."""
    drop = hf_config.read("classifier_dropout", check=allow_null(check_rate), default=None)
    if drop is None:
        drop = hf_config.read("hidden_dropout_prob", check=allow_null(check_rate), default=None) or 0.0
    names = _read_label_names(hf_config, rows)
    labels = () if names == _make_default_labels(len(names)) else names
    if task.kind == "span":
        return Span()
    if task.kind == "choice":
        return Choice(pooling=task.pooling, dropout=drop)
    if task.kind == "tagging":
        return Tagging(classes=len(names), labels=labels, dropout=drop)
    problem = hf_config.get("problem_type")
    if problem is not None and (not isinstance(problem, str) or problem not in PROBLEM_TYPES):
        raise make_unsupported_error("problem_type", problem, PROBLEM_TYPES)
    if (len(names) == 1 and problem is None) or problem == "regression":
        if len(names) != 1:
            problem = f"{problem} with {len(names)} labels"
            raise make_unsupported_error("problem_type", problem, ["regression with one label"])
        return Regression(pooling=task.pooling, dropout=drop)
    head_class = MultiLabel if problem == "multi_label_classification" else Classification
    return head_class(classes=len(names), labels=labels, pooling=task.pooling, dropout=drop)


def _read_label_names(hf_config: HfConfig, rows: int) -> tuple[str, ...]:
    """Return the labels of a config in order; default names if it has none."""
    table = hf_config.get("id2label")
    if table is None:
        count = hf_config.read("num_labels", "_num_labels", check=allow_null(check_size), default=None) or rows
        if count != rows:
            raise CheckpointError(f"key 'num_labels' = {count}, but the weights have {rows} outputs")
        return _make_default_labels(rows)
    ids = [str(i) for i in range(len(table))] if isinstance(table, dict) else []
    if not ids or set(table) != set(ids) or not all(isinstance(name, str) for name in table.values()):
        raise CheckpointError(f"key 'id2label' = {format_value(table)}: expected names by number, starting at \"0\"")
    return tuple(table[i] for i in ids)


def _make_default_labels(count: int) -> tuple[str, ...]:
    """Return the names of labels that have none, as in `transformers`."""
    return tuple(f"LABEL_{i}" for i in range(count))


def get_tensors(head: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a head by name, on the CPU."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.iterate_weights(head)}


def add_head(adapter: PeftAdapter, head: checkpoint.SavedHead, kind: str) -> PeftAdapter:
    """Return an adapter with the head of a `transformers` class."""
    virtual = "num_virtual_tokens" in adapter.config
    root = BARE_PREFIX if virtual else ROOT_PREFIX
    adapter_tensors = {
        name if virtual else f"{ROOT_PREFIX}{head.prefix}{name.removeprefix(ROOT_PREFIX)}": tensor
        for name, tensor in adapter.tensors.items()
    }
    module_names = dict.fromkeys(name.removeprefix(head.prefix).partition(".")[0] for name in head.tensors)
    peft_config = {**adapter.config, "task_type": TASK_TYPES.get(kind), "modules_to_save": list(module_names)}
    head_tensors = {root + name: tensor for name, tensor in head.tensors.items()}
    return replace(adapter, config=peft_config, tensors=adapter_tensors | head_tensors)


def split_head(tensors: Mapping[str, Tensor], spec: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of a directory in peft's layout for a body of this spec.

    Returns those of the adapter, under the body's names, and those of the head.
    """
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    if layout is None:
        return dict(tensors), {}
    names = {name for head_class in layout.task_heads.values() for name in head_class.tensor_names}
    prefixes = {layout.prefix, *(head_class.prefix or "" for head_class in layout.task_heads.values())}
    prefixes_by_length = sorted(prefixes, key=len, reverse=True)
    has_head = any(_strip_prefix(name) in names for name in tensors)
    adapter, head = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        bare = _strip_prefix(name)
        start = next((prefix for prefix in prefixes_by_length if bare.startswith(prefix)), "")
        if bare in names:
            head[bare] = tensor
        elif has_head and not spec.parts and name.startswith(ROOT_PREFIX):
            adapter[ROOT_PREFIX + bare.removeprefix(start)] = tensor
        else:
            adapter[name] = tensor
    return adapter, head


def detect_head(peft_config: PeftConfig, head: Mapping[str, Tensor], spec: Model) -> tuple[TaskHead, HeadLayout] | None:
    """Return the head spec and class for an adapter's head tensors; None if this body has no such class."""
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    for head_class in {} if layout is None else layout.task_heads.values():
        output_name = plan_moves(["out.weight"], head_class.rules)[0].tensor_name
        has_type = head_class.kind in TASK_TYPES and TASK_TYPES[head_class.kind] == peft_config.get("task_type")
        if has_type and output_name in head and set(head) <= head_class.tensor_names:
            settings = HfConfig({"classifier_dropout": 0.1})  # of new heads; peft's config has none
            return parse_head_config(settings, head_class, head[output_name].shape[0]), head_class
    return None


def _strip_prefix(name: str) -> str:
    return name.removeprefix(ROOT_PREFIX) if name.startswith(ROOT_PREFIX) else name.removeprefix(BARE_PREFIX)
