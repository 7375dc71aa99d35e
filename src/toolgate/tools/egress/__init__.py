"""Send the HTTP requests of tools, to public hosts and to those that the operator allows.

url.py                    parse a URL, or refuse it
address.py                which addresses are public
policy.py                 which hosts may be reached: public ones and the operator's exceptions
account_request_quota.py  how much one account may send
http.py                   EgressHttpClient, which tools use: one request, one response
guarded_http.py           GuardedHttp: an EgressHttpClient that checks every hop of a request
pinned_transport.py       the exchange itself, over a connection to a checked address
name_lookup.py            the addresses of hosts, looked up in threads
"""

from toolgate.tools.egress.account_request_quota import EgressBudget, EgressQuota, UnlimitedEgress
from toolgate.tools.egress.guarded_http import GuardedHttp, HttpHopLogEntry, PinnedAddressTransport
from toolgate.tools.egress.http import EgressHttpClient, EgressNoResponse, EgressRefused, EgressRequest, EgressResponse
from toolgate.tools.egress.policy import EgressPolicy, Resolve

__all__ = [
    "EgressBudget",
    "EgressHttpClient",
    "EgressNoResponse",
    "EgressPolicy",
    "EgressQuota",
    "EgressRefused",
    "EgressRequest",
    "EgressResponse",
    "GuardedHttp",
    "HttpHopLogEntry",
    "PinnedAddressTransport",
    "Resolve",
    "UnlimitedEgress",
]
