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

from pretune.adaptation.contrastive import ContrastiveLoss, ContrastiveModel, ContrastiveObjective
from pretune.core import config, io, log
from pretune.core.config import spec
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.format import format_count
from pretune.evaluation.similarity import compute_cosines, triplet_accuracy
from pretune.inference import sentence_modules
from pretune.inference.embed import Embedder
from pretune.inference.sentence_modules import build_encoder
from pretune.metrics.correlation import spearman
from pretune.models.hf import checkpoint
from pretune.models.verify import check_weights
from pretune.runs.build_config import resolve_device
from pretune.runs.defaults import RUN_FILE
from pretune.runs.embedding.batches import build_text_stream
from pretune.runs.embedding.pair_dataset import PairDataset, read_dataset, select_loss
from pretune.runs.output_dir import check_output_dir
from pretune.runs.pretrain_run import CHECKPOINTS_DIR, check_no_run
from pretune.runs.restore import check_model
from pretune.runs.run_dir import COST_FILE
from pretune.tasks import TASKS
from pretune.training.checkpointing import CheckpointHook, restore_checkpoint
from pretune.training.checkpoints import Checkpoint, CheckpointManager, RunLock
from pretune.training.dataloader import DataLoader
from pretune.training.distributed import Ranks, init_distributed, run_on_rank_zero
from pretune.training.guards import DivergenceGuard, GracefulShutdown
from pretune.training.loop import Loop
from pretune.training.loss_module import ModelWithLoss
from pretune.training.optim import build_parameter_groups
from pretune.training.optim.adamw import AdamW
from pretune.training.records import ResumeFile
from pretune.training.run_logger import RunLogger
from pretune.training.schedules import LinearSchedule
from pretune.training.train_state import TrainState

SCORES_FILE = "scores.json"


@spec(tagged=False)
class EmbeddingTrainConfig:
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
class TrainedEmbeddings(os.PathLike[str]):
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
) -> TrainedEmbeddings:
    """Teach a model which texts belong together, from a task or a file `train`, and leave it in `out`.

    `dev` is a file or the name of a task to judge by. `settings` are those of `EmbeddingTrainConfig`. What was killed goes on with
    `resume=True` and the same settings.
    """
    where = Path(out)
    given = {name: value for name, value in settings.items() if value is not None}
    teaching = config.replace(EmbeddingTrainConfig(), given)  # text, as `--set` gives it, is typed by the field
    stop = GracefulShutdown("go on with the same command and --resume", has_checkpoint=resume)
    with stop.handle_signals():
        if resume and (where / COST_FILE).is_file():
            check_model(where)
            log.info(f"{where}: is finished; there is nothing to resume")
            return TrainedEmbeddings(where, io.read_json(where / SCORES_FILE, CheckpointError))
        if not resume:
            check_output_dir(where)
            check_no_run(where)
        if model is None:
            raise UsageError("missing MODEL: the directory whose vectors are to be taught")
        lessons = read_dataset(task=task, train=train, data=data, loss=teaching.loss)
        judged = None if dev is None else _read_dev(dev, data)
        with init_distributed(resolve_device(device)) as many:
            if teaching.batch < many.world:
                raise UsageError(f"batch {teaching.batch}: fewer examples than the {many.world} ranks; raise it")
            return EmbeddingRun(Path(model), teaching, lessons, judged, where, many, stop).run(resume=resume)


class EmbeddingRun:
    """A run at work."""

    def __init__(
        self, model: Path, settings: EmbeddingTrainConfig, dataset: PairDataset, dev: PairDataset | None, run_dir: Path, ranks: Ranks,
        shutdown: GracefulShutdown,
    ) -> None:  # fmt: skip
        self.settings, self.dataset, self.dev, self.run_dir, self.ranks, self.shutdown = (
            settings, dataset, dev, run_dir, ranks, shutdown
        )  # fmt: skip
        body = checkpoint.load(model, device=ranks.device)
        check_weights(body, model)
        longest = body.spec.max_length
        length = min((limit for limit in (settings.length, longest) if limit is not None), default=None)
        how = {"pooling": settings.pooling, "normalise": settings.normalise, "length": length}
        self.encoder = build_encoder(body, **how)
        self.loss: ContrastiveLoss = select_loss(dataset, settings.loss)
        self.model = ContrastiveModel(self.encoder, self.loss, columns=dataset.columns, seed=settings.seed)
        ready = Embedder(self.encoder)
        self.tokenizer = ready.tokenizer
        self.stream, made = build_text_stream(
            dataset, ready.tokenizer, length=ready.length, prompt=self.encoder.config.prompt, batch_size=settings.batch,
            seed=settings.seed, ranks=ranks.world,
        )  # fmt: skip
        if (made.sequences.lengths == 0).any():
            raise DataError("a text has no token in this tokenizer; leave empty texts out")
        if made.truncated_texts:
            log.warn(
                f"{made.truncated_texts:,} of {format_count(len(made.sequences), 'texts')} cut to {ready.length} tokens"
            )
        self.steps = settings.steps or max(1, round(self.stream.steps_per_epoch * settings.epochs))
        self.fingerprints = {
            "config": hashlib.sha256(repr((settings, self.loss, self.encoder.config)).encode()).hexdigest(),
            "data": hashlib.sha256(repr((dataset.texts, dataset.gold)).encode("utf-8", "surrogatepass")).hexdigest(),
            "tokenizer": ready.tokenizer.sha256,
        }

    def run(self, *, resume: bool) -> TrainedEmbeddings:
        with contextlib.ExitStack() as stack:
            store = None
            if self.ranks.is_first:
                lock = stack.enter_context(RunLock(self.run_dir, on_warning=log.warn))
                io.sweep(self.run_dir)
                store = CheckpointManager(self.run_dir / CHECKPOINTS_DIR, max_checkpoints=2, on_warning=log.warn)
                store.remove_unfinished(lock)
            log.info(
                f"{format_count(len(self.dataset.texts), 'examples')} of "
                f"{self.dataset.columns} texts, {config.get_kind(self.loss)}, "
                f"{format_count(self.steps, 'steps')}"
            )
            return self._train(stack, store, resume)

    def _train(self, stack: contextlib.ExitStack, store: CheckpointManager | None, resume: bool) -> TrainedEmbeddings:
        fit = self.settings
        optimizer = AdamW(lr=fit.lr, weight_decay=fit.weight_decay).build(build_parameter_groups(self.model))
        found: Checkpoint | None = self.ranks.broadcast_object(
            store.find_latest(self.fingerprints) if resume and store else None
        )
        if resume and found is None:
            raise CheckpointError(
                f"{self.run_dir / CHECKPOINTS_DIR}: no checkpoint yet; start it again without --resume"
            )
        before = (
            config.read_record(ResumeFile, self.run_dir / RUN_FILE, CheckpointError).get("before", {})
            if found
            else self._evaluate()
        )
        state = TrainState() if found is None else restore_checkpoint(found, self.model, optimizer)
        self.ranks.broadcast_tensors(self.model.parameters())
        schedule = LinearSchedule(warmup=fit.warmup)
        loop = Loop(
            module=ModelWithLoss(self.model, ContrastiveObjective(self.dataset.columns, self.ranks)).train(),
            optimizer=optimizer,
            batches=DataLoader(
                self.stream,
                start=state.step,
                stop=self.steps,
                rank=self.ranks.rank,
                world=self.ranks.world,
                device=self.ranks.device,
            ),
            state=state,
            ranks=self.ranks,
            lr_factor=lambda state: schedule.compute_factor(state.step, self.steps),
            should_stop=lambda state: state.step >= self.steps,
            seed=fit.seed,
            clip=fit.clip,
            precision=torch.bfloat16 if self.ranks.device.type == "cuda" else None,
            start_time=time.monotonic() - state.elapsed,
        )
        tree = {"embedding": config.to_dict(fit), "loss": config.to_dict(self.loss), "before": before}
        journal = stack.enter_context(
            RunLogger(
                self.run_dir,
                title=self.run_dir.name,
                models=(self.encoder.model.spec,),
                loop=loop,
                is_resumed=found is not None,
                total=self.steps,
                budget=None,
                settings=tree,
            )
        )
        saver = CheckpointHook(store, self.fingerprints, on_save=journal.flush)
        loop.hooks = [DivergenceGuard(journal.warn), journal, saver, self.shutdown]
        self.shutdown.arm(loop, lambda loop: saver.save(loop, wait=True))
        if found is None and self.ranks.is_first:
            io.write_json(self.run_dir / RUN_FILE, tree)
        if found is not None:
            saver.last_step, saver.last_time = state.step, state.elapsed
        saver.save(loop, wait=True)
        loop.run()
        saver.save(loop, wait=True)
        loop.stop_signal = self.ranks.max(loop.stop_signal)
        self.shutdown.disarm()
        state.elapsed = time.monotonic() - loop.start_time
        return self._finish(journal.summarize(loop), before)

    def _evaluate(self) -> dict[str, float]:
        """How good the vectors are where there is something to judge by: what the first rank finds, on all."""
        found: dict[str, float] = self.ranks.broadcast_object(run_on_rank_zero(self.ranks, self._compute_scores))
        return found

    def _compute_scores(self) -> dict[str, float]:
        if self.dev is None:
            return {}
        ready = Embedder(self.encoder)
        if self.dev.is_scored:
            pairs = [(one, other) for one, other, *_ in self.dev.texts]
            return {"spearman": spearman(self.dev.gold, compute_cosines(ready, pairs).tolist())}
        triplets = [(one, near, far) for one, near, far in self.dev.texts]
        return {"triplet_accuracy": float(triplet_accuracy(ready, triplets)["accuracy"])}

    def _finish(self, summary: dict[str, Any], initial_scores: dict[str, float]) -> TrainedEmbeddings:
        """The model with the files of sentence-transformers beside it, the scores, and last of all the cost."""
        after = self._evaluate()
        scores = {"before": initial_scores, "after": after, "steps": summary["steps"], "loss": summary["loss"]}
        if not self.ranks.is_first:
            return TrainedEmbeddings(self.run_dir, scores)
        body = self.encoder.model.eval()
        body.assets.files = {**body.assets.files, **_add_max_length(self.encoder.config.length, self.tokenizer.files())}
        body.assets.modules = sentence_modules.write_modules(self.encoder)
        checkpoint.save(body, self.run_dir, overwrite=True)
        io.write_json(self.run_dir / SCORES_FILE, scores)
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(self.run_dir / COST_FILE, {**summary["cost"], "run": about})
        return TrainedEmbeddings(self.run_dir, scores)


def _read_dev(dev: str | os.PathLike[str], data: str | os.PathLike[str] | None) -> PairDataset:
    """What is judged by: scored pairs, or triplets."""
    name = os.fspath(dev)
    found = read_dataset(task=name, data=data, split="dev") if name in TASKS else read_dataset(train=name)
    if not found.is_scored and found.columns != 3:
        raise UsageError(f"'{name}': vectors are judged by scored pairs or by triplets")
    return found


def _add_max_length(length: int | None, files: dict[str, bytes]) -> dict[str, bytes]:
    """The tokenizer's files with the longest text, which sentence-transformers looks for there."""
    name = "tokenizer_config.json"
    if length is None:
        return {}
    return {
        name: json.dumps({**json.loads(files[name]), "model_max_length": length}, indent=2, allow_nan=False).encode()
        + b"\n"
    }
