"""Reports: the sections that have data, nothing that breaks the page, the same bytes."""

import html.parser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from pretune.core.errors import CheckpointError, DataError, PretuneError, UsageError
from pretune.core.log import format_kilograms
from pretune.metrics import GLUE, SUITES
from pretune.reports import facts, join, note, notes
from pretune.reports.charts import MAX_POINTS, Series, average_points, draw_line_chart, select_ticks
from pretune.reports.load import RunRecord, load_directory
from pretune.reports.page import report
from pretune.reports.scores import compute_half_interval
from tests.reports import report_files as files

SECTIONS = ("scores", "runs", "learning", "errors", "samples", "cost", "data", "reproduce")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "<script>alert(1)</script>\x1b[31m\"'&\u202e"


def made(runs: list[Path], out: Path) -> str:
    return report(runs, out / "report.html").read_text()


def markup(page: str, name: str) -> str:
    """The HTML of a section."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    assert found is not None
    return found[1]


def section(page: str, name: str) -> str:
    """The text of a section, tags taken out."""
    return html.unescape(re.sub(r"<[^>]+>", " ", markup(page, name))).replace("\xa0", " ")


def elements(page: str, name: str, start: str, tag: str) -> list[str]:
    """The texts of all elements of a section that begin with such a tag."""
    found = re.findall(rf"{start}(.*?)</{tag}>", markup(page, name), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", one)) for one in found]


def rows(page: str, name: str) -> list[str]:
    return elements(page, name, '<th scope="row">', "th")


def claims(page: str) -> list[str]:
    """Sentences that compare the scores."""
    return elements(page, "scores", "<p>", "p")


def headings(page: str) -> list[str]:
    return elements(page, "scores", "<h3>", "h3")


class Checker(html.parser.HTMLParser):
    """Whether every element that opens is closed in order, and which elements there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


class TestSections:
    """Sections that have data are shown."""

    def test_all_of_them(self, tmp_path: Path) -> None:
        page = made([files.pretrained(tmp_path / "books"), files.tuned(tmp_path / "films")], tmp_path)
        assert [name for name in SECTIONS if f'<section id="{name}">' in page] == [*SECTIONS]
        scores = section(page, "scores")
        (claim,) = claims(page)
        assert claim.startswith("films") and all(part in claim for part in ("svm", "0.1000", "p = 0.01"))
        assert "0.8800 to 0.9200 (2 seeds, std 0.0100)" in scores and "bilstm (not asked for)" in scores
        ran = section(page, "runs")
        assert "somefamily" in ran and all(part in ran for part in ("64", "2 layers", "4 heads", "500", "32", "128"))
        assert "masked, rate 0.15" in ran and "54,321" in ran and "lora, 500 of 1,000 parameters" in ran
        assert "16 examples" in ran and "step 10" in ran
        assert markup(page, "learning").count("<figure>") == 4 and "accuracy" in section(page, "learning")
        wrong = section(page, "errors")
        assert "4 of 6" in wrong and "a quiet joy 0" in wrong and "90%" in wrong
        assert "cat (not dog)" in section(page, "samples")
        cost = section(page, "cost")
        assert rows(page, "cost")[:2] == ["books", "films"] and "Strubell et al., 2019" in cost and "1.6 m" in cost
        assert "books" in section(page, "data") and "f00d" in section(page, "data")
        assert "en 99.0%" in section(page, "data") and "1.0%" in section(page, "data") and "es 0.0%" not in page
        assert f"pretune pretrain --config {tmp_path / 'books' / 'run.json'}" in section(page, "reproduce")
        assert "pretune prepare books --out data" in section(page, "reproduce")

    def test_commands_that_repeat_it_can_be_typed(self, tmp_path: Path) -> None:
        """The card says DATA for where it lies; the page knows the place, and quotes names whole."""
        run = files.pretrained(tmp_path / "my runs" / "böoks")
        data = tmp_path / "my runs" / "data"
        command = "pretune prepare 'my texts' --tokenizer DATA/tokenizer --out DATA --holdout 0.1"
        files.change(data / "card.json", command=command)
        out = tmp_path / "my page.html"
        for tokenizer in (data / "tokenizer", run):  # that of the run, where it has one
            report([run], out)
            lines = elements(out.read_text(), "reproduce", "<pre><code>", "code")[0].splitlines()
            prepare, pretrain, again = map(shlex.split, lines)
            texts = ["pretune", "prepare", "my texts"]
            assert prepare == [*texts, "--tokenizer", str(tokenizer), "--out", str(data), "--holdout", "0.1"]
            assert pretrain[-2:] == ["--out", f"{run}-again"] and "'-again" not in out.read_text()
            assert again == ["pretune", "report", str(run), "--out", str(out)]
            (run / "tokenizer.json").write_text("{}")

    def test_sections_without_data_are_left_out(self, tmp_path: Path) -> None:
        run = files.pretrained(tmp_path / "books", finished=False, samples=False, card=False)
        page = made([run], tmp_path)
        assert re.findall(r'<section id="(\w+)">', page) == ["runs", "learning", "data", "reproduce"]
        assert re.findall(r'<a href="#(\w+)">', page) == ["runs", "learning", "data", "reproduce"]
        assert "card.json" in section(page, "data") and "cost.json" in section(page, "runs")
        (run / "metrics.jsonl").unlink()
        assert '<section id="learning">' not in made([run], tmp_path)

    def test_predictions_without_answers(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "films")
        files.lines(run / "predictions.jsonl", [{"split": "test", "id": "0", "label": "bad"}])
        assert '<section id="errors">' not in made([run], tmp_path)
        (run / "predictions.jsonl").unlink()
        assert '<section id="errors">' not in made([run], tmp_path)

    def test_fine_tuning_at_work(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "films")
        (run / "scores.json").unlink()
        (run / "cost.json").unlink()
        page = made([run], tmp_path)
        assert '<section id="scores">' not in page
        assert "lora" in section(page, "runs") and "cost.json" in section(page, "runs")

    def test_settings_that_are_left_to_the_run(self, tmp_path: Path) -> None:
        """A fine-tuned run has no longest sequence in its settings unless one was given."""
        run = files.tuned(tmp_path / "films")
        files.change(run / "run.json", data={"max_length": None})
        assert '<section id="scores">' in made([run], tmp_path)

    def test_columns_without_a_value_are_left_out(self, tmp_path: Path) -> None:
        without, full = (markup(made([files.tuned(tmp_path / "films", **more)], tmp_path), "scores")
                         for more in ({"baselines": []}, {}))  # fmt: skip
        assert without.count('scope="col"') == full.count('scope="col"') - 2

    def test_long_notes_are_folded(self, tmp_path: Path) -> None:
        short, long = (made([files.tuned(tmp_path / "films", notes=["x" * size])], tmp_path) for size in (20, 2000))
        for page, size in ((short, 20), (long, 2000)):
            folded = re.findall(r"<details>.*?</details>", page)
            assert any("x" * size in one for one in folded)  # with what is said of intervals it is long anyway
        assert join([notes("short")]) == note("short")

    def test_one_is_not_plural(self, tmp_path: Path) -> None:
        result = {"split": "test", "examples": 1, "score": 1.0, "std": None, "low": None, "high": None, "seeds": [0]}
        page = made([files.tuned(tmp_path / "films", result={**result, "each": [1.0]})], tmp_path)
        assert "1 example " in page and "1 examples" not in page

    def test_the_loss_is_that_of_the_model_that_is_kept(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "films")
        (run / "metrics.jsonl").unlink()
        for name, seed in (("a", 3), ("b", 0)):  # the second is the one that scores.json names
            files.write(run / "trials" / name / "trial.json", {"lr": 1e-3, "seed": seed, "labels": 40})
            files.lines(run / "trials" / name / "metrics.jsonl", [{"step": 70 + seed, "loss": 0.5}])
        assert [line["step"] for one in load_directory(run) if isinstance(one, RunRecord) for line in one.metrics] == [
            70
        ]

    def test_pretraining_alone_begins_with_what_was_run(self, tmp_path: Path) -> None:
        page = made([files.pretrained(tmp_path / "books")], tmp_path)
        assert re.findall(r'<section id="(\w+)">', page)[0] == "runs"


class TestScores:
    """Numbers beside each other."""

    def test_several_runs_in_one_table(self, tmp_path: Path) -> None:
        """Sorted, baselines once, one verdict: a run that loses to the baseline does not make it the one to use."""
        weak, strong = files.tuned(tmp_path / "b", score=0.7, p=0.97), files.tuned(tmp_path / "a")
        middle = files.tuned(tmp_path / "c", score=0.85)
        page = made([weak, strong, middle], tmp_path)
        scores = section(page, "scores")
        assert len(headings(page)) == 1 and all(
            part in headings(page)[0] for part in ("films", "accuracy", "6", "test")
        )
        assert [row.partition(" ")[0] for row in rows(page, "scores")] == ["a", "c", "svm", "b"]
        assert '<span class="best">0.9000</span>' in page and page.count('class="best"') == 1
        assert [claim.split()[0] for claim in claims(page) if "svm" in claim] == ["a"]
        assert "+0.1000 (+0.0500 to +0.1500)" in scores

    def test_a_baseline_that_is_the_best(self, tmp_path: Path) -> None:
        runs = [files.tuned(tmp_path / name, score=score, p=1.0) for name, score in (("b", 0.6), ("a", 0.7))]
        page = made(runs, tmp_path)
        (claim,) = (claim for claim in claims(page) if "svm" in claim)
        assert claim.startswith("svm") and "a" in claim.split() and "0.1000" in claim
        assert '<span class="best">0.8000</span>' in page and page.count('class="best"') == 1

    def test_the_best_baseline_of_another_run(self, tmp_path: Path) -> None:
        """It was not compared with the best run: no claim beyond the scores."""
        runs = [files.tuned(tmp_path / "a", baselines=[]), files.tuned(tmp_path / "b", score=0.7, p=0.97)]
        (claim,) = (claim for claim in claims(made(runs, tmp_path)) if "svm" in claim)
        assert claim.startswith("a ") and "0.1000" in claim and "p = " not in claim

    def test_other_examples_are_another_test_set(self, tmp_path: Path) -> None:
        runs = [files.tuned(tmp_path / "a"), files.tuned(tmp_path / "b", score=0.7, p=0.97)]
        files.lines(runs[1] / "predictions.jsonl", [files.said(number, right=True) for number in range(3, 9)])
        assert len(headings(made(runs, tmp_path))) == 2

    def test_what_cannot_be_told_apart(self, tmp_path: Path) -> None:
        page = made([files.tuned(tmp_path / "a", score=0.81, p=0.4)], tmp_path)
        (claim,) = claims(page)
        assert all(part in claim for part in ("a ", "svm", "p = 0.4")) and "0.0100" not in claim

    def test_different_baselines_of_a_name(self, tmp_path: Path) -> None:
        runs = [files.tuned(tmp_path / "a"), files.tuned(tmp_path / "b", baseline=0.75)]
        scores = section(made(runs, tmp_path), "scores")
        assert "svm, a" in scores and "svm, b" in scores

    def test_tasks_have_tables_of_their_own(self, tmp_path: Path) -> None:
        page = made([files.tuned(tmp_path / "a"), files.tuned(tmp_path / "b", task="news")], tmp_path)
        assert [heading.partition(":")[0] for heading in headings(page)] == ["films", "news"]

    def test_tables_of_ones_own_have_the_name_of_the_file_that_judges(self, tmp_path: Path) -> None:
        def own(name: str, train: str, test: str | None) -> Path:
            run = files.tuned(tmp_path / name, task="own")
            files.change(run / "run.json", task={"name": None, "train": train, "test": test})
            return run

        few, many = own("few", "few.csv", "in/test.csv"), own("many", "many.csv", "in/test.csv")
        page = made([few, many, own("news", "in/news.csv", None)], tmp_path)
        assert [heading.partition(":")[0] for heading in headings(page)] == ["test.csv", "news.csv"]
        assert any("few" in claim and "many" in claim for claim in claims(page))
        assert all(file in section(page, "runs") for file in ("few.csv", "many.csv"))

    def test_a_curve(self, tmp_path: Path) -> None:
        common = {"std": 0.1, "baselines": {"svm": 0.5}}
        points = [
            {**common, "labels": n, "score": s, "low": s - 0.1, "high": s + 0.1, "each": [s, s]}
            for n, s in ((50, 0.6), (200, 0.7))
        ]
        found = section(made([files.tuned(tmp_path / "a", curve=points)], tmp_path), "labels")
        assert "accuracy" in found and "svm" in found

    @pytest.mark.parametrize(
        ("kind", "lines", "words"),
        [
            ("regression", [{"gold": 1.0, "score": 3.5}, {"gold": 4.0, "score": 4.1}], ["2 examples", "3.5"]),
            (
                "tagging",
                [{"gold": ["A", "B"], "tags": ["A", "A"], "words": ["x", "y"]}],
                ["1 of 2 tags", "y: A"],
            ),
            ("generation", [{"gold": "one", "text": "two"}, {"gold": "b", "text": "B"}], ["1 of 2", "two"]),
            ("span", [{"gold": ["one", "1"], "text": "1"}, {"gold": [], "text": "x"}], ["1 of 2", "x"]),
        ],
    )
    def test_mistakes_of_every_kind(
        self, kind: str, lines: list[dict[str, object]], words: list[str], tmp_path: Path
    ) -> None:
        run = files.tuned(tmp_path / "a", kind=kind)
        files.lines(run / "predictions.jsonl", [{"split": "test", "id": str(n), **one} for n, one in enumerate(lines)])
        text = " ".join(section(made([run], tmp_path), "errors").split())
        assert all(word in text for word in words), text

    def test_runs_of_one_name_have_their_own_errors(self, tmp_path: Path) -> None:
        page = made([files.tuned(tmp_path / "a" / "run"), files.tuned(tmp_path / "b" / "run", task="news")], tmp_path)
        assert elements(page, "errors", "<h3>", "h3") == ["run", "run"]

    def test_every_example_of_a_scatter_plot_is_drawn(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "a", kind="regression")
        lines = [{"split": "test", "id": str(n), "gold": n / 9, "score": n % 7} for n in range(300)]
        files.lines(run / "predictions.jsonl", lines)
        assert markup(made([run], tmp_path), "errors").count("<use ") >= 300

    def test_many_classes_are_a_list(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "a")
        lines = [{"split": "test", "id": str(n), "label": f"l{n}", "gold": f"l{n + 1}"} for n in range(20)]
        files.lines(run / "predictions.jsonl", lines)
        page = made([run], tmp_path)
        assert len(rows(page, "errors")) == 12 and 'class="confusion"' not in page


class TestSuites:
    """Averages over separate runs."""

    def runs(self, tmp_path: Path, tasks: Iterable[str], method: str = "lora", **changes: object) -> list[Path]:
        made: list[Path] = []
        for number, task in enumerate(tasks):
            run = files.tuned(tmp_path / f"{method}-{task}", task=task, score=0.5 + number / 100, **changes)
            files.change(run / "run.json", method={"kind": method})
            made.append(run)
        return made

    def test_the_average_of_nine_runs(self, tmp_path: Path) -> None:
        page = made(self.runs(tmp_path, GLUE), tmp_path)
        assert (
            headings(page)[-1].startswith("GLUE")
            and "9" in headings(page)[-1]
            and "books, lora" in rows(page, "scores")
        )
        assert f"{0.5 + sum(range(9)) / 900:.4f}" in section(page, "scores")

    def test_years_of_similarity(self, tmp_path: Path) -> None:
        page = made(self.runs(tmp_path, SUITES["sts12-16"], metric="spearman"), tmp_path)
        assert "5 tasks" in headings(page)[-1] and "0.5200" in section(page, "scores")

    def test_missing_tasks_are_named(self, tmp_path: Path) -> None:
        page = made(self.runs(tmp_path, GLUE[:-1]), tmp_path)
        notes = elements(page, "scores", '<p class="note">', "p")
        assert not any("GLUE" in heading for heading in headings(page))
        assert any("GLUE" in line and "wnli" in line and "mnli" not in line for line in notes)
        few = section(made(self.runs(tmp_path / "few", GLUE[:2]), tmp_path), "scores")
        assert "GLUE" not in few

    def test_methods_are_not_mixed(self, tmp_path: Path) -> None:
        runs = [*self.runs(tmp_path, GLUE[:5]), *self.runs(tmp_path, GLUE[5:], "full")]
        assert not any("GLUE" in heading for heading in headings(made(runs, tmp_path)))


class TestResults:
    """Folders with results.json."""

    def test_a_table_and_a_chart(self, tmp_path: Path) -> None:
        files.pretrained(tmp_path / "all" / "books")
        more = {"title": "What it bought", "story": ["It pays."], "runs": ["books"], "command": "pretune quickstart"}
        stages = [{"name": "pre-train", "seconds": 61, "about": "words are hidden", "notes": ["some were left out"]}]
        folder = files.results(tmp_path / "all", metric="accuracy", examples=1000, stages=stages, **more)
        page = made([folder], tmp_path)
        assert "<h1>What it bought</h1>" in page and "It pays." in page
        assert "0.850 ± 0.025" in section(page, "scores") and "1,000 labels" in section(page, "scores")
        assert "accuracy" in section(page, "labels")
        assert "words are hidden" in section(page, "runs") and "somefamily" in section(page, "runs")
        assert "some were left out" in section(page, "runs")
        assert rows(page, "cost")[0] == "books"
        assert "pretune quickstart" in section(page, "reproduce")

    def test_runs_that_are_not_shown_are_in_the_cost(self, tmp_path: Path) -> None:
        shown = files.tuned(tmp_path / "all/full")
        folder = files.results(tmp_path / "all", runs=["full"])
        before = made([folder], tmp_path)
        for name in ("tuned/a", "tuned/b"):
            files.tuned(folder / name)
        files.write(folder / "tuned/c/cost.json", {})  # of no run
        page = made([folder], tmp_path)
        one = json.loads((shown / "cost.json").read_text())
        assert [row for row in rows(page, "cost") if row.startswith("2 ")] and len(rows(page, "cost")) >= 3
        assert (
            f"<b>{format_kilograms(one['co2e_kg'])}</b>" in before
            and f"<b>{format_kilograms(3 * one['co2e_kg'])}</b>" in page
        )
        page = made([folder, folder / "tuned/a"], tmp_path)
        assert [
            row for row in rows(page, "cost") if row.startswith("1 ")
        ] and f"<b>{format_kilograms(3 * one['co2e_kg'])}</b>" in page

    def test_the_lead_over_the_best_baseline(self, tmp_path: Path) -> None:
        """Not over random weights, which may be those of a smaller model."""
        groups = {"r": (0.5, "random"), "s": (0.6, "baseline"), "b": (0.7, "pretrained"), "c": (0.75, "pretrained")}
        rows = [
            {"method": name, "labels": 10, "mean": mean, "seeds": 1, "group": group}
            for name, (mean, group) in groups.items()
        ]
        assert "<b>+0.150</b>" in made([files.results(tmp_path / "all", rows)], tmp_path)
        without = [row for row in rows if row["group"] != "baseline"]
        assert "<b>+" not in made([files.results(tmp_path / "all", without)], tmp_path)

    def test_what_is_more_than_chance_is_marked(self, tmp_path: Path) -> None:
        means = {"counts": 0.70, "a": 0.80, "b": 0.72, "c": 0.60}
        groups = {"counts": "baseline", "a": "pretrained", "b": "pretrained", "c": "random"}
        rows = [{"method": m, "labels": 10, "mean": mean, "seeds": 1, "group": groups[m]} for m, mean in means.items()]
        shown = section(
            made([files.results(tmp_path / "a", rows, metric="accuracy", examples=1000)], tmp_path), "scores"
        )
        assert "0.800 ▲" in shown and "0.600 ▼" in shown and "1,000 examples" in shown
        assert not {"0.720 ▲", "0.720 ▼", "0.700 ▲"} & {shown[at : at + 7] for at in range(len(shown))}
        for more in ({"metric": "f1", "examples": 1000}, {"metric": "accuracy"}):  # no shares, or of nobody knows what
            assert "▲" not in made([files.results(tmp_path / "b", rows, **more)], tmp_path)
        few = made([files.results(tmp_path / "c", rows, metric="accuracy", examples=20)], tmp_path)
        assert "0.800 ▲" not in few and "0.800" in few

    def test_a_bare_list(self, tmp_path: Path) -> None:
        files.write(tmp_path / "a" / "results.json", [{"method": "full", "labels": 10, "mean": 0.5, "seeds": 1}])
        assert "0.500" in section(made([tmp_path / "a"], tmp_path), "scores")

    def test_intervals(self) -> None:
        assert compute_half_interval({"mean": 0.5, "seeds": 1, "std": 0.1}) is None
        assert compute_half_interval({"low": 0.4, "high": 0.6}) == pytest.approx(0.1)
        clipped = {"each": [0.95, 0.99], "low": 0.716, "high": 1.0}
        assert compute_half_interval(clipped) == pytest.approx(12.706 * 0.02, rel=1e-3)
        assert compute_half_interval({"each": [0.90, 0.91, 0.92]}) == pytest.approx(0.0248, abs=1e-4)
        assert compute_half_interval({"std": 0.01, "seeds": [0, 1, 2]}) == pytest.approx(0.0248, abs=1e-4)

    @pytest.mark.parametrize(
        ("rows", "fault"),
        [
            ([], "results.json"),
            ([{"labels": 1, "mean": 1}], "rows.0.method"),
            ([{"method": "a", "labels": 1, "mean": "x"}], "'rows.0.mean' is 'x'"),
            ([{"method": "a", "labels": 1, "mean": 1, "seeds": "x"}], "'rows.0.seeds' is 'x'"),
        ],
    )
    def test_rows_that_are_wrong(self, rows: list[dict[str, object]], fault: str, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=re.escape(fault)):
            made([files.results(tmp_path / "a", rows)], tmp_path)

    def test_runs_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"gone/run.json"):
            made([files.results(tmp_path / "a", runs=["gone"])], tmp_path)
        with pytest.raises(DataError, match="'runs' is 'gone'"):
            made([files.results(tmp_path / "a", runs="gone")], tmp_path)


class TestSafety:
    """What data say is text and nothing else."""

    def test_everything_is_escaped(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "films", task=NASTY, notes=[NASTY], not_run={NASTY: NASTY}, metric=NASTY)
        files.lines(run / "predictions.jsonl", [{**files.said(0, right=False, text=NASTY), "label": NASTY}])
        books = files.pretrained(tmp_path / "books")
        files.lines(books / "metrics.jsonl", [{"step": 1, "sample": f"{NASTY} → {NASTY}"}])
        row = {"method": NASTY, "labels": 5, "mean": 0.5, "seeds": 1, "about": NASTY}
        told = {"title": NASTY, "story": NASTY, "command": NASTY, "task": NASTY, "metric": NASTY}
        page = made([files.results(tmp_path / "all", [row], **told), run, books], tmp_path)
        assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
        assert page.count("&lt;script&gt;") > 10
        assert "script" not in checked(page).seen

    def test_nothing_is_fetched(self, tmp_path: Path) -> None:
        page = made([files.pretrained(tmp_path / "books"), files.tuned(tmp_path / "films")], tmp_path)
        found = checked(page)
        assert all(link.startswith("#") for link in found.links) and not {"script", "link", "img"} & set(found.seen)
        assert "http" not in page and "url(" not in page and "@import" not in page

    def test_the_same_input_gives_the_same_bytes(self, tmp_path: Path) -> None:
        runs = [files.pretrained(tmp_path / "books"), files.tuned(tmp_path / "films")]
        assert made(runs, tmp_path) == made(runs, tmp_path)

    def test_what_stands_between_backticks_is_code(self, tmp_path: Path) -> None:
        page = made([files.tuned(tmp_path / "films", notes=["`a < b`", "one ` alone"])], tmp_path)
        assert "<code>a &lt; b</code>" in page and "one ` alone" in page

    def test_a_run_given_twice_is_shown_once(self, tmp_path: Path) -> None:
        run = files.pretrained(tmp_path / "books")
        assert rows(made([run, run], tmp_path), "cost") == rows(made([run], tmp_path), "cost")


class TestFaults:
    """One line that says what is wrong."""

    @pytest.mark.parametrize(
        ("name", "content", "kind", "fault"),
        [
            (None, "", UsageError, "run: "),
            ("other.txt", "", UsageError, "run.json .*results.json"),
            ("run.json", "{", CheckpointError, "run.json"),
            ("results.json", "{", DataError, "results.json"),
        ],
    )
    def test_what_is_no_run(
        self, name: str | None, content: str, kind: type[PretuneError], fault: str, tmp_path: Path
    ) -> None:
        if name is not None:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / name).write_text(content)
        with pytest.raises(kind, match=fault) as told:
            made([tmp_path / "run"], tmp_path)
        assert "\n" not in str(told.value) and not (tmp_path / "report.html").exists()

    def test_scores_and_predictions_that_are_damaged(self, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "films")
        (run / "predictions.jsonl").write_text('{"split": "test"}\nhalf')
        with pytest.raises(CheckpointError, match=r"predictions.jsonl:2: "):
            made([run], tmp_path)
        scores = json.loads((run / "scores.json").read_text())
        del scores["baselines"]
        files.write(run / "scores.json", scores)
        with pytest.raises(CheckpointError, match=r"scores.json: .*baselines"):
            made([run], tmp_path)

    @pytest.mark.parametrize(
        ("name", "path"), [("run.json", "train"), ("cost.json", "flops"), ("scores.json", "result")]
    )
    def test_files_that_lack_something(self, name: str, path: str, tmp_path: Path) -> None:
        run = files.tuned(tmp_path / "films")
        tree = json.loads((run / name).read_text())
        del tree[path]
        files.write(run / name, tree)
        with pytest.raises(CheckpointError, match=rf"{name}: .*{path}"):
            made([run], tmp_path)

    def test_no_runs_and_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="directory"):
            report([], tmp_path / "a.html")
        with pytest.raises(UsageError, match="--out"):
            report([files.pretrained(tmp_path / "books")], tmp_path)


class TestCharts:
    """Lines and numbers of axes."""

    def test_long_lines_are_thinned(self) -> None:
        xs, ys = average_points([(float(n), 1.0) for n in range(10_000)])
        assert len(xs) == len(ys) == MAX_POINTS and {*ys} == {1.0} and xs[-1] == 9999
        assert average_points([(1.0, 2.0), (3.0, 5.0)]) == ([1.0, 3.0], [2.0, 5.0])

    @pytest.mark.parametrize("values", [(0.0, 0.0), (1e-9, 2e-9), (-5.0, 1e6), (0.5, 0.5)])
    def test_any_range_has_an_axis(self, values: tuple[float, float]) -> None:
        chart = draw_line_chart([Series("a", ((1.0, values[0]), (2.0, values[1])))], x="step", y="loss")
        checked(chart)
        assert "nan" not in chart and "inf" not in chart

    def test_lines_have_the_colours_of_the_theme(self) -> None:
        chart = draw_line_chart([Series(str(n), ((1, n), (2, n)), colour=n) for n in range(10)], x="step", y="loss")
        assert {*re.findall(r"stroke: var\((--c\d)\)", chart)} == {f"--c{n}" for n in range(8)}
        assert "var(--soft)" in chart and "var(--rule)" in chart and not re.search(r"#(?!m)[0-9a-f]{6}", chart)

    def test_many_intervals_are_whiskers_side_by_side(self) -> None:
        series = [Series(str(n), ((1, 0.5), (2, 0.6)), ((1, 0.4, 0.6), (2, 0.5, 0.7)), n) for n in range(3)]
        few, many = (draw_line_chart(series[:count], x="labels", y="score") for count in (2, 3))
        assert few.count("opacity: 0.16") == 2 and "opacity: 0.55" not in few
        assert many.count("opacity: 0.55") == 6 and "opacity: 0.16" not in many
        starts = re.findall(r'd="M ([\d.]+) [\d.]+ ?L[^"]*" style="[^"]*opacity: 0.55', many)
        assert len({*starts}) == 6

    def test_steps_are_whole(self) -> None:
        chart = draw_line_chart([Series("a", ((0, 1.0), (2, 5.0)))], x="step", y="loss")
        assert [text for text in re.findall(r"<text[^>]*>([^<]+)<", chart) if text != "step"][:3] == ["0", "1", "2"]

    @pytest.mark.parametrize("name", ["$x$", "$x", r"$\frac$", "a_b^c", r"\alpha", "$_$ $^$"])
    def test_the_name_of_an_axis_is_no_mathematics(self, name: str) -> None:
        chart = draw_line_chart([Series("a", ((0, 1.0), (2, 5.0)))], x=name, y="loss")
        assert name in re.findall(r"<text[^>]*>([^<]+)<", chart)

    def test_labels_do_not_overlap(self) -> None:
        assert select_ticks([100, 110, 120, 1000, 1050]) == [100, 1000]
        chart = draw_line_chart([Series("a", ((100, 0.5), (110, 0.6), (1000, 0.5)))], x="x", y="score", log_x=True)
        numbers = re.findall(r"<text[^>]*>([^<]+)<", chart)
        assert "100" in numbers and "1k" in numbers and "110" not in numbers


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (apt install chromium)")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_in_a_browser(theme: str, width: int, tmp_path: Path) -> None:
    """Chromium draws it: in the theme that is asked for, with colours in its charts, no wider than a phone."""
    from matplotlib import image

    runs = [files.pretrained(tmp_path / "books"), files.tuned(tmp_path / "films")]
    page = report([files.results(tmp_path / "all"), *runs], tmp_path / "report.html")
    picture = tmp_path / "page.png"
    assert BROWSER is not None
    subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2600",
            f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}", f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    seen = image.imread(picture)[..., :3]
    assert seen.shape[1] == width
    corner, ink = seen[2, 2].mean(), seen.reshape(-1, 3).mean(1)
    assert corner > 0.95 if theme == "light" else corner < 0.15
    assert (abs(ink - corner) > 0.5).mean() > 0.005  # there is writing
    assert (seen.max(-1) - seen.min(-1) > 0.35).any()  # and there are colours: links, lines
    assert (abs(seen[:, -6:] - corner).max(axis=(1, 2)) > 0.3).sum() < 5  # nothing runs over the right edge


def test_a_curve_is_told_in_words() -> None:
    point = {"labels": 1200, "score": 0.8, "std": 0.01, "low": 0.7, "high": 0.9, "each": [0.79, 0.81]}
    curve = [{**point, "baselines": {"svm": 0.75}}, {**point, "std": None, "baselines": {}}]
    told = [*facts.build_notes({"notes": [], "not_run": {}, "forgetting": None, "curve": curve})]
    several, single = told
    assert single.endswith(": 0.8000") and "1,200" in single
    assert several == f"{single} (0.7000 to 0.9000 (2 seeds, std 0.0100); svm 0.7500)"
