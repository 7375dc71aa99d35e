"""DBOS costs most of a second and 60 MB, and is imported only when there is a run to execute."""

import subprocess
import sys


def test_a_server_is_built_without_the_engine() -> None:
    program = (
        "import sys; from toolgate.config import Config, Secret; from toolgate.app.reloadable_asgi_app import Toolgate; "
        "Toolgate(Config(storage=Secret('sqlite:///x.db'))); print('dbos' in sys.modules, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
