"""The site of the documentation: complete, strict, and without anything from the network."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.docs import site
from tests.readme.page import links


class Loader(yaml.SafeLoader):
    """YAML with the tag by which mkdocs calls a function."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def read_config() -> dict[str, Any]:
    config = yaml.load(site.CONFIG.read_text(encoding="utf-8"), Loader)
    assert isinstance(config, dict)
    return config


def list_pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from list_pages(part)


def test_navigation_has_every_page() -> None:
    """Pages of studies are linked from studies.md instead."""
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | {site.find_site_path(path) for path in site.OUTSIDE}
    named = [*list_pages(read_config()["nav"])]
    assert sorted(named) == sorted(pages)


def test_nothing_comes_from_the_network() -> None:
    config = read_config()
    assert config["theme"]["font"] is False and "offline" in config["plugins"] and config["strict"] is True
    assert not {"extra_css", "extra_javascript", "repo_url"} & config.keys()


def test_links_are_right_on_the_site() -> None:
    """Every link of a page leads to a page, a picture or a linked file of the site."""
    sources = {path: site.find_site_path(path) for path in site.OUTSIDE}
    sources |= {str(path.relative_to(ROOT)): path.name for path in (ROOT / "docs").glob("*.md")}
    there = {*sources.values(), *(site.find_site_path(path) for path in site.list_linked_files())}
    there |= {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*") if path.suffix != ".md"}
    assert any(path.startswith("source/src/pretune/") for path in there)
    studies = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("*/*.md")}
    for source, page in sources.items():
        text = site.rewrite_links((ROOT / source).read_text(encoding="utf-8"), source)
        targets = {
            os.path.normpath(Path(page).parent / link.partition("#")[0]) for link in links(text) if link[0] != "#"
        }
        assert sorted(targets - there - studies) == [], source


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    # NOTE: with --quiet, mkdocs also ignores warnings where it is strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_site(tmp_path: Path) -> None:
    """The whole site, with strict links and nothing from the network, and its search."""
    result = build(site.CONFIG, tmp_path / "site")
    assert result.returncode == 0, result.stderr[-3000:]
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|source|iframe)[^>]+(src|srcset)=\"?(https?:)?//", text), page
        assert not re.search(r"<link[^>]+rel=\"?(stylesheet|preconnect|icon)[^>]+href=\"?(https?:)?//", text), page
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("the search was not tried: chromium is not installed")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    address = f"file://{tmp_path}/site/export.html?q=optimizer"
    shown = subprocess.run([*command, address], capture_output=True, text=True).stdout
    assert re.search(r"\d+ matching documents", shown) and "optimizers.html" in shown


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[gone](gone.md)", "[gone](data.md#gone)", "[gone](../src/gone.py)"])
def test_a_broken_link_is_an_error(link: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "data.md").write_text(f"# Data\n\n{link}\n")
    text = site.CONFIG.read_text(encoding="utf-8").split("nav:\n  - Home")[0]
    text = text.replace("[tests/docs/site.py]", f"[{ROOT}/tests/docs/site.py]").replace(
        "docs_dir: docs", f"docs_dir: {docs}"
    )
    (tmp_path / "mkdocs.yml").write_text(text)
    result = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert result.returncode != 0 and "gone" in result.stderr
