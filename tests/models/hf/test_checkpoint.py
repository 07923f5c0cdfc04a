"""Saving and loading: whole or not at all, every byte that belongs to a model, in every type and number of files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor

import pretune as pt
from pretune.core import config, io
from pretune.core.errors import CheckpointError, ResourceError, UsageError
from pretune.models import spec as spec_module
from pretune.models import tensor_files
from pretune.models.catalog import resolve
from pretune.models.hf import checkpoint, files
from pretune.models.model import build, build_empty
from tests.contracts.tiny import CASES, model_of
from tests.faults.strangers import WEIGHTS, change_config, change_tensors, directory

BERT, POOLER = "bert-base", "bert.pooler.dense.bias"


def listing(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def assert_same(a: Any, b: Any) -> None:
    for (name, one), (other, two) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert name == other and torch.equal(one, two), name


def word_tokenizer(size: int, **more: int) -> str:
    words = {f"w{i}": i for i in range(size)} | more
    return Tokenizer(models.WordLevel(words, unk_token="w0")).to_str()


def test_a_directory_and_its_manifest(tmp_path: Path) -> None:
    pt.save(model_of("gpt2-small"), tmp_path / "m")
    assert listing(tmp_path / "m") == {"config.json", "generation_config.json", WEIGHTS, "MANIFEST.json"}
    assert set(io.check_manifest(tmp_path / "m")["files"]) == listing(tmp_path / "m") - {"MANIFEST.json"}
    assert_same(pt.load(tmp_path / "m"), model_of("gpt2-small"))
    assert not pt.load(tmp_path / "m").training
    assert listing(tmp_path) == {"m"}


def test_assets_are_kept_byte_for_byte(tmp_path: Path) -> None:
    folder = directory(tmp_path / "a", "gpt2-small")
    given = {
        "tokenizer.json": word_tokenizer(61).encode(),
        "tokenizer_config.json": b'{ "auto_map" : {"AutoTokenizer": ["x.Y", null]}, "odd":  1 }\r\n',
        "special_tokens_map.json": b"{}",
        "vocab.json": b'{"a": 0}',
        "merges.txt": "#version: 0.2\nĠ t\n".encode(),
        "spiece.model": bytes(range(256)),
        "generation_config.json": b'{"eos_token_id":  5}',
    }
    for name, data in given.items():
        (folder / name).write_bytes(data)
    (folder / "notes.txt").write_text("stays behind")
    model = pt.load(folder)
    assert model.tokenizer.token_to_id("w7") == 7
    pt.save(model, tmp_path / "b")
    assert {name: (tmp_path / "b" / name).read_bytes() for name in given} == given
    assert "notes.txt" not in listing(tmp_path / "b")
    io.check_manifest(tmp_path / "b")
    assert pt.load(tmp_path / "b").tokenizer.sha256 == model.tokenizer.sha256


def test_no_tokenizer_is_none(tmp_path: Path) -> None:
    assert pt.load(directory(tmp_path / "m")).tokenizer is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (word_tokenizer(62), r"tokenizer.json.*\b61\b"),
        (word_tokenizer(5, far=10**6), r"tokenizer.json.*\b1000000\b.*\b61\b"),
        ("{}", "tokenizer.json"),
        ("", "tokenizer.json"),
        ("\x80\x04pickle", "tokenizer.json"),
        ('{"version": "1.0", "model": {"type": "exec"}}', "tokenizer.json"),
    ],
)
def test_bad_tokenizers(text: str, message: str, tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        pt.load(folder)
    assert str(caught.value).isprintable()


def test_a_smaller_tokenizer_is_fine(tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    (folder / "tokenizer.json").write_text(word_tokenizer(40))
    assert pt.load(folder).tokenizer.vocab_size == 40


def test_an_asset_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ASSET_BYTES", 10)
    folder = directory(tmp_path / "m")
    (folder / "vocab.txt").write_text("a" * 11)
    with pytest.raises(CheckpointError, match=r"vocab.txt.*\b11\b"):
        pt.load(folder)


# Where it is written


def test_nothing_is_overwritten_by_itself(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=str(tmp_path / "m")):
        pt.save(model_of(BERT), tmp_path / "m")
    assert listing(tmp_path / "m") == {"thesis.txt"}
    pt.save(model_of(BERT), tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "thesis.txt").read_text() == "mine"
    assert_same(pt.load(tmp_path / "m"), model_of(BERT))


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    pt.save(model_of(BERT), tmp_path / "m")
    assert_same(pt.load(tmp_path / "m"), model_of(BERT))


def test_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")
    with pytest.raises(UsageError, match=str(tmp_path / "m")):
        pt.save(model_of(BERT), tmp_path / "m", overwrite=True)


@pytest.mark.parametrize("limits", [(10**9, 10_000), (10_000, 10**9), (10_000, 25_000)])
def test_no_weights_of_an_earlier_save_are_left(limits: tuple[int, int], tmp_path: Path) -> None:
    """Of one file and several, the one file would be read, however old it is."""
    first, second = build(CASES[BERT], seed=1), build(CASES[BERT], seed=2)
    pt.save(first, tmp_path / "m", shard=limits[0])
    (tmp_path / "m" / "model_of_mine.safetensors").write_text("not ours to remove")
    pt.save(second, tmp_path / "m", overwrite=True, shard=limits[1])
    assert_same(pt.load(tmp_path / "m"), second)
    written = set(io.check_manifest(tmp_path / "m")["files"])
    assert listing(tmp_path / "m") == written | {"MANIFEST.json", "model_of_mine.safetensors"}


def no_space(*args: Any, **more: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["save_file", "write_json", "atomic_write", "write_manifest"])
@pytest.mark.parametrize("before", ["nothing", "an empty directory", "an earlier save"])
def test_a_failure_leaves_what_was_there(
    where: str, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    old, new = build(CASES["gpt2-small"], seed=1), build(CASES["gpt2-small"], seed=2)
    new.assets.files["vocab.json"] = b"{}"
    if before == "an earlier save":
        pt.save(old, folder)
    elif before == "an empty directory":
        folder.mkdir()
    there = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    monkeypatch.setattr(tensor_files if where == "save_file" else io, where, no_space)
    with pytest.raises(ResourceError) as caught:
        pt.save(new, folder, overwrite=True)
    assert str(caught.value).isprintable()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == there
    assert folder.is_dir() == (before != "nothing")


def test_what_was_loaded_does_not_hang_on_its_file(tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    model = pt.load(folder)
    data = (folder / WEIGHTS).read_bytes()
    with (folder / WEIGHTS).open("r+b") as file:  # in place, as a careless copy does
        file.write(bytes(len(data)))
    assert_same(model, model_of(BERT))
    assert all(tensor.data_ptr() % 16 == 0 and tensor.is_contiguous() for tensor in model.state_dict().values())


# In which type, in how many files


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64, torch.float32])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_types(stored: torch.dtype, wanted: torch.dtype, tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    change_tensors(folder, lambda tensors: {name: tensor.to(stored) for name, tensor in tensors.items()})
    model = pt.load(folder, dtype=wanted)
    for (name, tensor), expected in zip(model.state_dict().items(), model_of(BERT).state_dict().values(), strict=True):
        assert tensor.dtype == wanted and torch.equal(tensor, expected.to(stored).to(wanted)), name


def test_half_precision_out_and_in(tmp_path: Path) -> None:
    model = pt.load(directory(tmp_path / "a"), dtype=torch.bfloat16)
    pt.save(model, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in load_file(tmp_path / "b" / WEIGHTS).values()} == {torch.bfloat16}
    assert_same(pt.load(tmp_path / "b", dtype=torch.bfloat16), model)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.uint8])
def test_weights_that_are_not_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    name = "bert.encoder.layer.0.intermediate.dense.weight"

    def quantised(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].to(dtype)

    folder = change_tensors(directory(tmp_path / "m"), quantised)
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: .*'{name}'.*BF16, F16"):
        pt.load(folder)
    with pytest.raises(UsageError, match=str(dtype)):
        pt.load(folder, dtype=dtype)


@pytest.mark.parametrize("name", [BERT, "gpt2-small", "t5-base", "pythia-160m"])
def test_shards(name: str, tmp_path: Path) -> None:
    pt.save(model_of(name), tmp_path / "m", shard=20_000)
    shards = [file for file in listing(tmp_path / "m") if file.startswith("model-")]
    assert len(shards) > 3 and tensor_files.SINGLE_FILE not in listing(tmp_path / "m")
    io.check_manifest(tmp_path / "m")
    assert_same(pt.load(tmp_path / "m"), model_of(name))


def test_transformers_reads_shards(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference library is not installed")
    pt.save(model_of(BERT), tmp_path / "m", shard=20_000)
    theirs, info = transformers.BertForPreTraining.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    table = theirs.bert.embeddings.word_embeddings.weight
    assert torch.equal(table, model_of(BERT).tokens.weight)
    theirs.save_pretrained(tmp_path / "again", max_shard_size="20KB")
    assert (tmp_path / "again" / tensor_files.INDEX_FILE).exists()
    assert_same(pt.load(tmp_path / "again"), model_of(BERT))


# Our own directories


@pytest.mark.parametrize("name", ["made-windows", "made-shared-layers", "made-unequal", "t5-table-lm"])
def test_what_no_config_can_say_is_ours(name: str, tmp_path: Path) -> None:
    pt.save(model_of(name), tmp_path / "m")
    found = json.loads((tmp_path / "m" / "config.json").read_text())
    assert found["model_type"] == "pretune" and set(found) == {"model_type", "pretune", "dtype"}
    assert pt.load(tmp_path / "m").spec == CASES[name]
    assert_same(pt.load(tmp_path / "m"), model_of(name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_typ": 1}, "'model_typ'.*'model_type'.*pretune, dtype"),
        ({"auto_map": {}}, "'auto_map'"),
        ({"pretune": None}, "pretune.*null"),
        ({"pretune": {"vocab": 9}}, "pretune.*'family', 'width'"),
        ({"pretune.vocb": 9}, "'pretune.vocb'.*'vocab'"),
        ({"pretune.decoder.blocks.0.attention.heds": 4}, "'pretune.decoder.blocks.0.attention.heds'.*'heads'"),
        ({"pretune.decoder.blocks.0.attention.heads": 5}, "heads 5"),
        ({"pretune.decoder.depth": 10**12}, r"pretune\.decoder\.depth .*\b10,000\b.*\b1000000000000\b"),
        ({"pretune.decoder.blocks.0.dropout": 3.0}, r"pretune\.decoder\.blocks\.0\.dropout .*3\.0"),
        ({"pretune.vocab": 10**15}, "100,000,000,000,000"),
        ({"pretune.width": -24}, "-24"),
        ({"pretune.decoder.position": {"kind": "os.system"}}, "'os.system'"),
    ],
)
def test_our_own_config_is_read_strictly(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    pt.save(model_of("made-windows"), tmp_path / "m")
    found = json.loads((tmp_path / "m" / "config.json").read_text())
    for path, value in changes.items():
        node: Any = found
        *parents, last = path.split(".")
        for part in parents:
            node = node[int(part)] if part.isdecimal() else node[part]
        node[last] = value
    (tmp_path / "m" / "config.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/m/config.json: .*({message})") as caught:
        pt.load(tmp_path / "m")
    assert str(caught.value).count("config.json") == 1


def test_our_key_beside_theirs(tmp_path: Path) -> None:
    spec = replace(CASES[BERT], special=replace(CASES[BERT].special, eos=(1, 2)))
    dropped = config.replace(spec, {"encoder.blocks.0.feedforward.dropout": 0.25})
    pt.save(build(dropped), tmp_path / "m")
    found = json.loads((tmp_path / "m" / "config.json").read_text())
    assert found["model_type"] == "bert" and found["pretune"]["encoder"]["blocks"][0]["feedforward"]["dropout"] == 0.25
    assert pt.load(tmp_path / "m").spec == dropped
    change_config(tmp_path / "m", intermediate_size=45)
    message = r"config.json: .*'pretune'.*hidden"
    with pytest.raises(CheckpointError, match=message):
        pt.load(tmp_path / "m")


def test_a_training_length_that_no_key_has_is_ours(tmp_path: Path) -> None:
    """It changes no output, so the rest is theirs."""
    spec = replace(CASES["xlnet-base"], context=77)
    pt.save(build(spec), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "xlnet"
    assert pt.load(tmp_path / "m").spec == spec
    assert pt.export(tmp_path / "m", out=tmp_path / "out").architecture == "XLNetLMHeadModel"


# What is asked of a directory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cls.predictions.transform.dense.weight": None}, "'cls.pred.*weight'"),
        ({"extra": torch.ones(2)}, "'extra'"),
        ({"x\ny\x1b" + "z" * 999: torch.ones(2)}, r"'x\\ny\\x1bzzz.*'"),
        ({POOLER: torch.ones(33)}, r"'bert.pooler.dense.bias'.*\[33\].*\[32\]"),
        ({POOLER: torch.ones([1] * 60)}, r"\[1, 1, 1, 1, 1, 1, 1, 1, ...\].*\[32\]"),
        ({POOLER: torch.ones(0)}, r"\[0\].*\[32\]"),
        ({POOLER: torch.tensor(1.0)}, r"\[\].*\[32\]"),
        ({POOLER: None, "bert.pooler.den\x1be.bias": torch.ones(32)}, "'bert.pooler.dense.bias'[^']*$"),
        (None, "'bert.encoder.layer.0.attention.self.query.weight'"),
    ],
)
def test_tensors_must_be_those_of_the_config(
    changes: dict[str, Tensor | None] | None, message: str, tmp_path: Path
) -> None:
    """One is missing or another, and none is there."""

    def changed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        every = {} if changes is None else {**tensors, **changes}
        return {name: tensor for name, tensor in every.items() if tensor is not None}

    folder = change_tensors(directory(tmp_path / "m"), changed)
    with pytest.raises(CheckpointError, match=rf"^{folder}/{WEIGHTS}: .*{message}") as caught:
        checkpoint.inspect_checkpoint(folder)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_inspect_reads_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path / "m", "llama-7b")
    monkeypatch.setattr(tensor_files, "read_tensors", no_space)
    spec, moves, stored = checkpoint.inspect_checkpoint(str(folder))
    assert spec == CASES["llama-7b"] and {move.tensor_name for move in moves} == set(stored)


def test_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"/none: "):
        pt.load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"/empty: .*config.json"):
        pt.load(tmp_path / "empty")
    save_file({"a": torch.ones(1)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=f"/{WEIGHTS}: "):
        pt.load(tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError):
        pt.load("a\0b")


@pytest.mark.parametrize("kind", [None, 7, "brt", "pretunes", ["bert"], {"bert": 1}])
def test_other_model_types(kind: Any, tmp_path: Path) -> None:
    folder = change_config(directory(tmp_path / "m"), model_type=kind)
    hint = {"brt": "'bert'.*"}.get(kind if isinstance(kind, str) else "", "")
    with pytest.raises(CheckpointError, match=rf"config.json: .*'model_type' = .*{hint}bart, .*bert, .*electra"):
        pt.load(folder)


# Memory is asked for first


def test_a_model_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", no_space)
    for vocab in (10**10, 10**11):
        with pytest.raises(ResourceError, match=r"[\d,]{14,} .*cpu"):
            pt.build("bert-base", vocab=vocab)
    with pytest.raises(UsageError, match=f"{10**14:,}"):
        pt.build("bert-base", vocab=10**15)
    with pytest.raises(UsageError, match=r"depth .*1000000000000\b"):
        pt.build("bert-base", depth=10**12)


def test_memory_is_asked_by_type_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = resolve("bert-tiny")
    need = spec.params().total * 4
    monkeypatch.setattr(spec_module, "_get_capacity", lambda device: need - 1 if device.type == "cpu" else None)
    spec_module.check_memory(spec, torch.bfloat16)
    spec_module.check_memory(spec, torch.float32, "meta")
    with pytest.raises(ResourceError, match="cpu"):
        spec_module.check_memory(spec)
    monkeypatch.setattr(spec_module, "_get_capacity", lambda device: need)
    spec_module.check_memory(spec)


def test_a_directory_that_cannot_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path / "m")
    monkeypatch.setattr(spec_module, "_get_capacity", lambda device: 1000)
    with pytest.raises(ResourceError, match="GB"):
        pt.load(folder)


def test_an_empty_model_draws_nothing() -> None:
    model = build_empty(CASES[BERT])
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    state = torch.random.get_rng_state()
    build_empty(CASES[BERT])
    assert torch.equal(state, torch.random.get_rng_state())
