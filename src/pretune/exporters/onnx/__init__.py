"""ONNX: models as graphs over padded inputs, which other runtimes execute without torch."""
