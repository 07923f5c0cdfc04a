"""Cleaning: filters in order, then exact and near duplicates, with counts of each step.

    cleaned = clean(corpus.read_documents(), ["nfc", "controls", "spaces", "short_pages=20"], near_threshold=0.8)
    for document in cleaned: ...
    cleaned.counts      # {'nfc': {'kept': 100, 'changed': 2, 'dropped': 0}, …, 'near_duplicates': {'kept': 91, …}}

A filter is a pure function (text) -> text, or None to drop it; `CLEANERS` lists ours, and any other function works.
"""

import functools
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from pretune.core.errors import UsageError, suggest
from pretune.core.registry import Registry
from pretune.text.corpora.document import Document
from pretune.text.filters import nfc
from pretune.text.language import guess_language
from pretune.text.neardup import NearDuplicates

Filter = Callable[[str], str | None]
"""(text) -> the text, a changed one, or None to drop it."""

CLEANERS: Registry[Filter] = Registry(
    "cleaner",
    {
        "nfc": "pretune.text.filters:nfc",
        "nfkc": "pretune.text.filters:nfkc",
        "controls": "pretune.text.filters:remove_controls",
        "spaces": "pretune.text.filters:normalise_spaces",
        "citations": "pretune.text.filters:remove_citations",
        "unfinished_lines": "pretune.text.filters:remove_unfinished_lines",
        "short_lines": "pretune.text.filters:remove_short_lines",
        "policy_lines": "pretune.text.filters:remove_policy_lines",
        "lorem_ipsum": "pretune.text.filters:drop_lorem_ipsum",
        "curly_braces": "pretune.text.filters:drop_curly_braces",
        "short_pages": "pretune.text.filters:drop_short_pages",
        "few_sentences": "pretune.text.filters:drop_few_sentences",
        "symbols": "pretune.text.filters:drop_symbol_pages",
        "repeated_lines": "pretune.text.filters:drop_repeated_lines",
        "language": "pretune.text.filters:drop_other_languages",
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
    options = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    if not options:
        raise UsageError(f"the cleaner '{name}' has no option, got '{cleaner}'")
    try:
        option = type(options[0].default)(value)
    except ValueError:
        kind = {int: "an integer", float: "a number"}[type(options[0].default)]
        raise UsageError(f"the option of the cleaner '{name}' must be {kind}, got '{value}'") from None
    return [(cleaner, functools.partial(function, **{options[0].name: option}))]


def hash_content(text: str) -> bytes:
    """Return a 128-bit hash (BLAKE2b) of a text, independent of white space and Unicode form."""
    normal = " ".join((nfc(text) or "").split())
    return hashlib.blake2b(normal.encode("utf-8", "surrogatepass"), digest_size=16).digest()


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
        steps = [name for name, _ in filters]
        steps += ["exact_duplicates"] * exact + ["near_duplicates"] * (near_threshold is not None)
        self.counts: dict[str, dict[str, int]] = {step: {"kept": 0, "changed": 0, "dropped": 0} for step in steps}
        self.languages: Counter[str] = Counter()
        self._iterator = self._iter_cleaned(documents)

    def __next__(self) -> Document:
        return next(self._iterator)

    def _iter_cleaned(self, documents: Iterable[Document]) -> Iterator[Document]:
        waiting: Document | None = None  # a piece to be continued if a later piece is kept
        for document in documents:
            sides = self._clean_sides(document)
            if sides is not None:
                if waiting is not None:
                    yield waiting
                cleaned_document = (
                    document if sides == document.sides else replace(document, text=sides[0], pair=(*sides, None)[1])
                )
                waiting = cleaned_document if cleaned_document.is_continued else None
                if not cleaned_document.is_continued:
                    yield cleaned_document
            elif not document.is_continued and waiting is not None:
                yield replace(waiting, is_continued=False)
                waiting = None
        if waiting is not None:
            yield replace(waiting, is_continued=False)

    def _clean_sides(self, document: Document) -> tuple[str, ...] | None:
        """Return the filtered text or two sides; None if a filter drops one, or for a duplicate."""
        sides: list[str] = []
        for text in document.sides:
            for name, function in self._filters:
                result = function(text)
                if not self._count(name, bool(result), result != text) or result is None:
                    return None
                text = result
            sides.append(text)
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

    def _count(self, step: str, is_kept: bool, is_changed: bool = False) -> bool:
        counts = self.counts[step]
        counts["kept"] += is_kept
        counts["changed"] += is_kept and is_changed
        counts["dropped"] += not is_kept
        return is_kept
