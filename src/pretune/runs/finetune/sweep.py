"""A whole fine-tuning run: trial after trial, then the baselines, the scores and the model that was best on dev.

    fine = pt.finetune("runs/bert", task="sst2", method="lora", out="runs/bert-sst2")
    fine.predict(["a gorgeous, witty, seductive movie"])

What is wrong with a wish is told before anything is computed. What was killed goes on with `resume=True`: trials that
are done are not done again, and the one at work goes on from its last checkpoint.

Under `torchrun` all ranks take part in each trial, and agree on what comes next; the first one alone writes, and fits
the baselines that are not trained.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretune.adaptation import methods
from pretune.core import config, io, log
from pretune.core.counted import join_names
from pretune.core.errors import CheckpointError, DataError, PretuneError, UsageError
from pretune.evaluation.baselines.run import COSINE, PROBE, RANDOM, Beside, names_of
from pretune.evaluation.baselines.table import MOST
from pretune.evaluation.similarity import cosines
from pretune.inference.word_vectors import Vectors
from pretune.reports.facts import of_pool
from pretune.runs.build_config import device_of
from pretune.runs.config import rates_of
from pretune.runs.defaults import RUN
from pretune.runs.finetune.adapted_model import head_for, two_ways
from pretune.runs.finetune.build_config import choose, explain_rate, read_tree, spec_of
from pretune.runs.finetune.config import Tuning
from pretune.runs.finetune.finetuned_run import SCORES, FineTuned
from pretune.runs.finetune.linear_probe import KINDS, probe
from pretune.runs.finetune.results import Fitted, dev_of, finish, predictions_of
from pretune.runs.finetune.saved_task import TASK, Kept, Member
from pretune.runs.finetune.sweep_plan import TRIALS, Plan
from pretune.runs.finetune.task_data import Opened, balance, check_sizes, open_task, trained_on
from pretune.runs.finetune.time_estimate import Rest, baseline_seconds
from pretune.runs.finetune.trial import DONE, PREDICTIONS, Trial, done
from pretune.runs.output_dir import going_on, own
from pretune.runs.pretrain_run import CHECKPOINTS, free
from pretune.runs.restore import check_model
from pretune.runs.run_dir import COST
from pretune.tasks.decode import Prediction
from pretune.tasks.encode import Items
from pretune.tasks.example import Example
from pretune.tasks.task import type_of
from pretune.tasks.user_table import columns_of
from pretune.training.checkpoints import Lock, listed
from pretune.training.distributed import Ranks, ranks
from pretune.training.guards import Stop
from pretune.training.rank_zero import alone
from pretune.training.records import ScoresFile

Facts = dict[str, Any]
SEEDS = 1000
"""More runs of the same thing than this are a slip of the finger."""


def finetune(
    model: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    lr: float | Sequence[float] | None = None,
    seeds: int | None = None,
    labels: Sequence[int | None] = (),
    baselines: str | None = None,
    forgetting: str | os.PathLike[str] | None = None,
    vectors: str | os.PathLike[str] | None = None,
    device: str | None = None,
    **wishes: Any,
) -> FineTuned:
    """Adapt a model to a task and leave it in `out`, with its scores, those of baselines, and what it cost.

    Several rates in `lr` are compared on dev. `seeds` runs give a mean and an interval. `labels` are numbers of
    training examples, None for all: with several, a curve. `forgetting` is prepared data (`pretune prepare`);
    `vectors` a file of word vectors (`pretune vectors`) for the baseline of that name.
    Other wishes are those of `choose`: a task by name, or train, dev and test files with their columns; method; epochs
    or steps; settings and changes.
    """
    where = Path(out)
    rates: Sequence[float] = () if lr is None else (lr,) if isinstance(lr, int | float) else lr
    stop = Stop(f"go on with `{going_on('finetune', where)}`", begun=resume)
    tries: Facts = {"seeds": seeds, "labels": labels, "baselines": baselines}
    tries |= {"forgetting": forgetting, "vectors": vectors}
    with stop.listening():
        if resume:
            tuning, plan = resumed(where, model, rates, tries, **wishes)
            if (where / COST).is_file():
                check_model(where)
                log.say(f"{where}: is finished; there is nothing to resume")
                config.read_record(ScoresFile, where / SCORES, CheckpointError)
                return FineTuned.open(where)
        else:
            vacant(where)
            tuning = choose(model, lr=rates[0] if rates else None, **wishes)
            plan = plan_of(tuning, rates, **tries, before=read_tree(wishes.get("settings")).get("plan"))
        if tuning.task.name is not None:  # before its files are read
            head_for(trained_on(tuning.task.name), spec_of(tuning.base.path), None, tuning.tune)
        opened = open_task(tuning.task)
        check_sizes(opened, tuning.task, plan.labels)
        with ranks(device_of(device)) as many:
            if tuning.train.batch < many.world:
                raise UsageError(
                    f"train.batch {tuning.train.batch}: fewer examples a step than the {many.world} ranks; raise it, "
                    "or start fewer"
                )
            with nothing_left(where) if many.first else contextlib.nullcontext():
                return Work(tuning, plan, opened, where, many, stop).run(resume=resume)


def plan_of(
    tuning: Tuning,
    rates: Sequence[float] = (),
    *,
    seeds: int | None = None,
    labels: Sequence[int | None] = (),
    baselines: str | None = None,
    forgetting: str | os.PathLike[str] | None = None,
    vectors: str | os.PathLike[str] | None = None,
    before: Any = None,
) -> Plan:
    """What a run tries: what is wished for, or what the run that is repeated had tried (`before`)."""
    first = tuning.train.seed
    found = Plan(rates=(tuning.train.lr,), seeds=(first,), labels=(tuning.task.labels,), baselines=names_of("default"))
    if before is not None:
        found = config.from_dict(Plan, before, where="plan")
    if seeds is not None and not 1 <= seeds <= SEEDS:
        raise UsageError(f"--seeds {seeds} must be at least 1, and at most {SEEDS:,}")
    limit = tuning.task.labels
    if limit is not None and labels and tuple(labels) != (limit,):
        shown = ",".join("all" if count is None else str(count) for count in labels)
        raise UsageError(f"--labels {shown} and task.labels={limit} both state the training examples; keep one of them")
    made = replace(
        found,
        rates=tuple(rates) or found.rates,
        seeds=found.seeds if seeds is None else tuple(range(first, first + seeds)),
        labels=tuple(labels) or found.labels,
        baselines=found.baselines if baselines is None else names_of(baselines),
        forgetting=found.forgetting if forgetting is None else os.fspath(forgetting),
        vectors=found.vectors if vectors is None else os.fspath(vectors),
    )
    if made.vectors is not None:
        Vectors.load(made.vectors)  # a bad file is refused before the training, and not after it
    return made


@contextlib.contextmanager
def nothing_left(where: Path) -> Iterator[None]:
    """Where a mistake is found before anything was learnt, the directory is as it was, so that one can try again."""
    there, begun = where.exists(), (where / RUN).exists()
    try:
        yield
    except (UsageError, DataError, CheckpointError):
        with contextlib.suppress(OSError):
            if not begun and {one.name for one in where.iterdir()} <= {RUN}:
                (where / RUN).unlink(missing_ok=True)
                if not there:
                    where.rmdir()
        raise


def vacant(where: Path) -> None:
    """Refuse a directory that has a run or a model already."""
    own(where)
    free(where)
    if (where / TASK).is_file() or any(listed(folder / CHECKPOINTS) for folder in where.glob(f"{TRIALS}/*")):
        raise UsageError(f"{where}: there is a run already; go on with --resume, or choose another --out")


def resumed(
    where: Path, model: str | os.PathLike[str] | None, rates: Sequence[float], tries: Mapping[str, Any], **wishes: Any
) -> tuple[Tuning, Plan]:
    """The settings and the plan of the run that is there; only what does not change what is learnt may be changed."""
    if not (where / RUN).is_file():
        raise CheckpointError(f"{where}: there is no run to resume ({RUN} is missing); start it without --resume")
    tree = io.read_json(where / RUN, CheckpointError)
    stored, plan = Tuning.of(tree, where=str(where / RUN)), config.from_dict(Plan, tree.get("plan"), where="plan")
    given: Mapping[str, Any] = {name: value for name, value in wishes.items() if value is not None}
    changed = {path.removeprefix("train."): value for path, value in (given.get("changes") or {}).items()}
    lr = rates[0] if rates else None if rates_of(changed) else stored.train.lr
    wished = choose(model, lr=lr, **{"settings": stored, **given})
    again = plan_of(wished, rates, **tries, before=tree["plan"])
    for path, (new, old) in {**wished.differences(stored), **config.diff(again, plan)}.items():
        raise CheckpointError(f"{where}: {path} was {old} and cannot become {new} in a run that goes on")
    return wished, plan


class Work:
    """A run at work: its trials one by one, and what is made of them."""

    def __init__(self, tuning: Tuning, plan: Plan, opened: Opened, where: Path, many: Ranks, stop: Stop) -> None:
        self.tuning, self.plan, self.opened, self.where = tuning, plan, opened, where
        self.ranks, self.stop = many, stop
        self.trials: list[Facts] = []
        self.encoded: dict[
            int | None, tuple[Items, ...]
        ] = {}  # by the number of labels: the same for all seeds and rates

    def run(self, *, resume: bool) -> FineTuned:
        """From the beginning, or from where it was."""
        for note in self.opened.parts.notes:
            log.say(note)
        if self.tuning.tune.mix is None and two_ways(self.tuning.base):
            log.say(f"{self.tuning.base.path}: of its two models the one from the left is adapted; `mix` reads both")
        if len(self.plan.rates) == 1:
            log.say(explain_rate(self.tuning))
        train = self.opened.limited(self.plan.most, self.tuning.task.split)
        counts = balance(self.opened.task, train)
        shown = join_names([f"{name} {count:,.6g}" for name, count in counts.items()])
        log.say(f"train: {of_pool(len(train), self.opened.parts.pool.get('train'))}{f': {shown}' if shown else ''}")
        with contextlib.ExitStack() as stack:
            lock = None
            if self.ranks.first:
                lock = stack.enter_context(Lock(self.where, on_note=log.warn))
                io.sweep(self.where)
                if not resume:
                    vacant(self.where)
                    io.write_json(self.where / RUN, {**self.tuning.plain(), "plan": config.to_dict(self.plan)})
            for tuning in self.plan.rated(self.tuning):
                self._try(tuning, lock, resume)
            best = max(self.trials, key=dev_of)
            for tuning in self.plan.rest(self.tuning, best["lr"]):
                self._try(tuning, lock, resume)
            random = self._random(resume) if RANDOM in self.plan.baselines else None
            more: dict[str, Fitted] = {PROBE: self._probe, RANDOM: lambda train: random, COSINE: self._cosine}
            given = (self.where, self.tuning, self.plan, self.opened, self.trials, more)
            found: FineTuned = self.ranks.share(alone(self.ranks, lambda: finish(*given)))
            return found

    def _try(self, tuning: Tuning, lock: Lock | None, resume: bool) -> None:
        """One trial, unless it is done; the model of the best so far lies in the run's directory."""
        where = self.plan.where(self.where, tuning)
        self.stop.rest()
        found = self._done(where, resume)
        if found is None:
            if where != self.where:
                log.say(f"{where.name}:")
            trial = Trial(
                tuning, self.opened, where, self.ranks, self.stop, encoded=self.encoded,
                forgetting=self.plan.forgetting, rest=self._rest(),
            )  # fmt: skip
            found = trial.run(lock if where == self.where else None, resume=resume)
            full = [one for one in self.trials if one["labels"] == found["labels"]]
            if self.ranks.first:
                if tuning.task.labels == self.plan.most and dev_of(found) > max(map(dev_of, full), default=-1e9):
                    self._keep(trial, found)
                io.write_json(where / DONE, found)
                if where != self.where:
                    io.remove(where / CHECKPOINTS)
        self.trials.append(found)

    def _rest(self) -> Rest:
        """What follows the trial that is next: other trials, among them that of random weights, and baselines."""
        train = self.opened.limited(self.plan.most, self.tuning.task.split)
        names = [name for name in self.plan.baselines if name != RANDOM]
        trials = self.plan.count - len(self.trials) - 1 + (RANDOM in self.plan.baselines)
        return Rest(trials=max(trials, 0), baselines=baseline_seconds(names, train, self.opened.judged))

    def _done(self, where: Path, resume: bool) -> Facts | None:
        """What the first rank finds of a trial that has come to its end."""
        found: Facts | None = self.ranks.share(done(where) if resume and self.ranks.first else None)
        return found

    def _probe(self, train: Sequence[Example]) -> Beside | None:
        task, begun = self.opened.task, time.perf_counter()
        if task.kind not in KINDS:
            return None
        said = probe(self.tuning, task, train[:MOST], self.opened.judged, self.ranks.device)
        about, seconds = "A linear model on the frozen model's features", time.perf_counter() - begun
        return Beside(name=PROBE, about=about, predictions=said, seconds=seconds)

    def _cosine(self, train: Sequence[Example]) -> Beside | None:
        """The cosine of the two texts' vectors, by the base as it is: a baseline of scored pairs."""
        base, begun = self.tuning.base, time.perf_counter()
        if base.weights == "random":
            return None
        try:
            pairs = [(one.text, one.pair or "") for one in self.opened.judged]
            found = cosines(base.path, pairs, device=str(self.ranks.device))
        except PretuneError as fault:  # a baseline does not end a run that is trained
            log.warn(f"baseline '{COSINE}': {fault}")
            return None
        labels = [float(one.label or 0.0) for one in train]
        low, high = min(labels), max(labels)
        said = [Prediction(value=low + (high - low) * float(one)) for one in found]
        about = "The cosine of the two texts' vectors, by the model before fine-tuning"
        return Beside(name=COSINE, about=about, predictions=said, seconds=time.perf_counter() - begun)

    def _random(self, resume: bool) -> Beside:
        """The same model from random weights, trained whole on the same examples: a baseline."""
        wish: dict[str, Any] = {"task.labels": self.plan.most, "train.seed": self.plan.seeds[0]}
        wish |= {"tune.trained": {"kind": "full"}, "tune.decay": None}
        tuning = choose(settings=self.tuning, method="full+random", changes=wish)
        where = self.where / TRIALS / RANDOM
        found = self._done(where, resume)
        if found is None:
            rest = replace(self._rest(), trials=0)
            found = Trial(tuning, self.opened, where, self.ranks, self.stop, rest=rest).run(None, resume=resume)
            if self.ranks.first:
                io.write_json(where / DONE, found)
                io.remove(where / CHECKPOINTS)
        said, seconds = predictions_of(found, self.opened.headline), found["summary"]["seconds"]
        return Beside(name=RANDOM, about="The same model from random weights", predictions=said, seconds=seconds)

    def _keep(self, trial: Trial, found: Facts) -> None:
        """Write a model, its task and its predictions as those of the run."""
        model, method = trial.model, self.tuning.method
        methods.save(model.eval(), method, self.where, base=self.tuning.base.path, overwrite=True)
        kept_task(trial, found["threshold"]).write(self.where)
        if trial.where != self.where:
            io.atomic_write(self.where / PREDICTIONS, (trial.where / PREDICTIONS).read_bytes())


def kept_task(trial: Trial, threshold: float | None) -> Kept:
    """What has to be known of a trial's task when its model reads new text."""
    task, encoder, wanted = trial.task, trial.reader.encoders[0], trial.tuning.task
    rules, columns = encoder.rules, columns_of(task)
    members = [
        Member(name=one.task.name, scale=one.rules.scale, max_length=one.rules.max_length,
               new_tokens=one.rules.new_tokens or None)
        for one in (trial.reader.encoders if trial.reader.apart else ())
    ]  # fmt: skip
    return Kept(
        name=task.name,
        kind_of=task.kind,
        type=None if members else type_of(task.kind),
        labels=task.labels,
        metrics=task.metrics,
        scale=None if trial.opened.members else rules.scale,
        template=task.template,
        text=wanted.text or columns[0],
        pair=wanted.pair or columns[1],
        max_length=rules.max_length,
        stride=rules.stride,
        new_tokens=rules.new_tokens or None,
        slots=encoder.slots,
        threshold=threshold,
        members=tuple(members),
    )
