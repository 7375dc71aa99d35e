"""The command line: starts a server, or calls one over HTTP. Commands import heavy modules only when they run."""

import errno
import os
import sys

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """Run the command of the command line; output that cannot be written ends it with a sentence."""
    from toolgate.cli.commands import app

    try:
        try:
            app(prog_name="toolgate")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes what is still buffered
        sys.exit(f"The output cannot be written: {error.strerror}.")
