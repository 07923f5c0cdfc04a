"""Heads inside peft's files (`modules_to_save`): what we saved it reads, head and all, and the other way."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads import HEADS
from pretune.adaptation.methods import METHODS, apply_method, load, save
from pretune.core.errors import CheckpointError
from tests.parity.test_peft import TOKENS, base, stir

peft = pytest.importorskip("peft")

AUTO = {
    "classification": tf.AutoModelForSequenceClassification,
    "tagging": tf.AutoModelForTokenClassification,
    "span": tf.AutoModelForQuestionAnswering,
    "choice": tf.AutoModelForMultipleChoice,
}
SETTINGS: dict[str, dict[str, Any]] = {"classification": {"classes": 3}, "tagging": {"classes": 4}}
SMALL: dict[str, dict[str, Any]] = {
    "lora": {"rank": 3, "targets": ("q", "v", "down")}, "ia3": {}, "prefix": {"count": 4}
}  # fmt: skip


def started(name: str, head: str, folder: Path) -> tuple[Any, ModelWithHead]:
    """The class with a head in both libraries; theirs has another head than ours, for it is to be read."""
    base(name, folder)
    ours = adapt(pt.load(folder / "base"), HEADS.get(head)(**SETTINGS.get(head, {}))).eval()
    pt.save(ours, folder / "headed")
    kept = {"pad_token_id": 0} if ours.model.spec.shape == "decoder" else {}
    theirs = AUTO[head].from_pretrained(folder / "headed", attn_implementation="eager", **kept).eval()
    stir((p for n, p in theirs.named_parameters() if any(part in n for part in ("classifier", "score", "qa_"))), 0.5)
    return theirs, ours


@torch.no_grad()
def said(theirs: Any, ours: ModelWithHead, head: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = TOKENS.clamp(min=3)  # none of padding, after which a decoder would not look
    mask = torch.ones_like(tokens)
    batch = pt.batch(tokens.tolist())
    actual = ours(batch)
    if head == "choice":
        return theirs(input_ids=tokens[None], attention_mask=mask[None]).logits[0, :, None], actual
    out = theirs(input_ids=tokens, attention_mask=mask)
    if head == "span":
        return torch.stack((out.start_logits, out.end_logits), -1), actual.view(2, -1, 2)
    return out.logits, actual if head == "classification" else actual.view(2, -1, actual.shape[-1])


CELLS = [
    ("bert-masked", "classification", "lora"), ("bert-masked", "tagging", "prefix"), ("gpt2", "classification", "lora"),
    ("bert-masked", "choice", "lora"), ("bert-masked", "classification", "prefix"), ("bert-masked", "tagging", "ia3"),
    ("bert-masked", "span", "lora"), ("roberta", "classification", "lora"), ("electra-bare", "classification", "ia3"),
    ("gpt2", "tagging", "ia3"), ("llama-gqa-bias", "classification", "lora"), ("distilbert", "classification", "lora"),
]  # fmt: skip
EVERY = [cell if i < 4 else pytest.param(*cell, marks=pytest.mark.slow) for i, cell in enumerate(CELLS)]


@pytest.mark.parametrize(("name", "head", "method"), EVERY)
def test_our_head_is_read_by_peft(name: str, head: str, method: str, tmp_path: Path) -> None:
    theirs, ours = started(name, head, tmp_path)
    made = METHODS.get(method)(**SMALL[method])
    stir((ours.get_parameter(path) for path in apply_method(ours, made)), 0.3)
    plain, _ = said(theirs, ours, head)
    save(ours, made, tmp_path / "run", base=tmp_path / "base")
    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path / "run").eval()
    expected, actual = said(wrapped, ours, head)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    assert (expected - plain).abs().max() > 1e-3
    again, _ = load(tmp_path / "run")
    assert isinstance(again, ModelWithHead)
    torch.testing.assert_close(said(wrapped, again, head)[1], actual, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "head", "method"), [*EVERY[:3], *EVERY[4:]])
def test_their_head_is_read_by_us(name: str, head: str, method: str, tmp_path: Path) -> None:
    theirs, ours = started(name, head, tmp_path)
    task = {"classification": "SEQ_CLS", "tagging": "TOKEN_CLS", "span": "QUESTION_ANS"}[head]
    configs = {
        "lora": lambda: peft.LoraConfig(task_type=task, r=3, target_modules=_places(name)),
        "ia3": lambda: peft.IA3Config(task_type=task, target_modules=_places(name), feedforward_modules=[]),
        "prefix": lambda: peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=4),
    }
    wrapped = peft.get_peft_model(theirs, configs[method]()).eval()
    stir((p for p in wrapped.parameters() if p.requires_grad), 0.3)
    wrapped.save_pretrained(tmp_path / "theirs")
    again, _ = load(tmp_path / "theirs", base=tmp_path / "base")
    assert isinstance(again, ModelWithHead) and type(again.spec) is type(ours.spec)
    expected, actual = said(wrapped, again, head)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def _places(name: str) -> list[str]:
    layers = {"gpt2": ["c_attn"], "llama-gqa-bias": ["q_proj", "v_proj"], "distilbert": ["q_lin", "v_lin"]}
    return layers.get(name, ["query", "value"])


def test_their_head_for_another_model(tmp_path: Path) -> None:
    theirs, _ = started("bert-masked", "classification", tmp_path)
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    wrapped.save_pretrained(tmp_path / "theirs")
    base("gpt2", tmp_path / "other")
    with pytest.raises(CheckpointError, match=str(tmp_path)) as error:
        load(tmp_path / "theirs", base=tmp_path / "other" / "base")
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="nowhere"):
        load(tmp_path / "theirs", base=tmp_path / "nowhere")
