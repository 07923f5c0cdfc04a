"""Special tokens of decoding: start, end, and forced first and last tokens."""

from dataclasses import dataclass
from typing import Any

from pretune.core.errors import CheckpointError, UsageError
from pretune.models.model import LanguageModel

CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTokens:
    """Token ids by role; None or an empty tuple if there is none."""

    start: int | None = None  # first token of an encoder-decoder's decoder, or before a decoder's prompt
    eos: tuple[int, ...] = ()
    forced_bos: int | None = None  # forced as the first new token
    forced_eos: int | None = None  # forced as the last token at the length limit

    @classmethod
    def from_model(cls, model: LanguageModel, *, start: int | None = None) -> "GenerationTokens":
        """Read the tokens from the model's spec and, with priority, its `generation_config.json`.

        Only token ids are read from that file, no search settings.
        """
        special = model.spec.special
        settings = {name: value for name, value in model.assets.read_json(CONFIG_FILE).items() if value is not None}
        start_id = settings.get("decoder_start_token_id", special.start) if start is None else start
        if start_id is None and model.spec.is_encoder_decoder:
            start_id = special.bos
            if start_id is None:
                raise UsageError("the model defines no decoder start token; pass it as `start`")
        ends = settings.get("eos_token_id", special.eos)
        generation_tokens = cls(
            start=start_id,
            eos=(ends,) if isinstance(ends, int) else tuple(ends or ()),
            forced_bos=settings.get("forced_bos_token_id"),
            forced_eos=_unwrap_list(settings.get("forced_eos_token_id")),
        )
        # NOTE: configs of decoders from the hub may name tokens that they do not have.
        needs_start = model.spec.is_encoder_decoder or start is not None
        for token in (
            generation_tokens.start if needs_start else None,
            generation_tokens.forced_bos,
            generation_tokens.forced_eos,
        ):
            if token is not None and (type(token) is not int or not 0 <= token < model.spec.vocab):
                raise CheckpointError(
                    f"{CONFIG_FILE}: token id must be < {model.spec.vocab}, the vocabulary size, got {token!r}"
                )
        return generation_tokens


def _unwrap_list(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
