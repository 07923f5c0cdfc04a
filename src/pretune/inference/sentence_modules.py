"""What a directory of sentence-transformers says of pooling, dense layers and norms, and the way back.

Modules are known by their names; none is code that is run. What is not known is refused, for leaving it out would
change the vectors.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from pretune.core import config, io
from pretune.core.errors import CheckpointError
from pretune.inference.pooling import Embedding, Pooling, TextEncoder
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel
from pretune.models.sentence_transformers_files import LENGTH_FILE_PATTERN, MODULES_FILE, PROMPTS_FILE

_MODES: dict[str, Pooling] = {
    "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt", "weightedmean": "weighted",
    "lasttoken": "last",
}  # fmt: skip
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""How earlier releases say it, in the order in which several are laid side by side."""

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": torch.relu,
    "torch.nn.modules.activation.GELU": nn.functional.gelu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
}
_MODULE_TYPES = {
    "Transformer": "sentence_transformers.models.Transformer", "Pooling": "sentence_transformers.models.Pooling",
    "Dense": "sentence_transformers.models.Dense", "Normalize": "sentence_transformers.models.Normalize",
}  # fmt: skip


DOCUMENT_PROMPTS, QUERY_PROMPTS = ("document", "passage", "corpus"), ("query",)
"""What prompts are called that come before texts to be found, and before questions."""


class Dense(nn.Linear):
    """A linear layer on the vectors, with what follows it."""

    def __init__(self, width: int, out: int, *, bias: bool, activation: str) -> None:
        super().__init__(width, out, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return _ACTIVATIONS[self.activation](super().forward(x))


class _Module(TypedDict):
    """An entry of modules.json."""

    type: str
    path: str


class _Modules(TypedDict):
    """The content of modules.json, which is a list."""

    modules: list[_Module]


def build_encoder(model: LanguageModel, **overrides: Any) -> TextEncoder:
    """The model with the way to vectors that its directory states, or the mean; `changes` that are None change nothing.

    Another pooling or layer than the directory's leaves its dense layers out: they were not trained on that.
    """
    how, dense = read_modules(model)
    given = {name: value for name, value in overrides.items() if value is not None}
    if isinstance(given.get("pooling"), str):
        given["pooling"] = tuple(given["pooling"].split("+"))
    changed = replace(how, **given)
    kept = dense if (changed.pooling, changed.layer) == (how.pooling, how.layer) else nn.ModuleList()
    like = model.tokens.weight
    return TextEncoder(model, changed, kept.to(like.device, like.dtype))


def read_modules(model: LanguageModel) -> tuple[Embedding, nn.ModuleList]:
    """How the files that came with a model turn its states into vectors."""
    files = model.assets.modules
    if not files:
        return Embedding(), nn.ModuleList()
    pooling: tuple[Pooling, ...] | None = None
    dense, normalise = nn.ModuleList(), False
    for kind, path in _list_modules(files):
        if normalise or (pooling is None) != (kind in ("Transformer", "Pooling")) or kind not in _MODULE_TYPES:
            known = "Transformer, Pooling, any Dense, at most one Normalize"
            raise CheckpointError(
                f"{MODULES_FILE}: a module '{kind}' is not supported at its place; supported: {known}"
            )
        if kind == "Pooling":
            said = _read_json(files, f"{path}/config.json")
            pooling = _parse_pooling(said, model.spec.width)
            if said.get("include_prompt") is False and (_read_default_prompt(files) or any(read_prompts(model))):
                raise CheckpointError(f"{path}: a pooling that leaves out its prompt's tokens is not supported")
        elif kind == "Dense":
            dense.append(_load_dense(files, path))
        normalise = kind == "Normalize"
    if pooling is None:
        raise CheckpointError(
            f"{MODULES_FILE}: no Pooling among the modules; these vectors are of tokens, not of texts"
        )
    _refuse_lower(model)
    how = Embedding(
        pooling=pooling, normalise=normalise, length=_read_max_length(files), prompt=_read_default_prompt(files)
    )
    return how, dense


def read_pooling(model: LanguageModel) -> tuple[Pooling, ...] | None:
    """Return the poolings that the files which came with a model state; None where there are none."""
    files = model.assets.modules
    path = next((path for kind, path in _list_modules(files) if kind == "Pooling"), None) if files else None
    return None if path is None else _parse_pooling(_read_json(files, f"{path}/config.json"), model.spec.width)


def write_modules(encoder: TextEncoder) -> dict[str, bytes]:
    """The files from which sentence-transformers makes the same vectors."""
    how = encoder.config
    if how.layer is not None or "static" in how.pooling:
        raise CheckpointError("sentence-transformers pools the last layer's states; vectors of another cannot be saved")
    theirs = {ours: name for name, ours in _MODES.items()}
    modes = [theirs[name] for name in how.pooling]
    if modes != [mode for mode in _LEGACY_MODES.values() if mode in modes]:
        raise CheckpointError(f"several poolings can be saved in one order only: {', '.join(_MODES)}")
    width = encoder.model.spec.width
    listed, files = [("Transformer", "")], dict[str, bytes]()
    old = {key: mode in modes for key, mode in _LEGACY_MODES.items()}  # which every release reads
    listed.append(("Pooling", "1_Pooling"))
    files["1_Pooling/config.json"] = _encode_json({"word_embedding_dimension": width, **old, "include_prompt": True})
    for layer in encoder.dense:
        assert isinstance(layer, Dense)
        listed.append(("Dense", f"{len(listed)}_Dense"))
        tensors = {
            f"linear.{name}": value.detach().float().cpu().contiguous() for name, value in layer.named_parameters()
        }
        shape = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": len(tensors) > 1}
        files[f"{listed[-1][1]}/config.json"] = _encode_json({**shape, "activation_function": layer.activation})
        files[f"{listed[-1][1]}/model.safetensors"] = save_tensors(tensors)
    if how.normalise:
        listed.append(("Normalize", f"{len(listed)}_Normalize"))
        files[f"{listed[-1][1]}/config.json"] = _encode_json(
            {}
        )  # NOTE: a folder must be there, or the name is looked up
    files[MODULES_FILE] = _encode_json(
        [{"idx": i, "name": str(i), "path": path, "type": _MODULE_TYPES[kind]} for i, (kind, path) in enumerate(listed)]
    )
    prompts = {"prompts": {"default": how.prompt}, "default_prompt_name": "default"} if how.prompt else {}
    files[PROMPTS_FILE] = _encode_json({**prompts, "similarity_fn_name": "cosine"})
    return files


def _list_modules(files: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """(kind, folder) of every module, in order."""
    entries = {"modules": _parse_file(files, MODULES_FILE)}
    modules = config.check_record(_Modules, entries, CheckpointError, MODULES_FILE)["modules"]
    return [(entry["type"].rpartition(".")[2], entry["path"]) for entry in modules]


def _parse_pooling(settings: Mapping[str, Any], width: int) -> tuple[Pooling, ...]:
    said = settings.get(
        "pooling_mode", [name for key, name in _LEGACY_MODES.items() if settings.get(key) is True] or "mean"
    )
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not all(name in _MODES for name in names):
        raise CheckpointError(f"pooling {str(said)[:60]!r} is not known; known: {', '.join(_MODES)}")
    size = settings.get("embedding_dimension", settings.get("word_embedding_dimension", width))
    if size != width:
        raise CheckpointError(f"the pooling reads vectors of {size}, the model has {width}")
    return tuple(_MODES[name] for name in names)


def _load_dense(files: Mapping[str, bytes], path: str) -> Dense:
    found = _read_json(files, f"{path}/config.json")
    activation = found.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS or found.get("use_residual"):
        known = ", ".join(name.rpartition(".")[2] for name in _ACTIVATIONS)
        raise CheckpointError(f"{path}: activation {str(activation)[:60]!r} or a residual is not supported ({known})")
    if f"{path}/model.safetensors" not in files:
        raise CheckpointError(f"{path}: no model.safetensors; a pickle can run code and is never read: convert it")
    try:
        tensors = load_tensors(files[f"{path}/model.safetensors"])
        weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
        layer = Dense(weight.shape[1], weight.shape[0], bias=bias is not None, activation=activation)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if bias is not None:
                layer.bias.copy_(bias)
    except (SafetensorError, KeyError, IndexError, RuntimeError) as fault:
        raise CheckpointError(f"{path}/model.safetensors: not the weights of a dense layer ({fault})"[:300]) from None
    return layer


def _read_max_length(files: Mapping[str, bytes]) -> int | None:
    """The longest text, where a file says it; else the tokenizer's files do, as for any model."""
    start, _, end = LENGTH_FILE_PATTERN.partition("*")
    for name in files:
        if name.startswith(start) and name.endswith(end):
            value = _read_json(files, name).get("max_seq_length")
            if type(value) is int and value > 0:
                return value
    return None


def _refuse_lower(model: LanguageModel) -> None:
    """Refuse lower case that a file asks for beside a tokenizer that keeps capitals."""
    for name, data in model.assets.modules.items():
        if (
            fnmatch(name, LENGTH_FILE_PATTERN)
            and b"do_lower_case" in data
            and _read_json({name: data}, name).get("do_lower_case")
        ):
            raw = None if model.tokenizer is None else get_tokenizer(model).raw
            if raw is not None and raw.encode("A").ids != raw.encode("a").ids:
                raise CheckpointError(f"{name}: do_lower_case beside a tokenizer that keeps capitals is not supported")


def _read_default_prompt(files: Mapping[str, bytes]) -> str:
    """What is put before texts where nobody says otherwise."""
    found = _read_json(files, PROMPTS_FILE) if PROMPTS_FILE in files else {}
    return _find_prompt(found, (found.get("default_prompt_name"),)) or ""


def read_prompts(model: LanguageModel) -> tuple[str | None, str | None]:
    """What a directory wants before documents and before queries, where it names such prompts."""
    found = _read_json(model.assets.modules, PROMPTS_FILE) if PROMPTS_FILE in model.assets.modules else {}
    return _find_prompt(found, DOCUMENT_PROMPTS), _find_prompt(found, QUERY_PROMPTS)


def _find_prompt(settings: Mapping[str, Any], names: Iterable[Any]) -> str | None:
    """The first prompt that has one of these names."""
    prompts = settings.get("prompts")
    known = [prompts[name] for name in names if isinstance(name, str) and name in prompts] if prompts else []
    return next((value for value in known if isinstance(value, str)), None)


def _read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        raise CheckpointError(f"{name}: missing, though {MODULES_FILE} names its folder; copy the directory again")
    found = _parse_file(files, name)
    if not isinstance(found, dict):
        raise CheckpointError(f"{name}: expected an object, found {type(found).__name__}")
    return found


def _parse_file(files: Mapping[str, bytes], name: str) -> Any:
    try:
        text = files[name].decode()
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"{name}: not UTF-8 at byte {fault.start}") from None
    return io.parse_json(text, CheckpointError, name)


def _encode_json(data: object) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
