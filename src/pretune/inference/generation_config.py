"""How text is written, as values: the search, what is discouraged, and when it ends.

Decoding(max_new_tokens=40, search=Sample(temperature=0.8, top_p=0.95, seed=7), returns=3)
Decoding(max_new_tokens=40, search=Beam(beams=4, length_penalty=0.6))
decoding(temperature=0.8, top_p=0.95)           # from the flat options of `pretune.generate`
"""

import math
from typing import Literal, TypedDict, Unpack

from pretune.core.config import spec
from pretune.core.errors import UsageError

EarlyStoppingMode = bool | Literal["never"]


@spec(kind="greedy")
class GreedySearch:
    """The likeliest token, always."""


@spec(kind="sample")
class Sampling:
    """A token drawn from the model's distribution: sharpened or flattened, then cut where a filter says so.

    In this order: `temperature`, `top_k` (Fan et al., 2018), `top_p` (Holtzman et al., 2020), `min_p` (Nguyen et al.,
    2024), each on what the one before has left. What is drawn is a function of the seed, the number of the request and
    return, and the position; never of what else is in a batch.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"temperature {self.temperature} must be greater than 0 (0 is greedy)")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k {self.top_k} must be at least 1")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UsageError(f"{name} {value} must be greater than 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed {self.seed} must be from 0 to 2**63 - 1")


@spec(kind="beam")
class BeamSearch:
    """The likeliest texts that a search of so many at a time finds.

    A finished text's score is its log-probability over (its length ** `length_penalty`). With `early_stopping` the
    search ends when there are as many finished texts as beams; without, when none of the running ones would beat them
    at its present length; "never", when none could at any length.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: EarlyStoppingMode = False

    def __post_init__(self) -> None:
        if self.beams < 2:
            raise UsageError(f"beams {self.beams} must be at least 2 (1 is greedy)")
        if not math.isfinite(self.length_penalty):
            raise UsageError(f"length_penalty {self.length_penalty} must be a finite number")
        if self.early_stopping not in (True, False, "never"):
            raise UsageError(f"early_stopping {self.early_stopping!r} must be true, false or 'never'")


@spec
class GenerationConfig:
    """How many tokens, by which search, and how repetition is discouraged.

    `repetition_penalty` divides positive logits of tokens that are already there, and multiplies negative ones (Keskar
    et al., 2019); with `no_repeat_ngram` n tokens in a row never come twice. Both look at the prompt, too.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0  # before these are written, nothing ends
    search: GreedySearch | Sampling | BeamSearch = GreedySearch()
    returns: int = 1  # texts for each prompt
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "returns"):
            if getattr(self, name) < 1:
                said = "num" if name == "returns" else name
                raise UsageError(f"{said} {getattr(self, name)} must be at least 1")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UsageError(f"min_new_tokens {self.min_new_tokens} must be from 0 to max_new_tokens")
        if not 0 < self.repetition_penalty < math.inf:
            raise UsageError(f"repetition_penalty {self.repetition_penalty} must be greater than 0 (1 is none)")
        if self.no_repeat_ngram < 0:
            raise UsageError(f"no_repeat_ngram {self.no_repeat_ngram} must be 0 (off) or more")
        if isinstance(self.search, GreedySearch) and self.returns > 1:
            raise UsageError(f"greedy search finds one text, not {self.returns}; sample, or use beams")
        if isinstance(self.search, BeamSearch) and self.returns > self.search.beams:
            raise UsageError(f"{self.search.beams} beams cannot return {self.returns} texts; use more beams")

    @property
    def rows_per_prompt(self) -> int:
        """Rows that are decoded for each prompt."""
        return self.search.beams if isinstance(self.search, BeamSearch) else self.returns


class GenerationOptions(TypedDict, total=False):
    """The options of `build_generation_config`, each as in the spec that has it."""

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


SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed")
BEAM_OPTIONS = ("length_penalty", "early_stopping")


def build_generation_config(**options: Unpack[GenerationOptions]) -> GenerationConfig:
    """A `GenerationConfig` from flat options: a temperature of 0 is greedy, more than one beam a beam search, else it samples.

    >>> build_generation_config(temperature=0).search, build_generation_config(beams=3).search.beams, build_generation_config(top_k=5).search.top_k
    (Greedy(), 3, 5)
    """
    given = {name: value for name, value in options.items() if value is not None}
    beams, temperature = options.get("beams", 1), options.get("temperature", 1.0)
    filters = [name for name in ("top_k", "top_p", "min_p") if name in given]
    if beams < 1:
        raise UsageError(f"beams {beams} must be at least 1")
    search: GreedySearch | Sampling | BeamSearch
    if beams > 1:
        if filters or given.get("temperature", 1) not in (0, 1):
            raise UsageError(f"beams do not sample: leave out {', '.join(filters or ['temperature'])}, or the beams")
        search = BeamSearch(beams=beams, **{name: given[name] for name in BEAM_OPTIONS if name in given})  # type: ignore[arg-type]
    elif any(name in given for name in BEAM_OPTIONS):
        raise UsageError("length_penalty and early_stopping are for a search with more than one beam")
    elif temperature == 0:
        if filters:
            raise UsageError(f"temperature 0 is greedy and cuts nothing: leave out {', '.join(filters)}")
        search = GreedySearch()
    else:
        search = Sampling(**{name: given[name] for name in SAMPLING_OPTIONS if name in given})  # type: ignore[arg-type]
    names = {"max_new_tokens": "max_new_tokens", "num": "returns"}
    names |= {name: name for name in ("min_new_tokens", "repetition_penalty", "no_repeat_ngram")}
    return GenerationConfig(search=search, **{ours: given[name] for name, ours in names.items() if name in given})  # type: ignore[arg-type]
