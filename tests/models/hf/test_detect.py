"""Detection of names, parts and tying from the tensors of a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune.core import config
from pretune.core.errors import CheckpointError
from pretune.models.model import build
from tests.contracts.tiny import model_of
from tests.faults.strangers import WEIGHTS, change_config, change_tensors, directory

TABLE = {"bert-base": "bert.embeddings.word_embeddings.weight", "llama-7b": "model.embed_tokens.weight"}
HEAD = {"bert-base": "cls.predictions.decoder.weight", "llama-7b": "lm_head.weight"}


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(pt.batch([[3, 7, 11, 5], [9, 2]], row=6)).logits


def put_head(kind: str, table: str, head: str) -> Any:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors.pop(head, None)
        if kind == "equal":
            tensors[head] = tensors[table]
        elif kind == "differs":
            tensors[head] = tensors[table] + 1
        elif kind == "alone":
            tensors[head] = tensors.pop(table)
        elif kind == "wider":
            tensors[head] = torch.cat([tensors[table], tensors[table]])

    return change


TYING = [
    # class default, flag, what of the head is in the file -> tied, untied, or the tensor that is missing
    ("bert-base", True, "none", "tied"),
    ("bert-base", True, "equal", "tied"),
    ("bert-base", True, "differs", "untied"),
    ("bert-base", True, "alone", "tied"),
    ("bert-base", False, "none", "head"),
    ("bert-base", False, "equal", "untied"),
    ("bert-base", False, "differs", "untied"),
    ("bert-base", False, "alone", "table"),
    ("bert-base", None, "none", "tied"),
    ("bert-base", None, "equal", "tied"),
    ("bert-base", None, "differs", "untied"),
    ("llama-7b", True, "none", "tied"),
    ("llama-7b", True, "equal", "tied"),
    ("llama-7b", True, "differs", "untied"),
    ("llama-7b", True, "alone", "tied"),
    ("llama-7b", False, "none", "head"),
    ("llama-7b", False, "equal", "untied"),
    ("llama-7b", None, "none", "head"),  # silence means the class default
    ("llama-7b", None, "equal", "untied"),
    ("llama-7b", None, "differs", "untied"),
]


@pytest.mark.parametrize(("name", "flag", "kind", "result"), TYING)
def test_tying(name: str, flag: bool | None, kind: str, result: str, tmp_path: Path) -> None:
    folder = directory(tmp_path / "m", name)
    change_tensors(folder, put_head(kind, TABLE[name], HEAD[name]))
    change_config(folder, *(["tie_word_embeddings"] if flag is None else []), tie_word_embeddings=flag)
    if result in ("head", "table"):
        missing = (HEAD if result == "head" else TABLE)[name]
        with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: .*'{missing}'"):
            pt.load(folder)
        return
    model = pt.load(folder)
    assert model.spec.head is not None and model.spec.head.tied == (result == "tied")
    weight = model.tokens.weight if model.head.weight is None else model.head.weight
    assert torch.equal(weight, model.tokens.weight + (kind == "differs"))


def test_null_is_silence(tmp_path: Path) -> None:
    folder = change_config(directory(tmp_path / "m"), tie_word_embeddings=None)
    assert pt.load(folder).spec.head.tied
    change_config(folder, tie_word_embeddings="false")
    with pytest.raises(CheckpointError, match=r"config.json: .*'tie_word_embeddings' = 'false'"):
        pt.load(folder)


def test_a_head_of_another_shape(tmp_path: Path) -> None:
    folder = change_tensors(directory(tmp_path / "m"), put_head("wider", TABLE["bert-base"], HEAD["bert-base"]))
    with pytest.raises(CheckpointError, match=rf"'{HEAD['bert-base']}'.*\[122, 32\].*\[61, 32\]"):
        pt.load(folder)


def test_gamma_and_beta(tmp_path: Path) -> None:
    def old(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        spelled = {}
        for name, tensor in tensors.items():
            spelled[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")] = tensor
        assert sum(name.endswith(("gamma", "beta")) for name in spelled) >= 10
        return spelled

    folder = change_tensors(directory(tmp_path / "m"), old)
    assert torch.equal(logits(pt.load(folder)), logits(model_of("bert-base")))


def test_a_weight_under_two_names(tmp_path: Path) -> None:
    def twice(tensors: dict[str, Tensor]) -> None:
        tensors["bert.embeddings.LayerNorm.gamma"] = tensors["bert.embeddings.LayerNorm.weight"]

    folder = change_tensors(directory(tmp_path / "m"), twice)
    message = r"'bert.embeddings.LayerNorm.(gamma|weight)'.*'bert.embeddings.LayerNorm.(gamma|weight)'"
    with pytest.raises(CheckpointError, match=message):
        pt.load(folder)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("bert-base", "bert."),
        ("gpt2-small", "transformer."),
        ("llama-7b", "model."),
        ("opt-125m", "model."),
        ("bart-base", "model."),
    ],
)
def test_without_the_prefix_of_the_body(name: str, prefix: str, tmp_path: Path) -> None:
    """As the bare class saves, and as many releases lie on the hub under the full class's name."""
    folder = change_tensors(
        directory(tmp_path / "m", name),
        lambda tensors: {key.removeprefix(prefix): tensor for key, tensor in tensors.items()},
    )
    loaded = pt.load(folder)
    assert loaded.spec == model_of(name).spec
    for (key, a), (_, b) in zip(model_of(name).state_dict().items(), loaded.state_dict().items(), strict=True):
        assert torch.equal(a, b), key


def test_half_with_and_half_without_the_prefix(tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["embeddings.word_embeddings.weight"] = tensors.pop("bert.embeddings.word_embeddings.weight")

    with pytest.raises(CheckpointError, match=r"'bert.embeddings.word_embeddings.weight'.*'em"):
        pt.load(change_tensors(directory(tmp_path / "m"), change))


def test_other_prefixes_are_not_guessed(tmp_path: Path) -> None:
    folder = change_tensors(
        directory(tmp_path / "m"), lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()}
    )
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: .*'bert\..*'.*'module\.bert"):
        pt.load(folder)


@pytest.mark.parametrize(
    ("classes", "dropped", "parts"),
    [
        (["BertForMaskedLM"], (), {"head", "pooler", "pair"}),  # as bert-base-uncased lies on the hub
        (["BertForMaskedLM"], ("pooler", "seq_relationship"), {"head"}),
        (["BertForPreTraining"], (), {"head", "pooler", "pair"}),
        (["BertModel"], ("cls.",), {"pooler"}),
        (["BertModel"], ("cls.", "pooler"), set()),
        (None, (), {"head", "pooler", "pair"}),
        (None, ("cls.",), {"pooler"}),
        ([], ("cls.", "pooler"), set()),
        (["BertForNextSentencePrediction"], ("cls.predictions",), {"pooler", "pair"}),
    ],
)
def test_parts(classes: list[str] | None, dropped: tuple[str, ...], parts: set[str], tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    change_config(folder, *(["architectures"] if classes is None else []), architectures=classes)
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if not any(part in k for part in dropped)})
    spec = pt.load(folder).spec
    assert {part for part in ("head", "pooler", "pair") if getattr(spec, part) is not None} == parts


@pytest.mark.parametrize(
    ("classes", "dropped", "missing"),
    [
        ("BertForPreTraining", "pooler", "bert.pooler.dense.weight"),
        ("BertForPreTraining", "seq_relationship", "cls.seq_relationship.weight"),
        ("BertForMaskedLM", "cls.predictions", "cls.predictions.transform.dense.weight"),
        ("BertForMaskedLM", "bert.pooler", "bert.pooler.dense.weight"),  # the pair head that is there reads it
    ],
)
def test_promised_parts_must_be_there(classes: str, dropped: str, missing: str, tmp_path: Path) -> None:
    folder = change_config(directory(tmp_path / "m"), architectures=[classes])
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if dropped not in k})
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: .*'{missing}'"):
        pt.load(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_copies_of_the_table(dtype: torch.dtype, tmp_path: Path) -> None:
    copy, table = "model.encoder.embed_tokens.weight", "model.shared.weight"

    def put(tensors: dict[str, Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(dtype)
        tensors[copy] = tensors[table]

    folder = change_tensors(directory(tmp_path / "m", "bart-base"), put)
    whole = pt.load(folder).tokens.weight
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != table})
    assert torch.equal(pt.load(folder).tokens.weight, whole)
    change_tensors(folder, lambda tensors: {**tensors, table: tensors[copy] + 1})
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: .*'{copy}'.*'{table}'"):
        pt.load(folder)


def test_the_bias_that_is_computed_with(tmp_path: Path) -> None:
    """The second spelling wins, as in the reference."""
    twin, name = "cls.predictions.decoder.bias", "cls.predictions.bias"
    folder = change_tensors(directory(tmp_path / "m"), lambda tensors: {**tensors, twin: tensors[name] + 1})
    assert torch.equal(pt.load(folder).head.bias, model_of("bert-base").head.bias + 1)
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != name})
    assert torch.equal(pt.load(folder).head.bias, model_of("bert-base").head.bias + 1)


@pytest.mark.parametrize(
    ("name", "buffer", "value"),
    [
        ("bert-base", "bert.embeddings.position_ids", torch.arange(24)[None]),
        ("tinybert-4", "fit_dense.weight", torch.ones(768, 32)),  # to the width of the teacher
        ("tinybert-4", "fit_denses.3.bias", torch.ones(768)),
        ("gpt2-small", "transformer.h.0.attn.bias", torch.ones(1, 1, 24, 24, dtype=torch.uint8)),
        ("gpt2-small", "transformer.h.0.attn.masked_bias", torch.tensor(-1e4)),
        ("pythia-160m", "gpt_neox.layers.0.attention.bias", torch.ones(1, 1, 24, 24, dtype=torch.bool)),
        ("pythia-160m", "gpt_neox.layers.0.attention.rotary_emb.inv_freq", torch.ones(2)),
        ("llama-7b", "model.layers.1.self_attn.rotary_emb.inv_freq", torch.ones(4)),
        ("t5-base", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", torch.ones(8, 4)),
    ],
)
def test_buffers_of_old_releases(name: str, buffer: str, value: Tensor, tmp_path: Path) -> None:
    folder = change_tensors(directory(tmp_path / "m", name), lambda tensors: {**tensors, buffer: value})
    assert pt.load(folder).spec == model_of(name).spec


def test_a_span_head_must_be_whole(tmp_path: Path) -> None:
    """Its settings are in the config, its tensors beside those of the class."""
    folder = directory(tmp_path / "m", "spanbert-base")
    assert pt.load(folder).spec == model_of("spanbert-base").spec
    change_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "span.place.weight"})
    with pytest.raises(CheckpointError, match=r"'span\.place\.weight' is missing"):
        pt.load(folder)
    with pytest.raises(CheckpointError, match=r"'span\..*is not part of this model"):
        pt.load(change_config(folder, "pretune"))


@pytest.mark.parametrize(
    ("groups", "message"),
    [(1, "albert_layer_groups.1.*is not part of this model"), (4, "albert_layer_groups.2.*is missing"), (5, "at most")],
)
def test_groups_of_layers_that_are_not_there(groups: int, message: str, tmp_path: Path) -> None:
    """Two groups of shared layers in the file, another number in the config."""
    spec = config.replace(model_of("albert-base").spec, {"encoder.depth": 4, "encoder.share": 2})
    pt.save(build(spec), tmp_path / "m")
    change_config(tmp_path / "m", num_hidden_groups=groups)
    with pytest.raises(CheckpointError, match=message) as caught:
        pt.load(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_a_bias_that_is_missing_and_zero(tmp_path: Path) -> None:
    folder = change_tensors(
        directory(tmp_path / "m", "bart-base"),
        lambda tensors: {k: v for k, v in tensors.items() if k != "final_logits_bias"},
    )
    model = pt.load(folder)
    assert not model.head.bias.any() and model.head.bias.shape == (61,)
