"""What `toolgate doctor` finds."""

from enum import IntEnum
from typing import NamedTuple


class FindingLevel(IntEnum):
    """How bad a finding is."""

    OK = 0
    WARNING = 1
    PROBLEM = 2


class DoctorFinding(NamedTuple):
    """One thing that was looked at: how it is, and what to do about it."""

    level: FindingLevel
    subject: str
    text: str
    advice: str | None = None


def ok(subject: str, text: str) -> DoctorFinding:
    """A thing that is as it should be."""
    return DoctorFinding(FindingLevel.OK, subject, text)


def warning(subject: str, text: str, advice: str) -> DoctorFinding:
    """A thing with which a server works, but not as its operator may expect."""
    return DoctorFinding(FindingLevel.WARNING, subject, text, advice)


def problem(subject: str, text: str, advice: str) -> DoctorFinding:
    """A thing that keeps a server, or a part of it, from working."""
    return DoctorFinding(FindingLevel.PROBLEM, subject, text, advice)
