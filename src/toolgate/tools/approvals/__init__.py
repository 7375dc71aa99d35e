"""Whether a call may run: the policy, a person's answers, and the desk where the two meet.

    patterns.py   URLs and commands that need no question
    policy.py     what the configuration says of a tool and of one call
    record.py     a question put to a person, what they granted, and the states a question goes through
    binding.py    what an answer is bound to: exact arguments, the tool as it was defined, the policy
    ledger.py     where questions and grants are kept, as a Protocol
    shown.py      a question as a person may be shown it: nothing hidden, nothing disguised
    answers.py    what becomes of a question: its records, and what each side is told
    waiting.py    who waits for which answer
    desk.py       decides, waits and takes answers

Knows tools and values. It must not know HTTP, databases or models.
"""

from toolgate.tools.approvals.desk import Desk, Terms
from toolgate.tools.approvals.policy import Policy, Rule
from toolgate.tools.approvals.record import Approval, Grant

__all__ = ["Approval", "Desk", "Grant", "Policy", "Rule", "Terms"]
