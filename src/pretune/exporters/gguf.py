"""Export of Llama-shaped decoders to one GGUF file, the format of llama.cpp (version 3).

    header | metadata: key, type, value | tensors: name, shape, type, offset | data, aligned to 32 bytes

The file holds the weights under llama.cpp's names, the settings, and the vocabulary with its merges.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from pretune.core import config
from pretune.core.errors import UsageError
from pretune.exporters.output import ExportCard, is_file_path, open_directory, write_card
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.attention import Attention
from pretune.nn.block import Block, Norms
from pretune.nn.heads import Head
from pretune.nn.layers import FeedForward, RMSNorm
from pretune.nn.positions import LinearScaling, Rotary
from pretune.nn.stack import Stack
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.gguf import (
    BYTE_LEVEL,
    CONTROL,
    NO_VOCABULARY,
    NORMAL,
    ROLES,
    SPLITTERS,
    UNUSED_TOKEN,
    USER_DEFINED,
)

FILE = "model.gguf"
ALIGNMENT = 32
BLOCK = 32
"""Weights of one scale in Q8_0."""
TENSOR_TYPES = {"float32": 0, "float16": 1, "q8_0": 8, "bfloat16": 30}
FILE_TYPES = {"float32": 0, "float16": 1, "q8_0": 7, "bfloat16": 32}
NAMES = {
    "attention_norm.pre": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.out": "attn_output",
    "feedforward_norm.pre": "ffn_norm",
    "feedforward.gate": "ffn_gate",
    "feedforward.up": "ffn_up",
    "feedforward.down": "ffn_down",
}
# Words of the format, which names an architecture and ways to split text after models.
ARCHITECTURE = "llama"
ARCHITECTURE_TITLE = "Llama"
LOADING_CODE = """\
from llama_cpp import Llama
model = Llama("model.gguf")
print(model("Once upon a time", max_tokens=20)["choices"][0]["text"])
"""
_INT32, _STRING, _ARRAY = 5, 8, 9
_SCALARS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
"""Number and layout of the types of scalars."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the file: its name, its shape as torch has it, its type and its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


def write_gguf(
    model: LanguageModel,
    directory: Path,
    *,
    kind: str = "float32",
    card: ExportCard | None = None,
    overwrite: bool = False,
) -> str:
    """Write `model.gguf` into a directory, or a file whose name ends in `.gguf`; return the name of the file.

    Args:
        model: A decoder in the shape of Llama.
        directory: Output directory, or file.
        kind: Type of the matrices: float32, float16, bfloat16, or q8_0 (8 bits, a scale for 32 weights of a row; a
            matrix whose rows are no multiple of 32 is float16). Vectors are float32.
        card: The model card to write beside it.
        overwrite: Write into a non-empty directory.

    Raises:
        UsageError: llama.cpp's Llama does not have the architecture or the tokenizer, or weights overflow in `kind`.
    """
    check_architecture(model.spec)
    metadata = {**describe_model(model.spec, kind), **describe_tokenizer(model)}
    with open_directory(directory, {FILE: directory}, overwrite=overwrite) as folder:
        with (folder / FILE).open("wb") as file:
            _write_file(file, metadata, list(iterate_tensors(model, kind)))
        if card is not None and not is_file_path(directory):
            write_card(card, folder, directory)
    return directory.name if is_file_path(directory) else FILE


def check_architecture(spec: Model) -> None:
    """Raise `UsageError` unless the spec is that of Llama in any size."""
    stack, refusal = spec.decoder, f"GGUF files hold decoders in the shape of {ARCHITECTURE_TITLE}"
    if not isinstance(stack, Stack) or spec.encoder is not None or spec.head is None:
        raise UsageError(f"{refusal}, with a vocabulary head; this is a '{spec.family}'")
    block, position = stack.blocks[0], stack.position
    attention, feedforward, norm = block.attention, block.feedforward, stack.norm
    if not isinstance(position, Rotary) or not isinstance(norm, RMSNorm):
        raise UsageError(f"{refusal}: rotary positions and RMSNorm; this is a '{spec.family}'")
    window = attention.window
    expected_spec = Model(
        family=spec.family,
        vocab=spec.vocab,
        width=spec.width,
        decoder=Stack(
            depth=stack.depth,
            causal=True,
            position=Rotary(theta=position.theta, scaling=position.scaling),
            blocks=(
                Block(
                    attention=Attention(
                        heads=attention.heads,
                        kv_heads=attention.kv_heads,
                        head_width=attention.head_width,
                        bias=False,
                        # a window as long as the context changes nothing
                        window=window if window and spec.context and window >= spec.context else None,
                    ),
                    feedforward=FeedForward(hidden=feedforward.hidden, activation="silu", gated=True, bias=False),
                    norms=Norms(pre=norm),
                ),
            ),
            norm=norm,
        ),
        head=Head(tied=spec.head.tied),
        context=spec.context,
    )
    ignored_fields = {"dropout", "out_dropout", "init", "special", "sampling"}
    differences = [path for path in config.diff(expected_spec, spec) if not {*path.split(".")} & ignored_fields]
    if differences:
        raise UsageError(f"{refusal}; this '{spec.family}' differs in {differences[0]}; export it to hf or onnx")


def describe_model(spec: Model, kind: str) -> dict[str, object]:
    """Return the metadata of the architecture."""
    stack = spec.decoder
    assert isinstance(stack, Stack) and isinstance(stack.position, Rotary) and isinstance(stack.norm, RMSNorm)
    block, position = stack.blocks[0], stack.position
    heads, kv_heads, head_width = block.attention.resolve_shape(width=spec.width)
    scaling = position.scaling
    sizes: dict[str, object] = {
        "vocab_size": spec.vocab,
        "context_length": spec.context or 2048,
        "embedding_length": spec.width,
        "block_count": stack.depth,
        "feed_forward_length": block.feedforward.hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_width,
        "attention.value_length": head_width,
        "attention.layer_norm_rms_epsilon": float(stack.norm.eps),
        "rope.dimension_count": head_width,
        "rope.freq_base": float(position.theta),
    }
    if isinstance(scaling, LinearScaling):
        sizes |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
    return {
        "general.architecture": ARCHITECTURE,
        "general.name": spec.family,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
        **{f"{ARCHITECTURE}.{name}": value for name, value in sizes.items()},
    }


def describe_tokenizer(model: LanguageModel) -> dict[str, object]:
    """Return the vocabulary, its merges and special tokens; a model without tokenizer has none.

    Raises:
        UsageError: the tokenizer is not a byte-level BPE that splits text in a way that the format knows.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        return {"tokenizer.ggml.model": NO_VOCABULARY}
    assert isinstance(tokenizer, Tokenizer)
    content = json.loads(tokenizer.raw.to_str())
    splitter = _find_splitter(content)
    added_tokens = {token["id"]: token for token in content["added_tokens"]}
    texts = {index: text for text, index in content["model"]["vocab"].items()}
    texts |= {index: token["content"] for index, token in added_tokens.items()}
    kinds = dict.fromkeys(range(model.spec.vocab), UNUSED_TOKEN) | dict.fromkeys(texts, NORMAL)
    kinds |= {index: CONTROL if token["special"] else USER_DEFINED for index, token in added_tokens.items()}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    plain_ids, full_ids = (tokenizer.raw.encode("a", add_special_tokens=special).ids for special in (False, True))
    special = tokenizer.special
    return {
        "tokenizer.ggml.model": BYTE_LEVEL,
        "tokenizer.ggml.pre": splitter,
        "tokenizer.ggml.tokens": [texts.get(index, f"[PAD{index}]") for index in range(model.spec.vocab)],
        "tokenizer.ggml.token_type": [kinds[index] for index in range(model.spec.vocab)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": full_ids[0] != plain_ids[0] and full_ids[0] == special.get("bos"),
        "tokenizer.ggml.add_eos_token": full_ids[-1] != plain_ids[-1] and full_ids[-1] == special.get("eos"),
        **{f"tokenizer.ggml.{ROLES[role]}_token_id": special[role] for role in ROLES if role in special},
        **({"tokenizer.chat_template": tokenizer.chat_template} if tokenizer.chat_template else {}),
    }


def iterate_tensors(model: LanguageModel, kind: str) -> Iterator[StoredTensor]:
    """Yield the tensors; rows of queries and keys are in the order of llama.cpp's rotation of neighbours."""
    weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    spec = model.spec
    stack = spec.decoder
    assert isinstance(stack, Stack) and isinstance(stack.position, Rotary) and spec.head is not None
    heads, kv_heads, head_width = stack.blocks[0].attention.resolve_shape(width=spec.width)
    yield _store("token_embd.weight", weights["tokens.weight"], kind)
    for layer in range(stack.depth):
        for ours, theirs in NAMES.items():
            tensor = weights[f"decoder.{layer}.{ours}.weight"]
            if ours in ("attention.q", "attention.k"):
                tensor = interleave_halves(tensor, heads if ours == "attention.q" else kv_heads)
            yield _store(f"blk.{layer}.{theirs}.weight", tensor, kind)
    yield _store("output_norm.weight", weights["decoder.norm.weight"], kind)
    if not spec.head.tied:
        yield _store("output.weight", weights["head.weight"], kind)
    scaling = stack.position.scaling
    if scaling is not None and not isinstance(scaling, LinearScaling):
        frequencies = stack.position.theta ** -(torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        yield _store("rope_freqs.weight", frequencies / scaling.scale_frequencies(frequencies), kind)


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from (first half, second half) to neighbouring pairs.

    >>> interleave_halves(torch.arange(8.0)[:, None], heads=2).flatten().tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def quantize_rows(matrix: Tensor) -> bytes:
    """Return a matrix in Q8_0: for every 32 weights a scale in float16 and 32 integers of 8 bits."""
    blocks = matrix.float().reshape(-1, BLOCK).numpy()
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    out = np.empty(len(blocks), np.dtype([("scale", "<f2"), ("values", "i1", BLOCK)]))
    out["scale"], out["values"] = scales[:, 0], np.rint(blocks * inverse)
    return out.tobytes()


def _store(name: str, tensor: Tensor, kind: str) -> StoredTensor:
    if tensor.dim() < 2:
        kind = "float32"
    elif kind == "q8_0" and tensor.shape[1] % BLOCK:
        kind = "float16"
    if kind == "q8_0":
        data = quantize_rows(tensor)
    else:
        values = tensor.to(getattr(torch, kind)).contiguous()
        if not torch.isfinite(values).all():
            raise UsageError(f"'{name}' overflows in {kind}; use --dtype bfloat16 or float32")
        data = (values.view(torch.int16) if kind == "bfloat16" else values).numpy().tobytes()
    return StoredTensor(name, tuple(tensor.shape), TENSOR_TYPES[kind], data)


def _find_splitter(content: dict[str, Any]) -> str:
    """Return llama.cpp's name of the way in which a byte-level BPE splits text; raise `UsageError` for others."""
    kind, pre_tokenizer = content["model"]["type"], content["pre_tokenizer"] or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if kind == "BPE" and not content["model"].get("byte_fallback"):
        for name, splitter in SPLITTERS.items():
            is_same = _list_steps(splitter.pre_tokenizer) == _list_steps(pre_tokenizer)
            if is_same and content["normalizer"] == splitter.normalizer:
                return name
    raise UsageError(
        f"GGUF files hold byte-level BPE that splits text as {', '.join(SPLITTERS)} do; this tokenizer is {kind} with "
        f"{' and '.join(str(step.get('type')) for step in steps)}; export it to hf or onnx"
    )


def _list_steps(pre_tokenizer: Any) -> list[dict[str, object]]:
    """Return the steps of a pre-tokenizer, without the setting that only moves offsets."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return [{name: value for name, value in step.items() if name != "trim_offsets"} for step in steps]


def _write_file(file: BinaryIO, metadata: dict[str, object], tensors: list[StoredTensor]) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    file.writelines(_encode_text(key) + _encode_value(value) for key, value in metadata.items())
    offset = 0
    for tensor in tensors:
        shape = tensor.shape[::-1]  # the innermost first
        file.write(_encode_text(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        file.write(struct.pack("<IQ", tensor.kind, offset))
        offset += _pad(len(tensor.data))
    file.write(bytes(_pad(file.tell()) - file.tell()))
    for tensor in tensors:
        file.write(tensor.data + bytes(_pad(len(tensor.data)) - len(tensor.data)))


def _encode_value(value: Any) -> bytes:
    if isinstance(value, list):
        is_numeric = bool(value) and type(value[0]) is int
        parts = [struct.pack("<i", part) if is_numeric else _encode_text(part) for part in value]
        return struct.pack("<IIQ", _ARRAY, _INT32 if is_numeric else _STRING, len(value)) + b"".join(parts)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _encode_text(value)
    kind, layout = _SCALARS[type(value)]
    return struct.pack(f"<I{layout}", kind, value)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pad(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
