"""News translation of WMT: SGM files of test sets, and parallel text for training (Bojar et al., 2014 and 2016).

newstest2014-deen-src.en.sgm    <doc docid="…"> <seg id="1">A republican strategy …</seg> …
newstest2014-deen-ref.de.sgm    the translation, with the same documents and segments
"""

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.benchmarks.text_to_text import ParallelReader
from pretune.tasks.example import Example
from pretune.tasks.table import read_text
from pretune.tasks.task import SplitFile, Task, Template

_ELEMENT = re.compile(
    r"<doc\b(?P<document>[^>]*)>|<seg\b(?P<segment>[^>]*)>(?P<text>.*?)</seg>", re.DOTALL | re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*["']?([^"'\s>]+)""")
Segments = dict[tuple[str, str], str]
"""Texts by document and segment."""


@spec
class SgmReader:
    """A reader of `NAME-src.en.sgm` and `NAME-ref.de.sgm` in one folder, aligned by document and segment."""

    source: str
    target: str

    def __call__(self, path: Path) -> Iterator[Example]:
        reference = path.with_name(path.name.replace(f"-src.{self.source}.", f"-ref.{self.target}."))
        if not reference.exists():
            raise DataError(f"{path}: its translation {reference.name} is missing in the same folder")
        texts, translations = read_segments(path), read_segments(reference)
        if texts.keys() != translations.keys():
            (document, number), *_ = sorted(texts.keys() ^ translations.keys())
            raise DataError(
                f"{path}: segment {number[:20]} of document '{document[:60]}' is not in both files; {reference.name} "
                "must be its translation"
            )
        for (document, number), text in texts.items():
            yield Example(text=text, target=translations[document, number], id=f"{document}-{number}", group=document)


def read_segments(path: Path) -> Segments:
    """Return the segments of an SGM file in order; entities are resolved, and blanks are single spaces."""
    name, document = os.fspath(path), ""
    segments: Segments = {}
    for match in _ELEMENT.finditer("".join(read_text(path))):
        if match["document"] is not None:
            document = dict(_ATTRIBUTE.findall(match["document"])).get("docid", "")
            continue
        number = dict(_ATTRIBUTE.findall(match["segment"])).get("id", str(len(segments) + 1))
        if (document, number) in segments:
            raise DataError(f"{name}: document '{document[:60]}' has the segment {number[:20]} twice")
        segments[document, number] = " ".join(html.unescape(match["text"]).split())
    if not segments:
        raise DataError(f"{name}: no <seg> in the file; expected WMT's SGM format")
    return segments


def _build_task(name: str, target: str, language: str, pair: str, dev: tuple[str, int], test: tuple[str, int]) -> Task:
    """Return a task from English: all parallel files of a pair of languages for training, and two test sets."""
    sgm = SgmReader(source="en", target=target)
    lines = ParallelReader(source="en", target=target, skip_blank=True)

    def build_files(stem: str, rows: int) -> tuple[SplitFile, ...]:
        year_set = re.sub(r"-\w+$", "", stem)  # newstest2014-deen is also published as newstest2014.en
        return (
            SplitFile(f"{stem}-src.en.sgm", sgm, rows=rows),
            SplitFile(f"*/{stem}-src.en.sgm", sgm, rows=rows),
            SplitFile(f"{year_set}.en", lines, rows=rows),
        )

    return Task(
        name=name,
        kind="generation",
        metrics=("bleu", "chrf"),
        splits={
            "train": (
                SplitFile(f"*.{pair}.en", lines),
                SplitFile(f"training*/*.{pair}.en", lines),
                SplitFile("train.en", lines),
            ),
            "dev": build_files(*dev),
            "test": build_files(*test),
        },
        template=Template(source=f"translate English to {language}: {{text}}", target="{target}"),
    )


WMT14_EN_DE = _build_task("wmt14_en_de", "de", "German", "de-en", ("newstest2013", 3000), ("newstest2014-deen", 3003))
"""WMT 2014: news from English to German (Bojar et al., 2014)"""

WMT14_EN_FR = _build_task("wmt14_en_fr", "fr", "French", "fr-en", ("newstest2013", 3000), ("newstest2014-fren", 3003))
"""WMT 2014: news from English to French (Bojar et al., 2014)"""

WMT16_EN_RO = _build_task(
    "wmt16_en_ro", "ro", "Romanian", "ro-en", ("newsdev2016-enro", 1999), ("newstest2016-enro", 1999)
)
"""WMT 2016: news from English to Romanian (Bojar et al., 2016)"""
