"""Cleaning: filters in order, then exact and near duplicates, with counts of each step.

    cleaned = clean(corpus.read_documents(), ["nfc", "controls", "spaces", "short_pages=20"], near_threshold=0.8)
    for document in cleaned: ...
    cleaned.counts      # {'nfc': {'kept': 100, 'changed': 2, 'dropped': 0}, …, 'near_duplicates': {'kept': 91, …}}

A filter is a pure function (text) -> text, or None to drop it; `CLEANERS` lists ours, and any other function works.
The rules for lines and pages are those of C4 (Raffel et al., 2020, section 2.2) and MassiveText (Rae et al., 2021,
appendix A.1), extended to punctuation of other scripts. A filter may have one option, a keyword, which a list of names
sets with "=": "short_pages=50".
"""

import functools
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from pretune.core.errors import UsageError, suggest
from pretune.core.registry import Registry
from pretune.text.corpora.document import Document
from pretune.text.language import guess_language
from pretune.text.neardup import NearDuplicates
from pretune.text.sentences import split_sentences

# NOTE: the escapes are controls and lone surrogates; line breaks are kept.
_CONTROL_CLASS = "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\ud800-\udfff"
_CONTROLS_OR_BREAKS = re.compile(f"[{_CONTROL_CLASS}\x0b-\r\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS = re.compile(f"[{_CONTROL_CLASS}]")
_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_NEWLINES = re.compile(r"\n{3,}")
_CITATION = re.compile(r"\[(?:\d{1,3}|edit|citation needed|note \d+|who\?|when\?)\]", re.IGNORECASE)
_SENTENCE_ENDS = (*".!?…。！？」』؟۔।॥။።\"”’»'",)
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_SYMBOLS = re.compile(r"[^\w\s.,;:!?'\"()\-–—“”‘’„«»…¿¡।。，、；：？！「」『』（）《》·]")
_NO_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")  # scripts written without spaces


def nfc(text: str) -> str | None:
    """Normalize to Unicode form C: one way to write "é"."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def nfkc(text: str) -> str | None:
    """Normalize to Unicode form KC: also "ﬁ" to "fi", "²" to "2", full-width letters to plain ones."""
    return text if unicodedata.is_normalized("NFKC", text) else unicodedata.normalize("NFKC", text)


def remove_controls(text: str) -> str | None:
    """Remove control characters, byte order marks and lone surrogates; other line breaks become newlines."""
    return _CONTROLS.sub("", _BREAKS.sub("\n", text)) if _CONTROLS_OR_BREAKS.search(text) else text


def normalise_spaces(text: str) -> str | None:
    """Collapse runs of spaces, strip lines, and keep at most one empty line in a row."""
    lines = "\n".join([" ".join(line.split()) for line in text.split("\n")]).strip("\n")
    return _NEWLINES.sub("\n\n", lines) if "\n\n\n" in lines else lines


def remove_citations(text: str) -> str | None:
    """Remove marks of Wikipedia such as [1] and [citation needed] (C4)."""
    return _CITATION.sub("", text) if "[" in text else text


def remove_unfinished_lines(text: str) -> str | None:
    """Remove lines that do not end in a full stop, question mark, exclamation mark or closing quote (C4)."""
    return _filter_lines(text, lambda line: line.rstrip(" \t)]}*_").endswith(_SENTENCE_ENDS))


def remove_short_lines(text: str, *, min_words: int = 5) -> str | None:
    """Remove lines of fewer than `min_words` words (C4)."""
    return _filter_lines(text, lambda line: count_words(line) >= min_words)


def remove_policy_lines(text: str) -> str | None:
    """Remove lines about JavaScript, cookies and terms of use (C4)."""
    lower = text.lower()
    if "javascript" not in lower and not any(policy in lower for policy in _POLICIES):
        return text
    return _filter_lines(text, lambda line: not any(word in line.lower() for word in ("javascript", *_POLICIES)))


def drop_lorem_ipsum(text: str) -> str | None:
    """Drop pages with "lorem ipsum" (C4)."""
    return None if "lorem ipsum" in text.lower() else text


def drop_curly_braces(text: str) -> str | None:
    """Drop pages with a curly brace, which contain code (C4)."""
    return None if "{" in text else text


def drop_short_pages(text: str, *, min_words: int = 50) -> str | None:
    """Drop pages of fewer than `min_words` words (MassiveText)."""
    return text if count_words(text) >= min_words else None


def drop_few_sentences(text: str, *, min_sentences: int = 3) -> str | None:
    """Drop pages of fewer than `min_sentences` sentences (C4)."""
    return text if len(split_sentences(text)) >= min_sentences else None


def drop_symbol_pages(text: str, *, max_share: float = 0.1) -> str | None:
    """Drop pages with more than `max_share` of characters that are neither letters nor punctuation."""
    symbols = _SYMBOLS.findall(text)
    if len(symbols) <= max_share * len(text):
        return text
    # Vowel signs, as in Hindi, are letters.
    combining_count = sum(unicodedata.category(symbol)[0] == "M" for symbol in symbols)
    return text if len(symbols) - combining_count <= max_share * len(text) else None


def drop_repeated_lines(text: str, *, max_share: float = 0.3) -> str | None:
    """Drop pages with more than `max_share` of repeated lines (MassiveText)."""
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    return text if len(lines) - len({*lines}) <= max_share * len(lines) else None


def drop_other_languages(text: str, *, lang: str = "en") -> str | None:
    """Drop pages in another language than `lang`, as guessed by `pretune.text.language`."""
    return text if guess_language(text) == lang else None


def drop_at_random(text: str, *, share: float = 0.1) -> str | None:
    """Keep a random `share` of the documents, chosen by their hashes: the same ones in every run."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, person=b"sample").digest()
    return text if int.from_bytes(digest) < share * 2.0**64 else None


def _filter_lines(text: str, keep: Callable[[str], bool]) -> str | None:
    """Return the lines to keep, with empty lines; None if nothing remains."""
    remaining = "\n".join(line for line in text.split("\n") if not line.strip() or keep(line)).strip("\n")
    return remaining if remaining.strip() else None


def count_words(text: str) -> int:
    """Count words; in scripts without spaces, two characters count as one word."""
    count = len(text.split())
    return count if text.isascii() else count + len(_NO_SPACES.findall(text)) // 2


Filter = Callable[[str], str | None]
"""(text) -> the text, a changed one, or None to drop it."""

CLEANERS: Registry[Filter] = Registry(
    "cleaner",
    {
        "nfc": "pretune.text.cleaning:nfc",
        "nfkc": "pretune.text.cleaning:nfkc",
        "controls": "pretune.text.cleaning:remove_controls",
        "spaces": "pretune.text.cleaning:normalise_spaces",
        "citations": "pretune.text.cleaning:remove_citations",
        "unfinished_lines": "pretune.text.cleaning:remove_unfinished_lines",
        "short_lines": "pretune.text.cleaning:remove_short_lines",
        "policy_lines": "pretune.text.cleaning:remove_policy_lines",
        "lorem_ipsum": "pretune.text.cleaning:drop_lorem_ipsum",
        "curly_braces": "pretune.text.cleaning:drop_curly_braces",
        "short_pages": "pretune.text.cleaning:drop_short_pages",
        "few_sentences": "pretune.text.cleaning:drop_few_sentences",
        "symbols": "pretune.text.cleaning:drop_symbol_pages",
        "repeated_lines": "pretune.text.cleaning:drop_repeated_lines",
        "language": "pretune.text.cleaning:drop_other_languages",
        "sample": "pretune.text.cleaning:drop_at_random",
    },
)

PRESETS = {
    "plain": ("nfc", "controls", "spaces"),
    "web": (
        *("nfc", "controls", "spaces", "citations", "policy_lines", "unfinished_lines", "short_lines"),
        *("lorem_ipsum", "curly_braces", "few_sentences", "symbols", "repeated_lines"),
    ),
}
"""Lists of cleaners: for clean text, and for web pages as in C4."""


def clean(
    documents: Iterable[Document],
    filters: Sequence[str | Filter] = (),
    *,
    exact: bool = True,
    near_threshold: float | None = None,
    count_languages: bool = False,
) -> "CleanedDocuments":
    """Filter documents (names of `CLEANERS` or `PRESETS`, "name=value", or functions) and drop duplicates.

    `exact`: drop texts that are equal up to white space and Unicode form; about 100 bytes of memory per document.
    `near_threshold`: the Jaccard similarity from which texts count as duplicates (`neardup`), None to disable.
    `count_languages`: count the languages of the result. A piece of a very long document is treated as a document.
    """
    named_filters = [pair for item in filters for pair in resolve_filters(item)]
    return CleanedDocuments(documents, named_filters, exact, near_threshold, count_languages)


def resolve_filters(cleaner: str | Filter) -> list[tuple[str, Filter]]:
    """Return the filters of a name, a preset, a "name=value" or a function, each with its name for the counts."""
    if not isinstance(cleaner, str):
        return [(getattr(cleaner, "__name__", repr(cleaner)), cleaner)]
    if cleaner in PRESETS:
        return [(name, CLEANERS.get(name)) for name in PRESETS[cleaner]]
    name, equals, value = cleaner.partition("=")
    if name not in CLEANERS:
        names = [*PRESETS, *CLEANERS]
        raise UsageError(f"unknown cleaner '{name[:60]}'{suggest(name, names)} (allowed: {', '.join(names)})")
    function = CLEANERS.get(name)
    if not equals:
        return [(cleaner, function)]
    options = getattr(function, "__kwdefaults__", None)
    if not options:
        raise UsageError(f"the cleaner '{name}' has no option, got '{cleaner}'")
    keyword, default = next(iter(options.items()))
    try:
        option = type(default)(value)
    except ValueError:
        kind = {int: "an integer", float: "a number"}[type(default)]
        raise UsageError(f"the option of the cleaner '{name}' must be {kind}, got '{value}'") from None
    if not isinstance(option, str) and not option >= 0:  # NaN included
        raise UsageError(f"the option of the cleaner '{name}' must be >= 0, got '{value}'")
    return [(cleaner, functools.partial(function, **{keyword: option}))]


def hash_content(text: str) -> bytes:
    """Return a 128-bit hash (BLAKE2b) of a text, independent of white space and Unicode form."""
    normal = " ".join((nfc(text) or "").split())
    return hashlib.blake2b(normal.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def apply_filters(text: str, filters: Iterable[tuple[str, Filter]], counts: Counter[str]) -> str | None:
    """Return a text after all filters, None if one drops it; count the outcome of each filter (`group_counts`)."""
    for name, function in filters:
        result = function(text)
        if not result:
            counts[f"{name}:dropped"] += 1
            return None
        counts[f"{name}:changed"] += result != text
        counts[f"{name}:kept"] += 1
        text = result
    return text


def group_counts(counts: Counter[str], steps: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the counts "step:outcome" by step and outcome."""
    return {
        step: {outcome: counts[f"{step}:{outcome}"] for outcome in ("kept", "changed", "dropped")} for step in steps
    }


class CleanedDocuments(Iterator[Document]):
    """Iterator over cleaned documents, single pass; `counts` and `languages` are complete at the end."""

    def __init__(
        self,
        documents: Iterable[Document],
        filters: Sequence[tuple[str, Filter]],
        exact: bool,
        near_threshold: float | None,
        count_languages: bool,
    ) -> None:
        self._filters, self._count_languages = filters, count_languages
        self._content_keys: set[bytes] | None = set() if exact else None
        self._near_duplicates = NearDuplicates(near_threshold) if near_threshold is not None else None
        self._steps = [name for name, _ in filters]
        self._steps += ["exact_duplicates"] * exact + ["near_duplicates"] * (near_threshold is not None)
        self._step_counts: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()
        self._iterator = self._iter_cleaned(documents)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Documents and sides by step and outcome."""
        return group_counts(self._step_counts, self._steps)

    def __next__(self) -> Document:
        return next(self._iterator)

    def _iter_cleaned(self, documents: Iterable[Document]) -> Iterator[Document]:
        waiting: Document | None = None  # a piece to be continued if a later piece is kept
        for document in documents:
            sides = self._clean_sides(document)
            if sides is not None:
                if waiting is not None:
                    yield waiting
                if sides != document.sides:
                    document = replace(document, text=sides[0], pair=(*sides, None)[1])
                waiting = document if document.is_continued else None
                if waiting is None:
                    yield document
            elif not document.is_continued and waiting is not None:
                yield replace(waiting, is_continued=False)
                waiting = None
        if waiting is not None:
            yield replace(waiting, is_continued=False)

    def _clean_sides(self, document: Document) -> tuple[str, ...] | None:
        """Return the filtered text or two sides; None if a filter drops one, or for a duplicate."""
        sides: list[str] = []
        for text in document.sides:
            result = apply_filters(text, self._filters, self._step_counts)
            if result is None:
                return None
            sides.append(result)
        full_text = "\0".join(sides)
        if self._content_keys is not None:
            key = hash_content(full_text)
            if not self._count("exact_duplicates", key not in self._content_keys):
                return None
            self._content_keys.add(key)
        if self._near_duplicates is not None:
            is_duplicate = self._near_duplicates.add(self._near_duplicates.compute_signature(full_text))
            if not self._count("near_duplicates", not is_duplicate):
                return None
        if self._count_languages:
            self.languages.update(guess_language(text) for text in sides)
        return tuple(sides)

    def _count(self, step: str, is_kept: bool) -> bool:
        self._step_counts[f"{step}:{'kept' if is_kept else 'dropped'}"] += 1
        return is_kept
