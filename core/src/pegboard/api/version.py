"""The version of the plugin API, the rule for what loads, and the one way to deprecate a name."""

import re
import warnings

__all__ = ["API_VERSION", "api_version_problem", "warn_deprecated"]

#: MAJOR.MINOR. A new hook, field or keyword with a default raises MINOR; anything else, MAJOR.
API_VERSION = "1.0"

_FORM = re.compile(r"(\d+)\.(\d+)")


def api_version_problem(built_against: str, core: str = API_VERSION) -> str | None:
    """Say why a plugin built against `built_against` cannot load into a core that has `core`.

    Core A.B loads a.b if a = A and b <= B. A core of the next major keeps shims for the last
    one, so a = A - 1 loads too; there is no major before 1.

    Returns:
        None if it loads, else one line that names the version that would fit.
    """
    match = _FORM.fullmatch(built_against)
    if match is None:
        return f"api={built_against!r} is not MAJOR.MINOR, such as {core!r}"
    major, minor = map(int, match.groups())
    core_major, core_minor = map(int, core.split("."))
    if major == core_major and minor > core_minor:
        return f"api {built_against} is newer than the core's {core}; upgrade pegboard-core"
    if major > core_major:
        return f"api {built_against} needs a core of API {major}; upgrade pegboard-core"
    if major < max(1, core_major - 1):
        return f"api {built_against} is too old for the core's {core}; upgrade the plugin"
    return None


def warn_deprecated(name: str, *, replacement: str, since: str) -> None:
    """Warn once a call site that `name` goes away two minors after `since`, for `replacement`."""
    warnings.warn(
        f"{name} is deprecated since API {since}; use {replacement}",
        DeprecationWarning,
        stacklevel=3,
    )
