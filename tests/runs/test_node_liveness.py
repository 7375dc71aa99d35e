"""The names of nodes."""

import resource
import subprocess
import sys

from toolgate.runs.node_liveness import is_gone, this_node


def test_no_two_nodes_have_the_same_name_not_even_in_one_process() -> None:
    assert this_node() != this_node()


def test_a_process_that_lives_is_not_gone_and_one_that_has_ended_is() -> None:
    """fault: K-A"""
    assert not is_gone(this_node())
    program = "from toolgate.runs.node_liveness import this_node; print(this_node())"
    dead = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert is_gone(dead)


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it() -> None:
    machine, process, _, random = this_node().split(":")
    assert is_gone(f"{machine}:{process}:1:{random}")


def test_a_node_without_free_descriptors_takes_no_other_for_gone() -> None:
    node = this_node()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        gone, nameless = is_gone(node), this_node()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not gone
    assert not is_gone(nameless)


def test_of_other_machines_nothing_is_known() -> None:
    _, *rest = this_node().split(":")
    assert not is_gone(":".join(["elsewhere/1", *rest]))
    assert not is_gone("n1")
