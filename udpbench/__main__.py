"""The program: runs the command line and prints every error in words.

A user never sees a traceback, no matter when Ctrl-C or SIGTERM comes. The exit codes are in
``errors``.
"""

from __future__ import annotations

import os
import signal
import sys

from udpbench.errors import InputError, Interrupted, UdpbenchError, in_words, unforeseen
from udpbench.printable import printable

RETRY_S = 0.01
"""Time for Python to leave a finalizer, which swallows exceptions."""


class CtrlC:
    """The handler of Ctrl-C: raises KeyboardInterrupt once, and again if a finalizer swallows it.

    SIGTERM is handled alike, so that no temporary folder is left behind.
    Any other exception raised while the program ends is a consequence of Ctrl-C, not a bug.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._raised = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)
        # A timer, not a thread: Python aborts if a thread is still running when the interpreter
        # ends.
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        sys.unraisablehook = self._swallowed

    def __call__(self, *_: object) -> None:
        """End the program, unless it is ending already."""
        self.pressed = True
        if not self._raised:
            self._raised = True
            raise KeyboardInterrupt

    def _swallowed(self, error: sys.UnraisableHookArgs) -> None:
        """Raise KeyboardInterrupt again a little later."""
        if error.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(error)
            return
        self._raised = False
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)

    def disarm(self) -> None:
        """Raise nothing from now on."""
        self._raised = True
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Run the command line and exit with its code."""
    ctrl_c = CtrlC()
    try:
        code = run_command_line()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone; a flush at exit would only fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except BaseException as error:  # noqa: BLE001 - no traceback reaches a user
        ctrl_c.disarm()
        code = Interrupted.exit_code if ctrl_c.pressed else report_bug(error)
    ctrl_c.disarm()
    # After a Ctrl-C within exec() of a string, which dataclasses use, ``python -m`` ends by the
    # signal, whatever the code (run_eval_code_obj in Python/pythonrun.c). Another exec() resets it.
    exec("")  # noqa: S102
    sys.exit(code)


def run_command_line() -> int:
    """Run the command line, print its errors, and return its exit code."""
    import typer

    from udpbench.commands.command_line import app

    _accept_completion_of_click()
    try:
        code = app(prog_name="udpbench", standalone_mode=False)
    except SystemExit as ended:  # of shell completion
        return ended.code if isinstance(ended.code, int) else 0
    except UdpbenchError as error:
        print(printable(str(error)), file=sys.stderr)
        return error.exit_code
    except typer.TyperException as error:
        message = printable(error.format_message().rstrip("."))
        verb = getattr(getattr(error, "ctx", None), "command_path", "udpbench")
        print(f"udpbench: {message}; see {verb} --help", file=sys.stderr)
        return InputError.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:
        print(printable(f"udpbench: {in_words(error)}"), file=sys.stderr)
        return UdpbenchError.exit_code
    return code if isinstance(code, int) else 0


COMPLETION = "_UDPBENCH_COMPLETE"


def _accept_completion_of_click() -> None:
    """Let ``bash_source``, as click's pages have it, mean typer's ``source_bash``."""
    shell, _, does = os.environ.get(COMPLETION, "").partition("_")
    if does in ("source", "complete"):
        os.environ[COMPLETION] = f"{does}_{shell}"


def report_bug(error: BaseException) -> int:
    """Store the traceback of an unexpected error and print where."""
    bug = unforeseen(error)
    print(printable(str(bug)), file=sys.stderr)
    return bug.exit_code


if __name__ == "__main__":
    main()
