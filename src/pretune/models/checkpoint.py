"""Models on disk: Hugging Face directories in, Hugging Face directories out.

What is read is checked before anything is allocated: the config against what we can compute, the names and shapes in
the safetensors headers against the spec.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretune.core import config, io
from pretune.core.errors import CheckpointError, PretuneError, ResourceError, nearest
from pretune.models import files
from pretune.models.families import FAMILIES, MODEL_TYPES
from pretune.models.files import Stored
from pretune.models.huggingface import Layout, refuse_code, same
from pretune.models.model import LanguageModel, empty
from pretune.models.recognise import recognise
from pretune.models.spec import Model
from pretune.models.weights import Move, Rule, plan

NATIVE = "pretune"
"""The model_type of what no Hugging Face class can express: our own names, our own spec."""

ASSETS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
    "added_tokens.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "generation_config.json",
)  # fmt: skip
"""Small files that stay with the weights, as they are."""

ASSET_LIMIT = 64 << 20
SHARD_BYTES = 5 * 10**9


def load(
    directory: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> LanguageModel:
    """Read a Hugging Face model directory, or one of ours. It comes in evaluation mode, in fp32 unless asked."""
    folder = Path(directory)
    spec, moves, stored = inspect(folder)
    fits(spec, dtype)
    model = empty(spec)
    sizes = {name: tensor.shape for name, tensor in weights_of(model)}
    present = [move for move in moves if move.theirs in stored]
    for move, tensor in zip(present, files.values(stored[move.theirs] for move in present), strict=True):
        parts = move.packing.unpack(tensor, [sizes[name][0] for name in move.ours], spec)
        for name, part in zip(move.ours, parts, strict=True):
            _assign(model, name, part.to(device=device, dtype=dtype).contiguous())
    for move in moves:
        if move.theirs not in stored:
            for name in move.ours:
                _assign(model, name, torch.zeros(sizes[name], device=device, dtype=dtype))
    model.assets.files = _assets(folder)
    model.assets.tokenizer = _tokenizer(folder, spec)
    return model.eval()


def save(model: LanguageModel, directory: str | Path, *, overwrite: bool = False, shard: int = SHARD_BYTES) -> None:
    """Write a directory that `transformers` reads, where it has the family; all of it or nothing."""
    spec = model.spec
    found, rules, strip, twins = describe(spec)
    found["dtype"] = str(model.tokens.weight.dtype).removeprefix("torch.")
    ours = {name: tensor.detach().cpu() for name, tensor in weights_of(model)}
    tensors = {
        move.theirs.removeprefix(strip): move.packing.pack([ours[name] for name in move.ours], spec).contiguous()
        for move in plan(ours, rules)
    }
    if spec.head is not None and not spec.head.tied:  # only a tied head shares its bias with its twin
        tensors |= {twin: tensors[name].clone() for name, twin in twins.items() if name in tensors}
    kept = dict(model.assets.files)
    with io.atomic_directory(Path(directory), overwrite=overwrite) as folder:
        io.write_json(folder / "config.json", found)
        names = ["config.json", *files.write(folder, tensors, shard), *kept]
        for name, data in kept.items():
            io.atomic_write(folder / name, data)
        if spec.decoder is not None and "generation_config.json" not in kept:
            io.write_json(folder / "generation_config.json", _generation(found))
            names.append("generation_config.json")
        io.write_manifest(folder, names)


def inspect(folder: Path) -> tuple[Model, list[Move], dict[str, Stored]]:
    """All that can be known without reading a weight: the spec, the moves, and that names and shapes agree."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such directory")
    found = io.read_json(folder / "config.json", CheckpointError)
    stored = files.headers(folder)
    try:
        spec, rules, stored, optional = _understand(found, stored)
    except CheckpointError as error:
        raise (
            error if str(error).startswith(str(folder)) else CheckpointError(f"{folder / 'config.json'}: {error}")
        ) from None
    except PretuneError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
    model = empty(spec)
    moves = plan([name for name, _ in weights_of(model)], rules)
    _check(folder, model, moves, stored, optional)
    return spec, moves, stored


def describe(spec: Model) -> tuple[dict[str, Any], tuple[Rule, ...], str, Mapping[str, str]]:
    """The config of a spec, the rules of its tensor names, the prefix to strip from them, and the twins to write.

    Where the family's Hugging Face config says all of it, that is the config; where it misses only what does not change
    the computation (a dropout), the spec is added under our name; otherwise the directory is ours alone.
    """
    layout = FAMILIES.get(spec.family).layout if spec.family in FAMILIES else None
    found = None if layout is None else _express(layout, spec)
    if layout is None or found is None:
        return {"model_type": NATIVE, NATIVE: config.to_dict(spec)}, _identity(spec), "", {}
    bare = not layout.classes[found["architectures"][0]] & {"head", "pair"}
    return found, layout.rules_of(spec), layout.prefix if bare else "", layout.twins


def weights_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that is saved: parameters (each once, wherever it is shared) and buffers."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def fits(spec: Model, dtype: torch.dtype, copies: int = 1) -> None:
    """Refuse before anything is allocated what this machine's memory cannot hold."""
    need = spec.params().total * dtype.itemsize * copies
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else need
    if need > have:
        raise ResourceError(f"the weights need {need / 1e9:.1f} GB of memory; this machine has {have / 1e9:.1f} GB")


def _express(layout: Layout, spec: Model) -> dict[str, Any] | None:
    """The layout's config of a spec, or None where it cannot say it."""
    try:
        found = layout.write(spec)
        parts = frozenset(part for part in ("head", "pooler", "pair") if getattr(spec, part) is not None)
        again = layout.read(found, parts, tied=spec.head is not None and spec.head.tied)
        plan([name for name, _ in weights_of(empty(spec))], layout.rules_of(spec))
    except (PretuneError, KeyError, AttributeError, TypeError, StopIteration, AssertionError):
        return None
    if not same(again, spec):
        return None
    return found if again == spec else {**found, NATIVE: config.to_dict(spec)}


def _understand(
    found: dict[str, Any], stored: dict[str, Stored]
) -> tuple[Model, tuple[Rule, ...], dict[str, Stored], tuple[str, ...]]:
    """The spec that a config and its tensors stand for, with the rules and the tensors under their full names."""
    refuse_code(found)
    kind = found.get("model_type")
    if kind == NATIVE:
        for name in found:
            if name not in ("model_type", NATIVE, "dtype", "architectures"):
                raise CheckpointError(f"unknown key '{name}'{nearest(name, ('model_type', NATIVE, 'dtype'))}")
        spec = config.from_dict(Model, found.get(NATIVE), where=NATIVE)
        return spec, _identity(spec), stored, ()
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        known = ", ".join(sorted(MODEL_TYPES))
        raise CheckpointError(f"model_type {kind!r} is not supported{nearest(str(kind), MODEL_TYPES)}; known: {known}")
    layout = FAMILIES.get(MODEL_TYPES[kind]).layout
    assert layout is not None
    stored, parts, tied = recognise(layout, found, stored)
    spec = layout.read(found, parts, tied=tied)
    if NATIVE in found:
        said = config.from_dict(Model, found[NATIVE], where=NATIVE)
        if not same(said, spec):
            at = next(iter(config.diff(spec, said)), "kind")
            raise CheckpointError(f"key '{NATIVE}' and the other keys contradict each other at {at}")
        spec = said
    return spec, layout.rules_of(spec), stored, layout.zeros


def _check(
    folder: Path, model: LanguageModel, moves: list[Move], stored: dict[str, Stored], optional: tuple[str, ...]
) -> None:
    """Every tensor there, none too many, every shape right: from the headers alone."""
    ours = dict(weights_of(model))
    wanted = set()
    for move in moves:
        wanted.add(move.theirs)
        made = move.packing.pack([ours[name] for name in move.ours], model.spec)
        if move.theirs not in stored:
            if move.theirs in optional:
                continue
            close = nearest(move.theirs, [name for name in stored if name not in wanted])
            raise CheckpointError(f"{folder}: tensor '{move.theirs}' is missing{close}")
        there = stored[move.theirs]
        if there.shape != tuple(made.shape):
            raise CheckpointError(
                f"{there.file}: tensor '{there.key}' has shape {list(there.shape)}, "
                f"but the config asks for {list(made.shape)}"
            )
    for name, there in stored.items():
        if name not in wanted:
            raise CheckpointError(f"{there.file}: tensor '{there.key}' has no place in this model")


def _identity(spec: Model) -> tuple[Rule, ...]:
    return tuple(Rule(name, name) for name, _ in weights_of(empty(spec)))


def _assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = tensor
    else:
        setattr(module, leaf, nn.Parameter(tensor))


def _assets(folder: Path) -> dict[str, bytes]:
    found = {}
    for name in ASSETS:
        file = folder / name
        if file.is_file():
            if file.stat().st_size > ASSET_LIMIT:
                raise CheckpointError(f"{file}: {file.stat().st_size:,} bytes; at most {ASSET_LIMIT:,} are read")
            found[name] = file.read_bytes()
    return found


def _tokenizer(folder: Path, spec: Model) -> Any:
    """The tokenizer of a directory, or None; it may be smaller than the vocabulary, never larger."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # NOTE: the library raises bare Exception
        raise CheckpointError(f"{file}: not a readable tokenizer ({str(error).splitlines()[0]})") from None
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > spec.vocab:
        raise CheckpointError(f"{file}: {size} tokens; the model's vocabulary has {spec.vocab}")
    return tokenizer


def _generation(found: dict[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return {name: found[name] for name in names if found.get(name) is not None}
