"""Pictures of every page, both themes and languages, for the documents: ``python -m tests.screenshots [FOLDER]``."""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tests.chromium import browser
from tests.pages import LANGUAGES, PAGES, THEMES, open_page, recorded, served, settled

SECONDS = 60
WIDTH, HEIGHT = 1280, 800
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
                        picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
                        few = picture.quantize(COLOURS, dither=Image.Dither.NONE)
                        few.save(folder / f"{name}-{theme}-{language}.png", optimize=True)
                    page.context.close()
    print(f"{len(THEMES) * len(LANGUAGES) * len(PAGES)} pictures in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
