"""What a test needs of the machine, and what happens where that is missing."""

from __future__ import annotations

import os

import pytest

__all__ = ["needs"]


def needs(found: object, what: str) -> None:
    """Leave the test out where ``what`` was not ``found``; under CI=true that is a failure."""
    if found:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is not installed; CI must have everything")
    pytest.skip(f"needs {what}, which is not installed")
