"""Models in GGUF files: of our exporter, of the package `gguf` as transformers computes them, and damaged ones."""

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError, PretuneError
from pretune.core.gguf import read_gguf
from pretune.exporters.gguf import write_gguf
from pretune.models.families import FAMILIES
from pretune.models.gguf_blocks import TYPES, read_tensor
from pretune.models.model import LanguageModel, build
from pretune.nn.positions import BandedScaling, LinearScaling, Rotary
from pretune.text.tokenizer.training import train
from tests.contracts.tiny import rough

TEXTS = ["the cat sat on the mat", "a dog lay on 12 sofas, naïvely"] * 4
HARD = ("It's 2024's 1,234th   day!\n\n\tWE'LL", "naïve café №5 — 東京 \N{GRINNING FACE}", "", "  x", "a<|endoftext|>b")
SIZES = {"width": 64, "depth": 2, "heads": 4, "kv_heads": 2, "hidden": 96}
POSITIONS = {
    "plain": Rotary(theta=5000.0),
    "linear": Rotary(scaling=LinearScaling(factor=2.0)),
    "banded": Rotary(theta=500000.0, scaling=BandedScaling(factor=8.0, low=1.0, high=4.0, original=64)),
}


def build_model(**options: Any) -> LanguageModel:
    """Return a small random model with a byte-level BPE; its vocabulary has unused rows."""
    tokenizer = train("bpe", TEXTS, vocab=300, style="endoftext")
    model = rough(build(FAMILIES.get("llama3").build_spec(**{**SIZES, "vocab": tokenizer.vocab + 3, **options}))).eval()
    model.assets.files = tokenizer.build_files()
    model.assets.tokenizer = tokenizer
    return model


@pytest.mark.parametrize("position", POSITIONS)
def test_an_exported_file_is_read_back(position: str, tmp_path: Path) -> None:
    model = build_model(position=POSITIONS[position], tied=position == "linear", head_width=24)
    write_gguf(model, tmp_path / "model.gguf")
    back = pt.load(tmp_path / "model.gguf")
    assert back.spec.decoder == model.spec.decoder and back.spec.head == model.spec.head
    weights = model.state_dict()
    assert {*weights} == {*back.state_dict()}
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    for text in HARD:
        assert back.tokenizer.encode(text) == model.tokenizer.encode(text)
        assert back.tokenizer.decode(back.tokenizer.encode(text)) == text
    assert pt.Tokenizer.load(tmp_path / "model.gguf").special == dict(model.tokenizer.special)


def test_it_is_a_model_for_every_verb(tmp_path: Path) -> None:
    file, model = tmp_path / "model.gguf", build_model()
    write_gguf(model, file, kind="q8_0")
    assert main(["export", str(file), "--to", "hf", "--out", str(tmp_path / "hf")]) == 0
    back, exported = pt.load(file), pt.load(tmp_path / "hf")
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, exported.state_dict()[name])
    assert main(["verify", str(file)]) == 0 and main(["show", str(file)]) == 0
    pt.save(pt.add_adapter(back, pt.LoRA(rank=2)), tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter/adapter.json").read_text())["base"]["relative"] == "../model.gguf"
    assert pt.load(tmp_path / "adapter").spec == back.spec


@pytest.mark.parametrize("number", TYPES, ids=lambda number: TYPES[number].name)
def test_blocks_are_read_as_by_the_package(number: int, tmp_path: Path) -> None:
    """All bytes are valid weights; only the scales are kept finite."""
    gguf = pytest.importorskip("gguf", reason="the package 'gguf' is not installed")
    kind, quantization = TYPES[number], gguf.GGMLQuantizationType(number)
    raw = np.random.default_rng(number).integers(0, 256, (6, 3 * kind.layout.itemsize), dtype=np.uint8)
    for name in ("scale", "offset", "value"):
        if name in (kind.layout.names or ()):
            exponent = kind.layout.fields[name][1] + kind.layout[name].itemsize - 1
            raw.reshape(-1, kind.layout.itemsize)[:, exponent] &= 0xBF
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("weight", raw, raw_dtype=quantization)
    write(writer)
    file = read_gguf(tmp_path / "one.gguf")
    plain = {0: np.float32, 1: np.float16}.get(number)
    expected = gguf.quants.dequantize(raw if plain is None else raw.view(plain), quantization)
    np.testing.assert_array_equal(read_tensor(file, file.tensors["weight"]), expected.astype(np.float32))


def write(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    """A file as the package writes it: quantized by it, read by us and by transformers from its weights."""
    gguf = pytest.importorskip("gguf", reason="the package 'gguf' is not installed")
    tf = pytest.importorskip("transformers", reason="the reference library is not installed")
    config = tf.AutoConfig.for_model(
        architecture, vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32 if architecture == "qwen3" else 16, max_position_embeddings=64,
        tie_word_embeddings=architecture == "llama", initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = tf.AutoModelForCausalLM.from_config(config).eval()
    for parameter in reference.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    if architecture == "qwen3":
        writer.add_key_length(32)
        writer.add_value_length(32)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), 2)
    kinds = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
    for number, (name, tensor) in enumerate(reference.state_dict().items()):
        if name == "lm_head.weight" and architecture == "llama":
            continue
        stem, kind = name.rpartition(".")[0], name.rpartition(".")[2]
        values = tensor.numpy()
        heads = {"q_proj": 4, "k_proj": 2}.get(stem.rpartition(".")[2])
        order = np.arange(len(values))
        if architecture == "llama" and heads is not None:  # row 2i of a head there is i here, row 2i + 1 is i + half
            order = order.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
        if values.ndim == 2:
            quantization = kinds[number % len(kinds)]
            packed = gguf.quants.quantize(values[order], quantization)
            writer.add_tensor(f"{names.get_name(stem)}.{kind}", packed, raw_dtype=quantization)
            tensor[torch.from_numpy(order)] = torch.from_numpy(gguf.quants.dequantize(packed, quantization))
        else:
            writer.add_tensor(f"{names.get_name(stem)}.{kind}", values[order])
    write(writer)
    model = pt.load(tmp_path / "model.gguf")
    tokens = torch.randint(64, (1, 20), generator=torch.Generator().manual_seed(1))
    batch = pt.Batch.from_sequences(tokens.tolist())
    torch.testing.assert_close(model(batch).logits[:20], reference(tokens).logits[0], rtol=0, atol=2e-4)


# Damaged and hostile files


def refuse(path: Path, data: bytes, match: str | None = None) -> None:
    """Check that a file is refused in one line, and that nothing large is allocated."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=match) as error:
            pt.load(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value) and len(str(error.value)) < 600 and str(path) in str(error.value)


def pack_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def pack(
    *entries: bytes, tensors: tuple[bytes, ...] = (), version: int = 3, counts: tuple[int, int] | None = None
) -> bytes:
    header = struct.pack("<4sIQQ", b"GGUF", version, *(counts or (len(tensors), len(entries))))
    return header + b"".join(entries) + b"".join(tensors)


def pack_tensor(name: bytes = b"a", shape: tuple[int, ...] = (32, 2), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return pack_text(name) + sizes + struct.pack("<IQ", kind, offset)


ARCHITECTURE = pack_text(b"general.architecture") + struct.pack("<I", 8) + pack_text(b"llama")
HUGE = 2**63
HOSTILE = {
    "empty": (b"", "not a GGUF"),
    "another format": (b"PK\x03\x04" + bytes(60), "not a GGUF"),
    "old version": (pack(version=1), "version 1"),
    "big-endian": (pack(version=3 << 24), "version"),
    "many tensors": (pack(counts=(HUGE, 0)), "tensors"),
    "many entries": (pack(counts=(0, HUGE)), "entries"),
    "more entries than there are": (pack(ARCHITECTURE, counts=(0, 9)), "ends inside"),
    "a long key": (pack(struct.pack("<Q", HUGE) + b"abc"), "ends inside"),
    "a long text": (pack(pack_text(b"k") + struct.pack("<IQ", 8, 2**40) + b"x"), "ends inside"),
    "a long list": (pack(pack_text(b"k") + struct.pack("<IIQ", 9, 4, HUGE)), "claims"),
    "a long list of texts": (pack(pack_text(b"k") + struct.pack("<IIQ", 9, 8, 2**50)), "claims"),
    "a list of lists": (pack(pack_text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "unknown"),
    "an unknown type": (pack(pack_text(b"k") + struct.pack("<I", 77)), "unknown"),
    "a key twice": (pack(ARCHITECTURE, ARCHITECTURE), "twice"),
    "no UTF-8": (pack(pack_text(b"\xff\xfe") + struct.pack("<IB", 7, 1)), "UTF-8"),
    "alignment": (pack(ARCHITECTURE, pack_text(b"general.alignment") + struct.pack("<II", 4, 3)), "power of two"),
    "no architecture": (pack(), "architecture"),
    "a wrong kind of value": (pack(pack_text(b"general.architecture") + struct.pack("<IB", 7, 1)), "type str"),
    "a tensor twice": (pack(ARCHITECTURE, tensors=(pack_tensor(), pack_tensor())), "twice"),
    "many dimensions": (pack(ARCHITECTURE, tensors=(pack_text(b"a") + struct.pack("<I", 2**31),)), "dimensions"),
    "a part of a model": (pack(ARCHITECTURE, pack_text(b"split.count") + struct.pack("<IH", 2, 3)), "join"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(name: str, tmp_path: Path) -> None:
    refuse(tmp_path / "model.gguf", *HOSTILE[name])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": (2**40, 2**40)}, "ends after the file"),
        ({"shape": (2**63, 2, 2**63)}, "ends after the file"),
        ({"offset": 2**64 - 1}, "ends after the file"),
        ({"shape": (0, 64)}, "rows of 0"),
        ({"shape": (33, 2), "kind": 8}, "needs 32"),
        ({"kind": 99}, "type 99"),
        ({"name": b"token_embd.weight"}, "twice"),
        ({"name": b"blk.0.unknown.weight"}, "not part of this model"),
    ],
)
def test_a_hostile_tensor_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    """One more tensor in a file that is valid without it."""
    model = build_model()
    model.assets.tokenizer = None
    write_gguf(model, tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    records, (tensors, entries) = read_gguf(tmp_path / "model.gguf").tensors, struct.unpack_from("<QQ", data, 8)
    start = records["token_embd.weight"].start
    end = data.index(pack_text(b"output.weight")) + len(pack_tensor(b"output.weight"))
    more = data[:end] + pack_tensor(**{"name": b"blk.0.attn_v.bias", **change})
    more = more[:8] + struct.pack("<QQ", tensors + 1, entries) + more[24:]
    refuse(tmp_path / "model.gguf", more + bytes(-len(more) % 32) + data[start:], match)


def test_a_missing_file_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: no such file"):
        pt.load(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("key", "value"), [("embedding_length", 2**31 - 1), ("block_count", 2**31 - 1), ("attention.head_count_kv", 0)]
)
def test_sizes_that_contradict_the_tensors_are_refused(key: str, value: int, tmp_path: Path) -> None:
    write_gguf(build_model(), tmp_path / "model.gguf")
    data, name = bytearray((tmp_path / "model.gguf").read_bytes()), pack_text(f"llama.{key}".encode())
    struct.pack_into("<I", data, data.index(name) + len(name) + 4, value)
    refuse(tmp_path / "model.gguf", bytes(data))


def test_truncated_and_changed_files(tmp_path: Path) -> None:
    """A file cut anywhere is refused; one with changed bytes is read, or refused in one line."""
    file, model = tmp_path / "model.gguf", build_model(width=32, depth=1, heads=2, kv_heads=1, hidden=32, head_width=16)
    write_gguf(model, file, kind="q8_0")
    data, generator = file.read_bytes(), random.Random(0)
    header = read_gguf(file).tensors["token_embd.weight"].start
    for end in {0, 3, 4, 23, 24, *(generator.randrange(header) for _ in range(25)), header, len(data) - 32}:
        refuse(file, data[:end])
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(generator.choice([1, 1, 4])):
            changed[generator.randrange(header)] = generator.choice([0, 1, 255, generator.randrange(256)])
        file.write_bytes(changed)
        try:
            pt.load(file)
        except PretuneError as error:
            assert "\n" not in str(error)
