"""Models on disk: Hugging Face directories in, Hugging Face directories out.

What is read is checked before anything is allocated: the config against what we can compute, the names and shapes in
the safetensors headers against the spec.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pretune.core import config, io
from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError, PretuneError, UsageError, suggest
from pretune.core.hub import resolve_path
from pretune.models import sentence_transformers_files, tensor_files
from pretune.models.bidirectional_lm import BACKWARD_FOLDER as BACKWARD
from pretune.models.bidirectional_lm import BidirectionalLM
from pretune.models.families import FAMILIES, get_model_types
from pretune.models.generator_discriminator import GENERATOR_FOLDER as GENERATOR
from pretune.models.generator_discriminator import GeneratorDiscriminator
from pretune.models.hf.config import Layout, is_equivalent, refuse_code
from pretune.models.hf.detect import add_tied_head, detect_contents
from pretune.models.hf.heads import HEAD_KEY, HeadLayout, split_head
from pretune.models.hf.weights import Move, Rule, plan_moves
from pretune.models.memory import check_memory
from pretune.models.model import LanguageModel, build_empty
from pretune.models.not_found import make_missing_error
from pretune.models.spec import Model
from pretune.models.tensor_files import TensorInfo
from pretune.models.trained_model import AnyModel

NATIVE_TYPE = "pretune"
"""The model_type of what no Hugging Face class can express: our own names, our own spec."""

ASSET_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
    "added_tokens.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "generation_config.json",
)  # fmt: skip
"""Small files that stay with the weights, as they are."""

PARTNER_FOLDERS = (GENERATOR, BACKWARD)
"""Folders inside a model's directory that hold the model it was trained with."""

CONFIG_FILE = "config.json"
MAX_CONFIG_BYTES = 16 << 20
MAX_ASSET_BYTES = 64 << 20
SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class SavedHead:
    """A task's head, as it is saved with the body: config keys, tensors, and what the body's tensors begin with."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    prefix: str = ""


def load(
    directory: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    head: Literal["tied"] | None = None,
) -> LanguageModel:
    """Read a Hugging Face model directory, or one of ours. It comes in evaluation mode, in fp32 unless asked.

    With `head` "tied" a decoder that was saved without its vocabulary head is given it, where that is the token table.
    """
    if not dtype.is_floating_point:
        raise UsageError(f"weights cannot be {dtype}; choose torch.float32, torch.bfloat16 or another float")
    folder = resolve_path(directory)
    model, moves, stored = _examine(folder, head)
    spec = model.spec
    check_memory(spec, dtype, device)
    sizes = {name: tensor.shape for name, tensor in iterate_weights(model)}
    present = sorted(
        (move for move in moves if move.tensor_name in stored), key=lambda move: stored[move.tensor_name].file
    )
    for move, tensor in zip(
        present, tensor_files.read_tensors(stored[move.tensor_name] for move in present), strict=True
    ):
        parts = move.packing.unpack(tensor, [sizes[name][0] for name in move.param_names], spec)
        for name, part in zip(move.param_names, parts, strict=True):
            # NOTE: always a copy: what was read lies in the mapped file, which may change, at any address.
            _assign(model, name, part.to(device, dtype, copy=True, memory_format=torch.contiguous_format))
    for move in moves:
        if move.tensor_name not in stored:
            for name in move.param_names:
                _assign(model, name, torch.zeros(sizes[name], device=device, dtype=dtype))
    model.assets.files = _read_assets(folder)
    model.assets.modules = sentence_transformers_files.read(folder)
    model.assets.tokenizer = _read_tokenizer(folder, spec)
    return model.eval()


def load_pair(
    directory: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> GeneratorDiscriminator:
    """A discriminator with the generator that lies in its directory, as `save` writes them."""
    discriminator, generator = (load(Path(directory) / name, dtype=dtype, device=device) for name in ("", GENERATOR))
    with _add_path(Path(directory) / GENERATOR):
        return GeneratorDiscriminator(discriminator, generator)


def load_bidirectional_lm(
    directory: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> BidirectionalLM:
    """A decoder with the one from the right that lies in its directory, as `save` writes them."""
    forwards, backwards = (load(Path(directory) / name, dtype=dtype, device=device) for name in ("", BACKWARD))
    with _add_path(Path(directory) / BACKWARD):
        return BidirectionalLM(forwards, backwards)


def save(
    model: AnyModel,
    directory: str | Path,
    *,
    overwrite: bool = False,
    shard: int = SHARD_BYTES,
    head: SavedHead | None = None,
) -> None:
    """Write a directory that `transformers` reads, where it has the family; all of it or nothing.

    Of two models that were trained together one is the directory, and the other lies in a folder of its own inside.
    """
    parts = {"": model} if isinstance(model, LanguageModel) else model.get_models_by_folder()
    with io.atomic_directory(Path(directory), overwrite=overwrite) as folder:
        for name, part in parts.items():
            (folder / name).mkdir(exist_ok=True)
            names = _write(part, folder / name, shard, head)
            _remove_stale(Path(directory) / name, names)


def _write(model: LanguageModel, folder: Path, shard: int, head: SavedHead | None) -> list[str]:
    """The files of one model, with their manifest; their names."""
    if any(getattr(module, "is_adapter", False) is True for module in model.modules()):
        raise UsageError(
            "a method is on this model, and no layout has its weights; merge it first, or save the adapter alone"
        )
    spec = model.spec
    found, rules, strip, twins = describe_checkpoint(spec)
    found["dtype"] = str(model.tokens.weight.dtype).removeprefix("torch.")
    ours = {name: tensor.detach().cpu() for name, tensor in iterate_weights(model)}
    tensors = {
        move.tensor_name.removeprefix(strip): move.packing.pack(
            [ours[name] for name in move.param_names], spec
        ).contiguous()
        for move in plan_moves(ours, rules)
    }
    if spec.head is not None and not spec.head.tied:  # only a tied head shares its bias with its twin
        tensors |= {twin: tensors[name].clone() for name, twin in twins.items() if name in tensors}
    if head is not None:
        found |= head.config
        tensors = {head.prefix + name: tensor for name, tensor in tensors.items()} | dict(head.tensors)
    kept = dict(model.assets.files)
    io.write_json(folder / CONFIG_FILE, found)
    names = [CONFIG_FILE, *tensor_files.write_shards(folder, tensors, shard), *kept]
    for name, data in kept.items():
        io.atomic_write(folder / name, data)
    if spec.decoder is not None and "generation_config.json" not in kept:
        io.write_json(folder / "generation_config.json", _make_generation_config(found))
        names.append("generation_config.json")
    names += sentence_transformers_files.write(folder, {} if head else model.assets.modules)
    io.write_manifest(folder, names)
    return names


def inspect_checkpoint(directory: str | Path) -> tuple[Model, list[Move], dict[str, TensorInfo]]:
    """All that can be known without reading a weight: the spec, the moves, and that names and shapes agree."""
    model, moves, stored = _examine(resolve_path(directory))
    return model.spec, moves, stored


def read_head(folder: Path) -> tuple[dict[str, Any], HeadLayout | None, dict[str, TensorInfo]] | None:
    """The head for a task in a directory: its config, its class in `transformers` if it is one, its tensors."""
    found = io.read_json(folder / CONFIG_FILE, CheckpointError, MAX_CONFIG_BYTES)
    layout = None if found.get("model_type") == NATIVE_TYPE else _find_layout(found)
    task = None if layout is None else layout.find_task_head(found)
    if task is None and HEAD_KEY not in found:
        return None
    return found, task, split_head(tensor_files.read_headers(folder), task, "")[1]


def describe_checkpoint(spec: Model) -> tuple[dict[str, Any], tuple[Rule, ...], str, Mapping[str, str]]:
    """The config of a spec, the rules of its tensor names, the prefix to strip from them, and the twins to write.

    Where the family's Hugging Face config says all of it, that is the config; where it misses only what does not change
    the computation (a dropout), the spec is added under our name; otherwise the directory is ours alone.
    """
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    found = None if layout is None else _express(layout, spec)
    if layout is None or found is None:
        return {"model_type": NATIVE_TYPE, NATIVE_TYPE: config.to_dict(spec)}, _make_identity_rules(spec), "", {}
    bare = layout.classes[found["architectures"][0]] <= {"pooler"}
    return found, layout.get_rules(spec), layout.prefix if bare else "", layout.duplicates


def _suggest_remedy(folder: Path) -> str:
    """What to do about a folder that is no model; it may be a run that has not come to its end."""
    if (folder / "adapter_model.safetensors").is_file():
        return "it is an adapter: load it with `pt.load`, or merge it with `pretune export`"
    if (folder / "checkpoints").is_dir():
        return "it is a run that has not ended: go on with --resume"
    inside = next((one.parent for one in islice(folder.glob(f"*/{CONFIG_FILE}"), 1)), None)
    hint = "" if inside is None else f", such as '{inside}'"
    return f"give a run of `pretune pretrain` or a Hugging Face directory{hint}"


def iterate_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that is saved: parameters (each once, wherever it is shared) and buffers."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _examine(folder: Path, head: str | None = None) -> tuple[LanguageModel, list[Move], dict[str, TensorInfo]]:
    """What `inspect_checkpoint` tells, with the empty module in place of the spec."""
    if not folder.is_dir():
        if folder.exists():
            raise CheckpointError(f"{folder}: not a directory; give the one that holds it, a run or a model")
        raise make_missing_error(folder)
    if not (folder / CONFIG_FILE).exists():
        raise CheckpointError(f"{folder}: no {CONFIG_FILE} in it, so it is no model; {_suggest_remedy(folder)}")
    found = io.read_json(folder / CONFIG_FILE, CheckpointError, MAX_CONFIG_BYTES)
    spec, rules, stored, optional = _understand(folder, found, head)
    model = build_empty(spec)
    moves = plan_moves([name for name, _ in iterate_weights(model)], rules)
    _check_tensors(folder, model, moves, stored, optional)
    return model, moves, stored


def _express(layout: Layout, spec: Model) -> dict[str, Any] | None:
    """The layout's config of a spec, or None where it cannot say it."""
    try:
        found = layout.write(spec)
        again = layout.read(found, spec.parts, tied=spec.head is not None and spec.head.tied)
        plan_moves([name for name, _ in iterate_weights(build_empty(spec))], layout.get_rules(spec))
    except (PretuneError, KeyError, AttributeError, TypeError, StopIteration, AssertionError):
        return None
    if not is_equivalent(again, spec):
        return None
    return found if again == spec else {**found, NATIVE_TYPE: config.to_dict(spec)}


def _understand(
    folder: Path, hf_config: dict[str, Any], head: str | None
) -> tuple[Model, tuple[Rule, ...], dict[str, TensorInfo], tuple[str, ...]]:
    """The spec that a config and its tensors stand for, with the rules and the tensors under their full names."""
    if hf_config.get("model_type") == NATIVE_TYPE:
        with _add_path(folder / CONFIG_FILE):
            spec = _read_native(hf_config)
        stored = tensor_files.read_headers(folder)
        if HEAD_KEY in hf_config:
            stored, _ = split_head(stored, None, "")
        with _add_path(folder / CONFIG_FILE):
            _check_layers(spec, stored)
        return spec, _make_identity_rules(spec), stored, ()
    with _add_path(folder / CONFIG_FILE):
        refuse_code(hf_config)
        layout = _find_layout(hf_config)
        promised, tied = layout.read_claims(hf_config)
        task = layout.find_task_head(hf_config)
    stored = tensor_files.read_headers(folder)
    if task is not None or HEAD_KEY in hf_config:
        stored, _ = split_head(stored, task, layout.prefix)
    stored, parts, tied = detect_contents(layout, promised, tied, stored)
    with _add_path(folder / CONFIG_FILE):
        if head == "tied":
            parts = add_tied_head(layout, parts, tied)
        spec = layout.read(hf_config, parts, tied=tied)
        if NATIVE_TYPE in hf_config:
            spec = _refine_spec(hf_config, spec)
        _check_layers(spec, stored)
    return spec, layout.get_rules(spec), stored, layout.zeros


@contextmanager
def _add_path(config: Path) -> Iterator[None]:
    """What is wrong with what a config says, with the name of its file."""
    try:
        yield
    except PretuneError as error:
        raise CheckpointError(f"{config}: {error}") from None


def _find_layout(hf_config: Mapping[str, Any]) -> Layout:
    """The layout that reads a config."""
    kind, model_types = hf_config.get("model_type"), get_model_types()
    if not isinstance(kind, str) or kind not in model_types:
        hint = suggest(kind, model_types) if isinstance(kind, str) else ""
        known = ", ".join(sorted(model_types))
        raise CheckpointError(f"key 'model_type' = {format_value(kind)} is not supported{hint}; known: {known}")
    layout = FAMILIES.get(model_types[kind]).layout
    assert layout is not None
    return layout


def _read_native(hf_config: Mapping[str, Any]) -> Model:
    """The spec of a directory that is ours alone."""
    refuse_code(hf_config)
    allowed = ("model_type", NATIVE_TYPE, "dtype", "architectures", HEAD_KEY)
    for name in hf_config:
        if name not in allowed:
            raise CheckpointError(
                f"unknown key {format_value(name)}{suggest(name, allowed)} (allowed: {', '.join(allowed)})"
            )
    return config.from_dict(Model, hf_config.get(NATIVE_TYPE), location=NATIVE_TYPE)


def _refine_spec(hf_config: Mapping[str, Any], spec: Model) -> Model:
    """The spec that our own key adds to a Hugging Face config; it must compute the same."""
    said = config.from_dict(Model, hf_config[NATIVE_TYPE], location=NATIVE_TYPE)
    if not is_equivalent(said, spec):
        at = next(iter(config.diff(spec, said)), "kind")
        raise CheckpointError(
            f"key '{NATIVE_TYPE}' and the other keys contradict each other at {at}; remove '{NATIVE_TYPE}' to follow the others"
        )
    return said


def _check_layers(spec: Model, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse what even an empty module would take long to show: many more layers than there are tensors."""
    layers = sum(len(stack.layers) for stack in spec.stacks)
    if layers > max(len(tensors), 200):
        raise CheckpointError(f"{layers} layers are asked for, but the weights are {len(tensors)} tensors in all")


def _check_tensors(
    folder: Path, model: LanguageModel, moves: list[Move], tensors: dict[str, TensorInfo], optional: tuple[str, ...]
) -> None:
    """Every tensor there, none too many, every shape right, all of them floats: from the headers alone."""
    ours = dict(iterate_weights(model))
    wanted = {move.tensor_name for move in moves}
    extra = [there for name, there in tensors.items() if name not in wanted]
    for move in moves:
        if move.tensor_name not in tensors:
            if move.tensor_name in optional:
                continue
            hint = suggest(move.tensor_name, [there.key for there in islice(extra, 1000) if there.key.isprintable()])
            raise CheckpointError(
                f"{tensor_files.find_main_file(folder)}: tensor '{move.tensor_name}' is missing{hint}"
            )
        there = tensors[move.tensor_name]
        asked = move.packing.pack([ours[name] for name in move.param_names], model.spec).shape
        if there.shape != tuple(asked):
            raise CheckpointError(
                f"{there.file}: tensor {format_value(there.key)} has shape {_format_shape(there.shape)}, "
                f"but the config asks for {_format_shape(asked)}"
            )
        if there.dtype not in tensor_files.FLOAT_DTYPES:
            raise CheckpointError(
                f"{there.file}: tensor {format_value(there.key)} holds {there.dtype}; "
                f"weights must be one of {', '.join(sorted(tensor_files.FLOAT_DTYPES))}"
            )
    for there in extra:
        raise CheckpointError(f"{there.file}: tensor {format_value(there.key)} has no place in this model")


def _format_shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape[:8]))}{', ...' if len(shape) > 8 else ''}]"


def _remove_stale(directory: Path, names: Collection[str]) -> None:
    """Take the weights of another save away: of a single file and several, only one may be there to be read."""
    stale = [name for name in tensor_files.list_weight_names(directory) if name not in names]
    for name in [io.MANIFEST, *stale] if stale else []:
        (directory / name).unlink(missing_ok=True)


def _make_identity_rules(spec: Model) -> tuple[Rule, ...]:
    return tuple(Rule(name, name) for name, _ in iterate_weights(build_empty(spec)))


def _assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = tensor
    else:
        setattr(module, leaf, nn.Parameter(tensor))


def _read_assets(folder: Path) -> dict[str, bytes]:
    found = {}
    for name in ASSET_FILES:
        file = folder / name
        if file.is_file():
            found[name] = io.read_bounded(file, CheckpointError, MAX_ASSET_BYTES)
    return found


def _read_tokenizer(folder: Path, spec: Model) -> Any:
    """The tokenizer of a directory, or None; it may be smaller than the vocabulary, never larger."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    from pretune.text.tokenizer.backend import LibraryTokenizer
    from pretune.text.tokenizer.files import parse_tokenizer, read_bytes

    tokenizer = LibraryTokenizer(parse_tokenizer(read_bytes(file), str(file)))
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if last >= spec.vocab:
        raise CheckpointError(f"{file}: a token has the id {last}; the model's vocabulary has {spec.vocab}")
    return tokenizer


def _make_generation_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return {name: hf_config[name] for name in names if hf_config.get(name) is not None}
