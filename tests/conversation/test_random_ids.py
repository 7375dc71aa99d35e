"""Random suffixes of ids never repeat, not even in a forked process."""

import subprocess
import sys

from toolgate.conversation.random_ids import random_suffix


def test_random_suffixes_are_distinct_and_have_the_asked_length() -> None:
    suffixes = [random_suffix(length) for length in (6, 24, 48, 64) for _ in range(500)]
    assert len(set(suffixes)) == 2000
    assert {len(one) for one in suffixes} == {6, 24, 48, 64}


def test_a_forked_process_makes_other_suffixes_than_its_parent() -> None:
    program = """import os
from toolgate.conversation.random_ids import random_suffix

random_suffix()
os.fork()
os.write(1, random_suffix().encode())"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert len(output) == 48
    assert output[:24] != output[24:]
