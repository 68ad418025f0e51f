"""Tables of who may do what, and of who has done what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Integer
from sqlmodel import Field, SQLModel

__all__ = ["Audit", "Session", "Token"]

# SQLite only numbers rows by itself where the key is spelled INTEGER.
_ID = BigInteger().with_variant(Integer(), "sqlite")


class Audit(SQLModel, table=True):
    """A change that somebody made. ``actor``: "local" where the server asks for no token, else "token" and the first
    digits of the hash of the one that was shown; ``action`` such as endpoint.add; ``subject``: what was changed."""

    __tablename__ = "audit"

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class Token(SQLModel, table=True):
    """An access token: ``hash`` is the SHA-256 of it in hexadecimal."""

    __tablename__ = "token"

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    scope: str
    hash: str = Field(unique=True)
    created_at: datetime


class Session(SQLModel, table=True):
    """A browser that has shown a token; ``hash`` is the SHA-256 of its cookie in hexadecimal."""

    __tablename__ = "session"

    hash: str = Field(primary_key=True)
    token_hash: str
    scope: str
    created_at: datetime
    expires_at: datetime
