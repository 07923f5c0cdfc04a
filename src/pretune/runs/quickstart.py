"""Quick start: fine-tuning of a pre-trained encoder with few labels, against simple baselines on film reviews.

    pt.quickstart(out="runs/quickstart", budget="6m")

Short film reviews and a sentence encoder of 6 layers come from the extra `quickstart`. A small model is pre-trained
as well and compared with random weights. All rows use the same training reviews and the same 1,000 test reviews. The
schedule follows the measured speed: rows with 200 labels come first, a slow machine trains fewer steps, and other
methods and seeds come last, while the budget lasts.
"""

import csv
import itertools
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pretune.adaptation.io import save
from pretune.core import io, log
from pretune.core.config import spec
from pretune.core.errors import DataError, PretuneError, StoppedError, StopRequest, UsageError, UserInterruptError
from pretune.core.hub import INSTALLED_MODELS
from pretune.core.log import format_duration, parse_duration
from pretune.core.run_dir import RunDir
from pretune.core.seed import make_generator
from pretune.evaluation.baselines.base import Classifier
from pretune.evaluation.baselines.texts import SVM, AveragedVectors, Majority
from pretune.inference.word_vectors import WordVectors
from pretune.metrics.significance import Comparison, compute_interval, paired_bootstrap_of_means
from pretune.models.catalog import build
from pretune.models.families import FAMILIES
from pretune.reports.load import QuickstartFile, QuickstartRecord, StageRecord
from pretune.reports.page import report
from pretune.runs.finetune.defaults import read_base_spec
from pretune.runs.finetune.entry import finetune
from pretune.runs.prepare import prepare
from pretune.runs.pretrain import pretrain
from pretune.runs.quickstart_demo import build_demo, list_demo, list_installed
from pretune.runs.vectors import train_vectors
from pretune.tasks.example import Example
from pretune.tasks.task import sample_subset
from pretune.tasks.types.classification import CLASSIFICATION
from pretune.tasks.user_table import build_user_task
from pretune.text.corpora.builtin import Reviews
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train_tokenizer
from pretune.training.distributed import resolve_device

Floats = NDArray[np.float64]
Job = tuple[str, int, int]
"""Key of `ROWS`, number of labels, seed."""
ENCODER, SOURCE = "minilm", "rotten_tomatoes"
INSTALL_HINT = "is not installed: pip install 'pretune[quickstart]', or pass"
SIGNIFICANCE_LEVEL = 0.05
"""Differences with a p-value below this are significant."""
READS_PER_STEP = 3
"""Cost of a training step, in forward passes over its reviews."""


@spec
class QuickstartPlan:
    """Sizes, chosen on reviews outside the test set (docs/results.md)."""

    labels: tuple[int, ...] = (200, 1000)
    steps: tuple[int, ...] = (50, 125)  # for each number of labels
    share: tuple[float, ...] = (0.12, 0.25)  # maximum share of the budget per training of the encoder
    min_steps: int = 12  # on the slowest machine
    seeds: int = 3
    test: int = 1000
    dev: int = 100  # validation reviews; they select nothing
    length: int = 64  # maximum tokens per review
    batch: int = 16
    size: str = "tiny"  # of the small model
    vocab: int = 8192  # of the small model
    pretrain: float = 1 / 6  # share of the budget in which the small model is pre-trained


@dataclass(frozen=True, slots=True)
class QuickstartRow:
    """Row of the results table; `finetune_method` and `lr` are arguments of `pt.finetune`."""

    method: str
    group: str
    about: str
    finetune_method: str = ""
    lr: float = 0.0


ROWS = {
    "majority": QuickstartRow("majority class", "baseline", "predicts the more frequent label"),
    "svm": QuickstartRow("TF-IDF + SVM", "baseline", "linear SVM on TF-IDF of words and word pairs"),
    "static": QuickstartRow(
        "averaged static vectors", "baseline", "word vectors from co-occurrence counts in the reviews"
    ),
    "random": QuickstartRow(
        "random weights", "random", "a small model, trained from scratch on the labels", "full+from-scratch", 1e-3
    ),
    "own": QuickstartRow("pre-trained here", "pretrained", "the same small model, pre-trained here", "full", 1e-3),
    "frozen": QuickstartRow(
        "feature extraction", "pretrained", "a linear classifier on the frozen encoder", "frozen", 1e-5
    ),
    "lora": QuickstartRow("LoRA", "pretrained", "low-rank updates of the pre-trained encoder", "lora", 2e-3),
    "full": QuickstartRow("full fine-tuning", "pretrained", "all weights of the pre-trained encoder", "full", 1e-4),
}
SMALL_MODEL_ROWS = ("random", "own")
"""Rows of the small model; the other networks use the pre-trained encoder."""


@dataclass(frozen=True, slots=True)
class QuickstartResult:
    """Result of a quick start: its directory, the content of `results.json`, the report."""

    path: Path
    results: QuickstartFile
    page: Path


def quickstart(
    out: str | os.PathLike[str] = "runs/quickstart",
    *,
    budget: str | float = "6m",
    device: str | None = None,
    reviews: str | os.PathLike[str] | None = None,
    encoder: str | os.PathLike[str] | None = None,
    plan: QuickstartPlan | None = None,
) -> QuickstartResult:
    """Compare a pre-trained encoder with simple baselines on few labels; write the report and all runs to `out`.

    `reviews` is a table with the columns text and label, `encoder` a model directory; both default to those of the
    extra `quickstart`. The rows of the conclusion are always measured, others while the budget lasts.
    """
    run_dir, sizes = Path(out), plan or QuickstartPlan()
    limit = parse_duration(budget) if isinstance(budget, str) else budget
    if run_dir.exists() and any(run_dir.iterdir()):
        raise UsageError(f"{run_dir}: directory is not empty; remove it or choose another --out")
    model, (test, rest, names) = find_encoder(encoder), read_reviews(reviews, sizes)
    work = QuickstartRun(run_dir, sizes, test, rest, names, model, resolve_device(device), limit)
    options = {"--budget": f"{limit:g}s", "--device": device, "--reviews": reviews, "--encoder": encoder}
    parts = [f"{name} {shlex.quote(os.fspath(value))}" for name, value in options.items() if value is not None]
    command = " ".join(["pretune quickstart", *parts, "--out", shlex.quote(f"{run_dir}-again")])
    try:
        work.run()
    except (StoppedError, UserInterruptError, KeyboardInterrupt, StopRequest) as stop:
        if not work.hits:
            raise
        error: type[PretuneError] = StoppedError if isinstance(stop, StoppedError | StopRequest) else UserInterruptError
        raise error(f"stopped early; the results so far are in {work.finish(command).page}") from None
    return work.finish(command)


def find_encoder(path: str | os.PathLike[str] | None) -> str:
    """Return the encoder: `path`, or the short name of the installed one."""
    if path is None and INSTALLED_MODELS[ENCODER].find() is None:
        raise UsageError(f"the pre-trained encoder {INSTALL_HINT} another model, such as --encoder small-encoder")
    model = ENCODER if path is None else os.fspath(path)
    read_base_spec(model)  # raises if it is not a model
    return model


def read_reviews(
    path: str | os.PathLike[str] | None, plan: QuickstartPlan
) -> tuple[list[Example], list[Example], tuple[str, ...]]:
    """Return the test reviews, the other reviews in a fixed random order, and the label names."""
    if path is None:
        try:
            table = Reviews().find_path()
        except UsageError as error:
            raise UsageError(f"the package of film reviews {INSTALL_HINT} a table with --reviews FILE") from error
        with table.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["source"] == SOURCE]
        names: tuple[str, ...] = ("negative", "positive")
        examples = [Example(text=row["text"].strip(), label=int(row["label"])) for row in rows]
    else:
        task = build_user_task({"train": os.fspath(path)})
        if task.kind != CLASSIFICATION.name:
            raise DataError(f"{path}: the label column gives a {task.kind} task; pass a table with classes")
        names, examples = task.labels, list(task.read("train"))
    shuffled_examples = [examples[i] for i in make_generator(0, len(examples)).permutation(len(examples))]
    texts = {example.text for example in shuffled_examples[: plan.test]}
    rest = [example for example in shuffled_examples[plan.test :] if example.text not in texts]
    if len(rest) < plan.dev + max(plan.labels):
        required_count = plan.test + plan.dev + max(plan.labels)
        raise DataError(
            f"{path or SOURCE}: {len(examples):,} reviews are too few; need {required_count:,} different ones"
        )
    return shuffled_examples[: plan.test], rest, names


@dataclass(slots=True)
class QuickstartRun:
    """Stages and results of a quick start."""

    run_dir: Path
    plan: QuickstartPlan
    test: list[Example]
    train_pool: list[Example]
    label_names: tuple[str, ...]
    encoder: str
    device: str
    budget: float
    started_at: float = field(default_factory=time.monotonic)
    is_quiet: bool = field(default_factory=log.is_quiet)
    hits: dict[tuple[str, int], dict[int, Floats]] = field(default_factory=dict)  # 1 where correct, by seed
    seconds_per_review: dict[bool, float] = field(default_factory=dict)  # of the encoder (True) or the small model
    notes: dict[tuple[str, int], str] = field(default_factory=dict)
    stages: list[StageRecord] = field(default_factory=list)

    def run(self) -> None:
        """Run all stages, the most important rows first."""
        sizes, limit = sorted(self.plan.labels), self.plan.pretrain * self.budget
        first: list[Job] = [("frozen", sizes[0], 0), ("full", sizes[0], 0)]
        second: list[Job] = [(key, labels, 0) for labels in self.plan.labels for key in SMALL_MODEL_ROWS]
        second.append(("full", sizes[-1], 0))
        keys = ("full", *SMALL_MODEL_ROWS, "frozen", "lora")
        jobs = itertools.product(range(self.plan.seeds), self.plan.labels, keys)
        third = [job for seed, labels, key in jobs if (job := (key, labels, seed)) not in first + second]
        texts, limit_text = f"{len(self.train_pool):,} unlabelled reviews", f"at most {format_duration(limit)}"
        encoder_text = f"and the encoder with {sizes[-1]:,} labels"
        demo = (self.run_dir, self.encoder, self.train_pool, self.plan.length, self.budget, self.device)
        stages: list[tuple[str, str, Callable[[], None]]] = [
            ("read", f"{texts} give a vocabulary and word vectors", self.prepare_data),
            ("baselines", "simple methods, for all numbers of labels", self.fit_baselines),
            ("few labels", f"the pre-trained encoder with {sizes[0]:,} labels", lambda: self.measure(first)),
            ("pre-train", f"a small model predicts masked words, {limit_text}", lambda: self.pretrain(limit)),
            ("fine-tune", f"the small model, {encoder_text}", lambda: self.measure(second)),
            ("demo", "an index to search and a decoder that writes, for a browser", lambda: build_demo(*demo)),
            ("repeat", "other methods and seeds, while the budget lasts", lambda: self.measure(third, optional=True)),
        ]
        for number, (name, about, work) in enumerate(stages, start=1):
            self.stages.append({"name": name, "seconds": 0.0, "about": about})
            self.log(f"[{number}/{len(stages)}] {name}: {about}")
            start = time.monotonic()
            with log.silence():
                work()
            self.stages[-1]["seconds"] = round(time.monotonic() - start, 1)

    def prepare_data(self) -> None:
        """Write tables and token shards, and train word vectors."""
        corpus, tokenizer = self.run_dir / "texts" / "reviews.jsonl", self.run_dir / "tokenizer"
        corpus.parent.mkdir(parents=True, exist_ok=True)
        self.write_table("dev", self.train_pool[: self.plan.dev])
        self.write_table("test", self.test)
        lines = [json.dumps({"text": example.text}, ensure_ascii=False, allow_nan=False) for example in self.train_pool]
        io.atomic_write(corpus, "\n".join([*lines, ""]))
        train_tokenizer("wordpiece", corpus, field="text", vocab=self.plan.vocab, lowercase=True).save(tokenizer)
        prepare([corpus], tokenizer=tokenizer, out=self.run_dir / "data", field="text")
        vectors = self.run_dir / "vectors.txt"
        train_vectors(corpus, kind="ppmi", field="text", width=128, window=30, min_count=2, out=vectors)

    def fit_baselines(self) -> None:
        """Fit the simple baselines for all numbers of labels and seeds."""
        static = AveragedVectors(vectors=str(self.run_dir / "vectors.txt"))
        methods: dict[str, Classifier] = {"majority": Majority(), "svm": SVM(), "static": static}
        for labels, seed in itertools.product(self.plan.labels, range(self.plan.seeds)):
            subset = self.draw(labels, seed)
            texts, targets = [example.text for example in subset], [int(example.label or 0) for example in subset]
            for key, method in methods.items():
                answers = method.fit(texts, targets, seed=seed)([example.text for example in self.test])
                right = [answer == example.label for answer, example in zip(answers, self.test, strict=True)]
                self.hits.setdefault((key, labels), {})[seed] = np.array(right, dtype=float)

    def pretrain(self, limit: float) -> None:
        """Pre-train the small model: embeddings of whole words start as their word vectors, then masked LM."""
        tokenizer = Tokenizer.load(self.run_dir / "tokenizer")
        vectors = WordVectors.load(self.run_dir / "vectors.txt")
        words = tokenizer.encode_batch(vectors.words, literal=True)
        is_whole_word = np.diff(words.offsets) == 1
        ids, rows = words.ids[words.offsets[:-1][is_whole_word]], torch.from_numpy(vectors.matrix[is_whole_word])
        family = next(name for name in FAMILIES if FAMILIES.get(name).shape == "encoder")  # the simplest
        model = build(f"{family}-{self.plan.size}", vocab=tokenizer.vocab)
        with torch.no_grad():
            model.tokens.weight[torch.from_numpy(ids).long()] = rows / rows.std() * 0.1
        model.assets.files = tokenizer.build_files()
        save(model, start := self.run_dir / "start")
        changes: dict[str, object] = {"data.max_length": self.plan.length, "data.length_schedule": None}
        changes |= {"train.batch_tokens": 2048, "train.lr": 1e-3, "train.compile": False}
        budget, epochs = (limit, None) if self.device == "cpu" else (None, 10.0)  # NOTE: after more it overfits
        pretrain(
            init_from=start, data=self.run_dir / "data", objective="masked", budget=budget, epochs=epochs,
            overrides=changes, out=self.run_dir / "pretrain", device=self.device,
        )  # fmt: skip

    def measure(self, jobs: Sequence[Job], *, optional: bool = False) -> None:
        """Fine-tune models one by one; `optional` ones only if they are expected to end within the budget."""
        skip_count = 0
        for key, labels, seed in jobs:
            steps, encoder = self.count_steps(key, labels), key not in SMALL_MODEL_ROWS
            trained_reviews = 0 if key == "frozen" else READS_PER_STEP * self.plan.batch * steps
            reads = labels + self.plan.test + self.plan.dev + trained_reviews
            if optional and self.seconds_per_review[encoder] * reads > self.seconds_left:
                skip_count += 1
                continue
            start = time.monotonic()
            self.hits.setdefault((key, labels), {})[seed] = self.finetune(key, labels, seed, steps)
            if 1 < steps < self.plan.steps[self.plan.labels.index(labels)]:
                self.notes[key, labels] = f"{steps} steps on this slow machine"
            seconds = time.monotonic() - start
            self.seconds_per_review[encoder] = seconds / reads
            score = self.hits[key, labels][seed].mean()
            self.log(f"      {ROWS[key].method}, {labels:,} labels, seed {seed}: {score:.1%} in {seconds:.0f} s")
        if skip_count:
            note = f"skipped {skip_count} scores; use a larger --budget for them"
            self.stages[-1]["notes"] = [note]
            self.log(f"      {note}")

    def count_steps(self, key: str, labels: int) -> int:
        """Return the training steps: as planned, or fewer where the encoder is slow."""
        place = self.plan.labels.index(labels)
        if key == "frozen":
            return 1  # the head is a linear probe before the first step
        if key in SMALL_MODEL_ROWS:
            return self.plan.steps[place]
        seconds_per_step = READS_PER_STEP * self.plan.batch * self.seconds_per_review[True]
        affordable_steps = int(self.plan.share[place] * self.budget / seconds_per_step)
        return min(self.plan.steps[place], max(self.plan.min_steps, affordable_steps))

    def finetune(self, key: str, labels: int, seed: int, steps: int) -> Floats:
        """Fine-tune a model and return its test hits; the head starts as a linear probe (LP-FT)."""
        out, texts = self.run_dir / "tuned" / f"{key}-{labels}-{seed}", self.run_dir / "texts"
        train = self.write_table(f"train-{labels}-{seed}", self.draw(labels, seed))
        changes = {
            "tune.pooling": {"mode": "mean"}, "tune.head": "probe", "train.batch": self.plan.batch,
            "data.max_length": self.plan.length, "train.seed": seed, "train.max_checkpoints": 0,
            "train.eval_every": steps,  # once, at the end: dev selects nothing
        }  # fmt: skip
        finetune(
            self.run_dir / "pretrain" if key in SMALL_MODEL_ROWS else self.encoder, out=out, device=self.device,
            baselines="none", train=train, dev=texts / "dev.csv", test=texts / "test.csv",
            method=ROWS[key].finetune_method, lr=ROWS[key].lr, steps=steps, overrides=changes,
        )  # fmt: skip
        lines = map(json.loads, RunDir(out).predictions.read_bytes().splitlines())
        return np.array([line["label"] == line["gold"] for line in lines if line["split"] == "test"], dtype=float)

    def draw(self, labels: int, seed: int) -> list[Example]:
        """Sample labelled reviews; smaller samples are subsets of larger ones."""
        return sample_subset(sample_subset(self.train_pool[self.plan.dev :], max(self.plan.labels), seed), labels, seed)

    def finish(self, command: str) -> QuickstartResult:
        """Write `results.json` and the report."""
        tuned_runs = [f"tuned/full-{labels}-0" for labels in self.plan.labels if ("full", labels) in self.hits][-1:]
        runs = [run for run in ("pretrain", *tuned_runs) if RunDir(self.run_dir / run).is_finished]
        paths = {name: shlex.quote(str(self.run_dir / name)) for name in (*runs, *tuned_runs, *list_demo(self.run_dir))}
        use = [f'echo "a lovely film" | pretune predict {paths[run]} --input -' for run in tuned_runs]
        finetuning = f"pretune finetune {shlex.quote(self.encoder)} --train YOURS.csv --out runs/yours"
        served_models = [*list_installed(), *paths.values()]
        use += [finetuning, f"pretune serve {' '.join(served_models)}"]
        results: QuickstartFile = {
            "title": "Benefit of pre-training", "story": [*self.write_conclusion()],
            "task": "reviews", "metric": "accuracy", "split": "test", "examples": self.plan.test,
            "rows": [*self.list_rows()], "stages": self.stages, "seconds": round(self.budget - self.seconds_left, 1),
            "runs": runs, "data": "data", "command": command, "use": use,
        }  # fmt: skip
        io.write_json(RunDir(self.run_dir).results, results)
        return QuickstartResult(self.run_dir, results, report([self.run_dir], self.run_dir / "report.html"))

    def list_rows(self) -> Iterator[QuickstartRecord]:
        """Yield the rows of `results.json`; networks are compared with the best simple baseline."""
        for key, labels in itertools.product(ROWS, self.plan.labels):
            if (key, labels) not in self.hits:
                continue
            row, seed_scores = ROWS[key], {seed: float(right.mean()) for seed, right in self.hits[key, labels].items()}
            interval, scores = compute_interval([*seed_scores.values()]), [round(x, 4) for x in seed_scores.values()]
            mean, seeds = round(interval.mean, 4), [*seed_scores]
            record = QuickstartRecord(method=row.method, labels=labels, mean=mean, seeds=seeds, each=scores)
            if interval.std is not None and interval.low is not None and interval.high is not None:
                record["std"] = round(interval.std, 4)
                record["low"], record["high"] = round(max(interval.low, 0.0), 4), round(min(interval.high, 1.0), 4)
            note = self.notes.get((key, labels))
            record["group"], record["about"] = row.group, f"{row.about}; {note}" if note else row.about
            if row.group != "baseline":
                best = self.find_baseline(labels)
                result = self.compare(key, best, labels)
                gap, low, high, p = (round(x, 4) for x in (result.difference, result.low, result.high, result.p))
                record["against"] = {"method": ROWS[best].method, "difference": gap, "low": low, "high": high, "p": p}
            yield record

    def write_conclusion(self) -> Iterator[str]:
        """Yield the conclusion in sentences, also where a simple baseline wins."""
        share = {job: f"{np.mean([*scores.values()]):.1%}" for job, scores in self.hits.items()}
        for labels in self.plan.labels:
            if ("full", labels) in self.hits:
                best = self.find_baseline(labels)
                gap = self.compare("full", best, labels)
                verdict = describe_gap(gap, "the encoder wins", "the simple baseline wins")
                yield (
                    f"With {labels:,} labels, full fine-tuning of the pre-trained encoder reaches an accuracy of "
                    f"{share['full', labels]} on {self.plan.test:,} test reviews; the best simple baseline, "
                    f"{ROWS[best].method}, reaches {share[best, labels]}: {verdict}."
                )
        for labels in self.plan.labels:
            if all((key, labels) in self.hits for key in SMALL_MODEL_ROWS):
                gap = self.compare("own", "random", labels)
                benefit = describe_gap(gap, "its short pre-training helps", "its short pre-training hurts")
                yield (
                    f"The small model pre-trained here reaches {share['own', labels]} with {labels:,} labels, from "
                    f"random weights {share['random', labels]}: {benefit}."
                )

    def find_baseline(self, labels: int) -> str:
        """Return the simple baseline with the highest accuracy."""
        simple = [key for key, row in ROWS.items() if row.group == "baseline"]
        return max(simple, key=lambda key: np.mean([*self.hits[key, labels].values()]))

    def compare(self, key: str, other_key: str, labels: int) -> Comparison:
        """Compare the means of two rows over their seeds on the same reviews (paired bootstrap)."""
        return paired_bootstrap_of_means(
            *(np.mean([*self.hits[row, labels].values()], axis=0).tolist() for row in (key, other_key))
        )

    @property
    def seconds_left(self) -> float:
        """Remaining seconds of the budget."""
        return self.budget - (time.monotonic() - self.started_at)

    def log(self, text: str) -> None:
        """Log a line, although the called functions are silenced."""
        duration = format_duration(abs(self.seconds_left))
        with log.silence():
            log.set_quiet(self.is_quiet)
            log.info(f"{text} ({f'about {duration} left' if self.seconds_left > 0 else f'{duration} over'})")

    def write_table(self, name: str, examples: Sequence[Example]) -> Path:
        """Write labelled reviews as a CSV table."""
        page, path = StringIO(newline=""), self.run_dir / "texts" / f"{name}.csv"
        rows = [(example.text, self.label_names[int(example.label or 0)]) for example in examples]
        csv.writer(page).writerows([("text", "label"), *rows])
        io.atomic_write(path, page.getvalue())
        return path


def describe_gap(gap: Comparison, better: str, worse: str) -> str:
    """Format a difference in points with its meaning.

    >>> gap = Comparison(difference=0.08, low=0.05, high=0.11, p=1e-4, rounds=10000, examples=1000)
    >>> describe_gap(gap, "A wins", "")
    '+8.0 points (p = 0.0001), A wins'
    """
    points = f"{100 * gap.difference:+.1f} points"
    if gap.p < SIGNIFICANCE_LEVEL:
        return f"{points} (p = {gap.p:.2g}), {better}"
    return f"{points}, {worse}" if gap.high < 0 else f"{points}, which may be chance (p = {gap.p:.2g})"
