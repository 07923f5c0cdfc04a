"""The tokens that steer a decoder: what it starts with, what ends it, what must come first or last."""

from dataclasses import dataclass
from typing import Any

from pretune.core.errors import CheckpointError, UsageError
from pretune.inference.text_model import read_asset_json
from pretune.models.model import LanguageModel

CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTokens:
    """Ids by what they do; None and an empty tuple: there is none."""

    start: int | None = None  # what the decoder of an encoder-decoder reads first, and a decoder before its prompt
    eos: tuple[int, ...] = ()
    forced_bos: int | None = None  # must be the first to be written
    forced_eos: int | None = None  # must be the last one where the limit is reached

    @classmethod
    def from_model(cls, model: LanguageModel, *, start: int | None = None) -> "GenerationTokens":
        """What the spec says, and above it the `generation_config.json` that came with the weights.

        Of that file only tokens are taken: how to search is the caller's to say.
        """
        special = model.spec.special
        said = {name: value for name, value in read_asset_json(model, CONFIG_FILE).items() if value is not None}
        found = said.get("decoder_start_token_id", special.start) if start is None else start
        if found is None and model.spec.is_encoder_decoder:
            found = special.bos
            if found is None:
                raise UsageError("this model does not say which token its decoder starts with; give it as `start`")
        ends = said.get("eos_token_id", special.eos)
        marks = cls(
            start=found,
            eos=(ends,) if isinstance(ends, int) else tuple(ends or ()),
            forced_bos=said.get("forced_bos_token_id"),
            forced_eos=_unwrap_list(said.get("forced_eos_token_id")),
        )
        reads = (
            model.spec.is_encoder_decoder or start is not None
        )  # NOTE: strangers' decoders may name tokens that they lack
        for token in (marks.start if reads else None, marks.forced_bos, marks.forced_eos):
            if token is not None and (type(token) is not int or not 0 <= token < model.spec.vocab):
                raise CheckpointError(
                    f"{CONFIG_FILE}: no token has the id {token!r}; the vocabulary has {model.spec.vocab}"
                )
        return marks


def _unwrap_list(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
