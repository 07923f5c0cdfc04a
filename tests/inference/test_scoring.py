"""Scores of every shape against the slow way, the correction for words, and what is cut."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.core.errors import DataError, NonFiniteError, UsageError
from pretune.inference import scoring_queries
from pretune.inference.scoring import (
    ScoringConfig,
    TargetLogProbs,
    compute_target_logprobs,
    compute_token_logprobs,
    score,
)
from pretune.inference.scoring_queries import CausalScoring, MaskedScoring, Passages, encode_passages
from pretune.text.template import TEXT_A, TokenTemplate
from tests.inference.scorers import STYLE, TEXTS, causal, ids, log_softmax, masked, scorer

SHORT = [text for text in TEXTS if len(text) < 40]
ASKING = ScoringConfig(tokens=64)
"""Several batches even of a few texts."""


@pytest.mark.parametrize(("family", "lead"), [("gpt2", ["bos"]), ("llama", ["bos"]), ("gpt", [])])
def test_a_decoder_reads_from_the_left(family: str, lead: list[str]) -> None:
    model = scorer(family)
    result = compute_token_logprobs(model, encode_passages(model.tokenizer, SHORT), ASKING)
    for index, text in enumerate(SHORT):
        slow = causal(model, text, [model.tokenizer.special[role] for role in lead])
        assert result[index][0 if lead else 1 :] == pytest.approx(slow, abs=1e-9)
        assert result.sums[index] == pytest.approx(sum(slow), abs=1e-9)
        assert np.isnan(result[index]).sum() == (not lead)  # without a token before it, the first has no probability


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("rest", [True, False])
def test_an_encoder_reads_a_masked_copy_for_every_token(family: str, rest: bool) -> None:
    model = scorer(family)
    result = compute_token_logprobs(model, encode_passages(model.tokenizer, SHORT), ScoringConfig(tokens=64, rest=rest))
    for index, text in enumerate(SHORT):
        assert result[index] == pytest.approx(masked(model, text, rest=rest), abs=1e-9)
    assert any(len(ids(model, text)) > len(text.split()) for text in SHORT)  # some words have several pieces


def test_a_two_stream_model_has_the_token_last_in_the_order() -> None:
    model = scorer("xlnet")
    result = compute_token_logprobs(
        model, encode_passages(model.tokenizer, SHORT, [(0, len(text)) for text in SHORT]), ASKING
    )
    baseline = compute_token_logprobs(model, encode_passages(model.tokenizer, SHORT), ScoringConfig(rest=False))
    for index, text in enumerate(SHORT):
        tokens = ids(model, text)
        laid = model.tokenizer.template.apply(tokens)
        slow = []
        for place in range(len(tokens)):
            order = [int(place == other) for other in range(len(laid.ids))]
            batch = pt.batch(
                [laid.ids.tolist()],
                segments=[laid.segments.tolist()],
                labels=[[token if rank else -100 for token, rank in zip(laid.ids.tolist(), order, strict=True)]],
            )
            with torch.no_grad():
                logits = model(replace(batch, order=torch.tensor(order))).logits
            slow.append(float(logits.log_softmax(-1)[0, tokens[place]]))
        assert baseline[index] == pytest.approx(slow, abs=1e-9)
    assert not np.allclose(result.logprobs, baseline.logprobs)


def test_an_encoder_decoder_with_sentinels_fills_a_blank() -> None:
    model = scorer("t5")
    special, sentinel = model.tokenizer.special, model.tokenizer.sentinels[0]
    result = compute_token_logprobs(model, encode_passages(model.tokenizer, TEXTS), ASKING)
    for index, text in enumerate(TEXTS):
        tokens = ids(model, text)
        read = [special["pad"], sentinel, *tokens]
        rows = log_softmax(model, read[:-1], source=[[sentinel, special["eos"]]])
        assert result[index] == pytest.approx(
            [float(rows[place + 1, token]) for place, token in enumerate(tokens)], abs=1e-9
        )


def test_an_encoder_decoder_with_a_mask_writes_the_text_around_it() -> None:
    model = scorer("bart")
    special = model.tokenizer.special
    text = "The sea was quiet."
    result = compute_token_logprobs(model, encode_passages(model.tokenizer, [text], [(3, 7)]), ASKING)
    tokens, sea = ids(model, text), ids(model, " sea")
    start = len(ids(model, "The"))
    stop = start + len(sea)
    assert tokens[start:stop] == sea
    source = [special["bos"], *tokens[:start], special["mask"], *tokens[stop:], special["eos"]]
    read = [special["eos"], special["bos"], *tokens]
    rows = log_softmax(model, read, source=[source])
    assert result[0] == pytest.approx([float(rows[place + 1, tokens[place]]) for place in range(start, stop)], abs=1e-9)


@pytest.mark.parametrize(("family", "start"), [("t5", "pad"), ("bart", "eos")])
def test_a_target_is_judged_given_its_source(family: str, start: str) -> None:
    model = scorer(family)
    source, target = "The sea was", " quiet before"
    result = compute_token_logprobs(
        model, encode_passages(model.tokenizer, [source + target], [(len(source), 99)]), ScoringConfig(conditional=True)
    )
    tokens = ids(model, source + target)[len(ids(model, source)) :]
    rows = log_softmax(
        model,
        [model.tokenizer.special[start], *tokens[:-1]],
        source=[model.tokenizer.template.apply(ids(model, source)).ids.tolist()],
    )
    assert result[0] == pytest.approx([float(rows[index, token]) for index, token in enumerate(tokens)], abs=1e-9)
    assert len(result[0]) == len(tokens)


def test_pieces_of_a_word_are_hidden_with_those_before_them() -> None:
    # the sou ##ven ##ir .   as  [CLS] = 1, the = 10, sou = 11, ##ven = 12, ##ir = 13, . = 14, [SEP] = 2, [MASK] = 3
    text = Passages(
        tokens=np.array([10, 11, 12, 13, 14]),
        offsets=np.array([0, 5]),
        start=np.array([0]),
        stop=np.array([5]),
        unit_starts=np.array([True, True, False, False, True]),
    )
    template = TokenTemplate(single=((1, 0), (TEXT_A, 0), (2, 0)))
    (asked,) = MaskedScoring(template, 3).build_queries(text)
    copies = np.split(asked.sequences.tokens, asked.sequences.offsets[1:-1])
    assert [copy.tolist() for copy in copies] == [
        [1, 3, 11, 12, 13, 14, 2],
        [1, 10, 3, 3, 3, 14, 2],
        [1, 10, 11, 3, 3, 14, 2],
        [1, 10, 11, 12, 3, 14, 2],
        [1, 10, 11, 12, 13, 3, 2],
    ]
    assert asked.sequences.targets is not None
    assert asked.sequences.targets[asked.sequences.targets >= 0].tolist() == [10, 11, 12, 13, 14]
    (baseline,) = MaskedScoring(template, 3, mask_word_rest=False).build_queries(text)
    assert (baseline.sequences.tokens == 3).sum() == 5 and (asked.sequences.tokens == 3).sum() == 8


def test_an_answer_can_be_one_unit() -> None:
    model = scorer("bert")
    texts = ["The sea was quiet."]
    (asked,) = MaskedScoring(TokenTemplate(), model.tokenizer.special["mask"]).build_queries(
        encode_passages(model.tokenizer, texts, [(3, 11)], single_unit=True)
    )
    counts = [
        int((copy == model.tokenizer.special["mask"]).sum())
        for copy in np.split(asked.sequences.tokens, asked.sequences.offsets[1:-1])
    ]
    assert counts == list(range(len(counts), 0, -1))  # each later copy shows one more token of the answer


def test_what_is_too_long_loses_its_context_first_and_is_counted() -> None:
    result = Passages(
        tokens=np.arange(14),
        offsets=np.array([0, 5, 14]),
        start=np.array([0, 6]),
        stop=np.array([5, 8]),
        unit_starts=np.ones(14, bool),
    )
    fitted = result.fit(4)
    assert fitted.truncated_texts == 2
    assert np.split(fitted.tokens, fitted.offsets[1:-1])[0].tolist() == [0, 1, 2, 3]
    assert np.split(fitted.tokens, fitted.offsets[1:-1])[1].tolist() == [10, 11, 12, 13]  # judged: 11 and 12
    assert fitted.start.tolist() == [0, 1] and fitted.stop.tolist() == [4, 3]
    assert result.fit(None) is result and result.fit(9) is result
    assert result.fit(1).stop.tolist() == [1, 1] and result.fit(1).tokens.tolist() == [0, 11]


@pytest.mark.parametrize("family", [family for family in STYLE if family not in ("t5", "gpt")])
def test_a_text_longer_than_the_model_is_cut_to_what_fits(family: str) -> None:
    model = scorer(family)
    result = compute_token_logprobs(model, encode_passages(model.tokenizer, TEXTS), ASKING)
    longest = model.spec.max_length or model.spec.context
    assert result.truncated_passages == sum(len(ids(model, text)) > result.counts.max() for text in TEXTS) == 1
    assert longest is not None and result.counts.max() <= longest + 1


def test_a_text_that_is_scored_in_part_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = scorer("gpt2")
    score(model, [text for text in TEXTS if len(ids(model, text)) < 8])
    assert capsys.readouterr().err == ""
    score(model, TEXTS)
    assert f"1 of {len(TEXTS)} texts longer than the model reads" in capsys.readouterr().err


@pytest.mark.parametrize("family", list(STYLE))
def test_company_and_parts_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scorer(family)
    alone = [score(model, [text])[0] for text in TEXTS]
    assert score(model, TEXTS, config=ScoringConfig(tokens=32)) == pytest.approx(alone, abs=1e-9)
    monkeypatch.setattr(scoring_queries, "CHUNK_TOKENS", 40)
    assert score(model, TEXTS[::-1]) == pytest.approx(alone[::-1], abs=1e-9)


@pytest.mark.parametrize("family", list(STYLE))
def test_what_is_read_alike_is_read_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scorer(family)
    asked = encode_passages(model.tokenizer, [f"The sea was {word}" for word in ("old", "quiet", "old", "house")])
    baseline = compute_token_logprobs(model, asked)
    rows = []
    inside = type(model).states

    def counted(self: object, batch: pt.Batch) -> torch.Tensor:
        rows.append(len(batch.list_spans()))
        return inside(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(type(model), "states", counted)
    once = compute_token_logprobs(model, asked, deduplicate=True)
    assert once.logprobs == pytest.approx(baseline.logprobs, abs=1e-9, nan_ok=True)
    assert (once.is_argmax == baseline.is_argmax).all()
    fewer = sum(rows)
    rows.clear()
    compute_token_logprobs(model, asked)
    assert fewer < sum(rows)


def test_the_likeliest_is_told_and_a_tie_is_not() -> None:
    model = scorer("gpt2")
    (asked,) = CausalScoring((model.tokenizer.special["bos"],)).build_queries(
        encode_passages(model.tokenizer, ["quiet"])
    )
    rows = log_softmax(model, asked.sequences.tokens.tolist())
    best = rows.argmax(-1).numpy()
    messages = compute_target_logprobs(model, replace(asked.sequences, targets=best), tokens=64)
    assert messages.is_argmax.all()
    worst = compute_target_logprobs(model, replace(asked.sequences, targets=rows.argmin(-1).numpy()), tokens=64)
    assert not worst.is_argmax.any()


def test_batches_become_smaller_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = scorer("bert"), []

    def short(*args: object, tokens: int, **kwargs: object) -> TargetLogProbs:
        tried.append(tokens)
        if tokens > 2048:
            raise torch.OutOfMemoryError("no room")
        return compute_target_logprobs(*args, tokens=tokens, **kwargs)  # type: ignore[arg-type]

    baseline = score(model, TEXTS)
    monkeypatch.setattr("pretune.inference.scoring.compute_target_logprobs", short)
    assert score(model, TEXTS, config=ScoringConfig(tokens=8192)) == pytest.approx(baseline, abs=1e-9)
    assert tried == [8192, 4096, 2048]
    monkeypatch.setattr("pretune.inference.scoring.MIN_BATCH_TOKENS", 4096)
    with pytest.raises(torch.OutOfMemoryError):
        score(model, TEXTS, config=ScoringConfig(tokens=8192))


def test_progress_is_told_to_the_end() -> None:
    model, messages = scorer("bert"), []
    result = compute_token_logprobs(
        model, encode_passages(model.tokenizer, TEXTS), ASKING, lambda done, of: messages.append((done, of))
    )
    assert len(messages) > 2 and messages[-1] == (len(result.logprobs), len(result.logprobs))


def test_logits_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = scorer("bert")
    full = score(model, TEXTS)
    monkeypatch.setattr("pretune.inference.scoring.BLOCK_BYTES", {"cpu": 1})
    assert score(model, TEXTS) == pytest.approx(full, abs=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", list(STYLE))
def test_a_gpu_says_the_same(family: str) -> None:
    model = copy.deepcopy(scorer(family)).float()
    reference = score(scorer(family), TEXTS)
    model.cuda()
    assert score(model, TEXTS) == pytest.approx(reference, rel=1e-4)
    half = score(model, TEXTS, config=ScoringConfig(precision="bfloat16", tokens=64))
    assert half == pytest.approx(reference, rel=0.05, abs=0.5)


def test_bad_input_is_one_line() -> None:
    model = scorer("bert")
    assert score(model, []) == []
    with pytest.raises(DataError, match="text 2"):
        score(model, ["a", ""])
    headless = copy.deepcopy(model)
    headless.head = None
    with pytest.raises(UsageError, match="head"):
        score(headless, ["a"])
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.tokens.weight[5:] = float("nan")
    with pytest.raises(NonFiniteError, match="log-probabilities"):
        score(broken, ["a"])
    mute = copy.deepcopy(scorer("bart"))
    mute.assets.tokenizer = scorer("gpt2").tokenizer
    with pytest.raises(UsageError, match=r"sentinels.*mask"):
        score(mute, ["a"])
