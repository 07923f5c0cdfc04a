"""Single products of few rows with quantized weights beside the bf16 product, on a GPU.

    PYTHONPATH=src python bench/quantized_products.py [--rows 1,16] [--sweep] [--out FILE]

Shapes are those of Llama-3.2-1B. Weights of several layers, larger than the cache of the device together, are
multiplied in turn inside one CUDA graph. Microseconds of a product, and the share of the memory rate: bytes of the
weight, per second, of 4.8 TB/s. `dequantized` is the product with the matrix that is first written to memory. `--sweep`
tries other tiles of the kernels and states those with which the products of a layer take the least time.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import common
import torch
from torch import Tensor, nn

from pretune.adaptation.peft.qlora import Linear4bit
from pretune.adaptation.quantized import Linear8bit
from pretune.nn import quantized_products as products

SHAPES = {"q, out": (2048, 2048), "k, v": (512, 2048), "gate, up": (8192, 2048), "down": (2048, 8192)}
"""Outputs and inputs."""
COUNTS = {"q, out": 2, "k, v": 2, "gate, up": 2, "down": 1}
"""Products of a layer."""
CACHE = 200e6
"""Bytes of weights that are multiplied in turn; the cache of an H200 has 50 MB."""
RATE = 4.8e12  # bytes per second: datasheet memory rate of an H200
Tile = dict[str, int]


def measure(layers: list[Callable[[Tensor], Tensor]], x: Tensor) -> float:
    """Return the microseconds of a product: the least of five replays of a graph with all layers."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for layer in layers[:2]:
            layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for layer in layers:
                layer(x)
    times = []
    for _ in range(6):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end) / len(layers))
    return min(times[1:])


def check(layer: nn.Module, weight: Tensor, x: Tensor) -> float:
    """Return the relative error to the product with the dequantized matrix in fp64."""
    expected = x.double() @ weight.double().T
    with torch.no_grad():
        return float((layer(x).double() - expected).norm() / expected.norm())


def list_tiles(base: Tile) -> Iterator[Tile]:
    """Yield other tiles and launch options."""
    if "num_stages" in base:
        choices = {"BN": (16, 32, 64), "BK": (256, 512), "num_warps": (4,), "num_stages": (2, 4), "programs": (1, 264)}
    else:
        choices = {"BN": (2, 4, 8), "BK": (1024, 2048), "num_warps": (2, 4, 8), "programs": (1,)}
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def sweep(layers: list[Callable[[Tensor], Tensor]], x: Tensor, name: str) -> dict[str, Any]:
    """Return the best tile of a kernel, and its microseconds."""
    base: Tile = dict(getattr(products, name))
    rows: list[tuple[float, Tile]] = []
    for tile in list_tiles(base):
        setattr(products, name, tile)
        try:
            rows.append((measure(layers, x), tile))
        except RuntimeError:  # more shared memory than there is
            continue
    setattr(products, name, base)
    return {"constant": name, "tiles": [{"us": round(time, 2), **tile} for time, tile in rows]}


def choose_tiles(shapes: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the tile of each kernel with which the products of a layer take the least time."""
    chosen: dict[str, Any] = {}
    for kind in ("int8", "nf4"):
        times: dict[tuple[tuple[str, int], ...], list[float]] = {}
        for shape, row in shapes.items():
            for tile in row[kind]["tiles"]:
                key = tuple((name, value) for name, value in tile.items() if name != "us")
                times.setdefault(key, []).append(COUNTS[shape] * tile["us"])
        best = min((key for key in times if len(times[key]) == len(shapes)), key=lambda key: sum(times[key]))
        name = next(iter(shapes.values()))[kind]["constant"]
        chosen[name] = {"tile": dict(best), "us": round(sum(times[best]), 2)}
    return chosen


def measure_shape(outputs: int, inputs: int, rows: int, *, with_sweep: bool) -> dict[str, Any]:
    """Return times of all kinds of weights."""
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    kept_rows, result = products.MAX_ROWS, {}
    sizes = {"bf16": 2.0, "int8": 1.0, "nf4": 4.127 / 8}
    for kind, size in sizes.items():
        count = max(4, int(CACHE / (outputs * inputs * size)))
        layers: list[Any] = []
        for _ in range(count):
            linear = nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)
            layers.append({"bf16": lambda one: one, "int8": Linear8bit, "nf4": Linear4bit}[kind](linear))
        time = measure(layers, x)
        row = {"us": round(time, 2), "memory_rate": round(outputs * inputs * size / time / 1e-6 / RATE, 3)}
        if kind != "bf16":
            row["error"] = check(layers[0], layers[0].compute_weight(), x)
            products.MAX_ROWS = 0
            row["dequantized_us"] = round(measure(layers, x), 2)
            products.MAX_ROWS = kept_rows
            if with_sweep:
                row |= sweep(
                    layers, x, f"{'NF4_' if kind == 'nf4' else ''}{'ONE_ROW' if rows == 1 else 'SEVERAL_ROWS'}"
                )
        result[kind] = row
        del layers
        torch.cuda.empty_cache()
    return result


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16])
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA GPU")
    result: dict[str, Any] = {"device": common.describe_device("cuda"), "torch": torch.__version__, "rows": {}}
    for rows in options.rows:
        for name, (outputs, inputs) in SHAPES.items():
            row = measure_shape(outputs, inputs, rows, with_sweep=options.sweep)
            result["rows"].setdefault(str(rows), {})[name] = row
            shown = {kind: {key: row[kind][key] for key in row[kind] if key != "tiles"} for kind in row}
            print({"rows": rows, "shape": name, **shown}, flush=True)
        if options.sweep:
            result.setdefault("best", {}).update(choose_tiles(result["rows"][str(rows)]))
        common.write_result(result, options.out)
    common.print_result(result, options.out)


if __name__ == "__main__":
    main()
