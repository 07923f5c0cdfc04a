"""Cost estimate of a fine-tuning run, from its settings and encoded examples."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pretune.adaptation.adapted import FlopsCounter
from pretune.adaptation.distillation import TaskTeacher
from pretune.adaptation.quantized import count_parameters
from pretune.core import config
from pretune.runs.estimate import estimate_costs
from pretune.runs.finetune.adapted_model import (
    AdaptedModel,
    TaskEncoders,
    build_adapted_model,
    load_task_teacher,
    sum_counts,
)
from pretune.runs.finetune.config import FinetuneConfig, SweepPlan
from pretune.runs.finetune.defaults import explain_rate
from pretune.runs.finetune.features import FeatureFlops, fits
from pretune.runs.finetune.language_model import estimate_language_model
from pretune.runs.finetune.task_data import TaskData, check_sizes, open_task
from pretune.tasks.encoding import Items
from pretune.tasks.example import Example
from pretune.tasks.stream import MultiTaskStream, TaskStream
from pretune.tasks.task import sample_subset
from pretune.tasks.types import get_type
from pretune.training.batch_transfer import BatchStats
from pretune.training.cost import build_flops_counter
from pretune.training.distributed import Ranks

SAMPLE_EXAMPLES = 20_000
"""Number of examples on which lengths are measured."""
SAMPLE_BATCHES = 20
"""Number of batches on which tokens per step are measured."""


def estimate_finetune(tuning: FinetuneConfig, plan: SweepPlan, device: str = "cpu") -> dict[str, Any]:
    """Return labels, lengths, truncation, and the cost of all trials on this machine and known devices, without
    evaluation.
    """
    task_data = open_task(tuning.task)
    check_sizes(task_data, tuning.task, plan.train_examples)
    train = task_data.select_train(plan.max_train_examples, tuning.task.split_seed)
    ranks, teacher = Ranks(torch.device("cpu")), load_task_teacher(tuning, torch.device("cpu"))
    adapted_model = build_adapted_model(tuning, task_data.task, ranks, teacher=teacher)
    reader = TaskEncoders.from_model(tuning, task_data, adapted_model.model, train)
    if teacher is not None and adapted_model.distillation is not None:
        reader.check_teacher(adapted_model.model, adapted_model.distillation, teacher)
    subset = sample_subset(train, SAMPLE_EXAMPLES, tuning.task.split_seed) if len(train) > SAMPLE_EXAMPLES else train
    start = time.perf_counter()
    items = reader.encode(subset)
    counts, stream = sum_counts(items), _build_stream(tuning, reader, items)
    epoch = -(-sum(map(len, items)) * len(train) // len(subset) // tuning.train.batch)
    counts_by_trial = _sort_label_counts(plan, len(train))
    steps = [tuning.count_steps(max(-(-epoch * count // len(train)), 1)) for count in counts_by_trial]
    batch_stats = [
        BatchStats.from_batches([stream.batch(step)]) for step in range(min(SAMPLE_BATCHES, len(stream.steps(0))))
    ]
    feature_flops = None
    if adapted_model.can_cache(tuning, task_data) and fits(adapted_model.model, items[0], len(train) / len(subset)):
        feature_flops = FeatureFlops(adapted_model.model, items[0], counts_body=True)
    step_flops = _count_step_flops(adapted_model, batch_stats, feature_flops, teacher)
    read = sum(stats.total_tokens for stats in batch_stats) / len(batch_stats)
    total = sum(steps) * len(plan.seeds) + steps[0] * (len(plan.rates) - 1)
    language_model = estimate_language_model(tuning, task_data)
    flops = total * step_flops
    if feature_flops is not None:  # of the body, once for each training set
        flops += feature_flops.body * sum(counts_by_trial) / len(subset)
    per_token = flops / max(total * read, 1)
    if language_model is not None:
        flops += language_model["flops"]
        per_token = flops / (total * read + language_model["tokens"])
    trainable_count = sum(parameter.numel() for parameter in adapted_model.trainable_parameters.values())
    return {
        "notes": [*task_data.parts.notes, *reader.find_notes(train)],
        "rate": explain_rate(tuning) if len(plan.rates) == 1 else None,
        **_describe_task(task_data, train),
        "counts": config.to_dict(counts),
        "counted": len(subset),
        "cut": counts.truncated_share,
        "max_length": sorted({encoder.rules.max_length for encoder in reader.encoders}),
        "length": counts.tokens / max(counts.sequences, 1),
        "parameters": count_parameters(adapted_model.model),
        "trained": trainable_count,
        "trials": len(steps) * len(plan.seeds) + len(plan.rates) - 1,
        "steps": total,
        "tokens": round(total * read),
        "language_model": language_model,
        "flops": flops,  # of language model and trials
        "encoding_seconds": round((time.perf_counter() - start) * len(train) / len(subset), 1),
        "devices": estimate_costs(device, per_token, flops),
    }


def _build_stream(
    tuning: FinetuneConfig, reader: TaskEncoders, items: tuple[Items, ...]
) -> TaskStream | MultiTaskStream:
    """Return the batches; sampled answers are as long as they may be."""
    grpo = tuning.tune.grpo
    if grpo is None:
        return reader.build_stream(items, tuning)
    from pretune.tasks.rollouts import imitate_answers  # NOTE: rarely needed

    answers = imitate_answers(items[0], grpo.samples, reader.encoders[0].rules.max_new_tokens + 1)
    return TaskStream(answers, batch=tuning.train.batch * grpo.samples, seed=tuning.train.seed)


def _describe_task(task_data: TaskData, train: list[Example]) -> dict[str, Any]:
    return {
        "task": task_data.task.name,
        "type": None if task_data.members else task_data.task.kind,
        "kind": "together" if task_data.members else task_data.task.kind,
        "metrics": list(task_data.task.metrics),
        "headline": task_data.headline_split,
        "examples": {"train": len(train), "dev": len(task_data.parts.dev), "test": len(task_data.parts.test)},
        "pool": dict(task_data.parts.split_sizes),
        "used": len(train),
        "balance": _count_labels(task_data, train),
    }


def _count_step_flops(
    adapted_model: AdaptedModel,
    batch_stats: list[BatchStats],
    feature_flops: FeatureFlops | None,
    teacher: TaskTeacher | None,
) -> float:
    """Return the mean FLOPs of a step; of cached features, those of the head alone."""
    if adapted_model.unfreezing:
        count: Callable[[BatchStats], float] = build_flops_counter(adapted_model.model.model.spec)
    else:
        counter = FlopsCounter(adapted_model.model, extra_share=adapted_model.extra_share)
        count = counter if feature_flops is None else feature_flops.count_head
    flops = sum(map(count, batch_stats)) / len(batch_stats)
    if teacher is not None:  # in every step, as without a cache
        count_teacher = build_flops_counter(teacher.model.model.spec)
        flops += sum(map(count_teacher, batch_stats)) / len(batch_stats) / 3
    return flops


def _count_labels(task_data: TaskData, train: list[Example]) -> Mapping[str, Mapping[str, float]]:
    """Count the labels of each task."""
    return {
        member.task.name: get_type(member.task).scoring.count_labels(member.task, [train[place] for place in mine])
        for member, mine in task_data.index_examples(train)
    }


def _sort_label_counts(plan: SweepPlan, train_size: int) -> list[int]:
    """Return the training set sizes of the trials, largest first."""
    return sorted((train_size if count is None else count for count in plan.train_examples), reverse=True)
