"""Training throughput of the encoder and denoising families, compared with transformers compiled, on the same batches.

    python -m bench.speed.family_throughput [--only deberta,bart] [--kernels] [--device cpu] [--out FILE]

ELECTRA (generator and discriminator), BART (infilling), ModernBERT (30 % masked), DeBERTa (masked tokens and replaced
tokens) and ALBERT: forward, backward and fused AdamW, bf16 autocast with fp32 weights on CUDA, random tokens in full
rows. Ours is the step of `pretune pretrain`: objective, bf16 stream, compiled, CUDA graph. The peer has the same
weights, dropout rates and shapes, and its fastest attention: SDPA without a mask (`core_throughput.py`, variant best);
with a mask for ModernBERT, whose layers have windows; eager for DeBERTa, which has nothing else. It computes logits at
all positions; for ModernBERT also at the targets only, which is its option. It has no pair: `PlainPair` is two of its
models. It has no mask decoder either: DeBERTa has a second row of ours without one; in its pair only ours has it.

Before timing, the losses of both sides without dropout are compared; a row states it if they differ. Workloads compile
at the same time, each in its own process, as far as they fit into memory (`--memory`), and are then measured one at a
time: medians of alternated rounds. `--kernels` adds the slowest kernels of our step. MFU counts matrix products, the
head's at the targets only, on both sides (docs/cost.md). On a CPU all is tiny and in fp32, and nothing is compiled.
"""

import argparse
import copy
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import pretune as pt
from bench import common
from bench.speed.core_throughput import PEAK, Side
from bench.speed.plain_torch import PlainPair
from pretune.core.types import Batch, Targets
from pretune.models.catalog import convert_to_shape, resolve
from pretune.models.cost import flops_per_token
from pretune.training.cuda_graph import CudaGraphRunner

OURS, PEER = "pretune", "transformers + compile"
NO_DECODER, SPARSE = "pretune, no mask decoder", "transformers + compile, logits at targets"


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    model: str
    peer: str  # class of transformers, of the generator for a pair; "": no peer
    rows: int
    length: int
    memory: float  # GB while it compiles, for `--memory`
    share: float = 0.15  # of masked tokens
    target: int = 0  # target length of an encoder-decoder
    is_pair: bool = False
    has_mask: bool = False  # the peer's attention needs a mask, or is eager
    backends: tuple[str, ...] = ()  # measure our attention backends instead of a peer

    @property
    def tokens(self) -> int:
        return self.rows * (self.length + self.target)


GPU = (
    Workload("deberta-v3-base MLM 32 x 512", "deberta-v3-base", "DebertaV2ForMaskedLM", 32, 512, 38, has_mask=True),
    Workload("deberta-v3-base RTD 32 x 512", "deberta-v3-base", "DebertaV2ForMaskedLM", 32, 512, 45, is_pair=True),
    Workload("deberta-v3-base backends 16 x 1024", "deberta-v3-base", "", 16, 1024, 20, backends=("rows", "tiles")),
    Workload("modernbert-base 64 x 512", "modernbert-base", "ModernBertForMaskedLM", 64, 512, 28, 0.3, has_mask=True),
    Workload("modernbert-base 32 x 1024", "modernbert-base", "ModernBertForMaskedLM", 32, 1024, 28, 0.3, has_mask=True),
    Workload("electra-base RTD 64 x 512", "electra-base", "ElectraForMaskedLM", 64, 512, 25, is_pair=True),
    Workload("bart-base 64 x 416/512", "bart-base", "BartForConditionalGeneration", 64, 416, 25, target=512),
    Workload("albert-base 64 x 512", "albert-base", "AlbertForMaskedLM", 64, 512, 20),
)
TINY = {"width": 32, "depth": 2, "heads": 4, "hidden": 64}
CPU = tuple(
    replace(
        work,
        name=f"{work.name} / 16",
        rows=2,
        length=work.length // 16,
        target=work.target // 16,
        backends=work.backends and ("rows", "eager"),
    )
    for work in GPU
)


class ObjectiveSide(Side):
    """Our model with its objective, as `pretune pretrain` runs it: on CUDA compiled, and a graph after three steps."""

    def __init__(self, name: str, model: Any, objective: Any, device: str) -> None:
        super().__init__(name, model, lambda batch: objective.loss(model, batch).mean(), device)
        self.objective = objective
        self.runner = CudaGraphRunner(model) if device == "cuda" else None
        if device == "cuda":
            for part in model.modules():
                if hasattr(part, "residual_dtype"):
                    part.residual_dtype = torch.bfloat16
            model.compile(dynamic=False)

    def step(self, batch: Batch) -> None:
        if self.runner is None:
            return super().step(batch)
        self.runner(self._run_forward_backward, batch, self.objective.counts(batch))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return None

    def _run_forward_backward(self, batch: Batch, counts: Any) -> Any:
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.objective.loss(self.model, batch)
        loss.normalize(counts).backward()
        return loss.detach()


def make_batches(work: Workload, spec: Any, device: str, count: int = 4) -> tuple[list[Batch], list[dict[str, Tensor]]]:
    """Create the same random tokens and targets for both sides."""
    ours, theirs = [], []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        tokens = torch.from_numpy(rng.integers(5, min(spec.vocab, 50_000), (work.rows, work.length)))
        if work.target:
            labels = torch.from_numpy(rng.integers(5, spec.vocab, (work.rows, work.target)))
            decoder_input = F.pad(labels[:, :-1], (1, 0), value=spec.special.start)
            batch = pt.batch(source=tokens.numpy(), target=decoder_input.numpy())
            targets = Targets(index=torch.arange(labels.numel()), labels=labels.view(-1))
            inputs = {"input_ids": tokens, "labels": labels}
        else:
            index = torch.from_numpy(np.sort(rng.permutation(tokens.numel())[: int(work.share * tokens.numel())]))
            labels = torch.full_like(tokens, -100)
            labels.view(-1)[index] = tokens.view(-1)[index]
            tokens.view(-1)[index] = 4
            batch, targets = pt.batch(tokens.numpy()), Targets(index=index, labels=labels.view(-1)[index])
            inputs = {"input_ids": tokens, "labels": labels}
            inputs |= {"index": index} if work.is_pair else {}
            inputs |= {"attention_mask": torch.ones_like(tokens)} if work.has_mask else {}
        ours.append(replace(batch, targets=targets).to(device))
        theirs.append({name: value.to(device) for name, value in inputs.items()})
    return ours, theirs


class Worker:
    """One workload: builds and compiles its sides, then measures them when it is its turn."""

    def __init__(self, work: Workload, options: argparse.Namespace) -> None:
        torch.set_float32_matmul_precision("high")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.work, self.options, self.device = work, options, options.device
        torch.manual_seed(0)
        settings: dict[str, Any] = TINY if self.device == "cpu" else {}
        settings = settings | ({"positions": work.length} if work.length > 512 and "deberta" in work.model else {})
        spec: Any = resolve(work.model, settings)
        spec = convert_to_shape(spec, ["generator-discriminator"]) if work.is_pair else spec
        self.models = (spec.generator, spec.discriminator) if work.is_pair else (spec,)
        model = pt.build(spec, device=self.device)
        self.objective = pt.objective("replaced_token" if work.is_pair else "denoising" if work.target else "masked")
        self.ours, self.theirs = make_batches(work, self.models[0], self.device)
        self.checks: dict[str, Any] = {}
        self.is_same = True
        self.sides: list[Side] = []
        if work.backends:
            self._add_backends(model)
            return
        peer = self._build_peer(model)
        self.checks = self._check_same(model, peer)
        if not work.is_pair and getattr(model, "mask_decoder", None) is not None:
            plain = copy.deepcopy(model)
            plain.mask_decoder = None
            self.sides.append(ObjectiveSide(NO_DECODER, plain, self.objective, self.device))
        self.sides.insert(0, ObjectiveSide(OURS, model, self.objective, self.device))
        self._add_peer(PEER, peer)
        if hasattr(peer, "sparse_prediction"):
            sparse = copy.deepcopy(peer)
            sparse.sparse_prediction = True
            self._add_peer(SPARSE, sparse)

    def _add_peer(self, name: str, peer: Any) -> None:
        run = torch.compile(peer) if self.device == "cuda" else peer
        get_loss: Callable[[Any], Tensor] = lambda batch: getattr(out := run(**batch), "loss", out)  # noqa: E731
        self.sides.append(Side(name, peer, get_loss, self.device))
        for part in peer.modules():
            if hasattr(part, "layerdrop"):  # BART's random test for it, though it is 0, would split the compiled graph
                part.training = False

    def _add_backends(self, model: Any) -> None:
        """Build a side for each attention backend; losses and gradients must be those of the exact one."""
        results = {}
        batch = make_batches(replace(self.work, rows=2), self.models[0], self.device, 1)[0][0]
        for backend in ("eager", *self.work.backends):
            model.eval().attention_backend = backend
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.objective.loss(model, batch).mean()
            loss.backward()
            gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            results[backend] = loss.item(), gradients
            model.zero_grad(set_to_none=True)
        exact_loss, exact = results["eager"]
        for backend in self.work.backends:
            loss, gradients = results[backend]
            error = float((gradients - exact).norm() / exact.norm())
            self.checks[backend] = {"loss": round(loss - exact_loss, 5), "gradient_error": round(error, 5)}
            self.is_same &= abs(loss - exact_loss) < 0.02 and error < 0.05
            side = copy.deepcopy(model)
            side.attention_backend = backend
            self.sides.append(ObjectiveSide(f"{OURS}, {backend}", side, self.objective, self.device))

    def _build_peer(self, model: Any) -> Any:
        """Return the peer with our weights."""
        with tempfile.TemporaryDirectory() as folder:
            pt.save(model, folder)
            if self.work.is_pair:
                peer: Any = PlainPair(model, folder, self.work.peer)
            else:
                peer = getattr(transformers, self.work.peer).from_pretrained(folder)
        if not self.work.has_mask and "deberta" not in self.work.model:
            for part in (peer.generator, peer.discriminator) if self.work.is_pair else (peer,):
                common.disable_attention_mask(part)
        return peer.to(self.device)

    @torch.no_grad()
    def _check_same(self, model: Any, peer: Any) -> dict[str, Any]:
        """Compare losses, and for a pair the logits of the detector, without dropout and mask decoder."""
        model.eval()
        peer.eval()
        batch, inputs = self.ours[0], dict(self.theirs[0])
        generator = model.generator if self.work.is_pair else model
        decoder, generator.mask_decoder = generator.mask_decoder, None
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            ours = generator.loss(generator.states(batch), batch).mean().item()
            if self.work.is_pair:
                inputs.pop("index")
            theirs = float((peer.generator if self.work.is_pair else peer)(**inputs).loss)
            checks = {"loss": round(ours, 4), "their_loss": round(theirs, 4)}
            self.is_same &= abs(ours - theirs) < (0.03 if self.device == "cuda" else 1e-3)
            if self.work.is_pair:
                logits = (model.detect(batch).view(inputs["input_ids"].shape), peer.detect(inputs["input_ids"]))
                checks["detector_difference"] = round(float((logits[0] - logits[1]).abs().max()), 4)
                self.is_same &= checks["detector_difference"] < (0.2 if self.device == "cuda" else 1e-3)
        generator.mask_decoder = decoder
        model.train()
        peer.train()
        return checks

    def get_batches(self, side: Side) -> list[Any]:
        return self.ours if isinstance(side, ObjectiveSide) else self.theirs

    def compile(self) -> None:
        """Run the first steps of each side; CUDA graphs are recorded later, since they hold their memory.

        A side that has not finished at the deadline is left out, and those after it.
        """
        signal.signal(signal.SIGALRM, _raise_timeout)
        signal.setitimer(signal.ITIMER_REAL, max(self.options.deadline - time.time(), 0.1))
        done: list[Side] = []
        try:
            for side in self.sides:
                side.first_step_seconds = side.run(self.get_batches(side), 1)
                side.run(self.get_batches(side), 1)
                done.append(side)
                self.free_memory()
        except Exception:  # the compiler may wrap the one of the signal
            if not done or time.time() < self.options.deadline:
                raise
            names = ", ".join(side.name for side in self.sides[len(done) :])
            print(f"  {self.work.name}: not compiled in time: {names}", flush=True)
            self.sides = done
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def free_memory(self) -> None:
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def measure(self) -> dict[str, Any]:
        """Measure all sides, alone on the device; return the row."""
        memory = {}
        for side in self.sides:
            memory[side.name] = self._measure_memory(side)
        rounds = {side.name: partial(side.run, self.get_batches(side), self.options.steps) for side in self.sides}
        seconds = common.alternate(rounds, self.options.rounds, warmup=0)
        tokens = self.work.tokens
        rates = {name: tokens / value for name, value in common.compute_medians(seconds).items()}
        row: dict[str, Any] = {"work": self.work.name, "same": self.is_same, "checks": self.checks}
        for side in self.sides:
            row[side.name] = {
                "tokens_per_second": round(rates[side.name]),
                "rounds": [round(tokens / value) for value in seconds[side.name]],
                "first_step_seconds": round(side.first_step_seconds, 1),
                "peak_gb": round(memory[side.name] / 1e9, 1),
                "mfu": round(rates[side.name] * self._compute_flops(side) / PEAK, 4),
            }
        row["ratio"] = common.compute_ratios(rates) if OURS in rates else {}
        if NO_DECODER in rates and PEER in rates:
            row["ratio"][NO_DECODER] = round(rates[NO_DECODER] / rates[PEER], 2)
        if self.options.kernels:
            row["kernels"] = {
                side.name: common.list_kernels(partial(side.run, self.get_batches(side)), self.device)
                for side in self.sides
                if isinstance(side, ObjectiveSide) and side.name != NO_DECODER
            }
        return row

    def _measure_memory(self, side: Side) -> float:
        """Warm up; return the peak memory without that of the other sides."""
        if self.device == "cpu":
            side.run(self.get_batches(side), 1)
            return 0.0
        tensors = [*side.model.parameters()]
        tensors += [value for state in side.optimizer.state.values() for value in state.values()]
        others = torch.cuda.memory_allocated() - sum(tensor.nbytes for tensor in tensors if tensor.is_cuda)
        torch.cuda.reset_peak_memory_stats()
        side.run(self.get_batches(side), 5)
        return torch.cuda.max_memory_allocated() - others

    def _compute_flops(self, side: Side) -> float:
        """Return the training FLOPs per token, summed over the models of a pair; not all sides have a mask decoder."""
        if self.work.target:
            return flops_per_token(self.models[0], length=self.work.length, target_length=self.work.target)
        has_decoder = isinstance(side, ObjectiveSide) and side.name != NO_DECODER
        specs = self.models if has_decoder else tuple(replace(spec, mask_decoder=None) for spec in self.models)
        return sum(flops_per_token(spec, length=self.work.length, targets=self.work.share) for spec in specs)


def _raise_timeout(*_: Any) -> None:
    raise TimeoutError("not compiled in time")


def print_row(row: dict[str, Any]) -> None:
    """Print a row: its sides, ratios and slowest kernels."""
    if "error" in row:
        print(f"{row['work']}: {row['error']}", flush=True)
        return
    print(f"{row['work']}   {'same' if row['same'] else 'NOT THE SAME'}: {row['checks']}")
    for name, side in row.items():
        if isinstance(side, dict) and "tokens_per_second" in side:
            ratio = f"   ratio {row['ratio'][name]:.2f}" if name in row["ratio"] else ""
            spread = (max(side["rounds"]) - min(side["rounds"])) / side["tokens_per_second"]
            print(
                f"  {name:42} {side['tokens_per_second']:9,} tok/s ±{spread:.1%}  MFU {side['mfu']:.1%}  "
                f"{side['peak_gb']:5} GB  first step {side['first_step_seconds']:5} s{ratio}"
            )
    for name, kernels in row.get("kernels", {}).items():
        for kernel in kernels:
            print(f"    {name:15} {kernel['share']:6.1%} x{kernel['calls']:<4} {kernel['name'][:88]}")
    print(end="", flush=True)


def main() -> None:
    parser = common.build_parser(__doc__)
    common.add_device_option(parser)
    parser.add_argument("--only", default="", help="comma-separated parts of workload names")
    parser.add_argument("--kernels", action="store_true", help="list the five slowest kernels of our step")
    parser.add_argument("--rounds", type=int, default=3, help="alternated rounds; the median counts")
    parser.add_argument("--steps", type=int, default=6, help="steps per round")
    parser.add_argument("--memory", type=float, default=135.0, help="GB for processes that compile at the same time")
    parser.add_argument("--compile-seconds", type=float, default=600.0, help="leave out what takes longer")
    parser.add_argument("--row-seconds", type=float, default=120.0, help="maximum time of a measurement")
    options = parser.parse_args()
    works = [
        work
        for work in (GPU if options.device == "cuda" else CPU)
        if not options.only or any(part in work.name for part in options.only.split(","))
    ]
    options.deadline = time.time() + options.compile_seconds - 5  # of the processes, before they are stopped
    rows: list[dict[str, Any]] = []
    result = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": common.describe_device(options.device),
        "rows": rows,
    }
    for row in common.measure_alone(
        [(work, partial(Worker, work, options)) for work in works],
        memory=options.memory,
        compile_seconds=options.compile_seconds,
        row_seconds=options.row_seconds,
    ):
        rows.append(row)
        print_row(row)
        common.write_result(result, options.out)


if __name__ == "__main__":
    main()
