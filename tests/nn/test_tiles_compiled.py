"""The kernels of tiles, compiled for a GPU that need not be here: what the interpreter takes, the compiler may not."""

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
)
FP32, INT32 = {"NORM", "DELTA", "DB"}, {"Q_SEQUENCE", "K_SEQUENCE", "SPAN", "SEED"}
NUMBERS = {"scale", "factor", "inverse"}
FIXED: dict[str, Any] = {
    "D": 64, "DP": 64, "BM": 64, "BN": 64, "SPLITS": 8,
    "KEEP": True, "CAUSAL": True, "WINDOW": 0, "BIAS": True, "DROP": True,
}  # fmt: skip


def kind(name: str) -> str:
    """The type of an argument, by its name: pointers are written in capitals."""
    if name in FP32:
        return "*fp32"
    if name in INT32:
        return "*i32"
    return "*bf16" if name.isupper() and name not in ("RQ", "RK") else "fp32" if name in NUMBERS else "i32"


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_a_hopper_has_code_for_it(name: str, single: bool) -> None:
    """`single`: where there is one block, its number is known to the compiler."""
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from pretune.nn import kernels

    kernel = getattr(kernels, name)
    fixed = {**FIXED, **({"blocks": 1} if single else {})}
    signature = {one: "constexpr" if one in fixed else kind(one) for one in kernel.arg_names}
    given = {one: value for one, value in fixed.items() if one in signature}
    made = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=given), target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
