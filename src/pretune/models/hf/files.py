"""Files beside the weights of a model directory: config, tokenizer, generation settings. GGUF files hold them all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.errors import CheckpointError
from pretune.core.hub import is_gguf
from pretune.models.hf.config import HfConfig
from pretune.models.spec import Model
from pretune.text.tokenizer.files import CHAT_TEMPLATE_FILE, TOKENIZER_FILE, parse_tokenizer, read_gguf_files

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
FORCED_TOKENS = ("forced_bos_token_id", "forced_eos_token_id")
ASSET_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt",
    "added_tokens.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", GENERATION_FILE,
    CHAT_TEMPLATE_FILE,
)  # fmt: skip
"""Small files that are kept with the weights unchanged."""
MAX_CONFIG_BYTES = 16 << 20
MAX_ASSET_BYTES = 64 << 20


def locate_config(folder: Path) -> Path:
    """Return the file that has the config."""
    return folder if is_gguf(folder) else folder / CONFIG_FILE


def read_config(folder: Path) -> HfConfig:
    """Return the config of a directory or a GGUF file."""
    if is_gguf(folder):
        from pretune.core.gguf import read_gguf
        from pretune.models.gguf import build_config

        return HfConfig(build_config(read_gguf(folder)))
    return HfConfig(io.read_json(folder / CONFIG_FILE, CheckpointError, MAX_CONFIG_BYTES))


def read_assets(folder: Path, spec: Model) -> dict[str, bytes]:
    """Return the files to keep; tokens forced by an older config are moved to a `generation_config.json`."""
    if is_gguf(folder):
        return read_gguf_files(folder)
    files = {}
    for name in ASSET_FILES:
        file = folder / name
        if file.is_file():
            files[name] = io.read_bounded(file, CheckpointError, MAX_ASSET_BYTES)
    hf_config = read_config(folder)
    if hf_config.get("force_bos_token_to_be_generated") is True:  # the first releases of BART
        hf_config["forced_bos_token_id"] = hf_config.get("bos_token_id", spec.special.bos)
    forced_tokens = {name: hf_config[name] for name in FORCED_TOKENS if hf_config.get(name) is not None}
    if forced_tokens and spec.decoder is not None and GENERATION_FILE not in files:
        settings = {**make_generation_config(hf_config), **forced_tokens}
        files[GENERATION_FILE] = json.dumps(settings, indent=2, allow_nan=False).encode() + b"\n"
    return files


def read_tokenizer(folder: Path, spec: Model, files: Mapping[str, bytes]) -> Any:
    """Return the tokenizer in the files of a directory, or None. Its ids must be below the model's vocabulary size."""
    if TOKENIZER_FILE not in files:
        return None
    file = folder if is_gguf(folder) else folder / TOKENIZER_FILE
    tokenizer = parse_tokenizer(files[TOKENIZER_FILE], str(file))
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if last >= spec.vocab:
        raise CheckpointError(f"{file}: token id {last} exceeds the model's vocabulary size {spec.vocab}")
    return tokenizer


def make_generation_config(hf_config: HfConfig) -> dict[str, object]:
    """Return the special tokens of a config under the names of `generation_config.json`."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return {name: hf_config[name] for name in names if hf_config.get(name) is not None}
