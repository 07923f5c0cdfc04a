"""The instructions that look up 4-bit codes on a GPU, carried out one by one."""

import struct

import torch

from pretune.nn.nf4 import NF4_VALUES, write_lookup


def run_ptx(code: str, source: int) -> list[int]:
    """The outputs $0 to $3 of some PTX with the input $4: the few instructions that the lookup has."""
    registers = {"$4": source}

    def read(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    def select(a: int, b: int, codes: int) -> int:
        table, result = (b << 32 | a).to_bytes(8, "little"), 0
        for place in range(4):
            byte = table[codes >> 4 * place & 7]
            if codes >> 4 * place & 8:
                byte = 255 if byte & 128 else 0
            result |= byte << 8 * place
        return result

    operations = {
        "mov.b32": lambda a: a,
        "and.b32": lambda a, b: a & b,
        "shr.u32": lambda a, b: a >> b,
        "shl.b32": lambda a, b: a << b & 0xFFFFFFFF,
        "lop3.b32": lambda a, b, c, _: a & c | b & ~c,
        "prmt.b32": select,
    }
    for line in code.removeprefix("{ .reg .b32 a, b, c, d, m, s; ").removesuffix(" }").rstrip(";").split("; "):
        operation, _, rest = line.partition(" ")
        target, *names = rest.split(", ")
        assert operation != "lop3.b32" or names[-1] == "0xe4"  # a where c, b elsewhere
        registers[target] = operations[operation](*map(read, names))
    return [registers[f"${number}"] for number in range(4)]


def test_lookup_of_codes() -> None:
    code = write_lookup(NF4_VALUES)
    for first in range(0, 256, 4):
        numbers = [first, first + 3, first + 1, first + 2]
        words = run_ptx(code, int.from_bytes(bytes(numbers), "little"))
        found = struct.unpack("<8e", struct.pack("<4I", *words))
        places = [number >> 4 for number in numbers] + [number & 15 for number in numbers]
        assert found == tuple(torch.tensor([NF4_VALUES[place] for place in places]).half().tolist())
