"""A fine-tuned run is a directory that transformers reads: the same labels, with the same probabilities."""

from pathlib import Path

import pytest
import torch

from pretune.runs.finetune.entry import finetune
from tests.runs import tasked

transformers = pytest.importorskip("transformers")


def test_a_classifier_says_the_same(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path)
    table = tasked.classes(tmp_path / "own.csv", 60)
    run = finetune(base, train=table, out=tmp_path / "run", lr=1e-2, steps=20, baselines="none")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run).eval()
    for text in ("the lovely sea.", "a dreadful old house.", "."):
        with torch.no_grad():
            theirs = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1).tolist()
        ours = run.predict([text])[0]
        assert list(ours["probabilities"].values()) == pytest.approx(theirs, abs=1e-5)
        assert model.config.id2label[max(range(2), key=theirs.__getitem__)] == ours["label"]
