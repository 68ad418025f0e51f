"""Where webhooks may connect to."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from floatscope_server.alerts.connect import ForbiddenAddressError, Guard, Reply, Transport, resolve
from floatscope_server.alerts.receivers.answer import Answer, retry_after_s
from floatscope_server.alerts.schedule import DELAYS_S, decide

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Receiver

FORBIDDEN = [
    "127.0.0.1",
    "127.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.1.1",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00::1",
    "ff02::1",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "::8.8.8.8",
    "64:ff9b:1::808:808",
    "2606:4700::5efe:7f00:1",
    "2606:4700::200:5efe:a00:1",
    "fec0::1",
    "3fff::1",
    "5f00::1",
    "192.88.99.1",
]
METADATA = ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"]
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", FORBIDDEN + METADATA)
def test_special_addresses_are_forbidden_by_default(address: str) -> None:
    assert not Guard(()).permits("hooks.example.com", address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert Guard(()).permits("hooks.example.com", address)


@pytest.mark.parametrize(
    ("allow", "host", "address", "expected"),
    [
        (("10.0.0.0/8",), "a", "10.1.2.3", True),
        (("10.0.0.0/8",), "a", "192.168.0.1", False),
        (("10.0.0.0/8",), "a", "::ffff:10.1.2.3", True),
        (("127.0.0.1",), "a", "127.0.0.1", True),
        (("127.0.0.1",), "a", "127.0.0.2", False),
        (("Hooks.internal",), "hooks.INTERNAL.", "10.1.2.3", True),
        (("hooks.internal",), "evil.internal", "10.1.2.3", False),
        (("fd00::/8",), "a", "fd12::1", True),
        (("0.0.0.0/0", "::/0"), "a", "192.168.0.1", True),
        (("0.0.0.0/0", "::/0"), "a", "169.254.169.254", False),
        (("0.0.0.0/0", "::/0"), "a", "fd00:ec2::254", False),
        (("metadata.internal",), "metadata.internal", "169.254.169.254", False),
        (("169.254.169.254",), "a", "169.254.169.254", True),
        (("169.254.169.254",), "a", "::ffff:169.254.169.254", True),
        (("fd00:ec2::254",), "a", "fd00:ec2::254", True),
        (("0.0.0.0/0", "::/0"), "a", "fd00:ec2::254%1", False),
        (("0.0.0.0/0", "::/0"), "a", "::169.254.169.254", False),
        (("0.0.0.0/0", "::/0"), "a", "64:ff9b:1::a9fe:a9fe", False),
        (("fe80::/10",), "a", "fe80::1%eth0", True),
        (("::1",), "a", "::1", True),
    ],
)
def test_the_operators_list(allow: tuple[str, ...], host: str, address: str, expected: bool) -> None:
    assert Guard(allow).permits(host, address) is expected


@pytest.mark.parametrize("entry", ["10.0.0.0/40", "host/8", " "])
def test_an_entry_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="neither a host name nor a network"):
        Guard((entry,))


def _post(guard: Guard, url: str, answers: dict[str, list[str]] | None = None) -> Reply:
    async def resolver(host: str, port: int) -> list[str]:
        return await resolve(host, port) if answers is None else answers[host]

    async def main() -> Reply:
        transport = Transport(guard, resolver)
        try:
            return await transport.post(url, {}, b"{}")
        finally:
            await transport.close()

    return asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "[::1]"])
def test_every_spelling_of_loopback_is_refused(receiver: Receiver, host: str) -> None:
    try:
        socket.getaddrinfo(host.strip("[]"), receiver.port)
    except OSError:
        pytest.skip("this resolver does not know the spelling")
    with pytest.raises(ForbiddenAddressError):
        _post(Guard(()), f"http://{host}:{receiver.port}/")
    assert receiver.requests == []


def test_the_address_that_was_checked_is_the_one_that_is_used(receiver: Receiver) -> None:
    # The second look-up of a rebinding name never happens: the first answer is connected to.
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    async def main() -> Reply:
        async def resolver(_host: str, _port: int) -> list[str]:
            return next(answers)

        transport = Transport(Guard(("127.0.0.0/8",)), resolver)
        try:
            return await transport.post(f"http://hooks.example.com:{receiver.port}/x", {}, b"{}")
        finally:
            await transport.close()

    assert asyncio.run(main()).status == 204
    assert receiver.requests[0].headers["Host"] == f"hooks.example.com:{receiver.port}"
    assert next(answers) == ["169.254.169.254"]


def test_a_forbidden_address_beside_a_permitted_one_is_passed_over(receiver: Receiver) -> None:
    answers = {"hooks.example.com": ["10.0.0.1", "127.0.0.1"]}
    reply = _post(Guard(("127.0.0.1",)), f"http://hooks.example.com:{receiver.port}/", answers)
    assert reply.status == 204


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 2026 00:02:00 GMT", 120.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("-5", 0.0),
        ("soon", 0.0),
        ("999999999999", 86400.0),
    ],
)
def test_retry_after(header: str | None, seconds: float) -> None:
    assert retry_after_s(header, NOW) == seconds


def test_jitter_only_ever_delays() -> None:
    for tries in range(1, len(DELAYS_S)):
        for chance in (0.0, 0.5, 0.999):
            verdict = decide(tries, Answer(error="no answer in time"), NOW, chance)
            assert verdict.next_at is not None
            low = timedelta(seconds=DELAYS_S[tries])
            assert low <= verdict.next_at - NOW <= 1.2 * low
