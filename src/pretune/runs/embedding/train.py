"""A model learns vectors by comparison, on the one loop; what is left is a directory of sentence-transformers.

    run = train_embeddings("runs/small", task="snli", out="runs/vectors")
    pt.embed(run, ["a sentence"]), run.scores

Where there is a task or file to judge by, it is judged before and after: scored pairs by Spearman's correlation,
triplets by accuracy.
"""

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretune.adaptation.contrastive import Compared, Comparing, Comparison
from pretune.core import config, io, log
from pretune.core.config import spec
from pretune.core.counted import counted
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.evaluation.similarity import cosines, triplet_accuracy
from pretune.inference import sentence_modules
from pretune.inference.embed import Embedder
from pretune.inference.sentence_modules import encoder_of
from pretune.metrics.correlation import spearman
from pretune.models.hf import checkpoint
from pretune.models.verify import check_weights
from pretune.runs.build_config import device_of
from pretune.runs.defaults import RUN
from pretune.runs.embedding.batches import stream_of
from pretune.runs.embedding.pair_dataset import Lessons, fitted, read
from pretune.runs.output_dir import own
from pretune.runs.pretrain_run import CHECKPOINTS, free
from pretune.runs.restore import check_model
from pretune.runs.run_dir import COST
from pretune.tasks import TASKS
from pretune.training.checkpointing import Saver, restore
from pretune.training.checkpoints import Found, Lock, Store
from pretune.training.dataloader import Feed
from pretune.training.distributed import Ranks, ranks
from pretune.training.guards import Stop, Watch
from pretune.training.loop import Loop
from pretune.training.loss_module import Trainee
from pretune.training.optim import parameter_groups
from pretune.training.optim.adamw import AdamW
from pretune.training.rank_zero import alone
from pretune.training.records import FoundFile
from pretune.training.run_logger import Journal
from pretune.training.schedules import Linear
from pretune.training.train_state import State

SCORES = "scores.json"


@spec
class Teaching:
    """How vectors are learnt; the numbers are those of S-BERT, but for the batch, which in-batch negatives want large.

    `loss`: triplet, in_batch, classes or cosine; None: what the examples allow. `pooling`, `normalise` and `length` are
    as `embed` takes them; None: as the model's directory says.
    """

    loss: str | None = None
    pooling: str | None = None
    normalise: bool | None = None
    length: int | None = 128
    batch: int = 64
    epochs: float = 1.0
    steps: int | None = None
    lr: float = 2e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 2 or self.epochs <= 0 or (self.steps is not None and self.steps < 1) or self.lr < 0:
            raise UsageError(
                f"batch {self.batch} must be 2 or more, epochs {self.epochs} above 0, steps {self.steps} at least 1, "
                f"lr {self.lr} at least 0"
            )


@dataclass(frozen=True, slots=True)
class Trained(os.PathLike[str]):
    """Where the model lies, and how good its vectors are; it can be given wherever its path can."""

    path: Path
    scores: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


def train_embeddings(
    model: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    train: str | os.PathLike[str] | None = None,
    dev: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: str | None = None,
    **settings: Any,
) -> Trained:
    """Teach a model which texts belong together, from a task or a file `train`, and leave it in `out`.

    `dev` is a file or the name of a task to judge by. `settings` are those of `Teaching`. What was killed goes on with
    `resume=True` and the same settings.
    """
    where = Path(out)
    given = {name: value for name, value in settings.items() if value is not None}
    teaching = config.replace(Teaching(), given)  # text, as `--set` gives it, is typed by the field
    stop = Stop("go on with the same command and --resume", begun=resume)
    with stop.listening():
        if resume and (where / COST).is_file():
            check_model(where)
            log.say(f"{where}: is finished; there is nothing to resume")
            return Trained(where, io.read_json(where / SCORES, CheckpointError))
        if not resume:
            own(where)
            free(where)
        if model is None:
            raise UsageError("missing MODEL: the directory whose vectors are to be taught")
        lessons = read(task=task, train=train, data=data, loss=teaching.loss)
        judged = None if dev is None else _held(dev, data)
        with ranks(device_of(device)) as many:
            if teaching.batch < many.world:
                raise UsageError(f"batch {teaching.batch}: fewer examples than the {many.world} ranks; raise it")
            return _Lesson(Path(model), teaching, lessons, judged, where, many, stop).run(resume=resume)


class _Lesson:
    """A run at work."""

    def __init__(
        self, model: Path, teaching: Teaching, lessons: Lessons, judged: Lessons | None, where: Path, many: Ranks,
        stop: Stop,
    ) -> None:  # fmt: skip
        self.teaching, self.lessons, self.judged, self.where, self.ranks, self.stop = (
            teaching, lessons, judged, where, many, stop
        )  # fmt: skip
        body = checkpoint.load(model, device=many.device)
        check_weights(body, model)
        longest = body.spec.longest
        length = min((limit for limit in (teaching.length, longest) if limit is not None), default=None)
        how = {"pooling": teaching.pooling, "normalise": teaching.normalise, "length": length}
        self.encoder = encoder_of(body, **how)
        self.loss: Comparison = fitted(lessons, teaching.loss)
        self.model = Compared(self.encoder, self.loss, columns=lessons.columns, seed=teaching.seed)
        ready = Embedder(self.encoder)
        self.tokenizer = ready.tokenizer
        self.stream, made = stream_of(
            lessons, ready.tokenizer, length=ready.length, prompt=self.encoder.how.prompt, size=teaching.batch,
            seed=teaching.seed, ranks=many.world,
        )  # fmt: skip
        if (made.sequences.lengths == 0).any():
            raise DataError("a text has no token in this tokenizer; leave empty texts out")
        if made.cut:
            log.warn(f"{made.cut:,} of {counted(len(made.sequences), 'texts')} cut to {ready.length} tokens")
        self.steps = teaching.steps or max(1, round(self.stream.epoch * teaching.epochs))
        self.expect = {
            "config": hashlib.sha256(repr((teaching, self.loss, self.encoder.how)).encode()).hexdigest(),
            "data": hashlib.sha256(repr((lessons.texts, lessons.gold)).encode("utf-8", "surrogatepass")).hexdigest(),
            "tokenizer": ready.tokenizer.sha256,
        }

    def run(self, *, resume: bool) -> Trained:
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.first:
                lock = stack.enter_context(Lock(self.where, on_note=log.warn))
                io.sweep(self.where)
                store = Store(self.where / CHECKPOINTS, keep=2, on_note=log.warn)
                store.tidy(lock)
            log.say(
                f"{counted(len(self.lessons.texts), 'examples')} of "
                f"{self.lessons.columns} texts, {config.kind(self.loss)}, "
                f"{counted(self.steps, 'steps')}"
            )
            return self._train(stack, store, resume)

    def _train(self, stack: contextlib.ExitStack, store: Store | None, resume: bool) -> Trained:
        fit = self.teaching
        optimizer = AdamW(lr=fit.lr, weight_decay=fit.weight_decay).build(parameter_groups(self.model))
        found: Found | None = self.ranks.share(store.latest(self.expect) if resume and store else None)
        if resume and found is None:
            raise CheckpointError(f"{self.where / CHECKPOINTS}: no checkpoint yet; start it again without --resume")
        before = (
            config.read_record(FoundFile, self.where / RUN, CheckpointError).get("before", {})
            if found
            else self._judge()
        )
        state = State() if found is None else restore(found, self.model, optimizer)
        self.ranks.alike(self.model.parameters())
        schedule = Linear(warmup=fit.warmup)
        loop = Loop(
            trainee=Trainee(self.model, Comparing(self.lessons.columns, self.ranks)).train(),
            optimizer=optimizer,
            batches=Feed(
                self.stream,
                start=state.step,
                stop=self.steps,
                rank=self.ranks.rank,
                world=self.ranks.world,
                device=self.ranks.device,
            ),
            state=state,
            ranks=self.ranks,
            rate=lambda state: schedule.factor(state.step, self.steps),
            until=lambda state: state.step >= self.steps,
            seed=fit.seed,
            clip=fit.clip,
            precision=torch.bfloat16 if self.ranks.device.type == "cuda" else None,
            begun=time.monotonic() - state.elapsed,
        )
        tree = {"embedding": config.to_dict(fit), "loss": config.to_dict(self.loss), "before": before}
        journal = stack.enter_context(
            Journal(
                self.where,
                title=self.where.name,
                models=(self.encoder.model.spec,),
                loop=loop,
                resumed=found is not None,
                total=self.steps,
                budget=None,
                settings=tree,
            )
        )
        saver = Saver(store, self.expect, before=journal.settle)
        loop.hooks = [Watch(journal.note), journal, saver, self.stop]
        self.stop.ready(loop, lambda loop: saver.save(loop, wait=True))
        if found is None and self.ranks.first:
            io.write_json(self.where / RUN, tree)
        if found is not None:
            saver.last_step, saver.last_time = state.step, state.elapsed
        saver.save(loop, wait=True)
        loop.run()
        saver.save(loop, wait=True)
        loop.asked = self.ranks.most(loop.asked)
        self.stop.rest()
        state.elapsed = time.monotonic() - loop.begun
        return self._finish(journal.summary(loop), before)

    def _judge(self) -> dict[str, float]:
        """How good the vectors are where there is something to judge by: what the first rank finds, on all."""
        found: dict[str, float] = self.ranks.share(alone(self.ranks, self._judged))
        return found

    def _judged(self) -> dict[str, float]:
        if self.judged is None:
            return {}
        ready = Embedder(self.encoder)
        if self.judged.scored:
            pairs = [(one, other) for one, other, *_ in self.judged.texts]
            return {"spearman": spearman(self.judged.gold, cosines(ready, pairs).tolist())}
        triplets = [(one, near, far) for one, near, far in self.judged.texts]
        return {"triplet_accuracy": float(triplet_accuracy(ready, triplets)["accuracy"])}

    def _finish(self, summary: dict[str, Any], before: dict[str, float]) -> Trained:
        """The model with the files of sentence-transformers beside it, the scores, and last of all the cost."""
        after = self._judge()
        scores = {"before": before, "after": after, "steps": summary["steps"], "loss": summary["loss"]}
        if not self.ranks.first:
            return Trained(self.where, scores)
        body = self.encoder.model.eval()
        body.assets.files = {**body.assets.files, **_measured(self.encoder.how.length, self.tokenizer.files())}
        body.assets.modules = sentence_modules.write(self.encoder)
        checkpoint.save(body, self.where, overwrite=True)
        io.write_json(self.where / SCORES, scores)
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(self.where / COST, {**summary["cost"], "run": about})
        return Trained(self.where, scores)


def _held(dev: str | os.PathLike[str], data: str | os.PathLike[str] | None) -> Lessons:
    """What is judged by: scored pairs, or triplets."""
    name = os.fspath(dev)
    found = read(task=name, data=data, split="dev") if name in TASKS else read(train=name)
    if not found.scored and found.columns != 3:
        raise UsageError(f"'{name}': vectors are judged by scored pairs or by triplets")
    return found


def _measured(length: int | None, files: dict[str, bytes]) -> dict[str, bytes]:
    """The tokenizer's files with the longest text, which sentence-transformers looks for there."""
    name = "tokenizer_config.json"
    if length is None:
        return {}
    return {
        name: json.dumps({**json.loads(files[name]), "model_max_length": length}, indent=2, allow_nan=False).encode()
        + b"\n"
    }
