"""The selection of quick cases: every name in it is that of a case, so that a renamed case does not stay slow."""

import pytest

from pretune.text.styles import KINDS
from tests.conftest import SLOW_CASES
from tests.contracts.objective_cases import CASES as OBJECTIVE_CASES
from tests.contracts.tiny import CASES
from tests.parity.cases import CASES as PARITY_CASES
from tests.parity.test_heads import CASES as HEAD_CASES
from tests.selection import keep_quick

NAMES = {
    "tests/contracts/test_families.py": set(CASES),
    "tests/contracts/test_objectives.py": {*KINDS, *OBJECTIVE_CASES},
    "tests/inference/test_decode.py": set(CASES),
    "tests/adaptation/test_extra_layers.py": set(CASES),
    "tests/text/test_tokenizer_encode.py": set(KINDS),
    "tests/parity/test_parity.py": {case.name for case in PARITY_CASES},
    "tests/parity/test_heads.py": {case.name for case in HEAD_CASES},
}


def test_slow_cases_exist() -> None:
    unknown = {file: set(names.split()) - NAMES[file] for file, names in SLOW_CASES.items()}
    assert not any(unknown.values()), unknown


def test_a_quick_value_must_be_there() -> None:
    with pytest.raises(ValueError, match="'c'"):
        keep_quick(["a", "b"], "c")


def test_only_the_others_are_slow() -> None:
    quick, slow = keep_quick([("a", 1), ("b", 2)], ("a", 1))
    assert quick == ("a", 1)
    assert slow.values == ("b", 2) and [mark.name for mark in slow.marks] == ["slow"]
