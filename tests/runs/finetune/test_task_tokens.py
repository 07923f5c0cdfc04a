"""Start, delimiter and extract tokens that a family's paper adds when it is fine-tuned (Radford et al., 2018)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune.adaptation.surgery import TASK_TOKENS
from pretune.core.errors import CheckpointError
from pretune.tasks.encoding import build_task_template
from pretune.text.template import TEXT_A, TEXT_B
from pretune.text.tokenizer import Tokenizer
from tests.runs import tasked

ADDED = [*TASK_TOKENS.values()]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tasked.make_base(tmp_path_factory.mktemp("gpt"), "gpt", kind="bpe", style="endoftext", dropout=0)


def tune(base: Path, out: Path, table: Path, **options: Any) -> Any:
    settings = {"steps": 2, "baselines": "none", "device": "cpu", **options}
    return pt.finetune(base, train=table, out=out, **settings)


def test_they_are_added_and_come_back_with_the_run(base: Path, tmp_path: Path) -> None:
    table = tasked.classes(tmp_path / "table.csv", 40)
    run = tune(base, tmp_path / "run", table)
    old, new = Tokenizer.load(base), Tokenizer.load(tmp_path / "run")
    assert [new.get_token(i) for i in range(old.vocab, new.vocab)] == ADDED
    assert [new.get_token(i) for i in range(old.vocab)] == [old.get_token(i) for i in range(old.vocab)]
    assert new.special["eos"] == old.special["eos"]
    model = pt.load(tmp_path / "run").model
    assert model.spec.vocab == model.tokens.num_embeddings == new.vocab
    start, delimiter, extract = (new.special[role] for role in TASK_TOKENS)
    template = build_task_template(new, model.spec)
    assert template.single == ((start, 0), (TEXT_A, 0), (extract, 0))
    assert template.pair == ((start, 0), (TEXT_A, 0), (delimiter, 0), (TEXT_B, 0), (extract, 0))
    texts = ["the lovely sea", "a dreadful wind"]
    before = run.predict(texts)
    assert before == pt.predict(tmp_path / "run", texts)
    predictions = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert predictions


def test_the_reference_reads_them(base: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference library is not installed")
    tune(base, tmp_path / "run", tasked.classes(tmp_path / "table.csv", 40))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "run"), Tokenizer.load(tmp_path / "run")
    spelled = "<|start|>the sea<|delimiter|>a wind<|extract|>"
    assert theirs(spelled)["input_ids"] == ours.encode(spelled, add_special_tokens=False)
    assert (theirs.bos_token, theirs.sep_token, theirs.cls_token) == tuple(ADDED)


def test_a_second_run_adds_nothing(base: Path, tmp_path: Path) -> None:
    table = tasked.classes(tmp_path / "table.csv", 40)
    tune(base, tmp_path / "first", table)
    tune(tmp_path / "first", tmp_path / "second", table)
    assert Tokenizer.load(tmp_path / "first").sha256 == Tokenizer.load(tmp_path / "second").sha256


@pytest.mark.parametrize("method", ["lora", "frozen", "last-only"])
def test_where_the_table_is_not_trained_or_saved_nothing_is_added(base: Path, tmp_path: Path, method: str) -> None:
    run = tune(base, tmp_path / "run", tasked.classes(tmp_path / "table.csv", 40), method=method)
    model = pt.load(tmp_path / "run")
    assert model.model.spec.vocab == Tokenizer.load(base).vocab
    assert run.predict(["the lovely sea"])


def test_a_run_that_was_cut_short_goes_on(base: Path, tmp_path: Path) -> None:
    table = tasked.classes(tmp_path / "table.csv", 40)
    tune(base, tmp_path / "run", table)
    whole = {name: (tmp_path / "run" / name).read_bytes() for name in ("model.safetensors", "tokenizer.json")}
    tune(base, tmp_path / "again", table)
    assert whole == {name: (tmp_path / "again" / name).read_bytes() for name in whole}
    (tmp_path / "again" / "cost.json").unlink()
    pt.finetune(out=tmp_path / "again", resume=True, device="cpu")
    assert whole == {name: (tmp_path / "again" / name).read_bytes() for name in whole}


def test_forgetting_is_measured_without_them(base: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n\n".join(tasked.corpus()))
    data = pt.prepare([tmp_path / "texts.txt"], tokenizer=Tokenizer.load(base), out=tmp_path / "data", workers=0)
    run = tune(base, tmp_path / "run", tasked.classes(tmp_path / "table.csv", 40), forgetting=data.path)
    found = run.scores["forgetting"]
    assert np.isfinite([found["distance"], found["before"]["loss"], found["after"]["loss"]]).all()


def test_a_damaged_tokenizer_is_told(base: Path, tmp_path: Path) -> None:
    tune(base, tmp_path / "run", tasked.classes(tmp_path / "table.csv", 40))
    (tmp_path / "run" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError):
        pt.predict(tmp_path / "run", ["the sea"])
