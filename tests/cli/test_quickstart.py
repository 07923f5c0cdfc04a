"""`pretune quickstart`, stopped: what is there is not gone on with, and that is said."""

from pathlib import Path
from typing import Any

import pytest

from pretune.cli import main
from pretune.core.errors import Interrupted


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Interrupted("go on with --resume")])
def test_ctrl_c_says_what_to_do(
    stop: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(out: Path, **wishes: Any) -> None:
        if wishes["budget"] == "2m":
            (out / "texts").mkdir(parents=True)
        raise stop

    monkeypatch.setattr("pretune.recipes.quickstart.quickstart", work)
    out = tmp_path / "q"
    for budget, told in (
        ("1m", "where it was: run it again"),
        ("2m", f"remove {out} or choose another --out, and run"),
    ):
        assert main(["quickstart", f"--budget={budget}", f"--out={out}"]) == 130
        said = capsys.readouterr().err
        assert said.startswith("pretune: interrupted; a quick start does not go on") and told in said
        assert said.count("\n") == 1
