"""Predictions of a model for the examples of any task: logits of items or generated texts, decoded by the type.

    predictions = predict(model, encoder, parts.dev)
    score(task, parts.dev, predictions)                  # {'f1': 0.88, 'exact_match': 0.81}: the headline first

Sequences are packed into rows; each is computed once, without loss, and filler is removed from the result.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.answer_logprobs import compute_answer_logprobs
from pretune.core.errors import UsageError
from pretune.core.types import Batch
from pretune.data.layout import PackedBatch, pack_batches, pack_documents
from pretune.data.sequences import compute_starts, spread
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens, GreedySearch
from pretune.inference.text_model import CPU_BATCH_TOKENS, check_outputs, eval_mode, map_batches
from pretune.metrics.numeric import perplexity
from pretune.nn.recurrent_stack import RecurrentStack
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.encoding import Floats, Items
from pretune.tasks.example import Examples, Prediction
from pretune.tasks.types import get_type
from pretune.tasks.types.text_to_text import count_answer_specials, get_end_tokens, get_start_token

ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished examples, and of all."""
BATCH_TOKENS = 16384
"""Maximum tokens of a batch."""
GROUP_SIZE = 256
"""Examples between two progress reports of generation."""


def predict(
    model: ModelWithHead,
    encoder: TaskEncoder,
    examples: Examples,
    *,
    tokens: int = BATCH_TOKENS,
    precision: torch.dtype | None = None,
    beams: int = 1,
    on_progress: ProgressCallback | None = None,
    items: Items | None = None,
) -> list[Prediction]:
    """Return one prediction per example, in order; labels are not used. `beams` is for generated answers.

    `items` are the examples as encoded before, for a model with a head.
    """
    if beams < 1 or (beams > 1 and not encoder.is_generative):
        raise UsageError(f"beams must be >= 1, and 1 for a model that does not generate its answers, got {beams}")
    compares_answers = encoder.is_generative and get_type(encoder.task).inputs.compares_answers
    if encoder.is_generative and not compares_answers:
        return generate_texts(model, encoder, examples, beams=beams, precision=precision, on_progress=on_progress)
    items = items or encoder.encode(examples, training=False)
    per_token = encoder.per_token and not compares_answers
    run = partial(score_answers, model) if compares_answers else None
    logits = compute_logits(
        model, items, per_token=per_token, tokens=tokens, precision=precision, on_progress=on_progress, run=run
    )
    return get_type(encoder.task).outputs.decode(encoder.rules, examples, items, logits)


def compute_logits(
    model: nn.Module,
    items: Items,
    *,
    per_token: bool,
    tokens: int,
    precision: torch.dtype | None = None,
    on_progress: ProgressCallback | None = None,
    run: Callable[[Batch], Tensor] | None = None,
) -> Floats:
    """Return `[S, K]`, or with `per_token` `[T, K]`; a batch has at most about `tokens` tokens.

    `run` computes a row for each cell of a batch with its targets, instead of the model's logits.

    A head that scores pairs has 1 + L columns per token, for the root and each token of its sequence. Their rows are
    returned, sequence by sequence: n (1 + n) for n tokens, `[P, K]` in total.
    """
    sequences = replace(items.sequences, labels=None, targets=items.sequences.targets if run else None)
    lengths = sequences.lengths
    device = next(model.parameters()).device

    def compute(part: PackedBatch) -> Floats:
        with torch.autocast(device.type, precision, enabled=precision is not None):
            out = (run or model)(part.batch.to(device)).float().cpu()
        # A layout has more cells than sequences, so as many rows as sequences have no filler.
        has_filler = per_token or len(out) != len(part.indices)
        return (out[part.token_positions if per_token else part.cells] if has_filler else out).numpy()

    logits: Floats | None = None
    count_done = 0
    tokens = _choose_batch_tokens(model, tokens, device.type)
    has_chunks = sequences.chunks is not None and bool(sequences.chunks.any())
    parts = [
        *(
            pack_documents(sequences, tokens=tokens)
            if has_chunks
            else pack_batches(sequences, tokens=tokens, device=device.type)
        )
    ]
    with eval_mode(model), torch.compiler.set_stance("force_eager"):
        results = map_batches(compute, parts, tokens=tokens, device=device)
        for part, values in zip(parts, results, strict=True):
            indices, rows = part.indices, lengths  # rows of each sequence, if it has more than one
            if values.ndim == 3:
                rows = lengths * (1 + lengths)
                token_lengths = np.repeat(lengths[indices], lengths[indices])
                values = values[np.arange(values.shape[1]) <= token_lengths[:, None]]
            check_outputs(values, "logits")
            if logits is None:
                logits = np.zeros((int(rows.sum()) if per_token else len(sequences), values.shape[1]), np.float32)
            position: Any = spread(compute_starts(rows)[indices], rows[indices]) if per_token else indices
            logits[position] = values
            count_done += len(indices)
            if on_progress is not None:
                on_progress(count_done, len(sequences))
    assert logits is not None
    return logits


def score_answers(model: ModelWithHead, batch: Batch) -> Tensor:
    """Return the log-probability of the targets of each cell, and their number `[C, 2]`."""
    answers = compute_answer_logprobs(model, batch)
    return torch.stack((answers.sums, answers.counts.to(answers.sums.dtype)), dim=1)


def _choose_batch_tokens(model: nn.Module, tokens: int, device: str) -> int:
    """Return the tokens of a batch: on a CPU those of one thread, unless layers go through many rows step by step."""
    if device != "cpu" or any(isinstance(module, RecurrentStack) for module in model.modules()):
        return tokens
    return min(tokens, CPU_BATCH_TOKENS)


def generate_texts(
    model: nn.Module,
    encoder: TaskEncoder,
    examples: Examples,
    *,
    beams: int = 1,
    precision: torch.dtype | None = None,
    on_progress: ProgressCallback | None = None,
) -> list[Prediction]:
    """Generate an answer for each example."""
    rules, (prompts, decoding, tokens) = encoder.rules, encode_prompts(encoder, examples)
    decoding = replace(decoding, search=GreedySearch() if beams == 1 else BeamSearch(beams=beams))
    device = next(model.parameters()).device
    predictions: list[Prediction] = []
    for first in range(0, len(prompts), GROUP_SIZE):
        with torch.autocast(device.type, precision, enabled=precision is not None):
            outputs = generate_tokens(model, prompts[first : first + GROUP_SIZE], decoding, generation_tokens=tokens)
        texts = [rules.tokenizer.decode(output[0].tokens, special=False).strip() for output in outputs]
        predictions += [
            get_type(rules.task).outputs.parse_answer(rules, example, text)
            for example, text in zip(examples[first:], texts, strict=False)
        ]
        if on_progress is not None:
            on_progress(len(predictions), len(examples))
    return predictions


def encode_prompts(
    encoder: TaskEncoder, examples: Examples
) -> tuple[list[list[int]], GenerationConfig, GenerationTokens]:
    """Return the prompts of examples, the length of their answers, and the tokens that start and end them."""
    rules = encoder.rules
    no_slots = replace(encoder, rules=replace(rules, slots=0))  # decoding reserves the slots itself
    items = no_slots.encode(examples, training=False).sequences
    side = items if items.source is None else items.source
    prompts = [side.tokens[start:end].tolist() for start, end in zip(side.offsets[:-1], side.offsets[1:], strict=True)]
    inputs = get_type(rules.task).inputs
    tokens = GenerationTokens(
        start=get_start_token(rules) if rules.spec.is_encoder_decoder else None,
        eos=inputs.get_end_tokens(rules) if inputs.has_own_encoding else get_end_tokens(rules),
    )
    return prompts, GenerationConfig(max_new_tokens=rules.max_new_tokens + count_answer_specials(rules)), tokens


def compute_answer_scores(
    model: ModelWithHead, encoder: TaskEncoder, examples: Examples, precision: torch.dtype | None
) -> dict[str, float]:
    """Return the loss per token of the reference answers, and their perplexity."""
    value = answer_perplexity(model, encoder, examples, precision=precision)
    return {"loss": math.log(value), "perplexity": value}


def answer_perplexity(
    model: ModelWithHead,
    encoder: TaskEncoder,
    examples: Examples,
    *,
    tokens: int = 16384,
    precision: torch.dtype | None = None,
) -> float:
    """Return the perplexity per token of the answers, including their end tokens; of truncated ones, of the rest.

    Models with different vocabularies have different tokens, so they cannot be compared by it.
    """
    if not encoder.is_generative:
        raise UsageError("perplexity needs a model that generates its answers; this one has a head")
    sequences = encoder.encode(examples).sequences
    if sequences.labels is not None:  # of two answers, the first is the reference
        sequences = sequences.take(np.flatnonzero(sequences.labels == 0))
    device = next(model.parameters()).device
    nats = units = 0.0
    with eval_mode(model), torch.compiler.set_stance("force_eager"):
        for _, _, batch in pack_batches(sequences, tokens=tokens, device=device.type):
            with torch.autocast(device.type, precision, enabled=precision is not None):
                loss = model.spec.loss(model, batch.to(device))
            nats, units = nats + float(loss.sum), units + float(loss.count)
    return perplexity(nats, units)
