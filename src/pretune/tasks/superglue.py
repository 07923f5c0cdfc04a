"""SuperGLUE tasks (Wang et al., 2019) with one or two texts and a label: BoolQ, CB, RTE, WiC, WSC, AX-b, AX-g.

In WiC and WSC the word in question is marked with asterisks in the text, as in T5.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Fields, Jsonl, RowReader, TableRow, Tsv, read_label_index, read_lines
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template

BOOLEAN_LABELS = ("False", "True")
"""SuperGLUE's labels for no and yes, in this order."""

_ENTAILMENT = ("entailment", "not_entailment")
_CB_LABELS = ("entailment", "contradiction", "neutral")

_boolq = RowReader(
    table=Jsonl(), make=Fields(text="question", pair="passage", label="label", labels=BOOLEAN_LABELS, id="idx")
)
BOOLQ = Task(
    name="boolq",
    kind="pair",
    metrics=("accuracy",),
    labels=BOOLEAN_LABELS,
    folders=("boolq", "BoolQ"),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=_boolq),)),
        "dev": TaskSplit(published_name="validation", files=(SplitFile(path="val.jsonl", reader=_boolq, rows=3270),)),
        "train32": TaskSplit(
            published_name="train32 of FewGLUE", files=(SplitFile(path="train32.jsonl", reader=_boolq, rows=32),)
        ),
        "dev32": TaskSplit(
            published_name="dev32 of FewGLUE", files=(SplitFile(path="dev32.jsonl", reader=_boolq, rows=32),)
        ),
    },
    template=Template(source="boolq question: {text} passage: {pair}", targets=BOOLEAN_LABELS),
)
"""BoolQ: yes/no questions about a passage (Clark et al., 2019)"""

_cb = RowReader(
    table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_CB_LABELS, id="idx")
)
CB = Task(
    name="cb",
    kind="pair",
    metrics=("accuracy_f1_macro",),
    labels=_CB_LABELS,
    folders=("cb", "CB"),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=_cb, rows=250),)),
        "dev": TaskSplit(published_name="validation", files=(SplitFile(path="val.jsonl", reader=_cb, rows=56),)),
    },
    template=Template(source="cb hypothesis: {pair} premise: {text}", targets=_CB_LABELS),
)
"""CB: is the writer of a text committed to one of its clauses? (de Marneffe et al., 2019)"""

_rte = RowReader(
    table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_ENTAILMENT, id="idx")
)
RTE = Task(
    name="superglue_rte",
    kind="pair",
    metrics=("accuracy",),
    labels=_ENTAILMENT,
    folders=("superglue_rte", "RTE"),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=_rte, rows=2490),)),
        "dev": TaskSplit(published_name="validation", files=(SplitFile(path="val.jsonl", reader=_rte, rows=277),)),
    },
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
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


_wic = RowReader(table=Jsonl(), make=_parse_wic)
WIC = Task(
    name="wic",
    kind="pair",
    metrics=("accuracy",),
    labels=BOOLEAN_LABELS,
    folders=("wic", "WiC", "WiC_dataset"),
    splits={
        "train": TaskSplit(
            published_name="train",
            files=(SplitFile(path="train.jsonl", reader=_wic), SplitFile(path="train/train.data.txt", reader=read_wic)),
        ),
        "dev": TaskSplit(
            published_name="validation",
            files=(SplitFile(path="val.jsonl", reader=_wic), SplitFile(path="dev/dev.data.txt", reader=read_wic)),
        ),
        # SuperGLUE's test set has no labels.
        "test": TaskSplit(published_name="test", files=(SplitFile(path="test/test.data.txt", reader=read_wic),)),
    },
    template=Template(source="wic sentence1: {sentence1} sentence2: {sentence2} word: {word}", targets=BOOLEAN_LABELS),
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


_wsc = RowReader(table=Jsonl(), make=_parse_wsc)
WSC = Task(
    name="wsc",
    kind="pair",
    metrics=("accuracy",),
    labels=BOOLEAN_LABELS,
    folders=("wsc", "WSC"),
    splits={
        "train": TaskSplit(published_name="train", files=(SplitFile(path="train.jsonl", reader=_wsc, rows=554),)),
        "dev": TaskSplit(published_name="validation", files=(SplitFile(path="val.jsonl", reader=_wsc, rows=104),)),
    },
    template=Template(source="wsc: {text} noun: {pair}", targets=BOOLEAN_LABELS),
)
"""WSC: does a pronoun refer to this noun? (Levesque et al., 2012)"""

_axb = RowReader(
    table=Jsonl(),
    make=Fields(text="sentence1", pair="sentence2", label="label", labels=_ENTAILMENT, id="idx"),
)
_axg = RowReader(
    table=Jsonl(),
    make=Fields(text="premise", pair="hypothesis", label="label", labels=_ENTAILMENT, id="idx", group="pair_id"),
)
AXB = Task(
    name="superglue_axb",
    kind="pair",
    metrics=("matthews",),
    labels=_ENTAILMENT,
    folders=("superglue_ax", "AX-b"),
    splits={"test": TaskSplit(published_name="AX-b", files=(SplitFile(path="AX-b.jsonl", reader=_axb, rows=1104),))},
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""AX-b: SuperGLUE's broad diagnostic of entailment, for models of RTE"""

AXG = Task(
    name="superglue_axg",
    kind="pair",
    metrics=("accuracy", "gender_parity"),
    labels=_ENTAILMENT,
    folders=("superglue_ax", "AX-g"),
    splits={"test": TaskSplit(published_name="AX-g", files=(SplitFile(path="AX-g.jsonl", reader=_axg, rows=356),))},
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""AX-g: SuperGLUE's Winogender pairs, which differ in a pronoun (Rudinger et al., 2018), for models of RTE"""

AX = Task(
    name="superglue_ax",
    kind="pair",
    metrics=("matthews", "accuracy"),
    labels=_ENTAILMENT,
    splits={"test": AXB.splits["test"], "test_gender": AXG.splits["test"]},
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""SuperGLUE's two diagnostics of entailment: AX-b as `test`, AX-g as `test_gender`"""
