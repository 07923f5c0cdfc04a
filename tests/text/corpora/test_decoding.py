import codecs
import itertools
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import DataError
from pretune.text.corpora.streams import decode, detect_encoding

NASTY = "naïve café – 漢字かな 😀 Здравствуй мир שלום\n𝔘𝔫𝔦\r\nend"
MIXED = "NTT東日本とJR西日本、TシャツとCDを5枚。 Aβ peptide, ἐν ἀρχῇ, 한국어와 漢字 ㄅㄆㄇ\n"
WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
texts = st.text(st.characters(codec="utf-8"), max_size=40)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("encoding", ["utf-8", *WIDE])
@given(text=texts, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_text_survives_any_chunks(encoding: str, text: str, cuts: list[int]) -> None:
    data = chunked(text.encode(encoding), cuts)
    assert "".join(decode(data, encoding, "name")) == newlines(text)


@pytest.mark.parametrize("encoding", ["utf-8", *WIDE])
def test_a_mark_tells_the_encoding_and_is_skipped(encoding: str) -> None:
    data = ("\ufeff" + NASTY).encode(encoding)
    found = detect_encoding(data)
    assert found is not None
    assert found[0] == encoding
    for size in (1, 2, 3, 4, 5, 100):
        split = [data[at : at + size] for at in range(0, len(data), size)]
        assert "".join(decode(split, encoding, "name", skip=found[1])) == newlines(NASTY)


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize(
    "text", ["plain ASCII text\n", NASTY, "Привет, мир.\n", "世界人权宣言\n　序言", "a", "αβγ δεζ", "Ā Ȁ text", MIXED]
)
def test_zeros_tell_the_encoding(encoding: str, text: str) -> None:
    assert detect_encoding(text.encode(encoding)) == (encoding, 0)
    assert detect_encoding((text * 5000).encode(encoding)) == (encoding, 0)


@pytest.mark.parametrize(
    "head",
    [
        b"\x00",
        bytes(100),
        b"text\x00text",
        b"text" * 2000 + b"\0",
        b"\x7fELF\x02\x01\x01" + bytes(9),
        b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00",
        bytes(range(256)) * 4,
        b"\x01\x00\x02\x00\x03\x00\x04\x00",
        b"MZ\0\1\2" * 2000,  # UTF-16 to the letter, of letters that no language puts side by side
        b"\0\1MZ" * 2000,
        b"KR\0iU\3\0" * 1000,
        b"%PDF-1.7\n%...",
        b"PK\x03\x04",
    ],
)
def test_other_zeros_mean_binary(head: bytes) -> None:
    assert detect_encoding(head) is None


def test_a_zero_after_the_first_8_kib_is_a_character() -> None:
    data = b"text" * 2048 + b"\0"
    assert detect_encoding(data) == ("utf-8", 0)
    assert "".join(decode([data], "utf-8", "name")).endswith("\0")


BROKEN = [
    (b"caf\xe9 au lait", 3, "e9"),
    (b"\xff", 0, "ff"),
    (b"ab\xed\xa0\x80", 2, "ed"),  # half of a surrogate pair
    (b"ab\xf0\x9f\x98", 2, "f0 9f 98"),  # the end is missing
    (b"\xc0\xafab", 0, "c0"),  # too long a form
    (b"\xe2\x82x", 0, "e2 82"),
]


@pytest.mark.parametrize(("data", "byte", "found"), BROKEN)
@pytest.mark.parametrize("before", [0, 1, 5, 4096])
def test_invalid_utf8_is_told_with_its_byte_at_every_chunk_edge(
    data: bytes, byte: int, found: str, before: int
) -> None:
    whole = "é".encode() * before + data
    for edge in range(2 * before, len(whole) + 1):
        with pytest.raises(DataError) as caught:
            list(decode([whole[:edge], whole[edge:]], "utf-8", "a.txt", offset=1000))
        assert re.match(rf"a\.txt: .*\b{1000 + 2 * before + byte}\b.*\b{found}\b.*UTF-8", str(caught.value))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("data", "_byte", "_found"), BROKEN)
def test_what_is_broken_can_be_replaced_and_is_counted(data: bytes, _byte: int, _found: str) -> None:
    whole = "é\ufffd".encode() + data + "\ufffd".encode()
    expected = whole.decode("utf-8", "replace")
    for edge in range(len(whole) + 1):
        counts: Counter[str] = Counter()
        chunks = [whole[:edge], whole[edge:]]
        assert "".join(decode(chunks, "utf-8", "name", "replace", counts)) == expected
        assert counts["replaced_characters"] == expected.count("\ufffd") - 2


def test_broken_utf16_is_told_and_can_be_replaced() -> None:
    data = codecs.BOM_UTF16_LE + "a\ufffdb".encode("utf-16-le") + b"\x00\xd8" + "c".encode("utf-16-le")
    with pytest.raises(DataError, match=r"\b8\b.*\b00 d8\b.*UTF-16-LE"):
        list(decode([data], "utf-16-le", "name", skip=2))
    counts: Counter[str] = Counter()
    assert "".join(decode([data], "utf-16-le", "name", "replace", counts, skip=2)) == "a\ufffdb\ufffdc"
    assert counts == {"replaced_characters": 1}


def test_a_carriage_return_at_the_edge() -> None:
    assert "".join(decode([b"a\r", b"\nb\r", b"c\r"], "utf-8", "name")) == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ("na\u00efve".encode("latin1"), "latin1"),
        ("\u201cna\u00efve\u201d".encode("cp1252"), "cp1252"),
        ("price: 5 \u20ac".encode("cp1252"), "cp1252"),
        (b"a\x80 and \x81", "latin1"),  # the second is no character of cp1252
    ],
)
def test_the_likely_encoding_is_suggested(data: bytes, encoding: str) -> None:
    with pytest.raises(DataError, match=f"iconv -f {encoding} "):
        list(decode([data], "utf-8", "a.txt"))
