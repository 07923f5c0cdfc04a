"""Sequence-length schedules: short rows first, long ones last, the same tokens per step throughout.

BERT (Devlin et al., 2019, A.2) trains 90 % of the steps on sequences of 128 tokens and the rest on 512:

    LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))
"""

from typing import NamedTuple

from pretune.core.config import spec
from pretune.core.errors import UsageError


@spec
class Phase:
    """A share of the steps at one row length."""

    share: float
    length: int

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.length < 1:
            raise UsageError(f"a phase has a share above 0 and up to 1 and a length, found {self.share}, {self.length}")


class LengthStage(NamedTuple):
    """A phase in steps: those from `first` to before `last` have `rows` rows of `length`."""

    first: int
    last: int
    length: int
    rows: int


@spec
class LengthSchedule:
    """Phases one after another."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise UsageError(f"the shares of a length schedule add up to 1, found {total:.6g}")

    def build_stages(self, *, steps: int, tokens: int, multiple: int = 1) -> tuple[LengthStage, ...]:
        """The phases of a run of `steps` steps of `tokens` tokens; rows come in multiples of `multiple` (ranks).

        >>> schedule = LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))
        >>> [tuple(stage) for stage in schedule.build_stages(steps=1000, tokens=65_536)]
        [(0, 900, 128, 512), (900, 1000, 512, 128)]
        """
        stages: list[LengthStage] = []
        share = 0.0
        for phase in self.phases:
            first = stages[-1].last if stages else 0
            share += phase.share
            rows = tokens // phase.length // multiple * multiple
            if not rows:
                raise UsageError(
                    f"{tokens} tokens per step are less than {multiple} rows of {phase.length}; raise them"
                )
            stages.append(LengthStage(first, min(round(share * steps), steps), phase.length, rows))
        return (*stages[:-1], stages[-1]._replace(last=steps))

    def find_stage(self, step: int, *, steps: int, tokens: int, multiple: int = 1) -> LengthStage:
        """The stage a step belongs to; the last one goes on for ever."""
        stages = self.build_stages(steps=steps, tokens=tokens, multiple=multiple)
        return next((stage for stage in stages if step < stage.last), stages[-1])
