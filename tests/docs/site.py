"""Hooks of mkdocs: pages of the repository outside docs/, files that pages link to, and GitHub's Markdown.

The pages are written for a reader of the repository. On the site README.md is the first page, other pages keep their
path (`bench/log.md`), and a linked file of code becomes a page that shows it (`source/src/pretune/runs/quickstart.md`).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "mkdocs.yml"
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/log.md",
    "examples/README.md",
    "examples/ten_million_words/README.md",
)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".sbatch": "bash"}
REMOTE_WORKER, WORKER = "https://unpkg.com/iframe-worker/shim", "javascripts/frame_worker.js"
_LINK = re.compile(r"(\]\(|\b(?:src|srcset|href)=\")([^)\s\"#]+)((?:#[^)\s\"]*)?[)\"])")
_ITEM = re.compile(r"( *)([-*]|\d+\.) +")
_FENCE = re.compile(r" *(```|~~~)")


def find_site_path(path: str) -> str:
    """Return the path on the site of a file of the repository.

    >>> find_site_path("README.md"), find_site_path("docs/data.md"), find_site_path("bench/log.md")
    ('index.md', 'data.md', 'bench/log.md')
    >>> find_site_path("examples/t5.py"), find_site_path("LICENSE")
    ('source/examples/t5.py.md', 'source/LICENSE.md')
    """
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path in OUTSIDE else f"source/{path}.md"


def find_repository_path(path: str) -> str:
    """Return the file of the repository that is at a path of the site."""
    if path == "index.md":
        return "README.md"
    return path if path in OUTSIDE else f"docs/{path}"


def list_linked_files() -> list[str]:
    """Return the files that pages link to and that are neither pages nor pictures."""
    pages = [*OUTSIDE, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    targets = {
        _resolve(page, target)
        for page in pages
        for _, target, _ in _LINK.findall(_hide_code((ROOT / page).read_text(encoding="utf-8")))
        if not re.match(r"[a-z]+:", target)
    }
    return sorted(
        target
        for target in targets
        if (ROOT / target).is_file() and not target.startswith("docs/") and target not in OUTSIDE
    )


def rewrite_links(text: str, page: str) -> str:
    """Return the text of a page (a path of the repository) with links that are right on the site."""
    here = PurePosixPath(find_site_path(page)).parent

    def rewrite(match: re.Match[str]) -> str:
        opening, target, rest = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        place = find_site_path(_resolve(page, target))
        return opening + os.path.relpath(place, here) + rest

    return "\n".join(line if is_code else _LINK.sub(rewrite, line) for line, is_code in _split_lines(text))


def adapt_lists(text: str) -> str:
    """Return GitHub's Markdown as Python-Markdown reads it.

    A list needs an empty line before it, and what belongs to an item is indented by four columns.

    >>> print(adapt_lists("Text:\\n- a\\n  b\\n  - c\\n\\n  ```\\n  d\\n  ```"))
    Text:
    <BLANKLINE>
    - a
        b
        - c
    <BLANKLINE>
        ```
        d
        ```
    """
    lines: list[str] = []
    columns: list[int] = []  # where the contents of the open items begin
    previous_is_text = False
    for line, is_code in _split_lines(text):
        indent = len(line) - len(line.lstrip(" "))
        item = None if is_code else _ITEM.match(line)
        if line.strip() and (not is_code or _FENCE.match(line)):
            while columns and indent < columns[-1]:
                if item is None and not indent and previous_is_text:  # a line of a paragraph of the item
                    break
                columns.pop()
        if item and not columns and previous_is_text:
            lines.append("")
        depth = len(columns)
        lines.append(" " * 4 * depth + line[min(indent, columns[-1]) :] if depth and line.strip() else line)
        if item and (columns or indent < 4):
            columns.append(len(item[0]))
        previous_is_text = bool(line.strip()) and not is_code and not item and not line.startswith(("#", "|", "<!--"))
    return "\n".join(lines)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/, and a page for every linked file."""
    from mkdocs.structure.files import File

    for path in OUTSIDE:
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, find_site_path(path), content=text))
    for path in list_linked_files():
        code = (ROOT / path).read_text(encoding="utf-8")
        fence = "~~~~~~"
        text = f"# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{code.rstrip()}\n{fence}\n"
        files.append(File.generated(config, find_site_path(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Adapt the lists and the links of a page."""
    path = page.file.src_uri
    return markdown if path.startswith("source/") else adapt_lists(rewrite_links(markdown, find_repository_path(path)))


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Let the search run without a network: the theme would load its replacement of workers from one."""
    here = PurePosixPath(page.file.dest_uri).parent
    return output.replace(REMOTE_WORKER, os.path.relpath(WORKER, here))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Do the same for the page of missing addresses."""
    return output_content.replace(REMOTE_WORKER, WORKER)


def _resolve(page: str, target: str) -> str:
    return os.path.normpath(PurePosixPath(page).parent / target)


def _hide_code(text: str) -> str:
    return "\n".join(line for line, is_code in _split_lines(text) if not is_code)


def _split_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a page, and whether each is within a fence."""
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        yield line, bool(fence or match)
        if match:
            fence = "" if fence else match[1]
