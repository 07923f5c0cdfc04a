"""Greedy answers of a released decoder (SmolLM2-135M-Instruct, from its GGUF file) on a CPU, beside transformers.

    python -m bench.speed.released_decoder [--model smollm2] [--new 128] [--rounds 5] [--threads 2] [--out FILE]

The peer reads the dequantised weights from a directory in fp32. Ours reads the GGUF file: in fp32, the same weights, as
int8 (`quantize="int8"`, which rounds them again), and as int4, which keeps those of Q4_1. Each side is a process that
answers the same chats in turn, one at a time, without an end token. The fastest round counts, since other programs may
run meanwhile; processor time is that of all threads. Memory is the peak of the process from its start: libraries,
loading and prompts. In fp32 the tokens must be those of the peer; `same_tokens` is the share before the first
difference.
"""

import argparse
import multiprocessing as mp
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench import common

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain in simple words how a refrigerator keeps food cold.",
)
SIDES = ("transformers", "pretune", "pretune_int8", "pretune_int4")
Answer = Callable[[list[int], int], list[int]]


def main() -> None:
    parser = common.build_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="GGUF file, or the short name of an installed one")
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; the fastest counts")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write_peer(options.model, path)
        workers = {side: start(side, options, path) for side in SIDES}
        facts = {side: connection.recv() for side, (_, connection) in workers.items()}
        answers: dict[str, list[list[int]]] = {}
        seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        for turn in range(options.rounds + 1):
            for side, (_, connection) in workers.items():
                connection.send(True)
                answers[side], wall, processor = connection.recv()
                if turn:
                    seconds[side].append((wall, processor))
        memory = {}
        for side, (process, connection) in workers.items():
            connection.send(False)
            memory[side] = connection.recv()
            process.join()
    tokens = options.new * len(QUESTIONS)
    rates = {side: tokens / min(wall for wall, _ in values) for side, values in seconds.items()}
    processor_rates = {side: tokens / min(part for _, part in values) for side, values in seconds.items()}
    same = {
        side: sum(count_equal(*pair) for pair in zip(answers[side], answers["transformers"], strict=True)) / tokens
        for side in SIDES[1:]
    }
    result = {
        "device": common.describe_device("cpu"),
        "threads": options.threads,
        "new": options.new,
        "same_tokens": round_all(same, 3),
        "load_seconds": facts,
        "tokens_per_second": round_all(rates, 1),
        "tokens_per_processor_second": round_all(processor_rates, 1),
        "peak_megabytes": round_all(memory, 0),
        "rate_over_transformers": round_all({side: rates[side] / rates["transformers"] for side in SIDES[1:]}, 2),
        "processor_rate_over_transformers": round_all(
            {side: processor_rates[side] / processor_rates["transformers"] for side in SIDES[1:]}, 2
        ),
        "memory_over_transformers": round_all({side: memory[side] / memory["transformers"] for side in SIDES[1:]}, 2),
    }
    common.print_result(result, options.out)


def count_equal(ours: list[int], theirs: list[int]) -> int:
    """Return the number of tokens before the first difference."""
    return next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), len(ours))


def round_all(values: dict[str, float], digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in values.items()}


def write_peer(model: str, path: Path) -> None:
    """Write the dequantised weights, in a process that ends: its memory is not measured."""
    process = mp.get_context("spawn").Process(target=_export, args=(model, path))
    process.start()
    process.join()
    assert process.exitcode == 0


def _export(model: str, path: Path) -> None:
    import pretune as pt

    pt.save(pt.load(model), path)


def start(side: str, options: argparse.Namespace, path: Path) -> tuple[Any, Connection]:
    """Start the process of a side."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(side, options, path, theirs), daemon=True)
    process.start()
    return process, ours


def serve(side: str, options: argparse.Namespace, path: Path, connection: Connection) -> None:
    """Load a model, and answer all questions whenever asked; then report the peak of the memory."""
    import torch

    torch.set_num_threads(options.threads)
    begin = time.perf_counter()
    answer, prompts = load_peer(path) if side == "transformers" else load_ours(options.model, side)
    connection.send(round(time.perf_counter() - begin, 1))
    while connection.recv():
        wall, processor = time.perf_counter(), time.process_time()
        answers = [answer(prompt, options.new) for prompt in prompts]
        connection.send((answers, time.perf_counter() - wall, time.process_time() - processor))
    lines = Path("/proc/self/status").read_text().splitlines()
    connection.send(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))


def build_chats() -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": question}] for question in QUESTIONS]


def load_ours(model: str, side: str) -> tuple[Answer, list[list[int]]]:
    import pretune as pt
    from pretune.inference.chat import ChatModel
    from pretune.inference.decode import generate_tokens
    from pretune.inference.generation_config import GenerationConfig, GenerationTokens
    from pretune.text.chat import check_messages

    decoder = pt.load(model, quantize=side.partition("_")[2] or None)
    chat_model = ChatModel(decoder)
    prompts = [chat_model.fit(check_messages(chat), 0).ids for chat in build_chats()]

    def answer(prompt: list[int], new: int) -> list[int]:
        config = GenerationConfig(max_new_tokens=new)
        return generate_tokens(decoder, [prompt], config, generation_tokens=GenerationTokens())[0][0].tokens

    return answer, prompts


def load_peer(path: Path) -> tuple[Answer, list[list[int]]]:
    import torch
    import transformers

    decoder = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in build_chats()
    ]
    decoder.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, do_sample=False)

    def answer(prompt: list[int], new: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = decoder.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new)
        return list(out[0, len(prompt) :].tolist())

    return answer, prompts


if __name__ == "__main__":
    main()
