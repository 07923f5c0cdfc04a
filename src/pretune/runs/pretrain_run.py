"""A run at work: everything is opened and checked, then it is trained, phase after phase."""

import contextlib
import itertools
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pretune.core import io, log
from pretune.core.counted import counted, join_names
from pretune.core.errors import CheckpointError, UsageError
from pretune.models import trained_model
from pretune.runs.config import Settings, Train
from pretune.runs.data_phases import Course, distance
from pretune.runs.defaults import RUN, explain_rate
from pretune.runs.initial_model import first_model, precision_of
from pretune.runs.micro_batch import micro_batches, replay, workers
from pretune.runs.run_dir import Run, finish
from pretune.runs.sample_text import Saying, check
from pretune.runs.samples import Samples, due, price
from pretune.runs.training_data import Source
from pretune.training.checkpointing import Saver, restore
from pretune.training.checkpoints import Lock, Store, listed
from pretune.training.clock import IN_FLIGHT, Pace
from pretune.training.dataloader import Feed
from pretune.training.distributed import Ranks
from pretune.training.guards import Stop, Watch
from pretune.training.loop import Loop
from pretune.training.loss_module import Trainee
from pretune.training.optim import averaged, parameter_groups
from pretune.training.run_logger import Journal
from pretune.training.train_state import State
from pretune.training.validation import Evaluate, evaluator, warn_of_few_evaluations
from pretune.training.worker_process import prepare

CHECKPOINTS = "checkpoints"
SAVING = 200e6
"""Bytes per second that a disk is trusted to take, for the time kept back at the end of a budget …"""
SAVES = 3.0
"""… and saves like the first one that the end of a run takes: a checkpoint, older ones checked, the model."""
EXIT, BUSY = 1.0, 3.0
"""Seconds, for the last lines and the end of the process; on a machine with other work up to so many times more."""
FEW = 20
"""Steps of a run against the clock below which it is told that it learnt next to nothing: the first two stand still."""


class Session:
    """One process's part in a run: everything is opened and checked, then it is trained."""

    def __init__(
        self,
        settings: Settings,
        where: Path,
        many: Ranks,
        stop: Stop,
        *,
        begun: float,
        resume: bool = False,
        state: State | None = None,
    ) -> None:
        self.where, self.ranks, self.stop, self.begun, self.state = where, many, stop, begun, state or State()
        many.check(settings.train.parallel)
        self._ahead(settings.train)
        self.spec = trained_model.shaped(settings.model, settings.objective.shapes)
        self.source = Source.open(
            settings.data,
            settings.objective,
            self.spec.shape,
            start=settings.model.special.start,
            longest=settings.model.longest,
        )
        self.settings, self.course = settings, Course.open(settings, self.source, many)
        check(settings.train.prompts, self.spec.shape, settings.model.longest, self.source.tokenizer)
        self.precision = precision_of(settings.train, many)
        self.model = first_model(self.spec, settings, many, resume=resume)
        self.expect = {
            "config": self.settings.sha256(),
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
        }
        if (plan := self.course.streams[0].method) is not None:  # that of all phases
            self.expect["plan"] = plan

    def run(self, *, resume: bool = False) -> Run:
        """Train from the beginning, or from the newest checkpoint that is whole."""
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.first:
                lock = stack.enter_context(Lock(self.where, on_note=log.warn))
                io.sweep(self.where)
                if not resume:
                    free(self.where)
                store = Store(self.where / CHECKPOINTS, keep=self.settings.train.keep, on_note=log.warn)
                store.tidy(lock)
            return self._train(stack, store, resume)

    def _ahead(self, train: Train) -> None:
        """Start the processes that make batches and kernels: they import torch while everything is opened."""
        if workers(train, self.ranks):
            prepare(Course.__module__)
        if self._compiled(train) and self.ranks.device.type == "cuda":
            with contextlib.suppress(ImportError):  # not torch's public face; compiling starts them too, later
                from torch._inductor.async_compile import maybe_warm_pool

                maybe_warm_pool()

    def _compiled(self, train: Train) -> bool:
        return train.compile if train.compile is not None else self.ranks.device.type == "cuda"

    def _train(self, stack: contextlib.ExitStack, store: Store | None, resume: bool) -> Run:
        train = self.settings.train
        trainee = Trainee(self.model, self.settings.objective).train()
        wrapped = self.ranks.wrap(trainee, train.parallel)
        optimizer = train.optimizer.build(parameter_groups(self.model))
        state = self.state
        if resume:
            found = Store(self.where / CHECKPOINTS, on_note=log.warn if self.ranks.first else _silent).latest(
                self.expect
            )
            if found is None:
                raise CheckpointError(f"{self.where / CHECKPOINTS}: no checkpoint yet; start it again without --resume")
            state = restore(found, self.model, optimizer)
        if self._compiled(train):
            self.model.compile(dynamic=False)
        pace = Pace(
            schedule=train.schedule,
            steps=self.course.steps,
            budget=train.budget,
            ends=tuple(itertools.accumulate(phase.share for phase in self.course.phases)),
        )
        loop = Loop(
            trainee=trainee,
            wrapped=wrapped,
            optimizer=optimizer,
            batches=Feed(self.course.batches(0, state), stop=0),
            state=state,
            ranks=self.ranks,
            rate=pace.rate,
            until=lambda state: True,
            seed=train.seed,
            clip=train.clip,
            precision=self.precision,
            begun=self.begun - state.elapsed,
        )
        journal = stack.enter_context(
            Journal(
                self.where,
                title=self.where.name,
                models=trained_model.models(self.spec),
                loop=loop,
                resumed=resume,
                total=state.planned[-1] if state.planned else self.course.steps,
                budget=None if state.planned else train.budget,
                every=train.log_every,
                trackers=train.trackers,
                tariff=train.tariff,
                settings=self.settings.plain(),
            )
        )
        saver = Saver(store, self.expect, every=train.checkpoint_every, before=journal.settle)
        evaluate = self._evaluate(journal, saver)
        watch = Watch(journal.note, lambda step: self.course.samples(state, step))
        samples = self._samples(journal, pace, state)
        loop.hooks = [pace, watch, journal, samples, *([evaluate] if evaluate else []), saver, self.stop]
        self.stop.ready(loop, lambda loop: saver.save(loop, wait=True))
        self._begin(loop, saver, evaluate, pace, resume)
        for phase in range(len(state.phases) - 1, len(self.course.phases)):
            self._phase(loop, phase, pace)
            if phase + 1 < len(self.course.phases):
                state.phases.append(state.step)
                before, after = (self.course.phases[number].length for number in (phase, phase + 1))
                text = f"sequences of {after:,} tokens from here on, after {before:,}"
                journal.event(state.step, "length", text, length=after)
        if evaluate:
            evaluate.now(loop)
        saver.save(loop, wait=True)
        state.elapsed = time.monotonic() - loop.begun
        if train.budget is not None and state.step < FEW and self.ranks.first:
            log.warn(
                f"the budget had time for {counted(state.step, 'steps')}, "
                f"in which a model learns next to nothing; use a larger "
                f"--budget, a smaller model, or smaller steps (train.batch_tokens, {train.batch_tokens:,} now)"
            )
        epochs = self.course.epochs(state)
        if self.ranks.first and len(epochs) > 1:
            log.say(f"epochs of the sources: {join_names([f'{name} {one:.3g}' for name, one in epochs.items()])}")
        with averaged(optimizer):  # the weights that were evaluated
            return finish(self.where, self.model, self.source, self.settings, journal, loop, epochs)

    def _begin(self, loop: Loop, saver: Saver, evaluate: Evaluate | None, pace: Pace, resume: bool) -> None:
        """Before the first step: the settings are written, the untrained model is judged and saved."""
        state = loop.state
        state.micro = self._micro(len(state.phases) - 1, state)
        if not resume and self.ranks.first:
            io.write_json(self.where / RUN, {**self.settings.plain(), "found": self._found()})
            log.say(explain_rate(self.settings))
            if shares := self.course.shares():
                log.say(f"shares of the sources: {join_names([f'{name} {one:.1%}' for name, one in shares.items()])}")
        if resume:
            saver.last_step, saver.last_time = state.step, state.elapsed
        if evaluate:
            evaluate(loop, [])  # where that was not done before it was saved
        begun, timed = time.monotonic(), pace.budget is not None and not state.planned
        saver.save(loop, wait=timed)
        if timed:
            reserve = self._reserve(state, evaluate, time.monotonic() - begun)
            pace.reserve = self.ranks.share(reserve)  # they end at the same step

    def _reserve(self, state: State, evaluate: Evaluate | None, saving: float) -> float:
        """Seconds from the last step to the end of the command: an evaluation, a checkpoint, the model, the exit.

        A process that resumes a run has evaluated and saved nothing yet: an earlier one did.
        """
        size: int = sum(parameter.numel() for parameter in self.model.parameters()) * 4
        busy = (time.monotonic() - self.begun) / max(time.process_time(), 1e-3)  # what starting took, by the work in it
        ending = EXIT * min(max(busy, 1.0), BUSY) + max(SAVES * saving, 5 * size / SAVING)
        if evaluate is None:
            return ending
        earlier = 1 + (state.step // evaluate.every if evaluate.every else 0)
        return ending + 1.25 * (evaluate.seconds or state.evaluating / earlier)

    def _phase(self, loop: Loop, phase: int, pace: Pace) -> None:
        loop.state.micro = micro = self._micro(phase, loop.state)
        shape, train = self.course.streams[phase].shape, self.settings.train
        loop.replay = replay(shape, self.settings.model, train, self.ranks, loop.trainee, micro=micro)
        feed = Feed(
            self.course.batches(phase, loop.state),
            start=loop.state.step,
            stop=None if pace.steps is None else pace.last(phase),
            micro=loop.state.micro,
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=workers(self.settings.train, self.ranks),
            device=self.ranks.device,
        )
        with feed:
            pace.enter(loop.state)
            loop.batches = feed
            loop.until = lambda state: pace.over(state, phase)
            loop.run()
            loop.state.waited += feed.waited

    def _micro(self, phase: int, state: State) -> int:
        shape, settings = self.course.streams[phase].shape, self.settings
        return micro_batches(shape, settings.model, settings.train, self.ranks, self.precision, least=state.least)

    def _samples(self, journal: Journal, pace: Pace, state: State) -> Samples:
        held, train = self.course.held, self.settings.train
        seen = held[0] if held else self.course.streams[-1]
        split = "prompts" if train.prompts else "valid" if held else "train"
        cost = price(seen.shape, self.spec.shape, train.batch_tokens, self.ranks)
        when = due(train.samples_every, pace, state, cost)
        pace.tail = IN_FLIGHT + (
            0.0 if train.samples_every == 0 else cost
        )  # the last look may come after the last step
        return Samples(seen, Saying(self.source.tokenizer, train.prompts), when, partial(journal.sampled, split=split))

    def _evaluate(self, journal: Journal, saver: Saver) -> Evaluate | None:
        if self.course.held is None:
            lack = self.source.data.card.get("lacking") or "nothing to judge by is held out"
            log.warn(
                f"{self.source.data}: {lack}, so there is no held-out loss; "
                "`pretune prepare --holdout SHARE` holds out more"
            )
            return None
        stream, count = self.course.held
        every, steps = distance(self.settings.train, self.course.steps), self.course.steps
        if steps is not None or not every:  # else the clock decides
            evaluations = 1 + math.ceil(steps / every) if steps and every else 2
            warn_of_few_evaluations(self.settings.train.optimizer, evaluations, journal.note)

        def told(loop: Loop, found: dict[str, float]) -> None:
            saver.score = found["loss"]
            if saver.last_step == loop.state.step:  # saved before its loss was known: again, with it
                saver.last_step = -1
            if found["loss"] < (math.inf if loop.state.best is None else loop.state.best):
                loop.state.best, loop.state.best_step = found["loss"], loop.state.step
            journal.evaluated(loop, found)
            journal.observe(loop, found["loss"])

        work = evaluator(stream, count, self.settings.objective.evaluation())
        return Evaluate(work, every, told, left=self.stop.end)

    def _found(self) -> dict[str, Any]:
        return {
            "steps": self.course.steps,
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
            "device": str(self.ranks.device),
            "world": self.ranks.world,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "precision": "fp32" if self.precision is None else "bf16",
        }


def free(where: Path) -> None:
    """Refuse a directory that has a run or a model already."""
    if where.is_dir() and listed(where / CHECKPOINTS):  # what is no directory is told when it is written
        raise UsageError(f"{where}: there is a run already; go on with --resume, or choose another --out")
    if (where / "config.json").exists():
        raise UsageError(f"{where}: there is a model already; choose another --out")


def _silent(text: str) -> None:
    pass
