"""Extra layers on top: a model that was pre-trained, with new blocks between its last one and the heads.

Idea: what was learnt stays as it is below, and the new blocks learn what the task needs of it (Peters et al., 2018, put
a BiLSTM there, which is `mix`). They are blocks of the model like the others, so the result is saved as any model.

    model = taller(pt.load("runs/bert"), 2)
    freeze(model, LastOnly(layers=2))
"""

from dataclasses import replace

from pretune.core.errors import UsageError
from pretune.models.model import LanguageModel, build


def add_blocks(model: LanguageModel, blocks: int, *, seed: int = 0) -> LanguageModel:
    """A new model with the weights of another and so many new blocks on top: of the decoder where it has one."""
    if blocks < 1:
        raise UsageError(f"{blocks} extra blocks: give at least 1")
    spec = model.spec
    if spec.last_stack.share is not None or spec.shared:
        raise UsageError("a model whose layers share their weights has no room for a new one; take another base")
    if spec.decoder is not None:
        spec = replace(spec, decoder=replace(spec.decoder, depth=spec.decoder.depth + blocks))
    elif spec.encoder is not None:
        spec = replace(spec, encoder=replace(spec.encoder, depth=spec.encoder.depth + blocks))
    made = build(spec, seed=seed)
    left = made.load_state_dict(model.state_dict(), strict=False).unexpected_keys  # the new blocks have more names
    assert not left, f"{left[0]} has no place in the taller model"
    made.assets = model.assets
    return made.to(model.tokens.weight.device)
