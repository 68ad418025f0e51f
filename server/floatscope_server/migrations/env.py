"""Runs migrations on the connection that the store hands over; there is no other way in."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

import floatscope_server.access
import floatscope_server.alerts.models
import floatscope_server.models  # noqa: F401

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    compare_type=True,
)
context.run_migrations()
