"""The reader of pages itself, on a page that has everything."""

from pathlib import Path

from tests.readme.page import anchors, blocks, broken, links, rows, sections

PAGE = """# One
[a](other.md) and ![b](images/b.png) and [net](https://example.org/x)

```sh
# no heading
echo [c](none.md)
```

## The `two`, and *three*
| x | y |
|---|---:|
| 1 \\| 2 | 3 |

## One
<img src="images/b.png" alt="b">
"""


def test_blocks_headings_and_tables() -> None:
    assert blocks(PAGE) == [("sh", "# no heading\necho [c](none.md)\n")]
    assert anchors(PAGE) == {"one", "the-two-and-three", "one-1"}
    assert [title for title, _ in sections(PAGE)] == ["One", "The `two`, and *three*", "One"]
    assert rows(PAGE) == [["x", "y"], ["1 \\| 2", "3"]]
    assert links(PAGE) == ["other.md", "images/b.png", "images/b.png"]


def test_broken_links_are_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# There\n")
    page.write_text(
        "# Here\n[1](other.md#there) [2](#here) [3](other.md#gone) [4](#gone) [5](gone.md) ![6](gone.png)\n"
    )
    assert broken(page) == ["other.md#gone", "#gone", "gone.md", "gone.png"]
