"""Read the rights of a key from a request body; every error names the field, and unknown fields are errors.

A body has some of the fields; `null` resets one to its default. Knows models by name, to reject those that do not exist.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_args

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from toolgate.config.settings import BudgetPeriod, KeyBudgetSettings, Scope
from toolgate.conversation.errors import InvalidRequest
from toolgate.wire.fields import Fields

_MOST_PATTERNS = 128
_LONGEST = 256
_LARGEST = 10**12  # of limits and budgets: fits into every database column


class KeyRights(Struct, frozen=True):
    """The rights of a key, as the configuration has them."""

    scopes: tuple[Scope, ...] = ("chat",)
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    blocked_tools: tuple[str, ...] = ()
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    budget: KeyBudgetSettings | None = None
    keep_chats: bool | None = None


class KeyRightsReplacement(Struct, frozen=True):
    """A change of a key: all its rights from now on, and owner and expiry if they are given."""

    rights: KeyRights
    owner: str | UnsetType = UNSET
    expires: int | UnsetType | None = UNSET


def read_change(fields: Fields, before: KeyRights, models: Collection[str], now: float) -> KeyRightsReplacement:
    """Decode a change; InvalidRequest names the first field that is wrong or unknown."""
    given = {name: read(fields) for name, read in _READERS.items() if name in fields.rest}
    defaults = KeyRights()
    changed = {name: getattr(defaults, name) if value is None else value for name, value in given.items()}
    rights = replace(before, **changed)
    for number, model in enumerate(rights.models if "models" in given else ()):
        # A pattern may be for models that come later; a plain name that matches nothing is a typing error.
        if "*" not in model and model not in models:
            raise InvalidRequest(f"There is no model {model[:80]!r}.", param=f"models[{number}]")
    owner: str | UnsetType = UNSET
    if "owner" in fields.rest:
        owner = fields.text("owner") or ""
        if len(owner) > _LONGEST or not owner.isprintable():
            raise InvalidRequest(f"owner may have at most {_LONGEST} printable characters.", param="owner")
    expires: int | UnsetType | None = UNSET
    if "expires_at" in fields.rest:
        expires = fields.integer("expires_at", least=1, most=2**40)  # milliseconds, a usual mistake, are refused
        if expires is not None and expires <= now:
            raise InvalidRequest("expires_at must lie in the future, in seconds since 1970.", param="expires_at")
    reject_unknown(fields, (*_READERS, "name", "owner", "expires_at"))
    return KeyRightsReplacement(rights, owner, expires)


def reject_unknown(fields: Fields, known: Collection[str] = ()) -> None:
    """Raise InvalidRequest for a field that was not read: a client that sends `role` or `tenant` means something by it."""
    for name in fields.rest:
        near = difflib.get_close_matches(name[:80], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        at = fields.at(name[:80])
        raise InvalidRequest(f"{at} is not a field of a key{hint}", param=at, code="unknown_parameter")


def _scopes(fields: Fields) -> tuple[str, ...] | None:
    scopes = _patterns("scopes")(fields)
    for scope in scopes or ():
        if scope not in get_args(Scope):
            raise InvalidRequest(f"scopes may hold {', '.join(get_args(Scope))}, not {scope[:40]!r}.", param="scopes")
    if scopes == ():
        raise InvalidRequest("scopes must hold at least one scope.", param="scopes")
    return scopes


def _patterns(name: str) -> Callable[[Fields], tuple[str, ...] | None]:
    def read(fields: Fields) -> tuple[str, ...] | None:
        given = fields.items(name)
        if given is None:
            return None
        if len(given) > _MOST_PATTERNS:
            raise InvalidRequest(f"{name} may hold at most {_MOST_PATTERNS} items.", param=name)
        for number, one in enumerate(given):
            if type(one) is not str or not one.strip() or len(one) > _LONGEST or not one.isprintable():
                raise InvalidRequest(f"{name}[{number}] must be a name or a pattern.", param=f"{name}[{number}]")
        return tuple(given)

    return read


def _budget(fields: Fields) -> KeyBudgetSettings | None:
    given = fields.object("budget")
    if given is None:
        return None
    amount, period = given.number("amount"), given.one_of("period", *get_args(BudgetPeriod))
    if amount is None or not 0 < amount <= _LARGEST:
        raise InvalidRequest("budget.amount must be a number above 0.", param="budget.amount")
    reject_unknown(given, ("amount", "period"))
    return KeyBudgetSettings(amount=float(amount), period=period or "month")  # type: ignore[arg-type]  # `one_of` has checked it


_READERS: Mapping[str, Callable[[Fields], Any]] = {
    "scopes": _scopes,
    **{name: _patterns(name) for name in ("models", "tools", "blocked_tools")},
    "requests_per_minute": lambda fields: fields.integer("requests_per_minute", least=0, most=_LARGEST),
    "tokens_per_minute": lambda fields: fields.integer("tokens_per_minute", least=0, most=_LARGEST),
    "concurrency": lambda fields: fields.integer("concurrency", least=0, most=_LARGEST),
    "budget": _budget,
    "keep_chats": lambda fields: fields.flag("keep_chats"),
}
