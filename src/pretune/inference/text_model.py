"""A model as its users see it: the body that computes, and the tokenizer that came with it."""

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
_SHARED_TOKENIZERS: "WeakValueDictionary[tuple[str, str], Tokenizer]" = WeakValueDictionary()  # by what their files say


def load_model(model: nn.Module | str | os.PathLike[str]) -> nn.Module:
    """Return a model as it is, or the one of a directory or a name on the hub, on a GPU where there is one."""
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"expected a model, its directory, or hf:OWNER/NAME, found a {type(model).__name__}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return checkpoint.load(Path(model), device=device, head="tied")


def get_language_model(model: nn.Module) -> LanguageModel:
    """The language model itself: of a model with a task's head on it, what is below."""
    found = model if isinstance(model, LanguageModel) else getattr(model, "model", None)
    if not isinstance(found, LanguageModel):
        raise UsageError(f"expected a model as `pretune.load` gives it, found {type(model).__name__}")
    return found


def get_tokenizer(model: nn.Module) -> Tokenizer:
    """The tokenizer that came with the weights, with the roles of its special tokens; made once for each model.

    Models with the same files share it while one of them is in use: it knows the words that it has met.
    """
    found = get_language_model(model)
    raw = found.tokenizer
    if raw is None:
        raise UsageError("this model came without a tokenizer; put a tokenizer.json into its directory")
    if isinstance(raw, Tokenizer):
        return raw
    if found not in _TOKENIZERS or _TOKENIZERS[found][0] is not raw:
        said: dict[str, Any] = {}
        for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):  # the later counts
            said |= read_asset_json(found, name)
        made = Tokenizer(raw.raw if isinstance(raw, LibraryTokenizer) else raw, said)
        _TOKENIZERS[found] = (
            raw,
            _SHARED_TOKENIZERS.setdefault((made.sha256, json.dumps(said, sort_keys=True, allow_nan=False)), made),
        )
    return _TOKENIZERS[found][1]


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """While the block runs, the model is only asked: in evaluation mode, without gradients."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was in training.items():
            module.training = was


def read_asset_json(model: LanguageModel, name: str) -> dict[str, Any]:
    """What a small JSON file that came with the weights says; nothing, where there is none."""
    data = model.assets.files.get(name, b"{}")
    try:
        found = io.parse_json(data.decode(), CheckpointError, name)
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"{name}: not UTF-8 at byte {fault.start}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{name}: expected a JSON object at the top level")
    return found


def count_unknown(tokenizer: Tokenizer, ids: NDArray[Any]) -> int:
    """How many tokens stand for text that the vocabulary does not have."""
    unknown = tokenizer.special.get("unk")
    return 0 if unknown is None else int((ids == unknown).sum())


def describe_unknown(count: int, total: int) -> str:
    """Unknown tokens in a message.

    >>> describe_unknown(300, 1200)
    '300 of 1,200 tokens (25 %) are unknown to the tokenizer'
    """
    return f"{count:,} of {total:,} tokens ({100 * count / max(total, 1):.2g} %) are unknown to the tokenizer"
