"""Training throughput of AWD-LSTM (ULMFiT) and ELMo, compared with plain torch on the same batches.

    python -m bench.speed.recurrent [--only elmo] [--precision bf16,tf32] [--device cpu] [--out result.json]

Ours is the step of `pretune pretrain`: model, objective, loss, and fused AdamW. The peer is the same model as one would
write it with torch's LSTM (cuDNN on a GPU): for AWD-LSTM full batches, masks of locked dropout and dropped recurrent
weights; for ELMo padded batches, the characters of all words, and packed sequences. Both sides have the same weights,
and must compute the same without dropout before they are timed. Rounds alternate; the median counts.

The part `clipping` trains ELMo on the texts of this repository, and counts the values that the paper's clipping at 3
would have changed: torch's LSTM cannot clip, so that training does not. On a CPU everything is tiny, in fp32.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import pretune as pt
from bench import common
from bench.speed.plain_torch import PENALTIES, PlainAwdLstm, PlainElmo
from pretune.core.types import Batch, Targets
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.objectives.causal import CausalLM
from pretune.text.tokenizer.training import train
from pretune.training.optim import AdamW, build_parameter_groups
from pretune.training.validation import take_clip_counts

AWD_SHAPES = {"cuda": ((64, 512), (128, 512), (64, 70)), "cpu": ((4, 16), (2, 8))}  # rows and words
AWD_SIZE: dict[str, dict[str, int]] = {"cuda": {}, "cpu": {"width": 32, "hidden": 48, "vocab": 200}}
ELMO_SIZE: dict[str, dict[str, int]] = {
    "cuda": {"head.sampling.samples": 8192},
    "cpu": {"width": 64, "hidden": 96, "filters": 128, "vocab": 3000, "head.sampling.samples": 200},
}
SENTENCES = {"cuda": 384, "cpu": 8}  # of 10 to 32 words: about 8,000 words on a GPU


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Return the context of a pass: bf16 autocast, or nothing."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def build_step(
    compute_loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, device: str, precision: str
) -> Callable[[], None]:
    """Build a training step as a function."""

    def step() -> None:
        with autocast(device, precision):
            loss = compute_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compare(steps: dict[str, Callable[[], None]], tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure alternated rounds of both sides; return tokens per second, memory and the ratio."""
    device, memory = options.device, {}
    for name, step in steps.items():  # warm up, with memory: weights and optimizers of both sides are included
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        common.measure_seconds(step, count=3, clock=common.wall_clock, device=device)
        memory[name] = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    rounds = {
        name: partial(common.measure_seconds, step, count=options.steps, clock=common.wall_clock, device=device)
        for name, step in steps.items()
    }
    seconds = common.alternate(rounds, options.rounds)
    rates = {name: tokens / value for name, value in common.compute_medians(seconds).items()}
    return {
        **{
            name: {
                "tokens_per_second": round(rate),
                "rounds": [round(tokens / value) for value in seconds[name]],
                "peak_gb": round(memory[name] / 1e9, 1),
            }
            for name, rate in rates.items()
        },
        "ratio": common.compute_ratios(rates)["torch"],
    }


def measure_awd_lstm(precision: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure AWD-LSTM at each batch shape."""
    device = options.device
    spec, objective = resolve("ulmfit", AWD_SIZE[device]), CausalLM(**PENALTIES)  # type: ignore[arg-type]
    for rows, length in AWD_SHAPES[device]:
        ours = build(spec, device=device)
        plain = PlainAwdLstm(spec.vocab, spec.width, spec.decoder.blocks[0].hidden).to(device)  # type: ignore[union-attr]
        plain.load(ours.state_dict())
        tokens = torch.randint(0, spec.vocab, (rows, length), generator=torch.Generator().manual_seed(1))
        batch = pt.batch(tokens.tolist(), labels=[[*row[1:], -100] for row in tokens.tolist()]).to(device)
        tokens = tokens.to(device)
        with torch.no_grad(), autocast(device, precision):
            losses = [float(objective.loss(ours.eval(), batch).mean()), float(plain.eval().compute_loss(tokens))]
        assert abs(losses[0] - losses[1]) < (2e-2 if device == "cuda" else 1e-4), f"losses differ: {losses}"
        steps = {
            "pretune": build_step(
                lambda ours=ours, batch=batch: objective.loss(ours, batch).mean(),  # type: ignore[misc]
                AdamW(lr=1e-4).build(build_parameter_groups(ours.train())),
                device,
                precision,
            ),
            "torch": build_step(
                partial(plain.train().compute_loss, tokens),
                torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True),
                device,
                precision,
            ),
        }
        name = f"AWD-LSTM {rows} x {length} {precision}"
        yield {"work": name, "losses": losses, **compare(steps, rows * length, options)}


def make_sequences(count: int, vocab: int) -> list[list[int]]:
    """Create sentences of 10 to 32 words with the frequencies of Zipf's law."""
    rng = np.random.default_rng(0)
    return [
        (np.exp(rng.random(int(n)) * np.log(vocab + 1)) - 1).astype(int).clip(0, vocab - 1).tolist()
        for n in rng.integers(10, 33, count)
    ]


def add_targets(batch: Batch) -> Batch:
    """Add the next word of each position as its target."""
    labels = torch.full_like(batch.tokens, -100)
    for start, end in batch.list_spans():
        labels[start : end - 1] = batch.tokens[start + 1 : end]
    return replace(batch, targets=Targets(index=torch.arange(len(labels)), labels=labels))


def measure_elmo(precision: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure ELMo in its original size, with a sampled softmax."""
    device = options.device
    spec = resolve("elmo-original", {"dropout": 0.0, **ELMO_SIZE[device]})
    sequences = make_sequences(SENTENCES[device], spec.vocab)
    ours, plain = build(spec, device=device), PlainElmo(spec).to(device)
    plain.load(ours.state_dict())
    batch, objective = add_targets(pt.batch(sequences, row=64)).to(device), pt.objective("bidirectional")
    lengths = torch.tensor([len(words) for words in sequences])
    column = torch.arange(int(lengths.max()))
    reverse = torch.where(column < lengths[:, None], lengths[:, None] - 1 - column, column).to(device)
    padded = pad_sequence([torch.tensor(words) for words in sequences], batch_first=True).to(device)
    with torch.no_grad(), autocast(device, precision):
        left, right = ours.eval().compute_directional_states(batch)
        their_left, their_right = plain.eval().compute_states(padded, reverse, lengths)
    difference = 0.0
    for i in (0, len(sequences) - 1):
        start, end = batch.list_spans()[i]
        n = end - start
        for states, theirs in ((left, their_left[i, :n]), (right, their_right[i, :n].flip(0))):
            difference = max(difference, float((states[start:end].float() - theirs.float()).abs().max()))
    assert difference < (0.2 if device == "cuda" else 1e-5), f"states differ by {difference}"
    steps = {
        "pretune": build_step(
            lambda: objective.loss(ours, batch).mean(),  # type: ignore[arg-type]
            AdamW(lr=1e-4).build(build_parameter_groups(ours.train())),
            device,
            precision,
        ),
        "torch": build_step(
            partial(plain.train().compute_loss, padded, reverse, lengths),
            torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True),
            device,
            precision,
        ),
    }
    name = f"ELMo {len(sequences)} sentences {precision}"
    yield {"work": name, "largest_difference": difference, **compare(steps, int(lengths.sum()), options)}


def count_clipped(options: argparse.Namespace) -> dict[str, Any]:
    """Train ELMo for some seconds; count the values beyond 3, and evaluate with and without clipping."""
    device = options.device
    root = common.ROOT
    files = sorted(file for kind in ("docs/**/*.md", "src/**/*.py", "tests/**/*.py") for file in root.glob(kind))
    lines = [line.strip() for file in files for line in file.read_text("utf-8").splitlines() if len(line.split()) > 3]
    rng = np.random.default_rng(0)
    rng.shuffle(lines)
    lines = lines[: 40_000 if device == "cuda" else 400]
    tokenizer = train("words", lines, vocab=20_000)
    size = {name: value for name, value in ELMO_SIZE[device].items() if name != "vocab"}
    model = build(resolve("elmo-original", {**size, "vocab": tokenizer.vocab}), device=device).train()
    model.assets.tokenizer = tokenizer
    sequences = [model.tokenizer.encode(line)[:64] for line in lines]
    held_out, sequences = sequences[: len(sequences) // 40], sequences[len(sequences) // 40 :]
    optimizer = AdamW(lr=1e-3, weight_decay=0.0).build(build_parameter_groups(model))
    objective, steps, start = pt.objective("bidirectional"), 0, time.perf_counter()
    while time.perf_counter() - start < options.seconds:
        part = [sequences[i] for i in rng.integers(0, len(sequences), 256 if device == "cuda" else 8)]
        batch = add_targets(pt.batch(part, row=64)).to(device)
        with autocast(device, "bf16" if device == "cuda" else "fp32"):
            loss = objective.loss(model, batch).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
    loss, counts = evaluate(model, objective, held_out, None, device)
    clipped_loss, _ = evaluate(model, objective, held_out, "eager", device)
    outputs, all_outputs, cells, all_cells = counts
    return {
        "work": f"ELMo clipping, {steps} steps",
        "loss": round(loss, 4),
        "loss_clipped": round(clipped_loss, 4),
        "difference": round(clipped_loss - loss, 4),
        "outputs_beyond": outputs / all_outputs,
        "final_cells_beyond": cells / all_cells,
        "counts": counts,
    }


@torch.no_grad()
def evaluate(
    model: Any, objective: Any, sequences: list[list[int]], backend: Any, device: str
) -> tuple[float, list[float]]:
    """Return the loss per word and direction in fp32, and the counts of values beyond the clipping bound."""
    model.eval()
    model.attention_backend = backend
    take_clip_counts(model)
    total = count = 0.0
    for start in range(0, len(sequences), 250):
        batch = add_targets(pt.batch(sequences[start : start + 250], row=64)).to(device)
        parts = objective.loss(model, batch).parts.values()
        total, count = total + sum(float(p.sum) for p in parts), count + sum(float(p.count) for p in parts)
    model.attention_backend = None
    counts = take_clip_counts(model)  # None if it clipped
    model.train()
    return total / count, [] if counts is None else counts.tolist()


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--only", default="awd,elmo,clipping", help="comma-separated: awd, elmo, clipping")
    parser.add_argument("--precision", help="comma-separated: bf16, tf32; default: bf16 on CUDA, fp32 on a CPU")
    parser.add_argument("--rounds", type=int, default=5, help="alternated rounds; the median counts")
    parser.add_argument("--steps", type=int, default=6, help="steps per round")
    parser.add_argument("--seconds", type=float, default=20.0, help="training time of the part `clipping`")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    rows: list[dict[str, Any]] = []
    result = {"torch": torch.__version__, "machine": common.describe_device(options.device), "rows": rows}
    precisions = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    measures = {"awd": measure_awd_lstm, "elmo": measure_elmo}
    for part in options.only.split(","):
        for precision in precisions.split(",") if part in measures else ():
            for row in measures[part](precision, options):
                rows.append(row)
                ours, plain = row["pretune"], row["torch"]
                print(
                    f"{row['work']:34} pretune {ours['tokens_per_second']:9,} tok/s {ours['peak_gb']:5} GB   "
                    f"torch {plain['tokens_per_second']:9,} tok/s {plain['peak_gb']:5} GB   ratio {row['ratio']:.2f}",
                    flush=True,
                )
                common.write_result(result, options.out)
        if part == "clipping":
            rows.append(row := count_clipped(options))
            print(
                f"{row['work']}: beyond 3 are {row['outputs_beyond']:.3%} of outputs and "
                f"{row['final_cells_beyond']:.3%} of final cells; held-out loss {row['loss']}, clipped "
                f"{row['loss_clipped']} ({row['difference']:+})",
                flush=True,
            )
    common.write_result(result, options.out)


if __name__ == "__main__":
    main()
