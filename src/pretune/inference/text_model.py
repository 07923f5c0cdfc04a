"""Access to the language model and tokenizer behind a loaded model."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from numpy.typing import NDArray
from torch import nn

from pretune.core import io
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.backend import LibraryTokenizer
from pretune.text.tokenizer.files import CONFIG_FILE, SPECIAL_TOKENS_FILE

_TOKENIZERS: "WeakKeyDictionary[LanguageModel, tuple[Any, Tokenizer]]" = WeakKeyDictionary()
_SHARED_TOKENIZERS: "WeakValueDictionary[tuple[str, str], Tokenizer]" = WeakValueDictionary()  # by content of files


def load_model(model: nn.Module | str | os.PathLike[str]) -> nn.Module:
    """Return a model, or load it from a directory or the hub, to a GPU if available."""
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"expected a model, its directory, or hf:OWNER/NAME, got {type(model).__name__}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return checkpoint.load(Path(model), device=device, head="tied")


def get_language_model(model: nn.Module) -> LanguageModel:
    """Return the language model itself, without a task head."""
    language_model = model if isinstance(model, LanguageModel) else getattr(model, "model", None)
    if not isinstance(language_model, LanguageModel):
        raise UsageError(f"expected a model loaded by `pretune.load`, got {type(model).__name__}")
    return language_model


def get_tokenizer(model: nn.Module) -> Tokenizer:
    """Return the model's tokenizer with the roles of its special tokens; built once per model.

    Models with the same files share it while in use, so that its cache of words is shared too.
    """
    language_model = get_language_model(model)
    raw = language_model.tokenizer
    if raw is None:
        raise UsageError("the model has no tokenizer; put a tokenizer.json into its directory")
    if isinstance(raw, Tokenizer):
        return raw
    if language_model not in _TOKENIZERS or _TOKENIZERS[language_model][0] is not raw:
        settings: dict[str, Any] = {}
        for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):  # the later has priority
            settings |= read_asset_json(language_model, name)
        tokenizer = Tokenizer(raw.raw if isinstance(raw, LibraryTokenizer) else raw, settings)
        _TOKENIZERS[language_model] = (
            raw,
            _SHARED_TOKENIZERS.setdefault(
                (tokenizer.sha256, json.dumps(settings, sort_keys=True, allow_nan=False)), tokenizer
            ),
        )
    return _TOKENIZERS[language_model][1]


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable gradients inside the block."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, is_training in training.items():
            module.training = is_training


def read_asset_json(model: LanguageModel, name: str) -> dict[str, Any]:
    """Read a JSON file that came with the weights; empty if there is none."""
    content = model.assets.files.get(name, b"{}")
    try:
        data = io.parse_json(content.decode(), CheckpointError, name)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name}: not UTF-8 at byte {error.start}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{name}: expected a JSON object at the top level")
    return data


def count_unknown(tokenizer: Tokenizer, ids: NDArray[Any]) -> int:
    """Count unknown tokens."""
    unknown = tokenizer.special.get("unk")
    return 0 if unknown is None else int((ids == unknown).sum())


def describe_unknown(count: int, total: int) -> str:
    """Format the number of unknown tokens for a message.

    >>> describe_unknown(300, 1200)
    '300 of 1,200 tokens (25 %) are unknown to the tokenizer'
    """
    return f"{count:,} of {total:,} tokens ({100 * count / max(total, 1):.2g} %) are unknown to the tokenizer"
