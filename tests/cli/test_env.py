import json
import os
import re
import tomllib

import pretune
from pretune.cli import env, main
from tests.conftest import ROOT, Capture, Patch, run_command


def test_json_holds_the_facts(capsys: Capture) -> None:
    import torch

    facts = json.loads(run_command(capsys, ["env", "--json"]).out)
    assert facts["pretune"] == pretune.__version__
    assert facts["packages"]["torch"] == torch.__version__
    assert 1 <= facts["cores"] <= (os.cpu_count() or 1)
    assert facts["memory"] > 2**28
    assert len([device for device in facts["devices"] if device["kind"] == "cuda"]) == torch.cuda.device_count()


def test_the_table_has_a_line_for_every_fact(capsys: Capture) -> None:
    lines = run_command(capsys, ["env"]).out.splitlines()
    found = [line.split()[0] for line in lines]
    assert {"pretune", "python", "torch", "numpy", "tokenizers", "safetensors", "platform", "cores", "memory"} <= {
        *found
    }
    assert re.fullmatch(r"memory +\d+\.\d GiB", lines[found.index("memory")])
    assert len({re.search(r"\s+", line).end() for line in lines if (" " in line)}) == 1  # type: ignore[union-attr]


def test_a_missing_package_is_said_and_not_fatal(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(env, "_PACKAGES", ("torch", "no-such-package"))
    assert main(["env"]) == 0
    assert re.search(r"^no-such-package +\D+$", capsys.readouterr().out, re.MULTILINE)


def test_a_broken_torch_still_gives_a_report(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert json.loads(run_command(capsys, ["env", "--json"]).out)["devices"] == []


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        extra: tuple(re.split(r"[<>=!~ ]", need)[0] for need in needs)
        for extra, needs in project.items()
        if extra not in ("dev", "docs", "peers")
    }
    assert names == env.EXTRAS


def test_what_a_bug_report_needs(capsys: Capture, monkeypatch: Patch) -> None:
    import torch

    monkeypatch.setenv("PRETUNE_DATA", "/no/such/folder")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(env, "EXTRAS", {"hub": ("no-such-package",), "base": ("pytest",)})
    facts = json.loads(run_command(capsys, ["env", "--json"]).out)
    assert facts["threads"] == torch.get_num_threads()
    assert facts["extras"]["hub"] == {"no-such-package": None} and facts["extras"]["base"]["pytest"]
    assert facts["disks"]["here"]["free"] > 0 and facts["data"] == {"PRETUNE_DATA": "/no/such/folder", "there": False}
    assert facts["variables"]["HF_HUB_OFFLINE"] == "1"
    text = run_command(capsys, ["env"]).out
    for part in ("extra:hub", "no-such-package", "/no/such/folder", "disk:here", "processor"):
        assert part in text
