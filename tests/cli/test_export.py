import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pretune as pt
from pretune.cli import main
from pretune.models import catalog, tensor_files
from pretune.models.model import LanguageModel
from pretune.models.verify import verify
from tests.conftest import Capture, run_command

SMALL = {"width": 16, "depth": 2, "heads": 2, "vocab": 30}


def build(**more: object) -> LanguageModel:
    return catalog.build("gpt2-small", **SMALL, positions=16, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pt.save(build(), tmp_path / "model")
    return tmp_path / "model"


def tree(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def refused(capsys: Capture, root: Path, *arguments: str | Path, code: int = 2) -> str:
    """The one line of a refusal that changed nothing on the disk."""
    before = tree(root), sorted(root.rglob("*"))
    assert main(["export", *map(str, arguments)]) == code
    out, err = capsys.readouterr()
    assert (tree(root), sorted(root.rglob("*"))) == before
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_copy_is_the_same_model(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result, err = run_command(capsys, ["export", str(folder), "--to", "hf", "--out", str(out)])
    assert result.startswith(f"{out}: GPT2LMHeadModel, 7,328 ") and result.endswith("float32\n")
    assert err == f"next: pretune verify {out}\n"
    assert {**tree(out), "README.md": b""} == {**tree(folder), "README.md": b""}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_types(capsys: Capture, folder: Path, tmp_path: Path, dtype: str) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    assert main(["export", str(folder), "--to", "hf", "--out", str(out), "--dtype", dtype]) == 0
    verify(out)
    assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    kind = getattr(torch, dtype)
    ours, theirs = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(theirs[name], tensor.to(kind)) for name, tensor in ours.items())
    # What is not said stays as it is.
    assert main(["export", str(out), "--to", "hf", "--out", str(again)]) == 0
    assert {**tree(again), "README.md": b""} == {**tree(out), "README.md": b""}
    assert f"in {dtype}\n" in capsys.readouterr().out


def test_what_half_precision_cannot_hold(capsys: Capture, tmp_path: Path) -> None:
    model = build()
    with torch.no_grad():
        model.tokens.weight[3, 3] = 1e6
    pt.save(model, tmp_path / "model")
    arguments = (tmp_path / "model", "--to", "hf", "--out", tmp_path / "out", "--dtype")
    message = refused(capsys, tmp_path, *arguments, "float16")
    assert all(part in message for part in ("'tokens.weight'", "float16", "--dtype bfloat16")), message
    assert main(["export", *map(str, arguments), "bfloat16"]) == 0


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("t5-table-lm", {}, "'t5'"),
        ("t5-table-prefix-lm", {}, "'t5'"),
        ("t5-table-enc-dec-shared", {}, "shared"),
        ("bert-tiny", {"encoder.share": 1}, "encoder.share"),
        ("gpt2-small", {"head_width": 4}, "decoder.blocks.0.attention.head_width"),
    ],
)
def test_what_no_class_expresses(
    capsys: Capture, tmp_path: Path, name: str, settings: dict[str, object], reason: str
) -> None:
    pt.save(catalog.build(name, **SMALL, **settings), tmp_path / "model")
    message = refused(capsys, tmp_path, tmp_path / "model", "--to", "hf", "--out", tmp_path / "out")
    assert message.endswith(f"{reason}\n") or f"{reason} " in message


@pytest.mark.parametrize("name", ["t5-table-enc-dec", "t5-table-enc-dec-half"])
@torch.no_grad()
def test_a_shape_of_the_table_that_a_class_has(capsys: Capture, tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference library is not installed")
    model = catalog.build(name, **SMALL, dropout=0.0).eval()
    pt.save(model, tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--to", "hf", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "T5ForConditionalGeneration"
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    source, target = [3, 9, 4, 12, 1], [0, 7, 8]
    wanted = theirs(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits[0]
    for ours in (model, pt.load(tmp_path / "out").eval()):
        torch.testing.assert_close(ours(pt.batch(source=[source], target=[target])).logits, wanted, rtol=0, atol=1e-5)
    assert pt.load(tmp_path / "out").spec == model.spec


def test_an_export_leaves_the_span_head_out(capsys: Capture, tmp_path: Path) -> None:
    """A plain BERT without the head of the span boundary objective, which the run keeps; both are told."""
    transformers = pytest.importorskip("transformers", reason="the reference library is not installed")
    model = catalog.build("spanbert", **SMALL, dropout=0.0).eval()
    pt.save(model, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--to", "hf", "--out", str(tmp_path / "out"), "--json"]) == 0
    shown = capsys.readouterr()
    count = sum(parameter.numel() for parameter in model.span.parameters())
    facts = json.loads(shown.out)
    assert facts["class"] == "BertForMaskedLM" and facts["omitted_parts"] == [
        f"span boundary head ({count:,} parameters)"
    ]
    assert facts["parameters"] == model.spec.params().total - count
    assert "left out: span boundary head" in shown.err
    read = transformers.BertForMaskedLM.from_pretrained
    theirs, info = read(tmp_path / "out", output_loading_info=True)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    _, info = read(tmp_path / "run", output_loading_info=True)  # the head alone is unknown to the class
    assert not info["missing_keys"] and all(key.startswith("span.") for key in info["unexpected_keys"])
    tokens = [3, 9, 4, 12, 1]
    with torch.no_grad():
        wanted = theirs.eval()(torch.tensor([tokens])).logits[0]
        for folder in ("run", "out"):
            ours = pt.load(tmp_path / folder).eval()
            torch.testing.assert_close(ours(pt.batch([tokens])).logits, wanted, rtol=0, atol=1e-5)
            assert ours.spec.family == "spanbert" and (ours.span is None) == (folder == "out")


class TestPlaces:
    def test_not_into_the_model_itself(self, capsys: Capture, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(folder)
        for out in (folder, folder / "inside", folder / "a" / "b", tmp_path / "link", folder / ".." / "model"):
            message = refused(capsys, tmp_path, folder, "--to", "hf", "--out", out, "--overwrite")
            assert f"'{folder}'" in message and f"'{out}'" in message

    def test_not_over_other_files_unless_told(self, capsys: Capture, folder: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "notes.txt").write_text("mine")
        assert str(out) in refused(capsys, tmp_path, folder, "--to", "hf", "--out", out)
        assert main(["export", str(folder), "--to", "hf", "--out", str(out), "--overwrite"]) == 0
        assert {**tree(out), "README.md": b""} == {**tree(folder), "notes.txt": b"mine", "README.md": b""}

    def test_a_full_disk_leaves_nothing(
        self, capsys: Capture, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = tensor_files.save_file

        def full(tensors: dict[str, torch.Tensor], file: Path, metadata: dict[str, str]) -> None:
            real(tensors, file, metadata=metadata)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(tensor_files, "save_file", full)
        message = refused(capsys, tmp_path, folder, "--to", "hf", "--out", tmp_path / "out", code=6)
        assert "disk" in message


class TestRefusals:
    def test_a_damaged_model_gets_no_fresh_manifest(self, capsys: Capture, folder: Path, tmp_path: Path) -> None:
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "model.safetensors").write_bytes(data)
        message = refused(capsys, tmp_path, folder, "--to", "hf", "--out", tmp_path / "out", code=4)
        assert "model.safetensors: " in message and "MANIFEST.json" in message

    def test_no_model(self, capsys: Capture, tmp_path: Path) -> None:
        absent = tmp_path / "absent"
        assert str(absent) in refused(capsys, tmp_path, absent, "--to", "hf", "--out", "out", code=4)

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            (["--to", "coreml", "--out", "x"], "'--to'"),
            (["--out", "x"], "'--to'"),
            (["--to", "hf"], "'--out'"),
            (["--to", "hf", "--out", "x", "--dtype", "int8"], "'--dtype'"),
        ],
    )
    def test_usage(self, capsys: Capture, folder: Path, arguments: list[str], found: str) -> None:
        assert found in refused(capsys, folder, folder, *arguments)
