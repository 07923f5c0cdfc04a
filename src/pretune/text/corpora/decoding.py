"""Bytes to text: which encoding, where it is broken, and one kind of newline.

UTF-8 unless the first bytes say otherwise: a byte order mark, or the zeros that UTF-16 and UTF-32 are full of. Other
zeros in the first 8 KiB mean that a file is binary. Encodings without a sign of their own (Latin-1, GBK, Shift-JIS) are
not guessed: a wrong guess would go unnoticed, while invalid UTF-8 is an error that names its byte.
"""

import codecs
import itertools
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from pretune.core.errors import DataError

Errors = Literal["strict", "replace"]
"""What to do with bytes that are not text: stop, or put U+FFFD and count `replaced_characters`."""

HEAD_BYTES = 8 * 2**10
"""How many first bytes decide between text and binary."""

_BYTE_ORDER_MARKS = [  # NOTE: in this order, for the mark of UTF-16-LE begins that of UTF-32-LE
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
_DECODERS: dict[str, Callable[[bytes, str, bool], tuple[str, int]]] = {
    "utf-8": codecs.utf_8_decode,
    "utf-16-le": codecs.utf_16_le_decode,
    "utf-16-be": codecs.utf_16_be_decode,
    "utf-32-le": codecs.utf_32_le_decode,
    "utf-32-be": codecs.utf_32_be_decode,
}
_ASCII = bytes([9, 10, 13, *range(32, 127)])
_UNIT_BYTES = {"utf-8": 1, "utf-16-le": 2, "utf-16-be": 2, "utf-32-le": 4, "utf-32-be": 4}
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HANGUL", "BOPOMOFO"}
_BINARY_SIGNATURES = (
    b"%PDF-",
    b"PK\x03\x04",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!\x1a\x07",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"\x1f\x8b",
    b"\xfd7zXZ",
)


def detect_encoding(head: bytes) -> tuple[str, int] | None:
    """The encoding that a file's first bytes show, with the length of the mark to skip; None when they are no text.

    >>> detect_encoding("naïve".encode()), detect_encoding("naïve".encode("utf-16-le")), detect_encoding(b"\\x00\\x01\\x02\\x03")
    (('utf-8', 0), ('utf-16-le', 0), None)
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    head = head[:HEAD_BYTES]
    if head.startswith(_BINARY_SIGNATURES):
        return None
    if b"\0" not in head:
        return "utf-8", 0
    if len(head.translate(None, _ASCII)) < len(head) // 4:
        return None  # text with stray zeros; read as UTF-16 it would be Chinese
    found = [(share, encoding) for encoding in _DECODERS if (share := _score_encoding(head, encoding)) > 0]
    return (max(found)[1], 0) if found else None


def _score_encoding(head: bytes, encoding: str) -> float:
    """How much of `head` is ASCII when read in an encoding; 0 where it cannot be text in that encoding."""
    try:
        text, _ = _DECODERS[encoding](head, "strict", False)
    except UnicodeDecodeError:
        return 0.0
    if not text or any(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f\v" for c in text):
        return 0.0
    return sum(c < "\x80" for c in text) / len(text) if _is_coherent(text) else 0.0


def _is_coherent(text: str) -> bool:
    """Whether letters are mostly of the same script as the letter before them; in numbers read as text they are not."""
    scripts = [_get_script(c) if c.isalpha() else "" for c in text]
    changes = [one != other for one, other in itertools.pairwise(scripts) if one and other]
    return sum(changes) <= 1 + len(changes) // 4


def _get_script(letter: str) -> str:
    """The script of a letter, which its name begins with; those that East Asian languages mix are one."""
    if "\u3400" <= letter < "\u4e00":
        return "rare CJK"  # what ASCII becomes when two bytes are read as one character
    name = unicodedata.name(letter, "").partition(" ")[0]
    return "CJK" if name in _EAST_ASIAN else name


def decode(
    data: Iterable[bytes],
    encoding: str,
    name: str,
    errors: Errors = "strict",
    counts: Counter[str] | None = None,
    skip: int = 0,
    offset: int = 0,
) -> Iterator[str]:
    """Chunks of bytes to chunks of text with "\\n" for every newline; a chunk may end within a character or a CRLF.

    `skip` is the length of the byte order mark, `offset` where in the file the first chunk lies.
    """
    decoder, pending, carriage = _DECODERS[encoding], b"", False
    for chunk in _append_none(data):
        final = chunk is None
        block = pending + chunk if chunk else pending
        if skip:
            marked = min(skip, len(block))
            block, offset, skip = block[marked:], offset + marked, skip - marked
        try:
            text, used = decoder(block, "strict", final)
        except UnicodeDecodeError as fault:
            if errors == "strict":
                raise _make_decode_error(fault, encoding, name, offset) from None
            text, used = decoder(block, "replace", final)
            if counts is not None:
                counts["replaced_characters"] += text.count("\ufffd") - _count_replacement_characters(
                    block[:used], encoding
                )
        pending = block[used:]
        offset += used
        if carriage:
            text = "\r" + text
        carriage = text.endswith("\r") and not final
        if carriage:
            text = text[:-1]
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if text:
            yield text


def _append_none(data: Iterable[bytes]) -> Iterator[bytes | None]:
    yield from data
    yield None


def _count_replacement_characters(block: bytes, encoding: str) -> int:
    """How often the replacement character stands in the bytes themselves."""
    width, sign = _UNIT_BYTES[encoding], "\ufffd".encode(encoding)
    if width == 1:
        return block.count(sign)
    return sum(block[at : at + width] == sign for at in range(0, len(block), width))


def _make_decode_error(fault: UnicodeDecodeError, encoding: str, name: str, offset: int) -> DataError:
    found = fault.object[fault.start : fault.end].hex(" ")[:11]
    likely = _guess_single_byte(fault.object[fault.start :])
    return DataError(
        f"{name}: byte {offset + fault.start} (hex {found}) is not valid {encoding.upper()}: {fault.reason}; "
        f"convert it to UTF-8 (from {likely}: `iconv -f {likely} -t utf-8 {shlex.quote(name)} > NEW`); of a corpus, "
        "`pretune prepare --errors replace` puts U+FFFD in its place"
    )


def _guess_single_byte(data: bytes) -> str:
    """The encoding of one byte per character that bytes may be in.

    Latin-1 has control characters, which no text has, where Windows has quotation marks, dashes and the euro sign.

    >>> _guess_single_byte("na\u00efve".encode("latin1")), _guess_single_byte("\u201cna\u00efve\u201d".encode("cp1252"))
    ('latin1', 'cp1252')
    """
    return (
        "cp1252" if re.search(rb"[\x80-\x9f]", data) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", data) else "latin1"
    )
