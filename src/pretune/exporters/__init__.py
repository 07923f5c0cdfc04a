"""Exporters: models as files of other libraries: Hugging Face directories, ONNX, GGUF."""
