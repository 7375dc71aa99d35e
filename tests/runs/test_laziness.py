"""DBOS costs most of a second and 60 MB: only whoever has runs to carry out pays that."""

import subprocess
import sys


def test_a_server_is_built_without_the_engine() -> None:
    program = (
        "import sys; from toolgate.config import Config, Secret; from toolgate.server.build import Toolgate; "
        "Toolgate(Config(storage=Secret('sqlite:///x.db'))); print('dbos' in sys.modules, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
