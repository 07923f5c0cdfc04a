"""Ten million words, at a small scale: the limits are counted, and the one command writes its results and page."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "ten_million_words"
PAIRS = {
    "island_effects": ("adjunct_island", "The cat sleeps in the house.", "The cat sleep in the house."),
    "binding": ("principle_A_case_1", "A dog ran from the crow.", "A dog ran from crow the."),
}


@pytest.fixture(autouse=True)
def folder_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example imports its other files by name, as Python does for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("corpus", "page"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def write_texts(path: Path, documents: int, words: int) -> Path:
    path.mkdir(parents=True)
    texts = [" ".join(f"w{(number * 7 + place) % 50}" for place in range(words)) for number in range(documents)]
    (path / "train.txt.gz").write_bytes(gzip.compress("\n\n".join(texts).encode()))
    (path / "valid.txt").write_text("held out by others " * 10)
    return path


def test_a_corpus_has_whole_documents_within_its_shares(tmp_path: Path) -> None:
    from corpus import count_words, read_texts, write_corpus

    sources = {str(write_texts(tmp_path / "a", 30, 100)): 3.0, str(write_texts(tmp_path / "b", 2, 90)): 1.0}
    counts = write_corpus(sources, tmp_path / "out.txt", words=2050)
    assert [*counts.values()] == [1500, 180]  # 15 of room for 1,537, and all there is
    assert count_words((tmp_path / "out.txt").read_text()) == 1680
    documents = [count_words(text) for text in read_texts("out.txt", tmp_path)]
    assert sorted(documents) == [90, 90, *[100] * 15]
    with pytest.raises(SystemExit, match="limit of 10,000,000"):
        write_corpus(sources, tmp_path / "more.txt", words=10_000_001)


def test_tables_are_read_by_fields_without_repetition(tmp_path: Path) -> None:
    from corpus import write_corpus

    rows = [{"premise": "a dog runs", "hypothesis": f"dog {number}\n\nruns"} for number in range(3)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("a dog runs\n\nit sleeps")
    sources = {"pairs.jsonl:premise,hypothesis": 1.0, "text.txt": 1.0}
    counts = write_corpus(sources, tmp_path / "out.txt", folder=tmp_path, words=100)
    assert [*counts.values()] == [3 + 3 * 3, 5]
    texts = {"a dog runs", "it sleeps", *(f"dog {number}\nruns" for number in range(3))}
    assert {*(tmp_path / "out.txt").read_text().strip().split("\n\n")} == texts
    with pytest.raises(SystemExit, match="nothing: no text"):
        write_corpus({"nothing": 1.0}, tmp_path / "out.txt", folder=tmp_path)


def test_halves_of_blimp_cover_every_phenomenon_once() -> None:
    halves = json.loads((FOLDER / "blimp_halves.json").read_text())
    names = [*halves["development"], *halves["untouched"]]
    assert len(names) == len({*names}) == 13


def test_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = json.loads((FOLDER / "recipe.json").read_text())
    assert recipe["epochs"] <= 10
    recipe["epochs"], recipe["tokenizer"]["vocab"] = 1, 400
    recipe["settings"] |= {
        "model.width": 16, "model.depth": 1, "model.heads": 2, "data.max_length": 32, "train.batch_tokens": 512,
    }  # fmt: skip
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    (tmp_path / "tasks" / "blimp").mkdir(parents=True)
    for phenomenon, (name, good, bad) in PAIRS.items():
        rows = [
            {
                "sentence_good": good,
                "sentence_bad": bad,
                "UID": name,
                "pairID": str(number),
                "linguistics_term": phenomenon,
            }
            for number in range(2)
        ]
        (tmp_path / "tasks" / "blimp" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts, out = write_texts(tmp_path / "texts", 40, 60), tmp_path / "out"
    arguments = ["--text", f"{texts}=1", "--tasks", tmp_path / "tasks", "--recipe", tmp_path / "recipe.json"]
    arguments += ["--words", 2000, "--finetune", "none", "--out", out]
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
    runpy.run_path(str(FOLDER / "run.py"), run_name="__main__")
    results = json.loads((out / "results.json").read_text())
    assert results["words"]["unique"] == 1980 and results["words"]["seen"] <= 2000
    assert results["blimp"]["sets"] == 2 and results["blimp"]["development"]["pairs"] == 2
    assert set(results["blimp"]["development_by_scoring"]) == {"causal", "both sides", "sum"}
    mean = sum(results["blimp"][half]["accuracy"] for half in ("development", "untouched")) / 2
    assert results["blimp"]["accuracy"] == pytest.approx(mean)
    page = (out / "page.md").read_text()
    assert "| island_effects |" in page and "no ranking" in page and (out / "report.html").is_file()
