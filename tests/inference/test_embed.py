"""Vectors of texts: packed equals one at a time, in order, every pooling as it is defined."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.data.layout import pack_batches
from pretune.data.sequences import Sequences
from pretune.inference import embed as embed_module
from pretune.inference import sentence_modules
from pretune.inference.embed import BATCH_TOKENS, build_embedder, encode_texts, split_into_chunks
from pretune.inference.pooling import POOLINGS, Embedding, TextEncoder, compute_layers
from pretune.inference.text_model import get_tokenizer
from pretune.models.catalog import resolve
from pretune.models.model import build
from tests.contracts.tiny import CASES, model_of, rough
from tests.inference.readers import TEXTS, decoder, encoder

EXACT = {"rtol": 0.0, "atol": 1e-6}


def slowly(model: Any, text: str, pooling: str, layer: int | None) -> np.ndarray[Any, Any]:
    """One text by itself, pooled by the definition."""
    tokenizer = get_tokenizer(model)
    ids = tokenizer.template.apply(tokenizer.encode(text, add_special_tokens=False)).ids
    if pooling == "static":
        rows = model.tokens.weight[torch.tensor(tokenizer.encode(text, add_special_tokens=False), dtype=torch.long)]
        return (rows.mean(0) if len(rows) else torch.zeros(rows.shape[1])).detach().numpy()
    if not len(ids):
        return np.zeros(model.spec.width, dtype=np.float32)
    with torch.no_grad():
        result = model(pt.batch([ids]), hidden=True)
    states = result.hidden[-1 if layer is None else layer]
    weights = torch.arange(1, len(ids) + 1)[:, None]
    return {
        "mean": lambda: states.mean(0),
        "cls": lambda: states[0],
        "max": lambda: states.max(0).values,
        "last": lambda: states[-1],
        "mean_sqrt": lambda: states.sum(0) / len(ids) ** 0.5,
        "weighted": lambda: (states * weights).sum(0) / weights.sum(),
    }[pooling]().numpy()


@pytest.mark.parametrize("make", [encoder, decoder])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("layer", [None, 1])
def test_poolings(make: Any, pooling: str, layer: int | None) -> None:
    if pooling == "static" and layer is not None:
        pytest.skip("static vectors have no layer")
    model = make()
    result = pt.embed(model, TEXTS, pooling=pooling, layer=layer)
    for text, vector in zip(TEXTS, result, strict=True):
        np.testing.assert_allclose(vector, slowly(model, text, pooling, layer), **EXACT)


def test_normalised_and_side_by_side() -> None:
    model = encoder()
    both = pt.embed(model, TEXTS, pooling="cls+mean")
    item, other = (pt.embed(model, TEXTS, pooling=name) for name in ("cls", "mean"))
    np.testing.assert_allclose(both, np.concatenate((item, other), axis=1), **EXACT)
    np.testing.assert_allclose(np.linalg.norm(pt.embed(model, TEXTS, normalise=True), axis=1), 1, atol=1e-6)


def test_many_batches_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and batches of any size give the same; weights that lie by columns do so only meanwhile."""
    model = encoder()
    previous = [(p.data_ptr(), p.stride()) for p in model.parameters()]
    texts = [" ".join(TEXTS[i % 8].split()[: 1 + i % 5]) + f" {i}" for i in range(60)]
    reference = pt.embed(model, texts)
    monkeypatch.setattr(embed_module, "MIN_CHARACTERS", 0)
    monkeypatch.setattr("pretune.inference.embed.split_into_chunks", lambda texts: split_into_chunks(texts, 300, 9))
    messages: list[tuple[int, int]] = []
    result = pt.embed(model, texts, batch_tokens=1, on_progress=lambda done, total: messages.append((done, total)))
    np.testing.assert_allclose(result, reference, **EXACT)
    assert (
        messages[-1] == (60, 60)
        and [done for done, _ in messages] == sorted(done for done, _ in messages)
        and len(messages) > 8
    )
    assert [(p.data_ptr(), p.stride()) for p in model.parameters()] == previous


def test_vectors_do_not_depend_on_threads() -> None:
    """On a CPU several threads compute batches at the same time."""
    model, threads = encoder(), torch.get_num_threads()
    texts = [" ".join(TEXTS[i % 8].split()[: 1 + i % 5]) + f" {i}" for i in range(600)]
    try:
        vectors = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            before = torch.get_num_threads()
            vectors.append(pt.embed(model, texts, device="cpu"))
            assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(threads)
    assert len(texts) * 4 > 2 * BATCH_TOKENS["cpu"]  # several batches
    np.testing.assert_allclose(vectors[0], vectors[1], **EXACT)
    np.testing.assert_allclose(vectors[0], vectors[2], **EXACT)


def test_too_long_is_counted() -> None:
    model = encoder()
    ask = build_embedder(model)
    assert ask.length == 40
    result = ask(["bird " * 100, "bird", ""])
    assert (result.truncated_texts, result.truncated_tokens, result.empty_texts) == (1, 62, 1)
    np.testing.assert_allclose(result.vectors[0], slowly(model, "bird " * 38, "mean", None), **EXACT)
    short = build_embedder(model, length=5)(["the cat plays music", "the cat plays"])
    assert (short.truncated_texts, short.truncated_tokens) == (1, 1)
    np.testing.assert_allclose(short.vectors[0], short.vectors[1], **EXACT)


def test_equal_texts_are_counted_each() -> None:
    result = build_embedder(encoder())(["bird " * 100, "bird", "bird " * 100, "bird " * 50])
    assert (result.truncated_texts, result.truncated_tokens) == (3, 62 + 62 + 12)
    assert result.lost_tokens.tolist() == [62, 0, 62, 12] and result.lengths.tolist() == [40, 3, 40, 40]


def test_the_language_of_a_model_is_read() -> None:
    """As `model.states` does; every layer has it, too."""
    spec = resolve("xlm", {"vocab": encoder().spec.vocab, "width": 32, "depth": 2, "heads": 4})
    model = rough(build(spec)).eval()
    model.assets = encoder().assets
    vectors = {}
    for language in (None, 0, 3):
        model.set_language(language)
        batch = get_tokenizer(model)(["the cat plays"])
        with torch.no_grad():
            reference = model(batch, hidden=True).hidden
            for state, other in zip(compute_layers(model, batch), reference, strict=True):
                torch.testing.assert_close(state, other)
        for layer in (None, 1):
            vectors[language, layer] = pt.embed(model, ["the cat plays"], layer=layer)
            np.testing.assert_allclose(
                vectors[language, layer][0], reference[-1 if layer is None else layer].mean(0), **EXACT
            )
    assert not np.allclose(vectors[0, None], vectors[3, None]) and not np.allclose(vectors[None, 1], vectors[0, 1])


def test_a_prefix_takes_positions() -> None:
    model = encoder()
    pt.PrefixTuning(count=4).apply(model)
    result = build_embedder(model)(["bird " * 100])
    assert build_embedder(model).length == 36 and result.truncated_tokens == 66


def test_mode_and_gradients_are_as_before() -> None:
    model = encoder().train()
    pt.embed(model, TEXTS)
    assert all(module.training for module in model.modules()) and all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"pooling": "means"}, "'means'.*'mean'"),
        ({"pooling": "static+mean"}, "static"),
        ({"layer": 3}, "layer .*3"),
        ({"length": 2}, "length .*2"),
        ({"batch_tokens": 0}, "batch_tokens .*0"),
    ],
)
def test_invalid_options(options: dict[str, Any], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        pt.embed(encoder(), ["the cat"], **options)


def test_what_is_no_list() -> None:
    with pytest.raises(UsageError):
        pt.embed(encoder(), "the cat")
    assert pt.embed(encoder(), []).shape == (0, 32)


def test_chunks_hold_every_text_once() -> None:
    texts = ["x" * n for n in range(100)]
    parts = split_into_chunks(texts, 500, 7)
    assert sorted(np.concatenate(parts).tolist()) == list(range(100)) and max(map(len, parts)) == 7
    assert split_into_chunks([]) == []


def test_framed_segments_and_frames() -> None:
    tokenizer = get_tokenizer(encoder())
    made = encode_texts(tokenizer, ["the cat", ""], None)
    for i, text in enumerate(["the cat", ""]):
        reference = tokenizer.template.apply(tokenizer.encode(text, add_special_tokens=False)).ids
        assert made.sequences.take(np.array([i])).tokens.tolist() == reference.tolist()
    assert encode_texts(tokenizer, ["the cat", ""], None, without_special=True).sequences.lengths.tolist() == [2, 0]


def test_modules_there_and_back(tmp_path: Path) -> None:
    """Pooling, a dense layer and a norm through the files of sentence-transformers, saved and read again."""
    model = encoder()
    dense = sentence_modules.Dense(64, 8, bias=True, activation="torch.nn.modules.activation.Tanh")
    config = Embedding(pooling=("cls", "mean"), normalise=True, prompt="query: ")
    made = TextEncoder(model, config, torch.nn.ModuleList([dense]))
    model.assets.modules = sentence_modules.write_modules(made)
    pt.save(model, tmp_path / "m")
    repeat = pt.load(tmp_path / "m")
    assert sentence_modules.read_modules(repeat)[0] == config
    reference = build_embedder(made)(TEXTS).vectors
    np.testing.assert_allclose(pt.embed(tmp_path / "m", TEXTS), reference, **EXACT)
    assert reference.shape == (8, 8)
    assert pt.embed(repeat, TEXTS, pooling="max").shape == (8, 32)  # the dense layer was not made for that


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"modules.json": b"{}"}, "modules.json"),
        ({"modules.json": b'[{"type": "x.Transformer", "path": ""}]'}, "Pooling"),
        ({"modules.json": b'[{"type": "x.CNN", "path": "1"}]'}, "'CNN'"),
        ({"modules.json": b'[{"type": "x.Pooling", "path": "1_P"}]'}, "1_P/config.json"),
        (
            {"modules.json": b'[{"type": "x.Pooling", "path": "1_P"}]', "1_P/config.json": b'{"pooling_mode": "odd"}'},
            "'odd'",
        ),
        (
            {
                "modules.json": b'[{"type": "x.Pooling", "path": "1_P"}, {"type": "x.Dense", "path": "2_D"}]',
                "1_P/config.json": b"{}",
                "2_D/config.json": b'{"activation_function": "os.system"}',
            },
            "2_D.*os.system",
        ),
        (
            {
                "modules.json": b'[{"type": "x.Pooling", "path": "1_P"}, {"type": "x.Dense", "path": "2_D"}]',
                "1_P/config.json": b"{}",
                "2_D/config.json": b"{}",
                "2_D/model.safetensors": b"damaged",
            },
            "2_D/model.safetensors",
        ),
        (
            {
                "modules.json": b'[{"type": "x.Pooling", "path": "1_P"}]',
                "1_P/config.json": b'{"include_prompt": false}',
                "config_sentence_transformers.json": b'{"prompts": {"q": "ask: "}, "default_prompt_name": "q"}',
            },
            "1_P",
        ),
        (
            {
                "modules.json": b'[{"type": "x.Pooling", "path": "1_P"}]',
                "1_P/config.json": b"{}",
                "sentence_bert_config.json": b'{"do_lower_case": true}',
            },
            "sentence_bert_config.json.*do_lower_case",
        ),
    ],
)
def test_modules_that_are_not_read(files: dict[str, bytes], words: str) -> None:
    model = encoder()
    model.assets.modules = files
    with pytest.raises(CheckpointError, match=words):
        pt.embed(model, ["the cat"])


def test_a_strangers_folder_is_not_followed(tmp_path: Path) -> None:
    pt.save(encoder(), tmp_path / "m")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m" / "modules.json").write_text('[{"type": "x.Pooling", "path": ".."}]')
    with pytest.raises(CheckpointError, match=r"modules\.json: '\.\.'"):
        pt.load(tmp_path / "m")


@pytest.mark.parametrize("name", CASES)
def test_every_family_gives_vectors(name: str) -> None:
    """Packed together or alone, the same; of an encoder-decoder the encoder is read, which needs no target."""
    model = model_of(name)
    texts = [np.arange(5, 5 + n) % 40 + 5 for n in (3, 9, 1, 6)]
    made = TextEncoder(model, Embedding(pooling=("mean", "last"), layer=1))
    given_ = Sequences(tokens=np.concatenate(texts), offsets=np.cumsum([0, 3, 9, 1, 6]))
    (part,) = pack_batches(given_, tokens=64)
    with torch.no_grad():
        together = made(part.batch)[torch.from_numpy(part.cells)]
        for place, number in enumerate(part.indices.tolist()):
            torch.testing.assert_close(together[place], made(pt.batch([texts[number]]))[0], rtol=1e-4, atol=1e-5)
