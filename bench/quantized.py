"""Weight-only quantization for inference beside the original: size, speed and score.

    PYTHONPATH=src python bench/quantized.py RUN --test TABLE [--rounds 3] [--device cpu] [--out result.json]
    PYTHONPATH=src python bench/quantized.py --generate gpt2-small [--tokens 64] [--batch 1]

RUN is a fine-tuned run; its score on TABLE and the examples per second of `predict` are measured, in alternated rounds;
`--rounds 0` leaves the speed out. With `--generate` a decoder with random weights writes greedily: tokens per second,
prompt of 32 tokens.
"""

import statistics
from pathlib import Path
from typing import Any

import common
import torch

import pretune as pt
from pretune.adaptation.quantized import count_bytes, quantize_model
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import GenerationConfig
from pretune.models.catalog import resolve
from pretune.models.model import build
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.inference import build_table_task, evaluate_run

KINDS = (None, "int8", "nf4")


def find_clock(device: str) -> common.Clock:
    """Return processor time for a CPU, wall-clock time for a GPU."""
    return common.cpu_clock if device == "cpu" else common.wall_clock


def measure_run(run: Path, table: Path, rounds: int, device: str) -> list[dict[str, Any]]:
    """Return a row for each kind: megabytes of weights, examples per second (median; none without rounds), scores."""
    task = build_table_task(run, table)
    examples = [*task.read("test")]
    runs = [FinetunedRun.open(run, device=device, quantize=kind) for kind in KINDS]
    seconds: list[list[float]] = [[] for _ in KINDS]
    for _ in range(rounds):
        for place, opened in enumerate(runs):
            predictor = opened.load_predictor()
            seconds[place].append(
                common.time_call(
                    lambda ready=predictor: ready.predict(examples), clock=find_clock(device), device=device
                )[0]
            )
    return [
        {
            "weights": kind or "float32",
            "megabytes": round(count_bytes(opened.load()) / 1e6, 1),
            "examples_per_second": round(len(examples) / statistics.median(times), 1) if times else None,
            "scores": evaluate_run(run, task=task, device=device, quantize=kind)["scores"],
        }
        for kind, opened, times in zip(KINDS, runs, seconds, strict=True)
    ]


def measure_generation(name: str, tokens: int, batch: int, rounds: int, device: str) -> list[dict[str, Any]]:
    """Return a row for each kind: megabytes of weights and generated tokens per second (median)."""
    spec = resolve(name)
    prompts = torch.randint(3, spec.vocab, (batch, 32), generator=torch.Generator().manual_seed(0)).tolist()
    decoding = GenerationConfig(max_new_tokens=tokens, min_new_tokens=tokens)
    models = []
    for kind in KINDS:
        model = build(spec, device=device).eval()
        if kind is not None:
            quantize_model(model, kind)
        models.append(model)
    seconds: list[list[float]] = [[] for _ in KINDS]
    for _ in range(rounds):
        for place, model in enumerate(models):
            seconds[place].append(
                common.time_call(
                    lambda m=model: generate_tokens(m, prompts, decoding), clock=find_clock(device), device=device
                )[0]
            )
    return [
        {
            "weights": kind or "float32",
            "megabytes": round(count_bytes(model) / 1e6, 1),
            "tokens_per_second": round(batch * tokens / statistics.median(times), 1),
        }
        for kind, model, times in zip(KINDS, models, seconds, strict=True)
    ]


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("run", type=Path, nargs="?", help="a fine-tuned run")
    parser.add_argument("--test", type=Path, help="table that the run is scored on")
    parser.add_argument("--generate", help="decoder with random weights, such as gpt2-small")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.generate:
        rows = measure_generation(options.generate, options.tokens, options.batch, options.rounds, options.device)
    elif options.run and options.test:
        rows = measure_run(options.run, options.test, options.rounds, options.device)
    else:
        parser.error("pass a run with --test, or --generate")
    common.print_result({"rows": rows, "version": pt.__version__}, options.out)


if __name__ == "__main__":
    main()
