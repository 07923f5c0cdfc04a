"""Extra layers: new blocks between the last block of a pre-trained model and its heads.

The pre-trained blocks can stay frozen while the new ones adapt to the task (Peters et al., 2018, use a BiLSTM there:
`scalar_mix`). The new blocks are ordinary blocks of the model, so the result is saved like any model.

    model = add_blocks(pt.load("runs/bert"), 2)
    freeze(model, LastOnly(layers=2))
"""

from dataclasses import replace

from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel, build


def add_blocks(model: LanguageModel, blocks: int, *, seed: int = 0) -> LanguageModel:
    """Return a new model: the weights of `model`, and `blocks` new blocks on top (of the decoder, if there is one)."""
    if blocks < 1:
        raise UsageError(f"blocks must be >= 1, got {blocks}")
    spec = model.spec
    if spec.last_stack.share is not None or spec.shared:
        raise UsageError("a model whose layers share their weights cannot be extended; choose another base model")
    if spec.decoder is not None:
        spec = replace(spec, decoder=replace(spec.decoder, depth=spec.decoder.depth + blocks))
    elif spec.encoder is not None:
        spec = replace(spec, encoder=replace(spec.encoder, depth=spec.encoder.depth + blocks))
    new_model = build(spec, seed=seed)
    unexpected_keys = new_model.load_state_dict(
        model.state_dict(), strict=False
    ).unexpected_keys  # new blocks: missing keys
    assert not unexpected_keys, f"{unexpected_keys[0]} has no place in the extended model"
    new_model.assets = model.assets
    return new_model.to(model.tokens.weight.device)
