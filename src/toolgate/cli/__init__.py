"""The command line: starts a server, or calls one over HTTP. Commands import heavy modules only when they run."""

import errno
import gc
import os
import sys

# A full disk or quota, a file that is too large, a broken device. A closed pipe is no mistake: Typer ends quietly.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """Run the command of the command line; output that cannot be written ends it with a sentence."""
    # Loading modules makes many objects and hardly any garbage: looking for it took a tenth of the server's start.
    gc.set_threshold(100_000, 50, 100)
    from toolgate.cli.commands import app

    try:
        try:
            app(prog_name="toolgate")
        finally:
            # Output that is only buffered fails here, where the error can still become a sentence.
            sys.stdout.flush()
    except OSError as error:
        # An error with a file name is about a file that the command opened, not about the output.
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        # The exit flushes what is still buffered, which would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"The output cannot be written: {error.strerror}.")
