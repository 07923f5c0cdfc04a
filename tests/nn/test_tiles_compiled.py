"""Triton's kernels, compiled for a GPU that need not be here: what the interpreter takes, the compiler may not."""

from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="the compiler of kernels is not installed (pip install triton)")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),  # of releases that change a default
]
KERNELS = (
    "forward",
    "compute_row_gradients",
    "compute_deltas",
    "compute_key_gradients",
    "compute_query_gradients",
    "compute_bias_gradients",
    "rotate",
)
DISTANCE_KERNELS = ("forward", "compute_key_gradients", "compute_query_gradients", "compute_distance_gradients")
DISTANCES = {"CAUSAL": False, "BIAS": False, "C2P": True, "P2C": True}
FP32 = {"NORM", "DELTA", "DB", "DPK", "DPQ", "COARSE", "VALUES", "STEPS"}
INT32 = {"Q_SEQUENCE", "K_SEQUENCE", "SEQUENCE", "SPAN", "SEED"}
NUMBERS = {"scale", "factor", "inverse"}
FIXED: dict[str, Any] = {
    "D": 64, "DP": 64, "BM": 64, "BN": 64, "SPLITS": 8, "HP": 8, "BT": 16,
    "KEEP": True, "CAUSAL": True, "WINDOW": 0, "BIAS": True, "DROP": True, "C2P": False, "P2C": False,
}  # fmt: skip


def kind(name: str) -> str:
    """The type of an argument, by its name: pointers are written in capitals."""
    if name in FP32:
        return "*fp32"
    if name in INT32:
        return "*i32"
    return "*bf16" if name.isupper() and name not in ("R", "RQ", "RK") else "fp32" if name in NUMBERS else "i32"


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_a_hopper_has_code_for_it(name: str, single: bool) -> None:
    """`single`: where there is one block, its number is known to the compiler."""
    from pretune.nn import kernels

    build(getattr(kernels, name), {**FIXED, **({"blocks": 1} if single else {})})


@pytest.mark.parametrize("name", DISTANCE_KERNELS)
def test_a_hopper_has_code_for_distances(name: str) -> None:
    """Within its shared memory."""
    from pretune.nn import kernels
    from pretune.nn.tiles import DISTANCE_TILES

    options = {key: value for key, value in DISTANCE_TILES[1].items() if key.startswith("num_")}
    assert build(getattr(kernels, name), {**FIXED, **DISTANCES}, **options).metadata.shared < 227 * 1024


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_hopper_has_code_for_quantized_products(bits: int, rows: int) -> None:
    """Within its shared memory."""
    from pretune.nn import quantized_kernels
    from pretune.nn import quantized_products as products

    fixed = {**products._choose_tile(bits, rows, 2048, 64), "DOUBLE": True, "PTX": True, "BLOCK": 64}
    options = {name: fixed.pop(name) for name in ("num_warps", "num_stages") if name in fixed}
    kernel = quantized_kernels.int8_kernel if bits == 8 else quantized_kernels.nf4_kernel
    types = {"CODES": "*i8", "SCALES": "*fp32"} if bits == 8 else {"CODES": "*u8", "SCALES": "*u8"}
    types |= {"N": "i32", "K": "i32"}
    assert build(kernel, fixed, types, **options).metadata.shared < 227 * 1024


def build(kernel: Any, fixed: dict[str, Any], types: dict[str, str] | None = None, **options: int) -> Any:
    """Return a kernel compiled for Hopper; `types` are those of arguments whose names do not tell."""
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-not-found, import-untyped, unused-ignore]

    types = types or {}
    signature = {one: "constexpr" if one in fixed else types.get(one, kind(one)) for one in kernel.arg_names}
    given = {one: value for one, value in fixed.items() if one in signature}
    source = ASTSource(fn=kernel, signature=signature, constexprs=given)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options or None)
    assert made.asm["cubin"]
    return made
