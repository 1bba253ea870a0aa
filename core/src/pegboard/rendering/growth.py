"""How large the result of an operator or a text method will be, before it is computed.

Each function returns characters or elements for the budget to spend, and refuses numbers and
formats whose size cannot be told.
"""

from collections.abc import Callable

from pegboard.rendering.budget import TemplateLimitError, Value

__all__ = ["GROWING_METHODS", "binary_growth", "joined_size", "replaced_size"]

_MAX_BITS = 4096
_Sized = str | list | tuple


def binary_growth(operator: str, left: Value, right: Value) -> int:
    """Return what `left operator right` makes.

    Raises:
        TemplateLimitError: a number would be too large.
    """
    if operator == "+" and isinstance(left, _Sized) and isinstance(right, _Sized):
        return len(left) + len(right)
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, _Sized) and isinstance(times, int):
                return len(many) * max(0, times)
    if isinstance(left, int) and isinstance(right, int):
        bits = _bits_of(operator, left, right)
        if bits > _MAX_BITS:
            raise TemplateLimitError(f"a number would have {bits} bits")
    return 1


def _bits_of(operator: str, left: int, right: int) -> int:
    if operator == "**":
        return left.bit_length() * max(0, right) if abs(left) > 1 else 1
    if operator == "*":
        return left.bit_length() + right.bit_length()
    return max(left.bit_length(), right.bit_length()) + 1


def replaced_size(text: str, old: Value, new: Value, *limit: Value) -> int:
    """Return the length of text.replace(old, new): at most one `new` for each `old`."""
    del limit
    if not isinstance(old, str) or not isinstance(new, str):
        return len(text)
    return len(text) + text.count(old) * len(new)


def joined_size(separator: str, parts: list[str]) -> int:
    """Return the length of separator.join(parts)."""
    return len(separator) * len(parts) + sum(map(len, parts))


def _join(separator: str, parts: Value) -> int:
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise TypeError("join takes a list of texts in a template")
    return joined_size(separator, list(parts))


def _padded(text: str, width: Value, *fill: Value) -> int:
    del fill
    return max(len(text), width if isinstance(width, int) else 0)


#: Methods of text whose result may be longer than the text.
GROWING_METHODS: dict[str, Callable[..., int]] = {
    "center": _padded,
    "join": _join,
    "ljust": _padded,
    "replace": replaced_size,
    "rjust": _padded,
    "zfill": _padded,
}
