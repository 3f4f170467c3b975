"""The program: runs the command line and says in words whatever goes wrong.

No traceback reaches a user, whenever Ctrl-C comes. Exit codes: 0 yes, 1 no, 2 bad input, 3 host or
run failed, 4 not restored, 5 cannot tell, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback

from udpbench.errors import InputError, Interrupted, UdpbenchError

AGAIN_S = 0.01
"""For Python to leave what takes no exception."""


class Ended:
    """Whether Ctrl-C came: what it breaks on its way up is its consequence, and no bug."""

    def __init__(self) -> None:
        self.asked = False
        self._ending = False
        signal.signal(signal.SIGINT, self)
        # No thread sends it: one that still runs while Python ends makes it abort.
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        sys.unraisablehook = self.ignored

    def __call__(self, *_: object) -> None:
        """End the program; a second time it is ending already."""
        self.asked = True
        if not self._ending:
            self._ending = True
            raise KeyboardInterrupt

    def ignored(self, what: sys.UnraisableHookArgs) -> None:
        """Send Ctrl-C anew where it came while Python takes no exception, as in a finalizer."""
        if what.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(what)
            return
        self._ending = False
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    def at_the_door(self) -> None:
        """Send nothing anew: where Python ignored one it may have been on its way up as well."""
        self._ending = True
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Run the command line and leave with its exit code."""
    ended = Ended()
    try:
        code = spoken()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; a flush at exit would only fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last door: no traceback reaches a user
        ended.at_the_door()
        code = Interrupted.exit_code if ended.asked else bug(error)
    ended.at_the_door()
    # With ``python -m`` CPython ends by the signal, whatever the code, where Ctrl-C came within an
    # exec() of a string, as dataclasses have (run_eval_code_obj in Python/pythonrun.c). Another one
    # makes it forget.
    exec("")  # noqa: S102
    sys.exit(code)


def spoken() -> int:
    """Run the command line and return its exit code, having said what went wrong."""
    import typer

    from udpbench.command_line import app

    try:
        code = app(standalone_mode=False)
    except UdpbenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except typer.TyperException as error:
        print(
            f"udpbench: {error.format_message().rstrip('.')}; see udpbench --help", file=sys.stderr
        )
        return InputError.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"udpbench: {where}{error.strerror or error}", file=sys.stderr)
        return UdpbenchError.exit_code
    return code if isinstance(code, int) else 0


def bug(error: BaseException) -> int:
    """Say that this should not have happened and where its traceback lies."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="udpbench-bug-", suffix=".txt", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    what = f"{type(error).__name__}: {error}"
    print(f"udpbench: this is a bug: {what}; traceback: {file.name}", file=sys.stderr)
    return UdpbenchError.exit_code


if __name__ == "__main__":
    main()
