"""The SSH server named by ``connect: {ssh: …}``, according to ~/.ssh/config and ssh_config.

Reads these files and the files they include; connects to nothing. paramiko
ignores ``Include``, so included text is inserted first. An included file's ``Host`` and ``Match``
apply only if the including block does (ssh_config(5)): the two are merged into one ``Match``. An
option that decides whom to trust is followed, or refused by name.
"""

from __future__ import annotations

import getpass
import io
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import paramiko

from udpbench.errors import ConnectError
from udpbench.model.lab import SSH_CHARACTERS, SSH_SPEC

PORT = 22
CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
"""The first value of a key counts (ssh_config(5))."""
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
MAX_INCLUDES = 16
"""OpenSSH's limit (readconf.c, READCONF_MAX_DEPTH)."""
LINE = re.compile(r"\s*(?P<key>\w+)\s*(?:=\s*|\s)(?P<value>.*?)\s*\Z", re.DOTALL)
EVERYWHERE = "Host *"
Block = tuple[str, ...]
"""The criteria of a ``Match``, as words; empty if it matches every host."""
FILE_LISTS = {
    "userknownhostsfile": ("UserKnownHostsFile", KNOWN_HOSTS),
    "globalknownhostsfile": ("GlobalKnownHostsFile", GLOBAL_KNOWN_HOSTS),
    "revokedhostkeys": ("RevokedHostKeys", ""),
}
"""Key → its name, and the files without it."""
ALGORITHMS = {
    "kexalgorithms": ("KexAlgorithms", "kex"),
    "ciphers": ("Ciphers", "ciphers"),
    "macs": ("MACs", "macs"),
    "hostkeyalgorithms": ("HostKeyAlgorithms", "keys"),
    "pubkeyacceptedalgorithms": ("PubkeyAcceptedAlgorithms", "pubkeys"),
    "pubkeyacceptedkeytypes": ("PubkeyAcceptedKeyTypes", "pubkeys"),
}
"""Key → its name, and paramiko's name for such algorithms."""
AGENT_ALGORITHMS = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
"""Types of keys that an ssh-agent has and paramiko has not."""
SAME_ALGORITHMS = {"curve25519-sha256@libssh.org": "curve25519-sha256"}
"""paramiko's name (5.1) → a second name of the same algorithm (RFC 8731)."""
LEAST_RSA_BITS = 1024
"""OpenSSH's default of RequiredRSASize."""
FOLLOWED = {
    "CanonicalizeHostname": ("no", "false"),
    "CheckHostIP": ("no", "false"),
    "KnownHostsCommand": ("none",),
    "NoHostAuthenticationForLocalhost": ("no", "false"),
    "StrictHostKeyChecking": ("yes", "true", "ask"),
    "VerifyHostKeyDNS": ("no", "false"),
}
"""Options that decide whom to trust → what udpbench does; another value is refused."""
IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True)
class Destination:
    """One SSH server, and how to log in."""

    typed: str
    """The arguments with which ``ssh`` reaches it."""
    address: str
    port: int
    user: str
    identities: tuple[str, ...]
    """Private key files; they may not exist."""
    use_agent: bool
    known_hosts: tuple[str, ...]
    key_name: str
    """Name of the host key it must present: its address or HostKeyAlias."""
    key_port: int
    proxy_command: str | None
    proxy_jump: str | None
    revoked_hosts: tuple[str, ...] = ()
    """RevokedHostKeys: files of keys that no host may have."""
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """paramiko's name for a kind of algorithms → those allowed, best first; else its own."""
    known_first: bool = True
    """Whether types of known host keys come before the order of the algorithms."""
    least_rsa_bits: int = LEAST_RSA_BITS

    def __str__(self) -> str:
        port = f":{self.port}" if self.port != PORT else ""
        return f"{self.user}@{self.address}{port}"

    @property
    def known_name(self) -> str:
        """The name of its key in known_hosts files."""
        return self.key_name if self.key_port == PORT else f"[{self.key_name}]:{self.key_port}"


def read_config(host: str) -> paramiko.SSHConfig:
    """Return the user's and the system's configuration; raises ConnectError."""
    config = _Config()
    for name in CONFIGS:
        path = Path(name).expanduser()
        if not path.exists():
            continue
        try:
            config.parse(io.StringIO(expanded(path)))
        except (OSError, ValueError, paramiko.SSHException) as error:
            # paramiko shows the line, which may be of any file that an Include names.
            unknown = isinstance(error, paramiko.SSHException)
            why = "a line is not understood, which ssh -G names" if unknown else error
            text = f"{name} cannot be used: {why}; fix it, or move it away"
            raise ConnectError(text, host) from error
    config.parse(io.StringIO("CanonicalDomains none\n"))  # else paramiko (5.1) may miss it
    return config


def target_of(
    spec: str, config: paramiko.SSHConfig, host: str, jump: str | None = None
) -> Destination:
    """Return the target of ``[user@]host[:port]``; ``jump`` overrides the configured proxy.

    Raises ConnectError, also if an option decides whom to trust in a way that is not supported.
    """
    parts = SSH_SPEC.match(spec)
    if parts is None:
        text = f"{spec}: not understood; {SSH_CHARACTERS}; write [user@]host[:port]"
        raise ConnectError(text, host)
    name = parts["bracketed"] or parts["name"]
    try:
        options = config.lookup(name)
        port = int(parts["port"] or options.get("port", PORT))
        least_rsa_bits = _least_rsa_bits(options)
        files = {key: _files(options, key) for key in FILE_LISTS}
        algorithms = _algorithms(options)
    except (ValueError, ImportError, paramiko.SSHException) as error:
        text = f"{name}: ~/.ssh/config cannot be used: {error}; fix it"
        raise ConnectError(text, host) from error
    _refuse_unfollowed(options, name, host)
    alias = options.get("hostkeyalias")
    proxy = _proxy(options) if jump is None else {"proxyjump": jump}
    at = f"{parts['user']}@{name}" if parts["user"] else name
    return Destination(
        typed=f"-p {parts['port']} {at}" if parts["port"] else at,
        address=options["hostname"],
        port=port,
        user=parts["user"] or options.get("user") or getpass.getuser(),
        identities=tuple(map(_file, options.get("identityfile", IDENTITIES))),
        use_agent=options.get("identitiesonly", "no").lower() != "yes",
        known_hosts=(*files["userknownhostsfile"], *files["globalknownhostsfile"]),
        key_name=alias or options["hostname"],
        key_port=PORT if alias else port,
        proxy_command=proxy.get("proxycommand"),
        proxy_jump=proxy.get("proxyjump"),
        revoked_hosts=files["revokedhostkeys"],
        algorithms=algorithms,
        known_first=options.get("hostkeyalgorithms", "+")[:1] in ("+", "-"),
        least_rsa_bits=least_rsa_bits,
    )


class _Config(paramiko.SSHConfig):
    """A configuration that asks no resolver: ``target_of`` refuses CanonicalizeHostname."""

    def canonicalize(self, hostname: str, _options: object, _domains: object) -> str:
        """Return the name as it is."""
        return hostname


def _refuse_unfollowed(options: Mapping[str, str], name: str, host: str) -> None:
    for option, values in FOLLOWED.items():
        value = " ".join(_words(options.get(option.lower(), values[0])))
        if value.lower() not in values:
            what = f"{name}: ~/.ssh/config: {option} {value} decides whom to trust"
            step = f"if you trust this host without it, write above it: {option} {values[0]}"
            raise ConnectError(f"{what}, and udpbench does not follow it; {step}", host)


def _words(value: str) -> list[str]:
    """Return the words of a value, up to a comment."""
    words = shlex.split(value)
    comments = [number for number, word in enumerate(words) if word.startswith("#")]
    return words[: comments[0]] if comments else words


def _files(options: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the files of a list; ValueError for a name that would be taken for another."""
    option, default = FILE_LISTS[key]
    files = [_file(name) for name in _words(options.get(key, default)) if name.lower() != "none"]
    for file in files:
        if not file.startswith("/") or "%" in file or "${" in file:
            raise ValueError(
                f"{option} {file}: only names that start with / or ~ and have no % or ${{"
                " are supported"
            )
    return tuple(files)


def _least_rsa_bits(options: Mapping[str, str]) -> int:
    value = "".join(_words(options.get("requiredrsasize", str(LEAST_RSA_BITS))))
    if not value.isdecimal():
        raise ValueError(f"RequiredRSASize {value}: not a number of bits")
    return int(value)


def _algorithms(options: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the algorithms of each kind that is configured; ValueError if none is left."""
    allowed: dict[str, tuple[str, ...]] = {}
    for key, value in options.items():
        option, kind = ALGORITHMS.get(key, ("", ""))
        if not kind or kind in allowed:
            continue
        ours = our_algorithms(kind) + (AGENT_ALGORITHMS if kind == "pubkeys" else ())
        allowed[kind] = chosen(value, ours)
        if not allowed[kind]:
            words = " ".join(_words(value))
            raise ValueError(f"{option} {words} leaves none of {', '.join(ours)}")
    return allowed


def our_algorithms(kind: str) -> tuple[str, ...]:
    """Return paramiko's algorithms of a kind (5.1 has a public name for all but pubkeys)."""
    names: tuple[str, ...] = getattr(paramiko.Transport, f"_preferred_{kind}")
    return names


def chosen(value: str, ours: tuple[str, ...]) -> tuple[str, ...]:
    """Return the algorithms that a list chooses among ours: all it names, or by +, - or ^."""
    text = "".join(_words(value))
    sign = text[:1] if text[:1] in "+-^" else ""
    words = text[len(sign) :].split(",")
    named = [name for word in words for name in ours if _is_named(name, word)]
    if sign == "+":
        return ours
    if sign == "-":
        return tuple(name for name in ours if name not in named)
    return tuple(dict.fromkeys((*named, *ours) if sign == "^" else named))


def _is_named(name: str, word: str) -> bool:
    return fnmatchcase(name, word) or SAME_ALGORITHMS.get(name) == word


def _proxy(options: paramiko.SSHConfigDict) -> dict[str, str]:
    """Return ProxyCommand or ProxyJump, whichever comes first in the configuration."""
    for key, value in options.items():
        if key in ("proxycommand", "proxyjump"):
            return {key: value} if value and value.lower() != "none" else {}
    return {}


def _file(name: str) -> str:
    return str(Path(name).expanduser())


def expanded(path: Path) -> str:
    """Return the text of a configuration with every ``Include`` replaced by the files it names.

    Raises OSError if an existing file cannot be read, ValueError if one cannot be parsed.
    """
    return "".join(_lines(path, (), path.parent, 0))


def _lines(path: Path, outer: Block, folder: Path, depth: int) -> Iterator[str]:
    if depth > MAX_INCLUDES:
        raise ValueError(f"{path}: Include nested deeper than {MAX_INCLUDES} files")
    block = outer
    with path.open() as file:
        for line in file:
            match = LINE.match(line)
            key = match["key"].lower() if match is not None else ""
            if match is None or key not in ("include", "host", "match"):
                # paramiko would take the quotes off a list of quoted names.
                yield line.strip() + " #" * (key in FILE_LISTS) + "\n"
            elif key == "include":
                for included in _named(match["value"], folder):
                    yield from _lines(included, block, folder, depth + 1)
                    yield _header(block)
            else:
                block = outer + _criteria(key, match["value"])
                yield _header(block) if depth else line.rstrip("\n") + "\n"


def _named(value: str, folder: Path) -> Iterator[Path]:
    """Yield the files that an Include names; a pattern may match none."""
    for word in shlex.split(value):
        pattern = Path(word).expanduser()
        place = Path(pattern.anchor) if pattern.is_absolute() else folder
        yield from sorted(place.glob(str(pattern.relative_to(pattern.anchor))))


def _criteria(key: str, value: str) -> Block:
    """Return the criteria of a block; ``Host`` compares the name as it was typed."""
    if key == "host":
        return ("originalhost", ",".join(shlex.split(value)))
    words = tuple(shlex.split(value))
    return () if words == ("all",) else words


def _header(block: Block) -> str:
    return f"Match {shlex.join(block)}\n" if block else f"{EVERYWHERE}\n"
