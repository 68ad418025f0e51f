"""Pictures of every page for the documents, some of them on a phone too: ``python -m tests.screenshots [FOLDER]``."""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Page

from tests.chromium import browser
from tests.pages import LANGUAGES, PAGES, THEMES, open_page, recorded, served, settled

SECONDS = 60
WIDTH, HEIGHT = 1280, 800
PHONE = (390, 844)
ON_A_PHONE = ("runs", "overview", "layer", "alerts")
"""What is looked at on the way; the others are laid out alike."""
COLOURS = 128
"""Of a picture: the pages have few, and half of the bytes is enough."""


def main() -> int:
    """Take them all."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium")
    if program is None:
        print("chromium is missing: apt-get install chromium", file=sys.stderr)
        return 2
    with TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        recorded(data, SECONDS)
        with served(data) as url, browser(program) as running:
            for theme in THEMES:
                for language in LANGUAGES:
                    page = open_page(running, theme=theme, language=language, width=WIDTH, height=HEIGHT)
                    for name, place in PAGES.items():
                        settled(page, url, place)
                        _keep(page, folder / f"{name}-{theme}-{language}.png")
                    page.context.close()
            for theme, language in zip(THEMES, LANGUAGES, strict=True):
                page = open_page(running, theme=theme, language=language, width=PHONE[0], height=PHONE[1])
                for name in ON_A_PHONE:
                    settled(page, url, PAGES[name])
                    _keep(page, folder / f"{name}-phone-{theme}-{language}.png")
                page.context.close()
    print(f"{len(THEMES) * (len(LANGUAGES) * len(PAGES) + len(ON_A_PHONE))} pictures in {folder}")
    return 0


def _keep(page: Page, file: Path) -> None:
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
