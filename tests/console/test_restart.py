"""A page whose server is killed while it answers (spec: D3, E4)."""

from pathlib import Path

from playwright.sync_api import expect

from tests.console.pages import WatchedPages
from tests.console.test_chat import answers, ask, log
from tests.runs.processes import calling, server, until
from tests.runs.test_crashes import QUICK


def test_an_answer_goes_on_after_its_server_was_killed_and_started_again(visit: WatchedPages, tmp_path: Path) -> None:
    """fault: K-A"""
    with server(tmp_path, f"sqlite:///{tmp_path}/toolgate.db", **QUICK) as killed:
        killed.play(calling("look_up", "put"))
        killed.hold("put")
        killed.start()
        page = visit(f"{killed.url}/console/", failures=[0, 503])
        ask(page, "Go.")
        expect(log(page).get_by_role("group", name="look_up")).to_contain_text("done")
        expect(log(page).get_by_role("group", name="put")).to_contain_text("running")
        until(lambda: len(killed.ran) == 2)
        killed.kill()
        expect(log(page)).to_contain_text("Reconnecting")
        killed.let_go("put")
        killed.start(port=int(killed.url.rpartition(":")[2]))
        expect(log(page)).to_contain_text("So: Paris is sunny; Paris is put")
        expect(answers(page)).to_have_count(1)
        expect(log(page).get_by_role("group", name="put")).to_contain_text("done")
        expect(log(page).get_by_role("group")).to_have_count(2)
    assert killed.ran.count("look_up") == 1  # what had ended was not run again
