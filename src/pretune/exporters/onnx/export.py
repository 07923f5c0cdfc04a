"""Writing of ONNX files: tracing, int8, the check against the model, and the directory around them."""

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from pretune.adaptation import io as model_io
from pretune.adaptation.adapted import ModelWithHead
from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError, import_extra
from pretune.exporters.onnx.check import measure_difference
from pretune.exporters.onnx.graphs import Graph, build_graphs, prepare_model
from pretune.exporters.output import ExportCard, is_file_path, open_directory, write_card
from pretune.models.model import LanguageModel
from pretune.models.tensor_files import INDEX_FILE

FOLDER = "onnx"
OPSET = 17
MAX_DIFFERENCE = 1e-4
MAX_FILE_BYTES = 2 * 10**9 - 2**20
"""Size from which weights are in a file of their own: a protocol buffer has at most 2 GiB."""


class OnnxFiles(NamedTuple):
    """The files of an export, and the largest difference of their outputs from the model's."""

    names: tuple[str, ...]
    difference: float
    quantized_difference: float | None = None


def write_onnx(
    model: LanguageModel | ModelWithHead,
    directory: Path,
    *,
    quantize: Literal["int8"] | None = None,
    card: ExportCard | None = None,
    overwrite: bool = False,
) -> OnnxFiles:
    """Write a directory with config, tokenizer and `onnx/model.onnx`; nothing is written if a check fails.

    Of a path that ends in `.onnx`, only the graph is written, and that with 8-bit weights beside it.

    Raises:
        UsageError: the model has no form in ONNX, or the extra `onnx` is missing.
        CheckpointError: the outputs of a file differ from the model's.
    """
    for module in ("onnx", "onnxruntime"):
        import_extra(module, "onnx", "ONNX export needs")
    exported_model = prepare_model(model.eval())
    graphs, is_file = build_graphs(exported_model), is_file_path(directory)
    if is_file and len(graphs) > 1:
        parts = ", ".join(f"{graph.name}.onnx" for graph in graphs)
        raise UsageError(f"this model has several graphs ({parts}); choose a directory instead of '{directory}'")
    targets = {f"{FOLDER}/model.onnx": directory}
    if quantize is not None:
        targets[f"{FOLDER}/model_quantized.onnx"] = directory.with_name(f"{directory.stem}_quantized.onnx")
    with open_directory(directory, targets, overwrite=overwrite, owner="onnx") as folder:
        _write_config(model, folder)
        (folder / FOLDER).mkdir()
        for graph in graphs:
            _trace(graph, folder / FOLDER / f"{graph.name}.onnx")
        names = [graph.name for graph in graphs]
        difference = measure_difference(exported_model, _open_sessions(folder, names))
        if not difference <= MAX_DIFFERENCE:
            raise CheckpointError(
                f"ONNX export failed its check: the outputs differ from the model's by {difference:.1e} "
                f"(allowed: {MAX_DIFFERENCE:.0e}); nothing was written"
            )
        quantized_difference = None
        if quantize is not None:
            for name in names:
                _quantize(folder / FOLDER / f"{name}.onnx", folder / FOLDER / f"{name}_quantized.onnx")
            sessions = _open_sessions(folder, names, "_quantized")
            quantized_difference = measure_difference(exported_model, sessions)
            if quantized_difference != quantized_difference:
                raise CheckpointError("ONNX export failed its check: outputs of the int8 model are not numbers")
        if is_file and any((folder / FOLDER).glob("*_data")):
            raise UsageError(f"weights above 2 GB need another file beside it; choose a directory, not '{directory}'")
        if card is not None:
            write_card(card, folder, directory)
        paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        io.write_manifest(folder, [path.name for path in folder.iterdir() if path.is_file()])
    files = tuple(target.name for target in targets.values())
    if not is_file:
        files = tuple(path for path in paths if path.startswith(f"{FOLDER}/"))
    return OnnxFiles(files, difference, quantized_difference)


def _write_config(model: LanguageModel | ModelWithHead, folder: Path) -> None:
    """Write config, tokenizer and the modules of sentence-transformers, without weights."""
    model_io.save(model, folder, overwrite=True)
    for path in [*folder.glob("*.safetensors"), folder / INDEX_FILE, folder / io.MANIFEST]:
        path.unlink(missing_ok=True)


def _trace(graph: Graph, path: Path) -> None:
    """Trace a module and write its graph."""
    import onnx

    with torch.no_grad(), _silence_exporter(), _ExpandNorms():
        torch.onnx.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            str(path),
            input_names=[*graph.inputs],
            output_names=[*graph.outputs],
            dynamic_axes=graph.axes,
            opset_version=OPSET,
            dynamo=False,
        )
    if sum(file.stat().st_size for file in path.parent.iterdir()) > MAX_FILE_BYTES:
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}_data")


class _ExpandNorms(TorchFunctionMode):
    """Computes root mean square norms step by step: the exporter does not know them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is not F.rms_norm:
            return func(*args, **options)
        x = args[0]
        return x / (x.square().mean(-1, keepdim=True) + options["eps"]).sqrt() * options["weight"]


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter: shapes that Python reads while tracing are those of layouts, which do not change."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)


def _quantize(source: Path, target: Path) -> None:
    """Write a graph with int8 weights, a scale per column; activations are quantized when it runs."""
    import onnx

    quantization = import_extra("onnxruntime.quantization", "onnx", "int8 needs")
    model = onnx.load(source)
    _separate_products(model)
    with _silence_exporter():
        quantization.quantize_dynamic(
            model,
            target,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,  # NOTE: products of 8 bits overflow on CPUs without VNNI
            use_external_data_format=source.stat().st_size > MAX_FILE_BYTES or Path(f"{source}_data").exists(),
        )


def _separate_products(model: Any) -> None:
    """Give each product its own weights, in place: the quantizer transposes them, though a lookup may share them."""
    uses = Counter(name for node in model.graph.node for name in node.input)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for i, node in enumerate(model.graph.node):
        if node.op_type == "Gemm" and node.input[1] in tensors and uses[node.input[1]] > 1:
            copied_tensor = model.graph.initializer.add()
            copied_tensor.CopyFrom(tensors[node.input[1]])
            copied_tensor.name = node.input[1] = f"{node.input[1]}.{i}"


def _open_sessions(folder: Path, names: Sequence[str], suffix: str = "") -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    open_session = partial(onnxruntime.InferenceSession, providers=["CPUExecutionProvider"])
    return {name: open_session(folder / FOLDER / f"{name}{suffix}.onnx", options) for name in names}
