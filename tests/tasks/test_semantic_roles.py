"""Semantic roles: CoNLL-2005 and 2012 columns are read, the predicate is marked, and arguments are scored."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from pretune.core.errors import DataError, UsageError
from pretune.metrics.entities import argument_f1
from pretune.tasks import TASKS
from pretune.tasks.benchmarks.conll import RoleReader, parse_brackets
from pretune.tasks.encoder import TaskEncoder
from pretune.tasks.example import Example
from pretune.tasks.types.semantic_roles import SEMANTIC_ROLES
from pretune.tasks.user_table import build_user_task
from tests.tasks.small import model_for, task_of

CONLL2005 = """\
The      DT   -      (A0*    (A1*
old      JJ   -      *       *
cat      NN   -      *)      *)
sat      VBD  sit    (V*)    *
and      CC   -      *       *
purred   VBD  purr   *       (V*)
#        #    -      *       (A2*)

Yes      UH   -
"""
CONLL2012 = """\
#begin document (bc/cctv/00/cctv_0000); part 000
bc/cctv  0  0  In     IN   (TOP(S(PP*  -     -   -  -  *      (ARGM-TMP*  *         -
bc/cctv  0  1  1938   CD   *)          -     -   -  -  (DATE)  *)         *         -
bc/cctv  0  2  they   PRP  (NP*)       -     -   -  -  *      (ARG0*)     (ARG0*)   (8)
bc/cctv  0  3  began  VBD  (VP*        begin 01  1  -  *      (V*)        *         -
bc/cctv  0  4  to     TO   *           -     -   -  -  *      (ARG1*      *         -
bc/cctv  0  5  write  VB   *           write 01  1  -  *      *           (V*)      -
bc/cctv  0  6  down   RP   *))         -     -   -  -  *      *)          (C-V*)    -

#end document
"""


def test_columns_of_2005(tmp_path: Path) -> None:
    path = tmp_path / "test.wsj"
    path.write_text(CONLL2005)
    first, second = RoleReader()(path)
    assert first.words == second.words == ("The", "old", "cat", "sat", "and", "purred", "#")
    assert (first.predicate, first.tags) == (3, ("B-A0", "I-A0", "I-A0", "O", "O", "O", "O"))
    assert (second.predicate, second.tags) == (5, ("B-A1", "I-A1", "I-A1", "O", "O", "O", "B-A2"))
    assert (first.id, second.id, first.group) == ("1-1", "1-2", "1")
    assert [*TASKS.get("conll2005_srl").splits["test"][0].reader(path)] == [first, second]


def test_columns_of_2012(tmp_path: Path) -> None:
    path = tmp_path / "dev.english.v4_gold_conll"
    path.write_text(CONLL2012)
    (tmp_path / "conll-2012").mkdir()
    (tmp_path / "conll-2012" / path.name).write_text(CONLL2012)
    first, second = TASKS.get("conll2012_srl").read("dev", tmp_path)
    assert first.words == ("In", "1938", "they", "began", "to", "write", "down")
    assert (first.predicate, second.predicate) == (3, 5)
    assert first.tags == ("B-ARGM-TMP", "I-ARGM-TMP", "B-ARG0", "O", "B-ARG1", "I-ARG1", "I-ARG1")
    assert second.tags == ("O", "O", "B-ARG0", "O", "O", "O", "O")


def test_columns_of_a_user(tmp_path: Path) -> None:
    """Sentences have as many columns as predicates, so that the file looks like no table."""
    path = tmp_path / "own.txt"
    path.write_text(CONLL2005)
    task = build_user_task({"train": path}, type="srl")
    assert (task.kind, task.metrics, len(task.labels)) == ("srl", ("argument_f1",), 6)
    assert [example.predicate for example in task.read("train")] == [3, 5]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("(A1*\n", "(A1\n", 1),
        ("*)\nsat", "*))\nsat", 1),
        ("(A2*)", "(A2*", 1),  # never closed
        ("purr  ", "-     ", 1),  # a column without its predicate
        ("(A0*", "(AGENT*", 1),  # no role of the task
        ("UH   -", "UH", 9),
    ],
)
def test_bad_columns_are_named(tmp_path: Path, old: str, new: str, line: int) -> None:
    assert old in CONLL2005
    path = tmp_path / "train-set"
    path.write_text(CONLL2005.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"train-set:{line}:") as fault:
        [*TASKS.get("conll2005_srl").splits["train"][0].reader(path)]
    assert "\n" not in str(fault.value)


def test_brackets() -> None:
    assert parse_brackets(["(A0*)", "(V*", "*)", "(C-V*)", "(A1*", "*)"], "x") == [
        "B-A0",
        "O",
        "O",
        "O",
        "B-A1",
        "I-A1",
    ]
    for cells in (["(A0*", "(A1*)"], ["*)"], ["A0"], ["(*)"], ["((A0*)"]):
        with pytest.raises(DataError):
            parse_brackets(cells, "x")


@pytest.mark.parametrize("shape", ["bert", "gpt2", "bart"])
def test_the_predicate_is_marked(shape: str) -> None:
    """The same words with another predicate are another sequence; every word keeps its tag."""
    task = task_of("srl")
    encoder = TaskEncoder.from_task(task, model_for(shape, task))
    words, tags = ("good", "boat", "good", "film"), ("B-A0", "O", "B-A1", "I-A1")
    items = encoder.encode([Example(text="", words=words, tags=tags, predicate=place) for place in (0, 2, 3)])
    assert items.alignment is not None and items.sequences.targets is not None
    offsets = items.sequences.offsets
    texts = []
    for low, high in itertools.pairwise(offsets):
        places = low + np.flatnonzero(items.alignment[low:high] >= 0)
        assert items.alignment[places].tolist() == [0, 1, 2, 3]
        assert [task.labels[target] for target in items.sequences.targets[places]] == list(tags)
        tokens = items.sequences if items.sequences.source is None else items.sequences.source
        texts.append(encoder.rules.tokenizer.decode(tokens.tokens[low:high], special=False))
    order = (1, 0) if shape == "gpt2" else (0, 1)  # a decoder reads the predicate first
    for text, place in zip(texts, (0, 2, 3), strict=True):
        marked = " ".join((*words[:place], "*", words[place], "*", *words[place + 1 :]))
        parts = [(marked, words[place])[index] for index in order]
        words_only = "".join("".join(parts).split())
        assert "".join(text.split()) == (
            words_only.replace("*", "") if shape == "bert" else words_only
        )  # unknown to it
    for place in (None, 4):
        with pytest.raises(DataError, match="no predicate"):
            encoder.encode([Example(text="", words=words, tags=tags, predicate=place)])


def test_arguments_are_scored_as_in_2005() -> None:
    """Numbers of srl-eval: the parts of an argument count together, the predicate does not count."""
    gold = [["B-A1", "B-V", "O", "B-C-A1", "B-A0"], ["B-A0", "O", "B-V", "B-AM-TMP", "I-AM-TMP"]]
    assert argument_f1(gold, gold)["f1"] == 1
    found = [["B-A1", "B-V", "O", "O", "B-A0"], ["B-A0", "O", "B-V", "B-AM-TMP", "O"]]
    assert argument_f1(gold, found) == {"f1": 0.5, "precision": 0.5, "recall": 0.5}
    # a continuation without a beginning is an argument of its own
    assert argument_f1([["B-C-A1", "O"]], [["B-A1", "O"]])["f1"] == 1
    assert argument_f1([["B-V"]], [["B-V"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}


def test_a_new_input_needs_a_predicate() -> None:
    read = SEMANTIC_ROLES.inputs.read_input
    assert read({"words": ["She", "sat"], "predicate": 1}, None, None, "x").predicate == 1
    for fields in ({"words": ["She", "sat"]}, {"words": ["She", "sat"], "predicate": 2}):
        with pytest.raises((DataError, UsageError), match="predicate"):
            read(fields, None, None, "x")
