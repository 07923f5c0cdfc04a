"""Models with task heads on disk, in the classes of `transformers` where it has them.

If no class has the head, the body is saved as usual, and the head in the same directory under our own names.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pretune.adaptation.adapted import ModelWithHead, MultiTask, SingleHead, adapt, drop_parts
from pretune.adaptation.head_classes import export_head as export_head
from pretune.adaptation.head_classes import get_tensors, parse_head_config
from pretune.adaptation.heads.token import Span
from pretune.adaptation.peft.base import PeftMethod, get_adapter_state, is_adapter_module
from pretune.adaptation.peft.io import (
    ADAPTER_FILE,
    PEFT_CONFIG_FILE,
    AdapterFile,
    check_base,
    compute_fingerprint,
    find_base_directories,
    load_adapter,
    read_peft_head,
    save_adapter,
)
from pretune.adaptation.quantized import (
    Quantization,
    build_weight_quantizer,
    check_quantization,
    count_bytes,
    count_parameters,
    is_quantized,
    quantize_model,
)
from pretune.adaptation.sentence_head import load_modules
from pretune.adaptation.surgery import set_chat_template
from pretune.core import config, io, log
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, PretuneError, UsageError
from pretune.core.hub import is_hub, resolve_path
from pretune.core.log import format_count
from pretune.core.machine import release_memory
from pretune.models import tensor_files
from pretune.models.catalog import AnyModel
from pretune.models.hf import checkpoint
from pretune.models.hf.config import HfConfig, is_equivalent
from pretune.models.hf.files import CONFIG_FILE
from pretune.models.hf.weights import HEAD_KEY, TASK_PREFIX, HeadLayout, Move, Rule, plan_moves
from pretune.models.model import LanguageModel, build_empty
from pretune.models.spec import PARTS
from pretune.models.tensor_files import TensorInfo
from pretune.text.tokenizer.files import (
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_FILE,
    MAX_TEMPLATE_BYTES,
    read_chat_template,
)

AnyHead = SingleHead | MultiTask


@config.spec(has_kind=False)
class _SavedHead:
    """A head as stored in a directory."""

    head: AnyHead


def save(
    model: AnyModel | ModelWithHead,
    directory: str | Path,
    *,
    overwrite: bool = False,
    shard: int = checkpoint.SHARD_BYTES,
) -> None:
    """Save a directory that `transformers` can load if it has the family; atomic.

    A model with an adapter is saved as `adapter_config.json` and `adapter_model.safetensors`, which peft reads if it
    has the method, with its task head and the path of its base model. A base model that was changed since it was
    loaded, or that is in no directory, is saved in the folder `base`.
    """
    if is_quantized(model):
        raise UsageError("a quantized model cannot be saved; save the original, and quantize it when it is loaded")
    if isinstance(model, LanguageModel | ModelWithHead) and (method := find_method(model)) is not None:
        return save_with_adapter(model, method, directory, overwrite=overwrite)
    if not isinstance(model, ModelWithHead):
        return checkpoint.save(model, directory, overwrite=overwrite, shard=shard)
    saved_head = export_head(model)
    if saved_head is None and model.head is not None:
        tensors = {TASK_PREFIX + name: tensor for name, tensor in get_tensors(model.head).items()}
        saved_head = checkpoint.SavedHead({HEAD_KEY: config.to_dict(model.spec)}, tensors)
    return checkpoint.save(model.model, directory, overwrite=overwrite, head=saved_head, shard=shard)


def find_method(model: LanguageModel | ModelWithHead) -> PeftMethod | None:
    """Return the method that was applied to a model and not merged since, or None."""
    body = model.model if isinstance(model, ModelWithHead) else model
    method: PeftMethod | None = body.peft_method
    return method if any(map(is_adapter_module, body.modules())) else None


def save_with_adapter(
    model: LanguageModel | ModelWithHead, method: PeftMethod, directory: str | Path, *, overwrite: bool = False
) -> None:
    """Save the adapter of a model, and its task head if it has one.

    The directory from which the base model was loaded is referred to if it has the same weights. Otherwise the base
    model is saved too, in the folder `base`.
    """
    body = model.model if isinstance(model, ModelWithHead) else model
    source = body.assets.directory
    if source is not None and not is_hub(source) and Path(source).resolve() == Path(directory).resolve():
        raise UsageError(f"cannot save '{directory}': it is the base model of this adapter; choose another directory")
    is_stored = source is not None and _has_weights(source, body, method)
    base_model = None if is_stored else _rebuild_base(body, method)
    base = source if is_stored else None
    save_adapter(model, method, directory, base=base, base_model=base_model, overwrite=overwrite)


def _has_weights(source: str, model: LanguageModel, method: PeftMethod) -> bool:
    """Return whether a directory has the weights of a model, except for those that the method trains."""
    try:
        base = checkpoint.load(source)
    except (CheckpointError, UsageError):
        return False
    # A task head is in their place.
    drop_parts(base, [part for part in (*PARTS, "span") if getattr(model, part) is None])
    if not is_equivalent(base.spec, model.spec):
        return False
    trained_names, base_weights = set(method.list_trainable_names(model)), dict(checkpoint.iterate_weights(base))
    for name, tensor in model.named_parameters():
        if name in trained_names:
            continue
        weight = base_weights.get(name)
        if weight is None or not torch.equal(weight.to(tensor.dtype), tensor.detach().cpu()):
            return False
    return compute_fingerprint(base, method) == compute_fingerprint(model, method)


def _rebuild_base(model: LanguageModel, method: PeftMethod) -> LanguageModel:
    """Return the base model without the modules of the method, sharing the weights."""
    base, weights = build_empty(model.spec), dict(checkpoint.iterate_weights(model))
    for name, _ in [*checkpoint.iterate_weights(base)]:
        if name not in weights:
            raise UsageError(
                f"the base model was changed, and '{name}' is quantized by {type(method).__name__}, so it cannot be "
                "saved; save the changed model with pt.save and load it before the adapter is added"
            )
        checkpoint.assign(base, name, weights[name].detach())
    base.assets = replace(model.assets, modules={})
    return base


def load(
    directory: str | Path,
    *,
    base: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    head: Literal["tied"] | None = None,
    quantize: Quantization | None = None,
) -> LanguageModel | ModelWithHead:
    """Load a Hugging Face or pretune model directory: a model, with its task head if it has one.

    The base model of an adapter is loaded from the path stored with it, or from `base`. With `head="tied"` a decoder
    that was saved without its vocabulary head gets the token table as head. `quantize` ("int8", "int4", "nf4")
    reduces the linear layers of the blocks to 8 or 4 bits, for inference; an adapter is merged first if it can be.
    """
    return _load_and_quantize(directory, _LoadOptions(base, dtype, device, head), quantize)[0]


def load_with_method(
    directory: str | Path, *, base: str | Path | None = None, quantize: Quantization | None = None
) -> tuple[LanguageModel | ModelWithHead, PeftMethod | None]:
    """Load like `load`, and return the PEFT method of an adapter too; None of one that was merged."""
    return _load_and_quantize(directory, _LoadOptions(base), quantize)


class _LoadOptions(NamedTuple):
    """Search path of an adapter's base, its loading options, and the adapters that led here."""

    base: str | Path | None
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    head: Literal["tied"] | None = None
    chain: tuple[str, ...] = ()
    quantize: Quantization | None = None  # of a model without adapter, while it is read


def _load_and_quantize(
    directory: str | Path, options: _LoadOptions, quantize: Quantization | None
) -> tuple[LanguageModel | ModelWithHead, PeftMethod | None]:
    if quantize is None:
        return _load(resolve_path(directory), options)
    check_quantization(quantize)
    model, method = _load(resolve_path(directory), options._replace(quantize=quantize))
    if method is not None and method.is_mergeable:
        method.merge(model.model if isinstance(model, ModelWithHead) else model)
        method = None
    full_size = count_parameters(model) * options.dtype.itemsize
    quantize_model(model, quantize)
    release_memory()
    log.info(f"{quantize}: weights of {count_bytes(model) / 1e6:,.1f} MB instead of {full_size / 1e6:,.1f} MB")
    return model, method


def _load(folder: Path, options: _LoadOptions) -> tuple[LanguageModel | ModelWithHead, PeftMethod | None]:
    io.check_links(folder, CheckpointError)
    if not (folder / ADAPTER_FILE).is_file():
        if is_adapter_directory(folder):
            return _load_peft_adapter(folder, options)
        if options.base is not None and folder.is_dir():
            raise UsageError(f"{folder}: not an adapter, so it has no base model; omit --base")
        return _load_full_model(folder, options), None
    record = config.read_record(AdapterFile, folder / ADAPTER_FILE, CheckpointError)
    model = _load_base(folder, record.get("base") or {}, options)
    if (folder / CHAT_TEMPLATE_FILE).is_file():  # of a base without one
        template = read_chat_template(io.read_bounded(folder / CHAT_TEMPLATE_FILE, CheckpointError, MAX_TEMPLATE_BYTES))
        set_chat_template(model, str(template[CHAT_TEMPLATE]))
    if record.get("head") is None:
        return model, load_adapter(model, folder)
    with checkpoint.add_path(folder / ADAPTER_FILE):
        model_with_head = adapt(model, _parse_head(record["head"])).to(options.device, options.dtype)
    return model_with_head.eval(), load_adapter(model_with_head.model, folder, head=model_with_head.head)


def _load_base(folder: Path, base_info: Mapping[str, object], options: _LoadOptions) -> LanguageModel:
    """Load the base model of an adapter: of several directories, the one with the weights it was trained with."""
    places = find_base_directories(folder, base_info, options.base)
    options = options._replace(base=None, head=None, quantize=None, chain=(*options.chain, os.path.realpath(folder)))
    for place in places[:-1]:
        try:
            model = _load_base_directory(place, folder, options)
            check_base(model, folder)
            return model
        except CheckpointError:
            continue
    # The last directory is checked with the adapter.
    return _load_base_directory(places[-1], folder, options)


def _load_base_directory(base_directory: Path, folder: Path, options: _LoadOptions) -> LanguageModel:
    """Load the model of a directory; an adapter there is merged."""
    if not (base_directory / ADAPTER_FILE).is_file():
        return checkpoint.load(base_directory, dtype=options.dtype, device=options.device)
    if os.path.realpath(base_directory) in options.chain:
        raise CheckpointError(
            f"{folder}: its base model '{base_directory}' is an adapter on this one; pass another with --base DIR"
        )
    base_model, method = _load(base_directory, options)
    model = base_model.model if isinstance(base_model, ModelWithHead) else base_model
    if method is None or not method.is_mergeable:
        raise CheckpointError(
            f"{base_directory}: this adapter cannot be merged, so it cannot be the base model of {folder}"
        )
    method.merge(model)
    return model


def _load_peft_adapter(folder: Path, options: _LoadOptions) -> tuple[LanguageModel | ModelWithHead, PeftMethod]:
    """Load an adapter written by peft, with its head if it has one."""
    peft_config = io.read_json(folder / PEFT_CONFIG_FILE, CheckpointError)
    model = _load_base(folder, {"path": peft_config.get("base_model_name_or_path")}, options)
    head = read_peft_head(folder, model.spec)
    if head is None:
        return model, load_adapter(model, folder)
    task, tensors = head
    try:
        model_with_head = adapt(model, task).to(options.device, options.dtype)
        assert model_with_head.head is not None
        # NOTE: a pooler that was not trained is the base model's.
        model_with_head.head.load_state_dict(tensors, strict=False)
    except (PretuneError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: its head does not fit the model: {str(error).splitlines()[0]}") from None
    return model_with_head.eval(), load_adapter(model_with_head.model, folder)


def _load_full_model(folder: Path, options: _LoadOptions) -> LanguageModel | ModelWithHead:
    quantizer = None if options.quantize is None else build_weight_quantizer(options.quantize)
    model = checkpoint.load(folder, dtype=options.dtype, device=options.device, head=options.head, on_weight=quantizer)
    saved_head = checkpoint.read_head(folder)
    if saved_head is None:
        return model
    hf_config, task, tensors = saved_head
    if task is not None and task.ignores_start:
        model.spec = replace(model.spec, special=replace(model.spec.special, start=None))  # the end token
    if task is None and not tensors and model.assets.modules:
        with checkpoint.add_path(folder / CONFIG_FILE):
            return load_modules(model, _parse_head(hf_config[HEAD_KEY]))
    with checkpoint.add_path(folder / CONFIG_FILE):
        spec = _read_head_spec(folder, hf_config, task, tensors).resolve(model.spec)
    head = spec.build(model)
    if head is None:
        raise CheckpointError(f"{folder / CONFIG_FILE}: key '{HEAD_KEY}' is a head without tensors; remove the key")
    names = dict(checkpoint.iterate_weights(head))
    moves = plan_moves(names, task.rules if task else tuple(Rule(name, TASK_PREFIX + name) for name in names))
    _load_head_weights(folder, moves, tensors, names)
    return ModelWithHead(model, head, spec).eval()


def _read_head_spec(
    folder: Path, hf_config: HfConfig, task: HeadLayout | None, tensors: Mapping[str, TensorInfo]
) -> AnyHead:
    """Return the head spec stored in a directory, checked against the number of outputs of its weights."""
    head = _parse_head(hf_config[HEAD_KEY]) if task is None else None
    if isinstance(head, MultiTask):  # each head is checked when its weights are read
        return head
    rows = _count_outputs(folder, task, tensors)
    spec = parse_head_config(hf_config, task, rows) if task is not None else head
    assert spec is not None
    if task is not None and task.read_fields is not None:
        spec = replace(spec, **task.read_fields(hf_config))
    outputs = getattr(spec, "classes", 2 if isinstance(spec, Span) else 1)
    if outputs != rows:
        raise CheckpointError(f"the head has {outputs} outputs, but its weights have {rows}; the numbers must be equal")
    return spec


def _count_outputs(folder: Path, task: HeadLayout | None, tensors: Mapping[str, TensorInfo]) -> int:
    """Return the number of outputs of the head's tensors, so that a wrong config is rejected before building."""
    name = TASK_PREFIX + "out.weight" if task is None else plan_moves(["out.weight"], task.rules)[0].tensor_name
    info = tensors.get(name)
    if info is None or len(info.shape) != 2:
        raise CheckpointError(f"{tensor_files.find_main_file(folder)}: tensor '{name}' is missing, or not a matrix")
    return info.shape[0]


def _parse_head(data: Any) -> AnyHead:
    return config.from_dict(_SavedHead, {"head": data}, location=HEAD_KEY).head


def _load_head_weights(
    folder: Path, moves: list[Move], tensors: Mapping[str, TensorInfo], names: Mapping[str, Tensor]
) -> None:
    """Load the weights of a head; names and shapes must match exactly."""
    for move in moves:
        info, shape = tensors.get(move.tensor_name), tuple(names[move.param_names[0]].shape)
        if info is None:
            raise CheckpointError(f"{tensor_files.find_main_file(folder)}: tensor '{move.tensor_name}' is missing")
        if info.shape != shape or info.dtype not in tensor_files.FLOAT_DTYPES:
            raise CheckpointError(
                f"{info.file}: tensor {format_value(info.key)} is {info.dtype} of shape {list(info.shape)}, "
                f"but the config requires floats of shape {list(shape)}"
            )
    extra = sorted(set(tensors) - {move.tensor_name for move in moves})
    if extra:
        raise CheckpointError(f"{tensors[extra[0]].file}: tensor {format_value(extra[0])} has no place in this head")
    values = tensor_files.read_tensors(tensors[move.tensor_name] for move in moves)
    with torch.no_grad():
        for move, tensor in zip(moves, values, strict=True):
            names[move.param_names[0]].copy_(tensor)


def is_adapter_directory(directory: str | Path) -> bool:
    """Return True if the directory holds an adapter without its base model."""
    folder = Path(directory)
    is_from_peft = (folder / PEFT_CONFIG_FILE).is_file() and not (folder / CONFIG_FILE).is_file()
    return is_from_peft or (folder / ADAPTER_FILE).is_file()


def verify_adapter(directory: str | Path, *, base: str | Path | None = None) -> list[str]:
    """Verify an adapter; return one line per check, raise CheckpointError at the first failure.

    The base model is loaded from the stored path or from `base`, to check that the adapter fits; it is not verified
    itself.
    """
    folder = Path(directory)
    lines = [f"{io.MANIFEST}: missing, file contents cannot be verified"]
    if (folder / io.MANIFEST).exists():
        files = format_count(len(io.check_manifest(folder)["files"]), "files")
        lines = [f"{io.MANIFEST}: sizes and SHA-256 of {files} match"]
    model, method = load_with_method(folder, base=base)
    assert method is not None
    body = model.model if isinstance(model, ModelWithHead) else model
    tensors = dict(get_adapter_state(method, body))
    if isinstance(model, ModelWithHead) and model.head is not None:
        tensors |= {f"head.{name}": tensor for name, tensor in checkpoint.iterate_weights(model.head)}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{folder}: tensor '{name}' has non-finite values")
    config_file = ADAPTER_FILE if (folder / ADAPTER_FILE).is_file() else PEFT_CONFIG_FILE
    lines.append(f"{config_file}: {config.get_kind(method)}, base model of family '{body.spec.family}' found")
    lines.append(f"tensors: {len(tensors)}, names and shapes match the base model")
    lines.append(f"values: {sum(tensor.numel() for tensor in tensors.values()):,}, all finite")
    return lines
