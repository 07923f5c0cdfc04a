"""Contrastive training of a model; the result is a sentence-transformers directory.

    run = train_embeddings("runs/small", task="snli", out="runs/vectors")
    pt.embed(run, ["a sentence"]), run.scores

With a dev task or file, the model is evaluated before and after: scored pairs by Spearman's correlation, triplets by
accuracy.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from pretune.adaptation.contrastive import ContrastiveLoss, ContrastiveModel, ContrastiveObjective
from pretune.core import config, io, log
from pretune.core.arguments import check_arguments
from pretune.core.config import Ge, NonNegative, Positive, spec
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.format import format_count
from pretune.core.migration import FORMAT_KEY, FORMAT_VERSION
from pretune.core.results import Result
from pretune.evaluation.similarity import compute_cosines, triplet_accuracy
from pretune.inference import sentence_modules
from pretune.inference.embed import Embedder
from pretune.inference.sentence_modules import build_encoder
from pretune.metrics.numeric import spearman
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
from pretune.training.optim import build_parameter_groups
from pretune.training.optim.adamw import AdamW
from pretune.training.records import ResumeFile, read_run_record
from pretune.training.run_logger import RunLogger
from pretune.training.schedules import LinearSchedule
from pretune.training.step import ModelWithLoss, TrainState

SCORES_FILE = "scores.json"


@spec(has_kind=False)
class EmbeddingTrainConfig:
    """Training settings; the values are those of S-BERT, except the batch, since in-batch negatives need large ones.

    `loss`: triplet, in_batch, classes or cosine; None: the default for the examples. `pooling`, `normalise` and
    `length`
    are those of `embed`; None: as the model's directory configures.
    """

    loss: str | None = None
    pooling: str | None = None
    normalise: bool | None = None
    length: int | None = 128
    batch: Annotated[int, Ge(2)] = 64
    epochs: Positive[float] = 1.0
    steps: Positive[int] | None = None
    lr: NonNegative[float] = 2e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainedEmbeddings(Result, os.PathLike[str]):
    """Path and scores of the trained model; accepted wherever its path is."""

    path: Path
    scores: dict[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the scores as plain data."""
        return {"path": str(self.path), **self.scores}


@check_arguments()
def train_embeddings(
    model: str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str],
    task: str | None = None,
    train: str | os.PathLike[str] | None = None,
    dev: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    loss: str | None = None,
    pooling: str | None = None,
    normalise: bool | None = None,
    length: int | None = None,
    batch: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    lr: float | None = None,
    warmup: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    device: str | None = None,
) -> TrainedEmbeddings:
    """Train an embedding model by contrastive learning, and save it to `out` for sentence-transformers.

    Args:
        model: A pre-trained model: a run or a Hugging Face directory.
        out: Output directory of the run.
        task: Name of a task with pairs, triplets or scored pairs; or give a file as `train`.
        train: Table of pairs, triplets, pairs with classes, or scored pairs.
        dev: Table or name of a task for validation.
        data: Directory of task data.
        loss: "triplet", "in_batch", "classes" or "cosine"; None: the one that fits the examples.
        pooling: "mean", "cls", "max", "last" …; None: that of the model's directory.
        normalise: Scale vectors to unit length; None: as in the model's directory.
        length: Maximum tokens of a text (default 128).
        batch: Examples per step (default 64); in-batch negatives profit from large batches.
        epochs: Passes over the data (default 1).
        steps: Optimizer steps, instead of epochs.
        lr: Peak learning rate (default 2e-5).
        warmup: Share of the steps for the warm-up (default 0.1).
        weight_decay: Decoupled weight decay (default 0.01).
        clip: Maximum gradient norm (default 1).
        seed: Random seed (default 0).
        overrides: The same settings by name, as text or values; they go before the arguments above.
        resume: Continue an interrupted run with the same settings.
        device: "cpu" or "cuda"; None: a GPU if available.

    Raises:
        UsageError: invalid arguments.
        DataError: examples that no loss fits, or a damaged table.
    """
    settings = {
        "loss": loss, "pooling": pooling, "normalise": normalise, "length": length, "batch": batch, "epochs": epochs,
        "steps": steps, "lr": lr, "warmup": warmup, "weight_decay": weight_decay, "clip": clip, "seed": seed,
        **(overrides or {}),
    }  # fmt: skip
    run_dir = Path(out)
    changes = {name: value for name, value in settings.items() if value is not None}
    train_config = config.replace(EmbeddingTrainConfig(), changes)  # strings are converted to the field's type
    stop = GracefulShutdown("resume with the same command and --resume", has_checkpoint=resume)
    with stop.handle_signals():
        if resume and (run_dir / COST_FILE).is_file():
            check_model(run_dir)
            log.info(f"{run_dir}: finished; nothing to resume")
            return TrainedEmbeddings(run_dir, io.read_json(run_dir / SCORES_FILE, CheckpointError))
        if not resume:
            check_output_dir(run_dir)
            check_no_run(run_dir)
        if model is None:
            raise UsageError("missing MODEL: the model directory to train")
        dataset = read_dataset(task=task, train=train, data=data, loss=train_config.loss)
        dev_dataset = None if dev is None else _read_dev(dev, data)
        with init_distributed(resolve_device(device)) as ranks:
            if train_config.batch < ranks.world:
                raise UsageError(
                    f"batch {train_config.batch} is smaller than the number of ranks, {ranks.world}; increase it"
                )
            return EmbeddingRun(Path(model), train_config, dataset, dev_dataset, run_dir, ranks, stop).run(
                resume=resume
            )


class EmbeddingRun:
    """Contrastive training run."""

    def __init__(
        self,
        model: Path,
        settings: EmbeddingTrainConfig,
        dataset: PairDataset,
        dev: PairDataset | None,
        run_dir: Path,
        ranks: Ranks,
        shutdown: GracefulShutdown,
    ) -> None:
        self.settings, self.dataset, self.dev, self.run_dir, self.ranks, self.shutdown = (
            settings, dataset, dev, run_dir, ranks, shutdown
        )  # fmt: skip
        body = checkpoint.load(model, device=ranks.device)
        check_weights(body, model)
        longest = body.spec.max_length
        length = min((limit for limit in (settings.length, longest) if limit is not None), default=None)
        options = {"pooling": settings.pooling, "normalise": settings.normalise, "length": length}
        self.encoder = build_encoder(body, **options)
        self.loss: ContrastiveLoss = select_loss(dataset, settings.loss)
        self.model = ContrastiveModel(self.encoder, self.loss, columns=dataset.columns, seed=settings.seed)
        ready = Embedder(self.encoder)
        self.tokenizer = ready.tokenizer
        self.stream, encoded_texts = build_text_stream(
            dataset, ready.tokenizer, length=ready.length, prompt=self.encoder.config.prompt, batch_size=settings.batch,
            seed=settings.seed, ranks=ranks.world,
        )  # fmt: skip
        if (encoded_texts.sequences.lengths == 0).any():
            raise DataError("a text has no tokens; remove empty texts")
        if encoded_texts.truncated_texts:
            log.warn(
                f"{encoded_texts.truncated_texts:,} of {format_count(len(encoded_texts.sequences), 'texts')} truncated "
                f"to {ready.length} tokens"
            )
        self.steps = settings.steps or max(1, round(self.stream.steps_per_epoch * settings.epochs))
        self.fingerprints = {
            "config": hash_specs(settings, self.loss, self.encoder.config),
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
        train_config = self.settings
        optimizer = AdamW(lr=train_config.lr, weight_decay=train_config.weight_decay).build(
            build_parameter_groups(self.model)
        )
        latest: Checkpoint | None = self.ranks.broadcast_object(
            store.find_latest(self.fingerprints) if resume and store else None
        )
        if resume and latest is None:
            raise CheckpointError(f"{self.run_dir / CHECKPOINTS_DIR}: no checkpoint yet; start again without --resume")
        initial_scores = self._read_initial_scores() if latest else self._evaluate()
        state = TrainState() if latest is None else restore_checkpoint(latest, self.model, optimizer)
        self.ranks.broadcast_tensors(self.model.parameters())
        schedule = LinearSchedule(warmup=train_config.warmup)
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
            seed=train_config.seed,
            clip=train_config.clip,
            precision=torch.bfloat16 if self.ranks.device.type == "cuda" else None,
            start_time=time.monotonic() - state.elapsed_seconds,
        )
        tree = {**self._describe_settings(), "initial_scores": initial_scores}
        logger = stack.enter_context(
            RunLogger(
                self.run_dir,
                title=self.run_dir.name,
                models=(self.encoder.model.spec,),
                loop=loop,
                is_resumed=latest is not None,
                total=self.steps,
                budget=None,
                settings=tree,
            )
        )
        saver = CheckpointHook(store, self.fingerprints, on_save=logger.flush)
        loop.hooks = [DivergenceGuard(logger.warn), logger, saver, self.shutdown]
        self.shutdown.arm(loop, lambda loop: saver.save(loop, wait=True))
        if latest is None and self.ranks.is_first:
            io.write_json(self.run_dir / RUN_FILE, {FORMAT_KEY: FORMAT_VERSION, **tree})
        if latest is not None:
            saver.last_step, saver.last_time = state.step, state.elapsed_seconds
        saver.save(loop, wait=True)
        loop.run()
        saver.save(loop, wait=True)
        loop.stop_signal = self.ranks.max(loop.stop_signal)
        self.shutdown.disarm()
        state.elapsed_seconds = time.monotonic() - loop.start_time
        return self._finish(logger.summarize(loop), initial_scores)

    def _describe_settings(self) -> dict[str, Any]:
        return {"embedding": config.to_dict(self.settings), "loss": config.to_dict(self.loss)}

    def _read_initial_scores(self) -> dict[str, float]:
        """Return the scores before training from the run.json of a resumed run, whose settings must be the same."""
        file = self.run_dir / RUN_FILE
        tree = read_run_record(ResumeFile, file, CheckpointError)
        for name, settings in self._describe_settings().items():
            if tree.get(name, settings) != settings:
                raise CheckpointError(f"{file}: the settings in '{name}' differ from those of the resumed run")
        return tree.get("initial_scores", {})

    def _evaluate(self) -> dict[str, float]:
        """Return the scores on dev, computed on rank 0 and broadcast."""
        scores: dict[str, float] = self.ranks.broadcast_object(run_on_rank_zero(self.ranks, self._compute_scores))
        return scores

    def _compute_scores(self) -> dict[str, float]:
        if self.dev is None:
            return {}
        ready = Embedder(self.encoder)
        if self.dev.is_scored:
            pairs = [(first, second) for first, second, *_ in self.dev.texts]
            return {"spearman": spearman(self.dev.gold, compute_cosines(ready, pairs).tolist())}
        triplets = [(anchor, positive, negative) for anchor, positive, negative in self.dev.texts]
        return {"triplet_accuracy": float(triplet_accuracy(ready, triplets)["accuracy"])}

    def _finish(self, summary: dict[str, Any], initial_scores: dict[str, float]) -> TrainedEmbeddings:
        """Save the model with sentence-transformers files, the scores, and last the cost."""
        final_scores = self._evaluate()
        scores = {"before": initial_scores, "after": final_scores, "steps": summary["steps"], "loss": summary["loss"]}
        if not self.ranks.is_first:
            return TrainedEmbeddings(self.run_dir, scores)
        body = self.encoder.model.eval()
        body.assets.files = {
            **body.assets.files,
            **_add_max_length(self.encoder.config.length, self.tokenizer.build_files()),
        }
        body.assets.modules = sentence_modules.write_modules(self.encoder)
        checkpoint.save(body, self.run_dir, overwrite=True)
        io.write_json(self.run_dir / SCORES_FILE, scores)
        about = {name: value for name, value in summary.items() if name != "cost"}
        io.write_json(self.run_dir / COST_FILE, {**summary["cost"], "run": about})
        return TrainedEmbeddings(self.run_dir, scores)


def _read_dev(dev: str | os.PathLike[str], data: str | os.PathLike[str] | None) -> PairDataset:
    """Read the dev set: scored pairs or triplets."""
    name = os.fspath(dev)
    dataset = read_dataset(task=name, data=data, split="dev") if name in TASKS else read_dataset(train=name)
    if not dataset.is_scored and dataset.columns != 3:
        raise UsageError(f"'{name}': dev must hold scored pairs or triplets")
    return dataset


def _add_max_length(length: int | None, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the tokenizer config with the maximum length, where sentence-transformers expects it."""
    name = "tokenizer_config.json"
    if length is None:
        return {}
    return {
        name: json.dumps({**json.loads(files[name]), "model_max_length": length}, indent=2, allow_nan=False).encode()
        + b"\n"
    }


def hash_specs(*specs: object) -> str:
    """Return a hash of the trees forms of specs."""
    trees = [config.to_dict(spec) for spec in specs]
    return hashlib.sha256(json.dumps(trees, sort_keys=True, allow_nan=False).encode()).hexdigest()
