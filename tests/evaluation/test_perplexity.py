"""Strided perplexity against brute force, every token judged once, and LAMBADA's last words."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, UsageError
from pretune.evaluation import EvaluationResult
from pretune.evaluation.perplexity import (
    _measure_unscored,
    evaluate_cloze,
    evaluate_perplexity,
    read_blanks,
    split_windows,
)
from pretune.inference.scoring import ScoringConfig
from pretune.tasks.example import Example
from tests.inference.scorers import ids, log_softmax, scorer

LONG = "The old house was quiet before the sea. Nobody lived there, and nobody knew who had lived in it before."


@given(st.integers(1, 300), st.integers(1, 40), st.data(), st.booleans())
def test_every_token_is_judged_once_with_enough_around_it(n: int, room: int, data: st.DataObject, both: bool) -> None:
    stride = data.draw(st.integers(1, room))
    found = list(split_windows(n, room, stride, is_bidirectional=both))
    judged = [at for window in found for at in range(window.start, window.stop)]
    assert judged == list(range(n))
    margin = (room - stride) // 2
    for low, high, start, stop in found:
        assert 0 <= low <= start < stop <= high <= n and high - low <= room
        if both:
            assert low == 0 or start - low >= margin
            assert high == n or high - stop >= margin
        else:
            assert stop == high and (low == 0 or start - low >= room - stride)


@pytest.mark.parametrize("stride", [1, 5, 12, 20])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_strided_perplexity_of_a_decoder_equals_brute_force(family: str, stride: int) -> None:
    model, room = scorer(family), 20
    tokens, lead = ids(model, LONG), model.tokenizer.special["bos"]
    assert len(tokens) > room + stride or stride > 12
    nats, at = 0.0, 0
    while at < len(tokens):  # the reference: a window at a time, by hand
        end = min(at + (room if at == 0 else stride), len(tokens))
        begin = max(0, end - room)
        rows = log_softmax(model, [lead, *tokens[begin:end]])
        nats -= sum(float(rows[place - begin, tokens[place]]) for place in range(at, end))
        at = end
    found = evaluate_perplexity(model, [LONG], ScoringConfig(tokens=64), window=room, stride=stride)
    assert found.scores["perplexity"] == pytest.approx(math.exp(nats / len(tokens)), rel=1e-9)
    assert found.scores["word_perplexity"] == pytest.approx(math.exp(nats / len(LONG.split())), rel=1e-9)
    assert found.scores["byte_perplexity"] == pytest.approx(math.exp(nats / len(LONG)), rel=1e-9)
    assert found.scores["bits_per_byte"] == pytest.approx(nats / len(LONG) / math.log(2), rel=1e-9)
    assert found.counts["tokens"] == len(tokens) and "unscored" not in found.counts


def test_pseudo_perplexity_of_an_encoder_equals_brute_force() -> None:
    model, room, stride = scorer("bert"), 12, 4
    tokens, special = ids(model, LONG), model.tokenizer.special
    starts = model.tokenizer.encode_batch([LONG], literal=True).word_start.tolist()
    nats = 0.0
    for start in range(0, len(tokens), stride):
        low = max(0, min(start - 4, len(tokens) - room))
        for place in range(start, min(start + stride, len(tokens))):
            end = place + 1
            while end < len(tokens) and not starts[end]:
                end += 1
            shown = [
                special["mask"] if place <= at < end else tokens[at] for at in range(low, min(low + room, len(tokens)))
            ]
            rows = log_softmax(model, [special["cls"], *shown, special["sep"]])
            nats -= float(rows[1 + place - low, tokens[place]])
    found = evaluate_perplexity(model, [LONG], window=room, stride=stride)
    assert found.scores["pseudo_perplexity"] == pytest.approx(math.exp(nats / len(tokens)), rel=1e-9)


@pytest.mark.parametrize("family", ["t5", "bart", "xlnet", "gpt"])
def test_every_shape_has_a_perplexity(family: str) -> None:
    model = scorer(family)
    found = evaluate_perplexity(model, [LONG, "old", " "])
    assert found.counts["documents"] == 2
    assert all(math.isfinite(value) and value > 0 for value in found.scores.values())
    first = 2 if family == "gpt" else 0  # nothing is read before the first token of each
    assert found.counts.get("unscored", 0) == first
    assert found.counts["tokens"] == len(ids(model, LONG)) + len(ids(model, "old")) - first


def test_unscored_words_and_bytes_are_not_counted() -> None:
    model, texts = scorer("gpt"), [LONG, f"  {LONG}", "old sea"]
    tokens = [ids(model, text) for text in texts]
    found = evaluate_perplexity(model, texts)
    starts = [model.tokenizer.encode_batch([text], literal=True).starts.tolist() for text in texts]
    rests = [text[: start[1]].rstrip() for text, start in zip(texts, starts, strict=True)]
    whole = sum(text[start[1] - 1] == " " for text, start in zip(texts, starts, strict=True))
    assert found.counts["bytes"] == sum(map(len, texts)) - sum(map(len, rests))
    assert found.counts["words"] == sum(len(text.split()) for text in texts) - whole
    nats = 0.0
    for row in tokens:
        logs = log_softmax(model, row)
        nats -= sum(float(logs[at - 1, row[at]]) for at in range(1, len(row)))
    assert found.scores["bits_per_byte"] == pytest.approx(nats / found.counts["bytes"] / math.log(2), rel=1e-6)
    assert found.scores["word_perplexity"] == pytest.approx(math.exp(nats / found.counts["words"]), rel=1e-6)
    apart = evaluate_perplexity(model, texts, window=2, stride=2)  # the first token of every window has no context
    assert apart.counts["unscored"] == sum(-(-len(row) // 2) - (len(row) % 2) * (len(row) > 2) for row in tokens)
    assert 0 < apart.counts["bytes"] < found.counts["bytes"] and apart.counts["words"] < found.counts["words"]


def test_every_byte_belongs_to_one_token() -> None:
    texts = [f"  {LONG} ", "old sea", "\u00e9\u4f60 x"]
    for family in ("gpt", "gpt2", "t5"):
        tokenizer = scorer(family).tokenizer
        count = len(tokenizer.encode_batch(texts, literal=True).ids)
        sizes = [_measure_unscored(tokenizer, texts, np.arange(count) == place)[1] for place in range(count)]
        assert sum(sizes) == sum(len(text.encode()) for text in texts)
        assert _measure_unscored(tokenizer, texts, np.ones(count, dtype=bool))[1] == sum(sizes)
        assert _measure_unscored(tokenizer, texts, np.zeros(count, dtype=bool)) == (0, 0)


def test_texts_of_one_token_cannot_be_scored_without_a_start_token() -> None:
    model = scorer("gpt")
    word = next(word for word in LONG.lower().split() if len(ids(model, word)) == 1)
    with pytest.raises(DataError, match="start token"):
        evaluate_perplexity(model, [word, word])


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_last_words_need_every_token_to_be_the_likeliest(family: str) -> None:
    model = scorer(family)
    texts = ["The old house", "Nobody knew"]
    passage = [Example(text=text, target="sea") for text in texts]
    found = evaluate_cloze(model, passage)
    assert found.counts["examples"] == 2
    nats = 0.0
    for text in texts:
        tokens = ids(model, f"{text} sea")
        context = len(ids(model, text))
        special = model.tokenizer.special
        for at in range(context, len(tokens)):
            if family == "gpt2":
                row = log_softmax(model, [special["bos"], *tokens[:at]])[-1]
            elif family == "bert":
                stop = ids(model, f"{text} sea.")[len(tokens) :]
                shown = tokens[:at] + [special["mask"]] * (len(tokens) - at) + stop
                row = log_softmax(model, [special["cls"], *shown, special["sep"]])[1 + at]
            else:
                sentinel, stop = model.tokenizer.sentinels[0], ids(model, f"{text} sea.")[len(tokens) :]
                source = [*tokens[:context], sentinel, *stop, special["eos"]]
                row = log_softmax(model, [special["pad"], sentinel, *tokens[context:at]], source=[source])[-1]
            nats -= float(row[tokens[at]])
    assert found.scores["perplexity"] == pytest.approx(math.exp(nats / 2), rel=1e-9)


def test_a_word_is_right_where_each_of_its_tokens_is_the_likeliest() -> None:
    model, right = scorer("gpt2"), None
    for text in (f"{one} {two}" for one in LONG.split() for two in LONG.split()):
        row = log_softmax(model, [model.tokenizer.special["bos"], *ids(model, text)])[-1]
        word = model.tokenizer.decode([int(row.argmax())])
        if word.startswith(" ") and word.strip().isalpha() and ids(model, word) == [int(row.argmax())]:
            right = Example(text=text, target=word.strip())
            break
    assert right is not None
    wrong = Example(text=right.text, target="house" if right.target == "sea" else "sea")
    assert evaluate_cloze(model, [right]).scores["accuracy"] == 1.0
    assert evaluate_cloze(model, [right, wrong]).scores["accuracy"] == 0.5


def test_categories_of_blanks(tmp_path: Path) -> None:
    file = tmp_path / "blanks.jsonl"
    rows = [{"text": "The ____ was quiet.", "answer": word, "relation": kind}
            for word, kind in (("sea", "a"), ("house", "a"), ("old", "a"), ("sea", "b"))]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)))
    model = scorer("bert")
    found = evaluate_cloze(model, read_blanks(file), name="cloze")
    each = [evaluate_cloze(model, [one]).scores["accuracy"] for one in read_blanks(file)]
    assert found.groups == {"a": pytest.approx(sum(each[:3]) / 3), "b": each[3]}
    assert found.scores["macro_accuracy"] == pytest.approx((sum(each[:3]) / 3 + each[3]) / 2)
    assert found.scores["accuracy"] == pytest.approx(sum(each) / 4) and found.counts["categories"] == 2
    del rows[2]["relation"]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"blanks\.jsonl:3"):
        read_blanks(file)


def test_blanks_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "blanks.jsonl"
    rows = [{"text": "The ____ was quiet.", "answer": "sea"}, {"text": "Nobody [MASK]", "answer": "knew"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = read_blanks(file)
    assert [(one.text, one.target, one.pair) for one in found] == [
        ("The ", "sea", " was quiet."),
        ("Nobody ", "knew", None),
    ]
    model, special = scorer("bert"), scorer("bert").tokenizer.special
    told = evaluate_cloze(model, found[:1], name="cloze")
    tokens, start = ids(model, "The sea was quiet."), len(ids(model, "The"))
    stop = start + len(ids(model, "sea"))
    nats = 0.0
    for at in range(start, stop):
        shown = tokens[:at] + [special["mask"]] * (stop - at) + tokens[stop:]
        nats -= float(log_softmax(model, [special["cls"], *shown, special["sep"]])[1 + at, tokens[at]])
    assert told.scores["perplexity"] == pytest.approx(math.exp(nats), rel=1e-9)
    assert evaluate_cloze(scorer("gpt2"), found).counts["examples"] == 2
    file.write_text('{"text": "no blank", "answer": "a"}')
    with pytest.raises(DataError, match=r":1: .*'text'.* 0 "):
        read_blanks(file)
    with pytest.raises(DataError, match="nowhere"):
        read_blanks(tmp_path / "nowhere")


def window_and_stride(result: EvaluationResult) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", result.notes[0])]


def test_bad_input_is_one_line() -> None:
    model = scorer("gpt2")
    with pytest.raises(DataError):
        evaluate_perplexity(model, [" ", ""])
    with pytest.raises(UsageError, match=r"8 .*9"):
        evaluate_perplexity(model, [LONG], window=8, stride=9)
    assert window_and_stride(evaluate_perplexity(model, [LONG])) == [24, 12]
    assert window_and_stride(evaluate_perplexity(model, [LONG], train_length=10)) == [10, 5]
    assert window_and_stride(evaluate_perplexity(model, [LONG], train_length=999)) == [24, 12]
    assert window_and_stride(evaluate_perplexity(model, [LONG], window=12, train_length=10)) == [12, 6]
    with pytest.raises(UsageError, match=r"1 to 24.*99"):
        evaluate_perplexity(model, [LONG], window=99)
    with pytest.raises(DataError):
        evaluate_cloze(model, [])
    assert np.isfinite(evaluate_perplexity(model, ["old"]).scores["perplexity"])
