"""Law: a circuit opens after failures in a row and lets one request try; a message goes to a public address
of its host only, over a connection to the address that was checked; the status of an answer decides."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.courier.answers import Answer
from pyengine.doors.gateway.courier.circuits import Circuit, Circuits
from pyengine.doors.gateway.courier.courier import Courier, PushLimits
from pyengine.doors.gateway.courier.hosts import Forbidden, Hosts, is_own, is_public
from pyengine.doors.gateway.courier.http_client import HttpClient
from pyengine.doors.gateway.courier.outbox import Outbox
from pyengine.doors.gateway.courier.pushes import Offer, Push, shown
from pyengine.doors.gateway.metrics import Metrics
from pyengine.errors import InvalidRequest
from tests.doors.gateway.http_client import WAIT_S
from tests.doors.gateway.receivers import Receiver, Reply

PRIVATE = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 192.0.0.1 192.0.2.1
192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
192.0.0.8 192.0.0.192 192.0.0.255
168.63.129.16 192.88.99.1 3fff::1 3fff:fff::1 2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:8.8.8.8
:: ::1 ::7f00:1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 100::1 2001::1 2001:db8::1
2002:a00:1:: 2002:7f00:1:: fc00::1 fd00::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1
"""
PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "172.32.0.1", "168.63.129.17", "2606:4700::1111", "2606:4700::5eff:a00:1"),
    *("::ffff:8.8.8.8", "64:ff9b::808:808"),
]


@pytest.mark.parametrize("address", PRIVATE.split())
def test_an_address_that_is_not_public(address: str) -> None:
    """Networks of this machine, of an organisation, of a provider, and the same in other words."""
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_that_is_public(address: str) -> None:
    """Those of the internet, and the same in other words."""
    assert is_public(address)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0", "::1", "::ffff:127.0.0.1"]
)
def test_names_of_this_machine(host: str) -> None:
    """However it is written."""
    with pytest.raises(Forbidden):
        asyncio.run(Hosts(()).addresses(host, 80))


@pytest.mark.parametrize(
    ("named", "is_named"),
    [
        ("Inner.Example", True),
        ("inner.example:81", True),
        (".example", True),
        (".example:81", True),
        (".example:80", False),
        ("inner.example:80", False),
        ("example", False),
        (".inner.example", False),
        (".ample", False),
    ],
)
def test_named_hosts(named: str, is_named: bool) -> None:
    """A name, with its port, or all names below one."""
    assert Hosts([named]).is_named("inner.example", 81) is is_named


def test_an_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a public one: services behind its firewall listen there too. Others are not."""
    monkeypatch.setattr("pyengine.doors.gateway.courier.hosts.is_public", lambda address: True)
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"):
        with pytest.raises(Forbidden, match="this machine's"):
            asyncio.run(Hosts(()).addresses(address, 80))
    assert asyncio.run(Hosts(["127.0.0.1"]).addresses("127.0.0.1", 80)) == ["127.0.0.1"]
    assert not any(is_own(address, 80) for address in PUBLIC)


def test_silent_name_servers_keep_no_known_name_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of names that do not resolve leave threads for one that has resolved before."""
    ended = threading.Event()

    def resolve(host: str, *_: object, **__: object) -> list[object]:
        if host != "good.example":
            ended.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]

    async def look_up() -> list[str]:
        hosts = Hosts(())
        await hosts.addresses("good.example", 80)
        silent = [asyncio.create_task(hosts.addresses(f"h{n}.example", 80)) for n in range(200)]
        try:
            async with asyncio.timeout(WAIT_S):
                while threading.active_count() < 48:
                    await asyncio.sleep(0)
                return await hosts.addresses("good.example", 80)
        finally:
            ended.set()
            await asyncio.gather(*silent)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert asyncio.run(look_up()) == ["8.8.8.8"]


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        *((each, True) for each in ("a.internal", ".internal", ".internal:8080", "a:1", "10.0.0.1", "::1")),
        *((each, True) for each in ("[::1]", "[::1]:80", "10.0.0.1:80", "A_b-c")),
        *(
            (each, False)
            for each in ("*.internal", "*", "a:", "a:b", "http://a", "a b", "", ".", "b\xfccher")
        ),
    ],
)
def test_hosts_that_can_be_named(name: str, is_taken: bool) -> None:
    """What matches nothing is refused where it is written."""
    config = GatewayConfig(database_url="postgresql://h/d", push_private=(name,))
    if is_taken:
        config.check()
    else:
        with pytest.raises(InvalidRequest, match="no host"):
            config.check()


def test_one_private_address_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that has a public address too is refused."""

    def resolve(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Forbidden, match=r"10\.0\.0\.1"):
        asyncio.run(Hosts(()).addresses("both.example", 80))
    assert asyncio.run(Hosts(["both.example"]).addresses("both.example", 80)) == ["8.8.8.8", "10.0.0.1"]


def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what it is."""
    monkeypatch.delattr(socket, "getaddrinfo")
    for address in ("8.8.8.8", "2606:4700::1111"):
        assert asyncio.run(Hosts(()).addresses(address, 80)) == [address]


def test_lookups_take_no_thread_of_the_loop() -> None:
    """Slow ones would keep the gateway from its database."""

    async def resolve() -> list[str]:
        ended = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, ended.wait)
        try:
            async with asyncio.timeout(WAIT_S):
                return await Hosts(["localhost"]).addresses("localhost", 80)
        finally:
            ended.set()
            await busy

    assert "127.0.0.1" in asyncio.run(resolve())


class Checked(Hosts):
    """Hosts whose check gives this machine, whatever the name."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(())
        self._found = list(addresses)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Give the addresses."""
        return self._found


def posted(hosts: Hosts, url: str, **headers: str) -> Answer:
    """The answer to a message."""

    async def post() -> Answer:
        client = HttpClient(hosts, token="t", connect_s=2, request_s=5)
        try:
            return await client.post(url, headers, b"{}")
        finally:
            await client.close()

    return asyncio.run(post())


def test_the_connection_goes_to_the_checked_address() -> None:
    """The name is not resolved again, and is still the name of the request; the next address is tried where
    one takes no connection; a token is not sent in the clear."""
    with Receiver() as receiver:
        url = f"http://receiver.invalid:{receiver.port}/"
        assert posted(Checked("127.0.0.2", "127.0.0.1"), url) == Answer(200)
        assert receiver.got[0].headers["host"] == f"receiver.invalid:{receiver.port}"
        assert "authorization" not in receiver.got[0].headers


def test_a_header_that_cannot_be_sent(caplog: pytest.LogCaptureFixture) -> None:
    """Speaks against the message, with a sentence."""
    with Receiver() as receiver:
        answer = posted(Checked("127.0.0.1"), receiver.url, **{"x-b\xfc": "v"})
    assert (answer.status, answer.problem) == (None, "unreachable")
    assert "not ASCII" in answer.detail and not caplog.messages


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would connect to what it likes."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Receiver() as receiver:
        assert posted(Checked("127.0.0.1"), f"http://receiver.invalid:{receiver.port}/") == Answer(200)


def test_tls_is_verified_against_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not against the address that the connection goes to."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path, "receiver.invalid")))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with Receiver(tls=tls) as receiver:
        assert posted(Checked("127.0.0.1"), f"https://receiver.invalid:{receiver.port}/") == Answer(200)
        assert receiver.got[0].headers["authorization"] == "Bearer t"
        other = posted(Checked("127.0.0.1"), f"https://other.invalid:{receiver.port}/")
        assert (other.status, other.problem) == (None, "unreachable")


def certificate(folder: Path, name: str) -> Path:
    """Make a certificate of its own for a name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem))
    return folder / "certificate.pem"


def test_large_answers_are_not_read() -> None:
    """Their status is enough."""
    with Receiver(lambda got: Reply(body=b"x" * 5_000_000)) as receiver:
        assert posted(Checked("127.0.0.1"), f"http://receiver.invalid:{receiver.port}/") == Answer(200)


@pytest.mark.parametrize(
    ("status", "delivered", "failure", "final"),
    [
        *((status, True, False, False) for status in (200, 202, 204)),
        *((status, False, False, True) for status in (400, 404, 405, 410)),
        *((status, False, True, False) for status in (429, 502, 503, 504, None)),
        *((status, False, False, False) for status in (301, 307, 401, 403, 409, 413, 422, 500, 501)),
    ],
)
def test_answers(status: int | None, delivered: bool, failure: bool, final: bool) -> None:
    """The table of docs/how-to/push.md."""
    answer = Answer(status)
    assert (answer.is_delivered, answer.is_failure, answer.is_final) == (delivered, failure, final)


def fail(
    circuit: Circuit, now_s: float, *, at_once: bool = False, retry_after_s: float | None = None
) -> bool:
    """A request that begins and fails."""
    circuit.begun(now_s)
    return circuit.failed(now_s, now_s, at_once=at_once, retry_after_s=retry_after_s)


def test_a_circuit_opens_and_closes() -> None:
    """Open after three failures; then one request after 1 s, 2 s, 4 s and so on up to a minute; closed by
    a success."""
    circuit, now_s = Circuit(), 100.0
    assert [fail(circuit, now_s) for _ in range(3)] == [False, False, True]
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        assert circuit.room(now_s + 0.79 * pause_s, 16) == 0
        now_s += 1.21 * pause_s
        assert circuit.room(now_s, 16) == 1
        assert not fail(circuit, now_s)
    now_s += 73
    circuit.begun(now_s)
    assert circuit.room(now_s, 16) == 0
    assert circuit.succeeded(now_s)
    assert circuit.room(now_s, 16) == 16


def test_failures_of_requests_before_the_pause_count_once() -> None:
    """Sixteen that fail together are no sixteen failures in a row."""
    circuit = Circuit()
    for _ in range(16):
        circuit.begun(1.0)
    for n in range(16):
        circuit.failed(1.0, 2.0 + n / 100, at_once=False, retry_after_s=None)
    assert circuit.room(3.3, 16) == 1


def test_pauses_that_are_asked_for() -> None:
    """Retry-After counts at once, an hour at most; an address that may not be sent to rests for long."""
    circuit = Circuit()
    assert not fail(circuit, 0.0, retry_after_s=5.0)
    assert (circuit.room(4.9, 16), circuit.room(5.1, 16)) == (0, 16)
    fail(circuit, 10.0, retry_after_s=1e9)
    assert (circuit.room(3600.0, 16), circuit.room(3611.0, 16)) == (0, 16)
    circuit = Circuit()
    assert fail(circuit, 0.0, at_once=True)
    assert (circuit.room(47.0, 16), circuit.room(73.0, 16)) == (0, 1)


def test_circuits_are_forgotten() -> None:
    """Not while they have requests or a pause, and not soon after."""
    circuits = Circuits()
    circuits.of("never used")
    for _ in range(3):
        fail(circuits.of("failed"), 0.0)
    circuits.of("busy").begun(0.0)
    circuits.forget(10.0)
    assert circuits.open_count() == 1
    circuits.forget(2000.0)
    assert circuits.open_count() == 0
    assert circuits.of("busy").in_flight == 1


def test_an_address_that_fails_has_a_bound_for_each_gateway() -> None:
    """Gateways find out each by itself: by the requests that one may have open, then by one after each pause,
    six within the first minutes and one each minute at most, but for the spread of a fifth."""
    gateways, count = [Circuit() for _ in range(3)], 0
    for now_s in range(3600):
        for circuit in gateways:
            room = circuit.room(now_s, 16)
            for _ in range(room):
                circuit.begun(now_s)
            for n in range(room):
                circuit.failed(now_s, now_s + 0.1 + n / 100, at_once=False, retry_after_s=None)
            count += room
    assert count <= len(gateways) * (16 + 6 + 3600 / 48)


class Row:
    """A database with one task, which keeps how long its offer is put off."""

    def __init__(self) -> None:
        self.pauses_ms: list[int] = []

    async def rows(self, procedure: object, ids: list[str], versions: list[int], ms: list[int]) -> list[Any]:
        """Put it off."""
        self.pauses_ms += ms
        return []


def test_an_offer_that_is_refused_has_a_bound_for_each_gateway() -> None:
    """A pause is that of the task, so all gateways keep it; each length comes once for each of them at most,
    and then it is a minute for all."""

    async def pauses_ms() -> list[int]:
        row = Row()
        gateways = [Outbox(cast(Any, row), None) for _ in range(3)]
        url = "https://h.example/"
        offer = Offer(address=url, id="t", version=0, retry_ms=5000, headers={}, body=b"{}")
        for n in range(20):
            outbox = gateways[n % len(gateways)]
            outbox.refuse(offer)
            await outbox.flush()
        return row.pauses_ms

    short_ms = [ms for ms in (5000, 10_000, 20_000, 40_000) for _ in range(3)]
    assert asyncio.run(pauses_ms()) == [*short_ms, *[60_000] * 8]


class Due(Outbox):
    """An outbox with something due for these addresses, which keeps what is claimed."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self.rooms: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    async def due(self) -> list[str]:
        """Give the addresses."""
        return list(self._addresses)

    async def claim(self, rooms: dict[str, int]) -> list[Push]:
        """Give nothing."""
        self.rooms.put_nowait(rooms)
        return []

    async def flush(self) -> bool:
        """Leave nothing."""
        return False

    async def renew(self) -> None:
        """Do nothing."""


def rooms(limits: PushLimits, *addresses: str) -> dict[str, int]:
    """How much a courier claims for each of these addresses."""

    async def first() -> dict[str, int]:
        outbox = Due(list(addresses))
        client = HttpClient(Hosts(()), token=None, connect_s=1, request_s=1)
        running = asyncio.create_task(Courier(outbox, client, Metrics(), limits).run())
        found = await outbox.rooms.get()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return found

    return asyncio.run(first())


def test_every_address_gets_a_request_before_one_gets_several() -> None:
    """One with many messages costs the others nothing."""
    found = rooms(PushLimits(per_address=16, in_all=43), *(f"https://h{n}.example/" for n in range(30)))
    assert (len(found), sum(found.values())) == (30, 31)


def test_a_host_gets_a_quarter_of_all_requests() -> None:
    """However many addresses it has; another port, or another scheme, is another host."""
    many = [f"https://h.example/{n}" for n in range(300)]
    others = ["https://h.example:81/", "http://h.example/", "https://o.example/"]
    found = rooms(PushLimits(per_address=16, in_all=256), *many, *others)
    assert [found[one] for one in others] == [16, 16, 16]
    assert sum(found.values()) == 64 + 48


class Late(Due):
    """An outbox whose claim ends after the courier has begun to stop."""

    def __init__(self, push: Push) -> None:
        super().__init__([push.address])
        self._push = push
        self.claiming, self.stopping = asyncio.Event(), asyncio.Event()
        self.forgotten: asyncio.Queue[list[Push]] = asyncio.Queue()

    async def claim(self, rooms: dict[str, int]) -> list[Push]:
        """Give the push, late."""
        self.claiming.set()
        await self.stopping.wait()
        return [self._push]

    def forget(self, pushes: list[Push]) -> None:
        """Keep what is forgotten."""
        self.forgotten.put_nowait(pushes)


def test_a_claim_that_ends_after_a_stop_has_begun() -> None:
    """Its messages are left to other gateways: nothing would wait for their requests."""

    async def stopped(push: Push) -> list[Push]:
        outbox = Late(push)
        client = HttpClient(Checked("127.0.0.1"), token=None, connect_s=1, request_s=1)
        courier = Courier(outbox, client, Metrics(), PushLimits())
        running = asyncio.create_task(courier.run())
        try:
            await outbox.claiming.wait()
            await courier.drain(1)
            outbox.stopping.set()
            async with asyncio.timeout(WAIT_S):
                return await outbox.forgotten.get()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with Receiver() as receiver:
        push = Offer(address=receiver.url, id="t", version=0, retry_ms=9, headers={}, body=b"{}")
        assert asyncio.run(stopped(push)) == [push]
        assert receiver.is_silent()


def test_the_log_shows_no_secret() -> None:
    """Neither user nor path nor query."""
    assert shown("https://ann:secret@h.example:81/secret/x?secret@") == "https://h.example:81"
    assert shown("http://[::1]?secret") == "http://[::1]"
