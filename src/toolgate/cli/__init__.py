"""The command line: starts a server, or calls one over HTTP. Commands import heavy modules only when they run."""


def main() -> None:
    """Run the command of the command line."""
    from toolgate.cli.commands import app

    app(prog_name="toolgate")
