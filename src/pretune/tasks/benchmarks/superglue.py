"""SuperGLUE (Wang et al., 2019): BoolQ, CB, RTE, WiC, WSC, AX-b, AX-g, MultiRC and ReCoRD; COPA is in `choice`.

In WiC and WSC the word in question is marked with asterisks in the text, as in T5.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.benchmarks.readers import Fields, RowReader, build_task, list_files, read_label_index
from pretune.tasks.example import Example
from pretune.tasks.table import Jsonl, TableRow, Tsv, read_lines
from pretune.tasks.task import Task, Template

BOOLEAN_LABELS = ("False", "True")
"""SuperGLUE's labels for no and yes, in this order."""

_ENTAILMENT = ("entailment", "not_entailment")
_CB_LABELS = ("entailment", "contradiction", "neutral")
_RTE_SOURCE = "rte hypothesis: {pair} premise: {text}"

_boolq = RowReader(make=Fields(text="question", pair="passage", label="label", labels=BOOLEAN_LABELS, id="idx"))
BOOLQ = build_task(
    "boolq",
    "boolq question: {text} passage: {pair}",
    list_files(_boolq, train="train.jsonl", dev="val.jsonl 3270", train32="train32.jsonl 32", dev32="dev32.jsonl 32"),
    labels=BOOLEAN_LABELS,
    folders=("boolq", "BoolQ"),
)
"""BoolQ: yes/no questions about a passage (Clark et al., 2019)"""

_rte_fields = Fields(text="premise", pair="hypothesis", label="label", labels=_ENTAILMENT, id="idx")
CB = build_task(
    "cb",
    "cb hypothesis: {pair} premise: {text}",
    list_files(RowReader(make=replace(_rte_fields, labels=_CB_LABELS)), train="train.jsonl 250", dev="val.jsonl 56"),
    labels=_CB_LABELS,
    metrics=("accuracy_f1_macro",),
    folders=("cb", "CB"),
)
"""CB: is the writer of a text committed to one of its clauses? (de Marneffe et al., 2019)"""

RTE = build_task(
    "superglue_rte",
    _RTE_SOURCE,
    list_files(RowReader(make=_rte_fields), train="train.jsonl 2490", dev="val.jsonl 277"),
    labels=_ENTAILMENT,
    folders=("superglue_rte", "RTE"),
)
"""RTE in SuperGLUE's format; the same pairs as GLUE's"""


def _parse_wic(row: TableRow) -> Example:
    sides = []
    for side in (1, 2):
        text, start, end = row.get_text(f"sentence{side}"), row.get(f"start{side}"), row.get(f"end{side}")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text)):
            raise DataError(f"{row.location}: start{side}, end{side} must be inside the sentence, got ({start}, {end})")
        sides.append(f"{text[:start]}*{text[start:end]}*{text[end:]}")
    return Example(
        text=sides[0],
        pair=sides[1],
        label=read_label_index(row, "label", BOOLEAN_LABELS) if "label" in row.values else None,
        id=str(row.get("idx")),
        facts={name: row.get_text(name) for name in ("word", "sentence1", "sentence2")},
    )


def read_wic(path: Path) -> Iterator[Example]:
    """Yield WiC's published pairs, whose word is given by word index; the labels T and F are in a second file."""
    label_file = path.with_name(path.name.replace(".data.", ".gold."))
    if not label_file.exists():
        raise DataError(f"{label_file}: no such file; it must hold the labels of {path.name}")
    label_rows = [
        TableRow(f"{label_file}:{number}", {"label": line.strip()})
        for number, line in read_lines(label_file)
        if line.strip()
    ]
    rows = [*Tsv(columns=("word", "pos", "places", "sentence1", "sentence2")).read_rows(path)]
    if len(label_rows) != len(rows):
        raise DataError(
            f"{label_file}: {len(label_rows)} labels for the {len(rows)} pairs of {path.name}; fetch both files again"
        )
    for number, (row, label) in enumerate(zip(rows, label_rows, strict=True)):
        first, _, second = row.get_text("places").partition("-")
        yield Example(
            text=_mark_word(row, "sentence1", first),
            pair=_mark_word(row, "sentence2", second),
            label=read_label_index(label, "label", ("F", "T")),
            id=str(number),
            facts={name: row.get_text(name) for name in ("word", "sentence1", "sentence2")},
        )


def _mark_word(row: TableRow, side: str, place: str) -> str:
    words = row.get_text(side).split()
    if not place.isdecimal() or int(place) >= len(words):
        raise DataError(
            f"{row.location}: word index {row.get_text('places')[:40]!r} does not fit a sentence of {len(words)} words"
        )
    words[int(place)] = f"*{words[int(place)]}*"
    return " ".join(words)


WIC = build_task(
    "wic",
    "wic sentence1: {sentence1} sentence2: {sentence2} word: {word}",
    list_files(
        {"*.jsonl": RowReader(make=_parse_wic), "*.txt": read_wic},
        train="train.jsonl | train/train.data.txt",
        dev="val.jsonl | dev/dev.data.txt",
        test="test/test.data.txt",  # SuperGLUE's test set has no labels
    ),
    labels=BOOLEAN_LABELS,
    folders=("wic", "WiC", "WiC_dataset"),
)
"""WiC: does a word have the same meaning in two sentences? (Pilehvar and Camacho-Collados, 2019)"""


def _parse_wsc(row: TableRow) -> Example:
    text, target = row.get_text("text"), row.get("target")
    pronoun = target["span2_text"]
    starts = [match.start() for match in re.finditer(r"\S+", text)]  # spans are counted in words
    expected_start = starts[min(target["span2_index"], len(starts) - 1)]
    places = [match.start() for match in re.finditer(rf"\b{re.escape(pronoun)}\b", text, re.IGNORECASE)]
    if not places:
        raise DataError(f"{row.location}: pronoun {pronoun[:40]!r} is not in the text")
    start = min(places, key=lambda place: abs(place - expected_start))
    end = start + len(pronoun)
    return Example(
        text=f"{text[:start]}*{text[start:end]}*{text[end:]}",
        pair=" ".join(target["span1_text"].split()),
        label=read_label_index(row, "label", BOOLEAN_LABELS) if "label" in row.values else None,
        id=str(row.get("idx")),
        facts={"plain": text, "pronoun": pronoun},
    )


WSC = build_task(
    "wsc",
    "wsc: {text} noun: {pair}",
    list_files(RowReader(make=_parse_wsc), train="train.jsonl 554", dev="val.jsonl 104"),
    labels=BOOLEAN_LABELS,
    folders=("wsc", "WSC"),
)
"""WSC: does a pronoun refer to this noun? (Levesque et al., 2012)"""

AXB = build_task(
    "superglue_axb",
    _RTE_SOURCE,
    list_files(RowReader(make=replace(_rte_fields, text="sentence1", pair="sentence2")), test="AX-b.jsonl 1104"),
    labels=_ENTAILMENT,
    metrics=("matthews",),
    folders=("superglue_ax", "AX-b"),
)
"""AX-b: SuperGLUE's broad diagnostic of entailment, for models of RTE"""

AXG = build_task(
    "superglue_axg",
    _RTE_SOURCE,
    list_files(RowReader(make=replace(_rte_fields, group="pair_id")), test="AX-g.jsonl 356"),
    labels=_ENTAILMENT,
    metrics=("accuracy", "gender_parity"),
    folders=("superglue_ax", "AX-g"),
)
"""AX-g: SuperGLUE's Winogender pairs, which differ in a pronoun (Rudinger et al., 2018), for models of RTE"""

AX = build_task(
    "superglue_ax",
    _RTE_SOURCE,
    {"test": AXB.splits["test"], "test_gender": AXG.splits["test"]},
    labels=_ENTAILMENT,
    metrics=("matthews", "accuracy"),
)
"""SuperGLUE's two diagnostics of entailment: AX-b as `test`, AX-g as `test_gender`"""


@spec
class PassageReader:
    """A reader of passages, with a function from one to its examples, and the name of these in an error."""

    parse: Callable[[TableRow], Iterator[Example]]
    content: str

    def __call__(self, path: Path) -> Iterator[Example]:
        for row in Jsonl().read_rows(path):
            try:
                yield from self.parse(row)
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"{row.location}: not a passage with {self.content} ({error!r})") from None


def _parse_answers(row: TableRow) -> Iterator[Example]:
    """Yield every answer of every question of a passage."""
    passage = row.get("passage")
    for question in passage["questions"]:
        for answer in question["answers"]:
            yield Example(
                text=passage["text"],
                pair=f"{question['question']} {answer['text']}",
                label=int(answer["label"]) if "label" in answer else None,
                id=f"{row.get('idx')}-{question['idx']}-{answer['idx']}",
                group=f"{row.get('idx')}-{question['idx']}",
                facts={"question": question["question"], "answer": answer["text"]},
            )


_multirc = PassageReader(parse=_parse_answers, content="questions and answers")
MULTIRC = build_task(
    "multirc",
    "multirc question: {question} answer: {answer} paragraph: {text}",
    list_files(_multirc, train="train.jsonl 27243", dev="val.jsonl 4848"),
    labels=BOOLEAN_LABELS,
    metrics=("multirc",),
    folders=("multirc", "MultiRC"),
    group_field="text",
)
"""MultiRC: which of a question's answers are correct? Any number may be (Khashabi et al., 2018)"""


def _parse_queries(row: TableRow) -> Iterator[Example]:
    """Yield every query of a passage; the label is the first correct choice, `answers` are all."""
    passage = row.get("passage")["text"]
    places = sorted((place["start"], place["end"] + 1) for place in row.get("passage")["entities"])
    names = tuple(dict.fromkeys(passage[start:end] for start, end in places))
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
    text = text.replace("\n@highlight\n", ". ")
    for query in row.get("qas"):
        answers = tuple(dict.fromkeys(answer["text"] for answer in query.get("answers", ())))
        correct = [index for index, name in enumerate(names) if name in answers]
        if answers and not correct:
            raise DataError(f"{row.location}: no answer of query {query['idx']} is an entity of the passage")
        yield Example(
            text=text,
            pair=query["query"],
            choices=names,
            label=correct[0] if correct else None,
            answers=answers,
            id=f"{row.get('idx')}-{query['idx']}",
            group=str(row.get("idx")),
            facts={"entities": ", ".join(names)},
        )


_record = PassageReader(parse=_parse_queries, content="entities and queries")
RECORD = Task(
    name="record",
    kind="choice",
    metrics=("record",),
    folders=("record", "ReCoRD"),
    splits=list_files(_record, train="train.jsonl | train32.jsonl 32 part", dev="val.jsonl | dev32.jsonl 32 part"),
    template=Template(source="record query: {pair} entities: {entities} passage: {text}", target="{answer}"),
    group_field="group",
)
"""ReCoRD: which entity of a passage fills the blank in a sentence? (Zhang et al., 2018)"""
