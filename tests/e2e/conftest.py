"""One real demo, shared by the tests that watch it, read its output and question its folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.demos import Demo, demonstrated


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo of this session; tests that come first see it running."""
    with demonstrated(tmp_path_factory.mktemp("demo") / "data") as demo:
        yield demo
