"""Whom ``connect: {ssh: …}`` means: one host as ~/.ssh/config and /etc/ssh/ssh_config describe it.

Reads these files, what they include, known_hosts files and nothing else; connects to nothing.
"""

from __future__ import annotations

import getpass
import io
import re
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from udpbench.control.ssh_include import expanded
from udpbench.errors import ConnectError

PORT = 22
CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
"""The first value found for a key counts (ssh_config(5))."""
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
SPEC = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@]+)@)?"
    r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<name>[^:@]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F:]*))"
    r"(?::(?P<port>\d{1,5}))?/?\Z"
)


@dataclass(frozen=True)
class Target:
    """One SSH server, and how to get in."""

    typed: str
    """The words after ``ssh`` with which a user gets there, too."""
    address: str
    port: int
    user: str
    identities: tuple[str, ...]
    """Files of private keys, whether they exist or not."""
    use_agent: bool
    known_hosts: tuple[str, ...]
    key_name: str
    """Host whose key it must show: its address or HostKeyAlias."""
    key_port: int
    proxy_command: str | None
    proxy_jump: str | None

    def __str__(self) -> str:
        port = f":{self.port}" if self.port != PORT else ""
        return f"{self.user}@{self.address}{port}"

    @property
    def known_name(self) -> str:
        """The name under which known_hosts files have its key."""
        return self.key_name if self.key_port == PORT else f"[{self.key_name}]:{self.key_port}"


def read_config(host: str) -> paramiko.SSHConfig:
    """Return the user's configuration over the system's; raises ConnectError."""
    config = paramiko.SSHConfig()
    for name in CONFIGS:
        path = Path(name).expanduser()
        if not path.exists():
            continue
        try:
            config.parse(io.StringIO(expanded(path)))
        except (OSError, ValueError, paramiko.SSHException) as error:
            text = f"{name} cannot be used: {error}; mend it, or move it away"
            raise ConnectError(text, host) from error
    return config


def load_known_hosts(client: paramiko.SSHClient, target: Target, host: str) -> None:
    """Let a client know the keys in a target's files; ConnectError names the line at fault."""
    for file in target.known_hosts:
        if not Path(file).exists():
            continue
        try:
            client.load_system_host_keys(file)
        except (InvalidHostKey, ValueError) as error:
            text = f"{target}: {file}{_line_at_fault(file)} cannot be used: no host key is there"
            raise ConnectError(f"{text}; mend that line, or take it out", host) from error


def _line_at_fault(file: str) -> str:
    """Return where paramiko (5.1) stopped reading: for some lines it raises what has no number."""
    with Path(file).open(errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if not line.lstrip().startswith("#"):
                    HostKeyEntry.from_line(line.strip(), number)
            except paramiko.SSHException:
                continue  # it passes over these
            except (InvalidHostKey, ValueError):
                return f", line {number}"
    return ""


def target_of(spec: str, config: paramiko.SSHConfig, host: str, jump: str | None = None) -> Target:
    """Return whom ``[user@]host[:port]`` means; ``jump`` overrides the configured way there."""
    parts = SPEC.match(spec)
    if parts is None:
        raise ConnectError(f"{spec}: not understood; write [user@]host[:port]", host)
    name = parts["bracketed"] or parts["name"]
    try:
        options = config.lookup(name)
        port = int(parts["port"] or options.get("port", PORT))
    except (ValueError, ImportError, paramiko.SSHException) as error:
        text = f"{name}: ~/.ssh/config cannot be used: {error}; mend it"
        raise ConnectError(text, host) from error
    alias = options.get("hostkeyalias")
    known = f"{options.get('userknownhostsfile', KNOWN_HOSTS)} "
    known += options.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS)
    way = _way(options) if jump is None else {"proxyjump": jump}
    at = f"{parts['user']}@{name}" if parts["user"] else name
    return Target(
        typed=f"-p {parts['port']} {at}" if parts["port"] else at,
        address=options["hostname"],
        port=port,
        user=parts["user"] or options.get("user") or getpass.getuser(),
        identities=tuple(_file(one) for one in options.get("identityfile", IDENTITIES)),
        use_agent=options.get("identitiesonly", "no").lower() != "yes",
        known_hosts=tuple(_file(one) for one in known.split() if one.lower() != "none"),
        key_name=alias or options["hostname"],
        key_port=PORT if alias else port,
        proxy_command=way.get("proxycommand"),
        proxy_jump=way.get("proxyjump"),
    )


def _way(options: paramiko.SSHConfigDict) -> dict[str, str]:
    """Return the proxy that was configured first: of ProxyCommand and ProxyJump that one counts."""
    for key, value in options.items():
        if key in ("proxycommand", "proxyjump"):
            return {key: value} if value and value.lower() != "none" else {}
    return {}


def _file(name: str) -> str:
    return str(Path(name).expanduser())
