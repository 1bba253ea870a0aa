"""A Jinja environment in which a hostile template can neither escape, hang nor fill memory.

On top of Jinja's immutable sandbox: templates are instrumented when they are compiled, so that
each block, comparison of data and join of texts is accounted; operators and methods that grow a
value are checked before they run; only known filters, attributes and callables are there.

Data that shares parts (a list of twice the same list of twice …) is small in memory and endless
written out or compared, so whatever does either measures it first.
"""

import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from pegboard.rendering.budget import Budget, TemplateLimitError, Value
from pegboard.rendering.filters import bounded_filters, bounded_tests, check_format
from pegboard.rendering.growth import GROWING_METHODS, binary_growth
from pegboard.rendering.instrument import Instrument

__all__ = ["BoundedEnvironment"]

_STR_METHODS = frozenset(
    "capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal "  # noqa: SIM905 -- reads better
    "isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip partition "
    "removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
    "splitlines startswith strip swapcase title upper zfill".split()
)
_DICT_METHODS = frozenset(("copy", "get", "items", "keys", "values"))
_LIST_METHODS = frozenset(("copy", "count", "index"))
_QUICK_METHODS = frozenset(("endswith", "startswith"))
_JINJA_ARGUMENTS = frozenset(("_block_vars", "_loop_vars"))
_STRFTIME = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")
_MAX_RANGE = 100_000

_budget: ContextVar[Budget] = ContextVar("rendering_budget")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders templates under a `Budget`; shared by threads."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        """Set Jinja up as chat templates expect it, with what they may use."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Nothing is computed while compiling: no budget stands behind it.
            optimized=False,
            finalize=_account_output,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.globals = {
            "cycler": Cycler,
            "dict": self._dict,
            "joiner": Joiner,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "range": self._range,
            "strftime_now": _strftime_now,
        }
        self.filters = bounded_filters(self.budget)
        self.tests = bounded_tests(self.budget)
        self._callables: frozenset[Callable[..., Any]] = frozenset(self.globals.values())

    def render(self, template: Value, variables: dict[str, Any], budget: Budget) -> str:
        """Render a template that this environment compiled.

        Args:
            template: what `from_string` returned.
            variables: plain data only.
            budget: of this rendering.

        Raises:
            TemplateError: the template refuses, fails, or exceeds its budget.
        """
        token = _budget.set(budget)
        try:
            return template.render(variables)
        finally:
            _budget.reset(token)

    def budget(self) -> Budget:
        """Return the account of the rendering that runs in this thread."""
        return _budget.get()

    def is_safe_attribute(self, obj: Value, attr: str, value: Value) -> bool:
        """Allow known methods of data, and the public attributes of Jinja's own helpers."""
        if isinstance(obj, str):
            return attr in _STR_METHODS
        if isinstance(obj, dict):
            return attr in _DICT_METHODS
        if isinstance(obj, list | tuple):
            return attr in _LIST_METHODS or (isinstance(obj, tuple) and attr in _fields(obj))
        if isinstance(obj, LoopContext | Cycler | Namespace | Macro):
            return super().is_safe_attribute(obj, attr, value)
        return False

    def call(self, context: Context, obj: Value, /, *args: Value, **kwargs: Value) -> Value:
        """Call what a template may call, once its result is known to be small."""
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            given = {name: kwargs[name] for name in kwargs if name not in _JINJA_ARGUMENTS}
            self._check_method(owner, method.__name__, args, given)
        elif isinstance(owner, list | tuple | LoopContext):
            self.budget().measure([owner if not isinstance(owner, LoopContext) else 0, *args])
        elif not self._may_call(obj, owner):
            raise SecurityError(f"a template may not call {type(obj).__name__}")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """Compute `left operator right`, once its result is known to be small."""
        if operator == "%" and isinstance(left, str):
            check_format(left)
            self.budget().measure([right])
        self.budget().spend(binary_growth(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def spend(self, amount: int) -> str:
        """Account a block that is about to run; `amount` is its literal text."""
        _budget.get().spend(amount)
        return ""

    def concat_text(self, *values: Value) -> str:
        """Join as the `~` operator does."""
        budget = self.budget()
        budget.measure(list(values))
        texts = [str(value) for value in values]
        budget.spend(sum(map(len, texts)))
        return "".join(texts)

    def checked(self, value: Value) -> Value:
        """Return a value that is about to be compared or hashed, if it is small and plain."""
        if isinstance(value, list | tuple | dict):
            self.budget().measure(value)
        return value

    def _check_method(
        self, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        budget = self.budget()
        if name == "format":
            check_format(owner)
            budget.measure([*args, *kwargs.values()])
        growth = GROWING_METHODS.get(name)
        if growth is not None:
            if kwargs:
                raise SecurityError(f"{name} takes no named arguments in a template")
            budget.spend(growth(owner, *args))
        else:
            budget.spend(1 if name in _QUICK_METHODS else len(owner))

    def _may_call(self, obj: Value, owner: Value) -> bool:
        if isinstance(obj, Macro | LoopContext | Joiner | BlockReference | Undefined):
            return True  # an undefined value says so itself
        if isinstance(owner, dict | Cycler):
            return True
        try:
            return obj in self._callables or getattr(obj, "__func__", None) in _ACCOUNTING
        except TypeError:  # not hashable, so not one of ours
            return False

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        if len(numbers) > _MAX_RANGE:
            raise TemplateLimitError(f"range({len(numbers)}) is longer than {_MAX_RANGE}")
        self.budget().spend(len(numbers))
        return numbers

    def _dict(self, *args: Value, **kwargs: Value) -> dict[Any, Any]:
        return self.checked(dict(*args, **kwargs))

    def _generate(self, source: nodes.Template, *args: Value, **kwargs: Value) -> str:
        """Jinja's hook between parsing and code: instrument the template first."""
        return super()._generate(Instrument().visit(source), *args, **kwargs)


_ACCOUNTING = frozenset(
    (BoundedEnvironment.spend, BoundedEnvironment.concat_text, BoundedEnvironment.checked)
)


class _GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks the assistant's words; here it only groups."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*args: Value, **kwargs: Value) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Value) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Value) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}")


def _fields(value: tuple[Any, ...]) -> tuple[str, ...]:
    return getattr(value, "_fields", ())


@pass_context
def _account_output(context: Context, value: Value) -> Value:
    """Account what `{{ … }}` writes. Takes the context so that Jinja writes nothing early."""
    del context
    budget = _budget.get()
    if isinstance(value, str):
        budget.spend(len(value))
        return value
    budget.measure(value)
    text = str(value)
    budget.spend(len(text))
    return text


def _raise_exception(message: Value) -> None:
    raise TemplateError(str(message)[:500] if isinstance(message, str) else "no reason given")


def _strftime_now(form: str) -> str:
    if not isinstance(form, str) or len(form) > 200 or not _STRFTIME.fullmatch(form):
        raise TemplateLimitError("strftime_now takes a short form with plain fields")
    return datetime.now().strftime(form)  # local time, as chat templates expect
