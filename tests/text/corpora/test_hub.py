"""The Hub without the network: the loader of `datasets` is replaced."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import open_corpus
from pretune.text.corpora.corpus import parse_address


class Stream:
    """What `load_dataset(…, streaming=True)` gives back, as far as it is used."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, str] | None, fail_after: int | None = None):
        self.rows, self.fail_after = rows, fail_after
        self.features = features and {name: SimpleNamespace(dtype=kind) for name, kind in features.items()}
        self.info = SimpleNamespace(version="1.0.0", splits={"train": SimpleNamespace(num_examples=len(rows))})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self.rows):
            if number == self.fail_after:
                raise ConnectionError("the line\nwas cut")
            yield row


ROWS = [{"id": 1, "text": "one"}, {"id": 2, "text": None}, {"id": 3, "text": "three\n"}]
FEATURES = {"id": "int64", "text": "string"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str | None, str], Stream]:
    """The data sets there are, by (path, config, split)."""
    known: dict[tuple[str, str | None, str], Stream] = {}

    def load_dataset(path: str, name: str | None = None, *, split: str, streaming: bool) -> Stream:
        assert streaming
        if (path, name, split) not in known:
            raise FileNotFoundError(f"no {path}\nof {name}")
        return known[path, name, split]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return known


@pytest.mark.parametrize(
    ("given", "options", "split", "column"),
    [
        ("hf:name", [("name", None)], "train", None),
        ("hf:owner/name", [("owner/name", None), ("owner", "name")], "train", None),
        ("hf:owner/name/config", [("owner/name", "config")], "train", None),
        ("hf:owner/name/config:valid", [("owner/name", "config")], "valid", None),
        ("hf:name/config:valid:body", [("name/config", None), ("name", "config")], "valid", "body"),
        ("hf:name::body", [("name", None)], "train", "body"),
    ],
)
def test_names(given: str, options: list[tuple[str, str | None]], split: str, column: str | None) -> None:
    assert parse_address(given) == (options, split, column)


@pytest.mark.parametrize("given", ["hf:", "hf:a/b/c/d", "hf:a:b:c:d", "hf:a//b", "hf:/a", "hf::train"])
def test_what_is_no_name(given: str) -> None:
    with pytest.raises(UsageError, match=f"'{re.escape(given)}'"):
        parse_address(given)


def test_rows_are_streamed(hub: dict[tuple[str, str | None, str], Stream]) -> None:
    hub["owner/name", None, "train"] = Stream(ROWS, FEATURES)
    corpus = open_corpus(["hf:owner/name"])
    assert [(document.text, document.location) for document in corpus.read_documents()] == [
        ("one", "hf:owner/name:row 1"),
        ("three", "hf:owner/name:row 3"),
    ]
    assert corpus.counts == {"empty_documents": 1}
    (source,) = corpus.sources
    assert (source.kind, source.bytes) == ("hub", None)
    assert corpus.bytes is None
    assert len(corpus.plan_parts(1)) == 1
    before = corpus.compute_fingerprint()
    hub["owner/name", None, "train"] = Stream(ROWS[:2], FEATURES)
    assert open_corpus(["hf:owner/name"]).compute_fingerprint() != before, "it has another size now"


def test_a_name_without_owner_comes_second(hub: dict[tuple[str, str | None, str], Stream]) -> None:
    hub["name", "config", "valid"] = Stream([{"body": "one"}], None)  # nothing is known of the columns
    assert [document.text for document in open_corpus(["hf:name/config:valid"]).read_documents()] == ["one"]


def test_faults_are_one_line(hub: dict[tuple[str, str | None, str], Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"^hf:a/b: .*'a/b'.*FileNotFoundError: no a/b of None.*'a'"):
        open_corpus(["hf:a/b"])
    hub["a", None, "train"] = Stream(ROWS, FEATURES, fail_after=1)
    with pytest.raises(DataError, match="'id'"):
        open_corpus(["hf:a:train:id"])
    with pytest.raises(DataError, match=r"'txt'.*'text'"):
        open_corpus(["hf:a:train:txt"])
    with pytest.raises(DataError, match=r"\b1\b.*ConnectionError: the line was cut"):
        list(open_corpus(["hf:a"]).read_documents())
    hub["b", None, "train"] = Stream([{"text": 5}], FEATURES)
    with pytest.raises(DataError, match=r"hf:b:row 1: .*'text'"):
        list(open_corpus(["hf:b"]).read_documents())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'pretune\[hub\]'"):
        open_corpus(["hf:a"])


@pytest.mark.parametrize("name", ["hf:../../etc", "hf:..", "hf:./x", "hf:/etc", "hf:a/../b", "hf:", "hf:a/b/..:train"])
def test_paths_are_no_names(hub: dict[tuple[str, str | None, str], Stream], name: str) -> None:
    with pytest.raises(UsageError):
        open_corpus([name])


def test_a_folder_here_is_not_taken_for_the_hub(
    hub: dict[tuple[str, str | None, str], Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub["owner/name", None, "train"] = Stream(ROWS, FEATURES)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="owner/name"):
        open_corpus(["hf:owner/name"])
