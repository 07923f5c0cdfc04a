"""docs/architecture.md names files and folders of the package that exist."""

import re

from tests.conftest import ROOT
from tests.docs.commands import spans

PACKAGE = ROOT / "src" / "pretune"


def test_every_named_file_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = {span for span in spans(text) if re.fullmatch(r"(?!tests|src)[a-z_]+/[\w/]*(\.py)?", span)}
    assert len(paths) > 50
    assert sorted(path for path in paths if not (PACKAGE / path).exists()) == []
