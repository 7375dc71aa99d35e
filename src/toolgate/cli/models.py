"""`toolgate models`: list the models of a running server, or manage the weights of the embedded model."""

import typer

from toolgate.cli import model_weights
from toolgate.cli.api_client import Key, Url, call_api
from toolgate.cli.server_url import DEFAULT_URL

app = typer.Typer(invoke_without_command=True)


@app.callback()
def models(context: typer.Context, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """List the models of a running server; with a command: manage the weights of the embedded model."""
    if context.invoked_subcommand is not None:
        return
    from toolgate.cli.printing import print_table, text_table

    listed = call_api(url, key, "GET", "/v1/models").get("data")
    rows = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
    print_table(text_table("Models", ("name", "owner"), [(model.get("id"), model.get("owned_by")) for model in rows]))


app.command("pull")(model_weights.pull)
app.command("add")(model_weights.add)
app.command("weights")(model_weights.listed)
