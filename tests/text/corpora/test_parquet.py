from pathlib import Path

import pytest

from pretune.core.errors import DataError, UsageError
from pretune.text.corpora import open_corpus

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"text {number} – naïve" for number in range(1000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "no-ending"
    pq.write_table(pa.table({"id": range(1000), "text": TEXTS}), path, row_group_size=90)
    return path


def test_one_document_per_row(path: Path) -> None:
    corpus = open_corpus([str(path)])
    found = list(corpus.read_documents())
    assert [document.text for document in found] == TEXTS
    assert found[0].location == f"{path}:row 1"
    assert found[-1].location == f"{path}:row 1000"


@pytest.mark.parametrize("n_bytes", [1, 2000, 5000, 10**9])
def test_parts_are_row_groups(path: Path, n_bytes: int) -> None:
    corpus = open_corpus([str(path)])
    parts = corpus.plan_parts(n_bytes)
    assert [document for part in parts for document in part.read_documents()] == list(corpus.read_documents())
    assert len(parts) == {1: 12, 10**9: 1}.get(n_bytes, len(parts))
    assert (len(parts) > 1) == (n_bytes < 10**9)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text(tmp_path: Path, kind: object) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"remark": pa.array(["a", None, "b"]).cast(kind), "n": [1, 2, 3]}), path)
    corpus = open_corpus([str(path)])
    assert [document.text for document in corpus.read_documents()] == ["a", "b"]
    assert corpus.counts == {"empty_documents": 1}


def test_faults(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"no-ending: .*'id'.*'text'"):
        open_corpus([str(path)], field="id")
    with pytest.raises(DataError, match="line"):
        open_corpus([str(path)], by="line")
    short = tmp_path / "short.parquet"
    short.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"short\.parquet"):
        open_corpus([str(short)])
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), empty)
    with pytest.raises(DataError, match=r"empty\.parquet.*'text'"):
        open_corpus([str(empty)])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'pretune\[parquet\]'"):
        open_corpus([str(path)])
