"""What is learnt from: reviews without labels for pre-training, a few with labels, and some that nobody sees before."""

import csv
import io as text_io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pretune.core import io
from pretune.core.errors import DataError
from pretune.recipes.quickstart.plan import Plan
from pretune.text.corpora.builtin import Reviews

Review = tuple[str, int]
NAMES = ("negative", "positive")
TEXTS = "texts.jsonl"


@dataclass(frozen=True, slots=True)
class Texts:
    """Reviews by what they are for; those of `pool` are among the unlabelled ones too, without their labels."""

    test: list[Review]
    dev: list[Review]
    pool: list[Review]
    unlabelled: list[str]

    @classmethod
    def of(cls, reviews: Sequence[Review], plan: Plan) -> "Texts":
        """Divide reviews that lie in a mixed order; what is judged on is in nothing else, not even as a copy."""
        first = plan.test + plan.dev
        if len(reviews) < first + max(plan.labels):
            raise DataError(
                f"{len(reviews):,} reviews are too few: {plan.test:,} to be judged by, {plan.dev:,} for dev and "
                f"{max(plan.labels):,} with labels are needed"
            )
        held = {text for text, _ in reviews[:first]}
        rest = [(text, label) for text, label in reviews[first:] if text not in held]
        return cls(
            test=[*reviews[: plan.test]],
            dev=[*reviews[plan.test : first]],
            pool=rest[: max(plan.pool, max(plan.labels))],
            unlabelled=[text for text, _ in rest],
        )

    def write(self, folder: Path) -> None:
        """As files: tables with labels, and the texts without."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, reviews in (("train", self.pool), ("dev", self.dev), ("test", self.test)):
            page = text_io.StringIO(newline="")
            rows = csv.writer(page)
            rows.writerow(("text", "label"))
            rows.writerows((text, NAMES[label]) for text, label in reviews)
            io.atomic_write(folder / f"{name}.csv", page.getvalue())
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in self.unlabelled)
        io.atomic_write(folder / TEXTS, "".join(lines))


def built_in() -> list[Review]:
    """The reviews of `builtin:reviews`; where their package is missing, one line says what to install."""
    return Reviews().labelled()
