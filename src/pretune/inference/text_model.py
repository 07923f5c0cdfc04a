"""Access to the language model and tokenizer behind a loaded model, and its evaluation: modes, batches in threads.

Threads that share a batch wait for each other after every operation, and more so the smaller the batch. Where there are
several batches, each thread computes its own instead: on two cores a sixth less time for texts of 20 words.
"""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretune.core.errors import NonFiniteError, UsageError
from pretune.models.hf import checkpoint
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer

CPU_BATCH_TOKENS = 1024
"""Tokens of a batch that one thread computes: enough to keep it busy, small enough for its caches."""
T = TypeVar("T")
Result = TypeVar("Result")


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


def get_predictive_model(model: nn.Module, *, backward: bool = False) -> LanguageModel:
    """Return the language model that predicts tokens: of a model of two directions, the one from left to right.

    With `backward` it is the one from right to left, which takes reversed sequences.
    """
    language_model = get_language_model(model)
    is_two_way = backward or language_model.shape == "two-way"
    return language_model.get_direction(backward=backward) if is_two_way else language_model


def get_tokenizer(model: nn.Module) -> Tokenizer:
    """Return the model's tokenizer. Raises UsageError if it has none."""
    tokenizer = get_language_model(model).tokenizer
    if tokenizer is None:
        raise UsageError("the model has no tokenizer; put a tokenizer.json into its directory")
    return tokenizer


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable gradients inside the block."""
    training_modules = [module for module in list_modules(model) if module.training]
    if training_modules:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training_modules:
            module.training = True


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all modules in it; faster than `model.modules()`, which also makes their names."""
    modules, known_modules = [model], {model}
    for module in modules:  # it grows meanwhile
        for child in module._modules.values():
            if child is not None and child not in known_modules:
                known_modules.add(child)
                modules.append(child)
    return modules


def list_linear_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights of the linear layers."""
    return [module.weight for module in model.modules() if type(module) is nn.Linear]


@contextlib.contextmanager
def column_major_weights(weights: Iterable[Tensor]) -> Iterator[None]:
    """Store weights `[out, in]` on a CPU by columns inside the block; their values are unchanged.

    The product with the transposed weight, as in a linear layer, then reads memory in order: 5 to 10 % faster on some
    processors, and 1.1 to 1.8 times as fast for few rows, but slower for a single one. Each weight takes twice the
    memory meanwhile.
    """
    original_data = [
        (weight, weight.data)
        for weight in weights
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
    ]
    try:
        for weight, data in original_data:
            weight.data = data.t().contiguous().t()
        yield
    finally:
        for weight, data in original_data:
            weight.data = data


def count_unknown(tokenizer: Tokenizer, ids: NDArray[Any], *, as_targets: bool = False) -> int:
    """Count unknown tokens; `as_targets` counts those that an open vocabulary can read, but not predict, as well."""
    unknown = tokenizer.special.get("unk")
    unread_count = 0 if unknown is None else int((ids == unknown).sum())
    return unread_count + (int((ids >= tokenizer.vocab).sum()) if as_targets else 0)


def describe_unknown(count: int, total: int) -> str:
    """Format the number of unknown tokens for a message.

    >>> describe_unknown(300, 1200)
    '300 of 1,200 tokens (25 %) are unknown to the tokenizer'
    """
    return f"{count:,} of {total:,} tokens ({100 * count / max(total, 1):.2g} %) are unknown to the tokenizer"


def check_outputs(values: Tensor | NDArray[Any], noun: str = "outputs") -> None:
    """Raise a NonFiniteError if outputs contain NaN or infinity. Synchronizes with the device."""
    is_finite = bool(torch.isfinite(values).all()) if isinstance(values, Tensor) else bool(np.isfinite(values).all())
    if not is_finite:
        raise make_non_finite_error(noun)


def make_non_finite_error(noun: str) -> NonFiniteError:
    """Build the error of non-finite outputs."""
    return NonFiniteError(
        f"the model's {noun} are not finite: its weights are damaged or diverged; `pretune verify` names the tensor"
    )


def map_batches(
    function: Callable[[T], Result], batches: Iterable[T], *, tokens: int, device: torch.device
) -> Iterator[Result]:
    """Yield `function(batch)` for batches of about `tokens` tokens: in threads on a CPU, unless batches are large.

    Large batches are computed one at a time by all threads, since every one at work takes memory.
    """
    if device.type == "cpu" and tokens <= CPU_BATCH_TOKENS:
        return map_in_threads(function, batches)
    return map(function, batches)


def map_in_threads(function: Callable[[T], Result], items: Iterable[T]) -> Iterator[Result]:
    """Yield `function(item)` for each item, in their order, with the threads that torch has in the caller.

    Items are computed at the same time, each by an equal part of the threads. The function must not change anything
    that another call reads. The modes of the caller (gradients, inference, autocast) hold for all calls.
    """
    threads, items = torch.get_num_threads(), iter(items)
    first_items = list(islice(items, threads))
    workers = len(first_items)
    if workers <= 1:
        yield from map(function, chain(first_items, items))
        return
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def call(item: T) -> Result:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad and not inference),
            torch.autocast("cpu", dtype, enabled=autocast),
        ):
            return function(item)

    # NOTE: the number of threads is one of the calling thread; but it is also the default of threads that start later.
    pool = ThreadPoolExecutor(workers, "batches", torch.set_num_threads, (threads // workers,))
    pending: deque[Future[Result]] = deque()
    try:
        for item in chain(first_items, items):
            pending.append(pool.submit(call, item))
            if len(pending) > 2 * workers:  # results that nobody has read yet take memory
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
