"""Logits of heads: one row for each sequence, whatever lies between them; calls that are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, MultiTask, adapt
from pretune.adaptation.heads.sequence import Choice, Classification, Regression
from pretune.adaptation.heads.token import Tagging
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.model import LanguageModel, build
from tests.contracts.tiny import tiny as small

IDS = [[1, 2, 3, 4, 5], [6], [7, 8], [9, 10, 11, 12], [13, 14, 15]]


def body() -> LanguageModel:
    return build(small("bert"), seed=0).eval()


def model(head: Any) -> ModelWithHead:
    return adapt(body(), head).eval()


@pytest.mark.parametrize(
    ("head", "classes"),
    [(Classification(classes=3), 3), (Regression(), 1), (Choice(), 1)],
    ids=["class", "score", "pick"],
)
@torch.no_grad()
def test_one_row_for_each_sequence(head: Any, classes: int) -> None:
    head_model = model(head)
    batch = pt.batch(IDS, row=6)  # rows with filler, and sequences beside each other
    assert batch.cells > len(IDS)
    logits = head_model(batch)
    assert logits.shape == (len(IDS), classes)
    single_logits = torch.cat([head_model(pt.batch([ids])) for ids in IDS])
    torch.testing.assert_close(logits, single_logits)


@torch.no_grad()
def test_of_several_tasks_the_one_of_the_batch() -> None:
    head_model = model(MultiTask((Classification(classes=3), Tagging(classes=2))))
    assert head_model(pt.batch(IDS, row=6)).shape == (len(IDS), 3)


@torch.no_grad()
def test_heads_of_tokens_are_split() -> None:
    batch = pt.batch(IDS, row=6)
    logits = model(Tagging(classes=4))(batch)
    assert [part.shape for part in batch.split(logits)] == [(len(ids), 4) for ids in IDS]


@torch.no_grad()
def test_what_cannot_be_split_is_refused() -> None:
    batch = pt.batch(IDS, row=6)
    wrong: list[Any] = [
        model(Classification(classes=3))(batch),
        torch.zeros(batch.cells, 2),
        torch.zeros(len(batch.tokens) + 1),
        torch.zeros(()),
        [1.0] * len(batch.tokens),
    ]
    for values in wrong:
        with pytest.raises(UsageError):
            batch.split(values)


@pytest.mark.parametrize("kind", ["bare", "headed"])
@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((torch.tensor([[1, 2]]),), {}, "Tensor"),
        (("a text",), {}, "str"),
        ((["a text"],), {}, "list"),
        (([[1, 2]],), {}, "list"),
        ((), {"input_ids": torch.tensor([[1, 2]]), "attention_mask": None}, "input_ids"),
        ((), {}, "batch"),
        ((None,), {}, "batch"),
    ],
    ids=["tensor", "text", "texts", "ids", "input_ids", "nothing", "none"],
)
def test_calls_of_other_libraries_say_to_use_a_batch(kind: str, arguments: Any, options: Any, named: str) -> None:
    any_model: Any = body() if kind == "bare" else model(Classification(classes=2))
    with pytest.raises(UsageError, match=named) as caught:
        any_model(*arguments, **options)
    assert "pt.batch" in str(caught.value)


def test_a_batch_by_its_name() -> None:
    assert body()(batch=pt.batch(IDS)).states.shape[0] > 0


class TestPaths:
    def test_fill_and_generate_take_directories(self, tmp_path: Path) -> None:
        from tests.runs import tasked

        encoder = tasked.make_base(tmp_path / "encoder")
        text = "the [MASK] sea"
        assert pt.fill(encoder, text) == pt.fill(str(encoder), text) == pt.fill(pt.load(encoder), text)
        decoder = tasked.make_base(tmp_path / "decoder", "gpt2-small", "bpe", "endoftext")
        options: Any = {"max_new_tokens": 4, "temperature": 0}
        assert pt.generate(decoder, ["the old"], **options) == pt.generate(pt.load(decoder), ["the old"], **options)

    def test_what_is_no_model(self, tmp_path: Path) -> None:
        for work in (lambda m: pt.fill(m, "a [MASK]"), lambda m: pt.generate(m, ["a"])):
            with pytest.raises(CheckpointError):
                work(tmp_path / "nothing")
            with pytest.raises(UsageError):
                work(5)
