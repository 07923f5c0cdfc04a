import os
from pathlib import Path

import pytest

from pretune.core.errors import PretuneError, explain_missing, nearest, nearest_file


def test_exit_codes_are_the_documented_ones_and_differ() -> None:
    codes = {cls.__name__: cls.exit_code for cls in PretuneError.__subclasses__()}
    assert codes == {
        "UsageError": 2,
        "DataError": 3,
        "CheckpointError": 4,
        "DivergedError": 5,
        "ResourceError": 6,
        "Stopped": 75,
        "Interrupted": 130,
    }


@pytest.mark.parametrize(
    ("word", "options", "expected"),
    [
        ("brt", ["gpt2", "bert", "roberta"], "; did you mean 'bert'?"),
        ("BERT", ["bert"], "; did you mean 'bert'?"),
        ("width", ["Width"], "; did you mean 'Width'?"),
        ("zzz", ["bert"], ""),
        ("bert", [], ""),
    ],
)
def test_nearest(word: str, options: list[str], expected: str) -> None:
    assert nearest(word, options) == expected


def test_nearest_stays_fast_on_a_hostile_word() -> None:
    assert nearest("a" * 10_000_000, ["bert", "a" * 300]) in ("", f"; did you mean '{'a' * 300}'?")


class TestFiles:
    def test_the_closest_name_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "reviews.csv").touch()
        (tmp_path / "texts").mkdir()
        assert nearest_file(tmp_path / "review.csv") == f"; did you mean '{tmp_path / 'reviews.csv'}'?"
        assert nearest_file(tmp_path / "quite another") == ""

    def test_a_folder_on_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "a.txt").touch()
        assert nearest_file(tmp_path / "text" / "a.txt") == f"; did you mean '{tmp_path / 'texts' / 'a.txt'}'?"
        assert nearest_file(tmp_path / "text" / "b.txt") == f"; did you mean '{tmp_path / 'texts'}'?"
        assert nearest_file(tmp_path / "zzz" / "b.txt") == f"; there is no folder '{tmp_path / 'zzz'}'"

    @pytest.mark.parametrize("name", ["", "\0", "a" * 300])
    def test_names_that_no_file_can_have(self, name: str) -> None:
        assert nearest_file(name) == ""

    def test_what_is_no_file_is_named(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "file").touch()
        for path, kind in ((tmp_path, "folder"), (tmp_path / "pipe", "pipe"), ("/dev/zero", "device")):
            assert explain_missing(path) == f"it is a {kind}, not a file"
        assert explain_missing(tmp_path / "file", "directory") == "it is a file, not a directory"
        assert explain_missing(tmp_path / "fil").startswith("no such file; did you mean")
        assert explain_missing("\0", remedy="; make one") == "no such file; make one"
