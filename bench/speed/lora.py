"""LoRA and QLoRA of a decoder of 1B parameters (Llama-3.2-1B's shape, random weights) beside peft and transformers.

    python -m bench.speed.lora [--only LoRA] [--rounds 3] [--out FILE]
    python -m bench.speed.lora --model SmolLM2-135M-Instruct.Q4_1.gguf --without QLoRA     # a released decoder

Both sides have the same weights and train on the same texts: instructions made of dialogues, articles and questions of
the shared data (SAMSum, XSum, SQuAD), at most 1,024 tokens. Rank 16 on all linear layers of the blocks, a bf16 base
(QLoRA: 4 bits, NF4 with double quantization), fp32 adapters under autocast, fused AdamW, a step for every 16 rows of
1,024 tokens. Before timing, losses of the first texts must agree. Ours packs texts into rows, compiled, as one CUDA
graph, 16 rows at once ("eager" is not compiled, the default of `pretune finetune`). Variants of the peer:

    padded              its collator: texts grouped by length, padded to the longest of 16
    packed              the rows of our side, 8 at a time, with positions that start anew for each text, from which
                        transformers makes the mask
    packed, compiled    the same by torch.compile. With the dynamic shapes of padded texts, compiling did not end within
                        four minutes (transformers 5.17, peft 0.21, torch 2.11)
    Trainer, flattened  transformers' Trainer with DataCollatorWithFlattening: 8, 16 or 32 texts as one row, with
                        FlashAttention 2 where it is installed, otherwise masks made from the positions

Tokens per second count the tokens of texts only, over all texts; the median round counts. Memory is the peak of the
device with the base weights. peft's QLoRA needs bitsandbytes; without it the row says so, and ours is compared with
peft's bf16 LoRA. On a CPU a tiny model in fp32 only checks that the script runs.
"""

import argparse
import gzip
import importlib.util
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pretune as pt
from bench import common
from pretune.adaptation.peft import qlora
from pretune.adaptation.peft.lora import LoRA
from pretune.adaptation.peft.qlora import QLoRA
from pretune.core.types import IGNORE_INDEX, Batch
from pretune.data.layout import lay_out
from pretune.data.packing import pack
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences, compute_offsets
from pretune.inference.text_model import get_tokenizer
from pretune.training.cuda_graph import CudaGraphRunner

Tokens = list[int]
Rows = list[list[Tokens]]
"""Texts of each row."""
GPU = torch.cuda.is_available()
DTYPE = torch.bfloat16 if GPU else torch.float32
TARGETS = ("q", "k", "v", "out", "gate", "up", "down")
PEER_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, ALPHA = 16, 32
LLAMA_1B = {
    "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
TINY = LLAMA_1B | {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


# Texts.


def read_instructions(folder: Path) -> Iterator[str]:
    """Yield instructions with their answers from SAMSum, XSum and SQuAD."""
    for name, question in (("samsum/validation", "Summarize the conversation."), ("samsum/test", "What happens here?")):
        for row in read_lines(folder / f"{name}.jsonl.gz"):
            yield f"### Instruction\n{question}\n\n{row['context']}\n\n### Response\n{row['response']}"
    for row in read_lines(folder / "xsum/test_sample.jsonl.gz"):
        yield f"### Instruction\nSummarize the article.\n\n{row['document']}\n\n### Response\n{row['summary']}"
    with gzip.open(folder / "squad1/dev.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    for article in articles:
        for paragraph in article["paragraphs"]:
            question = paragraph["qas"][0]
            answer = question["answers"][0]["text"]
            yield f"### Instruction\n{question['question']}\n\n{paragraph['context']}\n\n### Response\n{answer}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def make_texts(vocab: int, model: str | None, *, is_tiny: bool) -> list[Tokens]:
    """Return the tokens of all texts, in random order, by the tokenizer of a model or a new one."""
    texts = list(common.make_sentences(60, 12)) if is_tiny else list(read_instructions(common.find_data("tasks")))
    random.Random(0).shuffle(texts)
    if model is not None:
        encode = get_tokenizer(pt.load(model)).encode
        return [encode(text) for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"
        file.write_text("\n\n".join(texts), encoding="utf-8")
        tokenizer = pt.train_tokenizer("bpe", [file], vocab=min(vocab, 16_384), style="endoftext")
    return [tokenizer.encode(text) for text in texts]


def pack_rows(texts: Sequence[Tokens], length: int, count: int) -> Rows:
    """Return the first `count` rows of texts; longer texts are truncated."""
    texts = [text[:length] for text in texts]
    place = pack(np.array([len(text) for text in texts]), length)
    rows: Rows = [[] for _ in range(int(place.max()) + 1)]
    for text, row in zip(texts, place.tolist(), strict=True):
        rows[row].append(text)
    random.Random(1).shuffle(rows)
    return rows[:count]


# Measuring.


class Adapted:
    """A model with adapters, and its optimizer."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], device: str) -> None:
        self.parameters, self.device = list(parameters), device
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=device == "cuda")

    @property
    def trained(self) -> int:
        """Number of trained parameters."""
        return sum(weight.numel() for weight in self.parameters)

    def compute_gradients(self, batch: Any) -> None:
        """Run forward and backward of a micro-batch."""
        raise NotImplementedError

    def run(self, steps: Sequence[Sequence[Any]]) -> None:
        """Train on the micro-batches of each step."""
        for batches in steps:
            for batch in batches:
                self.compute_gradients(batch)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


class Ours(Adapted):
    """Our model, as the trainer runs it: compiled, forward and backward as one CUDA graph."""

    def __init__(self, folder: str, method: LoRA, device: str, *, compiles: bool) -> None:
        self.model = pt.load(folder, device=device, dtype=DTYPE)
        names = set(method.apply(self.model))
        for name, weight in self.model.named_parameters():
            assert weight.dtype == (torch.float32 if name in names else DTYPE), name
        layers = [module for module in self.model.modules() if isinstance(module, qlora.Weight4bit)]
        assert bool(layers) == isinstance(method, QLoRA)
        super().__init__([weight for weight in self.model.parameters() if weight.requires_grad], device)
        self.model.train()
        if compiles:
            self.model.compile(dynamic=False)
        self.runner = CudaGraphRunner(self.model) if device == "cuda" else None

    def compute_loss(self, batch: Batch) -> float:
        """Return the mean loss of a batch."""
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=GPU):
            return float(self.model.loss(self.model.states(batch), batch).mean())

    def compute_gradients(self, batch: Batch) -> None:
        assert batch.targets is not None
        counts = {"loss": (batch.targets.labels != IGNORE_INDEX).sum()}
        if self.runner is None:
            self._run(batch, counts)
        else:
            self.runner(self._run, batch, counts)

    def _run(self, batch: Batch, counts: Any) -> Any:
        with torch.autocast(self.device, torch.bfloat16, enabled=GPU):
            loss = self.model.loss(self.model.states(batch), batch)
        loss.normalize(counts).backward()
        return loss.detach()


class Peer(Adapted):
    """The model of transformers with the adapters of peft."""

    def __init__(self, folder: str, device: str, *, quantized: bool, compiles: bool, attention: str = "sdpa") -> None:
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
        from transformers import BitsAndBytesConfig, LlamaForCausalLM

        options: dict[str, Any] = {"dtype": DTYPE, "attn_implementation": attention, "device_map": {"": device}}
        if quantized:
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=DTYPE,
            )
        model = LlamaForCausalLM.from_pretrained(folder, **options)
        model.config.use_cache = False
        if quantized:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=PEER_TARGETS)
        self.model = get_peft_model(model, config).train()
        super().__init__([weight for weight in self.model.parameters() if weight.requires_grad], device)
        self.forward: Callable[..., Any] = torch.compile(self.model, dynamic=False) if compiles else self.model

    def compute_loss(self, batch: dict[str, Tensor]) -> float:
        """Return the mean loss of a batch, not compiled."""
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=GPU):
            return float(self.model(**batch).loss)

    def compute_gradients(self, batch: dict[str, Tensor]) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=GPU):
            loss = self.forward(**batch).loss
        loss.backward()


class TrainerPeer(Peer):
    """The same, trained by the Trainer of transformers on texts that its collator joins to one row."""

    def __init__(self, folder: str, device: str, texts: int) -> None:
        has_flash = GPU and importlib.util.find_spec("flash_attn") is not None
        attention = "flash_attention_2" if has_flash else "sdpa"
        super().__init__(folder, device, quantized=False, compiles=False, attention=attention)
        self.texts = texts

    def run(self, steps: Sequence[Sequence[Tokens]]) -> None:
        from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

        features = [{"input_ids": text} for step in steps for text in step]
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder, per_device_train_batch_size=self.texts, num_train_epochs=1, learning_rate=1e-4,
                gradient_accumulation_steps=max(len(features) // len(steps) // self.texts, 1), max_grad_norm=0.0,
                lr_scheduler_type="constant", bf16=GPU, optim="adamw_torch_fused" if GPU else "adamw_torch",
                save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not GPU,
                dataloader_num_workers=2 if GPU else 0, dataloader_pin_memory=GPU,
            )  # fmt: skip
            collator = DataCollatorWithFlattening()
            Trainer(model=self.model, args=arguments, train_dataset=features, data_collator=collator).train()


def make_our_steps(rows: Rows, length: int, per_step: int, device: str) -> list[list[Batch]]:
    """Return batches of one shape: every token but the first of a text is a target."""
    most = max(len(row) for row in rows)
    shape = BatchShape(rows=per_step, length=length, sequences=most, slots=length)
    steps = []
    for start in range(0, len(rows), per_step):
        part = rows[start : start + per_step]
        texts = [text for row in part for text in row]
        place = np.repeat(np.arange(len(part)), [len(row) for row in part])
        sequences = Sequences(
            tokens=np.concatenate([np.array(text) for text in texts]),
            offsets=compute_offsets(np.array([len(text) for text in texts])),
            targets=np.concatenate([np.array([*text[1:], IGNORE_INDEX]) for text in texts]),
        )
        steps.append([lay_out(sequences, place, shape).to(device)])
    return steps


def make_packed_steps(rows: Rows, length: int, per_step: int, micro: int, device: str) -> list[list[dict[str, Tensor]]]:
    """Return the same rows for transformers: positions start anew for each text, and the first token is no target."""
    batches = []
    for start in range(0, len(rows), micro):
        part = rows[start : start + micro]
        ids, labels = torch.zeros(len(part), length, dtype=torch.long), torch.full((len(part), length), IGNORE_INDEX)
        positions = torch.zeros(len(part), length, dtype=torch.long)
        for number, row in enumerate(part):
            column = 0
            for text in row:
                end = column + len(text)
                ids[number, column:end] = labels[number, column:end] = torch.tensor(text)
                labels[number, column] = IGNORE_INDEX
                positions[number, column:end] = torch.arange(len(text))
                column = end
            positions[number, column:] = torch.arange(length - column)  # filler is one more text, without targets
        batch = {"input_ids": ids, "position_ids": positions, "labels": labels}
        batches.append({name: value.to(device) for name, value in batch.items()})
    return group(batches, per_step // micro)


def make_padded_steps(rows: Rows, steps: int, micro: int, device: str) -> list[list[dict[str, Tensor]]]:
    """Return batches of texts of similar length, padded on the right to a multiple of 8, in random order."""
    texts = sorted((text for row in rows for text in row), key=len)
    batches = []
    for start in range(0, len(texts), micro):
        part = texts[start : start + micro]
        length = -(-max(map(len, part)) // 8) * 8
        ids, mask, labels = (torch.full((len(part), length), value) for value in (0, 0, IGNORE_INDEX))
        for number, text in enumerate(part):
            ids[number, : len(text)] = labels[number, : len(text)] = torch.tensor(text)
            mask[number, : len(text)] = 1
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        batches.append({name: value.to(device) for name, value in batch.items()})
    random.Random(2).shuffle(batches)
    return group(batches, -(-len(batches) // steps))


def group(batches: list[Any], size: int) -> list[list[Any]]:
    """Return lists of `size` micro-batches, one for each step."""
    return [batches[start : start + size] for start in range(0, len(batches), max(size, 1))]


def measure(side: Adapted, steps: list[list[Any]], tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return tokens per second over all texts, and the peak of the memory."""
    is_cuda = options.device == "cuda"
    before = torch.cuda.memory_allocated() if is_cuda else 0
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # NOTE: the peak is that of the first round too: what a CUDA graph needs counts only while it is recorded.
    first, _ = common.time_call(lambda: side.run(steps), clock=common.wall_clock, device=options.device)
    seconds = [
        common.measure_seconds(lambda: side.run(steps), clock=common.wall_clock, device=options.device)
        for _ in range(options.rounds)
    ]
    row = {
        "tokens_per_second": round(tokens / statistics.median(seconds)),
        "rounds": [round(tokens / value) for value in seconds],
        "first_round_seconds": round(first, 1),
        "weights_gb": round(before / 1e9, 2) if is_cuda else None,
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if is_cuda else None,
        "trained": side.trained,
    }
    if options.kernels:
        row["kernels"] = common.list_kernels(lambda count: side.run(steps[:count]), options.device, count=40, steps=2)
    return row


def compute_differences(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return our rate over that of each of the peer's rows with the same kind of base, and the ratio of memory."""
    ratios = {}
    for name, row in result.items():
        kind = "QLoRA" if "QLoRA" in name else "LoRA"
        ours = result.get(f"pretune {kind}", {})
        if name.startswith("peft") and "error" not in row and "error" not in ours and ours:
            speed = round(ours["tokens_per_second"] / row["tokens_per_second"], 2)
            ratios[name] = {"speed": speed}
            if row["peak_gb"]:
                ratios[name]["memory"] = round(ours["peak_gb"] / row["peak_gb"], 2)
    if "pretune QLoRA" in result and "error" in result.get("peft QLoRA, padded", {"error": ""}):
        ours, theirs = result["pretune QLoRA"], result.get("peft LoRA, padded", {"error": ""})
        if "error" not in theirs and "error" not in ours:  # without bitsandbytes: beside its bf16 LoRA
            ratios["QLoRA beside peft LoRA, padded"] = {
                "speed": round(ours["tokens_per_second"] / theirs["tokens_per_second"], 2)
            }
    return ratios


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--only", nargs="*", help="parts of names of rows; default: all")
    parser.add_argument("--without", nargs="*", default=[], help="parts of names of rows that are left out")
    parser.add_argument("--rounds", type=int, default=3, help="passes over the texts; the median counts")
    parser.add_argument("--rows", type=int, default=128, help="rows of 1,024 tokens in all")
    parser.add_argument("--limit", type=int, default=120, help="seconds of a row, compiling included")
    parser.add_argument("--kernels", action="store_true", help="list the longest kernels of each row")
    parser.add_argument("--model", help="GGUF file or directory of a Llama; default: random weights")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    options = parser.parse_args()
    device, is_tiny = options.device, options.device == "cpu"
    compiles = options.compile and not is_tiny
    shape = TINY if is_tiny else LLAMA_1B
    length, per_step, micro_rows, micro_texts = (64, 4, 2, 4) if is_tiny else (1024, 16, 8, 16)
    texts = make_texts(shape["vocab_size"], options.model, is_tiny=is_tiny)
    rows = pack_rows(texts, length, 8 if is_tiny else options.rows)
    lengths = [len(text) for row in rows for text in row]
    result: dict[str, Any] = {}
    facts = {
        "device": common.describe_device(device), "torch": torch.__version__, "texts": len(lengths),
        "tokens": sum(lengths), "median length": statistics.median(lengths), "full": sum(lengths) / length / len(rows),
    }  # fmt: skip
    print(json.dumps(facts), flush=True)
    steps = len(rows) // per_step
    our_steps = make_our_steps(rows, length, per_step, device)
    packed_steps = make_packed_steps(rows, length, per_step, micro_rows, device)
    padded_steps = make_padded_steps(rows, steps, micro_texts, device)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, options.model, shape, device)
        check_losses(folder, make_our_steps(rows[:1], length, 1, device)[0][0], packed_steps, rows, length, device)

        def measure_ours(method: LoRA, *, compiled: bool = True) -> dict[str, Any]:
            side = Ours(folder, method, device, compiles=compiled and compiles)
            return measure(side, our_steps, sum(lengths), options)

        def measure_trainer(texts: int) -> dict[str, Any]:
            chosen = [text for row in rows for text in row]
            return measure(
                TrainerPeer(folder, device, texts), group(chosen, len(chosen) // steps), sum(lengths), options
            )

        def measure_peer(*, packed: bool, quantized: bool, compiled: bool = False) -> dict[str, Any]:
            side = Peer(folder, device, quantized=quantized, compiles=compiled and compiles)
            return measure(side, packed_steps if packed else padded_steps, sum(lengths), options)

        sides: dict[str, Callable[[], dict[str, Any]]] = {
            "pretune LoRA": lambda: measure_ours(LoRA(rank=RANK, alpha=ALPHA, targets=TARGETS)),
            "pretune LoRA, eager": lambda: measure_ours(LoRA(rank=RANK, alpha=ALPHA, targets=TARGETS), compiled=False),
            "peft LoRA, Trainer, flattened 8": lambda: measure_trainer(8),
            "peft LoRA, Trainer, flattened 16": lambda: measure_trainer(16),
            "peft LoRA, Trainer, flattened 32": lambda: measure_trainer(32),
            "peft LoRA, padded": lambda: measure_peer(packed=False, quantized=False),
            "peft LoRA, packed": lambda: measure_peer(packed=True, quantized=False),
            "peft LoRA, packed, compiled": lambda: measure_peer(packed=True, quantized=False, compiled=True),
            "pretune QLoRA": lambda: measure_ours(QLoRA(rank=RANK, alpha=ALPHA)),
            "peft QLoRA, padded": lambda: measure_peer(packed=False, quantized=True),
            "peft QLoRA, packed": lambda: measure_peer(packed=True, quantized=True),
            "peft QLoRA, packed, compiled": lambda: measure_peer(packed=True, quantized=True, compiled=True),
        }
        for name, run in sides.items():
            is_chosen = not options.only or any(part in name for part in options.only)
            if not is_chosen or any(part in name for part in options.without):
                continue
            try:
                with common.time_limit(options.limit):
                    result[name] = run()
            except Exception as error:  # a missing library of the peer: other rows are still measured
                result[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(json.dumps({name: result[name]}), flush=True)
            common.write_result({**facts, "rows": result, "ratios": compute_differences(result)}, options.out)
            torch._dynamo.reset()
            if device == "cuda":
                torch.cuda.empty_cache()
    common.print_result({**facts, "rows": result, "ratios": compute_differences(result)}, options.out)


def save_model(folder: str, model: str | None, shape: dict[str, Any], device: str) -> None:
    """Save a model, or one of transformers with random weights, in bf16."""
    if model is not None:
        pt.save(pt.load(model, dtype=DTYPE), folder)
        return
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        LlamaForCausalLM(LlamaConfig(**shape)).to(DTYPE).save_pretrained(folder)


def check_losses(
    folder: str, batch: Batch, packed_steps: list[list[dict[str, Tensor]]], rows: Rows, length: int, device: str
) -> None:
    """Raise AssertionError unless the losses of the first row agree: ours, padded and packed."""
    ours = Ours(folder, LoRA(rank=RANK, alpha=ALPHA, targets=TARGETS), device, compiles=False).compute_loss(batch)
    peer = Peer(folder, device, quantized=False, compiles=False)
    packed = {name: value[:1] for name, value in packed_steps[0][0].items()}
    losses = [peer.compute_loss(packed)]
    ((padded,),) = make_padded_steps(rows[:1], 1, len(rows[0]), device)
    losses.append(peer.compute_loss(padded))
    assert all(abs(ours - loss) < 0.02 for loss in losses), f"losses differ: {ours} and {losses}"


if __name__ == "__main__":
    main()
