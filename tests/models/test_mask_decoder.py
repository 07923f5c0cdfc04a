"""The enhanced mask decoder and disentangled sharing beside the same written out, and the directories of both."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.models.catalog import convert_to_shape, resolve
from pretune.models.generator_discriminator import GeneratorDiscriminator, Pair, build_pair
from pretune.models.model import LanguageModel, build
from pretune.nn.layers import OffsetEmbedding
from pretune.nn.mask_decoder import MaskDecoder
from pretune.objectives.replaced_token import ReplacedToken, fill_in, hash_to_uniform
from tests.contracts.tiny import rough

TINY = {"width": 32, "depth": 3, "heads": 4, "vocab": 61, "hidden": 44, "positions": 24, "dropout": 0.0}
TEXT = [5, 9, 33, 7, 12, 60, 41, 8, 22]


def tiny() -> LanguageModel:
    return rough(build(resolve("deberta-v3-base", TINY))).eval()


def spelled_out(model: LanguageModel, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Return states and decoded states of one text: no packing, no batches, gathers by distance."""
    stack = model.encoder
    n, distances = len(tokens), stack.position
    x = stack.embed.norm(model.tokens.weight[tokens])
    table = distances.norm(distances.table.weight)
    bucket = torch.tensor([[distances.compute_index(torch.tensor([i - j])).item() for j in range(n)] for i in range(n)])

    def layer(block: torch.nn.Module, query: Tensor, keys: Tensor) -> Tensor:
        attention, heads = block.attention, []
        q, k, v = attention.q(query), attention.k(keys), attention.v(keys)
        kr, qr = attention.k(table), attention.q(table)
        for h in range(4):
            part = slice(8 * h, 8 * h + 8)
            scores = q[:, part] @ k[:, part].T
            scores = scores + (q[:, part] @ kr[:, part].T).gather(1, bucket)  # content to position
            scores = scores + torch.einsum("jd,ijd->ij", k[:, part], qr[:, part][bucket])  # position to content
            heads.append((scores / (3 * 8) ** 0.5).softmax(-1) @ v[:, part])
        query = block.attention_norm.post(query + attention.out(torch.cat(heads, 1)))
        return block.feedforward_norm.post(query + block.feedforward(query))

    for i in range(stack.spec.depth):
        before, x = x, layer(stack[i], x, x)
    decoded = before + model.mask_decoder.positions.weight[:n]
    for _ in range(2):
        decoded = layer(stack[stack.spec.depth - 1], decoded, before)
    return x, decoded


def test_it_is_what_the_paper_describes() -> None:
    """At all positions, at targets only, packed with another text; other heads have the states of the last layer."""
    model = tiny()
    states, decoded = spelled_out(model, TEXT)
    logits = F.linear(model.head.transform(decoded), model.tokens.weight, model.head.bias)
    batch = pt.batch([[3, 4, 5], TEXT], row=14)
    out = model(batch)
    torch.testing.assert_close(batch.split(out.states)[1], states, rtol=0, atol=1e-5)
    torch.testing.assert_close(batch.split(out.logits)[1], logits, rtol=0, atol=1e-5)
    labels = [[-100] * 3, [token if i in (1, 4, 5) else -100 for i, token in enumerate(TEXT)]]
    batch = pt.batch([[3, 4, 5], TEXT], row=14, labels=labels)
    torch.testing.assert_close(model(batch).logits, logits[[1, 4, 5]], rtol=0, atol=1e-5)
    loss = model.loss(model.states(batch), batch)
    expected = F.cross_entropy(logits[[1, 4, 5]], torch.tensor(TEXT)[[1, 4, 5]], reduction="sum")
    torch.testing.assert_close(loss.sum, expected, rtol=0, atol=1e-4)
    assert (states - decoded).abs().max() > 0.1  # it matters


def test_gradients_are_those_of_the_same_written_out() -> None:
    model = tiny()
    _, decoded = spelled_out(model, TEXT)
    logits = F.linear(model.head.transform(decoded[[2, 6]]), model.tokens.weight, model.head.bias)
    F.cross_entropy(logits, torch.tensor(TEXT)[[2, 6]], reduction="sum").backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    batch = pt.batch([TEXT], labels=[[token if i in (2, 6) else -100 for i, token in enumerate(TEXT)]])
    model.loss(model.states(batch), batch).sum.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_task_head_has_the_states_of_the_last_layer() -> None:
    """Targets are then labels of the task, and the decoder is left out."""
    model = tiny()
    tagger = pt.add_head(model, "tagging", labels=["a", "b"])
    batch = pt.batch([TEXT], labels=[[0, 1] * 4 + [-100]])
    torch.testing.assert_close(tagger.states(batch), spelled_out(model, TEXT)[0], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_directory_keeps_it_and_transformers_leaves_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tf = pytest.importorskip("transformers", reason="the reference library is not installed")
    model = tiny()
    pt.save(model, tmp_path / "run")
    again = pt.load(tmp_path / "run")
    assert again.spec == model.spec and again.spec.mask_decoder == MaskDecoder(rows=24)
    assert json.loads((tmp_path / "run/config.json").read_text())["architectures"] == ["DebertaV2ForMaskedLM"]
    theirs, info = tf.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not info["missing_keys"]
    bare = F.linear(model.head.transform(spelled_out(model, TEXT)[0]), model.tokens.weight, model.head.bias)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(torch.tensor([TEXT])).logits[0], bare, rtol=0, atol=1e-5)
    pt.export(tmp_path / "run", out=tmp_path / "share")
    assert "DebertaV2ForMaskedLM leaves out the enhanced mask decoder" in capsys.readouterr().err


def test_names_of_the_released_weights(tmp_path: Path) -> None:
    """Both heads of the reference, the decoder's positions and the detector are read, whatever the class."""
    from safetensors.torch import load_file, save_file

    pair = rough(build_pair(convert_to_shape(resolve("deberta-v3-base", TINY), ["generator-discriminator"])))
    model = replace_heads(pair)
    pt.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old, new = "cls.predictions.", "lm_predictions.lm_head."
    renamed = {name.replace(f"{old}transform.", new).replace(old, new): value for name, value in tensors.items()}
    assert {"mask_predictions.classifier.weight", f"{new}bias", f"{new}LayerNorm.weight"} < set(renamed)
    assert "deberta.embeddings.position_embeddings.weight" in renamed
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "architectures"}))
    (tmp_path / "MANIFEST.json").unlink(missing_ok=True)
    again = pt.load(tmp_path)
    assert again.spec.parts == {"head", "detector", "mask_decoder"}
    for (name, ours), (_, theirs) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(ours, theirs), name


def replace_heads(pair: GeneratorDiscriminator) -> LanguageModel:
    """Return a model with the heads of both, as the released files of version 3 have them."""
    spec = pair.discriminator.spec
    generator = pair.generator.spec
    return rough(build(replace(spec, head=generator.head, mask_decoder=generator.mask_decoder))).eval()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pos_att_type": "p2p"}, "'pos_att_type'"),
        ({"pos_att_type": []}, "'pos_att_type'"),
        ({"norm_rel_ebd": "batch_norm"}, "'norm_rel_ebd'"),
        ({"position_buckets": 0}, "'position_buckets'"),
        ({"max_relative_positions": 129}, "max_distance"),
        ({"conv_kernel_size": 2}, "'conv_kernel_size'"),
        ({"attention_head_size": 5}, "'attention_head_size'"),
        ({"relative_attention": "yes"}, "'relative_attention'"),
    ],
)
def test_unsupported_configs_are_refused_in_one_line(tmp_path: Path, change: dict[str, object], words: str) -> None:
    pt.save(tiny(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=words) as caught:
        pt.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder.position": None},
        {"encoder.causal": True},
        {"encoder.blocks.0.attention.distances": None},
        {"encoder.position.input": {"kind": "learned", "rows": 24}},
        {"encoder.position.max_distance": 129},
        {"encoder.conv": {"kind": "convolution", "kernel": 4}},
    ],
)
def test_specs_that_do_not_fit_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        resolve("deberta-v3-base", {**TINY, **settings})


# Replaced tokens: the token table is shared, its gradient is not


def pair_of_three() -> tuple[Pair, GeneratorDiscriminator]:
    spec = convert_to_shape(resolve("deberta-v3-base", TINY), ["generator-discriminator"])
    assert isinstance(spec, Pair)
    pair = build_pair(spec, seed=4)
    rough(pair)  # type: ignore[arg-type]
    return spec, pair.eval()


def test_the_paper_s_generator() -> None:
    spec = convert_to_shape(resolve("deberta-v3-base"), ["generator-discriminator"])
    assert isinstance(spec, Pair) and spec.sharing == "disentangled"
    assert (spec.generator.width, spec.generator.depth, spec.discriminator.depth) == (768, 6, 12)
    assert spec.generator.mask_decoder is not None and spec.discriminator.mask_decoder is None
    assert spec.discriminator.detector is not None and spec.discriminator.head is None


def test_a_new_pair_has_one_token_table() -> None:
    spec, _ = pair_of_three()
    pair = build_pair(spec, seed=4)
    table = pair.discriminator.tokens
    assert isinstance(table, OffsetEmbedding) and not table.offset.any()
    assert torch.equal(table.weight, pair.generator.tokens.weight)
    assert sum(parameter.numel() for parameter in pair.parameters()) == spec.params().total


def test_gradients_do_not_meet() -> None:
    """Those of both tables are the gradients of two separate models, each of its own loss."""
    _, pair = pair_of_three()
    batch = pt.batch([TEXT], labels=[[token if i in (2, 6) else -100 for i, token in enumerate(TEXT)]])
    parts = ReplacedToken().loss(pair, batch).parts
    (parts["generator"].sum + 50 * parts["discriminator"].sum).backward()

    table = pair.generator.tokens.weight.detach() + pair.discriminator.tokens.offset.detach()
    masked = pair.generator.states(batch)
    alone = pair.generator.loss(masked, batch).sum
    filled, replaced = fill_in(batch, pair.generator.sample(masked, batch, hash_to_uniform(batch)))
    plain = pair.get_models_by_folder()[""]
    assert torch.equal(plain.tokens.weight, table)
    logits = plain.detector(plain.states(filled), filled)
    expected = F.binary_cross_entropy_with_logits(logits, replaced.float(), reduction="sum")
    (of_table,) = torch.autograd.grad(expected * 50, plain.tokens.weight, retain_graph=True)
    (of_generator,) = torch.autograd.grad(alone, pair.generator.tokens.weight)
    torch.testing.assert_close(pair.discriminator.tokens.offset.grad, of_table, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pair.generator.tokens.weight.grad, of_generator, rtol=1e-4, atol=1e-5)
    assert of_table.abs().max() > 1e-3


def test_the_generator_s_training_moves_both_tables() -> None:
    _, pair = pair_of_three()
    before = pair.discriminator.tokens.weight.detach().clone()
    with torch.no_grad():
        pair.generator.tokens.weight.add_(1.0)
    torch.testing.assert_close(pair.discriminator.tokens.weight.detach(), before + 1.0)


def test_it_is_saved_as_the_sum_and_continued_from_it(tmp_path: Path) -> None:
    from pretune.runs.pretrain_run import load_initial_weights

    spec, pair = pair_of_three()
    pt.save(pair, tmp_path)
    model = pt.load(tmp_path)
    assert torch.equal(model.tokens.weight, pair.discriminator.tokens.weight) and model.detector is not None
    assert torch.equal(pt.load(tmp_path / "generator").tokens.weight, pair.generator.tokens.weight)
    other = build_pair(spec, seed=9)
    load_initial_weights(other, tmp_path)
    for (name, ours), (_, theirs) in zip(pair.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("sharing", ["tied", "none"])
def test_other_kinds_of_sharing(sharing: str) -> None:
    spec = replace(pair_of_three()[0], sharing=sharing)
    pair = build_pair(spec)
    assert (pair.generator.tokens is pair.discriminator.tokens) == (sharing == "tied")
    assert sum(parameter.numel() for parameter in pair.parameters()) == spec.params().total
