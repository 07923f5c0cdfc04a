"""Types of weights in GGUF files, as numbers in float32.

A block of 32 or 256 weights has small integers, and scales for all of it or for groups of 16 or 32:

    weight = scale * integer + offset

Integers of 4 to 6 bits are in two parts: the low 4 bits, two weights to a byte, and the bits above them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.gguf import GgufFile, TensorRecord

Blocks = NDArray[Any]
"""Records of a structured type, `[B]`."""
Floats = NDArray[np.float32]
CHUNK_WEIGHTS = 1 << 20
"""Weights that are converted at a time, to bound memory."""


@dataclass(frozen=True, slots=True)
class WeightType:
    """A type of weights: its name, the weights of a block, the layout of its bytes, and the function that reads it."""

    name: str
    block: int
    layout: np.dtype[Any]
    read: Callable[[Blocks], Floats]


def _define(
    number: int, name: str, block: int, fields: list[tuple[Any, ...]], read: Callable[[Blocks], Floats]
) -> tuple[int, WeightType]:
    return number, WeightType(name, block, np.dtype(fields), read)


def _widen(blocks: Blocks) -> Floats:
    return blocks["value"].astype(np.float32)[:, None]


def _widen_bfloat16(blocks: Blocks) -> Floats:
    return (blocks["value"].astype(np.uint32) << 16).view(np.float32)[:, None]


def _read_small(blocks: Blocks, integers: NDArray[Any], middle: int) -> Floats:
    """Return the weights of blocks of 32 with one scale."""
    weights: Floats = integers.astype(np.float32)
    has_offset = "offset" in (blocks.dtype.names or ())
    if not has_offset:
        weights -= middle
    weights *= blocks["scale"].astype(np.float32)[:, None]
    if has_offset:
        weights += blocks["offset"].astype(np.float32)[:, None]
    return weights


def _read_4_bits(blocks: Blocks) -> Floats:
    return _read_small(blocks, _split_bytes(blocks["low"], 16, 4), middle=8)


def _read_5_bits(blocks: Blocks) -> Floats:
    high = np.unpackbits(blocks["high"], axis=1, bitorder="little")
    return _read_small(blocks, _split_bytes(blocks["low"], 16, 4) | high << 4, middle=16)


def _read_8_bits(blocks: Blocks) -> Floats:
    return _read_small(blocks, blocks["low"], middle=0)


def _read_large(blocks: Blocks) -> Floats:
    """Return the weights of blocks of 256 in 4 or 5 bits, with 8 scales and offsets of 6 bits each."""
    integers = _split_bytes(blocks["low"], 32, 4)
    if "high" in (blocks.dtype.names or ()):
        integers |= _split_bytes(blocks["high"], 32, 1) << 4
    first, second, third = (blocks["scales"][:, start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    scale, offset = (
        (blocks[name].astype(np.float32)[:, None] * numbers)[:, :, None]
        for name, numbers in (("scale", scales), ("offset", offsets))
    )
    weights: Floats = scale * integers.reshape(len(blocks), 8, 32) - offset
    return weights.reshape(len(blocks), 256)


def _read_6_bits(blocks: Blocks) -> Floats:
    """Return the weights of blocks of 256 in 6 bits, with 16 scales of 8 bits."""
    integers = _split_bytes(blocks["low"], 64, 4) | _split_bytes(blocks["high"], 32, 2) << 4
    scales = blocks["scale"].astype(np.float32)[:, None] * blocks["scales"]
    weights: Floats = (integers.astype(np.float32) - 32).reshape(len(blocks), 16, 16)
    weights *= scales[:, :, None]
    return weights.reshape(len(blocks), 256)


def _split_bytes(data: NDArray[np.uint8], run: int, bits: int) -> NDArray[np.uint8]:
    """Return the integers in bytes: of each run of bytes first all lowest bits, then all bits above them, ….

    >>> _split_bytes(np.array([[0x21, 0x43]], np.uint8), 2, 4).tolist()
    [[1, 3, 2, 4]]
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    integers: NDArray[np.uint8] = data.reshape(len(data), -1, 1, run) >> shifts & np.uint8(2**bits - 1)
    return integers.reshape(len(data), -1)


_SCALE, _OFFSET = ("scale", "<f2"), ("offset", "<f2")
_SCALES, _LOW = ("scales", "u1", 12), ("low", "u1", 128)
TYPES = dict(
    [
        _define(0, "F32", 1, [("value", "<f4")], _widen),
        _define(1, "F16", 1, [("value", "<f2")], _widen),
        _define(30, "BF16", 1, [("value", "<u2")], _widen_bfloat16),
        _define(2, "Q4_0", 32, [_SCALE, ("low", "u1", 16)], _read_4_bits),
        _define(3, "Q4_1", 32, [_SCALE, _OFFSET, ("low", "u1", 16)], _read_4_bits),
        _define(6, "Q5_0", 32, [_SCALE, ("high", "u1", 4), ("low", "u1", 16)], _read_5_bits),
        _define(7, "Q5_1", 32, [_SCALE, _OFFSET, ("high", "u1", 4), ("low", "u1", 16)], _read_5_bits),
        _define(8, "Q8_0", 32, [_SCALE, ("low", "i1", 32)], _read_8_bits),
        _define(12, "Q4_K", 256, [_SCALE, _OFFSET, _SCALES, _LOW], _read_large),
        _define(13, "Q5_K", 256, [_SCALE, _OFFSET, _SCALES, ("high", "u1", 32), _LOW], _read_large),
        _define(14, "Q6_K", 256, [_LOW, ("high", "u1", 64), ("scales", "i1", 16), _SCALE], _read_6_bits),
    ]
)
"""Types of weights by their numbers in the file."""


def check_tensor(file: GgufFile, tensor: TensorRecord) -> WeightType:
    """Return the type of a tensor; raise `CheckpointError` for an unknown one, or if the file lacks its bytes."""
    name, kind = f"{file.path}: tensor {format_value(tensor.name)}", TYPES.get(tensor.kind)
    if kind is None:
        choices = ", ".join(choice.name for choice in TYPES.values())
        raise CheckpointError(f"{name} has type {tensor.kind}, which is not supported (allowed: {choices})")
    if 0 in tensor.shape or tensor.shape[-1] % kind.block:
        raise CheckpointError(f"{name} has rows of {tensor.shape[-1]} weights, but {kind.name} needs {kind.block}s")
    if tensor.start + _count_blocks(tensor, kind) * kind.layout.itemsize > file.size:
        raise CheckpointError(f"{name} ends after the file, which has {file.size} bytes; copy it again")
    return kind


def _count_blocks(tensor: TensorRecord, kind: WeightType) -> int:
    count = 1
    for size in tensor.shape:  # NOTE: integers of Python, which do not overflow
        count *= size
    return count // kind.block


def read_tensor(file: GgufFile, tensor: TensorRecord) -> Floats:
    """Return a tensor in float32; the file is mapped into memory and read once."""
    kind = check_tensor(file, tensor)
    count = _count_blocks(tensor, kind)
    try:
        blocks = np.memmap(file.path, kind.layout, mode="r", offset=tensor.start, shape=(count,))
    except (OSError, ValueError) as fault:
        raise CheckpointError(f"{file.path}: cannot be read: {fault}") from fault
    weights = np.empty((count, kind.block), np.float32)
    step = CHUNK_WEIGHTS // kind.block
    for start in range(0, count, step):
        weights[start : start + step] = kind.read(np.asarray(blocks[start : start + step]))
    return weights.reshape(tensor.shape)
