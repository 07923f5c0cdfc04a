"""A decoder that was saved as its bare class, given the head that its full class would have."""

from pathlib import Path

import pytest
import torch
import transformers as tf

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.inference.decode import generate_tokens
from pretune.inference.generation_config import GenerationConfig
from tests.parity.cases import BART, GPT, LLAMA, T5

BARE = [
    (tf.BartModel, tf.BartForConditionalGeneration, tf.BartConfig, {**BART, "forced_eos_token_id": None}),
    (tf.T5Model, tf.T5ForConditionalGeneration, tf.T5Config, T5),
    (tf.GPT2Model, tf.GPT2LMHeadModel, tf.GPT2Config, {**GPT, "eos_token_id": 5, "bos_token_id": 5}),
]


@pytest.mark.parametrize(("bare", "full", "config", "options"), BARE, ids=lambda value: getattr(value, "__name__", ""))
def test_as_the_full_class_does(bare: type, full: type, config: type, options: dict[str, int], tmp_path: Path) -> None:
    torch.manual_seed(1)
    bare(config(**options)).eval().save_pretrained(tmp_path / "bare")  # type: ignore[attr-defined]
    reference = full.from_pretrained(tmp_path / "bare").eval()  # type: ignore[attr-defined]
    assert pt.load(tmp_path / "bare").head is None
    model = pt.load(tmp_path / "bare", head="tied")
    prompt = [7, 30, 4, 18]
    options = {"decoder_start_token_id": model.spec.special.start} if model.spec.is_encoder_decoder else {}
    wanted = reference.generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False, pad_token_id=1, **options)
    (result,) = generate_tokens(model, [prompt], GenerationConfig(max_new_tokens=5))[0]
    assert result.tokens == wanted[0, 1 if model.spec.is_encoder_decoder else 4 :].tolist()[: len(result.tokens)]
    pt.save(model, tmp_path / "full")
    assert pt.load(tmp_path / "full").head is not None


def test_a_head_of_its_own_cannot_be_made_up(tmp_path: Path) -> None:
    tf.LlamaModel(tf.LlamaConfig(**LLAMA, tie_word_embeddings=False)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="head"):
        pt.load(tmp_path, head="tied")
    with pytest.raises(UsageError, match="head"):
        generate_tokens(pt.load(tmp_path), [[3, 4]])
