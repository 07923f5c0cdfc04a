"""Training throughput of the models (forward, backward, AdamW), compared with transformers on the same batches.

    python -m bench.speed.core_throughput [--out result.json] [--only gpt2] [--peers eager,compiled,best]

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
    narrow      like best, with bf16 weights and fp32 master weights, as FSDP keeps them: a bf16 stream on both sides;
                like best not for ModernBERT, whose masks have windows

Before timing, all variants must give the same loss on one batch without dropout. Prints tokens per second and MFU of
the median round of alternated rounds, and the ratio of ours to each variant.
"""

import argparse
import copy
import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers

import pretune as pt
from bench import common
from pretune.core.types import Batch, Targets
from pretune.models.cost import flops_per_token
from pretune.training.cuda_graph import CudaGraphRunner

PEAK = 989e12  # FLOP/s: datasheet bf16 rate of an H100 or H200
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
    has_window: bool = False  # the peer's masks have windows, so it needs them

    @property
    def tokens(self) -> int:
        return self.rows * (self.length + self.target)


def build_t5(dropout: float, **options: Any) -> Any:
    """Build T5ForConditionalGeneration with random weights; without options it has the size of T5-base."""
    base = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(dropout_rate=dropout, decoder_start_token_id=0, **(base | options))
    )


def build_modernbert(dropout: float, **options: Any) -> Any:
    """Build ModernBertForMaskedLM with random weights; without options it has the size of ModernBERT-base."""
    return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(attention_dropout=dropout, **options))


TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
TINY_T5 = {"d_model": 128, "d_ff": 512, "num_layers": 2, "num_heads": 2}
GPU = (
    Workload("bert-base 128 x 512", 128, 512, True, common.build_bert),
    Workload("bert-base 512 x 128", 512, 128, True, common.build_bert),
    Workload("modernbert-base 128 x 512", 128, 512, True, build_modernbert, has_window=True),
    Workload("gpt2-small 64 x 1024", 64, 1024, False, common.build_gpt2),
    Workload("t5-base 128 x 512/114", 128, 512, False, build_t5, 114),
)
CPU = (
    Workload("bert-tiny 16 x 128", 16, 128, True, partial(common.build_bert, **TINY)),
    Workload("gpt2 2/128 8 x 128", 8, 128, False, partial(common.build_gpt2, n_embd=128, n_layer=2, n_head=2)),
    Workload("t5 2/128 8 x 128/28", 8, 128, False, partial(build_t5, **TINY_T5), 28),
)


class Side:
    """A model with its optimizer and loss function."""

    def __init__(self, name: str, model: torch.nn.Module, loss: Callable[[Any], torch.Tensor], device: str) -> None:
        self.name, self.model, self.loss, self.device = name, model.train(), loss, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.first_step_seconds = 0.0

    def step(self, batch: Any) -> None:
        """Train on a batch."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, batches: list[Any], steps: int) -> float:
        """Train for some steps; return the seconds per step."""
        cycle = itertools.cycle(batches)
        return common.measure_seconds(
            lambda: self.step(next(cycle)), count=steps, clock=common.wall_clock, device=self.device
        )


class CudaGraphSide(Side):
    """Our model as `pretune pretrain` runs it: forward and backward become one CUDA graph after a few steps."""

    def __init__(self, name: str, model: Any, device: str) -> None:
        super().__init__(name, model, build_loss(model), device)
        self.runner = CudaGraphRunner(model)

    def step(self, batch: Batch) -> None:
        assert batch.targets is not None
        self.runner(
            self._run_forward_backward, batch, {"loss": torch.full((), len(batch.targets.labels), device=self.device)}
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _run_forward_backward(self, batch: Batch, counts: Any) -> Any:
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


def make_batches(
    work: Workload, vocab: int, device: str, count: int = 4
) -> tuple[list[Batch], list[dict[str, torch.Tensor]]]:
    """Create the same random tokens and targets for both sides."""
    ours, theirs = [], []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        if work.target:
            batch, inputs = make_encoder_decoder_batch(work, vocab, rng)
            ours.append(batch.to(device))
            theirs.append({name: value.to(device) for name, value in inputs.items()})
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
        batch = pt.batch(tokens.numpy())
        if work.masked:
            targets = Targets(index=index, labels=labels.view(-1)[index])
        else:
            keep = torch.arange(tokens.numel()).view(tokens.shape)[:, :-1].reshape(-1)
            targets = Targets(index=keep, labels=tokens[:, 1:].reshape(-1))
        ours.append(replace(batch, targets=targets).to(device))
        inputs = {"input_ids": tokens, "labels": labels}
        if work.masked:  # as its collator does; compiled, it selects a faster kernel with a mask than without
            inputs["attention_mask"] = torch.ones_like(tokens)
        theirs.append({name: value.to(device) for name, value in inputs.items()})
    return ours, theirs


def make_encoder_decoder_batch(
    work: Workload, vocab: int, rng: np.random.Generator
) -> tuple[Batch, dict[str, torch.Tensor]]:
    """Create random sources and targets; the decoder input is the targets shifted right, after start token 0."""
    source, target = (rng.integers(5, vocab, (work.rows, n)) for n in (work.length, work.target))
    decoder_input = np.concatenate((np.zeros_like(target[:, :1]), target[:, :-1]), 1)
    labels = torch.from_numpy(target)
    batch = pt.batch(source=source, target=decoder_input)
    targets = Targets(index=torch.arange(labels.numel()), labels=labels.view(-1))
    return replace(batch, targets=targets), {"input_ids": torch.from_numpy(source), "labels": labels}


def measure(work: Workload, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Build all sides of a workload, check that their losses agree, and measure them."""
    torch.manual_seed(0)
    with torch.device(device):
        reference = work.reference(options.dropout)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model = pt.load(folder).to(device)
        fp32_residual = pt.load(folder).to(device) if not options.narrow else model
    our_batches, their_batches = make_batches(work, model.spec.vocab, device)
    check_same_loss(model, reference, our_batches[0], their_batches[0], device)

    sides = [Side("pretune", model, build_loss(model), device)]
    if device == "cuda":
        use_bf16_residual(model).compile(dynamic=False)
        sides = [CudaGraphSide("pretune", model, device)]
        if not options.narrow:
            fp32_residual.compile(dynamic=False)
            sides.append(CudaGraphSide("pretune, fp32 residual", fp32_residual, device))
    if not options.ours:
        sides += build_peers(work, reference, their_batches[0], options, device)
    data = {side.name: our_batches if side.name.startswith("pretune") else their_batches for side in sides}
    for side in sides:
        side.first_step_seconds = side.run(data[side.name], 1)
        side.run(data[side.name], 4)
    rounds = {side.name: partial(side.run, data[side.name], options.steps) for side in sides}
    return build_row(work, model, sides, common.alternate(rounds, options.rounds, warmup=0), device)


def build_peers(
    work: Workload, reference: Any, batch: dict[str, torch.Tensor], options: argparse.Namespace, device: str
) -> list[Side]:
    """Build the requested variants of the peer, and check that each has the same loss on one batch."""
    variants = options.peers.split(",") if options.peers else list(PEERS) if device == "cuda" else ["eager"]
    sides = []
    for name in variants:
        if (name == "best" and work.target) or (name in ("best", "narrow") and work.has_window):
            continue
        model, run = reference, reference
        if name in ("best", "narrow"):
            model = copy.deepcopy(reference)
            common.disable_attention_mask(model)
            if options.multiple > 1:
                model.resize_token_embeddings(pad_to_multiple_of=options.multiple, mean_resizing=False)
        if name != "eager":
            run = torch.compile(model, mode=None if name == "compiled" else options.mode)
        kind = MasterWeightsSide if name == "narrow" else Side
        side = kind(PEERS[name], model, lambda batch, run=run: run(**batch).loss, device)
        losses = [compute_peer_loss(variant, batch, device) for variant in (reference, model)]
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
        model = pt.load(folder).to(device)
    if device == "cuda":
        use_bf16_residual(model).compile(dynamic=False)
    side = Side("pretune", model, build_loss(model), device)
    batches, _ = make_batches(work, model.spec.vocab, device)
    side.run(batches, 4)
    kinds = [torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profiler:
        side.run(batches, 4)
    table = profiler.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=32, max_name_column_width=90)
    columns = [line[:92] + line[-110:] if len(line) > 210 else line for line in table.splitlines()]
    print(work.name, *columns, sep="\n")


def use_bf16_residual(model: Any) -> Any:
    """Set the residual stream to bf16, as `pretune pretrain` does on CUDA."""
    for stack in (model.encoder, model.decoder):
        if stack is not None:
            stack.residual_dtype = torch.bfloat16
    return model


def build_loss(model: Any) -> Callable[[Batch], torch.Tensor]:
    """Build the mean loss of a batch as a function."""
    return lambda batch: model.loss(model.states(batch), batch).mean()


def check_same_loss(model: Any, reference: Any, batch: Batch, theirs: dict[str, torch.Tensor], device: str) -> None:
    """Raise AssertionError unless both sides have the same loss without dropout."""
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        ours = model.loss(model.eval().states(batch), batch).mean().item()
    peer = compute_peer_loss(reference, theirs, device)
    assert abs(ours - peer) < (0.02 if device == "cuda" else 1e-4), f"losses differ: {ours} and {peer}"


def compute_peer_loss(model: Any, batch: dict[str, torch.Tensor], device: str) -> float:
    """Return the peer's loss on a batch, not compiled and without dropout."""
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return float(model.eval()(**batch).loss)


def build_row(
    work: Workload, model: Any, sides: list[Side], seconds: dict[str, list[float]], device: str
) -> dict[str, Any]:
    """Return tokens per second, MFU and ratios of a workload."""
    tokens = work.tokens
    flops = compute_flops_per_token(work, model.spec)
    row: dict[str, Any] = {"work": work.name}
    rates = {name: tokens / value for name, value in common.compute_medians(seconds).items()}
    for side in sides:
        row[side.name] = {
            "tokens_per_second": round(rates[side.name]),
            "rounds": [round(tokens / value) for value in seconds[side.name]],
            "first_step_seconds": round(side.first_step_seconds, 2),
            **({"mfu": round(rates[side.name] * flops / PEAK, 4)} if device == "cuda" else {}),
        }
    return {**row, "ratio": common.compute_ratios(rates, digits=3)}


def compute_flops_per_token(work: Workload, spec: Any) -> float:
    """Return the training FLOPs per token; tokens of both sides count for an encoder-decoder."""
    if not work.target:
        return flops_per_token(spec, length=work.length, targets=0.15 if work.masked else 1.0)
    return flops_per_token(spec, length=work.length, target_length=work.target)


def main() -> None:
    parser = common.build_parser(__doc__)
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
    options = parser.parse_args()
    device = common.find_device()
    torch.set_float32_matmul_precision("high")
    rows = []
    for work in GPU if device == "cuda" else CPU:
        if options.only and not any(part in work.name for part in options.only.split(",")):
            continue
        if options.profile:
            profile(work, device, options.dropout)
            continue
        rows.append(measure(work, device, options))
        print(json.dumps(rows[-1], indent=1), flush=True)
        torch._dynamo.reset()
        if device == "cuda":
            torch.cuda.empty_cache()
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": common.describe_device(device),
        "threads": torch.get_num_threads(),
        "dropout": options.dropout,
    }
    common.write_result({"versions": versions, "rows": rows}, options.out)
    for row in rows:
        print(row["work"], row["pretune"]["tokens_per_second"], "tok/s;", row["ratio"])


if __name__ == "__main__":
    main()
