"""From text to losses against `transformers`: its tokenizer, its padded batches, and the labels its examples make.

Thirty steps with the same examples in every batch, AdamW on both sides, in fp32 and without dropout.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

import pretune as pt
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example
from pretune.tasks.stream import TaskStream
from tests.selection import keep_quick
from tests.tasks.small import TEXT, examples_of, task_of, tokenizer

LENGTH, STRIDE, BATCH, STEPS = 32, 8, 4, 30
SIZE = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 52}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def read(name: str, *texts: Any, **options: Any) -> Any:
    """Their tokenizer's batch of texts, or of pairs of them."""
    given = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer(name).raw, pad_token="[PAD]")
    return given(*texts, truncation=options.pop("truncation", True), max_length=LENGTH, padding=True,
                 return_tensors="pt", return_token_type_ids=True, **options)  # fmt: skip


def pairs(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    actual = read("bert", [one.text for one in examples], [one.pair for one in examples])
    return {**actual, "labels": torch.tensor([one.label for one in examples])}


def tags(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """As in their token classification script: the first token of a word has its label."""
    actual = read("bert", [[*one.words] for one in examples], is_split_into_words=True)
    labels = torch.full_like(actual["input_ids"], -100)
    names = task_of("tagging").labels
    for number, example in enumerate(examples):
        before = None
        for at, word in enumerate(actual.word_ids(number)):
            if word is not None and word != before:
                labels[number, at] = names.index(example.tags[word])
            before = word
    return {**actual, "labels": labels}


def windows(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """As in their question answering script: windows, and the tokens that the answer's characters are in."""
    actual = read("bert", [one.text for one in examples], [one.pair for one in examples], truncation="only_second",
                 stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True)  # fmt: skip
    owner, places = actual.pop("overflow_to_sample_mapping"), actual.pop("offset_mapping")
    ends: list[tuple[int, int]] = []
    for number, sample in enumerate(owner.tolist()):
        inside = [at for at, which in enumerate(actual.sequence_ids(number)) if which == 1]
        span = examples[sample].spans[0] if examples[sample].spans else None
        hits = (
            []
            if span is None
            else [at for at in inside if places[number, at, 1] > span[0] and places[number, at, 0] < span[1]]
        )
        first, last = (int(places[number, inside[0], 0]), int(places[number, inside[-1], 1])) if inside else (0, 0)
        whole = span is not None and first <= span[0] and last >= span[1]
        ends.append((hits[0], hits[-1]) if whole else (0, 0))
    return {
        **actual,
        "start_positions": torch.tensor([a for a, _ in ends]),
        "end_positions": torch.tensor([b for _, b in ends]),
    }


def options(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    many = len(examples[0].choices)
    actual = read(
        "bert", [one.text for one in examples for _ in one.choices], [c for one in examples for c in one.choices]
    )
    return {
        **{name: value.view(len(examples), many, -1) for name, value in actual.items()},
        "labels": torch.tensor([one.label for one in examples]),
    }


def last_token(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Start, delimiter and end around texts, padded to the right with a token that is none of these."""
    actual = tokenizer("gpt2")
    end, pad = actual.special["eos"], actual.vocab
    rows = [
        [
            end,
            *actual.encode(one.text, add_special_tokens=False)[:9],
            end,
            *actual.encode(one.pair or "", add_special_tokens=False)[:9],
            end,
        ]
        for one in examples
    ]
    long = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [pad] * (long - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (long - len(row)) for row in rows]),
        "labels": torch.tensor([one.label for one in examples]),
    }


CASES: dict[str, tuple[str, str, Any]] = {
    "BertForSequenceClassification": ("bert", "pair", pairs),
    "BertForTokenClassification": ("bert", "tagging", tags),
    "BertForQuestionAnswering": ("bert", "span", windows),
    "BertForMultipleChoice": ("bert", "choice", options),
    "GPT2ForSequenceClassification": ("gpt2", "pair", last_token),
}


def reference_of(name: str, shape: str, kind: str) -> Any:
    torch.manual_seed(5)
    size = tokenizer(shape).vocab + 3
    labels = {"num_labels": len(task_of(kind).labels)} if task_of(kind).labels else {}
    if shape == "gpt2":
        still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = tf.GPT2Config(n_embd=36, n_layer=2, n_head=4, n_positions=64, vocab_size=size,
                               pad_token_id=size - 3, **still, **labels)  # fmt: skip
    else:
        config = tf.BertConfig(max_position_embeddings=64, vocab_size=size, **SIZE, **STILL, **labels)
    return getattr(tf, name)(config).train()


def examples_for(name: str, kind: str) -> list[Example]:
    actual = examples_of(kind)
    if kind == "choice":
        return [Example(text=one.text, choices=one.choices[:2], label=one.label) for one in actual]
    if kind == "span":  # one window each, so that batches are the same on both sides
        return [one for one in actual if one.pair in (TEXT[0], "A bad film.", "Good!")] * 2
    if "GPT2" in name:  # nothing to cut: their script has no rule for a pair in one sequence
        return [Example(text=one.text[:12], pair=(one.pair or "")[:12], label=one.label) for one in actual]
    return actual


def loss_of(reference: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Their loss. NOTE: that of a span counts padding among the places of an answer, so each sequence is read alone."""
    if "start_positions" not in given:
        return reference(**given)["loss"]
    sizes = given["attention_mask"].sum(1).tolist()
    each = [
        reference(
            **{
                name: value[at : at + 1, :size] if value.dim() > 1 else value[at : at + 1]
                for name, value in given.items()
            }
        )["loss"]
        for at, size in enumerate(sizes)
    ]
    return torch.stack(each).mean()


@pytest.mark.parametrize("name", keep_quick(CASES, "BertForSequenceClassification", "BertForQuestionAnswering"))
def test_thirty_steps_from_text(name: str, tmp_path: Path) -> None:
    shape, kind, theirs = CASES[name]
    examples = examples_for(name, kind)
    reference = reference_of(name, shape, kind)
    reference.save_pretrained(tmp_path)
    ours = pt.load(tmp_path).train()
    encoder = TaskEncoder.from_task(task_of(kind), ours, tokenizer(shape), max_length=LENGTH, stride=STRIDE)
    stream = TaskStream(encoder.encode(examples), batch=BATCH, seed=2, fixed_shape=True)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (ours, reference)]
    losses: list[tuple[float, float]] = []
    for step in range(STEPS):
        given = theirs([examples[number] for number in stream.examples(step)])
        pair = ours.spec.loss(ours, stream[step]).mean(), loss_of(reference, given)
        for loss, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append((pair[0].item(), pair[1].item()))
    assert max(abs(a - b) for a, b in losses) < 1e-4, losses
    assert min(loss for loss, _ in losses[-5:]) < 0.95 * losses[0][0]
    assert len({round(loss, 6) for loss, _ in losses}) > 10


def test_windows_have_the_answers_that_theirs_have(tmp_path: Path) -> None:
    """A passage longer than a window: the loss over all of its windows."""
    name, kind = "BertForQuestionAnswering", "span"
    long = " ".join(TEXT)
    asked = [
        Example(text="Who sang it?", pair=long, spans=((start, start + len(answer)),), answers=(answer,))
        for answer in ("old man", "Nina Simone", "1968", "forgotten before it", "unacceptable")
        for start in (long.index(answer),)
    ]
    examples = [*asked, Example(text="What?", pair=long)]
    reference = reference_of(name, "bert", "span")
    reference.save_pretrained(tmp_path)
    ours = pt.load(tmp_path).train()
    encoder = TaskEncoder.from_task(task_of(kind), ours, tokenizer("bert"), max_length=LENGTH, stride=STRIDE)
    items = encoder.encode(examples)
    assert len(items) > 3 * len(examples) and items.counts.answers_lost == 0
    stream = TaskStream(items, batch=len(items))
    wanted = loss_of(reference, windows(examples))
    torch.testing.assert_close(ours.spec.loss(ours, stream[0]).mean(), wanted, rtol=1e-5, atol=1e-5)
