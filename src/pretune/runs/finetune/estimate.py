"""What a fine-tuning run will read and take, before anything is trained or written."""

import time
from typing import Any

import torch

from pretune.adaptation.finetune_flops import Spending
from pretune.core import config
from pretune.models.cost import DEVICES
from pretune.runs.estimate import HERE, on_device, this_machine
from pretune.runs.finetune.adapted_model import begin
from pretune.runs.finetune.build_config import WHOLE, explain_rate
from pretune.runs.finetune.config import Tuning
from pretune.runs.finetune.default_steps import lasting
from pretune.runs.finetune.sweep_plan import Plan
from pretune.runs.finetune.task_data import Opened, balance, check_sizes, open_task, owned
from pretune.runs.finetune.task_encoders import Reader, counted
from pretune.tasks.example import Example
from pretune.tasks.splits import subset
from pretune.tasks.task import type_of
from pretune.training.batch_stats import Tally
from pretune.training.distributed import Ranks
from pretune.training.flops import flops_of

SAMPLE = 20_000
"""Examples that lengths are counted on."""
TRIED = 20
"""Batches that are made to know what a step reads."""


def forecast(tuning: Tuning, plan: Plan, device: str = "cpu") -> dict[str, Any]:
    """Labels, lengths, what is cut off, and the cost on this machine's device and on each that we know, of all trials;
    evaluation left out."""
    opened = open_task(tuning.task)
    check_sizes(opened, tuning.task, plan.labels)
    train = opened.limited(plan.most, tuning.task.split)
    begun = begin(tuning, opened.task, Ranks(torch.device("cpu")), epoch=1.0)
    reader = Reader.of(tuning, opened, begun.model, train)
    some = subset(train, SAMPLE, tuning.task.split) if len(train) > SAMPLE else train
    started = time.perf_counter()
    items = reader.encode(some)
    counts, stream = counted(items), reader.stream(items, tuning)
    epoch = -(-sum(map(len, items)) * len(train) // len(some) // tuning.train.batch)
    few = config.kind(tuning.method) not in WHOLE
    steps = [
        lasting(tuning.train, max(-(-epoch * count // len(train)), 1), few=few) for count in _counts(plan, len(train))
    ]
    seen = [Tally.of([stream.batch(step)]) for step in range(min(TRIED, len(stream.steps(0))))]
    whole = flops_of(begun.model.model.spec)
    each = sum(whole(one) if begun.unfreezing else Spending(begun.model)(one) for one in seen) / len(seen)
    read = sum(one.read for one in seen) / len(seen)
    total = sum(steps) * len(plan.seeds) + steps[0] * (len(plan.rates) - 1)
    trained = sum(parameter.numel() for parameter in begun.trained.values())
    return {
        "notes": [*opened.parts.notes, *reader.unknown(train)],
        "rate": explain_rate(tuning) if len(plan.rates) == 1 else None,
        "task": opened.task.name,
        "type": None if opened.members else type_of(opened.task.kind),
        "kind": "together" if opened.members else opened.task.kind,
        "metrics": list(opened.task.metrics),
        "headline": opened.headline,
        "examples": {"train": len(train), "dev": len(opened.parts.dev), "test": len(opened.parts.test)},
        "pool": dict(opened.parts.pool),
        "used": len(train),
        "balance": _balances(opened, train),
        "counts": config.to_dict(counts),
        "counted": len(some),
        "cut": counts.share,
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
            name: on_device(one, each / max(read, 1), total * each, None)
            for name, one in {HERE: this_machine(device), **DEVICES}.items()
        },
    }


def _balances(opened: Opened, train: list[Example]) -> dict[str, dict[str, Any]]:
    """How often each label occurs, by task."""
    if not opened.members:
        return {opened.task.name: balance(opened.task, train)}
    each = zip(opened.members, owned(opened, train), strict=True)
    return {member.task.name: balance(member.task, [train[at] for at in mine]) for member, mine in each}


def _counts(plan: Plan, most: int) -> list[int]:
    """Labels of the trials, the largest number first."""
    return sorted((most if count is None else count for count in plan.labels), reverse=True)
