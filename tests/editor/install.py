"""The editor for tests: the npm package `code-server`, which is VS Code served to a browser.

Neither root nor a compiler is needed: its install scripts are not run, and of the native modules only the one that writes
log files is missed. It allows every proposed API, which the stable editor refuses: the installed copy is changed to refuse
them as well, except to the extensions that come with the editor and to those of the tests, whose publisher is `testing`.
"""

import fcntl
import re
from pathlib import Path

from tests.node import npm_ci, run_npm

FOLDER = Path(__file__).parent
_CODE = FOLDER / "node_modules" / "code-server" / "lib" / "vscode"
_CHECKED = ("out/vs/workbench/api/node/extensionHostProcess.js", "out/vs/code/browser/workbench/workbench.js")
_ALLOWS_ALL = re.compile(r"function (\w+)\((\w+),(\w+)\)\{return!0\}(?=function \w+\(\w+,\w+\)\{if\(!\1\()")
_REFUSES = r'function \1(\2,\3){return \2.isBuiltin||\2.identifier.value.startsWith("testing.")}'


def install() -> Path:
    """Install the editor, unless that is done, and return the script that starts it."""
    modules = npm_ci(FOLDER)
    mark = modules / ".editor"
    with (FOLDER / ".npm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            for folder in (_CODE, _CODE / "extensions"):
                run_npm("install", "--omit=dev", "--ignore-scripts", "--no-package-lock", cwd=folder)
            for name in _CHECKED:
                _refuse_proposals(_CODE / name)
            mark.touch()
    return modules / "code-server" / "out" / "node" / "entry.js"


def _refuse_proposals(file: Path) -> None:
    changed, count = _ALLOWS_ALL.subn(_REFUSES, file.read_text("utf-8"))
    assert count == 1, f"{file} has {count} checks of proposed APIs; this version of the editor needs another pattern."
    file.write_text(changed, "utf-8")


if __name__ == "__main__":
    install()
