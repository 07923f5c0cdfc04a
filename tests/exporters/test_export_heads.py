"""Every family with every head and pooling: what an export writes, its peer reads with equal outputs, or it is refused.

The peer is the one that the export names: a class of transformers, or sentence-transformers. A refusal has exit code 2
and leaves nothing behind.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead, adapt
from pretune.adaptation.heads import HEADS
from pretune.adaptation.heads.base import SequenceHead
from pretune.adaptation.heads.sequence import Choice
from pretune.adaptation.scalar_mix import Mixing
from pretune.cli import main
from pretune.core import config
from pretune.core.errors import UsageError
from pretune.inference.sentence_modules import build_encoder, write_modules
from pretune.models.families import FAMILIES
from pretune.models.hf.checkpoint import NATIVE_TYPE, describe_checkpoint
from pretune.models.model import build
from pretune.models.spec import Model, Special
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.heads import PoolingConfig, PoolingMode, Transform
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.runs.finetune.saved_task import SavedTask
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import ROOM, rough, tiny
from tests.selection import keep_quick

tf = pytest.importorskip("transformers", reason="the reference library is not installed")
st = pytest.importorskip("sentence_transformers", reason="the reference library is not installed")

TEXTS = ["a good film", "the film was bad, a bad film", "bad", "a long film " * 30]
PAIRS = [("a good film", "bad"), ("bad", "the film was bad, a bad film")]
SETTINGS: dict[str, dict[str, Any]] = {
    "classification": {"classes": 2, "labels": ("bad", "good")},
    "multi_label": {"classes": 3, "labels": ("a", "b", "c")},
    "tagging": {"classes": 4, "labels": ("w", "x", "y", "z")},
    "dependency": {"classes": 3, "arc": 12, "relation": 8},
    "coreference": {"hidden": 12, "max_width": 3},
}
POOLINGS: dict[str, PoolingConfig] = {
    **{mode: PoolingConfig(mode=mode) for mode in get_args(PoolingMode)},
    **{f"{mode}-own": PoolingConfig(mode=mode, layer="own") for mode in ("first", "last", "mean")},
    "pooler": PoolingConfig(layer="pooler"),
    "mean-pooler": PoolingConfig(mode="mean", layer="pooler"),
    "mean+max": PoolingConfig(mode="mean", concat=("max",)),
    "last+mean+first+mean": PoolingConfig(mode="last", concat=("mean", "first", "mean"), bias=False),
    "relu": PoolingConfig(mode="mean", concat=("max",), layer="own", activation="relu", hidden=7),
    "gelu": PoolingConfig(mode="mean", layer="own", activation="gelu"),
    "silu": PoolingConfig(mode="mean", layer="own", activation="silu"),
    "norm": PoolingConfig(mode="last", concat=("max", "mean"), layer="own", hidden=5, norm=BatchNorm()),
    "norm-linear": PoolingConfig(mode="mean", norm=BatchNorm()),
}
SEQUENCE_KINDS = ("classification", "multi_label", "regression")
VARIANTS = ("paper", "scalar mix", "language loss", *POOLINGS)
CELLS = [
    *((family, head, "paper") for family in FAMILIES for head in HEADS),
    *((family, "classification", variant) for family in FAMILIES for variant in VARIANTS if variant != "paper"),
    *((family, head, "mean") for family in FAMILIES for head in SEQUENCE_KINDS if head != "classification"),
]
QUICK = [
    *(("bert", head, "paper") for head in HEADS),
    *(("bert", "classification", variant) for variant in VARIANTS[1::2] if variant != "paper"),
    *(("gpt2", "classification", variant) for variant in ("paper", "language loss")),
    *((family, "classification", "paper") for family in ("bart", "elmo", "modernbert", "t5", "xlnet")),
    ("modernbert", "classification", "max"),
    ("bert", "regression", "mean"),
]


@cache
def tokenizer_of(kind: str, style: str) -> Tokenizer:
    """The paper's kind of tokenizer, small."""
    return train(kind, TEXTS * 20, vocab={"bpe": 290, "unigram": 400}.get(kind, 60), style=style)


def make_model(family: str, head: str, variant: str) -> ModelWithHead:
    """A tiny model with its paper's kind of tokenizer and a head; UsageError if it cannot have the head."""
    training = FAMILIES.get(family).training
    tokenizer = tokenizer_of(*(training.tokenizer or ("wordpiece", "cls-sep"))[:2])
    roles, spec = tokenizer.special, replace(make_expressible(tiny(family)), vocab=tokenizer.vocab)
    eos = tuple(roles[role] for role in ("eos", "sep") if role in roles)[:1]
    start = None if spec.special.start is None else roles.get("pad") if spec.special.start == 0 else eos[0]
    spec = replace(spec, special=Special(pad=roles.get("pad"), bos=roles.get("bos"), eos=eos, start=start))
    body = rough(build(spec))
    body.assets.files, body.assets.tokenizer = tokenizer.build_files(), tokenizer
    settings = dict(SETTINGS.get(head, {}))
    if variant == "scalar mix":
        settings["scalar_mix"] = Mixing()
    elif variant == "language loss":
        settings["lm_loss_weight"] = 0.5
    elif variant != "paper":
        settings["pooling"] = POOLINGS[variant]
    model = adapt(body, HEADS.get(head)(**settings)).eval()
    if model.head is not None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, tensor in (*model.head.named_parameters(), *model.head.named_buffers()):
                scale = 0.02 if head == "regression" and name.startswith("out") else 0.2
                tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
                if "running_var" in name or "norm.weight" in name:
                    tensor.copy_(0.5 + tensor.abs())
    return model


def make_expressible(spec: Model) -> Model:
    """Set the hidden width that a class has no setting for: four times the width."""
    if describe_checkpoint(spec)[0]["model_type"] != NATIVE_TYPE or spec.is_recurrent:
        return spec
    return config.replace(spec, {f"decoder.blocks.{i}.feedforward.hidden": 4 * spec.width for i in range(1)})


def write_run(model: ModelWithHead, head: str, folder: Path, pair: str | None = None) -> None:
    """Save a model, with its task as a run does if its predictions can be compared."""
    pt.save(model, folder)
    write_task(head, folder, pair)


def write_task(head: str, folder: Path, pair: str | None = None) -> None:
    """Write the settings of a task of sequences."""
    if head in SEQUENCE_KINDS:
        SavedTask(
            name="own",
            task_kind=head.replace("_", "-"),
            labels=SETTINGS.get(head, {}).get("labels", ()),
            text="text",
            pair=pair,
            scale=(0.0, 5.0) if head == "regression" else None,
            max_length=min(16, ROOM),
            stride=4,
        ).write(folder)


def export(folder: Path, *options: str, to: str = "hf") -> int:
    """Exit code of the export of `run` in a folder to `out`."""
    return main(["export", str(folder / "run"), "--to", to, "--out", str(folder / "out"), *options])


def run_class(folder: Path, name: str, texts: list[Any]) -> torch.Tensor:
    """Logits of a class of transformers; one text at a time if its tokenizer cannot pad."""
    model, info = getattr(tf, name).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    tokenizer = tf.AutoTokenizer.from_pretrained(folder)
    groups = [texts] if tokenizer.pad_token is not None else [[text] for text in texts]
    logits = []
    for group in groups:
        columns = zip(*group, strict=True) if isinstance(group[0], tuple) else [group]
        inputs = tokenizer(*map(list, columns), padding=len(group) > 1, truncation=True, return_tensors="pt")
        with torch.no_grad():
            logits.append(model.eval()(**inputs).logits)
    return torch.cat(logits)


def run_peer(folder: Path, name: str, texts: list[Any]) -> torch.Tensor:
    """Logits of the library that an export names."""
    if name != "SentenceTransformer":
        return run_class(folder, name, texts)
    model = st.SentenceTransformer(str(folder), device="cpu")
    groups = [texts] if model.tokenizer.pad_token is not None else [[text] for text in texts]
    return torch.cat([model.encode(group, convert_to_tensor=True) for group in groups])


def predict(folder: Path, head: str, texts: list[Any]) -> torch.Tensor:
    """What `pretune predict` says: probabilities, or scores."""
    predictions = FinetunedRun.open(folder, device="cpu").predict(texts)
    if head == "regression":
        return torch.tensor([[prediction["score"]] for prediction in predictions])
    return torch.tensor([[*prediction["probabilities"].values()] for prediction in predictions])


def convert(logits: torch.Tensor, head: str) -> torch.Tensor:
    """Probabilities, or scores from 0 to 5."""
    if head == "regression":
        return ((logits + 1) / 2 * 5).clamp(0, 5)
    return logits.softmax(-1) if head == "classification" else logits.sigmoid()


def check_tokens(model: ModelWithHead, folder: Path, name: str) -> None:
    """Compare the logits of a head on tokens, or on the options of a question, on the same tokens."""
    theirs = getattr(tf, name).from_pretrained(folder).eval()
    ids = torch.randint(5, model.model.spec.vocab, (2, 7), generator=torch.Generator().manual_seed(1))
    is_choice = "MultipleChoice" in name
    with torch.no_grad():
        ours = pt.load(folder)
        batch = pt.batch(ids.tolist())
        if model.model.spec.is_encoder_decoder:
            start = theirs.config.decoder_start_token_id  # None: the class starts with the last token
            targets = [[row[-1] if start is None else start, *row[:-1]] for row in ids.tolist()]
            batch = pt.batch(source=ids.tolist(), target=targets)
        expected = [ours(batch), model(batch)]
        inputs = ids[None] if is_choice else ids
        output = theirs(input_ids=inputs, attention_mask=torch.ones_like(inputs))
    logits = (
        torch.stack((output["start_logits"], output["end_logits"]), -1) if "start_logits" in output else output.logits
    )
    for values in expected:
        torch.testing.assert_close(logits.reshape(-1), values.reshape(-1), rtol=0, atol=1e-5)


def is_inexpressible(model: ModelWithHead, variant: str) -> bool:
    """Return whether neither library can compute a head: refusals of others are faults."""
    spec, head, layout = model.model.spec, model.spec, FAMILIES.get(model.model.spec.family).layout
    if layout is None or spec.is_recurrent or variant in ("scalar mix", "silu"):
        return True
    if not isinstance(model.head, SequenceHead) or isinstance(head, Choice) or spec.is_encoder_decoder:
        return True  # no class of the family has it
    transform = head.pooling.layer
    return spec.table != spec.width or (isinstance(transform, Transform) and transform.norm is not None)


@pytest.mark.parametrize(("family", "head", "variant"), keep_quick(CELLS, *QUICK))
def test_a_peer_computes_the_same_or_it_is_refused(
    family: str, head: str, variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        model = make_model(family, head, variant)
    except UsageError as error:
        pytest.skip(str(error))
    source, out = tmp_path / "run", tmp_path / "out"
    write_run(model, head, source)
    code = export(tmp_path, "--json")
    shown = capsys.readouterr()
    if code != 0:
        assert code == 2 and shown.err.count("\n") == 1 and not out.exists(), shown.err
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
        assert is_inexpressible(model, variant), shown.err
        return
    name = json.loads(shown.out)["class"]
    again = pt.load(out)
    assert isinstance(again, ModelWithHead) == (head != "generation")
    if head in SEQUENCE_KINDS:
        expected = predict(source, head, TEXTS)
        torch.testing.assert_close(predict(out, head, TEXTS), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(convert(run_peer(out, name, TEXTS), head), expected, rtol=0, atol=2e-5)
        if model.model.spec.shape != "decoder" or not variant.startswith(("first", "pooler")):
            assert expected.std(0).max() > 1e-4  # the first state of a decoder is the same for all texts
        if variant in ("paper", "mean"):
            write_task(head, source, pair="pair")
            expected = predict(source, head, PAIRS)
            torch.testing.assert_close(convert(run_peer(out, name, PAIRS), head), expected, rtol=0, atol=2e-5)
        assert tuple(json.loads((out / "config.json").read_text())["id2label"].values())[: expected.shape[1]] == (
            SETTINGS.get(head, {}).get("labels", ("LABEL_0",))
        )
    elif head != "generation":
        check_tokens(model, out, name)
    if name == "SentenceTransformer":  # a class of transformers would give the body a random head
        for auto_class in (tf.AutoModel, tf.AutoModelForSequenceClassification):
            with pytest.raises((OSError, ValueError), match=r"no file named|for this kind of"):
                auto_class.from_pretrained(out)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "bart"])
def test_embedding_models(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same vectors; refused if sentence-transformers would pool a decoder instead of the encoder."""
    body = make_model(family, "classification", "paper").model
    body.assets.modules = write_modules(build_encoder(body, pooling="mean"))
    pt.save(body, tmp_path / "run")
    code = export(tmp_path)
    assert code == (2 if family == "bart" else 0)
    if code == 0:
        vectors = st.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS[:3])
        expected = torch.as_tensor(pt.embed(tmp_path / "run", TEXTS[:3]))
        torch.testing.assert_close(torch.as_tensor(vectors), expected, rtol=0, atol=1e-5)
    else:
        assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "out").exists()
