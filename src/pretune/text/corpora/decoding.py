"""Decoding of bytes into text: encoding detection, errors with their position, uniform newlines.

UTF-8 unless the first bytes indicate otherwise: a byte order mark, or the zeros typical of UTF-16 and UTF-32. Other
zeros in the first 8 KiB mean that a file is binary. Encodings without a signature (Latin-1, GBK, Shift-JIS) are not
guessed: a wrong guess would go unnoticed, while invalid UTF-8 is an error with its position.
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
"""Handling of invalid bytes: stop, or insert U+FFFD and count `replaced_characters`."""

HEAD_BYTES = 8 * 2**10
"""Number of leading bytes that decide between text and binary."""

_BYTE_ORDER_MARKS = [  # NOTE: in this order: the mark of UTF-16-LE is a prefix of that of UTF-32-LE
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
    """Return the encoding of a file's first bytes and the length of its byte order mark; None if they are not text.

    >>> detect_encoding("naïve".encode()), detect_encoding("naïve".encode("utf-16-le")), detect_encoding(b"\\0\\1")
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
        return None  # text with stray zeros, which would decode as Chinese in UTF-16
    candidates = [(share, encoding) for encoding in _DECODERS if (share := _score_encoding(head, encoding)) > 0]
    return (max(candidates)[1], 0) if candidates else None


def _score_encoding(head: bytes, encoding: str) -> float:
    """Return the share of ASCII when `head` is decoded; 0 if it cannot be text in the encoding."""
    try:
        text, _ = _DECODERS[encoding](head, "strict", False)
    except UnicodeDecodeError:
        return 0.0
    if not text or any(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f\v" for c in text):
        return 0.0
    return sum(c < "\x80" for c in text) / len(text) if _is_coherent(text) else 0.0


def _is_coherent(text: str) -> bool:
    """Return whether adjacent letters are mostly of the same script; binary data decoded as text are not."""
    scripts = [_get_script(c) if c.isalpha() else "" for c in text]
    changes = [left != right for left, right in itertools.pairwise(scripts) if left and right]
    return sum(changes) <= 1 + len(changes) // 4


def _get_script(letter: str) -> str:
    """Return the script of a letter, the start of its name; scripts that East Asian languages mix are one."""
    if "\u3400" <= letter < "\u4e00":
        return "rare CJK"  # pairs of ASCII bytes decoded as one character
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
    """Decode chunks of bytes into text with "\\n" for every newline; a chunk may end within a character or a CRLF.

    `skip` is the length of the byte order mark, `offset` the file position of the first chunk.
    """
    decoder, pending, carriage = _DECODERS[encoding], b"", False
    for chunk in _append_none(data):
        final = chunk is None
        block = pending + chunk if chunk else pending
        if skip:
            bom_bytes = min(skip, len(block))
            block, offset, skip = block[bom_bytes:], offset + bom_bytes, skip - bom_bytes
        try:
            text, consumed_bytes = decoder(block, "strict", final)
        except UnicodeDecodeError as fault:
            if errors == "strict":
                raise _make_decode_error(fault, encoding, name, offset) from None
            text, consumed_bytes = decoder(block, "replace", final)
            if counts is not None:
                counts["replaced_characters"] += text.count("\ufffd") - _count_replacement_characters(
                    block[:consumed_bytes], encoding
                )
        pending = block[consumed_bytes:]
        offset += consumed_bytes
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
    """Count replacement characters in the original bytes."""
    width, sign = _UNIT_BYTES[encoding], "\ufffd".encode(encoding)
    if width == 1:
        return block.count(sign)
    return sum(block[i : i + width] == sign for i in range(0, len(block), width))


def _make_decode_error(fault: UnicodeDecodeError, encoding: str, name: str, offset: int) -> DataError:
    hex_bytes = fault.object[fault.start : fault.end].hex(" ")[:11]
    likely = _guess_single_byte(fault.object[fault.start :])
    return DataError(
        f"{name}: byte {offset + fault.start} (hex {hex_bytes}) is not valid {encoding.upper()}: {fault.reason}; "
        f"convert it to UTF-8 (from {likely}: `iconv -f {likely} -t utf-8 {shlex.quote(name)} > NEW`); of a corpus, "
        "`pretune prepare --errors replace` inserts U+FFFD"
    )


def _guess_single_byte(data: bytes) -> str:
    """Guess the single-byte encoding of bytes.

    Latin-1 has control characters, which text lacks, where Windows-1252 has quotation marks, dashes and the euro sign.

    >>> _guess_single_byte("na\u00efve".encode("latin1")), _guess_single_byte("\u201cna\u00efve\u201d".encode("cp1252"))
    ('latin1', 'cp1252')
    """
    return (
        "cp1252" if re.search(rb"[\x80-\x9f]", data) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", data) else "latin1"
    )
