"""The quick start: all of it at a tiny size, what its table has, and whether it tells the truth about it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pretune.cli import main
from pretune.core.errors import DataError, UsageError
from pretune.recipes.finetune.fine import FineTuned
from pretune.recipes.quickstart import texts as corpus
from pretune.recipes.quickstart.plan import Plan, plan_for
from pretune.recipes.quickstart.story import METHODS, Scores, story
from pretune.recipes.quickstart.texts import NAMES, Review, Texts
from pretune.recipes.quickstart.tuning import affordable, jobs
from pretune.recipes.quickstart.work import Quickstart, quickstart

Capture = pytest.CaptureFixture[str]
TINY = Plan(
    vocab=120, width=16, hidden=32, length=32, crop=32, batch=256,
    few=3, labels=(16, 32), seeds=2, test=40, dev=8, pool=64
)  # fmt: skip
SPENT = 3.0
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
    assert all(seeds[METHODS[name].name] == [0] for name in ("random", "lora", "gradual", "full"))


def test_what_is_on_disk_is_what_was_told_and_goes_on_from_there(made: Quickstart) -> None:
    assert json.loads((made.path / "results.json").read_text()) == made.results
    assert [stage["name"] for stage in made.results["stages"]] == [
        "read", "vectors", "pre-train", "baselines", "fine-tune", "other encoder",
    ]  # fmt: skip
    assert (made.path / "data" / "card.md").is_file()
    page = made.page.read_text()
    assert made.page.name == "report.html" and "TF-IDF + SVM" in page and "gradual unfreezing" in page
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
        monkeypatch.setattr("importlib.metadata.files", lambda name: [])
        return corpus.built_in()

    monkeypatch.setattr("pretune.recipes.quickstart.work.built_in", absent)
    assert main(["quickstart", f"--out={tmp_path / 'out'}"]) == 2
    assert "pip install 'pretune[" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_what_is_judged_on_is_in_nothing_else() -> None:
    given = [*reviews(), reviews()[0]]  # the first once more
    found = Texts.of(given, TINY)
    held = {text for text, _ in (*found.test, *found.dev)}
    assert len(found.test) == 40 and len(found.dev) == 8 and len(found.pool) == 64
    assert not held & {text for text, _ in found.pool} and not held & {*found.unlabelled}
    with pytest.raises(DataError, match="60 reviews are too few"):
        Texts.of(given[:60], TINY)


def test_plans_of_devices() -> None:
    assert plan_for("cpu").labels == (200, 1000) and plan_for("cpu").once == ("lora", "gradual")
    assert plan_for("cpu", full=True).labels == (200, 1000, 5000) and not plan_for("cpu", full=True).once
    assert plan_for("cuda").labels == (200, 1000, 5000) and plan_for("cuda").width > plan_for("cpu").width


def test_every_row_comes_once_before_any_is_repeated() -> None:
    found = [*jobs(plan_for("cpu"))]
    assert len(found) == 2 * 4 + 2 * 2 * 2
    assert {seed for _, _, seed in found[:8]} == {0} and {name for name, _, _ in found[8:]} == {"random", "full"}


def test_an_encoder_is_judged_on_as_many_reviews_as_its_time_allows() -> None:

    def encode(texts: Any) -> Any:
        return [len(texts)]

    assert affordable(encode, ["a"] * 500, 10, 1e6) == 500
    assert affordable(encode, ["a"] * 500, 10, 0.0) == -10


def told(full: float, random: float, svm: float, **more: float) -> str:
    scores = Scores()
    for name, score in {"full": full, "random": random, "svm": svm, **more}.items():
        scores.add(name, 1000, 0, score)
    return " ".join(story(scores.rows(), 1000))


def test_the_story_says_what_pre_training_was_worth() -> None:
    assert "pre-training was worth 10.0 points" in told(0.8, 0.7, 0.5)
    assert "worth nothing that 1,000 reviews could show" in told(0.71, 0.70, 0.5)
    assert "worth nothing" in told(0.6, 0.7, 0.5)


def test_the_story_says_when_the_simple_baseline_wins() -> None:
    assert "The simple baseline wins: TF-IDF + SVM is right on 85.0%" in told(0.8, 0.7, 0.85)
    assert "could be chance" not in told(0.8, 0.7, 0.85) and "could be chance" in told(0.84, 0.7, 0.85)
    assert "baseline wins" not in told(0.85, 0.7, 0.8)
    assert "ahead of the best simple baseline, TF-IDF + SVM (80.0%)" in told(0.85, 0.7, 0.8)
    assert "LoRA) on 84.0%" in told(0.8, 0.7, 0.85, lora=0.84)  # the best of ours stands beside the best of theirs
    assert "MiniLM, feature extraction: 90.0%" in told(0.85, 0.7, 0.8, other=0.9)
