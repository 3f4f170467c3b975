"""``udpbench export`` as a service that was brought to a host: its options, its unit, its start.

Started as ``python3 -I -S BUILD OPTION...``, where no other package of the controller's is; on
Python 3.9 or later.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path, PurePosixPath

from udpbench.errors import InputError, Problem, UdpbenchError
from udpbench.export.exporter import place_of
from udpbench.export.run import Options, check, run
from udpbench.printable import printable

RECORDINGS = "/var/lib"
PATH = re.compile(r"/[\w./+@=,-]+", re.ASCII)
"""What needs no quotes in a unit."""
WORD, PLAIN = re.compile(r"[\w./+@=,:[\]-]+", re.ASCII), "letters, digits and _./+@=,:[]-"
"""What systemd takes as it is, of all other options."""
EXACT = "CAP_BPF CAP_PERFMON CAP_NET_ADMIN CAP_SYS_ADMIN"
SAMPLING = "CAP_PERFMON CAP_SYSLOG CAP_IPC_LOCK"
HIDING = ("ProtectKernelTunables", "ProtectKernelLogs")
"""What hides the kernel's symbols from a service."""
FOLDERS_OWNER, ROOTS_RIGHTS = "@owner of the folder@", " @rights of root@"
"""As ``agent/install`` knows them, which fills them in."""


def words_of(options: Options) -> list[str]:
    """Return options as they are typed."""
    words = []
    for each in fields(options):
        value = getattr(options, each.name)
        if value == each.default:
            continue
        name = f"--{each.name.replace('_', '-')}"
        if value is True:
            words.append(name)
        else:
            many = (value,) if isinstance(value, str) else value
            words += [word for one_value in many for word in (name, one_value)]
    return words


def options_of(words: Sequence[str]) -> Options:
    """Return options from what was typed; SystemExit."""
    parser = argparse.ArgumentParser("udpbench export", allow_abbrev=False)
    for each in fields(Options):
        name = f"--{each.name.replace('_', '-')}"
        if each.default is False:
            parser.add_argument(name, action="store_true")
        else:
            action = "append" if each.default == () else "store"
            parser.add_argument(name, action=action, default=each.default or None)
    given = vars(parser.parse_args(words))
    return Options(**{**given, "label": tuple(given["label"] or ())})


def check_service(options: Options) -> None:
    """Raise InputError for what a service cannot do, and everything else wrong in options."""
    check(options)
    problems = [
        Problem("not a whole path of plain characters", name, path, "such as /etc/udpbench/a.pem")
        for name, path in _paths(options).items()
        if not PATH.fullmatch(path) or ".." in PurePosixPath(path).parts
    ]
    words = words_of(options)
    problems += [
        Problem("not plain characters", name, printable(value, keep=""), PLAIN)
        for name, value in zip(words, words[1:])
        if name not in _paths(options) and not WORD.fullmatch(value)
    ]
    record = options.record
    if record is not None and str(PurePosixPath(record).parent) != RECORDINGS:
        what, limit = "a service records below /var/lib alone", f"{RECORDINGS}/udpbench-flight"
        problems.append(Problem(what, "--record", record, limit))
    if options.textfile is not None and not options.textfile.endswith(".prom"):
        what = "node_exporter reads files of this name alone"
        problems.append(Problem(what, "--textfile", options.textfile, "*.prom"))
    if problems:
        raise InputError(problems)
    if options.listen is not None:
        place_of(options.listen, options.tls)


def _paths(options: Options) -> dict[str, str]:
    named = {
        "--textfile": options.textfile,
        "--record": options.record,
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
        "--tls-client-ca": options.tls_client_ca,
    }
    return {name: path for name, path in named.items() if path is not None}


def unit_of(template: str, options: Options, python: str, build: str) -> str:
    """Return the unit that runs a build with these options, of the one that ships."""
    command = " ".join((python, "-I", "-S", build, *words_of(options)))
    lines = ["# Written by udpbench export --install; udpbench export --remove removes it."]
    for line in template[template.index("[Unit]") :].splitlines():
        if not line.startswith("# With "):
            lines += _lines(line, options, command)
    written = {"Textfile": options.textfile, "Recording": options.record}
    lines += ["", "# What it writes, and what goes with it."] if any(written.values()) else []
    lines += ["[X-Udpbench]"] if any(written.values()) else []
    lines += [f"{key}={path}" for key, path in written.items() if path is not None]
    return "\n".join(lines) + "\n"


def _lines(line: str, options: Options, command: str) -> list[str]:
    """Return what stands in the place of a line."""
    key = line.partition("=")[0]
    if line.startswith("# A user") and options.textfile is not None:
        return ["# Who may write the folder of the text file."]
    if key == "ExecStart":
        return [f"ExecStart={command}"]
    if key == "DynamicUser" and options.textfile is not None:
        return [f"User={FOLDERS_OWNER}"]
    if key == "ProtectSystem":
        folders = [f"ReadWritePaths={Path(options.textfile).parent}"] if options.textfile else []
        name = Path(options.record).name if options.record else ""
        states = [f"StateDirectory={name}", "StateDirectoryMode=0700"] if name else []
        return [line, *states, *folders]
    if key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        more = f"{EXACT * options.exact} {SAMPLING * options.cpu_time}".split()
        rights = ROOTS_RIGHTS if options.textfile is not None else ""
        return [" ".join([line, *dict.fromkeys(more)]) + rights]
    if key in HIDING and options.cpu_time:
        return []
    if key.startswith("IPAddress") and options.listen is not None and not _is_loopback(options):
        return []
    return [line]


def _is_loopback(options: Options) -> bool:
    address, _ = place_of(options.listen or "", options.tls)
    return ip_address(address).is_loopback


def main(version: str) -> None:
    """Export until SIGINT or SIGTERM, and exit as the command does."""
    # Before Python 3.11 a process that this one starts would import from the current folder first.
    os.chdir("/")

    def say(text: object) -> None:
        print(printable(str(text)), file=sys.stderr)

    try:
        run(options_of(sys.argv[1:]), version, say)
    except UdpbenchError as error:
        say(error)
        sys.exit(error.exit_code)
