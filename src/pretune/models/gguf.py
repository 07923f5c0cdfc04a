"""GGUF files as model directories: the config and the tensors that a Hugging Face directory would have.

The rows of queries and keys of Llama are in the order of llama.cpp's rotation of neighbours, and are put back.
"""

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.gguf import GgufFile, TensorRecord, read_gguf
from pretune.models.gguf_blocks import check_tensor, read_tensor
from pretune.text.tokenizer.gguf import find_token_id


class Architecture(NamedTuple):
    """An architecture of the format: its class in `transformers`, and whether its heads are in llama.cpp's order."""

    class_name: str
    is_interleaved: bool = False


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", is_interleaved=True),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
}
"""Architectures by their names, which are those of a `model_type`."""
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SCALING_BY_WAVELENGTH = "llama3"
FREQUENCIES = "rope_freqs.weight"
"""Divisors of the frequencies of rotary positions, which the config states in another way."""
_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_SCALED_LENGTHS = [2**power for power in range(6, 21)]
"""Context lengths before scaling that are tried."""


def build_config(file: GgufFile) -> dict[str, object]:
    """Return the `config.json` of a file. Raises `CheckpointError` for other architectures and missing sizes."""
    name, architecture = _find_architecture(file)
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(f"{file.path}: tensor 'token_embd.weight' is missing, or not a matrix")
    heads, kv_heads, head_width = _read_heads(file)
    length = file.get(f"{name}.context_length", int)
    theta = _shorten(file.get(f"{name}.rope.freq_base", float, 10000.0))
    rotary: dict[str, object] = {"rope_type": "default", "rope_theta": theta, **_read_scaling(file, name)}
    if FREQUENCIES in file.tensors:
        rotary |= _find_bands(file, theta, head_width)
    eos = find_token_id(file, "eos")
    return {
        "model_type": name,
        "architectures": [architecture.class_name],
        "vocab_size": table.shape[0],
        "hidden_size": file.get(f"{name}.embedding_length", int),
        "intermediate_size": file.get(f"{name}.feed_forward_length", int),
        "num_hidden_layers": file.get(f"{name}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_width,
        "max_position_embeddings": length,
        "rms_norm_eps": _shorten(file.get(f"{name}.attention.layer_norm_rms_epsilon", float)),
        "rope_parameters": rotary,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": find_token_id(file, "bos"),
        "eos_token_id": eos,
        "pad_token_id": find_token_id(file, "padding"),
    }


def _find_architecture(file: GgufFile) -> tuple[str, Architecture]:
    name = file.get("general.architecture", str)
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: architecture {format_value(name)} is not supported (allowed: {', '.join(ARCHITECTURES)})"
        )
    return name, ARCHITECTURES[name]


def _read_heads(file: GgufFile) -> tuple[int, int, int]:
    """Return the heads, the heads of keys and values, and the width of a head."""
    name = file.get("general.architecture", str)
    width, heads = file.get(f"{name}.embedding_length", int), file.get(f"{name}.attention.head_count", int)
    kv_heads = file.get(f"{name}.attention.head_count_kv", int, heads)
    if min(width, heads, kv_heads) < 1:
        raise CheckpointError(f"{file.path}: width {width} and {heads} and {kv_heads} heads: all must be at least 1")
    head_width = file.get(f"{name}.attention.key_length", int, width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if file.get(f"{name}.{key}", int, head_width) != head_width:
            raise CheckpointError(f"{file.path}: {name}.{key} must be the width of a head, {head_width}")
    return heads, kv_heads, head_width


def _read_scaling(file: GgufFile, name: str) -> dict[str, object]:
    kind = file.get(f"{name}.rope.scaling.type", str, "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{file.path}: {name}.rope.scaling.type = {format_value(kind)} is not supported (allowed: none, linear)"
        )
    if kind == "none":
        return {}
    return {"rope_type": "linear", "factor": file.get(f"{name}.rope.scaling.factor", float)}


def _find_bands(file: GgufFile, theta: float, head_width: int) -> dict[str, object]:
    """Return the settings of Llama 3's scaling by wavelength, found by trying the context lengths it starts from."""
    divisors = _read_checked(file, file.tensors[FREQUENCIES])
    powers = np.arange(0, head_width, 2) / head_width
    if divisors.shape == powers.shape and theta > 0 and np.isfinite(divisors).all():
        turns = theta**-powers / (2 * math.pi)
        factor = float(divisors.max())
        for length in _SCALED_LENGTHS:
            blend = np.clip((length * turns - 1) / 3, 0, 1)
            if np.allclose(divisors, 1 / ((1 - blend) / factor + blend), rtol=1e-4):
                bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": length}
                return {"rope_type": SCALING_BY_WAVELENGTH, "factor": _shorten(factor), **bands}
    raise CheckpointError(f"{file.path}: tensor '{FREQUENCIES}' is not a scaling of frequencies by wavelength")


def _read_checked(file: GgufFile, tensor: TensorRecord) -> Any:
    if len(tensor.shape) > 2:
        raise CheckpointError(f"{file.path}: tensor {format_value(tensor.name)} has {len(tensor.shape)} dimensions")
    return read_tensor(file, tensor)


def _shorten(value: float) -> float:
    """Return the shortest number that is the same in float32: 1e-05 for 9.99999974e-06."""
    return float(str(np.float32(value)))


class GgufTensors:
    """The tensors of a file under the names of a Hugging Face directory, as `safe_open` gives those of safetensors."""

    def __init__(self, path: Path) -> None:
        self.file = read_gguf(path)
        self.heads = {}
        if _find_architecture(self.file)[1].is_interleaved:
            heads, kv_heads, _ = _read_heads(self.file)
            self.heads = {"attn_q": heads, "attn_k": kv_heads}
        self.names: dict[str, TensorRecord] = {
            _rename(name): record for name, record in self.file.tensors.items() if name != FREQUENCIES
        }

    def keys(self) -> list[str]:
        return [*self.names]

    def get_slice(self, key: str) -> "TensorFacts":
        check_tensor(self.file, self.names[key])
        return TensorFacts(self.names[key])

    def get_tensor(self, key: str) -> Tensor:
        """Return a tensor in float32."""
        record = self.names[key]
        weights = torch.from_numpy(_read_checked(self.file, record))
        layer = _LAYER.fullmatch(record.name)
        heads = self.heads.get(layer[2]) if layer else None
        return weights if heads is None else separate_halves(weights, heads)


class TensorFacts(NamedTuple):
    """Shape and type of a tensor, which is read as float32."""

    record: TensorRecord

    def get_shape(self) -> tuple[int, ...]:
        return self.record.shape

    def get_dtype(self) -> str:
        return "F32"


def _rename(name: str) -> str:
    """Return the name of a tensor in a Hugging Face directory; an unknown one stays, and is refused later."""
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] in LAYER_NAMES:
        return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    return f"{NAMES[module]}.{kind}" if module in NAMES else name


def separate_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from neighbouring pairs to (first half, second half).

    >>> separate_halves(torch.tensor([0.0, 2, 1, 3, 4, 6, 5, 7]), heads=2).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
