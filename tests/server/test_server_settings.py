"""Settings are checked when they are built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floatscope_server.settings import Settings


def test_the_default_is_this_machine_only() -> None:
    settings = Settings()
    assert settings.host == "127.0.0.1"
    assert settings.loopback
    assert settings.database == Path("floatscope-data/floatscope.db")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "training.example"])
def test_a_public_address_needs_a_token_file(host: str) -> None:
    with pytest.raises(ValueError, match="--token-file"):
        Settings(host=host)
    assert not Settings(host=host, token_file=Path("tokens")).loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_addresses_need_none(host: str) -> None:
    assert Settings(host=host).loopback


def test_a_database_is_named_and_its_password_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="'mysql' is not supported") as caught:
        Settings(db="mysql://me:secret@host/db")
    assert "secret" not in str(caught.value)
    settings = Settings(db="postgresql://me:secret@host/db")
    assert settings.postgres
    assert "secret" not in repr(settings)
    assert Settings(db="sqlite:////var/x.db").database == Path("/var/x.db")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        Settings(port=port)


def test_environment_and_overrides() -> None:
    environ = {
        "FLOATSCOPE_DATA": "/srv/fs",
        "FLOATSCOPE_PORT": "7000",
        "FLOATSCOPE_TOKEN_FILE": "/srv/tokens",
        "FLOATSCOPE_ALLOWED_HOSTS": "a.example, b.example",
        "FLOATSCOPE_WEBHOOK_ALLOW": "10.0.0.0/8",
    }
    settings = Settings.from_env(environ, port=7001, host=None)
    assert settings.data == Path("/srv/fs")
    assert settings.port == 7001
    assert settings.token_file == Path("/srv/tokens")
    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.webhook_allow == ("10.0.0.0/8",)
    with pytest.raises(ValueError, match="FLOATSCOPE_PORT"):
        Settings.from_env({"FLOATSCOPE_PORT": "http"})


def test_every_field_is_documented() -> None:
    source = Path(__file__).parents[2] / "server" / "floatscope_server" / "settings.py"
    lines = source.read_text().splitlines()
    fields = [n for n, line in enumerate(lines) if line.startswith("    ") and ": " in line and " = " in line]
    declared = [n for n in fields if lines[n].strip().split(":")[0] in Settings.__dataclass_fields__]
    assert len(declared) == len(Settings.__dataclass_fields__)
    for n in declared:
        assert lines[n + 1].strip().startswith('"""'), lines[n]


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "http://127.0.0.1:6160"),
        ({"host": "::1"}, "http://[::1]:6160"),
        ({"port": 0}, None),
        ({"host": "0.0.0.0", "token_file": Path("tokens")}, None),
        ({"host": "::", "token_file": Path("tokens")}, None),
        ({"host": "", "token_file": Path("tokens")}, None),
        ({"host": "0.0.0.0", "token_file": Path("tokens"), "public_url": "https://fs.example/"}, "https://fs.example"),
    ],
)
def test_links_lead_where_people_reach_the_server(options: dict[str, Any], url: str | None) -> None:
    assert Settings(**options).url == url
    given = options.get("public_url")
    if given:
        assert Settings.from_env({"FLOATSCOPE_PUBLIC_URL": given}).url == url
        with pytest.raises(ValueError, match="public_url"):
            Settings(public_url="fs.example")
