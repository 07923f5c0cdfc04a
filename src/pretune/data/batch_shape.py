"""Shape of a batch, fixed by a token budget so that a model compiles once, and schedules of the sequence length."""

from typing import Annotated, NamedTuple

from pretune.core.config import Gt, Le, NonNegative, Positive, spec
from pretune.core.errors import UsageError


@spec
class BatchShape:
    """Shape of a batch: `rows` rows of `length` tokens, and of `source` tokens on the encoder side.

    A field that is None is not fixed. Raises `UsageError` if `slots` is negative or another field is below 1.
    """

    rows: Positive[int]
    length: Positive[int]
    source: Positive[int] | None = None
    sequences: Positive[int] | None = None  # maximum per row
    slots: NonNegative[int] | None = None  # target slots per row

    @property
    def cells(self) -> int | None:
        """C: the number of cells, `sequences` + 1 per row (one for filler); None if `sequences` is None."""
        return None if self.sequences is None else self.rows * (self.sequences + 1)

    @property
    def targets(self) -> int | None:
        """M: the number of target slots of all rows; None if `slots` is None."""
        return None if self.slots is None else self.rows * self.slots

    def divide(self, parts: int) -> "BatchShape":
        """Return the shape of one of `parts` equal parts of the rows: a rank's share or a micro-batch.

        Raises `UsageError` if `rows` is not divisible by `parts`.
        """
        if parts < 1 or self.rows % parts:
            raise UsageError(
                f"{self.rows} rows cannot be divided into {parts} equal parts; change the tokens per batch"
            )
        return BatchShape(
            rows=self.rows // parts,
            length=self.length,
            source=self.source,
            sequences=self.sequences,
            slots=self.slots,
        )


@spec
class Phase:
    """Phase of a schedule: a share of the steps with one row length."""

    share: Annotated[float, Gt(0), Le(1)]
    length: Positive[int]


class LengthStage(NamedTuple):
    """Phase in steps: steps from `first` (inclusive) to `last` (exclusive) have `rows` rows of `length` tokens."""

    first: int
    last: int
    length: int
    rows: int


@spec
class LengthSchedule:
    """Length schedule: consecutive phases whose shares add up to 1, with the same number of tokens in every step.

    BERT (Devlin et al., 2019, A.2) trains 90 % of the steps on sequences of 128 tokens and the rest on 512:

        LengthSchedule(phases=(Phase(share=0.9, length=128), Phase(share=0.1, length=512)))
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise UsageError(f"the shares of a length schedule must add up to 1, got {total:.6g}")

    def build_stages(self, *, steps: int, tokens: int, multiple: int = 1) -> tuple[LengthStage, ...]:
        """Return the stages of a run of `steps` steps with `tokens` tokens each.

        The rows of a step are a multiple of `multiple` (the number of ranks). Raises `UsageError` if a step has too few
        tokens for `multiple` rows.

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
                    f"{tokens} tokens per step are fewer than {multiple} rows of {phase.length}; "
                    f"use at least {multiple * phase.length} tokens per step"
                )
            stages.append(LengthStage(first, min(round(share * steps), steps), phase.length, rows))
        return (*stages[:-1], stages[-1]._replace(last=steps))
