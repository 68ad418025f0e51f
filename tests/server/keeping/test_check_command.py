"""``floatscope server --check-store`` and ``--repair-store``, as an operator types them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlmodel import col

from floatscope_server.models import TileRaw
from floatscope_server.store import Store
from tests.server.keeping import kept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.server.conftest import Make, MakePen, OpenStore
    from tests.server.programs import Command


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _options(store: Store) -> list[str]:
    if store.settings.postgres:
        assert store.settings.db is not None
        return ["--db", store.settings.db]
    return ["--data", str(store.settings.data)]


def test_damage_is_said_and_mended(store: Store, pen: MakePen, make: Make, command: Callable[..., Command]) -> None:
    kept.fill(store, pen, make, steps=100)
    options = _options(store)
    assert command("server", *options, "--check-store").finish() == (0, "nothing is damaged\n", "")
    for idx in (1, 3):
        kept.flip(store, TileRaw, col(TileRaw.idx) == idx)
    status, out, err = command("server", *options, "--check-store").finish()
    assert (status, err) == (1, "")
    assert [line.endswith("its checksum does not match") for line in out.splitlines()] == [True, True]
    status, out, err = command("server", *options, "--repair-store").finish()
    assert (status, out) == (2, "")
    assert "another" in err
    store.stop()
    status, out, err = command("server", *options, "--repair-store").finish()
    assert status == 0, err
    assert [line.endswith("dropped, and declared as a gap") for line in out.splitlines()] == [True, True, False]
    assert command("server", *options, "--check-store").finish() == (0, "nothing is damaged\n", "")


@pytest.mark.engines("sqlite")
def test_damaged_pages_are_said(store: Store, pen: MakePen, make: Make, command: Callable[..., Command]) -> None:
    kept.fill(store, pen, make, steps=200)
    store.stop()
    file = store.settings.database
    content = bytearray(file.read_bytes())
    with closing(sqlite3.connect(file)) as connection:
        find = "SELECT rootpage FROM sqlite_master WHERE tbl_name = 'rank_event' AND type = 'index'"
        ((page,), *_) = connection.execute(find).fetchall()
    content[(page - 1) * 8192 : page * 8192] = b"\xff" * 8192
    file.write_bytes(content)
    status, out, err = command("server", *_options(store), "--check-store").finish()
    assert (status, err) == (1, "")
    assert out.startswith("the file: ")


@pytest.mark.engines("sqlite")
def test_where_there_is_no_store_it_says_so(tmp_path: Path, command: Callable[..., Command]) -> None:
    status, out, err = command("server", "--data", str(tmp_path / "none"), "--check-store").finish()
    assert (status, out) == (2, "")
    assert "there is no floatscope store" in err
    assert "--data DIR" in err
    assert "--server" not in err, "which this command has not"
