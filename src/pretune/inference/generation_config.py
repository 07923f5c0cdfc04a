"""Generation settings: search, penalties and length, and the special tokens of decoding.

GenerationConfig(max_new_tokens=40, search=Sampling(temperature=0.8, top_p=0.95, seed=7), returns=3)
GenerationConfig(max_new_tokens=40, search=BeamSearch(beams=4, length_penalty=0.6))
build_generation_config(temperature=0.8, top_p=0.95)           # from the flat options of `pretune.generate`
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypedDict, Unpack

from pretune.core.config import Ge, Gt, Le, NonNegative, Positive, Seed, check_record, spec
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.model import LanguageModel

EarlyStoppingMode = bool | Literal["never"]

MAX_LOGIT_CHANGE = 1e4
"""Maximum absolute penalty or bias that is added to a logit: it decides alone, and does not overflow."""
LogitChange = Annotated[float, Ge(-MAX_LOGIT_CHANGE), Le(MAX_LOGIT_CHANGE)]


@spec(kind="greedy")
class GreedySearch:
    """Always the most probable token."""


@spec(kind="sample")
class Sampling:
    """Sampling from the model's distribution, with temperature and filters.

    Applied in this order: `temperature`, `top_k` (Fan et al., 2018), `top_p` (Holtzman et al., 2020), `min_p` (Nguyen
    et al., 2024). A sample is a function of the seed, the numbers of request and return, and the position; never of the
    other texts of a batch.
    """

    temperature: Positive[float] = 1.0
    top_k: Positive[int] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    min_p: Annotated[float, Gt(0), Le(1)] | None = None
    seed: Seed = 0


@spec(kind="beam")
class BeamSearch:
    """Beam search.

    The score of a finished text is its log-probability over (its length ** `length_penalty`). With `early_stopping` the
    search ends when there are as many finished texts as beams; without, when no running text would beat them at its
    current length; with "never", when none could at any length.
    """

    beams: Annotated[int, Ge(2)]
    length_penalty: float = 1.0
    early_stopping: EarlyStoppingMode = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.length_penalty):
            raise UsageError(f"length_penalty must be finite, got {self.length_penalty}")
        if self.early_stopping not in (True, False, "never"):
            raise UsageError(f"early_stopping must be true, false or 'never', got {self.early_stopping!r}")


@spec
class GenerationConfig:
    """Number of tokens, search, and penalties of repetition.

    `repetition_penalty` divides positive logits of tokens that already occur, and multiplies negative ones (Keskar et
    al., 2019); `no_repeat_ngram` forbids repeated n-grams. Both include the prompt. `presence_penalty` is subtracted
    from the logits of new tokens that already occur, `frequency_penalty` once for every occurrence, as in OpenAI's API;
    the prompt does not count. `logit_bias` is added to the logits of tokens.
    """

    max_new_tokens: Positive[int] = 64
    min_new_tokens: NonNegative[int] = 0  # no text ends before
    search: GreedySearch | Sampling | BeamSearch = GreedySearch()
    returns: int = 1  # texts for each prompt
    repetition_penalty: Annotated[float, Ge(0.01), Le(100)] = 1.0
    no_repeat_ngram: NonNegative[int] = 0
    presence_penalty: LogitChange = 0.0
    frequency_penalty: LogitChange = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids and what is added, ordered by id

    def __post_init__(self) -> None:
        for token, value in self.logit_bias:
            if token < 0 or not abs(value) <= MAX_LOGIT_CHANGE:
                raise UsageError(
                    f"logit_bias must give numbers from {-MAX_LOGIT_CHANGE:g} to {MAX_LOGIT_CHANGE:g} for token ids "
                    f">= 0, got {value} for {token}"
                )
        if self.returns < 1:
            raise UsageError(f"num must be >= 1, got {self.returns}")
        if self.min_new_tokens > self.max_new_tokens:
            raise UsageError(f"min_new_tokens must be <= max_new_tokens, got {self.min_new_tokens}")
        if isinstance(self.search, GreedySearch) and self.returns > 1:
            raise UsageError(f"greedy search returns 1 text, got num={self.returns}; use sampling or beams")
        if isinstance(self.search, BeamSearch) and self.returns > self.search.beams:
            raise UsageError(f"num must be <= beams ({self.search.beams}), got {self.returns}")

    def without_seed(self) -> "GenerationConfig":
        """Return the config without its seed, on which a step does not depend."""
        return replace(self, search=replace(self.search, seed=0)) if isinstance(self.search, Sampling) else self

    @property
    def needs_history(self) -> bool:
        """True if the choice of a token depends on the tokens before it, besides the model's logits."""
        penalties = self.no_repeat_ngram, self.presence_penalty, self.frequency_penalty
        return self.repetition_penalty != 1 or any(penalties)

    def check_vocabulary(self, vocab: int) -> None:
        """Raise a UsageError for a bias of tokens that are not in the vocabulary."""
        last_token = max((token for token, _ in self.logit_bias), default=-1)
        if last_token >= vocab:
            raise UsageError(f"logit_bias: token ids must be from 0 to {vocab - 1}, got {last_token}")

    @property
    def rows_per_prompt(self) -> int:
        """Rows decoded for each prompt."""
        return self.search.beams if isinstance(self.search, BeamSearch) else self.returns


class GenerationOptions(TypedDict, total=False):
    """Options of `build_generation_config`, documented in the specs."""

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int
    beams: int
    length_penalty: float
    early_stopping: EarlyStoppingMode
    num: int
    repetition_penalty: float
    no_repeat_ngram: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]


FILTERS = ("top_k", "top_p", "min_p")
BEAM_OPTIONS = ("length_penalty", "early_stopping")


def build_generation_config(**options: Unpack[GenerationOptions]) -> GenerationConfig:
    """Build a `GenerationConfig` from flat options: temperature 0 is greedy, beams > 1 a beam search, else sampling.

    >>> build_generation_config(temperature=0).search, build_generation_config(beams=3).search.beams
    (GreedySearch(), 3)
    >>> build_generation_config(top_k=5).search.top_k
    5
    """
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    beams, temperature = values.pop("beams", 1), values.get("temperature", 1.0)
    filters = [name for name in FILTERS if name in values]
    sampling = {name: values.pop(name) for name in ("temperature", *FILTERS, "seed") if name in values}
    beam_options = {name: values.pop(name) for name in BEAM_OPTIONS if name in values}
    if beams < 1:
        raise UsageError(f"beams must be >= 1, got {beams}")
    search: GreedySearch | Sampling | BeamSearch = GreedySearch()
    if beams > 1:
        if filters or temperature not in (0, 1):
            raise UsageError(f"beam search does not sample: remove {', '.join(filters or ['temperature'])}, or beams")
        search = BeamSearch(beams=beams, **beam_options)
    elif beam_options:
        raise UsageError("length_penalty and early_stopping need beams > 1")
    elif temperature != 0:
        search = Sampling(**sampling)
    elif filters:
        raise UsageError(f"temperature 0 is greedy and ignores {', '.join(filters)}: remove them")
    bias = sorted((int(token), float(value)) for token, value in values.pop("logit_bias", {}).items())
    return GenerationConfig(search=search, returns=values.pop("num", 1), logit_bias=tuple(bias), **values)


CONFIG_FILE = "generation_config.json"


class GenerationFile(TypedDict, total=False):
    """generation_config.json, as far as it names tokens."""

    decoder_start_token_id: int | list[int] | None
    eos_token_id: int | list[int] | None
    forced_bos_token_id: int | list[int] | None
    forced_eos_token_id: int | list[int] | None


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
        file = check_record(GenerationFile, model.assets.read_json(CONFIG_FILE), CheckpointError, CONFIG_FILE)
        settings: dict[str, Any] = {name: value for name, value in file.items() if value is not None}
        start_id = settings.get("decoder_start_token_id", special.start) if start is None else start
        if start_id is None and model.spec.is_encoder_decoder:
            start_id = special.bos
            if start_id is None:
                raise UsageError("the model defines no decoder start token; pass it as `start`")
        ends = settings.get("eos_token_id", special.eos)
        forced_eos: Any = settings.get("forced_eos_token_id")
        if isinstance(forced_eos, list) and forced_eos:
            forced_eos = forced_eos[0]
        generation_tokens = cls(
            start=start_id,
            eos=(ends,) if isinstance(ends, int) else tuple(ends or ()),
            forced_bos=settings.get("forced_bos_token_id"),
            forced_eos=forced_eos,
        )
        # NOTE: configs of decoders from the hub may name tokens that they do not have.
        needs_start = model.spec.is_encoder_decoder or start is not None
        required_start = generation_tokens.start if needs_start else None
        for token in (required_start, generation_tokens.forced_bos, generation_tokens.forced_eos):
            if token is not None and (type(token) is not int or not 0 <= token < model.spec.vocab):
                raise CheckpointError(
                    f"{CONFIG_FILE}: token id must be < {model.spec.vocab}, the vocabulary size, got {token!r}"
                )
        return generation_tokens
