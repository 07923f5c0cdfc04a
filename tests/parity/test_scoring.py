"""Scores of Hugging Face directories as one computes them with `transformers`: start tokens, masks and frames found."""

from pathlib import Path

import pytest
import torch

import pretune as pt
from tests.inference.scorers import TEXTS, tokenizer

transformers = pytest.importorskip("transformers")

SHORT = [text for text in TEXTS if len(text) < 40]


def saved(model: torch.nn.Module, kind: str, style: str, folder: Path) -> str:
    torch.manual_seed(0)
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer(kind, style).save(folder / "tok")
    for file in (folder / "tok").iterdir():
        file.rename(folder / file.name)
    (folder / "tok").rmdir()
    return str(folder)


def test_a_decoder(tmp_path: Path) -> None:
    vocab = tokenizer("bpe", "endoftext").vocab
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=vocab - 1
        )
    ).eval()
    folder = saved(theirs, "bpe", "endoftext", tmp_path)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    slow = []
    for text in SHORT:
        ids = torch.tensor([[read.bos_token_id, *read(text)["input_ids"]]])
        with torch.no_grad():
            rows = theirs(ids).logits[0].double().log_softmax(-1)
        slow.append(float(rows[:-1].gather(1, ids[0, 1:, None]).sum()))
    assert pt.score(pt.load(folder), SHORT) == pytest.approx(slow, abs=1e-4)


def test_an_encoder(tmp_path: Path) -> None:
    vocab = tokenizer("wordpiece", "cls-sep").vocab
    theirs = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40
        )
    ).eval()
    folder = saved(theirs, "wordpiece", "cls-sep", tmp_path)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    slow = []
    for text in SHORT:
        coded = read(text, return_tensors="pt")
        ids, words, total = coded["input_ids"], coded.word_ids(), 0.0
        for at, word in enumerate(words):
            if word is None:
                continue
            hidden = ids.clone()
            for other in range(at, len(words)):
                if words[other] == word:
                    hidden[0, other] = read.mask_token_id
            with torch.no_grad():
                total += float(theirs(hidden).logits[0, at].double().log_softmax(-1)[ids[0, at]])
        slow.append(total)
    assert pt.score(pt.load(folder), SHORT) == pytest.approx(slow, abs=1e-4)
