"""Changes to files, drawn at random: of JSON and YAML value by value, of bytes bit by bit, of safetensors in their
headers, and of what a name stands for in the file system."""

import json
import os
import random
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from tests.faults.strangers import raw


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    return reduce(lambda inner, _: [inner], range(depth), [])


POOL: list[Any] = [
    None, True, False, 0, 1, 2, 3, 5, 7, 16, 31, 64, 1000, -1, -7, 2**31 - 1, 2**31, 2**63, 10**30, 0.0, 0.5, 1.0,
    1e-12, -0.5, 1e300, "", "1", "gelu", "relu", "silu", "linear", "llama3", "default", "bert", "os.system",
    "../../etc", "x" * 3000, "a\nb", "\ud800", [], [1], [[1]], ["BertModel"], ["LlamaForCausalLM", 7], {}, {"a": 1},
    {"rope_type": "linear"}, {"rope_type": "llama3", "factor": 8.0}, {"type": "linear", "factor": 2}, {"alibi": True},
    {"kind": "model"}, 10**400, -(10**400), 2**63 - 1, -(2**63), 2**53 + 1, -0.0, 1e-320, -1e308, 1e100, float("nan"),
    float("inf"), float("-inf"), "\0", "a\0b", "\x1b[2J\x07", "\u202e\u2028", "x" * 5000, "x/" * 2500,
    "é" * 200, ".", "..", "/", "../beside", "link", "link/file", "OUTSIDE", "~", "-", "--help", "hf:a/b", "builtin:x",
    "NaN", "1e400", "9" * 400,
    "%s {0}", ["\0"], [None] * 2000, nested(60), nested(150), {"": {}}, {"x" * 5000: 1}, {"\ud800\0": 1}, {"..": {}},
    {"kind": 10**400}, {"kind": []},
]  # fmt: skip
"""Values for a key. OUTSIDE stands for the path of a directory beside the one that is changed."""

CONTENTS: list[bytes] = [
    b"", b" ", b"\n\n", b"\0", b"{}", b"[]", b"null", b"true", b"0", b'"x"', b"[[]]", b"[null]", b"[{}]",
    b'{"": null}', b"{\n", b"x: *a\n",
    b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b'{"a": 1, "a": 2}', b"\x80\x02}q\x00.", b"PK\x03\x04", b"\xff" * 100,
    b"[" * 100_000, b'{"a":' * 100_000, b"- " * 5000, b"&a [*a, *a]", b"!!python/object/apply:os.system [id]",
    b"9" * 400, b"9" * 5000, b"-1e99999", b"NaN", b"x" * 5000, b"{}\n" * 3000, b"a: " * 3000, b'{"files": {"..": {}}}',
]  # fmt: skip
"""Contents of a whole file, of any format."""


def swap_type(value: Any) -> Any:
    """A value in another type."""
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, list):
        return {str(number): item for number, item in enumerate(value)}
    return [value] if isinstance(value, str) else str(value)


def mutate(value: Any, rng: random.Random, keys: list[str]) -> Any:
    """A JSON value with one thing changed somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        out = dict(value)
        # Inner objects have more to change.
        key = rng.choices(list(out), [1 + min(count_values(inner), 8) for inner in out.values()])[0]
        if isinstance(out[key], dict | list) and out[key] and rng.random() < 0.75:
            return {**out, key: mutate(out[key], rng, keys)}
        match rng.randrange(12):
            case 0:
                del out[key]
            case 1:
                other = rng.choice(list(out))
                out[key], out[other] = out[other], out[key]
            case 2:
                out[rng.choice(keys)] = rng.choice(POOL)
            case 3:
                out[rng.choice([key[:-1], key + "_", key.upper(), *NAMES])] = out.pop(key)
            case _:
                out[key] = change_value(out[key], rng)
        return out
    if isinstance(value, list) and value and rng.random() < 0.95:
        i = rng.randrange(len(value))
        match rng.randrange(12):
            case 0:
                return value[:i]
            case 1:
                return [*value, rng.choice(POOL)]
        return [*value[:i], mutate(value[i], rng, keys), *value[i + 1 :]]
    return change_value(value, rng)


def count_values(value: Any) -> int:
    """Return the number of values directly inside another."""
    return len(value) if isinstance(value, dict | list) else 0


def change_value(value: Any, rng: random.Random) -> Any:
    """Another value: half of the time of the same type."""
    draw = rng.random()
    if draw < 0.1:
        return swap_type(value)
    if isinstance(value, str) and draw < 0.55:
        return rng.choice(
            [*NAMES, value + "\0", value * 1000, value[:-1], value.upper(), f"../{value}", f"link/{value}"]
        )
    if isinstance(value, int | float) and not isinstance(value, bool) and draw < 0.55:
        return rng.choice([*NUMBERS, value + 1, value - 1, -value, value * 2, value * 2**40, value // 3])
    return rng.choice(POOL)


NUMBERS = [value for value in POOL if isinstance(value, int | float) and not isinstance(value, bool)]
NAMES = [value for value in POOL if isinstance(value, str)]


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


def revalue(data: bytes, suffix: str, rng: random.Random, keys: list[str]) -> bytes:
    """The content of a file with a wrong value; of other formats than JSON, YAML and safetensors, wrong bytes."""
    match suffix:
        case ".json":
            return json.dumps(mutate(json.loads(data), rng, keys)).encode()
        case ".jsonl":
            lines = data.splitlines()
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(mutate(json.loads(lines[at]), rng, keys)).encode()
            return b"\n".join([*lines, b""])
        case ".yaml":
            tree = mutate(yaml.safe_load(data), rng, keys)
            if rng.random() < 0.5:
                return yaml.safe_dump(tree).encode(errors="replace")
            return re.sub(r"(?<![\d.])(\d+)e", r"\1.0e", json.dumps(tree)).encode()  # numbers as YAML knows them
        case ".safetensors":
            return restructure(data, rng, keys)
    return scramble(data, rng)


def replace_entry(file: Path, rng: random.Random, outside: Path) -> None:
    """Something else under the name of a file: nothing, a folder, a pipe, or a link."""
    file.unlink()
    makers: list[Callable[[], object]] = [
        lambda: None,
        file.mkdir,
        lambda: os.mkfifo(file),
        *(lambda target=target: file.symlink_to(target) for target in (outside, outside / "file", "nowhere", file)),
        lambda: file.symlink_to("/dev/zero"),
    ]
    rng.choice(makers)()


def corrupt(file: Path, rng: random.Random, keys: list[str], outside: Path) -> None:
    """Change a file, mostly in its values; names may lead to `outside`, a directory with the entry `file`."""
    changed, draw = file.read_bytes(), rng.random()
    if draw < 0.05:
        replace_entry(file, rng, outside)
        return
    if draw < 0.13:
        changed = rng.choice(CONTENTS)
    elif draw < 0.25:
        changed = scramble(changed, rng)
    else:
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            try:
                changed = revalue(changed, file.suffix, rng, keys)
            except (ValueError, IndexError, yaml.YAMLError):  # no longer of its format
                break
    file.write_bytes(changed.replace(b"OUTSIDE", os.fsencode(outside)))
