"""What tools may open on the network. Knows URLs, addresses and redirects; opens no socket itself.

url.py       a URL taken apart, or refused
address.py   which addresses are anybody's and which only the operator can open
policy.py    the operator's list of exceptions, and names checked once for all their addresses
budget.py    how much one account may send
http.py      Http: what tools hold; one request in, one answer out
guarded.py   Http as a chain of checked hops over a Carrier, which the server provides
"""

from toolgate.tools.egress.budget import Allowance, Budget
from toolgate.tools.egress.guarded import Carrier, GuardedHttp, Hop
from toolgate.tools.egress.http import Http, HttpAnswer, HttpRequest, Refused, Unanswered
from toolgate.tools.egress.policy import Policy, Resolve

__all__ = [
    "Allowance",
    "Budget",
    "Carrier",
    "GuardedHttp",
    "Hop",
    "Http",
    "HttpAnswer",
    "HttpRequest",
    "Policy",
    "Refused",
    "Resolve",
    "Unanswered",
]
