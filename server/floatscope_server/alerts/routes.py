"""Stand-in until the routes of alerts are merged."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
