"""`tune.dropout_factor`: dropout of the body in fine-tuning."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.core.errors import UsageError
from pretune.nn.lstm import LSTM
from pretune.nn.recurrent_stack import Recurrent
from pretune.runs.finetune.adapted_model import apply_task_spec
from tests.contracts.laws import answer
from tests.contracts.tiny import VOCAB, lay, sources_of, text
from tests.runs import tasked
from tests.runs.small import shrunk
from tests.selection import keep_quick

FAMILIES = keep_quick(
    ["bert-tiny", "gpt2-small", "t5-small", "deberta-v3-small", "xlnet-base", "ulmfit-small"],
    "bert-tiny",
    "ulmfit-small",
)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_dropout_training_is_evaluation(name: str) -> None:
    model = pt.build(name, **{key.removeprefix("model."): value for key, value in shrunk(name).items()}, vocab=VOCAB)
    sequences = text(6, 3, 8)
    sources = sources_of(3) if model.spec.shape == "encoder-decoder" else None
    batch = lay(model.spec, sequences, sources)
    expected = answer(model.eval(), batch)
    torch.manual_seed(0)
    assert not torch.equal(answer(model.train(), batch), expected)
    torch.testing.assert_close(answer(apply_task_spec(model, 0.0), batch), expected)


def test_rates_are_scaled(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path, "ulmfit-small", "words", "plain")
    overrides = {"tune.dropout_factor": 0.5, "tune.lm_epochs": 0, "train.workers": 0}
    arguments = {"steps": 1, "baselines": "none", "device": "cpu", "overrides": overrides}
    run = pt.finetune(base, train=tasked.classes(tmp_path / "own.csv", 40), out=tmp_path / "run", **arguments)
    stack = pt.load(run.path).model.spec.decoder
    assert isinstance(stack, Recurrent) and isinstance(stack.blocks[0], LSTM)
    assert (stack.token_dropout, stack.input_dropout, stack.blocks[0].weight_dropout) == (0.025, 0.2, 0.25)
    with pytest.raises(UsageError, match="dropout"):
        apply_task_spec(pt.load(base), 3.0)
