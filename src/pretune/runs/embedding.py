"""Contrastive training of a model; the result is a sentence-transformers directory.

    run = train_embeddings("runs/small", task="snli", out="runs/vectors")
    pt.embed(run, ["a sentence"]), run.scores

With a dev task or file, the model is evaluated before and after: scored pairs by Spearman's correlation, triplets by
accuracy.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pretune.adaptation.contrastive import ContrastiveLoss, ContrastiveModel, ContrastiveObjective
from pretune.core import config, io, log
from pretune.core.api import PathResult, require_out, take_options
from pretune.core.config import Ge, Positive, spec
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.core.log import format_count
from pretune.core.run_dir import RunDir
from pretune.evaluation.embedding import compute_cosines, evaluate_triplets
from pretune.inference import sentence_modules
from pretune.inference.embed import Embedder
from pretune.inference.sentence_modules import build_encoder
from pretune.metrics.numeric import spearman
from pretune.models.hf import checkpoint
from pretune.models.hf.checkpoint import check_weights
from pretune.runs.task_options import EmbeddingOptions
from pretune.runs.verify import check_model
from pretune.tasks import TASKS
from pretune.tasks.types.embedding import PairDataset, build_text_stream, read_dataset, select_loss
from pretune.text.tokenizer import Tokenizer
from pretune.training.clock import TrainingClock
from pretune.training.config import LinearSchedule, TrainConfig
from pretune.training.cost import build_flops_counter
from pretune.training.distributed import Ranks, init_distributed, resolve_device, run_on_rank_zero
from pretune.training.loop import GracefulShutdown
from pretune.training.optim import AdamW
from pretune.training.records import EmbeddingScoresFile, ResumeFile, RunSummaryRecord
from pretune.training.trainer import RunOutput, RunProcess, TrainedModel, Trainer, TrainingBatches, TrainingPhase


@spec(has_kind=False)
class EmbeddingConfig:
    """Settings of a run; the values are those of S-BERT, except the batch, since in-batch negatives need large ones.

    `loss`: triplet, in_batch, classes or cosine; None: the default for the examples. `pooling`, `normalise` and
    `length` are those of `embed`; None: as the model's directory configures.
    """

    loss: str | None = None
    pooling: str | None = None
    normalise: bool | None = None
    length: int | None = 128
    batch: Annotated[int, Ge(2)] = 64
    epochs: Positive[float] = 1.0
    steps: Positive[int] | None = None
    lr: Positive[float] = 2e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def build_train_config(self) -> TrainConfig:
        """Return the settings of the trainer."""
        return TrainConfig(
            lr=self.lr,
            optimizer=AdamW(lr=self.lr, weight_decay=self.weight_decay),
            schedule=LinearSchedule(warmup=self.warmup),
            clip=self.clip,
            seed=self.seed,
            compile=False,
        )


@dataclass(frozen=True, slots=True)
class TrainedEmbeddings(PathResult):
    """Path and scores of the trained model; accepted wherever its path is."""

    path: Path
    scores: EmbeddingScoresFile

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the scores as plain data."""
        return {"path": str(self.path), **self.scores}


@take_options(EmbeddingOptions, required_names=["out"])
def train_embeddings(options: EmbeddingOptions) -> TrainedEmbeddings:
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
        strict: Refuse tables with a blank cell; by default their rows are skipped and counted.
        resume: Continue an interrupted run with the same settings.
        device: "cpu" or "cuda"; None: a GPU if available.

    Raises:
        UsageError: invalid arguments.
        DataError: examples that no loss fits, or a damaged table.
    """
    return run_embedding(options)


def run_embedding(options: EmbeddingOptions) -> TrainedEmbeddings:
    """Train an embedding model and save it."""
    settings = {**options.list_settings(), **(options.overrides or {})}
    run_dir, resume = RunDir(Path(require_out(options.out))), options.resume
    changes = {name: value for name, value in settings.items() if value is not None}
    train_config = config.replace(EmbeddingConfig(), changes)  # strings are converted to the field's type
    stop = GracefulShutdown("resume with the same command and --resume", has_checkpoint=resume)
    with stop.handle_signals():
        if resume and run_dir.is_finished:
            check_model(run_dir)
            log.info(f"{run_dir.path}: finished; nothing to resume")
            scores = config.read_record(EmbeddingScoresFile, run_dir.scores, CheckpointError)
            return TrainedEmbeddings(run_dir.path, scores)
        resume = resume and run_dir.can_resume(can_start=True)
        if not resume:
            run_dir.check_free()
        if options.model is None:
            raise UsageError("missing MODEL: the model directory to train")
        dataset = read_dataset(
            task=options.task, train=options.train, data=options.data, loss=train_config.loss, strict=options.strict
        )
        dev_dataset = None if options.dev is None else _read_dev(options.dev, options.data, strict=options.strict)
        with init_distributed(resolve_device(options.device)) as ranks:
            if train_config.batch < ranks.world:
                raise UsageError(
                    f"batch {train_config.batch} is smaller than the number of ranks, {ranks.world}; increase it"
                )
            if resume:
                run_dir.read_settings()
                resume = ranks.broadcast_object(run_on_rank_zero(ranks, run_dir.has_progress))
            return EmbeddingRun(Path(options.model), train_config, dataset, dev_dataset, run_dir, ranks, stop).run(
                resume=resume
            )


class EmbeddingRun:
    """Contrastive training run."""

    def __init__(
        self,
        model: Path,
        settings: EmbeddingConfig,
        dataset: PairDataset,
        dev: PairDataset | None,
        run_dir: RunDir,
        ranks: Ranks,
        shutdown: GracefulShutdown,
    ) -> None:
        self.settings, self.dataset, self.dev = settings, dataset, dev
        self.run_dir, self.ranks, self.shutdown = run_dir, ranks, shutdown
        body = checkpoint.load(model, device=ranks.device)
        check_weights(body, model)
        longest = body.spec.max_length
        length = min((limit for limit in (settings.length, longest) if limit is not None), default=None)
        self.encoder = build_encoder(body, pooling=settings.pooling, normalise=settings.normalise, length=length)
        self.loss: ContrastiveLoss = select_loss(dataset, settings.loss)
        self.model = ContrastiveModel(self.encoder, self.loss, columns=dataset.columns, seed=settings.seed)
        ready = Embedder(self.encoder)
        self.tokenizer = ready.tokenizer
        self.stream, encoded_texts = build_text_stream(
            dataset,
            ready.tokenizer,
            length=ready.length,
            prompt=self.encoder.config.prompt,
            batch_size=settings.batch,
            seed=settings.seed,
            ranks=ranks.world,
        )
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
        """Train from the start, or from the newest valid checkpoint, and evaluate before and after."""
        train_config = self.settings.build_train_config()
        log.info(
            f"{format_count(len(self.dataset.texts), 'examples')} of {self.dataset.columns} texts, "
            f"{config.get_kind(self.loss)}, {format_count(self.steps, 'steps')}"
        )
        self.ranks.broadcast_tensors(self.model.parameters())
        initial_scores = self._read_initial_scores() if resume else self._evaluate()
        tree = {**self._describe_settings(), "initial_scores": initial_scores}
        spec = self.encoder.model.spec
        with Trainer(
            trained=TrainedModel(
                model=self.model,
                objective=ContrastiveObjective(self.dataset.columns, self.ranks),
                spec=spec,
                count_flops=build_flops_counter(spec),
            ),
            batches=TrainingBatches(phases=[TrainingPhase(batches=self.stream)]),
            clock=TrainingClock(schedule=train_config.schedule, steps=self.steps),
            config=train_config,
            output=RunOutput(
                run_dir=self.run_dir,
                fingerprints=self.fingerprints,
                settings=tree,
                write_settings=lambda: self.run_dir.write_settings(tree),
            ),
            process=RunProcess(self.ranks, self.shutdown),
        ) as trainer:
            trainer.fit(resume=resume)
            return self._finish(trainer.summarize(), initial_scores)

    def _describe_settings(self) -> dict[str, Any]:
        return {"embedding": config.to_dict(self.settings), "loss": config.to_dict(self.loss)}

    def _read_initial_scores(self) -> dict[str, float]:
        """Return the scores before training from the run.json of a resumed run, whose settings must be the same."""
        file = self.run_dir.settings
        tree = config.check_record(ResumeFile, self.run_dir.read_settings(), CheckpointError, str(file))
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
        return {"triplet_accuracy": evaluate_triplets(ready, triplets).scores["accuracy"]}

    def _finish(self, summary: RunSummaryRecord, initial_scores: dict[str, float]) -> TrainedEmbeddings:
        """Save the model with sentence-transformers files, the scores, and last the cost."""
        steps, loss = summary["steps"], summary["loss"]
        scores = EmbeddingScoresFile(before=initial_scores, after=self._evaluate(), steps=steps, loss=loss)
        if not self.ranks.is_first:
            return TrainedEmbeddings(self.run_dir.path, scores)
        body = self.encoder.model.eval()
        if self.encoder.config.length is not None:
            body.assets.files = body.assets.files | _add_max_length(self.encoder.config.length, self.tokenizer)
        body.assets.modules = sentence_modules.write_modules(self.encoder)
        checkpoint.save(body, self.run_dir.path, overwrite=True)
        io.write_json(self.run_dir.scores, scores)
        self.run_dir.write_cost(summary)
        return TrainedEmbeddings(self.run_dir.path, scores)


def _read_dev(dev: str | os.PathLike[str], data: str | os.PathLike[str] | None, *, strict: bool) -> PairDataset:
    """Read the dev set: scored pairs or triplets."""
    name = os.fspath(dev)
    is_task = name in TASKS
    dataset = read_dataset(task=name, data=data, split="dev") if is_task else read_dataset(train=name, strict=strict)
    if not dataset.is_scored and dataset.columns != 3:
        raise UsageError(f"'{name}': dev must hold scored pairs or triplets")
    return dataset


def _add_max_length(length: int, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the tokenizer config with the maximum length, where sentence-transformers expects it."""
    name = "tokenizer_config.json"
    tree = {**json.loads(tokenizer.build_files()[name]), "model_max_length": length}
    return {name: f"{json.dumps(tree, indent=2, allow_nan=False)}\n".encode()}


def hash_specs(*specs: object) -> str:
    """Return a hash of the trees forms of specs."""
    trees = [config.to_dict(spec) for spec in specs]
    return hashlib.sha256(json.dumps(trees, sort_keys=True, allow_nan=False).encode()).hexdigest()
