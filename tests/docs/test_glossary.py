"""docs/glossary.md: our words on it are words of the code."""

import re
from dataclasses import fields
from pathlib import Path

from pretune.adaptation.peft import PEFT_METHODS
from pretune.objectives import OBJECTIVES
from pretune.runs.config import PretrainTrainConfig
from pretune.runs.finetune.config import AdaptationConfig, FinetuneTrainConfig
from pretune.text.styles import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
LINES = PAGE.splitlines()
ROWS = [
    line.split("|")[1:4]
    for line, after in zip(LINES, [*LINES[1:], ""], strict=True)
    if line.startswith("| ") and not after.startswith("|-")  # a header
]


def test_every_name_is_explained() -> None:
    ours = {word for _, here, _ in ROWS for word in re.findall(r"`([^`]+)`", here)}
    assert not {*OBJECTIVES} - ours and not {*KINDS} - ours
    assert not {"lora", "adapter", "prefix", "prompt"} - {*PEFT_METHODS}
    assert all("](" in where for _, _, where in ROWS)


def test_every_setting_is_there() -> None:
    known = {"train": {field.name for kind in (PretrainTrainConfig, FinetuneTrainConfig) for field in fields(kind)}}
    known["tune"] = {field.name for field in fields(AdaptationConfig)}
    named = re.findall(r"`(train|tune)\.(\w+)", PAGE)
    assert len(named) > 6 and [path for path in named if path[1] not in known[path[0]]] == []
