"""Whether a host's key is the one that is known: known_hosts files, revoked keys, and KRLs.

Reads files, connects to nothing, and accepts no certificate. Whatever may revoke a key but cannot
be read is an error. Sources: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT; OpenSSH's PROTOCOL.krl.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from udpbench.control.connections.ssh_config import Destination
from udpbench.errors import ConnectError

CA, REVOKED = "@cert-authority", "@revoked"
HASHED = "|1|"
CERTIFICATE = "-cert-v01@"
KRL = b"SSHKRL\n\0"
KRL_FORMAT = 1
KRL_CERTIFICATES, KRL_KEYS, KRL_SHA1, KRL_SIGNATURE, KRL_SHA256 = range(1, 6)


class Untrusted(paramiko.SSHException):
    """The host presented a key that is revoked, too short, or unknown."""


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    where: str
    """``file:line``."""
    marker: str
    """``@cert-authority``, ``@revoked``, or empty."""
    names: str
    blob: bytes
    """The public key, as SSH sends it."""

    def of(self, name: str) -> bool:
        """Return whether it is a key of a host."""
        matching = [word for word in self.names.split(",") if _matches(word.lstrip("!"), name)]
        return bool(matching) and not any(word.startswith("!") for word in matching)


@dataclass(frozen=True)
class HostKeys:
    """All keys that the files of a target have for it."""

    target: Destination
    known: tuple[KnownKey, ...]
    revoked: tuple[tuple[str, bytes | RevokedDigest], ...]
    """Where, and which: a key, or the digest of one."""

    @property
    def types(self) -> tuple[str, ...]:
        """The types of the known keys, in their order, as paramiko names signatures by them."""
        rsa = ("rsa-sha2-512", "rsa-sha2-256")
        names = (_type(key.blob) for key in self.known)
        signatures = (rsa if name == "ssh-rsa" else (name,) for name in names)
        return tuple(dict.fromkeys(chain.from_iterable(signatures)))

    def verify(self, key: paramiko.PKey) -> None:
        """Return if a key is known and not revoked; raises Untrusted, BadHostKeyException."""
        blob = key.asbytes()
        shown = f"{key.get_name()} {key.fingerprint}"
        for where, revoked in self.revoked:
            if revoked == blob or (isinstance(revoked, RevokedDigest) and revoked.of(blob)):
                what = f"its host key is revoked: {shown}, by {where}"
                step = "do not connect to it before it has a new key (ssh-keygen, there)"
                raise Untrusted(f"{what}; {step}")
        least_bits = self.target.least_rsa_bits
        if key.get_name() == "ssh-rsa" and key.get_bits() < least_bits:
            what = f"its host key is too short: {shown} has {key.get_bits()} bits"
            raise Untrusted(f"{what}; RequiredRSASize is {least_bits}; give the host a longer key")
        if any(known.blob == blob for known in self.known):
            return
        if not self.known:
            raise Untrusted(_unknown(self.target, shown))
        same = [known for known in self.known if _type(known.blob) == key.get_name()]
        expected = (*same, *self.known)[0]
        other = paramiko.PKey.from_type_string(_type(expected.blob), expected.blob)
        raise paramiko.BadHostKeyException(self.target.key_name, key, other)


def _unknown(target: Destination, shown: str) -> str:
    files = ", ".join(target.known_hosts)
    return (
        f"its host key is unknown: {shown}; {target.known_name} is in none of {files}; compare "
        f"it with the host's own, then accept it: ssh {target.typed}"
    )


@dataclass(frozen=True)
class RevokedDigest:
    """The digest of a revoked key."""

    algorithm: str
    digest: bytes

    def of(self, blob: bytes) -> bool:
        """Return whether it is a key's."""
        return hashlib.new(self.algorithm, blob, usedforsecurity=False).digest() == self.digest


def load_host_keys(target: Destination, host: str) -> HostKeys:
    """Return what a target's files say of its key; ConnectError names what cannot be used."""
    lines = [key for file in target.known_hosts for key in _known_keys(file, target, host)]
    names = {target.known_name, target.key_name}
    revoked = [
        (f"{key.where} ({REVOKED})", key.blob)
        for key in lines
        if key.marker == REVOKED and any(map(key.of, names))
    ]
    listed = [entry for file in target.revoked_hosts for entry in _revoked_keys(file, target, host)]
    known = [key for key in lines if not key.marker and key.of(target.known_name)]
    return HostKeys(target, tuple(known), (*revoked, *listed))


def _matches(pattern: str, name: str) -> bool:
    """Return whether a name is meant: by its hash, or a pattern of * and ? (ssh_config(5))."""
    if pattern.startswith(HASHED):
        _, _, salt, digest = f"{pattern}||".split("|")[:4]
        try:
            key, expected = base64.b64decode(salt), base64.b64decode(digest)
        except binascii.Error:
            return False
        return hmac.compare_digest(hmac.digest(key, name.lower().encode(), "sha1"), expected)
    words = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(words, name, re.IGNORECASE | re.DOTALL) is not None


def _read(file: str, target: Destination, host: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        what = f"{target}: {file} cannot be read: {error.strerror}"
        raise ConnectError(f"{what}; it may revoke keys: let this user read it", host) from error


def _known_keys(file: str, target: Destination, host: str) -> Iterator[KnownKey]:
    """Yield the lines of a known_hosts file, skipping what is of no kind that paramiko knows."""
    if not Path(file).exists():
        return
    for number, line in enumerate(_read(file, target, host).splitlines(), 1):
        try:
            key = _known_key(f"{file}:{number}", line.decode())
        except (InvalidHostKey, ValueError) as error:
            text = f"{target}: {file}, line {number} cannot be used: not a host key"
            step = "correct that line, which may revoke a key"
            if not line.lstrip().startswith(b"@"):
                step = "fix or remove that line"
            raise ConnectError(f"{text}; {step}", host) from error
        if key is not None:
            yield key


def _known_key(where: str, line: str) -> KnownKey | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker not in ("", CA, REVOKED):
        raise ValueError(marker)
    if len(words) < 3:
        if marker == REVOKED:
            raise ValueError("no key")
        return None
    names, kind, text = words[:3]
    if marker == CA:
        return None  # only certificates are signed by it, and none is accepted
    if marker == REVOKED:
        return KnownKey(where, marker, names, _blob(kind, text))
    try:
        entry = HostKeyEntry.from_line(f"{names} {kind} {text}")
    except paramiko.SSHException:
        return None
    return KnownKey(where, marker, names, entry.key.asbytes()) if entry is not None else None


def _blob(kind: str, text: str) -> bytes:
    """Return a key's bytes; ValueError if they are of another kind, or a certificate's."""
    blob = base64.b64decode(text, validate=True)
    if CERTIFICATE in kind:
        raise ValueError("a certificate, not a public key")
    if _type(blob) != kind:
        raise ValueError(f"not of type {kind}")
    return blob


def _type(blob: bytes) -> str:
    try:
        return next(_strings(blob)).decode()
    except StopIteration:
        raise ValueError("an empty key") from None


def _strings(data: bytes) -> Iterator[bytes]:
    """Yield strings, each after its length (RFC 4251, 5); ValueError if one is incomplete."""
    while data:
        if len(data) < 4 or len(data) < 4 + (size := struct.unpack_from(">I", data)[0]):
            raise ValueError("truncated")
        yield data[4 : 4 + size]
        data = data[4 + size :]


def _revoked_keys(
    file: str, target: Destination, host: str
) -> Iterator[tuple[str, bytes | RevokedDigest]]:
    """Yield the keys of a RevokedHostKeys file: a KRL, or public keys, one a line."""
    content = _read(file, target, host)
    where = f"{file} (RevokedHostKeys)"
    try:
        if content.startswith(KRL):
            for entry in _in_krl(content):
                yield where, entry
            return
        for number, line in enumerate(content.splitlines(), 1):
            where = f"{file}:{number} (RevokedHostKeys)"
            if line.strip() and not line.lstrip().startswith(b"#"):
                yield where, _listed(line.decode())
    except ValueError as error:
        text = f"{target}: {where} cannot be used: {error}"
        step = "no host is trusted without it: write it anew (ssh-keygen -k), or correct it"
        raise ConnectError(f"{text}; {step}", host) from error


def _listed(line: str) -> bytes:
    """Return the key of a line, which may have options before it, as authorized_keys has."""
    words = line.split()
    for kind, text in pairwise(words):
        try:
            return _blob(kind, text)
        except ValueError:
            continue
    raise ValueError("not a public key")


def _in_krl(content: bytes) -> Iterator[bytes | RevokedDigest]:
    """Yield what a KRL revokes, but for certificates; ValueError if not all of it is understood."""
    start = len(KRL) + 4 + 3 * 8
    if len(content) < start or struct.unpack_from(">I", content, len(KRL))[0] != KRL_FORMAT:
        raise ValueError("a KRL of another format")
    rest = content[start:]
    for _ in range(2):  # reserved, comment
        rest = rest[4 + len(_first(rest)) :]
    while rest:
        kind, section = rest[0], _first(rest[1:])
        rest = rest[5 + len(section) :]
        if kind == KRL_KEYS:
            yield from _strings(section)
        elif kind in (KRL_SHA1, KRL_SHA256):
            name = "sha1" if kind == KRL_SHA1 else "sha256"
            yield from (RevokedDigest(name, digest) for digest in _strings(section))
        elif kind == KRL_SIGNATURE:
            rest = rest[4 + len(_first(rest)) :]
        elif kind != KRL_CERTIFICATES:  # of which none is accepted
            raise ValueError(f"a KRL with a section of type {kind}, which is unknown")


def _first(data: bytes) -> bytes:
    try:
        return next(_strings(data))
    except StopIteration:
        raise ValueError("truncated") from None
