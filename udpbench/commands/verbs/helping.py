"""The verb ``help``, and the man pages, which have the same texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from udpbench.commands.verbs.output import own_version, say

SECTION = "1"
SEE_ALSO = "Every option with its default: docs/commands.md of the source, or its site."


def show_help(
    context: typer.Context,
    verb: Annotated[
        list[str] | None, typer.Argument(metavar="[VERB]", help="a verb (default: all of them)")
    ] = None,
    man: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="write the man pages of all verbs into this folder"),
    ] = None,
) -> None:
    """Print what udpbench, or one of its verbs, can do."""
    subject: Any = context.find_root()
    if man is not None:
        from udpbench.folder import Folder

        # A page is for everybody, unlike what else root writes.
        with Folder.open(man, make=True, give=False) as folder:
            for name, text in man_pages(subject, "udpbench").items():
                folder.write(name, text.encode(), 0o644)
        say(f"man pages: {man}")
        return
    for word in verb or ():
        if hasattr(subject.command, "resolve_command"):
            _, command, _ = subject.command.resolve_command(subject, [word])
            subject = typer.Context(command, info_name=word, parent=subject)
    typer.echo(subject.get_help())


def man_pages(context: typer.Context, name: str) -> dict[str, str]:
    """Return file name → text of the man page of a program or verb, and of each verb below it."""
    command: Any = context.command
    known = command.list_commands(context) if hasattr(command, "list_commands") else ()
    below = {verb: command.get_command(context, verb) for verb in known}
    pages = {f"{name}.{SECTION}": _page(name, context, below)}
    for verb, each in below.items():
        pages |= man_pages(typer.Context(each, info_name=verb, parent=context), f"{name}-{verb}")
    return pages


def _page(name: str, context: typer.Context, below: Mapping[str, Any]) -> str:
    command: Any = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    summary, _, rest = (command.help or "").strip().partition("\n")
    verbs = [(verb, each.get_short_help_str(300)) for verb, each in below.items()]
    lines = [
        f'.TH {name.upper()} {SECTION} "" "udpbench {own_version()}"',
        *(".SH NAME", f"{_roff(name)} \\- {_roff(summary.rstrip('.'))}"),
        *(".SH SYNOPSIS", _roff(usage)),
        *([".SH DESCRIPTION", _roff(rest)] if rest.strip() else ()),
        *_listed("VERBS", verbs),
        *_listed("ARGUMENTS", _records(context, "argument")),
        *_listed("OPTIONS", _records(context, "option")),
        *(".SH SEE ALSO", _roff(SEE_ALSO)),
    ]
    return "\n".join(lines) + "\n"


def _records(context: typer.Context, kind: str) -> Iterator[tuple[str, str]]:
    """Yield how each parameter of a kind is written, and what it does."""
    command: Any = context.command
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.param_type_name == kind:
            yield record


def _listed(heading: str, records: Iterable[tuple[str, str]]) -> list[str]:
    """Return a section with a paragraph for each record; nothing without any."""
    entries = [line for name, text in records for line in (".TP", f".B {_roff(name)}", _roff(text))]
    return [f".SH {heading}", *entries] if entries else []


def _roff(text: str) -> str:
    """Return a text as roff reads it: no escapes, no requests, and dashes that can be copied."""
    plain = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain
