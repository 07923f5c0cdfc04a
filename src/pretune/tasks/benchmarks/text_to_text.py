"""Text generation: summaries (XSum, SAMSum, CNN/DailyMail), translation (Multi30k, WMT) and dialogue (ConvAI2).

WMT's test sets are SGM files (Bojar et al., 2014 and 2016):

    newstest2014-deen-src.en.sgm    <doc docid="…"> <seg id="1">A republican strategy …</seg> …
    newstest2014-deen-ref.de.sgm    the translation, with the same documents and segments

ConvAI2 has the dialogues of Persona-Chat (Zhang et al., 2018) in the format of ParlAI. Every line has a number, which
starts again with each dialogue; a turn has the partner's utterance, the response and, between two tabs and bars, the
candidates for hits@1.

    1 your persona: i like to remodel homes .
    2 hi , how are you doing ?<TAB>i am remodeling a house .<TAB><TAB>i like tea .|i am remodeling a house .
"""

import hashlib
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Fields, RowReader, build_task, list_files
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines, read_text
from pretune.tasks.task import Task

_xsum = RowReader(make=Fields(text="document", target="summary", id="id"))
XSUM = build_task(
    "xsum",
    "summarize: {text}",
    list_files(_xsum, train="train.jsonl", dev="validation.jsonl", test="test.jsonl | test_sample.jsonl 1000 part"),
    metrics=("rouge",),
)
"""XSum: a news article in one sentence (Narayan et al., 2018)"""

_samsum = RowReader(make=Fields(text="context", target="response"))
SAMSUM = build_task(
    "samsum",
    "summarize: {text}",
    list_files(_samsum, train="train.jsonl", dev="validation.jsonl 818", test="test.jsonl 819"),
    metrics=("rouge",),
)
"""SAMSum: the summary of a chat (Gliwa et al., 2019)"""


URL_LISTS = "url_lists"
"""Folder of the URL lists of See et al."""


def read_stories(path: Path) -> Iterator[Example]:
    """Yield the stories of a URL list; a story's file is named by the SHA-1 of its URL."""
    home = path.parent.parent if path.parent.name == URL_LISTS else path.parent
    folders = (home / "cnn" / "stories", home / "dailymail" / "stories")
    for number, address in read_lines(path):
        if not address.strip():
            continue
        name = hashlib.sha1(address.strip().encode(), usedforsecurity=False).hexdigest()
        story_files = [folder / f"{name}.story" for folder in folders if (folder / f"{name}.story").exists()]
        if not story_files:
            raise DataError(
                f"{path}:{number}: story {name}.story of {address.strip()[:80]!r} not found in {folders[0].parent}"
            )
        article, *highlights = "".join(read_text(story_files[0])).split("@highlight")
        points = [" ".join(point.split()) for point in highlights if point.strip()]
        if not points or not article.strip():
            raise DataError(f"{story_files[0]}: expected a story and at least one @highlight")
        yield Example(text=article.strip(), target="\n".join(points), id=name)


CNNDM = build_task(
    "cnndm",
    "summarize: {text}",
    list_files(
        {"*.txt": read_stories, "*": RowReader(make=Fields(text="article", target="highlights", id="id"))},
        train=f"train.jsonl | train.csv | all_train.txt | {URL_LISTS}/all_train.txt",
        dev=f"validation.jsonl | validation.csv | all_val.txt | {URL_LISTS}/all_val.txt",
        test=f"test.jsonl | test.csv | all_test.txt | {URL_LISTS}/all_test.txt",
    ),
    metrics=("rouge",),
    folders=("cnndm", "cnn_dailymail"),
)
"""CNN/DailyMail: the highlights of a news story (Hermann et al., 2015; See et al., 2017)"""


@spec
class ParallelReader:
    """A reader of `NAME.en` and `NAME.de` in one folder: one sentence per line, as many lines in both."""

    source: str
    target: str
    skip_blank: bool = False  # skip lines that are blank on one side, as in parliamentary proceedings

    def __call__(self, path: Path) -> Iterator[Example]:
        target_path = path.with_name(f".{self.target}".join(path.name.rsplit(f".{self.source}", 1)))
        if not target_path.exists():
            raise DataError(f"{path}: its translation {target_path.name} is missing in the same folder")
        source_lines, target_lines = read_lines(path), read_lines(target_path)
        for number, text in source_lines:
            _, target = next(target_lines, (0, None))
            is_one_blank = target is not None and bool(text.strip()) != bool(target.strip())
            if target is None or (is_one_blank and not self.skip_blank):
                raise DataError(
                    f"{path}:{number}: no matching line in {target_path.name}; the files must be aligned line by line"
                )
            if text.strip() and target.strip():
                yield Example(text=text, target=target, id=str(number))
        if any(target.strip() for _, target in target_lines):
            raise DataError(f"{target_path}: more lines than {path.name}; the files must be aligned line by line")


MULTI30K = build_task(
    "multi30k",
    "translate English to German: {text}",
    list_files(
        ParallelReader(source="en", target="de"),
        train="train.en 29000",
        dev="val.en 1014",
        test="test_2016_flickr.en 1000",
        test_2017="test_2017_flickr.en 1000",
        test_2017_mscoco="test_2017_mscoco.en 461",
        test_2018="test_2018_flickr.en 1071",
    ),
    metrics=("bleu", "chrf"),
)
"""Multi30k: image captions from English to German (Elliott et al., 2016)"""


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


def _build_wmt(name: str, target: str, language: str, pair: str, dev: tuple[str, int], test: tuple[str, int]) -> Task:
    """Return a task from English: all parallel files of a pair of languages for training, and two test sets."""

    def list_formats(stem: str, rows: int) -> str:
        year_set = re.sub(r"-\w+$", "", stem)  # newstest2014-deen is also published as newstest2014.en
        return f"{stem}-src.en.sgm {rows} | */{stem}-src.en.sgm {rows} | {year_set}.en {rows}"

    files = list_files(
        {
            "*.sgm": SgmReader(source="en", target=target),
            "*": ParallelReader(source="en", target=target, skip_blank=True),
        },
        train=f"*.{pair}.en | training*/*.{pair}.en | train.en",
        dev=list_formats(*dev),
        test=list_formats(*test),
    )
    return build_task(name, f"translate English to {language}: {{text}}", files, metrics=("bleu", "chrf"))


WMT14_EN_DE = _build_wmt("wmt14_en_de", "de", "German", "de-en", ("newstest2013", 3000), ("newstest2014-deen", 3003))
"""WMT 2014: news from English to German (Bojar et al., 2014)"""

WMT14_EN_FR = _build_wmt("wmt14_en_fr", "fr", "French", "fr-en", ("newstest2013", 3000), ("newstest2014-fren", 3003))
"""WMT 2014: news from English to French (Bojar et al., 2014)"""

WMT16_EN_RO = _build_wmt(
    "wmt16_en_ro", "ro", "Romanian", "ro-en", ("newsdev2016-enro", 1999), ("newstest2016-enro", 1999)
)
"""WMT 2016: news from English to Romanian (Bojar et al., 2016)"""


PERSONA = ("your persona: ", "partner's persona: ")
UTTERANCES = 5
"""Last utterances of both speakers that a response is given."""


@spec
class DialogueReader:
    """A reader of turns: the persona and the last utterances as text, the response as target.

    With `with_candidates` the candidates are the choices, and the response is the right one.
    """

    with_candidates: bool = False

    def __call__(self, path: Path) -> Iterator[Example]:
        name = os.fspath(path)
        persona: list[str] = []
        history: list[str] = []
        dialogue = 0
        for line, content in read_lines(path):
            if not content.strip():
                continue
            number, _, rest = content.partition(" ")
            if not number.isdecimal():
                raise DataError(f"{name}:{line}: expected a number and a turn, got {content[:40]!r}")
            if int(number) == 1:
                persona, history, dialogue = [], [], dialogue + 1
            if rest.startswith(PERSONA):
                persona.append(rest.partition(": ")[2].strip())
                continue
            utterance, *cells = rest.split("\t")
            response = cells[0].strip() if cells else ""
            if not response:
                raise DataError(f"{name}:{line}: a turn needs an utterance, a tab and a response")
            history.append(utterance.strip())
            text = "\n".join([*persona, *history[-UTTERANCES:]])
            candidates = [text.strip() for text in cells[2].split("|")] if len(cells) > 2 else []
            facts = {"persona": " ".join(persona), "utterance": history[-1]}
            group = str(dialogue)
            if self.with_candidates:
                if response not in candidates:
                    raise DataError(
                        f"{name}:{line}: the response is not among the {len(candidates)} candidates; use a file with "
                        "candidates"
                    )
                label = candidates.index(response)
                yield Example(text=text, choices=tuple(candidates), label=label, id=str(line), group=group, facts=facts)
            else:
                yield Example(text=text, target=response, answers=(response,), id=str(line), group=group, facts=facts)
            history.append(response)


_turns, _choices = DialogueReader(), DialogueReader(with_candidates=True)
CONVAI2 = build_task(
    "convai2",
    "dialogue: {text}",
    list_files(
        _turns,
        train="train_self_original_no_cands.txt 131438 | train_self_original.txt 131438",
        dev="valid_self_original_no_cands.txt 7801 | valid_self_original.txt 7801",
    ),
    metrics=("answer_f1",),
    group_field="group",
)
"""ConvAI2: the next response of a chat, given a persona; F1 and perplexity (Dinan et al., 2020)"""

CONVAI2_CHOICE = Task(
    name="convai2_choice",
    kind="choice",
    metrics=("choice_accuracy",),
    folders=("convai2",),
    splits=list_files(_choices, train="train_self_original.txt 131438", dev="valid_self_original.txt 7801"),
    group_field="group",
)
"""ConvAI2 as a choice among 20 candidate responses: hits@1 (Dinan et al., 2020)"""
