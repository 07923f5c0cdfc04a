"""All of it, stage by stage: `pretune quickstart`, `pt.quickstart`."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretune.core import io
from pretune.core.errors import Interrupted, PretuneError, Stopped, UsageError
from pretune.data.prepare import Data, prepare
from pretune.evaluate.report import report
from pretune.recipes.choose import device_of
from pretune.recipes.duration import seconds
from pretune.recipes.pretrain import pretrain
from pretune.recipes.quickstart.begin import averages, begin, piece_vectors
from pretune.recipes.quickstart.plan import Plan, plan_for
from pretune.recipes.quickstart.stages import Stages
from pretune.recipes.quickstart.story import METHODS, Scores, story
from pretune.recipes.quickstart.texts import TEXTS, Review, Texts, built_in, own
from pretune.recipes.quickstart.tuning import (
    LEAST,
    NEEDED,
    Forecast,
    Judge,
    bearable,
    encoder,
    jobs,
    longest,
    other_encoder,
)
from pretune.recipes.run import COST
from pretune.text.tokenizer import Tokenizer, train

RESULTS, REPORT = "results.json", "report.html"
SAMPLE = 8_000_000
"""Bytes of text that the tokenizer is trained on."""
ENCODER_LABELS = 1000
"""Labels of the row of the encoder that someone else has trained."""


@dataclass(frozen=True, slots=True)
class Quickstart:
    """What came out: where it lies, and what `results.json` says."""

    path: Path
    results: dict[str, Any]
    page: Path  # the report


def quickstart(
    out: str | os.PathLike[str] = "runs/quickstart",
    *,
    budget: str | float = "6m",
    full: bool = False,
    device: str | None = None,
    plan: Plan | None = None,
    reviews: Sequence[Review] | str | os.PathLike[str] | None = None,
    other: bool = True,
) -> Quickstart:
    """From text and few labels to a model, beside what is simpler; the report and all runs are left in `out`.

    Pre-training takes a share of the budget; when it is spent, no seed is repeated any more, and long after that no row
    is begun. `reviews` are texts with 0 or 1, or a table with the columns text and label; by default those of
    `builtin:reviews`. `other` asks for the row of an encoder that someone else has trained.
    """
    where, limit = Path(out), seconds(budget) if isinstance(budget, str) else budget
    if where.exists() and any(where.iterdir()):
        raise UsageError(f"{where}: is not empty; remove it, or choose another --out")
    kind = device_of(device)
    chosen = plan or plan_for(kind, full=full)
    texts = divided(reviews, chosen)
    work = Work(where, chosen, texts, Stages(7, limit), kind)
    work.read()
    work.vectors()
    work.pretrain(chosen.share * max(work.stages.left, limit / 2))
    wishes = f" --reviews {quoted(reviews)}" if isinstance(reviews, str | os.PathLike) else ""
    again = f"{' --full' if full else ''}{wishes} --out {quoted(f'{where}-again')}"
    spent = budget if isinstance(budget, str) else f"{budget:g}s"
    command = f"pretune quickstart --budget {quoted(spent)}{again}"
    try:
        work.simple()
        work.networks()
        work.other(min(chosen.other * limit, chosen.late * limit - work.stages.elapsed), wanted=other)
    except (Stopped, Interrupted, KeyboardInterrupt) as asked:
        if not work.scores.each:
            raise
        page = work.finish(command).page
        ended: type[PretuneError] = Stopped if isinstance(asked, Stopped) else Interrupted
        raise ended(f"stopped before its end; what was measured until then is in {page}") from None
    return work.finish(command)


def divided(reviews: Sequence[Review] | str | os.PathLike[str] | None, plan: Plan) -> Texts:
    """Reviews by what they are for: those given, those of a table, or those that are built in."""
    if isinstance(reviews, str | os.PathLike):
        found, names = own(reviews)
        return Texts.of(found, plan, names)
    return Texts.of(built_in() if reviews is None else reviews, plan)


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as a shell reads it."""
    return shlex.quote(os.fspath(path))


def listed(counts: Sequence[int]) -> str:
    """200, 1,000 and 5,000."""
    *most, last = (f"{count:,}" for count in counts)
    return " and ".join(filter(None, (", ".join(most), last)))


class Work:
    """The stages, and what they share."""

    def __init__(self, where: Path, plan: Plan, texts: Texts, stages: Stages, device: str) -> None:
        self.where, self.plan, self.texts, self.stages, self.device = where, plan, texts, stages, device
        self.scores = Scores()
        self.judge = Judge(texts, plan, where / "texts", where / "tuned", device)
        self.base = where / "pretrain"

    def read(self) -> None:
        """Text to tokens on disk."""
        plan, where = self.plan, self.where
        about = (
            f"{len(self.texts.unlabelled):,} reviews become tokens on disk, by a vocabulary of {plan.vocab:,} pieces "
            "that is learnt from them; labels are not looked at"
        )
        with self.stages.stage("read", about):
            self.texts.write(where / "texts", plan.watched)
            made = train("wordpiece", self.texts.unlabelled, vocab=plan.vocab, lowercase=True, sample_bytes=SAMPLE)
            made.save(where / "tokenizer")
            prepare([where / "texts" / TEXTS], tokenizer=where / "tokenizer", out=where / "data", field="text")
        self.tokenizer = Tokenizer.load(where / "tokenizer")

    def vectors(self) -> None:
        """Static vectors of pieces, and the network that starts with them."""
        about = (
            "who stands near whom is counted, and gives every piece a vector; the network's embeddings start with these"
        )
        with self.stages.stage("vectors", about):
            self.static = piece_vectors(Data.open(self.where / "data"), self.plan, self.device)
            begin(self.tokenizer, self.static, self.plan, self.where / "start")

    def pretrain(self, limit: float | None, steps: int | None = None) -> None:
        """The network learns from text, for so many seconds or steps."""
        plan = self.plan
        about = (
            f"a network of {plan.depth} layer{'s' * (plan.depth > 1)}, {plan.width} wide, guesses hidden words of "
            f"reviews for {f'{steps:,} steps' if limit is None else f'{limit:.0f} seconds'}, and so learns what goes "
            "with what"
        )
        with self.stages.stage("pre-train", about):
            pretrain(
                data=self.where / "data",
                start=self.where / "start",
                objective="masked",
                budget=limit,
                steps=steps,
                out=self.base,
                device=self.device,
                changes={
                    "objective.rate": plan.masked,
                    "data.max_length": plan.crop,
                    "data.short": None,
                    "train.lr": plan.lr,
                    "train.batch_tokens": plan.batch,
                    "train.compile": plan.compile,
                    "train.eval_tokens": 4 * plan.batch,
                    "train.eval_every": plan.every,
                    "train.samples_every": plan.every,
                },
            )

    def simple(self) -> None:
        """What works without any network."""
        about = "counting words is hard to beat with few labels, so it stands beside the networks"
        encode = lambda texts: averages(self.static, self.tokenizer, texts)  # noqa: E731
        with self.stages.stage("baselines", about):
            for labels in self.plan.labels:
                for seed in range(self.plan.seeds):
                    self.scores.add("majority", labels, seed, self.judge.majority(labels, seed))
                    self.scores.add("svm", labels, seed, self.judge.words(labels, seed))
                    self.scores.add("static", labels, seed, self.judge.linear("static", encode, labels, seed))

    def networks(self) -> None:
        """The pre-trained network by every method, and the same from random weights."""
        about = (
            f"with {listed(self.plan.labels)} labels: as it is, by LoRA, by gradual "
            "unfreezing and as a whole; and the same network from random weights, to see what pre-training bought"
        )
        with self.stages.stage("fine-tune", about):
            encode = encoder(self.base, self._shortened(), self.device)
            forecast, left_out, most = Forecast(self.plan), 0, max(self.plan.labels)
            for name, labels, seed in jobs(self.plan):
                needed = name in NEEDED and labels == most and not seed
                if not needed and self.stages.late(forecast.seconds(name, labels), 1.0 if seed else self.plan.late):
                    left_out += 1
                    continue
                begun = self.stages.elapsed
                if name == "frozen":
                    score = self.judge.linear(name, encode, labels, seed)
                else:
                    score = self.judge.network(name, self.base, labels, seed)
                spent = self.stages.elapsed - begun
                forecast.learn(name, labels, spent)
                self.scores.add(name, labels, seed, score)
                self.stages.tell(f"{METHODS[name].name}, {labels:,} labels, seed {seed}: {score:.1%} in {spent:.1f} s")
            if left_out:
                told = f"{left_out} scores were left out: the time is up; a larger --budget has them"
                self.stages.tell(told, keep=True)

    def _shortened(self) -> int:
        """How much of a review is read: as planned, or less where time would not do for what the conclusion needs."""
        plan, test = self.plan, [text for text, _ in self.texts.test]
        made = lambda length: encoder(self.base, length, self.device)  # noqa: E731
        lengths = (plan.length, plan.length // 2, plan.length // 4)
        length = bearable(made, lengths, test, plan.least, plan.late * self.stages.budget - self.stages.elapsed)
        if length < plan.length:
            self.judge.plan = replace(plan, length=length)
            self.stages.tell(f"this machine is slow or busy: networks read {length} pieces of a review", keep=True)
            for name, labels, _ in jobs(plan):
                self.scores.notes[name, labels] = f"the first {length} pieces of a review, for want of time"
        return length

    def other(self, limit: float, *, wanted: bool = True) -> None:
        """An encoder that someone else has trained for much longer, where its package is installed."""
        about = "an encoder that someone else has trained, read as it is: what far more pre-training buys"
        with self.stages.stage("other encoder", about):
            path = other_encoder() if wanted else None
            labels, test = min(ENCODER_LABELS, max(self.plan.labels)), [text for text, _ in self.texts.test]
            if path is None or limit <= 0:
                why = "not installed (pip install 'pretune[quickstart]')" if wanted else "not wanted"
                self.stages.tell(f"left out: {'the time is up' if path else why}", keep=True)
                return
            made = lambda length: encoder(path, length, self.device)  # noqa: E731
            encode, length, most = longest(made, self.plan.other_lengths, test, labels, limit)
            if most < min(LEAST, len(test)):
                self.stages.tell("left out: this machine is too slow for it within its share of the time", keep=True)
                return
            self.scores.add("other", labels, 0, self.judge.linear("other", encode, labels, 0, most))
            self.scores.notes["other", labels] = f"judged on {most:,} reviews, the first {length} pieces"

    def finish(self, command: str) -> Quickstart:
        """Write the table and what it means."""
        with self.stages.stage("report", "one page with the table, what it says, curves, mistakes and what it cost"):
            rows = self.scores.rows()
            tuned = f"tuned/full-{max(self.plan.labels)}-0"
            there = [run for run in (self.base.name, tuned) if (self.where / run / COST).is_file()]
            results: dict[str, Any] = {
                "title": "What pre-training bought",
                "story": story(rows, self.plan.test),
                "task": "reviews",
                "metric": "accuracy",
                "split": "test",
                "examples": self.plan.test,
                "rows": rows,
                "stages": [*self.stages.done],
                "seconds": round(self.stages.elapsed, 1),
                "runs": there,
                "data": "data",
                "command": command,
                "use": [
                    f'echo "a lovely film" | pretune predict {quoted(self.where / tuned)} --input -',
                    f"pretune finetune {quoted(self.base)} --train YOURS.csv --out runs/yours",
                    "pretune quickstart --reviews YOURS.csv --out runs/yours",
                ],
            }
            io.write_json(self.where / RESULTS, results)
            page = report([self.where], self.where / REPORT)
        return Quickstart(self.where, results, page)
