"""The command line. It speaks HTTP to a server or starts one; nothing heavy is imported before a command needs it."""


def main() -> None:
    """Run the command that was asked for."""
    from toolgate.cli.commands import app

    app(prog_name="toolgate")
