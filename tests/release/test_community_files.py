"""Citation file, security policy and issue templates: valid, complete, and without private addresses."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import pretune
from tests.conftest import ROOT

TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_citation() -> None:
    """The fields that the Citation File Format 1.2.0 requires, and the present version and licence."""
    citation = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert all("name" in author or {"family-names", "given-names"} <= author.keys() for author in citation["authors"])
    assert citation["version"] == pretune.__version__
    assert citation["license"] == "Apache-2.0"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates(path: Path) -> None:
    template = read_yaml(path)
    if path.stem == "config":
        assert template.keys() <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= template.keys()
    ids = [part["id"] for part in template["body"] if part["type"] != "markdown"]
    assert len({*ids}) == len(ids)
    for part in template["body"]:
        assert part["type"] in FIELDS and part["attributes"].get("label", part["type"] == "markdown")
    assert any(part.get("validations", {}).get("required") for part in template["body"])


def test_no_private_addresses() -> None:
    """Pages of the index of packages only; no addresses of persons, and no hosts within a network."""
    for path in (ROOT / "SECURITY.md", ROOT / "CITATION.cff", ROOT / "pyproject.toml", *TEMPLATES):
        text = path.read_text(encoding="utf-8")
        hosts = set(re.findall(r"https?://([^/\s\"')]+)", text))
        assert hosts <= {"pypi.org"}, path
        assert not re.search(r"[\w.]+@[\w-]+\.\w+", text), path


def read_yaml(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content
