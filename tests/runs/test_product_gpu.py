"""The product on a GPU: every method from training to a file and back, and what is done with models that lie there."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from pretune.adaptation import METHODS
from pretune.adaptation.surgery import add_blocks, add_task_tokens, replace_vocabulary, resize_positions
from tests.runs import tasked

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICE = "cuda"
TOKENIZERS = {
    "bert-tiny": ("wordpiece", "cls-sep"),
    "modernbert-base": ("wordpiece", "cls-sep"),  # queries, keys and values are one layer of the reference
    "gpt2-small": ("bpe", "endoftext"),
    "llama3-8b": ("bpe", "endoftext"),
    "t5-small": ("unigram", "sentinels"),
}
QUICK = {"train.eval_examples": 20, "train.compile": False, "tune.text_to_text": False}
TEXTS = [tasked.GOOD + " old house by the sea.", "A " + tasked.BAD + " road.", "The quiet river and the grey stone."]


@pytest.fixture(scope="module", params=TOKENIZERS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of every family."""
    kind, style = TOKENIZERS[request.param]
    return tasked.make_base(tmp_path_factory.mktemp(request.param), request.param, kind=kind, style=style)


@pytest.mark.parametrize("method", METHODS.list_names())
def test_a_method_from_training_to_prediction(base: Path, method: str, table: Path, tmp_path: Path) -> None:
    """What a GPU trains and saves predicts on a CPU what it predicts on a GPU."""
    options = {"train": table, "method": method, "steps": 4, "baselines": "none", "overrides": QUICK}
    run = pt.finetune(base, out=tmp_path / "run", device=DEVICE, **options)
    found, expected = (pt.predict(run.path, TEXTS, device=device) for device in (DEVICE, "cpu"))
    for row, expected_row in zip(found, expected, strict=True):
        assert row["probabilities"] == pytest.approx(expected_row["probabilities"], abs=0.02)


def test_a_model_is_saved_from_the_device(base: Path, tmp_path: Path) -> None:
    model = pt.load(base, device=DEVICE)
    pt.save(model, tmp_path / "copy")
    for name, tensor in pt.load(tmp_path / "copy", device="cpu").state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name].cpu()), name


def test_surgery_on_the_device(base: Path) -> None:
    model = pt.load(base, device=DEVICE)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    results = [replace_vocabulary(model, tokenizer), add_task_tokens(model), add_blocks(model, 1)]
    if model.spec.max_length is not None:
        results.append(resize_positions(model, model.spec.max_length + 8))
    for result in results:
        assert {parameter.device.type for parameter in result.parameters()} == {torch.device(DEVICE).type}


def test_texts_of_every_kind(base: Path) -> None:
    model = pt.load(base, device=DEVICE).eval()
    reference = pt.load(base, device="cpu").eval()
    vectors = [torch.from_numpy(pt.embed(side, TEXTS)) for side in (model, reference)]
    torch.testing.assert_close(vectors[0], vectors[1], atol=1e-2, rtol=1e-2)
    if model.spec.decoder is not None:
        assert len(pt.generate(model, TEXTS, max_new_tokens=6)) == len(TEXTS)
    if model.spec.shape == "decoder":
        assert pt.score(model, TEXTS) == pytest.approx(pt.score(reference, TEXTS), abs=0.1)
    if model.spec.shape == "encoder":
        assert len(pt.fill(model, "The [MASK] river.")) == 1
    assert pt.analyze_attention(model, texts=TEXTS) is not None
