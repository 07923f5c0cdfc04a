"""Runs on contiguous streams: the state goes from window to window, into checkpoints, and through evaluations."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune.core.errors import DataError, PretuneError, UsageError
from pretune.core.types import Batch
from pretune.data.contiguous import ContiguousStream
from pretune.data.plan import BatchShape
from pretune.data.samples import Blocks
from pretune.data.shards import Shards
from pretune.models.catalog import resolve
from pretune.models.model import LanguageModel, build
from pretune.objectives.causal import CausalCorruption, CausalLM
from pretune.objectives.permuted import PermutationLM
from pretune.training.checkpoints import list_checkpoints, open_checkpoint
from pretune.training.distributed import Ranks
from pretune.training.loop import Loop
from pretune.training.optim import build_parameter_groups
from pretune.training.optim.sgd import SGD
from pretune.training.step import ModelWithLoss, TrainState
from pretune.training.validation import LOCAL_RANK, compute_validation_loss
from tests.data.corpora import FRAMES, random_documents, write
from tests.runs.configs import build_pretrain_config
from tests.runs.small import FAST, Prepared, shrunk

FAMILIES: dict[str, dict[str, Any]] = {
    "ulmfit-small": {"kind": "words", "style": "plain"},
    "xlnet-base": {"kind": "unigram", "style": "cls-last", "data.samples": "streams", "data.memory": 12},
}
VOCAB = 40


def pretrain(prepared: Prepared, out: Path, name: str = "ulmfit-small", steps: int = 12, **settings: Any) -> Path:
    options = {**FAMILIES[name], **settings}
    data = prepared(options.pop("kind"), options.pop("style"))
    overrides = {
        **shrunk(name),
        **FAST,
        "data.max_length": 12,
        "train.batch_tokens": 72,
        "train.checkpoint_every": 5,
        "train.max_checkpoints": 9,
        "train.optimizer": {"kind": "asgd", "lr": 1.0},
        "train.eval_every": 4,
        **options,
    }
    return pt.pretrain(name, data=data, out=out, steps=steps, device="cpu", overrides=overrides).path


def read_weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", [*FAMILIES])
def test_a_resumed_run_equals_one_that_was_not_stopped(prepared: Prepared, tmp_path: Path, name: str) -> None:
    """In the middle of an epoch; without the state the weights differ."""
    run = pretrain(prepared, tmp_path / "run", name)
    steps = [open_checkpoint(folder).step for folder in list_checkpoints(run / "checkpoints")]
    assert {5, 10} <= {*steps}
    for is_damaged in (False, True):
        copy = Path(shutil.copytree(run, tmp_path / f"copy-{is_damaged}"))
        (copy / "cost.json").unlink()
        for folder in list_checkpoints(copy / "checkpoints"):
            if open_checkpoint(folder).step > 5:
                shutil.rmtree(folder)
        with pytest.MonkeyPatch.context() as patch:
            if is_damaged:
                patch.setattr("pretune.training.trainer.restore_stream_state", lambda *arguments: None)
            pt.pretrain(out=copy, resume=True)
        assert (read_weights(copy) == read_weights(run)) is not is_damaged


@pytest.mark.parametrize("name", [*FAMILIES])
def test_the_state_of_every_stream_is_in_the_checkpoint(prepared: Prepared, tmp_path: Path, name: str) -> None:
    run = pretrain(prepared, tmp_path / "run", name, steps=6)
    checkpoint = next(c for c in map(open_checkpoint, list_checkpoints(run / "checkpoints")) if c.step == 5)
    tensors = checkpoint.load_tensors("streams")
    assert len(tensors) == {"ulmfit-small": 2, "xlnet-base": 1}[name]  # of one layer
    assert {len(tensor) for tensor in tensors.values()} == {6}  # 72 tokens, in windows of 12


@pytest.mark.slow
def test_worker_counts_give_equal_runs(prepared: Prepared, tmp_path: Path) -> None:
    runs = [pretrain(prepared, tmp_path / f"{n}", steps=6, **{"train.workers": n}) for n in (0, 1, 2)]
    assert len({read_weights(run) for run in runs}) == 1


def make_stream(folder: Path, rows: int = 1, length: int = 16) -> ContiguousStream:
    folder.mkdir()
    write(folder, random_documents(0, 30))
    samples = Blocks(length=length).open(Shards.open(folder), FRAMES["none"])
    return ContiguousStream(samples, BatchShape(rows=rows, length=length), seed=0, corruption=CausalCorruption())


class SmallVocabulary:
    """A stream with the tokens modulo a small vocabulary."""

    def __init__(self, stream: ContiguousStream) -> None:
        self.stream, self.wait_seconds, self.step, self.micro = stream, 0.0, 0, 1

    def batch(self, step: int, *, part: int = 0, parts: int = 1) -> Batch:
        batch = self.stream.batch(step, part=part, parts=parts)
        batch.tokens.remainder_(VOCAB)
        assert batch.targets is not None
        batch.targets.labels.remainder_(VOCAB)
        return batch

    def __next__(self) -> list[Batch]:
        self.step += 1
        return [self.batch(self.step - 1, part=part, parts=self.micro) for part in range(self.micro)]

    def split(self, micro: int) -> None:
        self.micro, self.step = micro, self.step - 1


def make_model(**settings: Any) -> LanguageModel:
    rates = ("output_dropout", "hidden_dropout", "input_dropout", "token_dropout", "weight_dropout")
    sizes = {"width": 12, "hidden": 16, "vocab": VOCAB}
    return build(resolve("ulmfit", {**sizes, **dict.fromkeys(rates, 0.0), **settings}), seed=1)


@pytest.mark.slow
def test_evaluation_equals_one_forward_of_the_whole_text(tmp_path: Path) -> None:
    stream, model = make_stream(tmp_path / "data"), make_model().eval()
    batches = SmallVocabulary(stream)
    count = len(stream.get_steps(0))
    assert count > 50
    metrics = compute_validation_loss(ModelWithLoss(model, CausalLM(), 16), batches, count, LOCAL_RANK)
    tokens = torch.cat([batches.batch(step).tokens for step in range(count)])
    with torch.no_grad():
        logits = model(pt.batch([tokens.tolist()])).logits
    loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[1:])
    assert metrics is not None
    assert abs(metrics["loss"] - float(loss)) < 1e-5
    alone = compute_validation_loss(ModelWithLoss(model, CausalLM()), batches, count, LOCAL_RANK)
    assert alone is not None and abs(alone["loss"] - float(loss)) > 1e-4  # without the state


def test_training_is_unchanged_by_an_evaluation(tmp_path: Path) -> None:
    batches = SmallVocabulary(make_stream(tmp_path / "data", rows=2))
    module = ModelWithLoss(make_model(), CausalLM(), 16)
    module(batches.batch(0))
    module.stream_state.finish_step()
    before = {name: tensor.clone() for name, tensor in module.stream_state.tensors.items()}
    assert before and all(tensor.any() for tensor in before.values())
    compute_validation_loss(module, batches, 2, LOCAL_RANK)
    assert all(torch.equal(module.stream_state.tensors[name], tensor) for name, tensor in before.items())


def test_gradients_stay_inside_a_window(tmp_path: Path) -> None:
    batches, module = SmallVocabulary(make_stream(tmp_path / "data")), ModelWithLoss(make_model(), CausalLM(), 16)
    module(batches.batch(0))
    module.stream_state.finish_step()
    assert not any(tensor.requires_grad for tensor in module.stream_state.tensors.values())
    states = {name: tensor.clone().requires_grad_() for name, tensor in module.stream_state.tensors.items()}
    module.stream_state.tensors = {**states}
    loss = module(batches.batch(1)).sum
    gradients = torch.autograd.grad(loss, [*states.values()])  # the state is read
    assert all(gradient.any() for gradient in gradients)
    assert not any(part["0.cell"].requires_grad for part in module.stream_state._parts)


class FailingOnce(CausalLM):
    """An objective that runs out of memory in its fifth pass, with all streams."""

    passes = 0

    def loss(self, model: Any, batch: Batch) -> Any:
        type(self).passes += 1
        if self.passes == 5 and batch.rows == 4:
            raise torch.OutOfMemoryError
        return CausalLM.loss(self, model, batch)


def train(batches: SmallVocabulary, objective: CausalLM = CausalLM()) -> tuple[Loop, dict[str, Tensor]]:  # noqa: B008
    model = make_model()
    loop = Loop(
        module=ModelWithLoss(model, objective, 16),
        optimizer=SGD(lr=0.5).build(build_parameter_groups(model)),
        state=TrainState(micro=batches.micro),
        ranks=Ranks(torch.device("cpu")),
        lr_factor=lambda state: 1.0,
        window=16,
    )
    loop.run(batches, lambda state: state.step >= 5)
    return loop, {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_micro_batches_continue_their_streams(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "data", rows=4)
    weights = []
    for micro in (1, 2, 4):
        batches = SmallVocabulary(stream)
        batches.micro = micro
        weights.append(train(batches)[1])
    for other in weights[1:]:
        for name, weight in weights[0].items():
            torch.testing.assert_close(other[name], weight, rtol=1e-5, atol=1e-6)


def test_a_step_that_runs_out_of_memory_starts_from_the_same_state(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "data", rows=4)
    loop, weights = train(SmallVocabulary(stream), FailingOnce())
    assert loop.state.micro == 2
    for name, weight in train(SmallVocabulary(stream))[1].items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-5, atol=1e-6)


def test_the_rate_is_scaled_by_the_length_of_a_window(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "data", rows=2)
    stream.varies = True
    batches, rates = SmallVocabulary(stream), []
    lengths = [stream[step].length for step in range(5)]
    assert len({*lengths}) > 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pretune.training.loop.set_rates", lambda optimizer, factor: rates.append(factor))
        train(batches)
    assert rates == [length / 16 for length in lengths]


def test_a_skipped_step_clears_the_state(tmp_path: Path) -> None:
    batches, module = SmallVocabulary(make_stream(tmp_path / "data")), ModelWithLoss(make_model(), CausalLM(), 16)
    module(batches.batch(0))
    module.stream_state.finish_step(torch.tensor(False))
    assert not any(tensor.any() for tensor in module.stream_state.tensors.values())


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("bert-tiny", "masked", {}, "'masked' with 'bert'"),
    ("gpt2-small", "causal", {}, "'causal' with 'gpt2'"),
    ("elmo-small", "bidirectional", {}, "'bidirectional' with 'elmo'"),
    ("ulmfit-small", "causal", {"model.backward": True}, "left to right"),
    ("ulmfit-small", "causal", {"train.compile": True}, "train.compile"),
    ("ulmfit-small", "causal", {"train.cuda_graphs": True}, "train.cuda_graphs"),
    ("ulmfit-small", "causal", {"data.memory": 4}, "remove data.memory"),
    ("ulmfit-small", "causal", {"data.mixing": {"kind": "smoothed"}}, "remove data.mixing"),
    ("ulmfit-small", "causal", {"data.samples": "blocks", "data.vary_windows": True}, "add data.samples=streams"),
]


@pytest.mark.parametrize(("name", "objective", "settings", "message"), REFUSED)
def test_runs_that_carry_no_state_are_refused(
    prepared: Prepared, name: str, objective: str, settings: dict[str, Any], message: str
) -> None:
    data = prepared("words", "cls-sep" if name.startswith("bert") else "plain")
    with pytest.raises(UsageError, match=message):
        build_pretrain_config(
            name, data=data, objective=objective, steps=1, overrides={"data.samples": "streams", **settings}
        )


def test_too_little_text_is_refused_before_anything_is_written(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than a window of 12"):
        pretrain(prepared, tmp_path / "run", **{"train.batch_tokens": 12 * 4096})
    assert not (tmp_path / "run").exists()


def test_models_that_read_backward_have_blocks_by_default(prepared: Prepared) -> None:
    data = prepared("words", "plain")
    assert build_pretrain_config("ulmfit-small", data=data, steps=1).data.samples == "streams"
    config = build_pretrain_config("ulmfit-small", data=data, steps=1, overrides={"model.backward": True})
    assert config.data.samples == "blocks"


def test_without_a_memory_windows_are_alone(prepared: Prepared, tmp_path: Path) -> None:
    run = pretrain(prepared, tmp_path / "run", "xlnet-base", steps=6, **{"data.memory": 0})
    checkpoints = map(open_checkpoint, list_checkpoints(run / "checkpoints"))
    assert not any("streams" in checkpoint.groups for checkpoint in checkpoints)


def test_objectives_say_if_they_read_streams() -> None:
    assert CausalLM().allows_streams and PermutationLM().allows_streams
    assert not pt.objective("masked").allows_streams
    assert issubclass(UsageError, PretuneError)
