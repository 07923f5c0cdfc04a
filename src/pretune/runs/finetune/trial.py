"""One training on a task: a seed, a learning rate, so many labels. It goes on where it was killed, bit for bit.

Under `torchrun` every rank has the whole model and learns from its share of each step's examples. Each answers its
share of dev, too, and hears what the others said, so that all of them choose alike. The first one alone writes.
"""

import contextlib
import gc
import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretune.adaptation.finetune_flops import Spending
from pretune.adaptation.peft.base import sample
from pretune.core import config, io, log
from pretune.core.errors import CheckpointError, DivergedError, NonFiniteError
from pretune.runs.finetune.adapted_model import base_model, begin
from pretune.runs.finetune.build_config import WHOLE
from pretune.runs.finetune.config import Tuning
from pretune.runs.finetune.default_steps import evaluations, lasting
from pretune.runs.finetune.early_stopping import Judging, judge
from pretune.runs.finetune.forgetting import Memory
from pretune.runs.finetune.prediction_rows import line
from pretune.runs.finetune.probe_init import center, fit_head
from pretune.runs.finetune.task_data import Opened, balance, scored, tasks_of
from pretune.runs.finetune.task_encoders import Reader, counted
from pretune.runs.finetune.time_estimate import Rest, TrialOutlook
from pretune.runs.initial_model import precision_of
from pretune.runs.micro_batch import micro_batches, replay
from pretune.runs.pretrain_run import CHECKPOINTS
from pretune.tasks.decode import Prediction, answer_perplexity, no_answer_threshold, with_threshold
from pretune.tasks.encode import Items
from pretune.tasks.example import Example
from pretune.tasks.splits import subset
from pretune.training.checkpointing import Saver, restore, weights
from pretune.training.checkpoints import Found, Lock, Store
from pretune.training.dataloader import Feed
from pretune.training.distributed import Ranks
from pretune.training.guards import Stop, Watch
from pretune.training.loop import Hook, Loop
from pretune.training.loss_module import Trainee
from pretune.training.rank_zero import alone
from pretune.training.records import TrialFile
from pretune.training.run_logger import Journal
from pretune.training.train_state import State
from pretune.training.validation import Evaluate, warn_of_few_evaluations

Facts = dict[str, Any]
DONE = "trial.json"
PREDICTIONS = "predictions.jsonl"
JUDGED, WRITTEN = 2000, 200
"""Examples of dev that choices are made on; fewer where the answer is text, which takes long to write."""


class Trial:
    """Everything is opened and checked, then it is trained."""

    def __init__(
        self,
        tuning: Tuning,
        opened: Opened,
        where: Path,
        ranks: Ranks,
        stop: Stop,
        *,
        encoded: dict[int | None, tuple[Items, ...]] | None = None,
        forgetting: str | None = None,
        rest: Rest = Rest(),  # noqa: B008 (a frozen value)
    ) -> None:
        self.tuning, self.opened, self.where, self.ranks, self.stop = tuning, opened, where, ranks, stop
        self.task, fit = opened.task, tuning.train
        self.train = opened.limited(tuning.task.labels, tuning.task.split)
        self.precision = precision_of(fit.running(), ranks)
        if ranks.device.type == "cuda":
            gc.collect()  # NOTE: a trial before may be held by cycles, which Python has no reason to look for
            torch.cuda.init()  # type: ignore[no-untyped-call]  # NOTE: nothing has used it where the precision is given
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.begun = begin(tuning, self.task, ranks, epoch=1.0)
        self.model = self.begun.model
        self.reader = Reader.of(tuning, opened, self.model, self.train)
        known = {} if encoded is None else encoded  # of trials before, by the number of labels
        if tuning.task.labels not in known:
            known[tuning.task.labels] = self.reader.encode(self.train)
        self.notes = self.reader.unknown(self.train)
        for note in self.notes if len(known) == 1 and encoded is not None and ranks.first else ():
            log.warn(note)
        self.items = known[tuning.task.labels]
        if tuning.tune.head == "probe":
            fitted = lambda: fit_head(self.model, self.items[0], seed=fit.seed, precision=self.precision)  # noqa: E731
            center(self.model, ranks.share(alone(ranks, fitted)))
        ranks.alike(self.begun.trained.values())
        self.stream = self.reader.stream(self.items, tuning, fixed=ranks.device.type == "cuda")
        self.epoch = len(self.stream.steps(0))
        self.steps = lasting(fit, self.epoch, few=config.kind(tuning.method) not in WHOLE)
        self.every = fit.eval_every or evaluations(self.epoch, self.steps)
        parts = opened.parts
        self.outlook = TrialOutlook(
            steps=self.steps,
            every=self.every,
            judged=min(len(parts.dev), self._most()),
            last=len(parts.dev) + (len(parts.test) if opened.headline == "test" else 0),
            batch=fit.batch,
            rest=rest,
        )
        for hook in self.begun.unfreezing:
            hook.epoch, hook.steps = self.epoch, self.steps  # NOTE: known only now: examples are encoded for a model
        fit.schedule.factor(0, self.steps)  # whether it fits
        tokenizer, lone = self.model.tokenizer, Ranks(ranks.device)
        self.memory = None
        if forgetting is not None:
            plain = base_model(replace(tuning.base, extra=0), seed=fit.seed)
            self.memory = Memory(self.begun.body, plain, forgetting, lone, self.precision, tuning.method)
        self.expect = {
            "config": tuning.sha256(),
            "data": fingerprint([*self.train, *opened.parts.dev]),
            "tokenizer": tokenizer.sha256,
        }
        trained = frozenset(self.begun.trained)
        every = trained >= {name for name, _ in self.model.named_parameters()}
        self.only = None if every else trained  # what checkpoints hold of the model: the rest is the base's
        if not every:
            self.expect["base"] = fixed(self.model, trained)

    def run(self, lock: Lock | None, *, resume: bool) -> Facts:
        """Train from the beginning, or from the newest checkpoint that is whole; the same facts on all ranks.

        `lock` is that of the directory, where the first rank has it already.
        """
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.first:
                held = lock or stack.enter_context(Lock(self.where, on_note=log.warn))
                if self.tuning.train.keep:
                    store = Store(self.where / CHECKPOINTS, keep=self.tuning.train.keep, on_note=log.warn)
                    store.tidy(held)
            facts: Facts = self.ranks.share(self._train(stack, store, resume))
            return facts

    def _train(self, stack: contextlib.ExitStack, store: Store | None, resume: bool) -> Facts:
        fit = self.tuning.train
        trainee = Trainee(self.model, self.model.spec).train()
        optimizer = fit.optimizer.build(self.begun.groups)
        judging = Judging(trained=self.begun.trained, unfreezing=self.begun.unfreezing, patience=fit.patience)
        found: Found | None = self.ranks.share(store.latest(self.expect) if resume and store else None)
        state = State() if found is None else restore(found, self.model, optimizer, self.only)
        if found is not None:
            judging.restore(found)
        if fit.compile:
            self.model.compile(dynamic=False)
        loop = Loop(
            trainee=trainee,
            optimizer=optimizer,
            batches=Feed(self.stream, stop=0),
            state=state,
            ranks=self.ranks,
            rate=lambda state: fit.schedule.factor(state.step, self.steps),
            until=lambda state: state.step >= self.steps or judging.over(),
            seed=fit.seed,
            clip=fit.clip,
            precision=self.precision,
            begun=time.monotonic() - state.elapsed,
        )
        journal = stack.enter_context(self._journal(loop, resumed=found is not None))
        saver = Saver(
            store, self.expect, every=fit.checkpoint_every, before=journal.settle, more=judging.kept, only=self.only
        )

        def told(loop: Loop, found: dict[str, float]) -> None:
            judging.told(loop, found)
            journal.evaluated(loop, found)
            journal.observe(loop, -judging.scores[-1][1])

        every = self.every
        evaluate = Evaluate(judge(self._judged), every, told, left=self.stop.end)
        warn_of_few_evaluations(fit.optimizer, -(-self.steps // every), journal.note)
        watch = Watch(journal.note)
        loop.hooks = [watch, journal, _Later(evaluate), *self.begun.unfreezing, saver, self.stop]
        self.stop.ready(loop, lambda loop: saver.save(loop, wait=True))
        if found is not None:
            saver.last_step, saver.last_time = state.step, state.elapsed
            undone: list[Hook] = [_Later(evaluate), *self.begun.unfreezing]  # when it was asked to stop
            for hook in undone:
                hook(loop, [])
        saver.save(loop)
        self._steps(loop)
        evaluate.now(loop)
        saver.save(loop, wait=True)
        loop.asked = self.ranks.most(loop.asked)
        self.stop.rest()
        state.elapsed = time.monotonic() - loop.begun
        judging.take_best()
        loop.hooks, loop.replay = (), None  # which hold one another, and memory of the device, until they are found
        return self._finish(loop, journal, judging)

    def _steps(self, loop: Loop) -> None:
        fit = self.tuning.train
        running, state, shape, spec = fit.running(), loop.state, self.stream.shape, self.model.model.spec
        state.micro = micro_batches(shape, spec, running, self.ranks, self.precision, least=state.least)
        loop.replay = replay(shape, spec, running, self.ranks, loop.trainee, micro=state.micro)
        feed = Feed(
            self.stream,
            start=state.step,
            stop=self.steps,
            micro=state.micro,
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=fit.workers or 0,  # NOTE: processes take longer to start than many a run lasts
            device=self.ranks.device,
        )
        with feed:
            loop.batches = feed
            loop.run()
            state.waited += feed.waited

    def _journal(self, loop: Loop, *, resumed: bool) -> Journal:
        fit = self.tuning.train
        return Journal(
            self.where,
            title=self.where.name,
            models=Spending(self.model, lambda: sum(hook.opened for hook in self.begun.unfreezing)),
            loop=loop,
            resumed=resumed,
            total=self.steps,
            budget=None,
            every=fit.log_every,
            trackers=fit.trackers,
            tariff=fit.tariff,
            settings=self.tuning.plain(),
            outlook=self.outlook,
        )

    def _most(self) -> int:
        """Examples of dev that choices are made on, at most."""
        return self.tuning.train.judge or (WRITTEN if self.reader.written else JUDGED)

    def _judged(self) -> dict[str, float]:
        """The score on dev, or on as much of it as choices are made on."""
        dev = self.opened.parts.dev
        most = self._most()
        groups = self.opened.groups(dev)
        some = subset(dev, most, self.tuning.task.split, groups) if len(dev) > most else dev
        return scored(self.opened, some, self._predict(some))

    def _predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """What the model says of examples: every rank is asked about its share, and all know every answer."""
        rank, world = self.ranks.rank, self.ranks.world
        mine, begun = examples[rank::world], time.monotonic()
        try:
            predictions = self.reader.predict(self.model, mine, self.precision) if mine else []
        except NonFiniteError:  # the base was finite: training made it so
            raise DivergedError("the fine-tuned model's outputs are not finite; lower the learning rate") from None
        said = self.ranks.gather(predictions)
        self.outlook.add(len(examples), time.monotonic() - begun)
        return [said[at % world][at // world] for at in range(len(examples))]

    def _finish(self, loop: Loop, journal: Journal, judging: Judging) -> Facts:
        """Judge the best weights on all of dev and test, and write what they said."""
        parts, summary = self.opened.parts, journal.summary(loop)
        said = {"dev": self._predict(parts.dev)}
        if self.opened.headline == "test":
            said["test"] = self._predict(parts.test)
        threshold = None
        if self.task.metrics[0] == "squad2" and not self.reader.written:  # who writes says it in words
            threshold = no_answer_threshold(parts.dev, said["dev"])
            said = {split: with_threshold(some, threshold) for split, some in said.items()}
        if self.ranks.first:
            self._write(said)
        headline = self.opened.headline
        return {
            "lr": self.tuning.train.lr,
            "seed": self.tuning.train.seed,
            "labels": len(self.train),
            "steps": loop.state.step,
            "epoch": self.epoch,
            "best_step": judging.best_step,
            "course": [{"step": step, "dev": value} for step, value in judging.scores],
            "scores": {split: self._scores(getattr(parts, split), some) for split, some in said.items()},
            "trained": sum(parameter.numel() for parameter in self.begun.trained.values()),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "counts": config.to_dict(counted(self.items)),
            "balance": balance(self.task, self.train),
            "notes": self.notes,
            "memory": _memory(self.ranks),
            "threshold": threshold,
            "forgetting": None if self.memory is None else self.memory.compare(),
            "summary": {name: value for name, value in summary.items() if name not in ("best", "held_out")},
            "said": {headline: [_compact(one) for one in said[headline]]},
        }

    def _scores(self, examples: Sequence[Example], said: Sequence[Prediction]) -> dict[str, float]:
        """The official score; of written answers also how likely the right ones are, which the first rank finds out."""
        found = scored(self.opened, examples, said)
        if self.task.kind == "generation" and not self.opened.members and self.ranks.first:
            encoder = self.reader.encoders[0]
            found["perplexity"] = answer_perplexity(self.model, encoder, examples, precision=self.precision)
        return found

    def _write(self, said: Mapping[str, Sequence[Prediction]]) -> None:
        lines: list[Facts] = []
        for split, some in said.items():
            examples: list[Example] = getattr(self.opened.parts, split)
            tasks = tasks_of(self.opened, examples)
            for number, (task, example, one) in enumerate(zip(tasks, examples, some, strict=True)):
                name = {"task": task.name} if self.opened.members else {}
                lines.append({**line(split, example.id or str(number), task, example, one), **name})
        text = "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in lines)
        io.atomic_write(self.where / PREDICTIONS, text)


class _Later:
    """Evaluates after steps, and not before the first: a head that was just drawn has nothing to say."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate

    def __call__(self, loop: Loop, reports: Sequence[Any]) -> None:
        if loop.state.step:
            self.evaluate(loop, reports)


def done(where: Path) -> dict[str, Any] | None:
    """What is known of a trial that has come to its end."""
    if not (where / DONE).is_file():
        return None
    return {**config.read_record(TrialFile, where / DONE, CheckpointError)}


def fingerprint(examples: Sequence[Example]) -> str:
    """A hash of what examples say."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def fixed(model: nn.Module, trained: Collection[str]) -> str:
    """A hash of what is not trained: names, shapes, and some numbers of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights(model).items()):
        if name not in trained:
            digest.update(f"{name}{list(tensor.shape)}".encode() + sample(tensor))
    return digest.hexdigest()


def _compact(said: Prediction) -> Facts:
    """As much of a prediction as metrics ask for."""
    found = {"label": said.label, "value": said.value, "tags": said.tags, "text": said.text, "scores": said.scores}
    return {name: value for name, value in found.items() if value is not None and value != ()}


def _memory(ranks: Ranks) -> int | None:
    """The most bytes that a GPU held."""
    return torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else None
