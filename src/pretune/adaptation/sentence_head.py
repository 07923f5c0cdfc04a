"""Heads of sequences as modules of sentence-transformers: a pooling, and dense layers of which the last gives logits.

    [CLS] a fine film [SEP]  ->  Transformer  ->  Pooling  ->  Dense, tanh  ->  Dense  ->  logits = "embedding"

A head is brought into this form first: norms are folded into the layers after them, and poolings are put into the
order of sentence-transformers. Its weights are stored in the folders of the modules only. Those of the body are in
`model.body.safetensors`, a name that the module Transformer is told: a class of `transformers`, which would give the
body a head with random weights, does not find them.
"""

import json
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pretune.adaptation.adapted import ModelWithHead
from pretune.adaptation.head_classes import build_head_config
from pretune.adaptation.heads.base import SequenceHead, TaskHead
from pretune.adaptation.heads.sequence import Classification, MultiLabel, Regression
from pretune.core import config
from pretune.core.errors import CheckpointError, UsageError
from pretune.inference.pooling import Embedding, Pooling, TextEncoder
from pretune.inference.sentence_modules import Dense, read_modules, write_modules
from pretune.models import tensor_files
from pretune.models.families import FAMILIES
from pretune.models.families.shared import SENTENCE_CONFIG_FILE
from pretune.models.hf.checkpoint import SavedHead
from pretune.models.hf.weights import HEAD_KEY
from pretune.models.model import LanguageModel
from pretune.nn.batch_norm import SequenceNorm
from pretune.nn.heads import PoolingConfig, PoolingMode, Transform
from pretune.nn.layers import ActivationName

MODES: dict[PoolingMode, Pooling] = {
    "first": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt": "mean_sqrt",
    "weighted": "weighted",
    "last": "last",
}
"""Our poolings and those of sentence-transformers, in the order in which it concatenates them."""
ACTIVATIONS: dict[ActivationName, str] = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "identity": "torch.nn.modules.linear.Identity",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
}


def export_modules(model: ModelWithHead, length: int | None = None) -> SavedHead:
    """Return the head as modules of sentence-transformers; `length` is the maximum number of tokens.

    Raises `UsageError` if its modules cannot compute the same.
    """
    head, spec = simplify_head(model)
    pooling = spec.pooling
    layers: list[tuple[nn.Linear, ActivationName]] = [(head.out, "identity")]
    if head.dense is not None:
        layers.insert(0, (head.dense, pooling.activation))
    dense = nn.ModuleList(_copy_layer(layer, ACTIVATIONS[activation]) for layer, activation in layers)
    encoder = TextEncoder(model.model, Embedding(pooling=tuple(MODES[mode] for mode in pooling.modes)), dense)
    # NOTE: the modules compute in float32, whatever the type of the weights.
    arguments: dict[str, object] = {"variant": tensor_files.BODY_VARIANT, "torch_dtype": "float32"}
    layout = FAMILIES.get(model.model.spec.family).layout
    if layout is not None and {"pooler"} in layout.classes.values():
        arguments["add_pooling_layer"] = False
    settings: dict[str, object] = {"model_args": arguments}
    if length is not None:
        settings["max_seq_length"] = length
    files = write_modules(encoder)
    files[SENTENCE_CONFIG_FILE] = (json.dumps(settings, indent=2, allow_nan=False) + "\n").encode()
    return SavedHead({**build_head_config(spec), HEAD_KEY: config.to_dict(spec)}, {}, modules=files)


def load_modules(model: LanguageModel, head: TaskHead) -> ModelWithHead:
    """Return a model with the head that is stored in its modules of sentence-transformers."""
    spec = head.resolve(model.spec)
    module = spec.build(model)
    embedding_config, dense = read_modules(model)
    pooling = getattr(spec, "pooling", None)
    layers: list[Any] = []
    if isinstance(module, SequenceHead):
        layers = [module.out] if module.dense is None else [module.dense, module.out]
    shapes, stored_shapes = ([layer.weight.shape for layer in group] for group in (layers, [*dense]))
    has_pooling = pooling is not None and tuple(map(MODES.get, pooling.modes)) == embedding_config.pooling
    if module is None or not has_pooling or shapes != stored_shapes:
        raise CheckpointError(
            f"key '{HEAD_KEY}' and the modules of sentence-transformers are different heads; remove the key to read "
            "an embedding model"
        )
    with torch.no_grad():
        for layer, source in zip(layers, dense, strict=True):
            layer.weight.copy_(source.weight)
            if layer.bias is not None:
                layer.bias.copy_(source.bias)
    model.assets = replace(model.assets, modules={})
    return ModelWithHead(model, module, spec).eval()


def simplify_head(model: ModelWithHead) -> tuple[SequenceHead, Any]:
    """Return a head of poolings and dense layers that computes the same in evaluation mode, and its spec."""
    spec, head = model.spec, model.head
    if not isinstance(spec, Classification | MultiLabel | Regression) or not isinstance(head, SequenceHead):
        raise UsageError(f"a head '{config.get_kind(spec)}' is no dense layer on a pooled state")
    if model.model.spec.is_encoder_decoder:
        raise UsageError("sentence-transformers pools the encoder, and this head reads the decoder")
    if model.model.spec.table != model.model.spec.width and model.model.spec.decoder is not None:
        raise UsageError("its class projects the states that this head pools")
    pooling = spec.pooling
    assert pooling is not None
    activation, layer = _get_layer(head, pooling)
    weight, bias = _get_affine(head.out)
    if head.hidden_norm is not None:
        weight, bias = _fold_norm(head.hidden_norm, weight, bias)
    layers = [(weight, bias)] if layer is None else [_get_affine(layer), (weight, bias)]
    if head.input_norm is not None:
        layers[0] = _fold_norm(head.input_norm, *layers[0])
    modes = [mode for mode in MODES if mode in pooling.modes]
    blocks = layers[0][0].chunk(len(pooling.modes), dim=1)  # columns of each pooling
    by_mode = [[block for block, name in zip(blocks, pooling.modes, strict=True) if name == mode] for mode in modes]
    layers[0] = torch.cat([torch.stack(group).sum(0) for group in by_mode], dim=1), layers[0][1]
    simple_pooling = PoolingConfig(
        mode=modes[0],
        concat=tuple(modes[1:]),
        layer=None if layer is None else "own",
        activation=activation,
        hidden=None if layer is None else len(layers[0][0]),
        input_dropout=None if layer is None else head.input_dropout.p,
    )
    simple_head = SequenceHead(simple_pooling, model.model.spec.width, len(bias), spec.dropout)
    targets = [simple_head.out] if simple_head.dense is None else [simple_head.dense, simple_head.out]
    with torch.no_grad():
        for target, (weight, bias) in zip(targets, layers, strict=True):
            target.weight.copy_(weight)
            target.bias.copy_(bias)
    changes: dict[str, Any] = {"lm_loss_weight": 0.0} if isinstance(spec, Classification) else {}
    return simple_head.eval(), replace(spec, pooling=simple_pooling, **changes)


def _get_layer(head: SequenceHead, pooling: PoolingConfig) -> tuple[ActivationName, nn.Linear | None]:
    """Return the layer before the classifier and its activation; UsageError if no module computes it."""
    activation, layer = pooling.activation, head.dense
    if isinstance(pooling.layer, Transform) and head.transform is not None:
        if pooling.layer.norm is not None:
            raise UsageError("sentence-transformers has no dense layer with a norm")
        activation, layer = pooling.layer.activation, head.transform.dense
    if layer is not None and activation not in ACTIVATIONS:
        raise UsageError(f"sentence-transformers has no dense layer with the activation '{activation}'")
    return activation, layer


def _get_affine(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a layer in double precision."""
    weight = layer.weight.detach().cpu().double()
    bias: Tensor | None = layer.bias
    return weight, weight.new_zeros(len(weight)) if bias is None else bias.detach().cpu().double()


def _fold_norm(norm: SequenceNorm, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear layer after a norm with the norm's running statistics folded into it."""
    mean, variance, gain, offset = (
        tensor.detach().cpu().double() for tensor in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    scale = gain * torch.rsqrt(variance + norm.eps)
    shift = offset - mean * scale
    return weight * scale, bias + weight @ shift


def _copy_layer(layer: nn.Linear, activation: str) -> Dense:
    copied_layer = Dense(layer.in_features, layer.out_features, bias=True, activation=activation)
    copied_layer.load_state_dict(layer.state_dict())
    return copied_layer
