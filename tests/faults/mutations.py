"""Changes to files, drawn at random: of JSON value by value, of bytes bit by bit, of safetensors in their headers."""

import json
import random
from typing import Any

from tests.faults.strangers import raw

POOL: list[Any] = [
    None, True, False, 0, 1, 2, 3, 5, 7, 16, 31, 64, 1000, -1, -7, 2**31 - 1, 2**31, 2**63, 10**30, 0.0, 0.5, 1.0,
    1e-12, -0.5, 1e300, "", "1", "gelu", "relu", "silu", "linear", "llama3", "default", "bert", "os.system",
    "../../etc", "x" * 3000, "a\nb", "\ud800", [], [1], [[1]], ["BertModel"], ["LlamaForCausalLM", 7], {}, {"a": 1},
    {"rope_type": "linear"}, {"rope_type": "llama3", "factor": 8.0}, {"type": "linear", "factor": 2}, {"alibi": True},
    {"kind": "model"},
]  # fmt: skip


def mutate(value: Any, rng: random.Random, keys: list[str]) -> Any:
    """A JSON value with one thing changed somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        out = dict(value)
        key = rng.choice(list(out))
        match rng.randrange(6):
            case 0:
                out[key] = rng.choice(POOL)
            case 1:
                del out[key]
            case 2:
                other = rng.choice(list(out))
                out[key], out[other] = out[other], out[key]
            case 3:
                out[rng.choice(keys)] = rng.choice(POOL)
            case 4:
                out[rng.choice([key[:-1], key + "_", key.upper()])] = out.pop(key)
            case 5:
                out[key] = mutate(out[key], rng, keys)
        return out
    if isinstance(value, list) and value and rng.random() < 0.9:
        i = rng.randrange(len(value))
        return [*value[:i], mutate(value[i], rng, keys), *value[i + 1 :]]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice([-1, 1, value, -2 * value, 2**40])
    return rng.choice(POOL)


def scramble(data: bytes, rng: random.Random) -> bytes:
    """Bytes with something wrong: flipped bits (mostly early ones), a cut, an insertion, a repetition."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8, 64])):
        if not out:
            break
        at = rng.randrange(min(len(out), rng.choice([16, 300, 3000, len(out)])))
        match rng.randrange(6):
            case 0 | 1 | 2:
                out[at] ^= 1 << rng.randrange(8)
            case 3:
                del out[at : at + rng.choice([1, 2, 8, len(out)])]
            case 4:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 5:
                out[at : at + 8] = rng.choice([bytes(8), b"\xff" * 8, b'"shape":', b"[999999]", b"{{{{{{{{"])
    return bytes(out)


def restructure(data: bytes, rng: random.Random, keys: list[str]) -> bytes:
    """A safetensors file whose header is still JSON but says something else."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return raw(json.dumps(mutate(header, rng, keys)).encode(), data[8 + length :])
