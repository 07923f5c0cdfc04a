"""Shards give back what was written, whatever the calls were, and notice what is not theirs."""

import errno
import json
import pickle
import re
import tempfile
import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError, PretuneError, ResourceError, UsageError
from pretune.data.shards import Shards, ShardWriter, choose_token_dtype, read_index
from pretune.data.shards.files import NpyWriter, open_npy
from pretune.runs.prepare import prepare
from tests.data.corpora import bits, documents, opened, write
from tests.data.texts import MANY, blocks, byte_tokenizer

GIVEN = [[3, 4], [], [5], [1, 1, 1]]  # tokens 0-6, none, 7-11, 12-14
PARTS = ("tokens", "documents", "sentences", "words", "sources")


@given(documents, st.integers(1, 30), st.sampled_from(["uint16", "uint32"]))
def test_what_is_written_is_read(given: list[list[int]], full: int, dtype: str) -> None:
    lengths = [sum(document) for document in given]
    total, sizes = sum(lengths), [*chain.from_iterable(given)]
    with opened(given, full=full, dtype=dtype) as shards:
        assert len(shards) == total
        assert shards.documents.tolist() == [sum(lengths[:n]) for n in range(len(given) + 1)]
        assert shards.sentences.tolist() == np.cumsum([0, *sizes])[:-1].tolist()
        assert shards.sources.tolist() == [number % 3 for number in range(len(given))]
        tokens = shards.read_tokens(0, total)
        assert tokens.tolist() == list(range(total)) and tokens.dtype == dtype
        assert shards.read_word_starts(0, total).tolist() == bits(np.arange(total)).tolist()
        split = shards.index.splits["train"]
        assert (split.documents, split.tokens, split.sentences) == (len(given), total, len(sizes))
        index = shards.index
        assert (index.vocab, index.tokenizer_sha256, index.fingerprint) == (60_003, "a" * 64, "f" * 64)


@given(documents, st.integers(1, 30), st.data())
def test_any_stretch_can_be_taken(given: list[list[int]], full: int, data: st.DataObject) -> None:
    with opened(given, full=full) as shards:
        edges = st.integers(0, len(shards))
        pairs = data.draw(st.lists(st.tuples(edges, edges).map(sorted), max_size=5))
        for start, stop in pairs:
            assert shards.read_tokens(start, stop).tolist() == list(range(start, stop))
            assert shards.read_word_starts(start, stop).tolist() == bits(np.arange(start, stop)).tolist()
        starts = np.array([start for start, _ in pairs], dtype=np.int64)
        lengths = np.array([stop - start for start, stop in pairs], dtype=np.int64)
        flat = [position for start, stop in pairs for position in range(start, stop)]
        assert shards.take(starts, lengths).tolist() == flat
        assert shards.take_words(starts, lengths).tolist() == bits(np.array(flat, dtype=np.int64)).tolist()


@given(documents, st.integers(1, 20), st.data())
def test_shards_do_not_depend_on_the_calls(given: list[list[int]], full: int, data: st.DataObject) -> None:
    """Documents one by one, together, or in pieces: the same files, byte by byte."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given, full=full)
        position = 0
        with ShardWriter(folder / "again", "uint16", max_tokens=full) as writer:
            for number, document in enumerate(given):
                size = sum(document)
                cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=3)))
                firsts = np.cumsum([0, *document])[:-1]
                for piece, (start, stop) in enumerate(zip([0, *cuts], [*cuts, size], strict=True)):
                    ids = np.arange(position + start, position + stop)
                    inside = firsts[(firsts >= max(start, 1)) & (firsts < stop)] - start  # but for the document's own
                    more = piece < len(cuts)
                    writer.add(ids, words=bits(ids), sentences=inside, sources=number % 3, is_unfinished=more)
                position += size
        files = sorted(path.name for path in (folder / "train").iterdir())
        assert files == sorted(path.name for path in (folder / "again").iterdir())
        for file in files:
            assert (folder / "train" / file).read_bytes() == (folder / "again" / file).read_bytes(), file


def test_a_document_may_end_with_nothing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "train", "uint16") as writer:
        writer.add([1, 2], words=[1, 1], is_unfinished=True)
        writer.add([3], [0, 0, 1], words=[1], sources=[0, 1])
    assert np.load(tmp_path / "train" / "00000.documents.npy").tolist() == [0, 2, 3]
    assert np.load(tmp_path / "train" / "00000.sentences.npy").tolist() == [0, 2]
    assert np.load(tmp_path / "train" / "00000.sources.npy").tolist() == [0, 1]


def test_a_shard_ends_with_the_document_that_fills_it(tmp_path: Path) -> None:
    write(tmp_path, [[4], [4], [1], [30], [2]], full=8)
    sizes = [(shard.documents, shard.tokens) for shard in read_index(tmp_path).splits["train"].shards]
    assert sizes == [(2, 8), (2, 31), (1, 2)]


def test_numpy_reads_the_files(tmp_path: Path) -> None:
    write(tmp_path, GIVEN)
    expected = {
        "tokens": (np.uint16, list(range(15))),
        "documents": (np.int64, [0, 7, 7, 12, 15]),
        "sentences": (np.int64, [0, 3, 7, 12, 13, 14]),
        "words": (np.uint8, np.packbits(bits(np.arange(15))).tolist()),
        "sources": (np.uint16, [0, 1, 2, 0]),
    }
    for part, (dtype, values) in expected.items():
        found = np.load(tmp_path / "train" / f"00000.{part}.npy", mmap_mode="r", allow_pickle=False)
        assert found.dtype == dtype and found.tolist() == values


def test_we_read_what_numpy_writes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5, dtype=np.uint16))
    assert open_npy(tmp_path / "a.npy", "uint16", 5).tolist() == [0, 1, 2, 3, 4]


def test_tokens_are_not_copied(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path, GIVEN))
    assert not shards.read_tokens(2, 9).flags.owndata and not shards.read_tokens(2, 9).flags.writeable


def test_nothing_at_all() -> None:
    with opened([]) as shards:
        assert len(shards) == 0 and shards.documents.tolist() == [0] and len(shards.sentences) == 0
        assert len(shards.read_tokens(0, 0)) == len(shards.read_word_starts(0, 0)) == len(shards.sources) == 0


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Ten million tokens in one document that comes in pieces: a piece is all that is held."""
    piece, words = np.arange(100_000, dtype=np.uint16), np.ones(100_000, dtype=bool)
    tracemalloc.start()
    with ShardWriter(tmp_path / "train", "uint16") as writer:
        for number in range(100):
            writer.add(piece % 50_000, words=words, sentences=np.arange(0, 100_000, 20), is_unfinished=number < 99)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert writer.shards[0].tokens == 10_000_000 and writer.shards[0].documents == 1
    assert peak < 4_000_000


def test_it_travels_light(tmp_path: Path) -> None:
    shards = Shards.open(write(tmp_path, [[5] * 1000]))
    sent = pickle.dumps(shards)
    assert len(sent) < 500
    assert pickle.loads(sent).read_tokens(0, 5000).tolist() == list(range(5000))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def header(**changes: str) -> Callable[[Path], None]:
    """Replace something in a file's header, its length kept."""

    def change(file: Path) -> None:
        content = file.read_bytes()
        for old, new in changes.values():
            assert old.encode() in content[:128]
            content = content[:128].replace(old.encode(), new.encode())[:127].ljust(127) + b"\n" + content[128:]
        file.write_bytes(content)

    return change


def values(*numbers: int, dtype: str = "<i8") -> Callable[[Path], None]:
    def change(file: Path) -> None:
        np.save(file, np.array(numbers, dtype=dtype))

    return change


FAULTS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    **{f"{part} missing": (part, Path.unlink, "") for part in PARTS},
    **{f"{part} truncated": (part, truncate, r"\d+ bytes") for part in PARTS},
    **{f"{part} too long": (part, lambda f: f.write_bytes(f.read_bytes() + b"\0"), r"\d+ bytes") for part in PARTS},
    **{f"{part} empty": (part, lambda f: f.write_bytes(b""), "") for part in PARTS},
    **{f"{part} of text": (part, lambda f: f.write_text("hello " * 40), "") for part in PARTS},
    **{f"{part} of another type": (part, values(1, 2, dtype="<f4"), "'<f4'") for part in PARTS},
    "tokens too wide": ("tokens", values(*range(15), dtype="<u4"), "'<u4'.*'<u2'"),
    "one document less": ("documents", values(0, 7, 12, 15), r"\b4\b.*\b5\b"),
    "a matrix": ("documents", lambda f: np.save(f, np.zeros((5, 1), dtype=np.int64)), r"\(5, 1\)"),
    "columns first": ("documents", header(order=("False", "True ")), ""),
    "a pickle": ("tokens", lambda f: np.save(f, np.array([{}], dtype=object)), ""),
    "documents go back": ("documents", values(0, 7, 6, 12, 15), ""),
    "documents start late": ("documents", values(1, 7, 7, 12, 15), r"\b15\b"),
    "documents end early": ("documents", values(0, 7, 7, 12, 14), r"\b15\b"),
    "sentences go back": ("sentences", values(0, 3, 2, 12, 13, 14), ""),
    "sentences start late": ("sentences", values(1, 3, 7, 12, 13, 14), r"\b15\b"),
    "sentences end late": ("sentences", values(0, 3, 7, 12, 13, 15), r"\b15\b"),
    "a document inside a sentence": ("sentences", values(0, 3, 8, 12, 13, 14), ""),
    "an unknown source": ("sources", values(0, 1, 3, 0, dtype="<u2"), r"source 3\b"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    part, damage, value = FAULTS[name]
    file = write(tmp_path, GIVEN) / "train" / f"00000.{part}.npy"
    damage(file)
    with pytest.raises(DataError, match=value or None) as caught:
        Shards.open(tmp_path)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@given(st.sampled_from(PARTS), st.integers(0, 150), st.integers(0, 255))
def test_any_byte_of_a_header_may_be_wrong(part: str, at: int, byte: int) -> None:
    """It is noticed, or it changes only what a header does not say."""
    with tempfile.TemporaryDirectory() as name:
        file = write(Path(name), GIVEN) / "train" / f"00000.{part}.npy"
        content = bytearray(file.read_bytes())
        content[min(at, len(content) - 1)] = byte
        file.write_bytes(bytes(content))
        try:
            assert len(Shards.open(name)) == 15
        except DataError as error:
            assert str(file) in str(error) and "\n" not in str(error)


def edit(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(changes)


def edit_shard(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["splits"]["train"]["shards"][0].update(changes)


INDEX_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (edit(format=2), "format 2"),
    "no format": (lambda data: data.pop("format"), "format None"),
    "another type": (edit(dtype="float32"), "'float32'"),
    "a vocabulary too large": (edit(vocab=65_537), "65537"),
    "no vocabulary": (edit(vocab=0), "'vocab'"),
    "a vocabulary that is true": (edit(vocab=True), "'vocab'"),
    "no fingerprint": (lambda data: data.pop("fingerprint"), "'fingerprint'"),
    "sources that are no names": (edit(sources=[1]), "'sources.0'"),
    "splits that are none": (edit(splits=[]), "'splits'"),
    "a split that is none": (edit(splits={"../x": {}}), "../x"),
    "a shard outside": (edit_shard(name="../../etc/00000"), "'name'"),
    "more tokens": (edit_shard(tokens=16), "16"),
    "less than nothing": (edit_shard(tokens=-1), "-1"),
    "absurdly many": (edit_shard(tokens=2**62), "4611686018427387904"),
    "other documents": (edit_shard(documents=5), "documents"),
}


@pytest.mark.parametrize("name", INDEX_FAULTS)
def test_a_damaged_index_is_named(tmp_path: Path, name: str) -> None:
    change, value = INDEX_FAULTS[name]
    file = write(tmp_path, GIVEN) / "data.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    with pytest.raises(DataError, match=re.escape(value)) as caught:
        Shards.open(tmp_path)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_data_that_is_none(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=str(place)):
            Shards.open(place)
    with pytest.raises(DataError, match=r"'trian'.*'train'"):
        Shards.open(write(tmp_path, GIVEN), "trian")


def test_the_index_comes_back(tmp_path: Path) -> None:
    write(tmp_path, GIVEN)
    index = read_index(tmp_path)
    data = json.loads((tmp_path / "data.json").read_text())
    assert data["splits"]["train"] == {
        "documents": 4,
        "tokens": 15,
        "sentences": 6,
        "bytes": 60,
        "shards": [{"name": "00000", "documents": 4, "tokens": 15, "sentences": 6}],
    }
    assert index.splits["train"].bytes == 60 and index.sources == ("books", "news", "web")


class TestWriter:
    @pytest.mark.parametrize(
        ("given", "error", "value"),
        [
            ({"tokens": [1, 2**16], "words": [1, 1]}, DataError, "65536"),
            ({"tokens": [1, 100], "words": [1, 1]}, DataError, "100"),
            ({"tokens": [-1], "words": [1]}, DataError, "65536"),
            ({"tokens": [1.5], "words": [1]}, DataError, r"1\.5"),
            ({"tokens": [1, 2], "words": [1]}, UsageError, r"\b1 of 2\b"),
            ({"tokens": [1, 2], "words": [1, 1], "offsets": [0, 1]}, UsageError, "offsets"),
            ({"tokens": [1, 2], "words": [1, 1], "offsets": [0, 3, 2]}, UsageError, "offsets"),
            ({"tokens": [1, 2], "words": [1, 1], "offsets": []}, UsageError, "offsets"),
            ({"tokens": [1, 2], "words": [1, 1], "sentences": [1, 1]}, UsageError, r"sentence.*\b2\b"),
            ({"tokens": [1, 2], "words": [1, 1], "sentences": [2]}, UsageError, r"sentence.*\b2\b"),
            ({"tokens": [1, 2], "words": [1, 1], "sources": 2**16}, UsageError, "65535"),
        ],
    )
    def test_what_cannot_be_written(
        self, tmp_path: Path, given: dict[str, Any], error: type[PretuneError], value: str
    ) -> None:
        vocab = 100 if given["tokens"] == [1, 100] else None
        with pytest.raises(error, match=value), ShardWriter(tmp_path / "a", "uint16", vocab=vocab) as writer:
            writer.add(**given)

    def test_another_type(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"int64.*uint16.*uint32"):
            ShardWriter(tmp_path, "int64")

    def test_a_document_without_its_end(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError), ShardWriter(tmp_path / "a", "uint16") as writer:
            writer.add([1], words=[True], is_unfinished=True)

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "no space")

        with pytest.raises(ResourceError, match=str(tmp_path / "a")), ShardWriter(tmp_path / "a", "uint16") as writer:
            writer.add([1], words=[True])
            monkeypatch.setattr(NpyWriter, "_write", full)
            writer.add([1], words=[True])

    def test_a_failure_leaves_files_that_say_so(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), ShardWriter(tmp_path / "a", "uint16") as writer:
            writer.add([1, 2], words=[True, True])
            raise KeyError
        with pytest.raises(DataError, match=r"00000\.tokens\.npy"):
            open_npy(tmp_path / "a" / "00000.tokens.npy", "uint16")


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(1, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32"), (2**32, "uint32")]
)
def test_the_narrowest_type(vocab: int, dtype: str) -> None:
    assert choose_token_dtype(vocab) == dtype
    assert np.iinfo(dtype).max >= vocab - 1


@pytest.mark.parametrize("vocab", [0, -1, 2**32 + 1])
def test_no_such_vocabulary(vocab: int) -> None:
    with pytest.raises(UsageError, match=str(vocab)):
        choose_token_dtype(vocab)


def test_a_token_outside_the_vocabulary(tmp_path: Path) -> None:
    data = prepare(
        [blocks(tmp_path / "a.txt", MANY[:20])], tokenizer=byte_tokenizer(tmp_path / "t"), out=tmp_path / "d"
    )
    (file,) = (data.path / "train").glob("*.tokens.npy")
    tokens = np.load(file)
    starts, lengths = np.array([0, 5]), np.array([4, 3])
    shards = Shards.open(data.path)
    assert shards.take(starts, lengths).tolist() == [*tokens[:4], *tokens[5:8]]
    tokens[6] = data.vocab
    np.save(file, tokens)
    shards = Shards.open(data.path)
    assert shards.take(starts, np.array([4, 1])).tolist() == [*tokens[:4], tokens[5]]
    for read in (lambda: shards.take(starts, lengths), lambda: shards.read_tokens(0, 10)):
        with pytest.raises(DataError, match=f"token {data.vocab} "):
            read()
