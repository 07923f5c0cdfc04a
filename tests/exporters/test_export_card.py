"""The card of an export: its code runs in the exported directory as it stands, and gives what pretune predicts."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.adaptation.adapted import ModelWithHead
from pretune.cli import main
from pretune.models import tensor_files
from tests.exporters.test_export_heads import SEQUENCE_KINDS, export, make_model, predict, write_run
from tests.selection import keep_quick

pytest.importorskip("transformers", reason="the reference library is not installed")
pytest.importorskip("sentence_transformers", reason="the reference library is not installed")

TEXT, PAIR = "a lovely film", ("a lovely film", "a fine film")
CASES = [
    *(("bert", head, variant) for head in SEQUENCE_KINDS for variant in ("paper", "mean")),
    *(("bert", head, "paper") for head in ("tagging", "span", "choice")),
    ("gpt2", "classification", "paper"),
    ("gpt2", "classification", "mean"),
    ("gpt2", "generation", "paper"),
    ("t5", "generation", "paper"),
]


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run the code of a card in its directory; return what it prints."""
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len(code) == 1
    printed: list[Any] = []
    monkeypatch.chdir(folder)
    exec(compile(code[0], "README.md", "exec"), {"print": lambda *values: printed.extend(values)})
    assert printed
    return printed


CELLS = [(*case, pair) for case in CASES for pair in (None, "pair") if pair is None or case[1] in SEQUENCE_KINDS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "head", "variant", "pair"),
    keep_quick(
        CELLS,
        *(cell for cell in CELLS if cell[-1] is None and (cell[0] != "bert" or cell[2] == "paper")),
        ("bert", "classification", "paper", "pair"),
    ),
)
def test_code_of_transformers(
    family: str, head: str, variant: str, pair: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(family, head, variant)
    write_run(model, head, tmp_path / "run", pair=pair)
    assert export(tmp_path) == 0
    card = (tmp_path / "out/README.md").read_text()
    for label in getattr(model.spec, "labels", ()):
        assert f"`{label}`" in card
    assert str(tmp_path) not in card
    printed = run_card(tmp_path / "out", monkeypatch)
    if head in SEQUENCE_KINDS:
        expected = predict(tmp_path / "run", head, [TEXT if pair is None else PAIR])
        torch.testing.assert_close(printed[0].detach().cpu(), expected, rtol=0, atol=2e-5)
        assert [*printed[1].values()] == [*getattr(model.spec, "labels", ["LABEL_0"])]
    elif head == "tagging":
        assert set(printed[0]) <= set(model.spec.labels)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2", "bart", "electra", "xlnet"])
@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_code_of_language_models(
    family: str, with_tokenizer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "classification"
    adapted: Any = make_model(family, head, "paper")
    body = pt.build(adapted.model.spec)
    if with_tokenizer:
        body.assets = adapted.model.assets
    pt.save(body, tmp_path / "run")
    assert export(tmp_path) == 0
    run_card(tmp_path / "out", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), [("bert", "classification"), ("gpt2", "generation"), ("bert", "choice")])
def test_code_of_onnx(family: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    model = make_model(family, head, "paper")
    write_run(model, head, tmp_path / "run")
    assert export(tmp_path, to="onnx") == 0
    printed = run_card(tmp_path / "out", monkeypatch)
    if head == "classification":
        logits = torch.tensor(printed[0][0])
        torch.testing.assert_close(logits.softmax(-1), predict(tmp_path / "run", head, [TEXT]), rtol=0, atol=1e-4)


def test_code_of_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    model = make_model("llama2", "generation", "paper")
    pt.save(model, tmp_path / "run")
    assert export(tmp_path, to="gguf") == 0
    run_card(tmp_path / "out", monkeypatch)


def test_a_card_of_the_user_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model("bert", "classification", "mean")
    write_run(model, "classification", tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/README.md").write_text("mine")
    assert export(tmp_path, "--overwrite") == 0 and "README.md" in capsys.readouterr().err
    assert (tmp_path / "out/README.md").read_text() == "mine"
    (tmp_path / "out/README.md").unlink()
    assert export(tmp_path, "--overwrite") == 0 and export(tmp_path, "--overwrite") == 0
    assert (tmp_path / "out/README.md").read_text() != "mine"


def test_over_an_export_of_another_head(tmp_path: Path) -> None:
    """Neither kind of export leaves weights or modules behind under the other."""
    for name, variant in (("class", "paper"), ("modules", "mean")):
        write_run(make_model("bert", "classification", variant), "classification", tmp_path / name)
    for name in ("class", "modules", "class"):
        arguments = [str(tmp_path / name), "--to", "hf", "--out", str(tmp_path / "out"), "--overwrite"]
        assert main(["export", *arguments]) == 0
        has_modules = name == "modules"
        assert (tmp_path / "out" / tensor_files.BODY_FILE).exists() == has_modules
        assert (tmp_path / "out" / tensor_files.SINGLE_FILE).exists() != has_modules
        assert (tmp_path / "out/modules.json").exists() == has_modules
        assert isinstance(pt.load(tmp_path / "out"), ModelWithHead)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_modules_of_half_precision(dtype: str, tmp_path: Path) -> None:
    import sentence_transformers as st

    write_run(make_model("bert", "classification", "mean"), "classification", tmp_path / "run")
    assert export(tmp_path, "--dtype", dtype) == 0
    theirs = st.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode([TEXT], convert_to_tensor=True)
    expected = predict(tmp_path / "out", "classification", [TEXT])
    torch.testing.assert_close(theirs.softmax(-1), expected, rtol=0, atol=2e-5)
