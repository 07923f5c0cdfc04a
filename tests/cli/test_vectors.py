"""`pretune vectors`, and its file wherever an embedding model is taken."""

import json
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.inference.word_vectors import WordVectors
from tests.conftest import run_command
from tests.runs import tasked


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a file of vectors of each kind."""
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "texts.txt").write_text("\n\n".join(tasked.corpus()))
    for kind in ("word2vec", "glove", "ppmi"):
        command = ["vectors", str(folder / "texts.txt"), f"--kind={kind}", "--width=8", "--min-count=2"]
        assert main(["--quiet", *command, f"--out={folder / kind}.txt"]) == 0
    return folder


@pytest.mark.parametrize("kind", ["word2vec", "glove", "ppmi"])
def test_each_kind_writes_the_text_format_of_word2vec(home: Path, kind: str) -> None:
    header, first = (home / f"{kind}.txt").read_text().split("\n")[:2]
    vectors = WordVectors.load(home / f"{kind}.txt")
    assert header == f"{len(vectors)} 8" and len(first.split(" ")) == 9
    again = pt.train_vectors(home / "texts.txt", kind=kind, width=8, min_count=2)
    assert again.words == vectors.words and again.matrix.tobytes() == vectors.matrix.tobytes()


def test_json_says_what_was_made(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = home / "json.txt"
    assert main(["vectors", str(home / "texts.txt"), "--kind=ppmi", "--max-words=9", f"--out={out}", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["words"] == 9 and facts["width"] == 100 and facts["out"] == str(out)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--kind=word2vek"], "word2vek"),
        (["--kind=word2vec", "--mode=skipgram"], "skipgram"),
        (["--kind=glove", "--mode=cbow"], "mode"),
        (["--kind=ppmi", "--epochs=3"], "epochs"),
        (["--kind=ppmi", "--max-words=20001"], "20001"),
        (["--width=0"], "width"),
        (["--window=101"], "101"),
    ],
)
def test_options_are_refused_before_anything_is_read(
    home: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = home / "refused.txt"
    assert main(["vectors", "absent.txt", *options, f"--out={out}"]) == 2
    assert expected in capsys.readouterr().err and not out.exists()


def test_embed_takes_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "lines.txt").write_text("a lovely sea.\nzzz\nthe sea\n")
    place, out = str(home / "ppmi.txt"), home / "out.npy"
    assert main(["embed", place, f"--input={home / 'lines.txt'}", f"--out={out}", "--normalise"]) == 0
    found, vectors = np.load(out), WordVectors.load(place)
    wanted = vectors.average(["a lovely sea.", "zzz", "the sea"])
    wanted /= np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert not found[1].any()
    capsys.readouterr()
    assert main(["embed", place, f"--input={home / 'lines.txt'}", f"--out={out}", "--layer=2"]) == 2
    assert "layer" in capsys.readouterr().err
    with pytest.raises(UsageError):
        pt.index(place, ["a text"], out=home / "index")
    base = tasked.make_base(home / "indexed", "bert-tiny")
    pt.index(base, ["a text"], out=home / "index")
    with pytest.raises(UsageError):
        pt.search(home / "index", ["a text"], model=place)


def test_neighbors_takes_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(home / "word2vec.txt")
    word = WordVectors.load(place).words[3]
    found = json.loads(run_command(capsys, ["neighbors", place, word.upper(), "-k", "3", "--json"]).out)
    assert [(one["word"], one["score"]) for one in found["static"]] == WordVectors.load(place).find_nearest(word, 3)
    assert main(["neighbors", place, "notthere"]) == 3
    assert main(["neighbors", place, word, "--in=the sea"]) == 2
    error = run_command(capsys, ["neighbors", place, word, "-k", "0"], code=2).err
    assert "notthere" in error and "--in" in error


def test_evaluate_takes_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = WordVectors.load(home / "ppmi.txt")
    rows = [
        ("the sea", "a sea", 5.0),
        ("the wind", "an old house", 1.0),
        ("lovely", "dreadful", 2.0),
        ("a", "river", 0.5),
    ]
    table = home / "pairs.tsv"
    table.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in rows))
    assert main(["evaluate", str(home / "ppmi.txt"), "--task=scored_pairs", f"--data={table}", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    left, right = (vectors.average([row[i] for row in rows]) for i in (0, 1))
    cosine = (left * right).sum(1) / np.maximum(np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1), 1e-12)
    order = np.argsort(np.argsort(cosine)), np.argsort(np.argsort([row[2] for row in rows]))
    assert result["scores"]["spearman"] == pytest.approx(float(np.corrcoef(*order)[0, 1]), abs=1e-6)


def test_the_baseline_of_averaged_vectors_takes_them(home: Path) -> None:
    from pretune.evaluation.baselines import run_baselines
    from pretune.tasks.example import Example
    from pretune.tasks.task import Task

    known = WordVectors(["good", "bad"], np.array([[1, 0], [0, 1]], np.float32))
    known.save(home / "known.txt")
    task = Task(name="mine", kind="classification", labels=("bad", "good"), metrics=("accuracy",), splits={})
    train = [Example(id=str(i), text=["bad", "good"][i % 2], label=i % 2) for i in range(20)]
    asked = [Example(id="a", text="good", label=1), Example(id="b", text="bad", label=0)]
    rows, _ = run_baselines(task, train, asked, ("vectors",), vectors=str(home / "known.txt"))
    assert [one.label for one in rows[0].predictions] == [1, 0]
    with pytest.raises(DataError):
        run_baselines(task, train, asked, ("vectors",), vectors=str(home / "absent.txt"))


def test_finetune_refuses_a_bad_file_before_it_trains(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tasked.make_base(home / "base", "bert-tiny")
    tasked.classes(home / "table.csv", 40)
    (home / "bad.txt").write_text("3 2\na 1 2\n")
    command = ["finetune", str(base), f"--train={home / 'table.csv'}", "--steps=1", "--baselines=vectors"]
    assert main([*command, f"--vectors={home / 'bad.txt'}", f"--out={home / 'run'}"]) == 3
    assert "bad.txt" in capsys.readouterr().err and not (home / "run").exists()
    assert main(["--quiet", *command, f"--vectors={home / 'ppmi.txt'}", f"--out={home / 'run'}"]) == 0
    scores = json.loads((home / "run" / "scores.json").read_text())
    assert "vectors" in json.dumps(scores["baselines"])
    assert json.loads((home / "run" / "run.json").read_text())["plan"]["vectors"] == str(home / "ppmi.txt")
