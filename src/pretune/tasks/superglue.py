"""Tasks of SuperGLUE (Wang et al., 2019) that are a text, or two, and a label: BoolQ, CB, RTE, WiC, WSC, AX-b, AX-g.

In WiC and WSC the word in question is part of the example: it stands between asterisks, as in T5.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import Fields, Jsonl, Row, Rows, Tsv, index, lines
from pretune.tasks.task import File, Split, Task
from pretune.tasks.template import Template

TRUTH = ("False", "True")
"""How SuperGLUE's yes and no are called, no first."""

_ENTAILMENT = ("entailment", "not_entailment")
_CB = ("entailment", "contradiction", "neutral")

_boolq = Rows(table=Jsonl(), make=Fields(text="question", pair="passage", label="label", labels=TRUTH, id="idx"))
BOOLQ = Task(
    name="boolq",
    kind="pair",
    metrics=("accuracy",),
    labels=TRUTH,
    folders=("boolq", "BoolQ"),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_boolq),)),
        "dev": Split(published="validation", files=(File(path="val.jsonl", read=_boolq, rows=3270),)),
        "train32": Split(published="train32 of FewGLUE", files=(File(path="train32.jsonl", read=_boolq, rows=32),)),
        "dev32": Split(published="dev32 of FewGLUE", files=(File(path="dev32.jsonl", read=_boolq, rows=32),)),
    },
    template=Template(source="boolq question: {text} passage: {pair}", targets=TRUTH),
)
"""BoolQ: questions that a passage answers with yes or no (Clark et al., 2019)"""

_cb = Rows(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_CB, id="idx"))
CB = Task(
    name="cb",
    kind="pair",
    metrics=("accuracy_f1_macro",),
    labels=_CB,
    folders=("cb", "CB"),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_cb, rows=250),)),
        "dev": Split(published="validation", files=(File(path="val.jsonl", read=_cb, rows=56),)),
    },
    template=Template(source="cb hypothesis: {pair} premise: {text}", targets=_CB),
)
"""CB: is the writer of a text committed to one of its clauses? (de Marneffe et al., 2019)"""

_rte = Rows(table=Jsonl(), make=Fields(text="premise", pair="hypothesis", label="label", labels=_ENTAILMENT, id="idx"))
RTE = Task(
    name="superglue_rte",
    kind="pair",
    metrics=("accuracy",),
    labels=_ENTAILMENT,
    folders=("superglue_rte", "RTE"),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_rte, rows=2490),)),
        "dev": Split(published="validation", files=(File(path="val.jsonl", read=_rte, rows=277),)),
    },
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""RTE in SuperGLUE's form; the same pairs as GLUE's"""


def _wic_example(row: Row) -> Example:
    sides = []
    for side in (1, 2):
        text, start, end = row.text(f"sentence{side}"), row.get(f"start{side}"), row.get(f"end{side}")
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text)):
            raise DataError(f"{row.where}: start{side} and end{side} ({start}, {end}) are not within the sentence")
        sides.append(f"{text[:start]}*{text[start:end]}*{text[end:]}")
    return Example(
        text=sides[0],
        pair=sides[1],
        label=index(row, "label", TRUTH) if "label" in row.values else None,
        id=str(row.get("idx")),
        facts={name: row.text(name) for name in ("word", "sentence1", "sentence2")},
    )


def wic(path: Path) -> Iterator[Example]:
    """WiC's own files: pairs, whose word is counted in words, and beside them a file with a T or F for each."""
    gold = path.with_name(path.name.replace(".data.", ".gold."))
    if not gold.exists():
        raise DataError(f"{gold}: no such file; the labels of {path.name} are expected in it")
    said = [Row(f"{gold}:{number}", {"label": line.strip()}) for number, line in lines(gold) if line.strip()]
    rows = [*Tsv(columns=("word", "pos", "places", "sentence1", "sentence2")).rows(path)]
    if len(said) != len(rows):
        raise DataError(f"{gold}: {len(said)} labels for the {len(rows)} pairs of {path.name}; fetch both files again")
    for number, (row, label) in enumerate(zip(rows, said, strict=True)):
        first, _, second = row.text("places").partition("-")
        yield Example(
            text=_marked(row, "sentence1", first),
            pair=_marked(row, "sentence2", second),
            label=index(label, "label", ("F", "T")),
            id=str(number),
            facts={name: row.text(name) for name in ("word", "sentence1", "sentence2")},
        )


def _marked(row: Row, side: str, place: str) -> str:
    words = row.text(side).split()
    if not place.isdecimal() or int(place) >= len(words):
        raise DataError(f"{row.where}: {row.text('places')[:40]!r} does not say which of {len(words)} words is meant")
    words[int(place)] = f"*{words[int(place)]}*"
    return " ".join(words)


_wic = Rows(table=Jsonl(), make=_wic_example)
WIC = Task(
    name="wic",
    kind="pair",
    metrics=("accuracy",),
    labels=TRUTH,
    folders=("wic", "WiC", "WiC_dataset"),
    splits={
        "train": Split(
            published="train",
            files=(File(path="train.jsonl", read=_wic), File(path="train/train.data.txt", read=wic)),
        ),
        "dev": Split(
            published="validation", files=(File(path="val.jsonl", read=_wic), File(path="dev/dev.data.txt", read=wic))
        ),
        "test": Split(
            published="test", files=(File(path="test/test.data.txt", read=wic),)
        ),  # SuperGLUE's has no labels
    },
    template=Template(source="wic sentence1: {sentence1} sentence2: {sentence2} word: {word}", targets=TRUTH),
)
"""WiC: has a word the same meaning in two sentences? (Pilehvar and Camacho-Collados, 2019)"""


def _wsc_example(row: Row) -> Example:
    text, target = row.text("text"), row.get("target")
    pronoun = target["span2_text"]
    starts = [found.start() for found in re.finditer(r"\S+", text)]  # spans are counted in words
    near = starts[min(target["span2_index"], len(starts) - 1)]
    places = [found.start() for found in re.finditer(rf"\b{re.escape(pronoun)}\b", text, re.IGNORECASE)]
    if not places:
        raise DataError(f"{row.where}: the pronoun {pronoun[:40]!r} is not in the text")
    start = min(places, key=lambda place: abs(place - near))
    end = start + len(pronoun)
    return Example(
        text=f"{text[:start]}*{text[start:end]}*{text[end:]}",
        pair=" ".join(target["span1_text"].split()),
        label=index(row, "label", TRUTH) if "label" in row.values else None,
        id=str(row.get("idx")),
        facts={"plain": text, "pronoun": pronoun},
    )


_wsc = Rows(table=Jsonl(), make=_wsc_example)
WSC = Task(
    name="wsc",
    kind="pair",
    metrics=("accuracy",),
    labels=TRUTH,
    folders=("wsc", "WSC"),
    splits={
        "train": Split(published="train", files=(File(path="train.jsonl", read=_wsc, rows=554),)),
        "dev": Split(published="validation", files=(File(path="val.jsonl", read=_wsc, rows=104),)),
    },
    template=Template(source="wsc: {text} noun: {pair}", targets=TRUTH),
)
"""WSC: does a pronoun stand for this noun? (Levesque et al., 2012)"""

_axb = Rows(
    table=Jsonl(),
    make=Fields(text="sentence1", pair="sentence2", label="label", labels=_ENTAILMENT, id="idx"),
)
_axg = Rows(
    table=Jsonl(),
    make=Fields(text="premise", pair="hypothesis", label="label", labels=_ENTAILMENT, id="idx", group="pair_id"),
)
AXB = Task(
    name="superglue_axb",
    kind="pair",
    metrics=("matthews",),
    labels=_ENTAILMENT,
    folders=("superglue_ax", "AX-b"),
    splits={"test": Split(published="AX-b", files=(File(path="AX-b.jsonl", read=_axb, rows=1104),))},
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""AX-b: SuperGLUE's broad diagnostic of entailment, for models of RTE"""

AXG = Task(
    name="superglue_axg",
    kind="pair",
    metrics=("accuracy", "gender_parity"),
    labels=_ENTAILMENT,
    folders=("superglue_ax", "AX-g"),
    splits={"test": Split(published="AX-g", files=(File(path="AX-g.jsonl", read=_axg, rows=356),))},
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""AX-g: SuperGLUE's Winogender pairs, alike but for a pronoun (Rudinger et al., 2018), for models of RTE"""

AX = Task(
    name="superglue_ax",
    kind="pair",
    metrics=("matthews", "accuracy"),
    labels=_ENTAILMENT,
    splits={"test": AXB.splits["test"], "test_gender": AXG.splits["test"]},
    template=Template(source="rte hypothesis: {pair} premise: {text}", targets=_ENTAILMENT),
)
"""SuperGLUE's two diagnostics of entailment: AX-b as `test`, AX-g as `test_gender`"""
