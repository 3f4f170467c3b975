"""The files that a definition names: which of them are read, and with whose rights.

A definition may come from anybody, and root may read everything. So a file is read only below the
folder of the definition, of what ships, or of an ``--allow-read``, wherever links lead; only if it
is regular; and as root only if it is of root or of the calling user. What was opened is judged, by
its real path and its owner, so that nobody can replace it between the look and the reading.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from udpbench.definition import shipped
from udpbench.definition.values import refusal
from udpbench.folder import real_path, trusted_owners
from udpbench.json_lines import open_held

STEP = "name a file beside it"


@dataclass(frozen=True)
class ReadScope:
    """Where the files may be that a definition names; paths are real, without links."""

    beside: Path
    """The folder of the definition, to which names are relative."""
    own: Path
    """The folder of the definition that the user named, which may extend this one."""
    allowed: tuple[Path, ...] = ()
    """What ``--allow-read`` opens, and what ships."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read; raises a refusal, which says nothing of what is elsewhere."""
        path = self.beside / name
        try:
            held = os.open(path, os.O_PATH | os.O_CLOEXEC)  # a device or a pipe would not notice
        except ValueError as error:
            raise refusal(f"cannot be read: {error}", next_step=STEP) from error
        except OSError as error:
            self.refuse_outside(Path(os.path.realpath(path)))
            raise refusal(f"cannot be read: {error.strerror}", next_step=STEP) from error
        try:
            self._refuse(held)
            return open_held(held, path)  # the same file, whatever the name leads to by now
        except OSError as error:
            raise refusal(f"cannot be read: {error.strerror}", next_step=STEP) from error
        finally:
            os.close(held)

    def of(self, file: IO[bytes]) -> ReadScope:
        """Return the scope of a definition that was opened in this one."""
        return replace(self, beside=real_path(file.fileno()).parent)

    def refuse_outside(self, real: Path) -> None:
        """Raise a refusal of a real path that is in none of the folders."""
        if not any(real.is_relative_to(folder) for folder in (self.own, *self.allowed)):
            limit = f"only what is below {self.own}"
            step = "move it there, or open its folder with --allow-read"
            raise refusal("outside the folder of the definition", limit, step)

    def _refuse(self, held: int) -> None:
        real, state = real_path(held), os.fstat(held)
        self.refuse_outside(real)
        if not stat.S_ISREG(state.st_mode):
            raise refusal("not a regular file", next_step=STEP)
        if any(real.is_relative_to(folder) for folder in self.allowed):
            return
        if os.geteuid() == 0 and state.st_uid not in trusted_owners():
            what = f"belongs to user {state.st_uid}"
            limit = "a file of root or of the calling user, if root reads it"
            step = "change its owner, or open its folder with --allow-read"
            raise refusal(what, limit, step)


def scope_of(folder: Path, allow_read: Sequence[str | Path] = ()) -> ReadScope:
    """Return the scope of a definition in a folder, which is a real path."""
    allowed = (*allow_read, shipped.folder())
    return ReadScope(folder, folder, tuple(Path(os.path.realpath(each)) for each in allowed))


def text_scope(path: Path, allow_read: Sequence[str | Path] = ()) -> ReadScope:
    """Return the scope of a definition that is no file, but is named as if it were one."""
    real = path.parent
    with suppress(ValueError):
        real = Path(os.path.realpath(path.parent))
    return scope_of(real, allow_read)
