"""A run at work: everything is opened and checked, then it is trained, phase after phase."""

import contextlib
import itertools
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from pretune.core import io, log
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.data.samples import demand
from pretune.data.stream import Stream
from pretune.models import shapes
from pretune.models.cost import memory
from pretune.models.pair import Pair
from pretune.models.spec import Model
from pretune.models.two_way import TwoWay
from pretune.recipes.reading import Source
from pretune.recipes.resolve import RUN
from pretune.recipes.run import Run, finish
from pretune.recipes.samples import Samples
from pretune.recipes.settings import Settings
from pretune.recipes.start import begin_from
from pretune.train.counting import finer
from pretune.train.evaluate import Evaluate, evaluator
from pretune.train.feed import Feed
from pretune.train.journal import Journal
from pretune.train.loop import Loop
from pretune.train.optim import parameter_groups
from pretune.train.pace import Pace
from pretune.train.ranks import Ranks
from pretune.train.saving import Saver, restore
from pretune.train.state import State
from pretune.train.store import Lock, Store, listed
from pretune.train.trainee import Trainee
from pretune.train.watch import Stop, Watch

CHECKPOINTS = "checkpoints"
MICRO_TOKENS = 8192
"""Of a micro-batch on a CPU: more does not make it faster."""
EVALUATIONS = 10
SAVING = 200e6
"""Bytes per second that a disk is trusted to take, for the time kept back at the end of a budget."""


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
        self.spec = shapes.shaped(settings.model, settings.objective.shapes)
        self.source = Source.open(
            settings.data,
            settings.objective,
            self.spec.shape,
            start=settings.model.special.start,
            longest=settings.model.longest,
        )
        self.cuda = many.device.type == "cuda"
        self.phases = settings.data.schedule.phases
        self.streams = [self._stream(settings, "train", phase.length) for phase in self.phases]
        for stream, phase in zip(self.streams, self.phases, strict=True):
            demand(stream.samples, phase.length)
        self.steps = _steps(settings, self.streams)
        self.settings = settings
        if self.steps is not None:
            settings.train.schedule.factor(0, self.steps)  # whether it fits
        self.held = self._held(self.settings)
        self.precision = _precision(self.settings, many)
        self.model = self._model(None if resume else settings.train.start)
        self.expect = {
            "config": self.settings.sha256(),
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
        }

    def run(self, *, resume: bool = False) -> Run:
        """Train from the beginning, or from the newest checkpoint that is whole."""
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.first:
                lock = stack.enter_context(Lock(self.where, on_note=log.warn))
                io.sweep(self.where)
                if not resume:
                    _free(self.where)
                store = Store(self.where / CHECKPOINTS, keep=self.settings.train.keep, on_note=log.warn)
                store.tidy(lock)
            return self._train(stack, store, resume)

    def _train(self, stack: contextlib.ExitStack, store: Store | None, resume: bool) -> Run:
        train = self.settings.train
        trainee = Trainee(self.model, self.settings.objective).train()
        if train.recompute:
            _recompute(self.model)
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
        if train.compile if train.compile is not None else self.cuda:
            self.model.compile(dynamic=False)
        pace = Pace(
            schedule=train.schedule,
            steps=self.steps,
            budget=train.budget,
            ends=tuple(itertools.accumulate(phase.share for phase in self.phases)),
        )
        loop = Loop(
            trainee=trainee,
            wrapped=wrapped,
            optimizer=optimizer,
            batches=Feed(Shifted(self.streams[0], 0), stop=0),
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
                models=trained(self.spec),
                loop=loop,
                resumed=resume,
                total=state.planned[-1] if state.planned else self.steps,
                budget=None if state.planned else train.budget,
                every=train.log_every,
                trackers=train.trackers,
                tariff=train.tariff,
                settings=self.settings.plain(),
            )
        )
        saver = Saver(store, self.expect, every=train.checkpoint_every, before=journal.settle)
        evaluate = self._evaluate(journal, saver)
        watch = Watch(journal.note, lambda step: self._samples(state, step))
        seen = self.held[0] if self.held else self.streams[-1]
        samples = Samples(seen, self.source.tokenizer, train.samples_every, journal.tell)
        loop.hooks = [pace, watch, journal, *([evaluate] if evaluate else []), samples, saver, self.stop]
        self.stop.ready(loop, lambda loop: saver.save(loop, wait=True))
        self._begin(loop, saver, evaluate, pace, resume)
        for phase in range(len(state.phases) - 1, len(self.phases)):
            self._phase(loop, phase, pace)
            if phase + 1 < len(self.phases):
                state.phases.append(state.step)
        if evaluate:
            evaluate.now(loop)
        saver.save(loop, wait=True)
        state.elapsed = time.monotonic() - loop.begun
        return finish(self.where, self.model, self.source, self.settings, journal, loop)

    def _begin(self, loop: Loop, saver: Saver, evaluate: Evaluate | None, pace: Pace, resume: bool) -> None:
        """Before the first step: the settings are written, the untrained model is judged and saved."""
        state = loop.state
        state.micro = self._micro(self.streams[len(state.phases) - 1], state)
        if not resume and self.ranks.first:
            io.write_json(self.where / RUN, {**self.settings.plain(), "found": self._found()})
        if resume:
            saver.last_step, saver.last_time = state.step, state.elapsed
        if evaluate:
            evaluate(loop, [])  # where that was not done before it was saved
        saver.save(loop, wait=True)
        size = sum(p.numel() for p in self.model.parameters()) * 4
        pace.reserve = 1.0 + 5 * size / SAVING + (1.5 * evaluate.seconds if evaluate else 0.0)

    def _phase(self, loop: Loop, phase: int, pace: Pace) -> None:
        stream = self.streams[phase]
        first = loop.state.phases[phase]
        loop.state.micro = self._micro(stream, loop.state)
        feed = Feed(
            Shifted(stream, first),
            start=loop.state.step,
            stop=None if pace.steps is None else pace.last(phase),
            micro=loop.state.micro,
            rank=self.ranks.rank,
            world=self.ranks.world,
            workers=self._workers(),
            device=self.ranks.device,
        )
        with feed:
            pace.enter(loop.state)
            loop.batches = feed
            loop.until = lambda state: pace.over(state, phase)
            loop.run()
            loop.state.waited += feed.waited

    def _stream(self, settings: Settings, split: str, length: int) -> Stream:
        return self.source.stream(
            split,
            length=length,
            tokens=settings.train.batch_tokens,
            ranks=self.ranks.world,
            seed=settings.train.seed,
            fixed=self.cuda,
        )

    def _held(self, settings: Settings) -> tuple[Stream, int] | None:
        """Held-out batches and how many of them are read; None where there is nothing held out."""
        split = self.source.data.index.splits.get("valid")
        if split is None or not split.tokens or not settings.train.eval_tokens:
            return None
        try:
            stream = self._stream(settings, "valid", self.phases[-1].length)
        except DataError as fault:  # too little of it, for pairs
            log.warn(str(fault))
            return None
        rows = stream.shape.rows * (stream.shape.length + (stream.shape.source or 0))
        return stream, min(math.ceil(settings.train.eval_tokens / rows), len(stream.steps(0)))

    def _evaluate(self, journal: Journal, saver: Saver) -> Evaluate | None:
        if self.held is None:
            log.warn(f"{self.source.data}: nothing to judge by is held out, so there is no held-out loss")
            return None
        stream, count = self.held
        every = self.settings.train.eval_every or (0 if self.steps is None else max(self.steps // EVALUATIONS, 1))

        def told(loop: Loop, found: dict[str, float]) -> None:
            saver.score = found["loss"]
            if saver.last_step == loop.state.step:  # saved before its loss was known: again, with it
                saver.last_step = -1
            if found["loss"] < (math.inf if loop.state.best is None else loop.state.best):
                loop.state.best, loop.state.best_step = found["loss"], loop.state.step
            journal.evaluated(loop, found)

        work = evaluator(stream, count, self.settings.objective.evaluation())
        return Evaluate(work, every, told, left=self.stop.end)

    def _model(self, start: str | None) -> Any:
        model = shapes.build(self.spec, seed=self.settings.train.seed, device=self.ranks.device)
        if start is not None:
            begin_from(model, Path(start))
        model.attention_backend = self.settings.train.attention_backend
        if self.cuda and self.settings.train.deterministic:
            deterministic()
            model.attention_backend = model.attention_backend or "rows"
        return model

    def _micro(self, stream: Stream, state: State) -> int:
        """Micro-batches per rank and step: as few as memory allows, at least as many as were needed before."""
        rows, train = stream.shape.rows // self.ranks.world, self.settings.train
        row = stream.shape.length + (stream.shape.source or 0)
        micro = 1
        while rows // micro > 1 and (
            rows // micro * row > self._room(row, rows * row, train.micro_tokens) or micro < state.least
        ):
            micro = finer(micro, rows // micro)
        return micro

    def _room(self, row: int, most: int, asked: int | None) -> int:
        """Tokens of a micro-batch."""
        if asked is not None:
            return asked
        if not self.cuda:
            return MICRO_TOKENS
        free = 0.85 * torch.cuda.get_device_properties(self.ranks.device).total_memory
        half: Literal["fp32", "bf16"] = "fp32" if self.precision is None else "bf16"
        tokens = most
        while (
            tokens > row
            and memory(self.settings.model, tokens=tokens, length=row, training=True, precision=half).total > free
        ):
            tokens //= 2
        return tokens

    def _workers(self) -> int:
        wish = self.settings.train.workers
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return wish if wish is not None else min(4, max(((os.cpu_count() or 1) - local) // local, 0)) * self.cuda

    def _samples(self, state: State, step: int) -> list[int]:
        phase = max(i for i, first in enumerate(state.phases) if first <= step)
        found = self.streams[phase].sequences(step - state.phases[phase])[0].samples
        return [] if found is None else found.tolist()

    def _found(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "data": self.source.data.fingerprint,
            "tokenizer": self.source.tokenizer.sha256,
            "device": str(self.ranks.device),
            "world": self.ranks.world,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "precision": "fp32" if self.precision is None else "bf16",
        }


@dataclass(frozen=True, slots=True)
class Shifted:
    """A stream whose first step comes later: that of a phase."""

    stream: Stream
    first: int

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Any:
        """The batch of a step of the run."""
        return self.stream.batch(step - self.first, part=part, parts=parts)


def _free(where: Path) -> None:
    if listed(where / CHECKPOINTS):
        raise UsageError(f"{where}: there is a run already; go on with --resume, or choose another --out")
    if (where / "config.json").exists():
        raise UsageError(f"{where}: there is a model already; choose another --out")


def trained(spec: shapes.AnySpec) -> list[Model]:
    """The models behind a spec of any shape, the one with the vocabulary head first."""
    if isinstance(spec, Pair):
        return [spec.generator, spec.discriminator]
    return [spec.forwards, spec.mirror] if isinstance(spec, TwoWay) else [spec]


def deterministic() -> None:
    """Ask CUDA for kernels that give the same bits every time; some are slower, some attention kernels have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def _steps(settings: Settings, streams: list[Stream]) -> int | None:
    """How many steps a run has; None where the clock decides."""
    train = settings.train
    if train.budget is not None:
        return None
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return max(round(train.tokens / train.batch_tokens), 1)
    shares = [phase.share for phase in settings.data.schedule.phases]
    # A run reads a share of its epochs at each length.
    per_epoch = [len(stream.steps(0)) for stream in streams]
    steps = sum(share * count for share, count in zip(shares, per_epoch, strict=True))
    return max(round((train.epochs or 1.0) * steps), 1)


def _precision(settings: Settings, many: Ranks) -> torch.dtype | None:
    wish = settings.train.precision
    if wish == "bf16" or (wish == "auto" and many.device.type == "cuda" and torch.cuda.is_bf16_supported()):
        return torch.bfloat16
    return None


def _recompute(model: Any) -> None:
    for part in model.modules():
        if hasattr(part, "recompute"):
            part.recompute = True


def _silent(text: str) -> None:
    pass
