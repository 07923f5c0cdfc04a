"""Runs as they lie on a disk, without any training: what reports are made of."""

import json
from pathlib import Path
from typing import Any

COST: dict[str, Any] = {
    "device": "cpu", "devices": 1, "seconds": 75.0, "flops": 1.2e12, "peak_flops": None, "mfu": None, "kwh": 0.0004,
    "energy": [{"what": "processor", "how": "assumed: 5.6 W", "measured": False, "joules": 1440.0}],
    "energy_label": "estimated", "left_out": ["cooling"], "co2e_kg": 0.0002, "grid_g_per_kwh": 475.0,
    "dollars": 0.0001, "dollars_per_device_hour": 0.0, "dollars_per_kwh": 0.3, "price_label": "assumed",
}  # fmt: skip
TRAIN = {"lr": 1e-3, "seed": 7, "optimizer": {"kind": "adam_w"}, "schedule": {"kind": "linear"}}
LANGUAGES = {"en": 0.9897, "und": 0.01, "es": 0.0003}


def write(path: Path, value: Any) -> None:
    """JSON into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False))


def change(path: Path, **changes: Any) -> None:
    """Replace fields of a JSON file."""
    write(path, {**json.loads(path.read_text()), **changes})


def lines(path: Path, values: list[dict[str, Any]]) -> None:
    """A JSON object a line."""
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def pretrained(where: Path, *, finished: bool = True, samples: bool = True, card: bool = True) -> Path:
    """A run of pre-training of 100 steps."""
    data = where.parent / "data"
    stack = {"depth": 2, "blocks": [{"attention": {"heads": 4}}]}
    tree = {
        "model": {"family": "somefamily", "width": 64, "vocab": 500, "encoder": stack, "decoder": None},
        "objective": {"kind": "masked", "rate": 0.15},
        "data": {"path": str(data), "max_length": 128, "short": [0.9, 32]},
        "train": {**TRAIN, "batch_tokens": 1024, "start": None},
        "environment": {"device": "cpu", "precision": "fp32", "torch": "2.0", "threads": 1},
    }
    write(where / "run.json", tree)
    told: list[dict[str, Any]] = []
    for step in range(10, 101, 10):
        told.append({"step": step, "loss": 8 - step / 50, "rate": 1e-3, "tokens": 1024 * step})
        told.append({"step": step, "held_out": {"loss": 8.1 - step / 50, "accuracy": step / 400}})
    if samples:
        told.append({"step": 100, "sample": "the [MASK] sat → cat (not dog)"})
    lines(where / "metrics.jsonl", told)
    if card:
        split = {"tokens": 9000, "documents": 12, "bytes": 40000}
        source = {"name": "books", "licence": None, "train": {"documents": 12, "tokens": 9000}}
        made = {"command": "pretune prepare books --out data", "fingerprint": "f00d", "tokenizer": {"vocab": 500}}
        write(data / "card.json", {**made, "splits": {"train": split}, "sources": [source], "languages": LANGUAGES})
    if finished:
        run = {"parameters": 54321, "steps": 100, "tokens": 102400, "skipped": 0, "held_out": {"loss": 6.1}}
        write(where / "cost.json", {**COST, "run": run})
    return where


def tuned(where: Path, *, score: float = 0.9, baseline: float = 0.8, p: float = 0.01, **changes: Any) -> Path:
    """A run of fine-tuning with two seeds, one baseline and six predictions, two of them wrong."""
    gap = score - baseline
    against = {"difference": gap, "low": gap - 0.05, "high": gap + 0.05, "p": p, "rounds": 1000, "examples": 6}
    trial = {"lr": 1e-3, "seed": 0, "labels": 40, "course": [{"step": 5, "dev": 0.7}, {"step": 10, "dev": score}]}
    scores = {
        "task": "films", "kind": "classification", "metric": "accuracy", "notes": ["one split only"],
        "examples": {"train": 40, "dev": 6, "test": 6}, "counts": {"longest": 20, "cut": 1, "examples": 40},
        "result": {"split": "test", "examples": 6, "score": score, "std": 0.01, "low": score - 0.02,
                   "high": score + 0.02, "seeds": [0, 1], "each": [score - 0.01, score + 0.01]},
        "model": {"lr": 1e-3, "seed": 0, "labels": 40, "steps": 10, "best_step": 10, "trained": 500,
                  "parameters": 1000, "scores": {"test": {"accuracy": score}}},
        "baselines": [{"name": "svm", "about": "words", "score": baseline, "against": against}],
        "not_run": {"bilstm": "not asked for"}, "curve": [], "forgetting": None, "trials": [trial],
    }  # fmt: skip
    scores |= changes
    task = {"base": {"path": "runs/books"}, "method": {"kind": "lora"}, "train": {**TRAIN, "batch": 16}}
    write(where / "run.json", task)
    write(where / "scores.json", scores)
    lines(where / "metrics.jsonl", [{"step": 10, "loss": 0.5}, {"step": 20, "loss": 0.4}])
    lines(where / "predictions.jsonl", [said(number, right=number > 1) for number in range(6)])
    write(where / "cost.json", {**COST, "run": {"trials": 1}})
    return where


def said(number: int, *, right: bool, text: str = "a quiet joy") -> dict[str, Any]:
    """A line of predictions.jsonl."""
    shares = {"bad": 0.1 * (number + 1), "good": 1 - 0.1 * (number + 1)}
    label = max(shares, key=lambda name: shares[name])
    gold = label if right else {"bad": "good", "good": "bad"}[label]
    found = {"split": "test", "id": str(number), "label": label, "probabilities": shares}
    return {**found, "gold": gold, "input": f"{text} {number}"}


def results(where: Path, rows: list[dict[str, Any]] | None = None, **more: Any) -> Path:
    """A folder with results.json."""
    usual = [
        {"method": method, "labels": labels, "mean": mean, "seeds": 3, "std": 0.01}
        for method, low, high in (("svm", 0.7, 0.8), ("full", 0.72, 0.85))
        for labels, mean in ((200, low), (1000, high))
    ]
    write(where / "results.json", {"rows": usual if rows is None else rows, **more})
    return where
