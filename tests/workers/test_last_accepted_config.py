"""Workers that start later get the text that the others serve, whatever was read since."""

from pathlib import Path

from toolgate.workers.last_accepted_config import LastAcceptedConfigText, digest_of


def read(accepted: LastAcceptedConfigText, path: Path, text: bytes) -> None:
    path.write_bytes(text)
    assert accepted.read() == text


def test_a_text_that_is_accepted_after_the_next_one_was_read_is_in_force(tmp_path: Path) -> None:
    """After two reloads of which the second was refused, the next worker started with the text before both."""
    path = tmp_path / "toolgate.yaml"
    path.write_bytes(b"first")
    accepted = LastAcceptedConfigText(path)
    read(accepted, path, b"second")
    read(accepted, path, b"broken")
    assert accepted.text == b"first"
    accepted.accept(digest_of(b"second"))
    assert accepted.text == b"second"


def test_a_slow_worker_does_not_bring_back_an_earlier_text(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.yaml"
    path.write_bytes(b"first")
    accepted = LastAcceptedConfigText(path)
    read(accepted, path, b"second")
    read(accepted, path, b"third")
    for text in (b"third", b"second", b"first", b"unknown"):
        accepted.accept(digest_of(text))
        assert accepted.text == b"third"
    read(accepted, path, b"second")
    accepted.accept(digest_of(b"second"))
    assert accepted.text == b"second"


def test_few_texts_are_kept_however_many_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.yaml"
    path.write_bytes(b"first")
    accepted = LastAcceptedConfigText(path)
    for number in range(100):
        read(accepted, path, b"%d" % number)
    accepted.accept(digest_of(b"0"))
    assert accepted.text == b"first"
    accepted.accept(digest_of(b"99"))
    assert accepted.text == b"99"
