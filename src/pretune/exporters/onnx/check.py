"""Comparison of exported graphs with the model they were exported from, on ragged batches of random tokens.

The reference is the model itself. The graphs get the same sequences padded, on the right and on the left, in other
sizes than those of the example with which they were traced; a decoder gets them in steps. Legend: B rows, T columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretune.adaptation.adapted import SEQUENCE_HEADS, ModelWithHead
from pretune.adaptation.heads.base import find_start_token
from pretune.adaptation.heads.sequence import Choice
from pretune.adaptation.heads.token import Span
from pretune.core.types import Batch
from pretune.exporters.onnx.graphs import AnyModel, has_segments, make_past
from pretune.inference.pooling import TextEncoder
from pretune.inference.pooling import compute_states as compute_text_states
from pretune.models.model import LanguageModel
from pretune.nn.stack import TransformerStack

LENGTHS = (6, 9, 1, 4)
"""Lengths of the sequences; shorter if the model has fewer positions."""
Sessions = Mapping[str, Any]
"""A session of onnxruntime for every graph, by name."""


@torch.no_grad()
def measure_difference(model: AnyModel, sessions: Sessions) -> float:
    """Return the largest difference of all outputs, relative to the largest value of the output if that is above 1."""
    spec = model.spec if isinstance(model, LanguageModel) else model.model.spec
    longest = min(max(LENGTHS), spec.max_length or max(LENGTHS))
    generator = torch.Generator().manual_seed(0)
    sequences = [
        torch.randint(0, spec.vocab, (min(length, longest),), generator=generator).tolist() for length in LENGTHS
    ]
    if isinstance(model, LanguageModel) and model.decoder is not None and model.head is not None:
        if model.spec.is_encoder_decoder:
            return _compare_encoder_decoder(model, sessions, sequences)
        return _compare_decoder(model, sessions["model"], sequences)
    segments = [[i % 2 for i in range(len(sequence))] for sequence in sequences] if has_segments(spec) else None
    reference = _compute_reference(model, sequences, segments)
    differences = []
    for side in ("right", "left"):
        inputs = {"input_ids": pad(sequences, side), "attention_mask": pad([[1] * len(s) for s in sequences], side)}
        if segments is not None:
            inputs["token_type_ids"] = pad(segments, side)
        is_token = inputs["attention_mask"] > 0
        if isinstance(model, ModelWithHead) and isinstance(model.spec, Choice):
            inputs = {name: values.reshape(2, 2, -1) for name, values in inputs.items()}
        for reference_values, output in zip(reference, sessions["model"].run(None, inputs), strict=True):
            if output.shape[:2] == is_token.shape and len(reference_values) != len(output):
                output = output[is_token]
            differences.append(compare(reference_values, output.reshape(reference_values.shape)))
    return max(differences)


def _compute_reference(
    model: AnyModel, sequences: Sequence[list[int]], segments: Sequence[list[int]] | None
) -> list[Tensor]:
    """Return the outputs of the model for a ragged batch: a row per sequence, or per token of all sequences."""
    batch = Batch.from_sequences(sequences, segments=segments)
    if isinstance(model, TextEncoder):
        states = torch.cat(batch.split(compute_text_states(model.model, batch)))
        return [states, model(batch).index_select(0, batch.find_sequence_cells())]
    if isinstance(model, LanguageModel):
        output = model(batch)
        return [torch.cat(batch.split(output.states if output.logits is None else output.logits))]
    if model.model.spec.is_encoder_decoder:
        start = find_start_token(model.model.spec)
        target = Batch.from_sequences([[start, *sequence[:-1]] for sequence in sequences])
        batch = replace(target, source=batch)
    logits = model(batch)
    if isinstance(model.spec, SEQUENCE_HEADS):
        return [logits]
    rows = torch.cat(batch.split(logits))
    return [*rows.unbind(-1)] if isinstance(model.spec, Span) else [rows]


def _compare_decoder(model: LanguageModel, session: Any, sequences: Sequence[list[int]]) -> float:
    """Return the difference of logits, of prompts and of single tokens after them; padding is on the left."""
    assert isinstance(model.decoder, TransformerStack)
    batch = Batch.from_sequences(sequences)
    reference = torch.cat(batch.split(model(batch).logits))
    tokens, mask = pad(sequences, "left"), pad([[1] * len(sequence) for sequence in sequences], "left")
    positions = (mask.cumsum(1) - 1).clip(min=0)
    names = {entry.name for entry in session.get_inputs()}
    past = [make_past(layer.attention, len(tokens), 0).numpy() for layer in model.decoder for _ in ("key", "value")]
    outputs, start = [], 0
    length = tokens.shape[1]
    for end in (*range(max(1, length - 3), length), length):
        inputs = {"input_ids": tokens[:, start:end], "attention_mask": mask[:, :end]}
        if "position_ids" in names:
            inputs["position_ids"] = positions[:, start:end]
        inputs |= {f"past_key_values.{i // 2}.{('key', 'value')[i % 2]}": value for i, value in enumerate(past)}
        logits, *past = session.run(None, inputs)
        outputs.append(logits)
        start = end
    return compare(reference, np.concatenate(outputs, axis=1)[mask > 0])


def _compare_encoder_decoder(model: LanguageModel, sessions: Sessions, sequences: Sequence[list[int]]) -> float:
    """Return the difference of logits, of the first tokens of all targets and of single tokens after them."""
    length = min(5, max(map(len, sequences)))
    targets = [[(i * 7 + j * 3 + 1) % model.spec.vocab for j in range(length)] for i in range(len(sequences))]
    segments = [[0] * len(sequence) for sequence in sequences] if has_segments(model.spec) else None
    batch = replace(Batch.from_sequences(targets), source=Batch.from_sequences(sequences, segments=segments))
    reference = torch.stack(batch.split(model(batch).logits))
    mask = pad([[1] * len(sequence) for sequence in sequences], "right")
    inputs = {"input_ids": pad(sequences, "right"), "attention_mask": mask}
    if segments is not None:
        inputs["token_type_ids"] = pad(segments, "right")
    states = sessions["encoder_model"].run(None, inputs)[0]
    tokens, first = np.array(targets), max(1, length - 3)
    mask_input = {"encoder_attention_mask": mask}
    start_inputs = {"input_ids": tokens[:, :first], "encoder_hidden_states": states} | mask_input
    logits, *present = sessions["decoder_model"].run(None, start_inputs)
    names = [entry.name for entry in sessions["decoder_model"].get_outputs()][1:]
    past = {name.replace("present", "past_key_values"): value for name, value in zip(names, present, strict=True)}
    session, outputs = sessions["decoder_with_past_model"], [logits]
    for i in range(first, length):
        logits, *present = session.run(None, {"input_ids": tokens[:, i : i + 1]} | mask_input | past)
        names = [entry.name for entry in session.get_outputs()][1:]
        past |= {name.replace("present", "past_key_values"): value for name, value in zip(names, present, strict=True)}
        outputs.append(logits)
    return compare(reference, np.concatenate(outputs, axis=1))


def pad(sequences: Sequence[Sequence[int]], side: str) -> Any:
    """Return sequences as rows `[B, T]`, with zeros on one side."""
    length = max(map(len, sequences))
    rows = [[*s, *[0] * (length - len(s))] if side == "right" else [*[0] * (length - len(s)), *s] for s in sequences]
    return np.array(rows, dtype=np.int64)


def compare(reference_values: Tensor, output: Any) -> float:
    """Return the largest difference, relative to the largest reference value if that is above 1; nan if one is nan."""
    scale = max(1.0, float(reference_values.abs().max()))
    return float((reference_values - torch.from_numpy(output)).abs().max()) / scale
