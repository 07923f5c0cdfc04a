"""Published formats of which no data are at hand, on files of ten rows made by hand."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pretune.core.errors import DataError
from pretune.tasks import TASKS
from pretune.tasks.example import Example, Prediction
from pretune.tasks.types import score


def read(tmp_path: Path, name: str, split: str, path: str, text: str, encoding: str = "utf-8") -> list[Example]:
    file = tmp_path / name / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding=encoding)
    return list(TASKS.get(name).read(split, tmp_path))


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_wic(tmp_path: Path) -> None:
    row = {"word": "bank", "sentence1": "The bank was wet.", "sentence2": "My bank is shut.", "idx": 0, "label": False}
    rows = [
        {**row, "start1": 4, "end1": 8, "start2": 3, "end2": 7, "idx": index, "label": index % 2 == 1}
        for index in range(10)
    ]
    examples = read(tmp_path, "wic", "dev", "val.jsonl", jsonl(rows))
    assert [example.label for example in examples] == [0, 1] * 5
    assert (examples[0].text, examples[0].pair) == ("The *bank* was wet.", "My *bank* is shut.")
    template = TASKS.get("wic").template
    assert template is not None
    assert template.fill(examples[1]) == (
        "wic sentence1: The bank was wet. sentence2: My bank is shut. word: bank", "True",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"val\.jsonl:1: .*start1.*end1.*\(4, 99\)"):
        read(tmp_path, "wic", "dev", "val.jsonl", jsonl([{**rows[0], "end1": 99}]))


def test_wic_s_own_files(tmp_path: Path) -> None:
    """As published beside the paper: tabs, the place of the word in each sentence, labels in a file of their own."""
    for split, published_name in (("train", "train"), ("dev", "dev"), ("test", "test")):
        folder = tmp_path / "WiC_dataset" / published_name
        folder.mkdir(parents=True)
        lines = ['place\tN\t4-2\tDo you want to "place" it ?\tThe wrong place , he said .\n'] * 5
        (folder / f"{published_name}.data.txt").write_text("".join(lines))
        (folder / f"{published_name}.gold.txt").write_text("F\nT\nF\nT\nF\n")
        examples = list(TASKS.get("wic").read(split, tmp_path))
        assert [example.label for example in examples] == [0, 1, 0, 1, 0]
        assert (examples[0].text, examples[0].pair) == (
            'Do you want to *"place"* it ?',
            "The wrong *place* , he said .",
        )
        assert examples[0].facts["word"] == "place"
    gold = folder / "test.gold.txt"
    gold.write_text("F\nT\n")
    with pytest.raises(DataError, match=r"test\.gold\.txt: .*\b2\b.*\b5\b.*test\.data\.txt"):
        list(TASKS.get("wic").read("test", tmp_path))
    gold.write_text("F\nT\nF\nx\nF\n")
    with pytest.raises(DataError, match=r"test\.gold\.txt:4: .*'label'.*F, T.*'x'"):
        list(TASKS.get("wic").read("test", tmp_path))
    (folder / "test.data.txt").write_text("a\tN\t0-3\ta b\ta b\n" * 5)
    with pytest.raises(DataError, match=r"test\.data\.txt:1: .*'0-3'.*\b2\b"):
        list(TASKS.get("wic").read("test", tmp_path))
    gold.unlink()
    with pytest.raises(DataError, match=r"test\.gold\.txt: .*test\.data\.txt"):
        list(TASKS.get("wic").read("test", tmp_path))


def test_swag(tmp_path: Path) -> None:
    columns = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    columns += [f"ending{number}" for number in range(4)] + ["label"]
    file = tmp_path / "swag" / "val.csv"
    file.parent.mkdir()
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(columns)
        for index in range(10):
            writer.writerow(
                [index, "v", "1", "s", 'He says "no", and', "she", "gold", "a.", "b.", "c.", "d.", index % 4]
            )
    examples = list(TASKS.get("swag").read("dev", tmp_path))
    assert len(examples) == 10
    assert examples[3].text == 'He says "no", and'
    assert examples[3].choices == ("she a.", "she b.", "she c.", "she d.") and examples[3].label == 3


def test_trec_is_latin_1(tmp_path: Path) -> None:
    lines = ["NUM:date When was Beyonc\xe9 born ?", "ABBR:exp What is TREC ?"] * 5
    examples = read(tmp_path, "trec", "train", "train_5500.label", "\n".join(lines) + "\n", "latin-1")
    assert [example.label for example in examples] == [5, 0] * 5
    assert examples[0].text == "When was Beyoncé born ?" and examples[0].facts["fine"] == "date"
    with pytest.raises(DataError, match=r"train_5500\.label:1: .*'WHAT:x'"):
        read(tmp_path, "trec", "train", "train_5500.label", "WHAT:x y\n")


ENTAILED = ["NEUTRAL", "ENTAILMENT", "CONTRADICTION"]


def test_sick_in_three_parts(tmp_path: Path) -> None:
    """All twelve columns of the published file."""
    columns = ["pair_ID", "sentence_A", "sentence_B", "entailment_label", "relatedness_score", "entailment_AB"]
    columns += ["entailment_BA", "sentence_A_original", "sentence_B_original", "sentence_A_dataset"]
    rows = [[*columns, "sentence_B_dataset", "SemEval_set"]]
    for index, part in enumerate(["TRAIN"] * 6 + ["TRIAL"] + ["TEST"] * 3):
        pair = [str(index), 'A "dog" runs', "A dog is running", ENTAILED[index % 3], f"{1 + index % 5 * 0.9:.3f}"]
        rows.append([*pair, "A_neutral_B", "B_neutral_A", "A dog runs.", "A dog.", "FLICKR", "FLICKR", part])
    train = read(tmp_path, "sick", "train", "SICK.txt", "".join("\t".join(row) + "\r\n" for row in rows))
    assert [example.label for example in train] == [1.0, 1.9, 2.8, 3.7, 4.6, 1.0]
    assert (train[0].text, train[0].pair, train[1].id) == ('A "dog" runs', "A dog is running", "1")
    task = TASKS.get("sick_entailment")
    assert [len(list(task.read(split, tmp_path))) for split in ("train", "dev", "test")] == [6, 1, 3]
    assert [example.label for example in task.read("train", tmp_path)] == [1, 0, 2, 1, 0, 2]


def test_sick_as_semeval_gave_it(tmp_path: Path) -> None:
    """Three files, with the columns in another order and another name for one of them."""
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    lines = "".join(f"{index}\tA dog runs\tA dog is running\t4.5\t{ENTAILED[index % 3]}\n" for index in range(10))
    for split, file in (("train", "SICK_train.txt"), ("dev", "SICK_trial.txt"), ("test", "SICK_test_annotated.txt")):
        examples = read(tmp_path, "sick", split, file, header + lines)
        assert len(examples) == 10 and examples[0].label == 4.5
        assert [example.label for example in TASKS.get("sick_entailment").read(split, tmp_path)] == [1, 0, 2] * 3 + [1]
    with pytest.raises(DataError, match=r"SICK_trial\.txt:2: .*'relatedness_score'.*\b1\b.*'5\.5'"):
        read(tmp_path, "sick", "dev", "SICK_trial.txt", header + "0\ta\tb\t5.5\tNEUTRAL\n")


def test_sick_is_scored_as_semeval_did(tmp_path: Path) -> None:
    examples = [Example(text="a", pair="b", label=label) for label in (1.0, 2.0, 4.0, 5.0)]
    predictions = [Prediction(value=value) for value in (1.5, 2.0, 3.0, 5.0)]
    scores = score(TASKS.get("sick"), examples, predictions)
    assert [*scores] == ["pearson", "spearman", "mean_squared_error"]
    assert scores["spearman"] == 1.0 and scores["mean_squared_error"] == (0.25 + 1.0) / 4
    assert TASKS.get("sick_entailment").metrics == ("accuracy",)


def test_cnn_in_a_table(tmp_path: Path) -> None:
    text = "id,article,highlights\n" + 'a1,"One, ""two""\nthree.","First .\nSecond ."\n' * 10
    examples = read(tmp_path, "cnndm", "dev", "validation.csv", text)
    assert (
        len(examples) == 10 and examples[9].text == 'One, "two"\nthree.' and examples[9].target == "First .\nSecond ."
    )


def test_cnn_stories_by_their_addresses(tmp_path: Path) -> None:
    home = tmp_path / "cnndm"
    for index in range(10):
        folder = home / ("cnn" if index % 2 else "dailymail") / "stories"
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha1(f"http://x/{index}".encode()).hexdigest()
        (folder / f"{name}.story").write_text(
            f"Story {index}.\n\nMore.\n\n@highlight\n\nOne {index}\n\n@highlight\n\nTwo\n"
        )
    (home / "all_test.txt").write_text("".join(f"http://x/{index}\n" for index in range(10)))
    examples = list(TASKS.get("cnndm").read("test", tmp_path))
    assert [example.target for example in examples] == [f"One {index}\nTwo" for index in range(10)]
    assert examples[2].text == "Story 2.\n\nMore."
    (home / "url_lists").mkdir()
    (home / "all_test.txt").rename(home / "url_lists" / "all_test.txt")
    assert list(TASKS.get("cnndm").read("test", tmp_path)) == examples, "where the lists have a folder of their own"
    (home / "all_test.txt").write_text("http://x/missing\n")
    with pytest.raises(DataError, match=r"all_test\.txt:1: .*'http://x/missing'"):
        list(TASKS.get("cnndm").read("test", tmp_path))


def test_imdb_in_folders(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        (tmp_path / "aclImdb" / "train" / label).mkdir(parents=True)
        for index in range(5):
            (tmp_path / "aclImdb" / "train" / label / f"{index}_1.txt").write_text(f"{label} film {index}")
    examples = list(TASKS.get("imdb").read("train", tmp_path))
    assert [example.label for example in examples] == [0] * 5 + [1] * 5 and examples[7].text == "pos film 2"


def test_snli_s_own_file_leaves_out_what_was_not_agreed_on(tmp_path: Path) -> None:
    golds = ["neutral", "-", "entailment", "contradiction", "neutral"] * 2
    rows = [
        {"sentence1": "A.", "sentence2": "B.", "gold_label": gold, "pairID": str(index)}
        for index, gold in enumerate(golds)
    ]
    examples = read(tmp_path, "snli", "test", "snli_1.0_test.jsonl", jsonl(rows))
    assert [example.label for example in examples] == [1, 0, 2, 1] * 2


def test_squad_s_articles_are_divided(tmp_path: Path) -> None:
    """48 articles of dev: the first 38 train beside the training set, the others are the test."""

    def write(name: str, count: int) -> None:
        paragraphs = [{"context": "In Rome.", "qas": [{"id": name, "question": "?", "answers": []}] * 2}]
        data = {"data": [{"title": f"{name} {number}", "paragraphs": paragraphs} for number in range(count)]}
        (tmp_path / "squad1").mkdir(exist_ok=True)
        (tmp_path / "squad1" / name).write_text(json.dumps(data))

    write("dev.json", 48)
    write("train_subset.json", 3)
    task = TASKS.get("squad1_articles")
    groups = {split: [example.group for example in task.read(split, tmp_path)] for split in ("train", "test")}
    assert groups["test"] == [f"dev.json {number}" for number in range(38, 48) for _ in range(2)]
    assert len(groups["train"]) == 2 * (38 + 3) and not {*groups["train"]} & {*groups["test"]}


def test_an_answer_that_is_not_where_it_should_be(tmp_path: Path) -> None:
    answer = {"text": "Rome", "answer_start": 3}
    question = {"id": "q", "question": "Where?", "answers": [answer]}
    data = {"data": [{"title": "t", "paragraphs": [{"context": "In Rome.", "qas": [question]}]}]}
    (example,) = read(tmp_path, "squad1", "dev", "dev-v1.1.json", json.dumps(data))
    assert example.spans == ((3, 7),) and example.answers == ("Rome",)
    answer["answer_start"] = 4
    with pytest.raises(DataError, match=r"data\[0\]\.paragraphs\[0\]: .*'Rome'.*'q'.*\b4\b"):
        read(tmp_path, "squad1", "dev", "dev-v1.1.json", json.dumps(data))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sentence\tlabel\ngood\t2\n", r"train\.tsv:2: .*'label'.*0, 1.*'2'"),
        ("sentence\tlabel\ngood\t1\nbad\n", r"train\.tsv:3: .*\b2\b.*\b1\b"),
        ("sentence\tlabels\ngood\t1\n", r"train\.tsv:2: .*'label'.*'labels'"),
        ("sentence\tlabel\n \t1\n", r"train\.tsv:2: 'sentence' is blank"),
    ],
)
def test_a_bad_row_has_its_number(tmp_path: Path, text: str, values: str) -> None:
    with pytest.raises(DataError, match=values):
        read(tmp_path, "sst2", "train", "train.tsv", text)


def test_lines_that_are_not_aligned(tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / "val.de").write_text("eins\n")
    with pytest.raises(DataError, match=r"val\.en:2: .*val\.de"):
        read(tmp_path, "multi30k", "dev", "val.en", "one\ntwo\n")
