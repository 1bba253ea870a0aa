"""API keys. Every route has a scope; what is not declared public needs a key."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal

from pegboard_server.errors import HttpError
from pegboard_server.responder import HttpRequest

__all__ = ["KeyRing", "Scope"]

Scope = Literal["public", "user", "admin"]


class KeyRing:
    """The keys that open routes, kept as digests and compared in constant time."""

    __slots__ = ("_admin", "_user")

    def __init__(self, user: Sequence[str], admin: Sequence[str]) -> None:
        """Take the keys; empty strings are none."""
        self._admin = [_digest(key.encode()) for key in admin if key]
        self._user = [_digest(key.encode()) for key in user if key]

    def check(self, request: HttpRequest, scope: Scope) -> None:
        """Let the request pass, or not.

        Raises:
            HttpError: 401 without a right key, 403 where no key would do.
        """
        if scope == "public" or (scope == "user" and not self._user):
            return
        if scope == "admin" and not self._admin:
            raise HttpError(
                403, "this route needs an administrator's key and none is set (--admin-api-key)"
            )
        accepted = self._admin if scope == "admin" else [*self._user, *self._admin]
        given = request.header(b"authorization") or ""
        kind, _, key = given.partition(" ")
        presented = _digest(key.strip().encode("latin-1")) if kind.lower() == "bearer" else b""
        # Every key is compared, so that the time does not tell which one came close.
        if not sum(hmac.compare_digest(presented, known) for known in accepted):
            raise HttpError(
                401,
                "a valid API key is needed: Authorization: Bearer <key>",
                headers={"www-authenticate": "Bearer"},
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
