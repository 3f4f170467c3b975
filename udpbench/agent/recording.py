"""Records what a host answers to the agent as a tree that tests can replay, anonymised.

Reads only, through the same interface to the system as the agent. Names and addresses of the host,
its networks and its users are replaced (``anonymity``); process environments, firewall rules and
other processes are never recorded.
"""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Callable

from udpbench.agent.anonymity import Names, bare_iptables, bare_ruleset
from udpbench.agent.counters.snapshot import snapshot
from udpbench.agent.host.doctor import inspect_host
from udpbench.agent.host.facts import facts
from udpbench.agent.host.files import names as _names
from udpbench.agent.host.interrupts import IRQBALANCE
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.protocol import RecordedTree

FILES = ("exists", "listdir", "read_text", "link_target")
"""Methods for files, which have their own fields in a tree."""
UNTAKEN: tuple[str, ...] = (
    *("boot_id", "clock_ns", "close", "environ", "kernel_threads", "netlink"),
    *("netns", "netns_cookie", "parent", "path", "wait_for", "wall_ns"),
)
"""Methods that hold only for the moment, or reveal users."""
TAKEN = tuple(
    name
    for name, method in vars(Host).items()
    if callable(method) and name[0] != "_" and name not in (*FILES, *UNTAKEN)
)
"""All other methods of ``Host``: they read, and each answer is recorded by its arguments."""
SHOWN = (
    ("-i",),
    ("-g",),
    ("-l",),
    ("-c",),
    ("-a",),
    ("-x",),
    ("-n",),
    ("-n", "rx-flow-hash", "udp4"),
    ("-n", "rx-flow-hash", "udp6"),
)
"""``ethtool`` output for settings that an experiment may request."""
FOLDERS = (
    "/proc/irq",
    "/proc/sys/net/core",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)
DEPTH = 4
FILES_MAX = 5000
"""Read in addition to what the agent reads."""
WITHHELD: tuple[str, ...] = (
    *("IFA_LABEL", "IFLA_ALT_IFNAME", "IFLA_IFALIAS", "IFLA_PHYS_PORT_ID", "IFLA_PHYS_SWITCH_ID"),
    "IFLA_PROP_LIST",
)
"""Link attributes that identify the link, its location or its owner."""
FILE_BYTES = 2**18
ABSENT = (errno.ENOENT, errno.ENOTDIR)
"""A file that is not in the tree does not exist."""
PLAIN = (bool, int, float, str, type(None))


class RecordingHost(Host):
    """A host that records its answers."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.root)
        self.files: dict[str, str] = {}
        self.folders: dict[str, tuple[str, ...]] = {}
        self.links: dict[str, str] = {}
        self.answers: dict[str, Any] = {}
        self._host = host

    def read_text(self, path: str) -> str:
        """Read and record a file."""
        text: str = self._noted("read_text", path)
        self.answers.pop(call_key("read_text", path))
        self.files[path] = text[:FILE_BYTES]
        return text

    def listdir(self, path: str) -> list[str]:
        """List and record a folder."""
        names: list[str] = self._host.listdir(path)
        self.folders[path] = tuple(names)
        return names

    def exists(self, path: str) -> bool:
        """Return whether a path exists, and record it if so."""
        there = self._host.exists(path)
        if there and path not in self.files:
            self.folders.setdefault(path, ())
        return there

    def link_target(self, path: str) -> Any:
        """Read and record a symbolic link."""
        target = self._host.link_target(path)
        if target is not None:
            self.links[path] = target
        return target

    def _noted(self, name: str, *args: Any, **kwargs: Any) -> Any:
        key = call_key(name, *args, **kwargs)
        try:
            answer = getattr(self._host, name)(*args, **kwargs)
        except OSError as error:
            if name != "read_text" or error.errno not in ABSENT:
                self.answers[key] = {"error": error.errno or errno.EIO}
            raise
        self.answers[key] = {"value": plain(answer)}
        return answer


def _taking(name: str) -> Callable[..., Any]:
    def method(self: RecordingHost, *args: Any, **kwargs: Any) -> Any:
        return self._noted(name, *args, **kwargs)

    return method


for _name in TAKEN:
    setattr(RecordingHost, _name, _taking(_name))


def call_key(name: str, *args: Any, **kwargs: Any) -> str:
    """Return the key of a call, without default arguments: ``run ethtool -g eth3``."""
    bound = inspect.signature(getattr(Host, name)).bind(None, *args, **kwargs)
    words = [name]
    for parameter in list(bound.signature.parameters.values())[1:]:
        value = bound.arguments.get(parameter.name, parameter.default)
        if parameter.kind is parameter.VAR_POSITIONAL:
            words += map(str, bound.args[1:])
        elif parameter.kind is parameter.VAR_KEYWORD:
            words += [f"{key}={_number(bound.kwargs[key])}" for key in sorted(bound.kwargs)]
        elif value != parameter.default:
            words.append(str(value))
    return " ".join(words)


def _number(value: Any) -> Any:
    """Return a value that prints the same on every Python; an address family is a number."""
    return int(value) if isinstance(value, int) else value


def plain(answer: Any) -> Any:
    """Return an answer as JSON data; types that JSON lacks are objects with the key ``is``."""
    if isinstance(answer, PLAIN):
        return answer
    if isinstance(answer, (bytes, bytearray)):
        return {"is": "bytes", "hex": answer.hex()}
    if isinstance(answer, Path):
        return {"is": "Path", "path": str(answer)}
    if is_dataclass(answer):
        values = {item.name: plain(getattr(answer, item.name)) for item in fields(answer)}
        return {"is": type(answer).__name__, "fields": values}
    if hasattr(answer, "get_attr"):
        return _message(answer)
    if isinstance(answer, dict):
        return {"is": "dict", "items": [[plain(key), plain(answer[key])] for key in answer]}
    if isinstance(answer, Iterable):
        return [plain(item) for item in answer]
    return {"is": type(answer).__name__}


def _message(message: Any) -> dict[str, Any]:
    """Return a netlink message or a nested attribute."""
    own = {
        key: plain(value)
        for key, value in dict(message).items()
        if key not in ("attrs", "header", "value")
    }
    slots = [(slot[0], slot[1]) for slot in message.get("attrs") or ()]
    attributes = [[name, plain(value)] for name, value in slots if name not in WITHHELD]
    return {"is": "message", "fields": own, "attrs": attributes}


def record_tree(
    host: Host, name: str, interface: str, capabilities: dict[str, bool]
) -> RecordedTree:
    """Return the anonymised answers of a host about itself and an interface.

    ``capabilities`` come from hello.
    """
    seen = RecordingHost(host)
    with suppress(OSError):
        facts(seen, name, interface, {})
    inspect_host(seen, interface)
    with suppress(OSError):
        snapshot(seen, name, interface, ("namespace", "machine"), (), dict)
    with suppress(OSError):
        seen.link(interface)  # Settings read it; facts only if /sys has no driver.
    for option, *words in SHOWN:
        with suppress(OSError):
            seen.run("ethtool", option, interface, *words)
    for path in _files(host, interface):
        with suppress(OSError):
            seen.read_text(path)
    return replace(_anonymous(seen, host, interface), capabilities=capabilities)


def _files(host: Host, interface: str) -> Iterator[str]:
    """Yield further files that a later version may use, within reason."""
    device = f"/sys/class/net/{interface}"
    folders = (*FOLDERS, f"{device}/queues", f"{device}/statistics", "/proc/sys/net/ipv4/conf/all")
    paths = (path for folder in folders for path in _below(host, folder, DEPTH))
    for number, path in enumerate(paths):
        if number >= FILES_MAX:
            return
        yield path


def _below(host: Host, folder: str, depth: int) -> Iterator[str]:
    """Yield the files below a folder without following links."""
    with suppress(OSError):
        for name in host.listdir(folder):
            path = f"{folder}/{name}"
            status = os.lstat(host.path(path))
            if not os.path.isdir(host.path(path)):  # noqa: PTH112 - in /sys by the thousand
                if status.st_mode & 0o444 and not os.path.islink(host.path(path)):  # noqa: PTH114
                    yield path
            elif depth and not os.path.islink(host.path(path)):  # noqa: PTH114
                yield from _below(host, path, depth - 1)


def _anonymous(seen: RecordingHost, host: Host, interface: str) -> RecordedTree:
    """Return the tree with names and addresses replaced and without anything about users."""
    _withhold(seen)
    # /sys may be that of another network namespace.
    linked = _linked([seen.answers[key] for key in sorted(seen.answers)])
    asked = [seen.answers[key].get("value") for key in seen.answers if key.startswith("name_of ")]
    every = (*_names(host, "/sys/class/net"), interface, *linked, *filter(None, asked))
    names = Names(_host_names(host), every)
    return RecordedTree(
        interface=names.path(interface),
        files={names.path(path): names.file(path, text) for path, text in seen.files.items()},
        folders={
            names.path(path): tuple(map(names.path, inside))
            for path, inside in seen.folders.items()
        },
        links={names.path(path): names.path(target) for path, target in seen.links.items()},
        answers={names.path(key): names.data(answer) for key, answer in seen.answers.items()},
    )


def _linked(answer: Any) -> Iterator[str]:
    """Yield the names of interfaces in netlink messages."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list):
        if answer[:1] == ["IFLA_IFNAME"]:
            yield str(answer[1])
        for item in answer:
            yield from _linked(item)


def _host_names(host: Host) -> tuple[str, ...]:
    """Return the host's name and its first label."""
    name = host.hostname()
    return (name, name.partition(".")[0])


def _withhold(seen: RecordingHost) -> None:
    """Remove other processes and the contents of firewall rules from the answers."""
    for key, answer in seen.answers.items():
        if "value" not in answer:
            continue
        value = answer["value"]
        if key == "process_names":
            value["items"] = [item for item in value["items"] if item[1] == IRQBALANCE]
        elif key.startswith("run nft"):
            value["fields"]["out"] = bare_ruleset(value["fields"]["out"])
        elif key.startswith("run iptables-save"):
            value["fields"]["out"] = bare_iptables(value["fields"]["out"])
