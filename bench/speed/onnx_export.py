"""Speed of exported ONNX files in onnxruntime on a CPU, beside the model they come from: the same inputs and outputs.

    python -m bench.speed.onnx_export [--encoder NAME] [--decoder NAME] [--threads N] [--rounds N] [--out FILE]

The models have random weights. The encoder classifies rows of 128 tokens, one at a time and 16 at once, and 16 rows of
16 to 128 tokens, padded for onnxruntime and ragged for pretune. The decoder reads prompts of 64 tokens and generates 32
tokens greedily, for 1 and for 8 prompts. Both sides use the same number of threads; rounds alternate, and the median
of wall-clock time counts: measure on a quiet machine; it takes less than 5 minutes on 2 cores. Prints a Markdown table
and writes JSON: milliseconds of each, and the ratios of pretune's time to those of onnxruntime in float32 and int8
(above 1: onnxruntime is faster), with the differences of the outputs and the sizes of the files.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pretune as pt
from bench import common
from pretune.adaptation.adapted import ModelWithHead, add_head
from pretune.core.types import Batch
from pretune.exporters.onnx.export import write_onnx
from pretune.models.model import LanguageModel
from pretune.nn.stack import TransformerStack

PROMPT, NEW = 64, 32
Side = Callable[[], Any]


def open_session(path: Path, threads: int) -> Any:
    """Open a session with a number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare(sides: dict[str, Side], rounds: int) -> dict[str, float]:
    """Return milliseconds of each side and the ratios of pretune's time to those of the others."""
    measurements = {
        name: lambda side=side: common.time_call(side, clock=common.wall_clock)[0] for name, side in sides.items()
    }
    values = common.alternate(measurements, rounds, warmup=1)
    seconds = {name: statistics.median(value) for name, value in values.items()}
    result = {f"{name} ms": round(1000 * value, 2) for name, value in seconds.items()}
    return result | {f"pretune / {n}": round(seconds["pretune"] / v, 2) for n, v in seconds.items() if n != "pretune"}


def measure_encoder(model: ModelWithHead, sessions: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Compare the classifier of an encoder, for several batches."""
    rng, vocab = np.random.default_rng(0), model.model.spec.vocab
    lengths = {"1 row of 128": [128], "16 rows of 128": [128] * 16, "16 rows of 16 to 128": rng.integers(16, 129, 16)}
    results = {}
    for name, sizes in lengths.items():
        rows = [rng.integers(0, vocab, size).tolist() for size in sizes]
        ids = np.array([[*row, *[0] * (max(sizes) - len(row))] for row in rows])
        inputs = {"input_ids": ids, "attention_mask": np.array([[i < n for i in range(max(sizes))] for n in sizes]) * 1}
        inputs["token_type_ids"] = np.zeros_like(ids)
        batch = pt.batch(rows)
        sides: dict[str, Side] = {"pretune": lambda batch=batch: model(batch)}
        for label, session in sessions.items():
            sides[label] = lambda session=session, inputs=inputs: session.run(None, inputs)
        results[name] = compare(sides, rounds)
    return results


def measure_decoder(model: LanguageModel, sessions: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Compare greedy generation, for several numbers of prompts."""
    rng, results = np.random.default_rng(0), {}
    for rows in (1, 8):
        prompts = rng.integers(0, model.spec.vocab, (rows, PROMPT))
        sides: dict[str, Side] = {"pretune": lambda prompts=prompts: generate(model, prompts)}
        for label, session in sessions.items():
            sides[label] = lambda session=session, prompts=prompts: generate_onnx(model, session, prompts)
        assert (generate(model, prompts) == generate_onnx(model, sessions["onnxruntime"], prompts)).all()
        results[f"{rows} x {PROMPT} + {NEW} tokens"] = compare(sides, rounds)
    return results


def generate(model: LanguageModel, prompts: Any) -> Any:
    """Return the tokens that the model generates."""
    cache = model.new_cache(len(prompts), PROMPT + NEW)
    batch = Batch.from_sequences(prompts.tolist())
    logits = torch.stack(batch.split(model(batch, cache=cache).logits))[:, -1]
    tokens = [logits.argmax(-1)]
    while len(tokens) < NEW:
        tokens.append(model.step(tokens[-1], cache).argmax(-1))
    return torch.stack(tokens, dim=1).numpy()


def generate_onnx(model: LanguageModel, session: Any, prompts: Any) -> Any:
    """Return the tokens that a session generates."""
    assert isinstance(model.decoder, TransformerStack)
    past = {}
    for i, layer in enumerate(model.decoder):
        for part in ("key", "value"):
            shape = (len(prompts), layer.attention.kv_heads, 0, layer.attention.head)
            past[f"past_key_values.{i}.{part}"] = np.zeros(shape, np.float32)
    has_positions = any(entry.name == "position_ids" for entry in session.get_inputs())
    tokens, ids, length = [], prompts, 0
    while len(tokens) < NEW:
        end = length + ids.shape[1]
        inputs = {"input_ids": ids, "attention_mask": np.ones((len(ids), end), np.int64)}
        if has_positions:
            inputs["position_ids"] = np.tile(np.arange(length, end), (len(ids), 1))
        logits, *present = session.run(None, inputs | past)
        past, length = dict(zip(past, present, strict=True)), end
        ids = logits[:, -1].argmax(-1)[:, None]
        tokens.append(ids)
    return np.concatenate(tokens, axis=1)


@torch.no_grad()
def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--encoder", default="bert-base")
    parser.add_argument("--decoder", default="gpt2-small")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"device": common.describe_device("cpu"), "threads": options.threads}
    encoder = add_head(pt.build(options.encoder), "classification", labels=["a", "b"]).eval()
    decoder = pt.build(options.decoder).eval()
    for name, model, measure in (
        (options.encoder, encoder, measure_encoder),
        (options.decoder, decoder, measure_decoder),
    ):
        with tempfile.TemporaryDirectory() as folder:
            files = write_onnx(model, Path(folder) / "out", quantize="int8")
            paths = {label: Path(folder) / "out" / "onnx" / f"model{suffix}.onnx" for label, suffix in SUFFIXES.items()}
            sessions = {label: open_session(path, options.threads) for label, path in paths.items()}
            result[name] = measure(model, sessions, options.rounds) | {
                "difference": files.difference,
                "difference of int8": files.quantized_difference,
                **{f"{label} MB": round(path.stat().st_size / 1e6, 1) for label, path in paths.items()},
            }
    print(format_markdown(result), flush=True)
    common.write_result(result, options.out)


def format_markdown(result: dict[str, Any]) -> str:
    """Return a table of milliseconds and ratios, and a line about the outputs and files of each model."""
    sides = ("pretune", *SUFFIXES)
    lines = [
        f"| model | work | {' | '.join(sides)} | ratio | ratio of int8 |",
        "|---|---" + "|---" * len(sides) + "|---|---|",
    ]
    notes = []
    for name, rows in result.items():
        if not isinstance(rows, dict):
            continue
        for work, row in rows.items():
            if isinstance(row, dict):
                times = [f"{row[f'{side} ms']:,.1f} ms" for side in sides]
                ratios = [f"{row[f'pretune / {side}']}" for side in SUFFIXES]
                lines.append(f"| {name} | {work} | {' | '.join((*times, *ratios))} |")
        sizes = ", ".join(f"{label} {rows[f'{label} MB']} MB" for label in SUFFIXES)
        notes.append(
            f"{name}: logits differ by {rows['difference']:.1e}, int8 {rows['difference of int8']:.1e}; {sizes}"
        )
    return "\n".join([f"{result['threads']} threads", "", *lines, "", *notes, ""])


SUFFIXES = {"onnxruntime": "", "onnxruntime int8": "_quantized"}


if __name__ == "__main__":
    main()
