"""Heads against the classes of `transformers`: the same logits in both directions, gradients, and thirty steps."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads.base import build_encoder_decoder_inputs
from pretune.adaptation.heads.sequence import MultiLabel, build_group_labels
from pretune.core.errors import CheckpointError
from pretune.core.types import IGNORE_INDEX
from pretune.data.layout import lay_out
from pretune.data.plan import BatchShape
from pretune.data.sequences import Sequences
from pretune.models.catalog import resolve
from pretune.models.hf.weights import HEAD_KEY
from pretune.text.tokenizer.training import train
from tests.parity.cases import (
    ALBERT,
    BART,
    BLOOM,
    DEBERTA,
    DISTILBERT,
    ELECTRA,
    ENCODER,
    GPT,
    LLAMA,
    MODERN,
    MPT,
    NEOX,
    OPT,
    T5,
    VOCAB,
    XLM,
    XLNET,
    Case,
    case,
)
from tests.selection import keep_quick

EOS = 2
BERT, ROBERTA = ENCODER, {**ENCODER, "type_vocab_size": 1}
GPT_ = {**GPT, "pad_token_id": 0}
THREE = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
FORMS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
FULL: list[tuple[str, type, dict[str, Any], str]] = [
    ("Bert", tf.BertConfig, BERT, ""),
    ("Roberta", tf.RobertaConfig, ROBERTA, ""),
    ("XLMRoberta", tf.XLMRobertaConfig, ROBERTA, ""),
    ("Electra", tf.ElectraConfig, ELECTRA, ""),
    ("Albert", tf.AlbertConfig, ALBERT, ""),
    ("DistilBert", tf.DistilBertConfig, DISTILBERT, ""),
    ("DebertaV2", tf.DebertaV2Config, DEBERTA, ""),
    ("XLNet", tf.XLNetConfig, XLNET, "Simple"),
]
DECODERS: list[tuple[str, str, type, dict[str, Any], dict[str, Any]]] = [
    ("gpt2", "GPT2", tf.GPT2Config, GPT_, {}),
    ("llama", "Llama", tf.LlamaConfig, LLAMA, {}),
    ("mistral", "Mistral", tf.MistralConfig, LLAMA, {"num_key_value_heads": 2}),
    ("pythia", "GPTNeoX", tf.GPTNeoXConfig, NEOX, {"pad_token_id": 0}),
    ("mpt", "Mpt", tf.MptConfig, MPT, {"pad_token_id": 0}),
    ("bloom", "Bloom", tf.BloomConfig, BLOOM, {"pad_token_id": 0}),
    ("xlm", "XLM", tf.XLMConfig, XLM, {"pad_token_id": 0}),
    ("qwen3", "Qwen3", tf.Qwen3Config, LLAMA, {"num_key_value_heads": 2, "head_dim": 12}),
]
TWO_FORMS: list[tuple[str, str, type, dict[str, Any], dict[str, Any]]] = [
    ("opt", "OPT", tf.OPTConfig, OPT, {}),
    ("bart", "Bart", tf.BartConfig, BART, {}),
    ("mbart", "MBart", tf.MBartConfig, BART, {}),
    ("mbart_language", "MBart", tf.MBartConfig, BART, {"decoder_start_token_id": 50}),
    ("t5", "T5", tf.T5Config, {**T5, "eos_token_id": EOS}, {"decoder_start_token_id": 0}),
]
CASES = [
    *(
        case(f"{name}-{form}", getattr(tf, f"{name}For{form}{simple if form[0] == 'Q' else ''}"), cfg, base)
        for name, cfg, base, simple in FULL
        for form in FORMS
    ),
    *(case(f"modernbert-{form}", getattr(tf, f"ModernBertFor{form}"), tf.ModernBertConfig, MODERN) for form in FORMS),
    *(case(f"modernbert-mean-{form}", getattr(tf, f"ModernBertFor{form}"), tf.ModernBertConfig, MODERN,
           classifier_pooling="mean", classifier_bias=True, classifier_activation="relu", norm_bias=True)
      for form in (FORMS[0], FORMS[3])),
    *(case(f"{name}-{form}", getattr(tf, f"{prefix}For{form}{'Simple' if prefix + form[0] == 'XLMQ' else ''}"),
           *rest[:2], **rest[2]) for name, prefix, *rest in DECODERS for form in FORMS[:3]),
    *(case(f"{name}-{form}", getattr(tf, f"{prefix}For{form}"), *rest[:2], **rest[2])
      for name, prefix, *rest in TWO_FORMS for form in (FORMS[0], FORMS[2])),
    case("gemma3", tf.Gemma3TextForSequenceClassification, tf.Gemma3TextConfig,
         {**LLAMA, "num_key_value_heads": 2, "head_dim": 12, "sliding_window": 5}),
    case("smollm3", tf.SmolLM3ForTokenClassification, tf.SmolLM3Config, LLAMA, num_key_value_heads=2),
    case("qwen2", tf.Qwen2ForQuestionAnswering, tf.Qwen2Config, LLAMA, num_key_value_heads=2),
    case("gpt", tf.OpenAIGPTForSequenceClassification, tf.OpenAIGPTConfig, GPT_),
    case("olmo", tf.OlmoForSequenceClassification, tf.OlmoConfig, LLAMA),
    case("olmo2", tf.Olmo2ForSequenceClassification, tf.Olmo2Config, LLAMA),
]  # fmt: skip
LONG = 11


def tokens_of(count: int, seed: int = 0) -> list[list[int]]:
    """Sequences of one length, each with one </s>, at its end: what all of the classes read alike."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(3, VOCAB, LONG - 1).tolist(), EOS] for _ in range(count)]


def our_batch(model: ModelWithHead, tokens: list[list[int]], row: int = 2 * LONG, **more: Any) -> pt.Batch:
    """The same sequences packed, with the text on both sides where there are two."""
    lengths = np.array([len(one) for one in tokens])
    flat = Sequences(tokens=np.concatenate(tokens), offsets=np.append(0, np.cumsum(lengths)), **more)
    flat = build_encoder_decoder_inputs(flat, model.model.spec)
    place = np.arange(len(tokens)) // (row // LONG)
    return lay_out(
        flat,
        place,
        BatchShape(rows=int(place[-1]) + 1, length=row, source=row if model.model.spec.is_encoder_decoder else None),
    )


def theirs_on(reference: Any, tokens: list[list[int]], **more: Any) -> Any:
    ids = torch.tensor(tokens)
    if "MultipleChoice" in type(reference).__name__:
        ids = ids.view(-1, 2, LONG)
    return reference(ids, attention_mask=torch.ones_like(ids), **more)


def logits_of(out: Any) -> Tensor:
    """As ours are: `[sequences, classes]`, or `[tokens, classes]`."""
    if "start_logits" in out:
        return torch.stack((out["start_logits"], out["end_logits"]), -1).flatten(0, 1)
    logits = out["logits"]
    return logits.flatten(0, 1) if logits.dim() == 3 else logits


def our_logits(model: ModelWithHead, tokens: list[list[int]]) -> Tensor:
    batch = our_batch(model, tokens)
    out = model(batch)
    if out.shape[0] == batch.tokens.shape[0]:
        return torch.cat(batch.split(out))
    return out


def built(case: Case, **more: Any) -> Any:
    given = Case(case.name, case.cls, case.config, {**case.options, **more}, case.prepare)
    return given.build()


def options(case: Case) -> dict[str, Any]:
    kind = case.cls.__name__
    return THREE if "Sequence" in kind or "Token" in kind else {}


def keep(*families: str) -> list[Any]:
    """All cases, those of other families than these marked slow."""
    return keep_quick(CASES, *(one for one in CASES if one.name.split("-")[0] in families))


@pytest.mark.parametrize("case", keep("Bert", "XLNet", "gpt2", "t5", "mbart_language"), ids=lambda case: case.name)
def test_logits_both_ways(case: Case, tmp_path: Path) -> None:
    """Theirs read by us, ours read by them, and by us again: equal logits; the same tensors and labels on disk."""
    reference = built(case, **options(case))
    reference.save_pretrained(tmp_path / "theirs")
    ours = pt.load(tmp_path / "theirs")
    assert isinstance(ours, ModelWithHead)
    tokens = tokens_of(6)
    with torch.no_grad():
        wanted = logits_of(theirs_on(reference, tokens))
        if "mbart" in case.name:  # its decoder begins with the text's last token, which is </s> here
            assert ours.model.spec.special.start is None
        actual = our_logits(ours, tokens).reshape(wanted.shape)
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-5)
        pt.save(ours, tmp_path / "ours")
        back, told = case.cls.from_pretrained(tmp_path / "ours", output_loading_info=True, attn_implementation="eager")
        assert not told["missing_keys"] and not told["unexpected_keys"], told
        torch.testing.assert_close(logits_of(theirs_on(back.eval(), tokens)), wanted, rtol=0, atol=1e-5)
        again = pt.load(tmp_path / "ours")
        torch.testing.assert_close(our_logits(again, tokens), our_logits(ours, tokens), rtol=0, atol=0)
    assert again.spec == ours.spec
    if options(case):
        assert ours.spec.labels == ("bad", "fair", "good") and back.config.id2label == THREE["id2label"]


def learnt(case: Case, model: ModelWithHead, tokens: list[list[int]], seed: int = 0) -> tuple[pt.Batch, dict[str, Any]]:
    """A batch with labels for us, and the same labels for them."""
    rng = np.random.default_rng(seed)
    kind, count = case.cls.__name__, len(tokens)
    if "Sequence" in kind:
        labels = np.array([sum(one) % 3 for one in tokens])
        return our_batch(model, tokens, labels=labels), {"labels": torch.from_numpy(labels)}
    if "Choice" in kind:
        right = rng.integers(0, 2, count // 2)
        labels = build_group_labels(np.full(count // 2, 2), right)
        return our_batch(model, tokens, labels=labels), {"labels": torch.from_numpy(right)}
    if "Token" in kind:
        tags = np.where(rng.random((count, LONG)) < 0.3, IGNORE_INDEX, np.array(tokens) % 3)
        return our_batch(model, tokens, targets=tags.reshape(-1)), {"labels": torch.from_numpy(tags)}
    ends = np.sort(rng.integers(0, LONG, (count, 2)), axis=1)
    marks = np.zeros((count, LONG), dtype=np.int64)
    for i, side in ((0, 1), (1, 2)):
        marks[np.arange(count), ends[:, i]] += side
    marks[marks == 0] = IGNORE_INDEX
    starts, stops = torch.from_numpy(ends).unbind(1)
    return our_batch(model, tokens, targets=marks.reshape(-1)), {"start_positions": starts, "end_positions": stops}


@pytest.mark.parametrize("case", keep("Bert", "gpt2", "bart"), ids=lambda case: case.name)
def test_losses_and_gradients(case: Case, tmp_path: Path) -> None:
    """The mean loss, and the gradients of the head and of the token table."""
    reference = built(case, **options(case))
    reference.save_pretrained(tmp_path)
    ours = pt.load(tmp_path)
    tokens = tokens_of(6)
    batch, labels = learnt(case, ours, tokens)
    loss = ours.spec.loss(ours, batch)
    assert dict(ours.spec.counts(batch)).keys() == {"loss"} and ours.spec.counts(batch)["loss"] == loss.count
    wanted = theirs_on(reference, tokens, **labels)["loss"]
    torch.testing.assert_close(loss.mean(), wanted, rtol=0, atol=1e-5)
    loss.mean().backward()
    wanted.backward()
    table = reference.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours.model.tokens.weight.grad, table, rtol=1e-4, atol=1e-4)
    heads = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    for name, parameter in ours.head.named_parameters():
        same = [
            g for n, g in heads.items() if g.shape == parameter.shape and torch.allclose(g, parameter.grad, 1e-4, 1e-4)
        ]
        assert same, name


STILL = {
    "Bert": (tf.BertForSequenceClassification, tf.BertConfig, BERT,
             {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "Roberta": (tf.RobertaForSequenceClassification, tf.RobertaConfig, ROBERTA,
                {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "gpt2": (tf.GPT2ForSequenceClassification, tf.GPT2Config, GPT_,
             {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "bart": (tf.BartForSequenceClassification, tf.BartConfig, BART, {"dropout": 0.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", keep_quick(STILL, "gpt2"))
def test_thirty_steps(name: str, tmp_path: Path) -> None:
    """The same batches, torch's AdamW on both sides: losses stay within 1e-4, and something is learnt."""
    cls, config, base, still = STILL[name]
    torch.manual_seed(3)
    reference = cls(config(**base, **still, **THREE)).train()
    reference.save_pretrained(tmp_path)
    ours = pt.load(tmp_path).train()
    one = case(name, cls, config, base)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (ours, reference)]
    losses: list[tuple[float, float]] = []
    for step in range(30):
        tokens = [[*(row[: LONG - 2]), 3 + row[1] % 3, EOS] for row in tokens_of(6, seed=step % 4)]
        batch, labels = learnt(one, ours, tokens)
        pair = ours.spec.loss(ours, batch).mean(), theirs_on(reference, tokens, **labels)["loss"]
        for loss, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append((pair[0].item(), pair[1].item()))
    assert max(abs(a - b) for a, b in losses) < 1e-4
    assert losses[-1][1] < 0.9 * losses[0][1]


def test_regression(tmp_path: Path) -> None:
    """One output is a number, by squared error, and stays one."""
    reference = built(case("x", tf.BertForSequenceClassification, tf.BertConfig, BERT), num_labels=1)
    reference.save_pretrained(tmp_path / "a")
    ours = pt.load(tmp_path / "a")
    tokens, labels = tokens_of(6), np.linspace(0, 5, 6).astype(np.float32)
    batch = our_batch(ours, tokens, labels=labels)
    wanted = theirs_on(reference, tokens, labels=torch.from_numpy(labels))["loss"]
    torch.testing.assert_close(ours.spec.loss(ours, batch).mean(), wanted, rtol=1e-5, atol=1e-5)
    pt.save(ours, tmp_path / "b")
    assert pt.load(tmp_path / "b").spec == ours.spec
    assert tf.AutoConfig.from_pretrained(tmp_path / "b").problem_type == "regression"


@pytest.mark.parametrize("name", STILL)
def test_several_labels(name: str, tmp_path: Path) -> None:
    """The mean of the binary losses, both ways."""
    cls, config, base, still = STILL[name]
    reference = built(case(name, cls, config, base), **still, **THREE, problem_type="multi_label_classification")
    reference.save_pretrained(tmp_path / "a")
    ours = pt.load(tmp_path / "a")
    tokens, labels = tokens_of(6), np.random.default_rng(0).integers(0, 2, (6, 3)).astype(np.float32)
    batch = our_batch(ours, tokens, labels=labels)
    out = theirs_on(reference, tokens, labels=torch.from_numpy(labels))
    torch.testing.assert_close(our_logits(ours, tokens), out["logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.spec.loss(ours, batch).mean(), out["loss"], rtol=1e-5, atol=1e-5)
    pt.save(ours, tmp_path / "b")
    assert isinstance(ours.spec, MultiLabel) and pt.load(tmp_path / "b").spec == ours.spec
    back = cls.from_pretrained(tmp_path / "b")
    assert back.config.problem_type == "multi_label_classification" and back.config.id2label == THREE["id2label"]
    torch.testing.assert_close(theirs_on(back.eval(), tokens)["logits"], out["logits"], rtol=0, atol=1e-5)


def test_padding_is_not_read(tmp_path: Path) -> None:
    """Sequences of unequal lengths: their rows padded, ours packed."""
    for name in ("Bert", "gpt2"):
        cls, config, base, still = STILL[name]
        reference = built(case(name, cls, config, base), **still, **THREE)
        reference.save_pretrained(tmp_path / name)
        ours = pt.load(tmp_path / name)
        tokens = [row[:n] for row, n in zip(tokens_of(4), (11, 3, 7, 1), strict=True)]
        ids = torch.tensor([row + [0] * (LONG - len(row)) for row in tokens])
        mask = torch.tensor([[1] * len(row) + [0] * (LONG - len(row)) for row in tokens])
        batch = pt.batch(tokens, row=14)
        with torch.no_grad():
            actual = ours(batch)
            torch.testing.assert_close(actual, reference(ids, attention_mask=mask).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("problem_type", "ranking", "'problem_type'"),
        ("id2label", {"1": "a", "2": "b"}, "'id2label'"),
        ("id2label", {"0": "a", "1": "b"}, r"\b2\b.*\b3\b"),
        ("id2label", None, "'num_labels' = 2000000000.*3"),
        ("architectures", ["BertForQuestionAnswering"], "'classifier"),
    ],
)
def test_bad_labels_are_refused(key: str, value: Any, says: str, tmp_path: Path) -> None:
    import json

    built(case("x", tf.BertForSequenceClassification, tf.BertConfig, BERT), **THREE).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_labels": 2_000_000_000, key: value}))
    with pytest.raises(CheckpointError, match=says):
        pt.load(tmp_path)


def test_a_pooling_that_is_unknown_is_refused(tmp_path: Path) -> None:
    built(case("x", tf.ModernBertForSequenceClassification, tf.ModernBertConfig, MODERN)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"classifier_pooling": "cls"', '"classifier_pooling": "max"'))
    with pytest.raises(CheckpointError, match=r"'classifier_pooling' = 'max'.*'cls', 'mean'"):
        pt.load(tmp_path)


def test_a_head_of_no_class_leaves_the_body_readable(tmp_path: Path) -> None:
    """Mean pooling is in no class: the body is a BertModel to others, and the head is there for us."""
    from pretune.adaptation.heads.sequence import Classification
    from pretune.nn.heads import PoolingConfig

    reference = built(case("x", tf.BertModel, tf.BertConfig, BERT))
    reference.save_pretrained(tmp_path / "a")
    model = adapt(pt.load(tmp_path / "a"), Classification(classes=3, pooling=PoolingConfig(mode="mean"))).eval()
    pt.save(model, tmp_path / "b")
    body = tf.AutoModel.from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    ids = torch.tensor(tokens_of(2))
    with torch.no_grad():
        states = body(ids).last_hidden_state
        actual = our_logits(pt.load(tmp_path / "b"), ids.tolist())
        torch.testing.assert_close(actual, model.head.out(states.mean(1)), rtol=0, atol=1e-5)
    assert HEAD_KEY in (tmp_path / "b" / "config.json").read_text()


@pytest.mark.parametrize(
    ("family", "special", "class_name"),
    [
        ("mbart", {"start": 50}, None),  # its class would start the decoder with </s>
        ("mbart", {"start": EOS}, "MBartForSequenceClassification"),
        ("bart", {"start": 50}, "BartForSequenceClassification"),
        ("bart", {"eos": ()}, None),  # its class pools at </s>
        ("bart", {"eos": (2, 3)}, None),
        ("t5", {"eos": (), "start": 0}, None),
    ],
)
def test_a_class_that_would_compute_something_else_is_not_used(
    family: str, special: dict[str, Any], class_name: str | None, tmp_path: Path
) -> None:
    settings = {"width": 32, "depth": 1, "heads": 4, "vocab": VOCAB, "hidden": 48}
    spec = replace(resolve(family, settings), head=None)
    body = pt.build(replace(spec, special=replace(spec.special, **special))).eval()
    ours = pt.add_head(body, "classification", labels=["bad", "fair", "good"]).eval()
    pt.save(ours, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (HEAD_KEY in stored) == (class_name is None)
    tokens = tokens_of(4)
    with torch.no_grad():
        wanted = our_logits(ours, tokens)
        torch.testing.assert_close(our_logits(pt.load(tmp_path), tokens), wanted, rtol=0, atol=0)
        if class_name is not None:
            theirs = getattr(tf, class_name).from_pretrained(tmp_path, attn_implementation="eager").eval()
            torch.testing.assert_close(logits_of(theirs_on(theirs, tokens)), wanted, rtol=0, atol=1e-5)


def test_texts_without_an_end_token_have_a_head_of_ours(tmp_path: Path) -> None:
    """The class of BART pools at </s>, which this tokenizer knows but does not append."""
    tokenizer = train("bpe", ["a good film", "a bad film"] * 20, vocab=300, style="endoftext")
    spec = resolve("bart", {"width": 32, "depth": 1, "heads": 4, "vocab": tokenizer.vocab, "hidden": 48})
    eos = tokenizer.special["eos"]
    body = pt.build(replace(spec, head=None, special=replace(spec.special, pad=None, eos=(eos,), start=eos)))
    body.assets.files, body.assets.tokenizer = tokenizer.build_files(), tokenizer
    pt.save(pt.add_head(body, "classification", labels=["bad", "good"]), tmp_path)
    assert tokenizer.encode("a film")[-1] != eos
    assert HEAD_KEY in (tmp_path / "config.json").read_text()
