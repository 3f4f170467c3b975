"""The SSH server named by ``connect: {ssh: …}``, according to ~/.ssh/config and ssh_config.

Reads these files, the files they include, and known_hosts files; connects to nothing. paramiko
ignores ``Include``, so included text is inserted first. An included file's ``Host`` and ``Match``
apply only if the including block does (ssh_config(5)): the two are merged into one ``Match``.
"""

from __future__ import annotations

import getpass
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from udpbench.errors import ConnectError
from udpbench.model import SSH_CHARACTERS, SSH_SPEC

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

    def __str__(self) -> str:
        port = f":{self.port}" if self.port != PORT else ""
        return f"{self.user}@{self.address}{port}"

    @property
    def known_name(self) -> str:
        """The name of its key in known_hosts files."""
        return self.key_name if self.key_port == PORT else f"[{self.key_name}]:{self.key_port}"


def read_config(host: str) -> paramiko.SSHConfig:
    """Return the user's and the system's configuration; raises ConnectError."""
    config = paramiko.SSHConfig()
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
    return config


def load_known_hosts(client: paramiko.SSHClient, target: Destination, host: str) -> None:
    """Load a target's known_hosts files into a client; ConnectError names an invalid line."""
    for file in target.known_hosts:
        if not Path(file).exists():
            continue
        try:
            client.load_system_host_keys(file)
        except (InvalidHostKey, ValueError) as error:
            text = f"{target}: {file}{_invalid_line(file)} cannot be used: not a host key"
            raise ConnectError(f"{text}; fix or remove that line", host) from error


def _invalid_line(file: str) -> str:
    """Return the line that paramiko (5.1) could not read; not all of its errors say which."""
    with Path(file).open(errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if not line.lstrip().startswith("#"):
                    HostKeyEntry.from_line(line.strip(), number)
            except paramiko.SSHException:
                continue  # paramiko skips these
            except (InvalidHostKey, ValueError):
                return f", line {number}"
    return ""


def target_of(
    spec: str, config: paramiko.SSHConfig, host: str, jump: str | None = None
) -> Destination:
    """Return the target of ``[user@]host[:port]``; ``jump`` overrides the configured proxy."""
    parts = SSH_SPEC.match(spec)
    if parts is None:
        text = f"{spec}: not understood; {SSH_CHARACTERS}; write [user@]host[:port]"
        raise ConnectError(text, host)
    name = parts["bracketed"] or parts["name"]
    try:
        options = config.lookup(name)
        port = int(parts["port"] or options.get("port", PORT))
    except (ValueError, ImportError, paramiko.SSHException) as error:
        text = f"{name}: ~/.ssh/config cannot be used: {error}; fix it"
        raise ConnectError(text, host) from error
    alias = options.get("hostkeyalias")
    known = f"{options.get('userknownhostsfile', KNOWN_HOSTS)} "
    known += options.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS)
    proxy = _proxy(options) if jump is None else {"proxyjump": jump}
    at = f"{parts['user']}@{name}" if parts["user"] else name
    return Destination(
        typed=f"-p {parts['port']} {at}" if parts["port"] else at,
        address=options["hostname"],
        port=port,
        user=parts["user"] or options.get("user") or getpass.getuser(),
        identities=tuple(map(_file, options.get("identityfile", IDENTITIES))),
        use_agent=options.get("identitiesonly", "no").lower() != "yes",
        known_hosts=tuple(_file(name) for name in known.split() if name.lower() != "none"),
        key_name=alias or options["hostname"],
        key_port=PORT if alias else port,
        proxy_command=proxy.get("proxycommand"),
        proxy_jump=proxy.get("proxyjump"),
    )


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
                yield line.rstrip("\n") + "\n"
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
