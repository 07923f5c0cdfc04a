"""Training throughput of the models (forward, backward, AdamW), compared with transformers on the same batches.

    PYTHONPATH=src python bench/core_throughput.py [--out result.json] [--only gpt2] [--peers eager,compiled,best]

Both sides have the same weights, bf16 autocast with fp32 master weights on CUDA (fp32 on CPU), fused AdamW, the same
dropout (attention included), and a masked-LM loss at 15 % of positions, a causal loss at all positions, or span
corruption (512 source and 114 target tokens). Ours runs as `pretune pretrain` does on CUDA, with a bf16 residual
stream; a second row keeps the stream in fp32, as autocast does for the peer. The peer has four variants on CUDA:

    eager       the default: SDPA, not compiled
    compiled    torch.compile, with the mask of ones that its collator creates (BERT)
    best        compiled without any mask: transformers 5.17 materializes a mask while it is compiled even if none is
                passed, so that SDPA cannot use FlashAttention or a causal kernel; an attention function registered
                without a mask function gets none. No sequence is padded here, so the result is the same. `--mode` and
                `--multiple` (vocabulary padded to a multiple) apply to this variant. Not for T5, whose bias is a mask.
    narrow      like best, with bf16 weights and fp32 master weights, as FSDP keeps them: a bf16 stream on both sides

Before timing, all variants must give the same loss on one batch without dropout. Prints tokens per second and MFU of
the median round of alternated rounds, and the ratio of ours to each variant.
"""

import argparse
import copy
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import pretune as pt
from pretune.core.types import Batch, Targets
from pretune.models.cost import flops_per_token
from pretune.training.cuda_graph import CudaGraphRunner

PEAK = 989e12  # datasheet bf16 rate of an H100 or H200
PEERS = {
    "compiled": "transformers + compile",
    "best": "transformers + compile, no mask",
    "narrow": "transformers + compile, bf16 weights",
    "eager": "transformers",
}


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    rows: int
    length: int
    masked: bool
    reference: Callable[[float], Any]
    target: int = 0  # target length of an encoder-decoder

    @property
    def tokens(self) -> int:
        return self.rows * (self.length + self.target)


def bert(dropout: float, **options: Any) -> Any:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return transformers.BertForMaskedLM(transformers.BertConfig(**rates, **options))


def gpt2(dropout: float, **options: Any) -> Any:
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**rates, **options))


def t5(dropout: float, **options: Any) -> Any:
    base = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(dropout_rate=dropout, decoder_start_token_id=0, **(base | options))
    )


TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
GPU = (
    Workload("bert-base 128 x 512", 128, 512, True, bert),
    Workload("bert-base 512 x 128", 512, 128, True, bert),
    Workload("gpt2-small 64 x 1024", 64, 1024, False, gpt2),
    Workload("t5-base 128 x 512/114", 128, 512, False, t5, 114),
)
CPU = (
    Workload("bert-tiny 16 x 128", 16, 128, True, partial(bert, **TINY)),
    Workload("gpt2 2/128 8 x 128", 8, 128, False, partial(gpt2, n_embd=128, n_layer=2, n_head=2)),
    Workload("t5 2/128 8 x 128/28", 8, 128, False, partial(t5, d_model=128, d_ff=512, num_layers=2, num_heads=2), 28),
)


class Side:
    """A model with its optimizer and loss function."""

    def __init__(self, name: str, model: torch.nn.Module, loss: Callable[[Any], torch.Tensor], device: str) -> None:
        self.name, self.model, self.loss, self.device = name, model.train(), loss, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.seconds: list[float] = []
        self.first = 0.0

    def step(self, batch: Any) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, batches: list[Any], steps: int) -> float:
        sync(self.device)
        start = time.perf_counter()
        for i in range(steps):
            self.step(batches[i % len(batches)])
        sync(self.device)
        return (time.perf_counter() - start) / steps


class CudaGraphSide(Side):
    """Our model as `pretune pretrain` runs it: forward and backward become one CUDA graph after a few steps."""

    def __init__(self, name: str, model: Any, device: str) -> None:
        super().__init__(name, model, build_loss(model), device)
        self.replay = CudaGraphRunner(model)

    def step(self, batch: Batch) -> None:
        assert batch.targets is not None
        self.replay(self._pass, batch, {"loss": torch.full((), len(batch.targets.labels), device=self.device)})
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _pass(self, batch: Batch, counts: Any) -> Any:
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model.loss(self.model.states(batch), batch)  # type: ignore[operator]
        loss.normalize(counts).backward()
        return loss.detach()


class MasterWeightsSide(Side):
    """A peer with bf16 weights, whose optimizer keeps fp32 master weights."""

    def __init__(self, name: str, model: torch.nn.Module, loss: Callable[[Any], torch.Tensor], device: str) -> None:
        super().__init__(name, model.bfloat16(), loss, device)
        self.weights = list(model.parameters())
        self.masters = [weight.detach().float().requires_grad_() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, weight_decay=0.01, fused=True)

    @torch.no_grad()
    def step(self, batch: Any) -> None:
        with torch.enable_grad():
            self.loss(batch).backward()
        for weight, master in zip(self.weights, self.masters, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        torch._foreach_copy_(self.weights, self.masters)


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def make_batches(
    work: Workload, vocab: int, device: str, count: int = 4
) -> tuple[list[Batch], list[dict[str, torch.Tensor]]]:
    """Create the same random tokens and targets for both sides."""
    ours, theirs = [], []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        if work.target:
            made, given = make_encoder_decoder_batch(work, vocab, rng)
            ours.append(made.to(device))
            theirs.append({name: value.to(device) for name, value in given.items()})
            continue
        tokens = torch.from_numpy(rng.integers(5, vocab, (work.rows, work.length)))
        labels = torch.full_like(tokens, -100)
        if work.masked:
            size = int(0.15 * tokens.numel())
            index = torch.from_numpy(np.sort(rng.permutation(tokens.numel())[:size]))
            labels.view(-1)[index] = tokens.view(-1)[index]
            tokens.view(-1)[index] = 103
        else:
            labels = tokens.clone()
        made = pt.batch(tokens.numpy())
        if work.masked:
            targets = Targets(index=index, labels=labels.view(-1)[index])
        else:
            keep = torch.arange(tokens.numel()).view(tokens.shape)[:, :-1].reshape(-1)
            targets = Targets(index=keep, labels=tokens[:, 1:].reshape(-1))
        ours.append(replace(made, targets=targets).to(device))
        given = {"input_ids": tokens, "labels": labels}
        if work.masked:  # as its collator does; compiled, it selects a faster kernel with a mask than without
            given["attention_mask"] = torch.ones_like(tokens)
        theirs.append({name: value.to(device) for name, value in given.items()})
    return ours, theirs


def make_encoder_decoder_batch(
    work: Workload, vocab: int, rng: np.random.Generator
) -> tuple[Batch, dict[str, torch.Tensor]]:
    """Create random sources and targets; the decoder input is the targets shifted right, after start token 0."""
    source, target = (rng.integers(5, vocab, (work.rows, n)) for n in (work.length, work.target))
    late = np.concatenate((np.zeros_like(target[:, :1]), target[:, :-1]), 1)
    labels = torch.from_numpy(target)
    made = pt.batch(source=source, target=late)
    targets = Targets(index=torch.arange(labels.numel()), labels=labels.view(-1))
    return replace(made, targets=targets), {"input_ids": torch.from_numpy(source), "labels": labels}


def measure(work: Workload, device: str, given: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    with torch.device(device):
        reference = work.reference(given.dropout)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        mine = pt.load(folder).to(device)
        wide = pt.load(folder).to(device) if not given.narrow else mine
    mine_batches, their_batches = make_batches(work, mine.spec.vocab, device)
    check_same_loss(mine, reference, mine_batches[0], their_batches[0], device)

    runs = [Side("pretune", mine, build_loss(mine), device)]
    if device == "cuda":
        use_bf16_residual(mine).compile(dynamic=False)
        runs = [CudaGraphSide("pretune", mine, device)]
        if not given.narrow:
            wide.compile(dynamic=False)
            runs.append(CudaGraphSide("pretune, fp32 residual", wide, device))
    if not given.ours:
        runs += build_peers(work, reference, their_batches[0], given, device)
    data = {side.name: mine_batches if side.name.startswith("pretune") else their_batches for side in runs}
    for side in runs:
        start = time.perf_counter()
        side.run(data[side.name], 1)
        side.first = time.perf_counter() - start
        side.run(data[side.name], 4)
    for _ in range(given.rounds):
        for side in runs:
            side.seconds.append(side.run(data[side.name], given.steps))
    return report(work, mine, runs, device)


def build_peers(
    work: Workload, reference: Any, batch: dict[str, torch.Tensor], given: argparse.Namespace, device: str
) -> list[Side]:
    """Build the requested variants of the peer, and check that each has the same loss on one batch."""
    wanted = given.peers.split(",") if given.peers else list(PEERS) if device == "cuda" else ["eager"]
    sides = []
    for name in wanted:
        if name == "best" and work.target:
            continue
        model, run = reference, reference
        if name in ("best", "narrow"):
            transformers.AttentionInterface.register("unmasked", sdpa_attention_forward)
            model = copy.deepcopy(reference)
            model.set_attn_implementation("unmasked")
            if given.multiple > 1:
                model.resize_token_embeddings(pad_to_multiple_of=given.multiple, mean_resizing=False)
        if name != "eager":
            run = torch.compile(model, mode=None if name == "compiled" else given.mode)
        kind = MasterWeightsSide if name == "narrow" else Side
        side = kind(PEERS[name], model, lambda batch, run=run: run(**batch).loss, device)
        losses = [compute_peer_loss(one, batch, device) for one in (reference, model)]
        assert abs(losses[0] - losses[1]) < 0.02, f"losses of {side.name} differ: {losses}"
        model.train()
        sides.append(side)
    reference.train()
    return sides


def profile(work: Workload, device: str, dropout: float) -> None:
    """Profile our training step and print its kernels, the longest first."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        work.reference(dropout).save_pretrained(folder)
        mine = pt.load(folder).to(device)
    if device == "cuda":
        use_bf16_residual(mine).compile(dynamic=False)
    side = Side("pretune", mine, build_loss(mine), device)
    given, _ = make_batches(work, mine.spec.vocab, device)
    side.run(given, 4)
    kinds = [torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as found:
        side.run(given, 4)
    table = found.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=32, max_name_column_width=90)
    columns = [line[:92] + line[-110:] if len(line) > 210 else line for line in table.splitlines()]
    print(work.name, *columns, sep="\n")


def use_bf16_residual(model: Any) -> Any:
    """Set the residual stream to bf16, as `pretune pretrain` does on CUDA."""
    for stack in (model.encoder, model.decoder):
        if stack is not None:
            stack.residual_dtype = torch.bfloat16
    return model


def build_loss(model: Any) -> Callable[[Batch], torch.Tensor]:
    return lambda batch: model.loss(model.states(batch), batch).mean()


def check_same_loss(mine: Any, reference: Any, batch: Batch, theirs: dict[str, torch.Tensor], device: str) -> None:
    """Raise AssertionError unless both sides have the same loss without dropout."""
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        ours = mine.loss(mine.eval().states(batch), batch).mean().item()
    other = compute_peer_loss(reference, theirs, device)
    assert abs(ours - other) < (0.02 if device == "cuda" else 1e-4), f"losses differ: {ours} and {other}"


def compute_peer_loss(model: Any, batch: dict[str, torch.Tensor], device: str) -> float:
    """Return the peer's loss on a batch, not compiled and without dropout."""
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return float(model.eval()(**batch).loss)


def report(work: Workload, mine: Any, runs: list[Side], device: str) -> dict[str, Any]:
    tokens = work.tokens
    flops = compute_flops_per_token(work, mine.spec)
    row: dict[str, Any] = {"work": work.name}
    for side in runs:
        rate = tokens / statistics.median(side.seconds)
        row[side.name] = {
            "tokens_per_second": round(rate),
            "rounds": [round(tokens / seconds) for seconds in side.seconds],
            "first_step_seconds": round(side.first, 2),
            **({"mfu": round(rate * flops / PEAK, 4)} if device == "cuda" else {}),
        }
    ours = row["pretune"]["tokens_per_second"]
    row["ratio"] = {name: round(ours / row[name]["tokens_per_second"], 3) for name in row if name.startswith("transf")}
    return row


def compute_flops_per_token(work: Workload, spec: Any) -> float:
    """Return the training FLOPs per token; tokens of both sides count for an encoder-decoder."""
    if not work.target:
        return flops_per_token(spec, length=work.length, targets=0.15 if work.masked else 1.0)
    return flops_per_token(spec, length=work.length, target_length=work.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--only", default="", help="comma-separated parts of workload names")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout rate on both sides, attention included")
    parser.add_argument("--rounds", type=int, default=5, help="alternated rounds; the median counts")
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    parser.add_argument("--narrow", action="store_true", help="skip our row with an fp32 residual stream")
    parser.add_argument("--peers", help=f"comma-separated: {', '.join(PEERS)}; default: all on CUDA, eager on CPU")
    parser.add_argument("--mode", help="torch.compile mode of the variants best and narrow")
    parser.add_argument(
        "--multiple", type=int, default=1, help="pad the vocabulary of best and narrow to a multiple, for example 64"
    )
    parser.add_argument("--ours", action="store_true", help="measure only our side")
    parser.add_argument("--profile", action="store_true", help="print a profile of our kernels instead of timing")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    rows = []
    for work in GPU if device == "cuda" else CPU:
        if given.only and not any(part in work.name for part in given.only.split(",")):
            continue
        if given.profile:
            profile(work, device, given.dropout)
            continue
        rows.append(measure(work, device, given))
        print(json.dumps(rows[-1], indent=1), flush=True)
        torch._dynamo.reset()
        if device == "cuda":
            torch.cuda.empty_cache()
    machine = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": machine,
        "dropout": given.dropout,
    }
    if given.out:
        given.out.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(row["work"], row["pretune"]["tokens_per_second"], "tok/s;", row["ratio"])


if __name__ == "__main__":
    main()
