"""The values of NF4 by code, and instructions that look them up on a GPU."""

import struct
from collections.abc import Sequence

NF4_VALUES = tuple(
    map(
        float,
        """
        -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334
        -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224
        0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0
        """.split(),  # noqa: SIM905 (numbers of this length read better as words)
    )
)
"""Values of NF4 (Dettmers et al., 2023, appendix E), by code."""


def write_lookup(values: Sequence[float]) -> str:
    """Write PTX that looks up four bytes, each of two codes of 16 values: in fp16, the high codes, then the low ones.

    `prmt` selects four bytes of eight at once, by codes of three bits. So the bytes of the values 0 to 7 and of 8 to 15
    are selected, then one of both by a mask: `prmt` repeats the sign of a byte where a code has its fourth bit, which
    makes 0 of 127 there, and all bits of the others follow from their first.
    """
    halves = struct.pack("<16e", *values)
    tables = [
        [f"0x{int.from_bytes(halves[part + first : part + first + 8 : 2], 'little'):08x}" for first in (0, 8, 16, 24)]
        for part in (0, 1)
    ]
    lines = ["mov.b32 c, $4;"]
    for half in (0, 1):
        lines += ["shr.u32 c, c, 16;"] * half
        lines += ["and.b32 s, c, 0x7777;", "prmt.b32 m, 0x7f7f7f7f, 0x7f7f7f7f, c;"]
        lines += ["shl.b32 m, m, 1;", "prmt.b32 m, m, m, 0xba98;"]
        for name, table in zip("ab", tables, strict=True):
            lines += [f"prmt.b32 {name}, {table[0]}, {table[1]}, s;", f"prmt.b32 d, {table[2]}, {table[3]}, s;"]
            lines += [f"lop3.b32 {name}, {name}, d, m, 0xe4;"]
        lines += [f"prmt.b32 ${half}, a, b, 0x7351;", f"prmt.b32 ${half + 2}, a, b, 0x6240;"]
    return "{ .reg .b32 a, b, c, d, m, s; " + " ".join(lines) + " }"
