"""The filters that chat templates may use, each bounded. Jinja's others are not there."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import Undefined
from jinja2.environment import Environment
from jinja2.exceptions import TemplateError
from jinja2.filters import FILTERS
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.tests import TESTS

from pegboard.rendering.budget import Budget, TemplateLimitError, Value
from pegboard.rendering.growth import joined_size, replaced_size

__all__ = ["bounded_filters", "bounded_tests", "check_format"]

#: Filters that only look at the outer shape of what they are given, or pass it on.
_SHAPE = (  # noqa: SIM905 -- reads better
    "count d default first items last length list map reject rejectattr reverse select selectattr"
).split()
#: Filters that read all of what they are given, and make no more of it.
_READING = (  # noqa: SIM905 -- reads better
    "abs capitalize dictsort e escape float forceescape groupby int lower max min safe sort string "
    "title trim truncate unique upper wordcount"
).split()
#: Tests that compare values; the others look at one value's type.
_COMPARING = "!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lt ne".split()  # noqa: SIM905 -- reads better
_LARGE_FIELD = re.compile(r"\d{4,}|\*|\{[^{}]*\{")
_MAX_WIDTH = 1000
_MAX_DIGITS = 30

_Budgets = Callable[[], Budget]


def check_format(text: str) -> None:
    """Refuse formats that could ask for a large or unknown width.

    Raises:
        TemplateLimitError: as said.
    """
    if _LARGE_FIELD.search(text):
        raise TemplateLimitError("a format asks for a width over 999 or one that is computed")


def bounded_filters(budgets: _Budgets) -> dict[str, Callable[..., Any]]:
    """Return the filters by name.

    Args:
        budgets: returns the account of the rendering that runs.
    """
    filters = {name: _counted(FILTERS[name], budgets) for name in _SHAPE}
    filters |= {name: _measured(FILTERS[name], budgets) for name in _READING}
    for name, checked in (
        ("center", _check_center),
        ("format", _check_format_filter),
        ("indent", _check_indent),
        ("replace", _check_replace),
        ("round", _check_round),
        ("sum", _check_sum),
    ):
        filters[name] = _measured(FILTERS[name], budgets, checked)
    filters["join"] = functools.partial(_join, budgets)
    filters["tojson"] = functools.partial(_to_json, budgets)
    return filters


def bounded_tests(budgets: _Budgets) -> dict[str, Callable[..., Any]]:
    """Return Jinja's tests by name, those that compare values bounded.

    Args:
        budgets: returns the account of the rendering that runs.
    """
    return {
        name: _measured(test, budgets) if name in _COMPARING else test
        for name, test in TESTS.items()
    }


def _counted(function: Callable[..., Any], budgets: _Budgets) -> Callable[..., Any]:
    """Wrap a filter whose work is the number of outer elements."""

    @functools.wraps(function)  # keeps the mark that says which of Jinja's objects it takes
    def filter_(*args: Value, **kwargs: Value) -> Value:
        budgets().spend(sum(len(arg) for arg in args if isinstance(arg, list | tuple | dict)))
        return function(*args, **kwargs)

    return filter_


def _measured(
    function: Callable[..., Any],
    budgets: _Budgets,
    check: Callable[..., int] | None = None,
) -> Callable[..., Any]:
    """Wrap a filter: its arguments are measured, and its result if `check` foresees growth."""

    @functools.wraps(function)  # keeps the mark that says which of Jinja's objects it takes
    def filter_(*args: Value, **kwargs: Value) -> Value:
        budget = budgets()
        plain = [arg for arg in args if not isinstance(arg, Environment | Context | EvalContext)]
        for value in (*plain, *kwargs.values()):
            if not isinstance(value, Iterator):
                budget.measure(list(value) if isinstance(value, range) else _as_data(value))
        if check is not None:
            budget.spend(check(*plain, **kwargs))
        return function(*args, **kwargs)

    return filter_


def _as_data(value: Value) -> Value:
    """Return views of mappings as lists, so that they can be measured."""
    if isinstance(value, str | list | tuple | dict | Undefined) or not isinstance(value, Iterable):
        return value
    return list(value)


def _check_center(value: Value, width: int = 80) -> int:
    del value
    return _width(width)


def _check_format_filter(value: Value, *args: Value, **kwargs: Value) -> int:
    del args, kwargs
    check_format(str(value))
    return 1


def _check_indent(
    s: Value,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> int:
    del first, blank
    size = len(width) if isinstance(width, str) else _width(width)
    return (str(s).count("\n") + 1) * min(size, _MAX_WIDTH)


def _check_replace(s: Value, old: str, new: str, count: int | None = None) -> int:
    return replaced_size(str(s), old, new, count)


def _check_round(value: Value, precision: int = 0, method: str = "common") -> int:
    del value, method
    if not isinstance(precision, int) or abs(precision) > _MAX_DIGITS:
        raise TemplateLimitError(f"round to {precision} digits")
    return 1


def _check_sum(iterable: Value, attribute: Value = None, start: Value = 0) -> int:
    del iterable, attribute
    if not isinstance(start, int | float):
        raise TemplateError("sum adds numbers")
    return 1


def _width(width: Value) -> int:
    if not isinstance(width, int) or width > _MAX_WIDTH:
        raise TemplateLimitError(f"a width of {width!r}")
    return max(0, width)


def _join(budgets: _Budgets, value: Value, d: str = "", attribute: Value = None) -> str:
    """Join texts and plain values with `d` between, as Jinja's filter of that name."""
    budget = budgets()
    items = list(value)
    if attribute is not None:
        items = [item[attribute] for item in items]
    budget.measure(items)
    parts, separator = [str(item) for item in items], str(d)
    budget.spend(joined_size(separator, parts))
    return separator.join(parts)


def _to_json(
    budgets: _Budgets,
    value: Value,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: nothing is escaped for HTML."""
    budget = budgets()
    budget.measure(value)
    if (isinstance(indent, int) and indent > 16) or (isinstance(indent, str) and len(indent) > 16):
        raise TemplateLimitError("an indent over 16")
    if separators is not None and sum(map(len, separators)) > 16:
        raise TemplateLimitError("separators over 16 characters")
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    budget.spend(len(text))
    return text
