"""What a fine-tuning run will read and take, before anything is trained or written."""

import time
from typing import Any

import torch

from pretune.adaptation.finetune_flops import FlopsCounter
from pretune.core import config
from pretune.models.cost import DEVICES
from pretune.runs.estimate import THIS_MACHINE, detect_device, estimate_cost
from pretune.runs.finetune.adapted_model import build_adapted_model
from pretune.runs.finetune.build_config import FULL_METHODS, explain_rate
from pretune.runs.finetune.config import FinetuneConfig
from pretune.runs.finetune.default_steps import count_steps
from pretune.runs.finetune.sweep_plan import SweepPlan
from pretune.runs.finetune.task_data import TaskData, check_sizes, count_labels, index_by_member, open_task
from pretune.runs.finetune.task_encoders import TaskEncoders, sum_counts
from pretune.tasks.example import Example
from pretune.tasks.splits import sample_subset
from pretune.tasks.task import get_task_type
from pretune.training.batch_stats import BatchStats
from pretune.training.distributed import Ranks
from pretune.training.flops import build_flops_counter

SAMPLE_EXAMPLES = 20_000
"""Examples that lengths are counted on."""
SAMPLE_BATCHES = 20
"""Batches that are made to know what a step reads."""


def estimate_finetune(tuning: FinetuneConfig, plan: SweepPlan, device: str = "cpu") -> dict[str, Any]:
    """Labels, lengths, what is cut off, and the cost on this machine's device and on each that we know, of all trials;
    evaluation left out."""
    opened = open_task(tuning.task)
    check_sizes(opened, tuning.task, plan.train_examples)
    train = opened.select_train(plan.max_train_examples, tuning.task.split_seed)
    begun = build_adapted_model(tuning, opened.task, Ranks(torch.device("cpu")), steps_per_epoch=1.0)
    reader = TaskEncoders.from_model(tuning, opened, begun.model, train)
    some = sample_subset(train, SAMPLE_EXAMPLES, tuning.task.split_seed) if len(train) > SAMPLE_EXAMPLES else train
    started = time.perf_counter()
    items = reader.encode(some)
    counts, stream = sum_counts(items), reader.build_stream(items, tuning)
    epoch = -(-sum(map(len, items)) * len(train) // len(some) // tuning.train.batch)
    few = config.get_kind(tuning.method) not in FULL_METHODS
    steps = [
        count_steps(tuning.train, max(-(-epoch * count // len(train)), 1), is_parameter_efficient=few)
        for count in _sort_label_counts(plan, len(train))
    ]
    seen = [BatchStats.from_batches([stream.batch(step)]) for step in range(min(SAMPLE_BATCHES, len(stream.steps(0))))]
    whole = build_flops_counter(begun.model.model.spec)
    each = sum(whole(one) if begun.unfreezing else FlopsCounter(begun.model)(one) for one in seen) / len(seen)
    read = sum(one.total_tokens for one in seen) / len(seen)
    total = sum(steps) * len(plan.seeds) + steps[0] * (len(plan.rates) - 1)
    trained = sum(parameter.numel() for parameter in begun.trainable_parameters.values())
    return {
        "notes": [*opened.parts.notes, *reader.find_unknown_tokens(train)],
        "rate": explain_rate(tuning) if len(plan.rates) == 1 else None,
        "task": opened.task.name,
        "type": None if opened.members else get_task_type(opened.task.kind),
        "kind": "together" if opened.members else opened.task.kind,
        "metrics": list(opened.task.metrics),
        "headline": opened.headline_split,
        "examples": {"train": len(train), "dev": len(opened.parts.dev), "test": len(opened.parts.test)},
        "pool": dict(opened.parts.split_sizes),
        "used": len(train),
        "balance": _count_labels(opened, train),
        "counts": config.to_dict(counts),
        "counted": len(some),
        "cut": counts.truncated_share,
        "max_length": sorted({encoder.rules.max_length for encoder in reader.encoders}),
        "length": counts.tokens / max(counts.sequences, 1),
        "parameters": sum(parameter.numel() for parameter in begun.model.parameters()),
        "trained": trained,
        "trials": len(steps) * len(plan.seeds) + len(plan.rates) - 1,
        "steps": total,
        "tokens": round(total * read),
        "flops": total * each,
        "encoding_seconds": round((time.perf_counter() - started) * len(train) / len(some), 1),
        "devices": {
            name: estimate_cost(one, each / max(read, 1), total * each, None)
            for name, one in {THIS_MACHINE: detect_device(device), **DEVICES}.items()
        },
    }


def _count_labels(task_data: TaskData, train: list[Example]) -> dict[str, dict[str, Any]]:
    """How often each label occurs, by task."""
    if not task_data.members:
        return {task_data.task.name: count_labels(task_data.task, train)}
    each = zip(task_data.members, index_by_member(task_data, train), strict=True)
    return {member.task.name: count_labels(member.task, [train[at] for at in mine]) for member, mine in each}


def _sort_label_counts(plan: SweepPlan, train_size: int) -> list[int]:
    """Labels of the trials, the largest number first."""
    return sorted((train_size if count is None else count for count in plan.train_examples), reverse=True)
