"""Directories from strangers (R13): pickles, code, absurd sizes, damage. Only our own errors, and nothing is run."""

import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError, PretuneError
from pretune.models.families import FAMILIES, get_model_types
from tests.contracts.tiny import CASES
from tests.faults.mutations import mutate, restructure, scramble
from tests.faults.strangers import WEIGHTS, change_config, directory, raw

LONGEST = 900
"""Maximum length of an error message, including the path of a temporary directory."""


def assert_one_line(error: PretuneError) -> None:
    text = str(error)
    assert text and text.isprintable() and len(text) < LONGEST, text[:2000]


# Pickles: nothing is executed


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    file = tmp_path / "it-ran"
    pickle.loads(pickle.dumps(Bomb(file)))
    assert file.exists()  # the bomb works
    file.unlink()
    return file


@pytest.mark.parametrize(
    "name",
    [WEIGHTS, f"{WEIGHTS}.index.json", "pytorch_model.bin", "model.pt", "a.ckpt", "config.json", "tokenizer.json"],
)
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_is_refused_under_any_name(name: str, how: str, tmp_path: Path, mark: Path) -> None:
    folder = directory(tmp_path / "m")
    if name not in ("config.json", "tokenizer.json"):
        (folder / WEIGHTS).unlink()
    if how == "pickle":
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    else:
        torch.save({"weight": Bomb(mark)}, folder / name)
    with pytest.raises(CheckpointError, match=name) as caught:
        pt.load(folder)
    assert_one_line(caught.value)
    assert caught.value.exit_code == 4 and not mark.exists()


def test_pickles_among_the_assets_are_only_carried(tmp_path: Path, mark: Path) -> None:
    folder = directory(tmp_path / "m")
    bomb = pickle.dumps(Bomb(mark))
    for name in ("vocab.txt", "spiece.model", "generation_config.json", "training_args.bin"):
        (folder / name).write_bytes(bomb)
    model = pt.load(folder)
    pt.save(model, tmp_path / "again")
    assert (tmp_path / "again" / "vocab.txt").read_bytes() == bomb and not mark.exists()
    assert not (tmp_path / "again" / "training_args.bin").exists()


# Code: never followed


@pytest.mark.parametrize("key", ["auto_map", "custom_pipelines", "trust_remote_code", "custom_generate"])
def test_code_is_refused_and_never_looked_for(key: str, tmp_path: Path, mark: Path, capsys: Any) -> None:
    folder = change_config(directory(tmp_path / "m"), **{key: {"AutoModel": "modeling_evil.Evil"}})
    (folder / "modeling_evil.py").write_text(f"open({str(mark)!r}, 'w')")
    assert main(["verify", str(folder)]) == 4
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"{folder}/config.json: " in err and f"'{key}'" in err
    assert not mark.exists() and "modeling_evil" not in sys.modules


# Config files that are no config


DEEP = 100_000
CONFIGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "JSON"),
    "a list": (b"[1]", "JSON"),
    "a number": (b"7", "JSON"),
    "null": (b"null", "JSON"),
    "binary": (bytes(range(256)), "UTF-8"),
    "UTF-16": ("\ufeff{}".encode("utf-16"), "UTF-8"),
    "cut off": (b'{"model_type": "bert", "hidden', "JSON"),
    "given twice": (b'{"model_type": "bert", "model_type": "gpt2"}', "'model_type'"),
    "NaN": (b'{"model_type": "bert", "layer_norm_eps": NaN}', "NaN"),
    "infinite": (b'{"model_type": "bert", "layer_norm_eps": 1e999}', "JSON"),
    "a number of a million digits": (b'{"model_type": "bert", "vocab_size": ' + b"9" * 10**6 + b"}", ""),
    "deep lists": (b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}", ""),
    "deep objects": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, ""),
    "no model_type": (b"{}", "'model_type'.*null"),
    "a comment": (b'{"model_type": "bert"} // mine', "JSON"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_no_config(name: str, tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    data, message = CONFIGS[name]
    (folder / "config.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"^{folder}/config.json: .*{message}") as caught:
        pt.load(folder)
    assert_one_line(caught.value)


@pytest.mark.parametrize("depth", [60, 200, 800, 900])
def test_values_as_deep_as_json_allows(depth: int, tmp_path: Path) -> None:
    """Deep enough to be read, and to break whoever prints them carelessly."""
    folder = directory(tmp_path / "m")
    found = json.loads((folder / "config.json").read_text())
    for value in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        for key in (
            "hidden_size",
            "unheard_of",
            "hidden_act",
            "architectures",
            "pretune",
            "eos_token_id",
            "is_decoder",
        ):
            others = json.dumps({name: other for name, other in found.items() if name != key})
            (folder / "config.json").write_text(f'{others[:-1]}, "{key}": {value}}}')
            with pytest.raises(CheckpointError, match=r"config\.json: ") as caught:
                pt.load(folder)
            assert_one_line(caught.value)


def test_a_huge_config_is_not_read(tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    with (folder / "config.json").open("r+b") as file:
        file.truncate(100 * 2**30)  # sparse: it takes no room, and nobody could hold it in memory
    with pytest.raises(CheckpointError, match=r"config\.json: .*107374182400"):
        pt.load(folder)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json"])
def test_pipes_and_loops_do_not_wait(name: str, tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    for make in (os.mkfifo, lambda file: file.symlink_to(file.name), lambda file: file.mkdir()):
        file = folder / name
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
        make(file)
        if name == "tokenizer.json" and not file.is_symlink():
            assert pt.load(folder).tokenizer is None
        else:
            with pytest.raises(CheckpointError) as caught:
                pt.load(folder)
            assert_one_line(caught.value)


# Sizes: refused before anything is allocated


ABSURD = [
    {"vocab_size": 10**12},
    {"vocab_size": 2**31 - 1},
    {"hidden_size": 10**9, "num_attention_heads": 1},
    {"num_hidden_layers": 10**12},
    {"num_hidden_layers": 10**4},
    {"num_hidden_layers": 500},
    {"intermediate_size": 2**31 - 1},
    {"max_position_embeddings": 2**31 - 1},
    {"type_vocab_size": 10**9},
    {"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 1, "num_attention_heads": 1, "num_hidden_layers": 10**4},
]
MEASURE = """
import json, resource, sys
import pretune as pt
from pretune.core.errors import PretuneError
folder, absurd = sys.argv[1], json.loads(sys.argv[2])
good = json.load(open(folder + "/config.json"))
pt.load(folder)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for changes in absurd:
    json.dump({**good, **changes}, open(folder + "/config.json", "w"))
    try:
        pt.load(folder)
    except PretuneError as error:
        print(error.exit_code, error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_absurd_sizes_cost_no_memory_and_no_time(tmp_path: Path) -> None:
    folder = directory(tmp_path / "m")
    command = [sys.executable, "-c", MEASURE, str(folder), json.dumps(ABSURD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    *lines, growth = done.stdout.splitlines()
    assert len(lines) == len(ABSURD)
    assert all(line.startswith(f"4 {folder}/") for line in lines)
    assert re.search(r"'vocab_size'.*\b1000000000000\b.*\b2147483647\b", lines[0])
    assert re.search(r"word_embeddings\.weight'.*\[61, 32\].*\[2147483647, 32\]", lines[1])
    assert int(growth) < 20_000  # kilobytes


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    """A table of a terabyte in a file of a hundred bytes."""
    folder = change_config(directory(tmp_path / "m"), vocab_size=10**9)
    table = {"dtype": "F32", "shape": [10**9, 32], "data_offsets": [0, 128 * 10**9]}
    (folder / WEIGHTS).write_bytes(raw({"bert.embeddings.word_embeddings.weight": table}))
    with pytest.raises(CheckpointError, match=WEIGHTS) as caught:
        pt.load(folder)
    assert_one_line(caught.value)


# Fuzzing


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A tiny directory of every model type, one of our own, and one in shards."""
    root = tmp_path_factory.mktemp("strangers")
    for kind, family in get_model_types().items():
        directory(root / kind, next(name for name in CASES if name.startswith(f"{family}-")))
    directory(root / "own", "made-windows")
    pt.save(pt.load(root / "bert"), root / "shards", shard=20_000)
    for kind in ("bert", "gpt2", "shards"):
        (root / kind / "tokenizer.json").write_text(tokenizer(kind == "gpt2"))
    made = sorted(root.iterdir())
    assert len(made) == len(get_model_types()) + 2
    return made


def tokenizer(bytewise: bool) -> str:
    """One with all the parts that a tokenizer.json may have."""
    made = Tokenizer(models.BPE() if bytewise else models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex("a+"), "a")])
    made.pre_tokenizer = pre_tokenizers.ByteLevel() if bytewise else pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = (trainers.BpeTrainer if bytewise else trainers.WordPieceTrainer)(vocab_size=50, special_tokens=special)
    made.train_from_iterator(["the cat sat on the mat", "a cat and a mat"] * 3, trainer)
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    made.enable_padding(length=8)
    made.enable_truncation(8)
    return made.to_str()


def fuzz(directories: list[Path], folder: Path, count: int, seed: int) -> dict[str, int]:
    """Load so many broken directories; how each ended. Anything but a PretuneError is a failure of ours."""
    rng = random.Random(seed)
    layouts = [layout for name in FAMILIES if (layout := FAMILIES.get(name).layout)]
    keys = sorted({name for layout in layouts for entry in layout.entries for name in entry.names})
    ends: dict[str, int] = {}
    for case in range(count):
        source = rng.choice(directories)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        target = folder / rng.choice(["config.json", "config.json", *sorted(file.name for file in source.iterdir())])
        data = target.read_bytes()
        structured = rng.random() < 0.6
        if structured and target.suffix == ".json":
            text = json.dumps(mutate(json.loads(data), rng, keys))
            target.write_bytes(text.encode(errors="replace"))
        elif structured and target.suffix == ".safetensors":
            target.write_bytes(restructure(data, rng, keys))
        else:
            target.write_bytes(scramble(data, rng))
        try:
            pt.load(folder)
            end = "read"
        except PretuneError as error:
            assert_one_line(error)
            end = type(error).__name__
        except BaseException as error:  # a panic of a library in Rust is no Exception
            raise AssertionError(f"case {case} of seed {seed}: {source.name}, {target.name} in {folder}") from error
        ends[end] = ends.get(end, 0) + 1
    return ends


def test_fuzzed(directories: list[Path], tmp_path: Path) -> None:
    ends = fuzz(directories, tmp_path / "m", 80, seed=13)
    assert set(ends) <= {"read", "CheckpointError", "ResourceError"}
    assert ends["CheckpointError"] > 40 and ends["read"] > 3  # some changes do not matter


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_fuzzed_at_length(seed: int, directories: list[Path], tmp_path: Path) -> None:
    ends = fuzz(directories, tmp_path / "m", 5000, seed=1000 + seed)
    assert set(ends) <= {"read", "CheckpointError", "ResourceError"} and ends["CheckpointError"] > 2500
