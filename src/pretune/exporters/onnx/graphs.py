"""The graphs of a model: which files it has in ONNX, their inputs and outputs, and the names that runtimes expect.

An encoder, and any model with a task head or a pooling, is `model`; so is a decoder, with past keys and values. An
encoder-decoder is `encoder_model`, `decoder_model` (the first step) and `decoder_with_past_model` (later steps).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.heads.base import SequenceHead, TokenHead
from pretune.adaptation.heads.sequence import Choice
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.exporters.onnx.modules import (
    CachedDecoder,
    CachedEncoderDecoder,
    PaddedLanguageModel,
    PaddedModelWithHead,
    PaddedTextEncoder,
)
from pretune.inference.pooling import TextEncoder
from pretune.inference.sentence_modules import build_encoder
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.nn.attention import MultiHeadAttention
from pretune.nn.stack import TransformerStack

AnyModel = LanguageModel | TextEncoder | ModelWithHead
ROWS, COLUMNS, PAST, OPTIONS = 2, 5, 3, 2
"""Sizes of the example with which a graph is traced; all of them are dynamic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A module to trace, with an example of its inputs, the names of its outputs, and the dynamic dimensions."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    axes: dict[str, dict[int, str]]


def prepare_model(model: LanguageModel | ModelWithHead) -> AnyModel:
    """Return what is exported: the model, with its pooling if its directory has one; UsageError if it cannot be."""
    body = model.model if isinstance(model, ModelWithHead) else model
    if body.spec.is_recurrent or body.spec.characters is not None:
        raise UsageError("ONNX export needs a model with attention; recurrent models and character models have none")
    if isinstance(model, ModelWithHead):
        if model.head is None:
            return body
        if not isinstance(model.head, SequenceHead | TokenHead):
            kind = "scalar_mix" if getattr(model.spec, "scalar_mix", None) is not None else config.get_kind(model.spec)
            raise UsageError(
                f"a head '{kind}' cannot be exported to ONNX (allowed: classification, multi_label, regression, "
                "choice, tagging, span, and no head)"
            )
        return model
    if body.assets.modules:
        return build_encoder(body)
    if body.spec.is_encoder_decoder and body.head is None:
        raise UsageError("an encoder-decoder without a vocabulary head cannot be exported to ONNX")
    return body


def build_graphs(model: AnyModel) -> list[Graph]:
    """Return the graphs of a model."""
    if isinstance(model, ModelWithHead):
        return [_build_padded(PaddedModelWithHead(model), model.model.spec, has_options=isinstance(model.spec, Choice))]
    if isinstance(model, TextEncoder):
        return [_build_padded(PaddedTextEncoder(model), model.model.spec)]
    if model.spec.is_encoder_decoder:
        return _build_encoder_decoder(model)
    if model.decoder is not None and model.head is not None:
        return [_build_decoder(model)]
    return [_build_padded(PaddedLanguageModel(model), model.spec)]


def has_segments(spec: Model) -> bool:
    """Return True if the first stack takes `token_type_ids`."""
    stack = spec.stacks[0]
    # NOTE: a table of one segment adds the same vector to every token; tokenizers then have no segments.
    return spec.shape == "two-stream" or (stack.embed.segments or 0) > 1


def _build_padded(
    module: PaddedLanguageModel | PaddedTextEncoder | PaddedModelWithHead,
    spec: Model,
    *,
    has_options: bool = False,
    name: str = "model",
) -> Graph:
    shape = (ROWS, OPTIONS, COLUMNS) if has_options else (ROWS, COLUMNS)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1, ..., 3:] = 0
    inputs = {"input_ids": torch.zeros(shape, dtype=torch.long), "attention_mask": mask}
    if has_segments(spec):
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    dimensions = ("batch", "choices", "sequence") if has_options else ("batch", "sequence")
    axes = {label: dict(enumerate(dimensions)) for label in inputs}
    is_pooled = isinstance(module, PaddedModelWithHead) and isinstance(module.model.head, SequenceHead)
    for label in module.output_names:
        axes[label] = {0: "batch"} if is_pooled or label == "sentence_embedding" else {0: "batch", 1: "sequence"}
    if has_options:
        axes["logits"] = {0: "batch", 1: "choices"}
    return Graph(name=name, module=module, inputs=inputs, outputs=module.output_names, axes=axes)


def _build_decoder(model: LanguageModel) -> Graph:
    assert isinstance(model.decoder, TransformerStack)
    module = CachedDecoder(model)
    inputs = {
        "input_ids": torch.zeros(ROWS, COLUMNS, dtype=torch.long),
        "attention_mask": torch.ones(ROWS, PAST + COLUMNS, dtype=torch.long),
    }
    if module.has_positions:
        inputs["position_ids"] = torch.arange(PAST, PAST + COLUMNS).expand(ROWS, -1)
    axes = {label: {0: "batch", 1: "sequence"} for label in (*inputs, "logits")}
    axes["attention_mask"] = {0: "batch", 1: "past_and_sequence"}
    outputs = ["logits"]
    for i, layer in enumerate(model.decoder):
        for part in ("key", "value"):
            inputs[f"past_key_values.{i}.{part}"] = make_past(layer.attention, ROWS, PAST)
            axes[f"past_key_values.{i}.{part}"] = {0: "batch", 2: "past"}
            outputs.append(f"present.{i}.{part}")
            axes[outputs[-1]] = {0: "batch", 2: "past_and_sequence"}
    return Graph(name="model", module=module, inputs=inputs, outputs=tuple(outputs), axes=axes)


def _build_encoder_decoder(model: LanguageModel) -> list[Graph]:
    assert isinstance(model.decoder, TransformerStack)
    encoder = _build_padded(PaddedLanguageModel(model), model.spec, name="encoder_model")
    tokens = torch.zeros(ROWS, COLUMNS, dtype=torch.long)
    mask = {"encoder_attention_mask": encoder.inputs["attention_mask"]}
    states = {"encoder_hidden_states": torch.zeros(ROWS, COLUMNS, model.spec.width)}
    axes = {label: {0: "batch", 1: "sequence"} for label in ("input_ids", "logits")}
    axes["encoder_attention_mask"] = {0: "batch", 1: "source"}
    past: dict[str, Tensor] = {}
    for i, layer in enumerate(model.decoder):
        assert layer.cross is not None
        for side, attention, length in (("decoder", layer.attention, PAST), ("encoder", layer.cross, COLUMNS)):
            for part in ("key", "value"):
                past[f"past_key_values.{i}.{side}.{part}"] = make_past(attention, ROWS, length)
    presents = [label.replace("past_key_values", "present") for label in past]
    axes |= {label: {0: "batch", 2: "past" if ".decoder." in label else "source"} for label in past}
    axes |= {label: {0: "batch", 2: "length" if ".decoder." in label else "source"} for label in presents}
    return [
        encoder,
        Graph(
            name="decoder_model",
            module=CachedEncoderDecoder(model, with_past=False),
            inputs={"input_ids": tokens} | mask | states,
            outputs=("logits", *presents),
            axes=axes | {"encoder_hidden_states": {0: "batch", 1: "source"}},
        ),
        Graph(
            name="decoder_with_past_model",
            module=CachedEncoderDecoder(model, with_past=True),
            inputs={"input_ids": tokens[:, :1]} | mask | past,
            outputs=("logits", *(label for label in presents if ".decoder." in label)),
            axes=axes,
        ),
    ]


def make_past(attention: MultiHeadAttention, rows: int, length: int) -> Tensor:
    """Return past keys or values of `length` tokens, all zero."""
    return torch.zeros(rows, attention.kv_heads, length, attention.head)
