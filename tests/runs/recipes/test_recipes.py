"""Runs of recipes: from text to a model in one call; bad options and too little time or text are refused."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import CheckpointError, DataError, UsageError
from pretune.runs.config import PretrainConfig
from pretune.runs.options import PretrainOptions
from pretune.runs.recipes import build, plan
from pretune.runs.recipes.facts import DeviceFacts
from pretune.runs.recipes.timing import measure_token_seconds
from tests.conftest import Capture, Patch, run_command
from tests.selection import keep_quick

WORDS = "the", "a", "film", "story", "actor", "plot", "music", "is", "was", "not", "very", "good", "bad", "dull", "weak"
SETS = {"train.samples_every": 0, "train.workers": 0, "train.eval_tokens": 2000, "model.width": 32, "model.depth": 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    lines = [" ".join(WORDS[(n * k + k) % len(WORDS)] for k in range(1, 30)) for n in range(900)]
    (folder / "stories.txt").write_text("\n\n".join(lines))
    return folder


@pytest.fixture
def in_time(monkeypatch: Patch) -> None:
    """However busy the machine is, a run of seconds is no error."""
    monkeypatch.setattr(build, "MIN_SHARE", -1e9)


def test_of_much_text_a_part_is_prepared(tmp_path: Path, monkeypatch: Patch) -> None:
    """No more than the time is enough for, unless documents are few."""
    slow = DeviceFacts(name="slow", device_type="cpu", flops=2e8, bandwidth=1e9, memory=24e9)
    text = tmp_path / "stories.txt"
    text.write_text("\n\n".join(f"{' '.join(WORDS[n % 15 :])} {n} and {' '.join(WORDS)}" for n in range(900)))
    options = PretrainOptions(model="encoder", text=text, budget="30s", overrides={"model.vocab": "256"})
    monkeypatch.setattr(build, "SECOND_TOKENS", 0)  # what is counted is less than what is read
    parts = {}
    for least in (100, 10_000):
        monkeypatch.setattr(build, "MIN_PART_DOCUMENTS", least)
        chosen, size = build.plan_without_data(options, slow)
        data = build.prepare_text(options, build.find_recipe(options), tmp_path / str(least), chosen)
        assert data.card["documents_read"] == 900
        parts[least] = sum(split["documents"] for split in data.card["splits"].values()) / 900
        assert data.tokens > size.tokens
    assert chosen.choices.get("part") is None and parts[10_000] == 1
    assert 0.05 < parts[100] < 0.5


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("encoder", "ModernBertForMaskedLM"),
        pytest.param("decoder", "Qwen3ForCausalLM", marks=pytest.mark.slow),
        pytest.param("encoder-decoder", "T5ForConditionalGeneration", marks=pytest.mark.slow),
    ],
)
def test_from_text_to_a_model(name: str, loaded: str, text: Path, tmp_path: Path, in_time: None) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "run"
    sets = {**SETS, "model.heads": 2}
    run = pt.pretrain(name, text=text, budget=3.0, out=out, overrides=sets)
    tree = json.loads((out / "run.json").read_text())
    plan = tree["environment"]["plan"]
    assert plan["recipe"] == name and set(plan["overrides"]) == set(sets)
    assert tree["train"]["budget"] == 3.0 and tree["model"]["width"] == 32 and tree["data"]["path"] == str(out / "data")
    reasons = {choice["path"]: choice for choice in plan["choices"]}
    assert reasons["model.width"]["value"] == 32 and reasons["train.lr"]["value"] == tree["train"]["lr"]
    assert getattr(transformers, loaded).from_pretrained(out).num_parameters() == run.summary["parameters"]
    assert transformers.AutoTokenizer.from_pretrained(out).vocab_size <= tree["model"]["vocab"]

    again = pt.pretrain(name, text=text, budget=3.0, out=out, overrides=sets, resume=True)
    assert again.summary == run.summary
    with pytest.raises(CheckpointError, match=r"train\.seed"):
        pt.pretrain(name, text=text, budget=3.0, out=out, overrides={**sets, "train.seed": 7}, resume=True)
    with pytest.raises(CheckpointError, match="recipe"):
        other = "decoder" if name == "encoder" else "encoder"
        pt.pretrain(other, text=text, budget=3.0, out=out, resume=True)


@pytest.mark.slow
def test_prepared_text_is_used_again(text: Path, tmp_path: Path, in_time: None, monkeypatch: Patch) -> None:
    def interrupt(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"text": [str(text)], "budget": "3s", "out": tmp_path / "run", "overrides": SETS}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build, "build_paper_config", interrupt)
        pt.pretrain("encoder", **options)
    stamp = (tmp_path / "run/data/data.json").stat().st_mtime_ns
    assert not (tmp_path / "run/run.json").exists()
    pt.pretrain("encoder", **options)
    assert (tmp_path / "run/data/data.json").stat().st_mtime_ns == stamp
    assert main(["verify", str(tmp_path / "run")]) == 0


def test_a_dry_run_touches_nothing(text: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "encoder", f"--text={text}", "--budget=10m", "--set=model.depth=3"]
    out, err = run_command(capsys, [*words, "--dry-run"])
    assert err == "" and [*tmp_path.iterdir()] == []
    assert "model.depth 3: set by you" in out and "expected on" in out
    facts = json.loads(run_command(capsys, [*words, "--dry-run", "--json"])[0])
    assert facts["recipe"] == "encoder" and facts["expected"]["tokens"] > 0


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("encoder", {"data": "d"}, "--budget"),
        ("encoder", {"data": "d", "budget": "5m", "steps": 3}, "one length|--steps"),
        ("encoder", {"budget": "5m"}, "--text"),
        ("encoder", {"budget": "5m", "text": "t", "data": "d"}, "--text"),
        ("encoder", {"budget": "5m", "text": "t", "teacher": "minilm"}, "--teacher"),
        ("bert-tiny", {"steps": 5, "text": "t"}, "--text"),
    ],
)
def test_options_that_do_not_fit(name: str, options: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=match):
        pt.pretrain(name, out=tmp_path / "run", **options)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_another_objective_has_its_own_settings(text: Path, tmp_path: Path, in_time: None) -> None:
    sets = {**SETS, "model.heads": 2}
    pt.pretrain("encoder", text=text, objective="replaced_token", budget=3.0, out=tmp_path / "run", overrides=sets)
    objective = json.loads((tmp_path / "run/run.json").read_text())["objective"]
    assert objective["kind"] == "replaced_token" and "rate" not in objective


def test_too_little_time(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least"):
        pt.pretrain("encoder", text=text, budget="1s", out=tmp_path / "run", overrides=SETS)


def test_no_text(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(DataError, match="empty"):
        pt.pretrain("encoder", text=tmp_path / "empty.txt", budget="30s", out=tmp_path / "run")


SYLLABLES = {
    "chinese": ("电影", "故事", "演员", "音乐", "非常", "好看", "不", "很", "我们", "喜欢", "导演", "的"),
    "japanese": ("この", "映画", "は", "とても", "面白い", "です", "が", "音楽", "よく", "ない", "俳優", "の"),
    "thai": ("หนัง", "เรื่อง", "นี้", "ดี", "มาก", "แต่", "เพลง", "ไม่", "ชอบ", "นัก", "แสดง", "และ"),
}


@pytest.mark.slow
@pytest.mark.parametrize("language", keep_quick([*SYLLABLES], "thai"))
def test_text_without_spaces(language: str, tmp_path: Path, in_time: None) -> None:
    words = SYLLABLES[language]
    lines = ["".join(random.Random(n).choices(words, k=40)) for n in range(400)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    pt.pretrain(
        "encoder", text=tmp_path / "text.txt", budget=3.0, out=tmp_path / "run", overrides={**SETS, "model.heads": 2}
    )
    tokenizer = pt.load(tmp_path / "run").tokenizer
    ids = tokenizer.encode(lines[0], add_special_tokens=False)
    assert tokenizer.special["unk"] not in ids and 5 < len(ids) < len(lines[0])
    choices = json.loads((tmp_path / "run/run.json").read_text())["environment"]["plan"]["choices"]
    assert {"path": "tokenizer", "value": "unigram"}.items() <= next(
        c for c in choices if c["path"] == "tokenizer"
    ).items()


@pytest.mark.slow
def test_too_little_text_for_a_sequence_is_one_line(tmp_path: Path, in_time: None) -> None:
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(DataError, match="add text"):
        pt.pretrain("encoder", text=tmp_path / "text.txt", budget=3.0, out=tmp_path / "run", overrides=SETS)


@pytest.mark.slow
def test_one_document(tmp_path: Path, in_time: None, capsys: Capture) -> None:
    """There is nothing left for validation; the run says so."""
    (tmp_path / "text.txt").write_text(" ".join(WORDS[n * n % 15] for n in range(9000)))
    sets = {**SETS, "model.heads": 2}
    run = pt.pretrain("encoder", text=tmp_path / "text.txt", budget=3.0, out=tmp_path / "run", overrides=sets)
    assert run.loss is None and run.summary["tokens"] > 0 and "validation" in capsys.readouterr().err


@pytest.mark.slow
def test_the_pace_is_that_of_real_steps(text: Path, tmp_path: Path, in_time: None, monkeypatch: Patch) -> None:
    """Of steps that take a second for each token, no more than a few tokens fit."""
    sets = {**SETS, "model.heads": 2}
    options: dict[str, Any] = {"text": text, "budget": 3.0, "overrides": sets}
    seconds = []

    def measure(config: PretrainConfig) -> float:
        seconds.append(measure_token_seconds(config))
        return 1.0

    monkeypatch.setattr(build, "measure_token_seconds", measure)
    pt.pretrain("encoder", **options, out=tmp_path / "run")
    tree = json.loads((tmp_path / "run/run.json").read_text())
    assert tree["environment"]["plan"]["expected"]["tokens"] < 100 and 0 < seconds[0] < 1
    assert tree["train"]["batch_tokens"] == 1024


@pytest.mark.slow
def test_little_text_ends_early(text: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(plan, "MAX_EPOCHS", 1.0)
    monkeypatch.setattr(build, "measure_token_seconds", lambda config: 1e-5)
    pt.pretrain("encoder", text=text, budget=600.0, out=tmp_path / "run", overrides={**SETS, "model.heads": 2})
    tree = json.loads((tmp_path / "run/run.json").read_text())
    assert tree["train"]["budget"] < 200 and "epochs" in {c["path"] for c in tree["environment"]["plan"]["choices"]}
