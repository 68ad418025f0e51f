"""Kills an outbox at every point of every transaction of a delivery, in forked children, then lets one live.

Run as a program: ``python -m tests.server.alerts.delivery_kill_points FOLDER URL``. Prints as JSON, for each of the runs,
where it was killed and how its deliveries ended. The receiver is somebody else's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlmodel import Session, col, select

from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.outbox import Outbox
from floatscope_server.observation import Observation
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.server.alerts.kill_points import POINTS, Deadly, child
from tests.server.alerts.outboxes import Bench

if TYPE_CHECKING:
    pass

KINDS = ("generic", "slack", "feishu", "dingtalk")
STATES = ("firing", "resolved")
