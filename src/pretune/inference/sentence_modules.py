"""Pooling, dense layers and normalization in directories of sentence-transformers: reading and writing.

Modules are recognized by name; no code is executed. Unknown modules raise an error, since ignoring them would change
the vectors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.inference.pooling import Embedding, Pooling, TextEncoder, TextEncoderOptions
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel
from pretune.models.tensor_files import LENGTH_FILE_PATTERN, MODULES_FILE, PROMPTS_FILE
from pretune.text.tokenizer.files import encode_json

_MODES: dict[str, Pooling] = {
    "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt", "weightedmean": "weighted",
    "lasttoken": "last",
}  # fmt: skip
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""Keys of earlier releases, in the order in which several poolings are concatenated."""

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": torch.relu,
    "torch.nn.modules.activation.GELU": nn.functional.gelu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
}
_MODULE_TYPES = ("Transformer", "Pooling", "Dense", "Normalize")


Record = TypeVar("Record")
DOCUMENT_PROMPTS, QUERY_PROMPTS = ("document", "passage", "corpus"), ("query",)
"""Names of prompts for documents and for queries."""


class Dense(nn.Linear):
    """Linear layer on the vectors, with an activation."""

    def __init__(self, width: int, out: int, *, bias: bool, activation: str) -> None:
        super().__init__(width, out, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return _ACTIVATIONS[self.activation](super().forward(x))


class _Module(TypedDict):
    """Entry of modules.json."""

    type: str
    path: str


class _PoolingFile(TypedDict, total=False):
    """config.json of a Pooling module."""

    pooling_mode: str | list[str]
    embedding_dimension: int
    word_embedding_dimension: int


class _DenseFile(TypedDict, total=False):
    """config.json of a Dense module."""

    activation_function: str


class _PromptsFile(TypedDict, total=False):
    """config_sentence_transformers.json."""

    prompts: dict[str, Any] | None
    default_prompt_name: Any


def build_encoder(model: LanguageModel, **options: Unpack[TextEncoderOptions]) -> TextEncoder:
    """Build the encoder defined by the model's directory, or mean pooling, with the options that are not None.

    With another pooling or layer than the directory's, its dense layers are dropped: they were not trained on it.
    """
    default_config, dense = read_modules(model)
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if isinstance(pooling := options.get("pooling"), str):
        changes["pooling"] = tuple(pooling.split("+"))
    embedding_config = replace(default_config, **changes)
    if (embedding_config.pooling, embedding_config.layer) != (default_config.pooling, default_config.layer):
        dense = nn.ModuleList()
    reference = model.tokens.weight
    return TextEncoder(model, embedding_config, dense.to(reference.device, reference.dtype))


def read_modules(model: LanguageModel) -> tuple[Embedding, nn.ModuleList]:
    """Read pooling and dense layers from the files that came with a model."""
    files = model.assets.modules
    if not files:
        return Embedding(), nn.ModuleList()
    pooling: tuple[Pooling, ...] | None = None
    dense, normalise = nn.ModuleList(), False
    for kind, path in _list_modules(files):
        if normalise or (pooling is None) != (kind in ("Transformer", "Pooling")) or kind not in _MODULE_TYPES:
            expected_order = "Transformer, Pooling, any Dense, at most one Normalize"
            raise CheckpointError(
                f"{MODULES_FILE}: module '{kind}' is not supported at this position; supported: {expected_order}"
            )
        if kind == "Pooling":
            settings = _read_record(_PoolingFile, files, f"{path}/config.json")
            pooling = _parse_pooling(settings, model.spec.width)
            if settings.get("include_prompt") is False and (_read_default_prompt(files) or any(read_prompts(model))):
                raise CheckpointError(f"{path}: pooling that excludes the prompt's tokens is not supported")
        elif kind == "Dense":
            dense.append(_load_dense(files, path))
        normalise = kind == "Normalize"
    if pooling is None:
        raise CheckpointError(f"{MODULES_FILE}: no Pooling module; this model embeds tokens, not texts")
    length = _read_max_length(model)
    return Embedding(pooling=pooling, normalise=normalise, length=length, prompt=_read_default_prompt(files)), dense


def read_pooling(model: LanguageModel) -> tuple[Pooling, ...] | None:
    """Return the poolings defined by the model's files; None if there are none."""
    files = model.assets.modules
    path = next((path for kind, path in _list_modules(files) if kind == "Pooling"), None) if files else None
    if path is None:
        return None
    return _parse_pooling(_read_record(_PoolingFile, files, f"{path}/config.json"), model.spec.width)


def write_modules(encoder: TextEncoder) -> dict[str, bytes]:
    """Return the files with which sentence-transformers computes the same vectors."""
    embedding_config = encoder.config
    if embedding_config.layer is not None or "static" in embedding_config.pooling:
        raise CheckpointError("sentence-transformers pools the last layer; another layer or 'static' cannot be saved")
    mode_names = {pooling: name for name, pooling in _MODES.items()}
    modes = [mode_names[name] for name in embedding_config.pooling]
    if modes != [mode for mode in _LEGACY_MODES.values() if mode in modes]:
        raise CheckpointError(f"several poolings can be saved only in this order: {', '.join(_MODES)}")
    width = encoder.model.spec.width
    modules, files = [("Transformer", "")], dict[str, bytes]()
    legacy_settings = {key: mode in modes for key, mode in _LEGACY_MODES.items()}  # readable by every release
    modules.append(("Pooling", "1_Pooling"))
    files["1_Pooling/config.json"] = encode_json(
        {"word_embedding_dimension": width, **legacy_settings, "include_prompt": True}
    )
    for layer in encoder.dense:
        assert isinstance(layer, Dense)
        modules.append(("Dense", f"{len(modules)}_Dense"))
        tensors = {
            f"linear.{name}": value.detach().float().cpu().contiguous() for name, value in layer.named_parameters()
        }
        shape = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": len(tensors) > 1}
        files[f"{modules[-1][1]}/config.json"] = encode_json({**shape, "activation_function": layer.activation})
        files[f"{modules[-1][1]}/model.safetensors"] = save_tensors(tensors)
    if embedding_config.normalise:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
        # NOTE: the folder must exist, or the name is looked up on the hub.
        files[f"{modules[-1][1]}/config.json"] = encode_json({})
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    files[MODULES_FILE] = encode_json(entries)
    prompts = {"prompts": {"default": embedding_config.prompt}, "default_prompt_name": "default"}
    settings = {**(prompts if embedding_config.prompt else {}), "similarity_fn_name": "cosine"}
    files[PROMPTS_FILE] = encode_json(settings)
    return files


def _list_modules(files: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Return (kind, folder) of every module, in order."""
    modules = io.parse_json(files[MODULES_FILE], CheckpointError, MODULES_FILE)
    modules = config.check_record(list[_Module], modules, CheckpointError, MODULES_FILE)
    return [(entry["type"].rpartition(".")[2], entry["path"]) for entry in modules]


def _parse_pooling(settings: Mapping[str, object], width: int) -> tuple[Pooling, ...]:
    mode = settings.get(
        "pooling_mode", [name for key, name in _LEGACY_MODES.items() if settings.get(key) is True] or "mean"
    )
    names = [mode] if isinstance(mode, str) else mode
    if not isinstance(names, list) or not all(name in _MODES for name in names):
        raise CheckpointError(f"unknown pooling {str(mode)[:60]!r}; known: {', '.join(_MODES)}")
    size = settings.get("embedding_dimension", settings.get("word_embedding_dimension", width))
    if size != width:
        raise CheckpointError(f"pooling width is {size}, but the model's is {width}")
    return tuple(_MODES[name] for name in names)


def _load_dense(files: Mapping[str, bytes], path: str) -> Dense:
    settings = _read_record(_DenseFile, files, f"{path}/config.json")
    activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS or settings.get("use_residual"):
        activations = ", ".join(name.rpartition(".")[2] for name in _ACTIVATIONS)
        raise CheckpointError(
            f"{path}: activation {str(activation)[:60]!r} or a residual is not supported (supported: {activations})"
        )
    if f"{path}/model.safetensors" not in files:
        raise CheckpointError(f"{path}: no model.safetensors; pickle files are never loaded: convert them")
    try:
        tensors = load_tensors(files[f"{path}/model.safetensors"])
        weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
        layer = Dense(weight.shape[1], weight.shape[0], bias=bias is not None, activation=activation)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if bias is not None:
                layer.bias.copy_(bias)
    except (SafetensorError, KeyError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{path}/model.safetensors: not weights of a dense layer ({error})"[:300]) from None
    return layer


def _read_max_length(model: LanguageModel) -> int | None:
    """Return the maximum length if a file defines it; otherwise the tokenizer's applies.

    Raises a CheckpointError if such a file requires lowercasing that the tokenizer does not do.
    """
    files = model.assets.modules
    length = None
    for name in [name for name in files if fnmatch(name, LENGTH_FILE_PATTERN)]:
        settings = _read_json(files, name)
        value = settings.get("max_seq_length")
        if length is None and type(value) is int and value > 0:
            length = value
        if settings.get("do_lower_case") and model.tokenizer is not None:
            raw = get_tokenizer(model).raw
            if raw.encode("A").ids != raw.encode("a").ids:
                raise CheckpointError(f"{name}: do_lower_case with a cased tokenizer is not supported")
    return length


def _read_default_prompt(files: Mapping[str, bytes]) -> str:
    settings = _read_prompts(files)
    return _find_prompt(settings, (settings.get("default_prompt_name"),)) or ""


def read_prompts(model: LanguageModel) -> tuple[str | None, str | None]:
    """Return the prompts of a directory for documents and for queries, None where undefined."""
    settings = _read_prompts(model.assets.modules)
    return _find_prompt(settings, DOCUMENT_PROMPTS), _find_prompt(settings, QUERY_PROMPTS)


def _read_prompts(files: Mapping[str, bytes]) -> _PromptsFile:
    return _read_record(_PromptsFile, files, PROMPTS_FILE) if PROMPTS_FILE in files else {}


def _find_prompt(settings: _PromptsFile, names: Iterable[Any]) -> str | None:
    """Return the first prompt with one of these names."""
    prompts = settings.get("prompts") or {}
    candidates = [prompts[name] for name in names if isinstance(name, str) and name in prompts]
    return next((value for value in candidates if isinstance(value, str)), None)


def _read_json(files: Mapping[str, bytes], name: str) -> dict[str, object]:
    if name not in files:
        raise CheckpointError(f"{name}: missing, but {MODULES_FILE} names its folder; copy the directory again")
    data = io.parse_json(files[name], CheckpointError, name)
    if not isinstance(data, dict):
        raise CheckpointError(f"{name}: expected an object, got {type(data).__name__}")
    return data


def _read_record(cls: type[Record], files: Mapping[str, bytes], name: str) -> Record:
    return config.check_record(cls, _read_json(files, name), CheckpointError, name)
