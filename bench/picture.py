"""The pictures of the README: the top of a report as Chromium draws it, light and dark.

    make quickstart && python bench/picture.py runs/quickstart/report.html

Writes docs/images/report.png and report-dark.png, with few colours so that they are small. Needs Chromium and Pillow.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def take_screenshot(page: Path, width: int, height: int, dark: bool) -> Image.Image:
    """A window of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"no browser here; install one of: {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as room:
        shot = Path(room) / "page.png"
        subprocess.run(
            [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={room}/profile", f"--window-size={width},{height}",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--screenshot={shot}",
                page.resolve().as_uri(),
            ],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
        return Image.open(shot).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=1390, help="where to cut; the end of the table of scores")
    given = parser.parse_args()
    for name, dark in (("report", False), ("report-dark", True)):
        out = IMAGES / f"{name}.png"
        take_screenshot(given.page, given.width, given.height, dark).quantize(64).save(out, optimize=True)
        print(f"{out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
