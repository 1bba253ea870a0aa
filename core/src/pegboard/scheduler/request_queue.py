"""Requests in a policy's order."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from pegboard.scheduler.request import Request, RequestStatus

__all__ = ["RequestQueue"]

_key = attrgetter("sort_key")


class RequestQueue:
    """A sorted list: the least key first. Adding at the end and looking anywhere is cheap.

    Attributes:
        requests: in order; read only.
        num_tokens: prompt tokens of all of them.
    """

    __slots__ = ("num_tokens", "requests")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def __getitem__(self, index: int) -> Request:
        return self.requests[index]

    def add(self, request: Request) -> None:
        """Insert by key; equal keys do not occur."""
        insort(self.requests, request, key=_key)
        self.num_tokens += request.num_prompt_tokens

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is."""
        index = bisect_left(self.requests, request.sort_key, key=_key)
        assert self.requests[index] is request
        del self.requests[index]
        self.num_tokens -= request.num_prompt_tokens

    def drop_finished(self) -> None:
        """Take out every request that is no longer running, in one pass."""
        self.requests = [r for r in self.requests if r.status is RequestStatus.RUNNING]
        self.num_tokens = sum(r.num_prompt_tokens for r in self.requests)
