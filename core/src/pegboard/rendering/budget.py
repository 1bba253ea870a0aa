"""What one rendering may spend: steps, characters and time; and the measure of values.

A template may be hostile. Every operation that can grow a value asks here first, so that no
single one is large; every turn of a loop asks too, so that many small ones end.
"""

import time
from collections.abc import Mapping
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import TemplateError

__all__ = ["MAX_TEXT_CHARS", "Budget", "TemplateLimitError", "Value"]

#: Whatever a template may hold.
Value = Any

#: Longest text, and most elements of a list, that a template may make.
MAX_TEXT_CHARS = 16 << 20
_MAX_ELEMENTS = 1 << 18
_MAX_DEPTH = 64
_MAX_STEPS = 2_000_000
_MAX_WORK = 96 << 20
_MAX_SECONDS = 5.0


class TemplateLimitError(TemplateError):
    """A rendering would exceed its bounds."""


class Budget:
    """The account of one rendering; used by one thread."""

    __slots__ = ("_deadline", "_steps", "_work")

    def __init__(self, seconds: float = _MAX_SECONDS) -> None:
        """Start the clock."""
        self._deadline = time.monotonic() + seconds
        self._steps = _MAX_STEPS
        self._work = _MAX_WORK

    def spend(self, amount: int) -> None:
        """Count a step that makes or reads `amount` characters or elements.

        Raises:
            TemplateLimitError: an account is empty, or time is up.
        """
        self._steps -= 1
        self._work -= amount
        if self._steps < 0:
            raise TemplateLimitError(f"it takes more than {_MAX_STEPS} steps")
        if self._work < 0 or amount > MAX_TEXT_CHARS:
            raise TemplateLimitError("it makes too much text")
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"it takes more than {_MAX_SECONDS:g} seconds")

    def measure(self, value: Value) -> int:
        """Spend and return the characters and elements of plain data, shared parts each time.

        Raises:
            TemplateLimitError: it is larger, or nested deeper, than a template may hold.
            TypeError: it holds something that is not plain data.
        """
        size = self._size(value, _MAX_ELEMENTS, 0)[0]
        self.spend(size)
        return size

    def _size(self, value: Value, left: int, depth: int) -> tuple[int, int]:
        """Return (size, elements left to visit) of a value."""
        if isinstance(value, str):
            return len(value), left
        if value is None or isinstance(value, int | float | Undefined):
            return 1, left
        if not isinstance(value, list | tuple | Mapping):
            raise TypeError(f"a {type(value).__name__} is not data that a template may combine")
        if depth > _MAX_DEPTH:
            raise TemplateLimitError(f"its data is nested more than {_MAX_DEPTH} deep")
        items = (
            [part for pair in value.items() for part in pair]
            if isinstance(value, Mapping)
            else value
        )
        size = len(items)
        left -= size
        if left < 0:
            raise TemplateLimitError(f"it makes data of more than {_MAX_ELEMENTS} elements")
        for item in items:
            part, left = self._size(item, left, depth + 1)
            size += part
        return size, left
