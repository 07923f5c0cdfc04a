"""Every example runs, with little of everything, and says what its first lines promise."""

import ast
import json
import random
import re
import runpy
import sys
from pathlib import Path

import pytest

import pretune as pt
from pretune.runs.recipes import build

FOLDER = Path(__file__).parents[2] / "examples"
LONGEST = 70
ANIMALS, PLACES = ("cat", "dog", "crow", "mouse", "horse"), ("house", "garden", "river", "field", "barn")


def sentence(draw: random.Random) -> str:
    animal, place, other = draw.choice(ANIMALS), draw.choice(PLACES), draw.choice(ANIMALS)
    return draw.choice([f"The {animal} sleeps in the {place}.", f"A {animal} ran from the {other} to the {place}."])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with notes about animals."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for number in range(3):
        blocks = (" ".join(sentence(draw) for _ in range(5)) for _ in range(40))
        (folder / f"note-{number}.txt").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    (folder / "bread.md").write_text(
        "# Bread\n\nMix flour, salt, yeast and water, and bake the loaf.\n", encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with labels."""
    draw, file = random.Random(1), tmp_path_factory.mktemp("table") / "labels.csv"
    rows = [f"{sentence(draw)[:-1]} {mood},{mood}" for mood in ("happily", "sadly") * 30]
    file.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def encoder(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = pt.train_tokenizer("wordpiece", [texts], vocab=120, lowercase=True)
    data = pt.prepare([texts], tokenizer=tokenizer, out=folder / "data", workers=0)
    small = {"model.width": 16, "model.depth": 1, "model.heads": 2, "data.max_length": 32, "train.batch_tokens": 256}
    return pt.pretrain("bert", data=data, objective="masked", steps=2, out=folder / "run", overrides=small).path


class Runner:
    """Runs an example as a person would, and gives what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path) -> None:
        self.monkeypatch, self.capsys, self.home = monkeypatch, capsys, home

    def __call__(self, name: str, *words: object) -> str:
        self.monkeypatch.chdir(self.home)
        self.monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        self.capsys.readouterr()
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return self.capsys.readouterr().out


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Runner:
    return Runner(monkeypatch, capsys, tmp_path)


def test_every_example_is_short_and_run_here() -> None:
    """And documented: what it shows, its command, how long it takes; and listed with its result."""
    found = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.py")}
    here = Path(__file__).read_text(encoding="utf-8")
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(found) == 7
    for name, source in found.items():
        about = ast.get_docstring(ast.parse(source)) or ""
        assert len(source.splitlines()) <= LONGEST, name
        assert f"python examples/{name}.py" in about and re.search(r"\d+ (s|min)\b", about), name
        assert f'run("{name}"' in here and f"({name}.py)" in listed, name


@pytest.mark.slow
def test_domain(run: Runner, texts: Path, table: Path, encoder: Path) -> None:
    """From a base that is given, and with labels."""
    said = run("domain_adaptive_pretraining", texts, "--base", encoder, "--steps", 6, "--train", table, "--out", "out")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+), [\d.]+%", said)]
    assert len(losses) == 2 and losses[1] < losses[0]
    scores = re.findall(r"\b(base|adapted): ([\d.]+)", said)
    assert [name for name, _ in scores] == ["base", "adapted"] and all(0 <= float(score) <= 1 for _, score in scores)
    assert pt.load("out/adapted").spec.width == 16


@pytest.mark.slow
def test_domain_without_a_base(run: Runner, texts: Path) -> None:
    said = run(
        "domain_adaptive_pretraining", texts, "--general", texts, "--base-steps", 2, "--steps", 2, "--out", "out"
    )
    assert "loss" in said and pt.load("out/base").spec.family == "bert"


def test_language(run: Runner, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MIN_SHARE", -1e9)  # seconds are enough
    said = run("language_of_your_own", texts, "--budget", "4s", "--prompt", "The cat", "--out", "out")
    vocab = pt.load("out").spec.vocab
    assert re.search(rf"[\d,]+ tokens\b.*\b{vocab:,}\b", said)
    assert 1 < float(re.findall(r"perplexity ([\d.]+)", said)[0]) < 10_000
    assert len(re.findall(r"^- The cat", said, re.MULTILINE)) == 3


@pytest.mark.slow
def test_electra(run: Runner, texts: Path) -> None:
    said = run("electra_on_one_gpu", texts, "--steps", 2, "--vocab", 120, "--sentence", "the cat", "--out", "out")
    assert "discriminator" in said.splitlines()[0]
    assert re.findall(r"^ *(\S+) +[\d.]+%", said, re.MULTILINE) == ["the", "cat"]
    assert Path("out/model/generator/model.safetensors").is_file()


@pytest.mark.slow
def test_t5(run: Runner, tmp_path: Path) -> None:
    rows = [f"{a} in the {b}\t{b}: {a}" for a in ANIMALS for b in PLACES]
    (tmp_path / "pairs.tsv").write_text("\n".join(["source\ttarget", *rows]) + "\n", encoding="utf-8")
    said = run("t5_on_your_task", "pairs.tsv", "--steps", 2, "--inputs", "cat in the barn", "--out", "out")
    assert re.search(r"\b[012] of 2\b", said) and "  cat in the barn -> " in said
    again = run("t5_on_your_task", "pairs.tsv", "--base", "out/model", "--steps", 1, "--inputs", "--out", "more")
    assert re.search(r"\b[012] of 2\b", again) and pt.load("more/model").spec == pt.load("out/model").spec


@pytest.mark.slow
def test_t5_dates(run: Runner) -> None:
    said = run("t5_on_your_task", "--steps", 2, "--out", "out")
    assert " of 100 " in said and "03 May 1998 -> " in said
    lines = Path("out/train.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "source\ttarget" and all(re.fullmatch(r".+\t\d{4}-\d\d-\d\d", line) for line in lines[1:])


def test_custom_loop(run: Runner, table: Path, encoder: Path) -> None:
    """It saves an adapter on the model that it trained further, and predicts with what was saved."""
    output = run("custom_training_loop", encoder, "--train", table, "--steps", 3, "--out", "out")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 2 and all(0 < loss < 20 for loss in losses)
    lines = re.findall(r"^(.*) -> (happily|sadly)$", output, re.MULTILINE)
    model = pt.load("out")
    predictions = model(model.tokenizer([text for text, _ in lines])).argmax(-1).tolist()
    assert len(lines) == 3 and [model.spec.labels[i] for i in predictions] == [label for _, label in lines]
    assert {"adapter_config.json", "head.safetensors", "base"} <= {path.name for path in Path("out").iterdir()}


def test_lora(run: Runner, table: Path, encoder: Path) -> None:
    pytest.importorskip("peft")
    words = ("--train", table, "--train-examples", 16, "--steps", 4, "--text", "The cat sleeps happily", "--peft")
    said = run("lora_on_hugging_face", encoder, *words, "--out", "out")
    assert re.search(r"LoRA\b.*\b16\b.*: [\d.]+\b.*[\d.]+ MB", said) and "majority: 0.5" in said
    ours = json.loads(re.findall(r"^The cat sleeps happily (\{.*\})$", said, re.MULTILINE)[0].replace("'", '"'))
    theirs = json.loads(re.findall(r"peft: (\[.*\])$", said, re.MULTILINE)[0])
    assert list(ours.values()) == pytest.approx(theirs, abs=1e-5)


def test_search(run: Runner, texts: Path, encoder: Path) -> None:
    words = ("--model", encoder, "--query", "how to bake a loaf of bread", "-k", 2, "--out", "index")
    said = run("semantic_search_on_your_notes", texts, *words)
    assert re.search(r"\b121\b.*\bindex\b", said)
    ids = re.findall(r"^ +[\d.]+  (\S+)  ", said, re.MULTILINE)
    assert len(ids) == 4 and ids[2] == "bread.md#2"  # two by vectors, then two by BM25
    assert run("semantic_search_on_your_notes", texts, *words) == said  # from the index that is there now
