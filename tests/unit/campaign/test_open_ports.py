"""Which listening sockets count as open to the network.

Sockets on all addresses are bound to the loopback interface, so that none is really open.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import udpbench
from udpbench.campaign import open_ports as module
from udpbench.campaign.open_ports import open_ports, scheduler_command, worker_command

Serve = Callable[[socket.socket], object]
ANY, ANY_6 = "0.0.0.0", "::"  # noqa: S104 - of loopback alone, see listening


@contextmanager
def listening(address: str, serve: Serve | None = None) -> Iterator[int]:
    """Yield the port of a socket that listens; clients are served by a thread."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        listener.bind((address, 0))
        listener.listen()
        with ExitStack() as clients:

            def accept() -> None:
                while True:
                    try:
                        client = clients.enter_context(listener.accept()[0])
                        if serve is not None:
                            serve(client)
                    except ssl.SSLError:
                        continue
                    except OSError:  # shut down
                        return

            thread = threading.Thread(target=accept)
            thread.start()
            try:
                yield listener.getsockname()[1]
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"])
def test_a_port_on_loopback_is_closed(address: str) -> None:
    """By IPv4 and by IPv6; nobody connects to it."""
    with listening(address, lambda _: pytest.fail("connected")):
        assert () == open_ports(os.getpid())


@pytest.mark.parametrize("address", [ANY, ANY_6, "::ffff:0.0.0.0"])
def test_a_port_on_all_addresses_is_open(address: str) -> None:
    """Whoever connects is greeted, as by Dask."""
    with listening(address, lambda client: client.sendall(b"hello")) as port:
        shown = f"[::]:{port}" if address == ANY_6 else f"0.0.0.0:{port}"
        assert (shown,) == open_ports(os.getpid())


def test_a_server_that_waits_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of HTTP does, which takes a client's TLS for the beginning of a request."""
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    with listening(ANY) as port:
        assert (f"0.0.0.0:{port}",) == open_ports(os.getpid())


def test_a_port_that_cannot_be_tried_is_open() -> None:
    """It listens on an address to which this host has no way."""
    with socket.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND: an address of nobody
        listener.bind(("2001:db8::1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert (f"[2001:db8::1]:{port}",) == open_ports(os.getpid())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("demand", list(ssl.VerifyMode))
def test_only_who_demands_a_certificate_is_closed(
    demand: ssl.VerifyMode, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """Encryption alone keeps nobody out, nor does a certificate that may be left out."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.load_cert_chain(certificate(tmp_path))
    context.load_verify_locations(certificate(tmp_path))
    context.verify_mode = demand

    def serve(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True) as encrypted:
            encrypted.sendall(b"hello")

    with listening(ANY, serve) as port:
        opened = () if demand == ssl.CERT_REQUIRED else (f"0.0.0.0:{port}",)
        assert opened == open_ports(os.getpid())


def certificate(folder: Path) -> Path:
    """Return a file with a key and a certificate that it signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dask")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    day = datetime.timedelta(days=1)
    signed = (
        builder.not_valid_before(now - day).not_valid_after(now + day).sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    file = folder / "both.pem"
    file.write_bytes(secret + signed.public_bytes(pem))
    return file


def test_a_process_that_has_ended_has_no_answer() -> None:
    """Nobody takes that for closed."""
    with pytest.raises(FileNotFoundError):
        open_ports(2**22 + 1)  # beyond PID_MAX_LIMIT


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:8786", "tcp://[::1]:9000", "tls://control.example:8786"]
)
def test_every_command_says_where_to_listen(address: str) -> None:
    """The lab starts them; here is what a reader types."""
    for command in (scheduler_command(address), worker_command(address, "rack1")):
        assert " --dashboard-address 127.0.0.1:0 " in f"{command} "
        listens = ("--tls-ca-file", "--tls-cert", "--tls-key")
        if address.startswith("tcp:"):
            assert re.search(r" --host ('\[::1\]'|127\.0\.0\.1) ", command)
        assert address.startswith("tls:") == all(word in command for word in listens)


def test_no_other_place_says_how_to_start_dask() -> None:
    """What the lab starts is what is printed: open_ports.py, and the page of campaigns."""
    root = Path(udpbench.__file__).parents[1]
    files = [*root.glob("udpbench/**/*.py"), *root.glob("docs/*.md"), *root.glob("*.md")]
    texts = {file.name: file.read_text() for file in [*files, *root.glob("experiments/**/*.*")]}
    shown = {name for name, text in texts.items() if re.search(r"\bdask (worker|scheduler)", text)}
    assert {"open_ports.py", "campaigns.md"} == shown - {"CHANGELOG.md"}
