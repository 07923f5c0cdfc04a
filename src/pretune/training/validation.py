"""Evaluation during training: the validation loss, warnings, selection of the best weights, and early stopping.

The validation loss uses the same batches with the same corruption at every evaluation and in every run.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pretune.core.seed import mix
from pretune.core.types import Loss
from pretune.nn.lstm import LSTMLayer
from pretune.training.batch_transfer import BatchSource
from pretune.training.checkpoints import Checkpoint
from pretune.training.config import Optim
from pretune.training.distributed import Ranks, fill, reshard, unshard
from pretune.training.loop import DROPOUT, Hook, Loop
from pretune.training.optim import use_averages
from pretune.training.optim.sgd import ASGD
from pretune.training.progress import OverheadEstimator
from pretune.training.step import (
    ModelWithLoss,
    StepMetrics,
    StreamState,
    TrainingObjective,
    TrainState,
    reduce_over_ranks,
)

LOCAL_RANK = Ranks(torch.device("cpu"))
"""A single-rank group, for sums that stay on a rank."""


def compute_validation_loss(
    module: nn.Module,
    batches: BatchSource,
    count: int,
    ranks: Ranks,
    *,
    parts: int = 1,
    precision: torch.dtype | None = None,
    should_abort: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Compute the mean loss over `count` batches, each split into `parts` per rank.

    Returns the loss, each term if there are several, the perplexity of the first term (unless the objective says that
    it has none), accuracies, and the shares of values that an LSTM would have clipped; or None if `should_abort`,
    called before every batch on all ranks, returns True.
    """
    training = module.training
    module.eval()
    take_clip_counts(module)  # of other passes
    total: Loss | None = None
    try:
        # Not compiled: compiling graphs for evaluation takes longer than it saves.
        state = module.stream_state if isinstance(module, ModelWithLoss) else StreamState()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), state.put_aside():
            for number in range(count):
                if should_abort():
                    return None
                for part in range(parts):
                    ranks.seed(mix(0, DROPOUT, number, ranks.rank * parts + part) >> 1)
                    batch = batches.batch(number, part=ranks.rank * parts + part, parts=ranks.world * parts)
                    with torch.autocast(ranks.device.type, precision, enabled=precision is not None):
                        loss = reduce_over_ranks(module(batch.to(ranks.device)), LOCAL_RANK)
                    total = loss if total is None else total + loss
                state.finish_step()
    finally:
        module.train(training)
        reshard(module)
    assert total is not None
    terms = reduce_over_ranks(total, ranks).get_terms()
    means = {name: float(term.sum / term.count.clamp(min=1)) for name, term in terms.items()}
    metrics = {"loss": sum(terms[name].weight * mean for name, mean in means.items())}
    if len(means) > 1:
        metrics |= means
    if getattr(getattr(module, "objective", None), "has_perplexity", True):
        metrics["perplexity"] = math.exp(min(next(iter(means.values())), 700.0))
    for name, term in terms.items():
        if term.correct is not None:
            key = f"{name}_accuracy" if len(terms) > 1 else "accuracy"
            metrics[key] = float(term.correct / term.count.clamp(min=1))
    if (clip_counts := take_clip_counts(module)) is not None:
        outputs, all_outputs, cells, all_cells = ranks.sum(clip_counts).tolist()
        metrics |= {"clipped_outputs": outputs / max(all_outputs, 1), "clipped_cells": cells / max(all_cells, 1)}
    return metrics


def take_clip_counts(model: nn.Module) -> Tensor | None:
    """Return the `clip_counts` of all layers since the last call, summed; None if no layer that clips has run.

    Counted in evaluation mode only, and only where the layers run on torch's LSTM, which does not clip.
    """
    layers = [module for module in model.modules() if isinstance(module, LSTMLayer)]
    counts = [layer.clip_counts for layer in layers if layer.clip_counts is not None]
    for layer in layers:
        layer.clip_counts = None
    return torch.stack(counts).sum(0) if counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Evaluation of a model during training, and what follows from it."""

    evaluate: Callable[[Loop], dict[str, float] | None]  # returns metrics; None if interrupted by a signal
    every: int  # steps; 0: only before the first step and after the last
    compute_loss: Callable[[Mapping[str, float]], float]  # of the metrics; the lowest is the best
    at_start: bool = True  # evaluate before the first step
    early_stopping: "EarlyStopping | None" = None
    learning_check: "LearningCheck | None" = None
    overhead: OverheadEstimator | None = None  # of time besides training steps


class ValidationHook:
    """Evaluates at fixed steps and reports the result; `on_abort` is called if the evaluation was interrupted.

    If the optimizer averages weights, the evaluation and `on_result` see the averages.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        on_result: Callable[[Loop, dict[str, float]], None],
        on_abort: Callable[[Loop], None],
    ) -> None:
        self.evaluation, self.on_result, self.on_abort = evaluation, on_result, on_abort
        self.seconds = 0.0  # of the last evaluation

    def __call__(self, loop: Loop, metrics: Sequence[StepMetrics]) -> None:
        step, every = loop.state.step, self.evaluation.every
        if self.evaluation.at_start if step == 0 else every and step % every == 0:
            self.run(loop)

    def run(self, loop: Loop) -> None:
        """Evaluate, unless done at this step."""
        loop.flush()  # NOTE: runs the hooks, including this one, which may evaluate
        state, start_time = loop.state, time.monotonic()
        if state.last_eval_step == state.step:
            return
        with use_averages(loop.optimizer):
            is_stopping = loop.ranks.max(loop.stop_signal) > 0  # all ranks agree
            results = None if is_stopping else self.evaluation.evaluate(loop)
            self.seconds = time.monotonic() - start_time
            state.evaluating += self.seconds
            if results is not None:
                state.last_eval_step = state.step
                state.eval_metrics = {name: value for name, value in results.items() if math.isfinite(value)}
                self.on_result(loop, results)
        if results is None:
            self.on_abort(loop)

    def estimate_seconds(self, state: TrainState) -> float:
        """Estimate the seconds of an evaluation, in a resumed process by those of earlier processes."""
        every = self.evaluation.every
        return self.seconds or state.evaluating / (1 + (state.step // every if every else 0))


class StatefulHook(Hook, Protocol):
    """Hook with a state of three numbers that checkpoints store."""

    @property
    def state(self) -> tuple[int, int, int]:
        """State to store."""

    def restore(self, state: tuple[int, int, int]) -> None:
        """Restore the state of a resumed run."""


@dataclass(slots=True, kw_only=True)
class EarlyStopping:
    """Scores so far and the best weights. Everything follows from `scores`, which checkpoints store with the weights.

    The group `course` of a checkpoint holds the scores and the state of `hooks`, the group `best` the best weights.
    """

    tensors: Mapping[str, Tensor]  # all that are ever trained: parameters, and running statistics of norms
    patience: int | None  # evaluations without improvement; None: train to the end, and restore the best weights
    hooks: Sequence[StatefulHook] = ()
    scores: list[tuple[int, float]] = field(default_factory=list)  # (step, score), higher is better
    best_weights: dict[str, Tensor] | None = None

    @property
    def best_step(self) -> int | None:
        """First step with the highest score."""
        return max(self.scores, key=lambda entry: entry[1])[0] if self.scores else None

    @property
    def evaluations_since_best(self) -> int:
        """Number of evaluations since the best one."""
        best = self.best_step
        return 0 if best is None else sum(step > best for step, _ in self.scores)

    def should_stop(self) -> bool:
        """Return whether patience is exhausted."""
        return self.patience is not None and self.evaluations_since_best >= self.patience

    def record(self, step: int, score: float) -> None:
        """Record an evaluation, and copy the weights if they are the best."""
        if score > max((old for _, old in self.scores), default=-math.inf):
            self.best_weights = {name: unshard(tensor).to("cpu", copy=True) for name, tensor in self.tensors.items()}
        self.scores.append((step, score))

    def restore_best_weights(self) -> None:
        """Restore the best weights."""
        for name, tensor in (self.best_weights or {}).items():
            fill(self.tensors[name], tensor)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return the checkpoint groups."""
        history = {"scores": torch.tensor(self.scores, dtype=torch.float64).reshape(-1, 2)}
        for number, hook in enumerate(self.hooks):
            history[f"unfrozen.{number}"] = torch.tensor(hook.state)
        return {"course": history, **({} if self.best_weights is None else {"best": self.best_weights})}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a resumed run."""
        history = checkpoint.load_tensors("course")
        self.scores = [(int(step), score) for step, score in history["scores"].tolist()]
        self.best_weights = checkpoint.load_tensors("best") if "best" in checkpoint.groups else None
        for number, hook in enumerate(self.hooks):
            num_unfrozen, num_stale, best_score = history[f"unfrozen.{number}"].tolist()
            hook.restore((num_unfrozen, num_stale, best_score))


MIN_CHECKED_STEPS = 20
"""No warning about the validation loss before this step: a few steps train no model."""
RISING_SHARE = 1 / 3
"""Share of a run over which a rising validation loss is a warning."""
RISING_MARGIN = 0.005
"""Relative increase over the best validation loss that counts as rising, not as a plateau."""
PLATEAU_SHARE = 0.85
"""Share of the unigram loss above which a model has hardly begun to use context: masked models stay there for long,
at 0.86 to 0.92, and have 0.83 or less soon after."""
FEW_STEPS = 300
"""A run of fewer steps that learns nothing was too short, unless its loss rises."""


@dataclass(slots=True, kw_only=True)
class LearningCheck:
    """Warnings about a run that does not learn.

    Three signs: after the warmup and a third of the run, the loss at the tokens is above that of a unigram model of the
    training data, which a model that ignores the context reaches; at the end of the run it is hardly below it; or the
    validation loss has risen for a third of the run. Everything follows from `history`, which a resumed run reads from
    its metrics.
    """

    compute_unigram_loss: Callable[[], float | None]  # called once, after the warmup; None: no such loss
    warmup: float = 0.0  # fraction of the run, or steps
    hint: str = "lower train.lr"
    plateau_hint: str = "train longer"
    history: dict[int, dict[str, float]] = field(default_factory=dict)  # metrics of evaluations by step
    _unigram_losses: list[float | None] = field(default_factory=list)
    _reported: set[str] = field(default_factory=set)

    def record(self, step: int, metrics: Mapping[str, float], total: int | None) -> list[str]:
        """Record an evaluation, and return new warnings; `total` is the length of the run, None if it is unknown."""
        self.history[step] = dict(metrics)
        if total is None:
            return []
        warnings = self.find_warnings(step, total)
        new = [text for kind, text in warnings.items() if kind not in self._reported]
        self._reported |= warnings.keys()
        return new

    def restore(self, lines: Sequence[Mapping[str, Any]], total: int | None) -> None:
        """Record the evaluations in the metrics of a resumed run, whose warnings were given."""
        for line in lines:
            if isinstance(metrics := line.get("held_out"), Mapping):
                self.record(line["step"], {name: math.nan if v is None else v for name, v in metrics.items()}, total)

    def find_warnings(self, step: int, total: int, *, trained_steps: int | None = None) -> dict[str, str]:
        """Return the warnings about the evaluation at a step, by their kind: "unigram", "plateau" or "rising".

        `trained_steps` are the steps of a run at its end; the evaluation may be an earlier one.
        """
        warmup = self.warmup * total if self.warmup < 1 else self.warmup
        metrics, is_final = self.history.get(step), trained_steps is not None
        if metrics is None or (trained_steps or step) < max(warmup, RISING_SHARE * total, MIN_CHECKED_STEPS):
            return {}
        warnings: dict[str, str] = {}
        token_loss, unigram_loss = _compute_token_loss(metrics), self.find_unigram_loss(step)
        if token_loss is not None and unigram_loss is not None:
            loss = f"validation loss {token_loss:.4g} at step {step:,}"
            baseline = f"{unigram_loss:.4g}, that of a unigram model of the training data"
            if not token_loss < unigram_loss:
                warnings["unigram"] = (
                    f"{loss} is not below {baseline}: the model has learned nothing from context; "
                    f"{self._choose_hint(step, total)}"
                )
            elif is_final and token_loss > PLATEAU_SHARE * unigram_loss:
                warnings["plateau"] = (
                    f"{loss} is hardly below {baseline}: the model has learned little from context; {self.plateau_hint}"
                )
        finite_losses = {
            key: values["loss"] for key, values in self.history.items() if key <= step and math.isfinite(values["loss"])
        }
        best_step = min(finite_losses, key=lambda key: finite_losses[key], default=step)
        is_old = step - best_step >= RISING_SHARE * total
        if is_old and not metrics["loss"] <= finite_losses[best_step] * (1 + RISING_MARGIN):
            warnings["rising"] = (
                f"validation loss has risen for a third of the run, from {finite_losses[best_step]:.4g} at step "
                f"{best_step:,} to {metrics['loss']:.4g} at step {step:,}: use --stop-early, fewer epochs or more "
                f"dropout; if the training loss rises too, {self.hint}"
            )
        return warnings

    def _choose_hint(self, step: int, total: int) -> str:
        """Return the remedy for a model that learned nothing: more steps if the run is short or the loss falls."""
        loss = self.history[step]["loss"]
        losses = {key: values["loss"] for key, values in self.history.items() if key < step}
        is_rising = not loss <= min(losses.values(), default=math.inf) * (1 + RISING_MARGIN)
        earlier_loss = losses.get(max((key for key in losses if key <= (1 - RISING_SHARE) * step), default=-1), loss)
        if is_rising or (total >= FEW_STEPS and not loss < earlier_loss * (1 - RISING_MARGIN)):
            return self.hint
        return "train longer" if total >= FEW_STEPS else f"{total:,} steps are few: train longer"

    def find_unigram_loss(self, step: int) -> float | None:
        """Return the loss of a unigram model of the training data, the baseline of the evaluation at a step.

        None if there is no evaluation, or none of an objective that predicts tokens.
        """
        if _compute_token_loss(self.history.get(step, {})) is None:
            return None
        if not self._unigram_losses:
            self._unigram_losses.append(self.compute_unigram_loss())
        return self._unigram_losses[0]


def _compute_token_loss(metrics: Mapping[str, float]) -> float | None:
    """Return the mean loss of the predicted tokens, in nats; None for an objective without perplexity."""
    perplexity = metrics.get("perplexity")
    return None if perplexity is None else math.log(perplexity) if perplexity > 0 else math.inf


def warn_of_few_evaluations(optimizer: Optim, evaluations: int, warn: Callable[[str], None]) -> None:
    """Warn if there are too few evaluations to trigger the averaging of ASGD."""
    if isinstance(optimizer, ASGD) and not optimizer.can_trigger(evaluations):
        warn(
            f"asgd will not average weights: {evaluations} evaluations are too few for its trigger with "
            f"train.optimizer.nonmonotone_interval {optimizer.nonmonotone_interval}; lower train.eval_every"
        )


def build_evaluator(
    batches: BatchSource, count: int, objective: TrainingObjective, parts: int | None = None
) -> Callable[[Loop], dict[str, float] | None]:
    """Return the function that evaluates the current model with the objective's evaluation form.

    A rank divides each batch into `parts`; None: as in training.
    """

    def evaluate(loop: Loop) -> dict[str, float] | None:
        train_objective, loop.module.objective = loop.module.objective, objective
        try:
            return compute_validation_loss(
                loop.module,
                batches,
                count,
                loop.ranks,
                parts=parts or loop.state.micro,
                precision=loop.precision,
                should_abort=lambda: loop.ranks.max(loop.stop_signal) > 0,
            )
        finally:
            loop.module.objective = train_objective

    return evaluate
