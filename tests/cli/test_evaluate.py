"""`pretune evaluate` on a run that `pretune pretrain` made: results, JSON, one line for what is wrong."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

import pretune as pt
from pretune.cli import main
from pretune.runs.finetune.inference import evaluate_run
from pretune.tasks import TASKS
from tests.conftest import Capture, run_command
from tests.runs import tasked
from tests.runs.small import FAST, make, shrunk

RUNS = {"bert-tiny": ("wordpiece", "cls-sep", "masked"), "gpt2-small": ("bpe", "endoftext", "causal")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for name, (kind, style, objective) in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        data, out = make(folder, kind, style, count=30), folder / "run"
        sets = [f"--set={path}={value}" for path, value in {**shrunk(name), **FAST}.items()]
        given = ["pretrain", name, f"--data={data}", "--steps=2", f"--objective={objective}", f"--out={out}", *sets]
        assert main(["--quiet", *given]) == 0
        found[name] = str(out)
    return found


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    file = tmp_path / "pairs.txt"
    file.write_text("The sea was quiet.\nThe sea were quiet.\nNobody knew.\nNobody knew.\n")
    return str(file)


@pytest.fixture
def table(tmp_path: Path) -> str:
    file = tmp_path / "mine.csv"
    file.write_text(
        "text,label\n"
        + "".join(f"the {word} {at},{label}\n" for at in range(6) for word, label in (("sea", "wet"), ("house", "dry")))
    )
    return str(file)


def told(capsys: Capture, *words: str) -> list[dict]:  # type: ignore[type-arg]
    out, err = run_command(capsys, ["--quiet", "evaluate", *words, "--json"])
    assert err == ""
    found: list[dict] = json.loads(out)["results"]  # type: ignore[type-arg]
    return found


def refused(capsys: Capture, code: int, *words: str) -> str:
    assert main(["evaluate", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("name", list(RUNS))
def test_pairs_and_text_of_ones_own(capsys: Capture, runs: dict[str, str], pairs: str, name: str) -> None:
    (text, found) = told(capsys, runs[name], "--task=minimal_pairs", f"--data={pairs}", f"--text={pairs}")
    assert found["counts"] == {"pairs": 2, "ties": 1} and found["scores"]["accuracy"] in (0.0, 0.5)
    (turned,) = told(capsys, runs[name], "--task=minimal_pairs", f"--data={pairs}", "--order=bad-first")
    assert turned["scores"]["accuracy"] == 0.5 - found["scores"]["accuracy"]
    kind = "pseudo_perplexity" if name == "bert-tiny" else "perplexity"
    assert text["task"] == "perplexity" and text["scores"][kind] > 1
    room = FAST["data.max_length"] - (2 if name == "bert-tiny" else 0)  # as long as what the run learnt from
    assert text["notes"][0] == f"windows of {room} tokens, {room // 2} scored in each"
    said = pt.evaluate(runs[name], "minimal_pairs", data=pairs)[0]
    assert said.scores == found["scores"]
    assert pt.score(pt.load(runs[name]), ["The sea was quiet."])[0] < 0


def test_a_table_of_ones_own_with_shots(capsys: Capture, runs: dict[str, str], table: str) -> None:
    found = told(capsys, runs["gpt2-small"], f"--test={table}", "--shots=0,2", "--calibrate", "--show-prompt")
    assert [one["shots"] for one in found] == [0, 2]
    assert [one["counts"]["examples"] for one in found] == [12, 10]
    assert "Label: ____\n" in found[0]["prompt"] and "dry | wet" in found[0]["prompt"]
    assert found[1]["prompt"].count("Label: ") == 3
    both = told(capsys, runs["gpt2-small"], f"--test={table}", f"--train={table}", "--column=label=label", "--limit=4")
    assert both[0]["split"] == "test" and both[0]["counts"]["examples"] == 4
    worded = (r"--prompt=Say: {text}\nIt is {answer}", "--limit=2", "--show-prompt")
    assert "\nIt is ____" in told(capsys, runs["gpt2-small"], f"--test={table}", *worded)[0]["prompt"]


def test_results_are_a_table_and_the_rest_is_on_stderr(capsys: Capture, runs: dict[str, str], table: str) -> None:
    assert (
        main(
            [
                "evaluate",
                runs["bert-tiny"],
                f"--test={table}",
                "--shots=1",
                "--prompt={text} is {answer}",
                "--show-prompt",
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "the " in out and " is ____." in out
    assert "task" in out and "accuracy" in out and " %" in out and "majority" in out
    assert "1 shot" in err and "'train'" in err
    assert f"next: pretune finetune {runs['bert-tiny']} --train {table} --out runs/tuned" in err


def test_the_next_command_has_the_tables_columns_and_data_that_were_given(
    capsys: Capture, runs: dict[str, str], table: str, shared_data: Path
) -> None:
    model = runs["gpt2-small"]
    given = (f"--test={table}", f"--train={table}", "--column=text=text", "--column=label=label", "--limit=2")
    assert main(["evaluate", model, *given]) == 0
    columns = f"--train {table} --test {table} --text text --label label --out"
    assert f"next: pretune finetune {model} {columns}" in capsys.readouterr().err
    if not (shared_data / "tasks" / "copa").is_dir():
        pytest.skip("COPA is not there")
    assert main(["evaluate", model, "--task=copa", f"--data={shared_data}", "--limit=2"]) == 0
    assert f"next: pretune finetune {model} --task copa --data {shared_data} --out" in capsys.readouterr().err


@pytest.mark.slow
def test_tasks_from_the_data_directory(capsys: Capture, runs: dict[str, str], shared_data: Path) -> None:
    where = f"--data={shared_data}"
    if not (shared_data / "tasks" / "blimp").is_dir():
        pytest.skip("BLiMP is not there")
    found = told(capsys, runs["bert-tiny"], "--task=blimp,lambada,copa", where, "--limit=6", "--shots=0,1")
    assert [(one["task"], one.get("shots")) for one in found] == [
        ("blimp", None),
        ("lambada", None),
        ("copa", 0),
        ("copa", 1),
    ]
    assert found[0]["counts"]["pairs"] == 6 and len(found[0]["groups"]) > 1
    assert found[1]["scores"]["perplexity"] > 1
    assert "shots" in found[1]["notes"][-1] and "shots" not in found[1]


def test_the_built_in_gaps_and_ones_own(
    capsys: Capture, runs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_DATA", raising=False)
    for model in runs.values():
        for where in ((), (f"--data={tmp_path}",)):
            (found,) = told(capsys, model, "--task=cloze", "--limit=40", *where)
            assert found["task"] == "cloze" and found["split"] == "test" and len(found["groups"]) == 10
            assert found["scores"]["chance"] == 0.25 and found["counts"]["examples"] == 40
    assert "· arithmetic" in run_command(capsys, ["evaluate", model, "--task=cloze", "--limit=10"]).out
    own = tmp_path / "own.jsonl"
    own.write_text('{"text": "The ____ was quiet.", "answer": "sea"}')
    (found,) = told(capsys, model, "--task=cloze", f"--data={own}")
    assert "chance" not in found["scores"] and found["counts"]["examples"] == 1
    assert "nowhere.jsonl" in refused(capsys, 3, model, "--task=cloze", f"--data={tmp_path}/nowhere.jsonl")


def test_answers_are_written_where_a_task_asks_for_them(
    capsys: Capture, runs: dict[str, str], shared_data: Path
) -> None:
    if not TASKS.get("samsum").find_available(shared_data):
        pytest.skip("SAMSum is not there")
    asked = ("--task=samsum", f"--data={shared_data}", "--limit=3", "--shots=0,1", "--show-prompt")
    none, one = told(capsys, runs["gpt2-small"], *asked)
    assert none["counts"]["examples"] == one["counts"]["examples"] == 3 and one["shots"] == 1
    assert next(iter(none["scores"])) == "rouge1" and "lead" in none["scores"]
    assert "Summary: ____" in none["prompt"]
    assert refused(capsys, 2, runs["bert-tiny"], *asked)


def test_a_fine_tuned_run_is_judged_by_its_head(capsys: Capture, tmp_path: Path) -> None:
    base, folder = tasked.make_base(tmp_path), tmp_path / "tasks" / "sst2"
    folder.mkdir(parents=True)
    for split, seed in (("train", 0), ("dev", 1)):
        rng = random.Random(seed)
        words = [(at % 2, tasked.GOOD if at % 2 else tasked.BAD) for at in range(24)]
        rows = [f"{tasked.sentence(rng, word)}\t{label}" for label, word in words]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    run, data = tmp_path / "run", f"--data={tmp_path}"
    given = [
        "finetune",
        str(base),
        "--task=sst2",
        data,
        f"--out={run}",
        "--epochs=1",
        "--lr=1e-3",
        "--baselines=none",
    ]
    assert main(["--quiet", *given]) == 0
    capsys.readouterr()
    (found,) = told(capsys, str(run), "--task=sst2", data)
    assert found["split"] == "dev" and found["counts"] == {"examples": 24} and "shots" not in found
    assert found["scores"] == evaluate_run(run, task="sst2", data=tmp_path).scores
    assert told(capsys, str(run), data)[0]["scores"] == found["scores"], "what it has learnt, where nothing is named"
    (few,) = told(capsys, str(run), "--task=sst2", data, "--limit=6")
    assert few["counts"] == {"examples": 6}
    rows = [row.rsplit("\t", 1) for row in (folder / "dev.tsv").read_text().splitlines()[1:]]
    table = tmp_path / "mine.csv"
    names = TASKS.get("sst2").labels
    table.write_text("id,body,label\n" + "".join(f"{at},{text},{names[int(y)]}\n" for at, (text, y) in enumerate(rows)))
    mine = [str(run), f"--test={table}"]
    (own,) = told(capsys, *mine, "--column=text=body")
    assert own["scores"] == found["scores"] and (own["task"], own["split"]) == ("mine.csv", "test")
    assert "--column text=NAME" in refused(capsys, 3, *mine)
    assert "--train" in refused(capsys, 2, *mine, f"--train={table}")
    table.write_text("text,label\na film,positive\na film,postive\n")
    error = refused(capsys, 3, *mine)
    assert "mine.csv:3: " in error and "'postive'" in error and "'positive'" in error
    (prompted,) = told(capsys, str(base), "--task=sst2", data, "--shots=2")
    assert prompted["shots"] == 2 and prompted["counts"]["examples"] == 24


@pytest.mark.parametrize(
    ("name", "headline"), [("stsb", "spearman"), pytest.param("cranfield", "ndcg", marks=pytest.mark.slow)]
)
def test_similarity_and_retrieval_go_by_vectors(
    capsys: Capture, runs: dict[str, str], shared_data: Path, name: str, headline: str
) -> None:
    if not TASKS.get(name).find_available(shared_data):
        pytest.skip(f"{name} is not there")
    (found,) = told(capsys, runs["bert-tiny"], f"--task={name}", f"--data={shared_data}")
    told_first, value = next(iter(found["scores"].items()))
    assert told_first == headline and -1 <= value <= 1
    assert ("bm25" in found["scores"]) == (name == "cranfield")


def test_vectors_are_compared_in_files_of_ones_own(capsys: Capture, runs: dict[str, str], tmp_path: Path) -> None:
    scored, triplets = tmp_path / "scored.tsv", tmp_path / "triplets.jsonl"
    scored.write_text(
        "sentence1\tsentence2\tscore\nthe sea\tthe sea\t5\nthe sea\ta house\t1\nthe sea\tthe old sea\t3\n"
    )
    rows = [{"anchor": "the sea", "positive": near, "negative": "a house"} for near in ("the sea", "a house")]
    triplets.write_text("\n".join(map(json.dumps, rows)))
    run = runs["bert-tiny"]
    (pairs,) = told(capsys, run, "--task=scored_pairs", f"--data={scored}")
    poolings = [
        told(capsys, run, "--task=scored_pairs", f"--data={scored}", f"--pooling={name}")[0]["scores"]["pearson"]
        for name in ("mean", "cls")
    ]
    assert poolings[0] != poolings[1]
    assert pairs["counts"]["pairs"] == 3 and next(iter(pairs["scores"])) == "spearman"
    same = pt.embed(run, ["the sea", "a house", "the old sea"], normalise=True)
    assert pairs["scores"]["pearson"] == pytest.approx(np.corrcoef(same @ same[0], [5, 1, 3])[0, 1], abs=1e-4)
    (first,) = told(capsys, run, "--task=scored_pairs", f"--data={scored}", "--pooling=static")
    same = pt.embed(run, ["the sea", "a house", "the old sea"], normalise=True, pooling="static")
    assert first["scores"]["pearson"] == pytest.approx(np.corrcoef(same @ same[0], [5, 1, 3])[0, 1], abs=1e-4)
    (three,) = told(capsys, run, "--task=triplets", f"--data={triplets}")
    assert three["scores"]["accuracy"] == 0.5 and three["counts"] == {"triplets": 2, "ties": 1}
    assert "sentence1, sentence2" in refused(capsys, 3, run, "--task=scored_pairs", f"--data={triplets}")
    assert "anchor, positive" in refused(capsys, 3, run, "--task=triplets", f"--data={scored}")


def test_what_is_wrong_is_one_line(capsys: Capture, runs: dict[str, str], pairs: str, tmp_path: Path) -> None:
    run = runs["gpt2-small"]
    assert "--task" in refused(capsys, 2, run)
    assert "--data FILE" in refused(capsys, 2, run, "--task=minimal_pairs")
    assert "nowhere.txt" in refused(capsys, 3, run, "--task=minimal_pairs", "--data=nowhere.txt")
    assert pairs in refused(capsys, 2, run, "--task=copa", f"--data={pairs}")
    assert "--shots 'two'" in refused(capsys, 2, run, "--task=copa", "--shots=two")
    assert "--test" in refused(capsys, 2, run, "--train=a.csv")
    assert "text=NAME" in refused(capsys, 2, run, f"--test={pairs}", "--column=b=c")
    assert "'conll2003'" in refused(capsys, 2, run, "--task=conll2003")
    assert refused(capsys, 4, str(tmp_path), "--task=minimal_pairs", f"--data={pairs}")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert str(empty) in refused(capsys, 3, run, "--task=minimal_pairs", f"--data={empty}")
    assert refused(capsys, 3, run, f"--text={empty}")


def test_help_has_an_example(capsys: Capture) -> None:
    assert main(["evaluate", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "pretune evaluate runs/" in told
