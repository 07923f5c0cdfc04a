"""Shape of a batch: fixed by a token budget, so that a model compiles once."""

from pretune.core.config import spec
from pretune.core.errors import UsageError


@spec
class BatchShape:
    """Shape of a batch: `rows` rows of `length` tokens, and of `source` tokens on the encoder side.

    A field that is None is not fixed. Raises `UsageError` if `slots` is negative or another field is below 1.
    """

    rows: int
    length: int
    source: int | None = None
    sequences: int | None = None  # maximum per row
    slots: int | None = None  # target slots per row

    def __post_init__(self) -> None:
        for name in ("rows", "length", "source", "sequences", "slots"):
            value = getattr(self, name)
            if value is not None and value < (name != "slots"):
                raise UsageError(f"{name} of a batch must be >= {int(name != 'slots')}, got {value}")

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
