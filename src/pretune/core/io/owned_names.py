"""Names that each writer of a directory replaces, as patterns: what an earlier write left goes with the next one.

They are here, and not with their writers, because whoever opens a directory completes an interrupted write into it.
"""

import re
from typing import NamedTuple

from pretune.core.io.files import MANIFEST


class OwnedNames(NamedTuple):
    """Names, relative to a directory, that a writer replaces; nothing is read without the `main` one."""

    main: str
    pattern: re.Pattern[str]


def _compile_globs(*globs: str) -> re.Pattern[str]:
    """Return the pattern of relative names, from globs whose `*` and `?` match within one part of a name."""
    return re.compile("|".join(re.escape(glob).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for glob in globs))


_MODEL_FILES = (
    "config.json", MANIFEST, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
    "vocab.json", "merges.txt", "added_tokens.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
    "generation_config.json", "modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
    "head.safetensors", "adapter.json", "adapter_config.json", "adapter_model.safetensors", "model.safetensors",
    "model.body.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors",
)  # fmt: skip
_PARTNER_FOLDERS = ("generator", "backward")

NO_OWNER = OwnedNames(MANIFEST, _compile_globs(MANIFEST))  # a manifest of other files is always replaced

OWNERS = {
    "model": OwnedNames(
        "config.json",
        _compile_globs(*_MODEL_FILES, *(f"{folder}/{file}" for folder in _PARTNER_FOLDERS for file in _MODEL_FILES)),
    ),
    "data": OwnedNames(
        "data.json",
        re.compile(
            r"data\.json|slice\.json|card\.(json|md)|MANIFEST\.json|tokenizer/[\w.-]+|units-\d+\.bin"
            r"|(keys|lengths|sizes|sources|held|signatures|sides)\.npy"
            r"|(train|valid)/(MANIFEST\.json|\d+\.(tokens|documents|sentences|words|sources|sides)\.npy)"
        ),
    ),
    "onnx": OwnedNames(MANIFEST, _compile_globs("onnx/*.onnx", "onnx/*.onnx_data")),
}
