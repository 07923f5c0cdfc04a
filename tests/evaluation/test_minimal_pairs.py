"""Minimal pairs and bias pairs: right, wrong and tied; sets; and every form of file."""

import bz2
import gzip
import itertools
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from pretune.core.errors import DataError, UsageError
from pretune.evaluation.minimal_pairs import (
    evaluate_bias_pairs,
    evaluate_minimal_pairs,
    read_bias_pairs,
    read_pair_folder,
    read_pairs,
)
from pretune.inference.scoring import ScoringConfig
from pretune.runs.evaluate import evaluate
from pretune.tasks import TASKS
from pretune.tasks.example import Example
from tests.inference.scorers import causal, ids, masked, scorer

SENTENCES = ["The sea was quiet.", "The sea were quiet.", "Nobody knew", "Knew nobody", "old", "house"]
PAIRS = [Example(text=one, pair=two) for one, two in itertools.pairwise(SENTENCES)]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_likelier_sentence_is_told_as_the_slow_way_tells_it(family: str) -> None:
    model = scorer(family)

    def slow(text: str) -> float:
        return sum(masked(model, text) if family == "bert" else causal(model, text, [model.tokenizer.special["bos"]]))

    better = [slow(pair.text) > slow(pair.pair or "") for pair in PAIRS]
    found = evaluate_minimal_pairs(model, PAIRS)
    assert found.scores == {"accuracy": pytest.approx(np.mean(better))}
    turned = [Example(text=pair.pair or "", pair=pair.text) for pair in PAIRS]
    assert evaluate_minimal_pairs(model, turned).scores["accuracy"] == pytest.approx(1 - np.mean(better))
    assert found.counts == {"pairs": 5, "ties": 0}


def test_scores_of_several_ways_are_added() -> None:
    model = scorer("bert")
    ways = ScoringConfig(rest=True), ScoringConfig(rest=False)

    def slow(text: str) -> float:
        return sum(masked(model, text)) + sum(masked(model, text, rest=False))

    better = [slow(pair.text) > slow(pair.pair or "") for pair in PAIRS]
    assert evaluate_minimal_pairs(model, PAIRS, *ways).scores["accuracy"] == pytest.approx(np.mean(better))
    tied = Example(text=SENTENCES[0], pair=SENTENCES[0])
    assert evaluate_minimal_pairs(model, [tied], *ways).counts["ties"] == 1


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "bart", "xlnet"])
def test_a_tie_is_wrong_and_counted(family: str) -> None:
    model = scorer(family)
    same = Example(text="The sea was quiet.", pair="The  sea was quiet." if family == "bert" else "The sea was quiet.")
    found = evaluate_minimal_pairs(model, [same, *PAIRS])
    assert found.counts["ties"] == 1
    alone = evaluate_minimal_pairs(model, PAIRS)
    assert found.scores["accuracy"] == pytest.approx(alone.scores["accuracy"] * 5 / 6)


def test_the_headline_is_the_mean_over_sets() -> None:
    model = scorer("gpt2")
    order = evaluate_minimal_pairs(model, [Example(text=SENTENCES[0], pair=SENTENCES[2])]).scores["accuracy"]
    good, bad = (SENTENCES[0], SENTENCES[2]) if order == 1 else (SENTENCES[2], SENTENCES[0])
    right, wrong = Example(text=good, pair=bad, group="a"), Example(text=bad, pair=good, group="a")
    other = Example(text=good, pair=bad, group="b")
    found = evaluate_minimal_pairs(model, [right, wrong, wrong, wrong, other])
    assert found.groups == {"a": 0.25, "b": 1.0}
    assert found.scores == {"accuracy": 0.625, "pair_accuracy": 0.4}
    assert found.counts["sets"] == 2


def test_bias_pairs_are_judged_by_what_they_share() -> None:
    model = scorer("bert")
    more, less = "The old house was quiet.", "The sea was quiet."
    logs = {text: masked(model, text, rest=False) for text in (more, less)}
    one, two = ids(model, more), ids(model, less)
    tail = len(ids(model, "was quiet."))
    assert one[-tail:] == two[-tail:] and one[0] == two[0]
    head = next(at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1])
    sums = [sum(logs[text][:head] + logs[text][-tail:]) for text in (more, less)]
    found = evaluate_bias_pairs(model, [Example(text=more, pair=less, group="age")])
    assert found.scores["stereotyped"] == float(sums[0] > sums[1])
    assert found.groups == {"age": found.scores["stereotyped"]}
    assert evaluate_bias_pairs(model, [Example(text=more, pair=more)]).counts["ties"] == 1


def test_lines_come_in_pairs(tmp_path: Path) -> None:
    file = tmp_path / "pairs.txt"
    file.write_text("a good one\na bad one\n\nthe cat is\nthe cat are\n")
    assert [(pair.text, pair.pair) for pair in read_pairs(file)] == [
        ("a good one", "a bad one"),
        ("the cat is", "the cat are"),
    ]
    assert [(pair.text, pair.pair) for pair in read_pairs(file, "bad-first")][1] == ("the cat are", "the cat is")
    packed = tmp_path / "pairs.jsonl.gz"
    rows = [
        {"sentence_good": "g", "sentence_bad": "b", "UID": "agreement"},
        {"sentence_good": "h", "sentence_bad": "c"},
    ]
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert [(pair.text, pair.pair, pair.group) for pair in read_pairs(packed)] == [
        ("g", "b", "agreement"),
        ("h", "c", None),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.tsv", 'sentence_good\tsentence_bad\nIt "is", so\tIt are, so\nb\tc\n'),
        ("p.csv", 'UID,sentence_bad,sentence_good\nu,"It are, so","It ""is"", so"\nu,c,b\n'),
        ("p.txt", 'sentence_good;sentence_bad\n"It ""is"", so";It are, so\nb;c\n'),
    ],
)
def test_tables_have_both_sentences_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    for file in (tmp_path / name, tmp_path / f"{name}.gz"):
        pairs = [(pair.text, pair.pair) for pair in read_pairs(file, "bad-first")]
        assert pairs == [('It "is", so', "It are, so"), ("b", "c")]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    pairs, skipped = read_pair_folder(tmp_path)
    assert len(pairs) == 4 and skipped == ["other.csv"]
    with pytest.raises(DataError, match="'sentence_good'"):
        read_pairs(tmp_path / "other.csv")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_an_error(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps([{"sentence_good": "a", "sentence_bad": "b"}] * 2, indent=indent))
    with pytest.raises(DataError, match="JSON lines"):
        read_pairs(file)
    file = tmp_path / "pairs.txt"
    file.write_text("[MASK] is old.\n[MASK] are old.\n")
    assert read_pairs(file)[0].text == "[MASK] is old."


def test_bias_files_are_tables(tmp_path: Path) -> None:
    file = tmp_path / "crows.csv"
    file.write_text(',sent_more,sent_less,bias_type\n0,"He, too",She,gender\n1,b,c,age\n')
    assert [(pair.text, pair.pair, pair.group) for pair in read_bias_pairs(file)] == [
        ("He, too", "She", "gender"),
        ("b", "c", "age"),
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "pairs.txt"),
        (" \n\n", "pairs.txt"),
        ("a\nb\nc\n", "pairs.txt:3: "),
        ('{"sentence_good": "a"}\n', ":1: .*'sentence_bad'"),
        ('{"sentence_good": "a", "sentence_bad": " "}\n', ":1, 'sentence_bad'"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "pairs.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=part) as error:
        read_pairs(file)
    assert "\n" not in str(error.value)


def test_bad_settings() -> None:
    with pytest.raises(DataError, match=r"nowhere.txt"):
        read_pairs(Path("nowhere.txt"))
    with pytest.raises(UsageError, match=r"'best'.*good-first"):
        read_pairs(Path(__file__), "best")
    with pytest.raises(DataError):
        evaluate_minimal_pairs(scorer("gpt2"), [])


@pytest.mark.slow
def test_blimp_comes_in_phenomena(shared_data: Path) -> None:
    task = TASKS.get("blimp")
    if not task.find_available(shared_data):
        pytest.skip("BLiMP is not there")
    examples = list(task.read("test", shared_data))
    some = examples[::1500]
    found = evaluate_minimal_pairs(scorer("gpt"), some)
    assert len(examples) == 67000 and len({pair.group for pair in examples}) == 67
    assert len({pair.facts["linguistics_term"] for pair in examples}) == 13
    assert set(found.groups) == {pair.facts["linguistics_term"] for pair in some} and len(found.groups) > 10
    assert all(0 <= value <= 1 for value in found.groups.values()) and len({*found.groups.values()}) > 1


class TestFolders:
    """A set in each file."""

    TWO = "The sea was quiet.\nThe sea were quiet.\n\nNobody knew\nKnew nobody\n"
    JSON = json.dumps({"sentence_good": "It is old.", "sentence_bad": "It are old.", "UID": "other"}) + "\n"

    def folder(self, where: Path) -> Path:
        (where / "agreement.txt").write_text(self.TWO)
        (where / "order.txt.bz2").write_bytes(bz2.compress(self.TWO.encode()))
        (where / "case.jsonl.gz").write_bytes(gzip.compress(self.JSON.encode()))
        (where / "tense.jsonl.xz").write_bytes(lzma.compress(self.JSON.encode()))
        for name, text in (("README", "Two lines\nof it\n"), ("README.md.gz", "x"), ("scores.jsonl", '{"a": 1}\n')):
            (where / name).write_text(text)
        (where / "empty.txt").touch()
        (where / ".hidden").write_text("odd\n")
        return where

    def test_sets_are_named_by_their_file(self, tmp_path: Path) -> None:
        pairs, skipped = read_pair_folder(self.folder(tmp_path), "bad-first")
        assert {*skipped} == {"README", "README.md.gz", "scores.jsonl", "empty.txt"}
        assert [pair.group for pair in pairs] == ["agreement", "agreement", "case", "order", "order", "tense"]
        assert (pairs[0].text, pairs[0].pair) == ("The sea were quiet.", "The sea was quiet.")
        (tmp_path / "case.txt").write_text(self.TWO)
        assert {"case.txt", "case.jsonl.gz"} <= {pair.group for pair in read_pair_folder(tmp_path)[0]}

    def test_zstd(self, tmp_path: Path) -> None:
        zstandard = pytest.importorskip("zstandard")
        (tmp_path / "a.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(self.TWO.encode()))
        assert [pair.group for pair in read_pair_folder(tmp_path)[0]] == ["a", "a"]

    def test_scores_by_set_and_their_mean(self, tmp_path: Path) -> None:
        (found,) = evaluate(scorer("gpt2"), "minimal_pairs", data=self.folder(tmp_path))
        assert [*found.groups] == ["agreement", "case", "order", "tense"] and found.counts["sets"] == 4
        assert found.scores["accuracy"] == pytest.approx(np.mean([*found.groups.values()]))
        assert any("README" in note for note in found.notes)

    def test_a_damaged_file_is_not_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "good.txt").write_text(self.TWO)
        (tmp_path / "odd.txt").write_text("one\ntwo\nthree\n")
        with pytest.raises(DataError, match=r"odd\.txt:3"):
            read_pair_folder(tmp_path)
        (tmp_path / "odd.txt").unlink()
        (tmp_path / "good.txt").rename(tmp_path / "LICENSE.txt")
        with pytest.raises(DataError, match=r"LICENSE\.txt"):
            read_pair_folder(tmp_path)
