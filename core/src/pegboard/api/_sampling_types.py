"""Checks the types of sampling parameters, before anything computes with a value.

Front ends build `SamplingParams` from whatever a program or a body holds. What passes here can
be compared, counted and written to the engine core's socket. Ranges are not looked at.
"""

from collections.abc import Callable
from typing import Any

from pegboard.api.errors import InvalidRequest

__all__ = ["check_types"]

_KINDS = ("cumulative", "delta", "final")


def check_types(params: Any) -> None:  # noqa: ANN401 -- SamplingParams, which imports this module
    """Check each field's type; numbers with a range are checked with their range.

    Raises:
        InvalidRequest: naming the parameter.
    """
    for name, (fits, wanted) in _FIELDS.items():
        value = getattr(params, name)
        if not fits(value):
            raise InvalidRequest(
                f"{name} is {_shown(value)}; it must be {wanted}",
                param=name,
            )
    for name in ("stop", "bad_words"):
        for text in getattr(params, name):
            _check_text(text, name)


def _check_text(text: str, name: str) -> None:
    """Refuse text that UTF-8 cannot hold, such as half of a surrogate pair.

    Raises:
        InvalidRequest: naming the parameter.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} is not valid Unicode: {error.reason} at character {error.start}", param=name
        ) from error


def _shown(value: object) -> str:
    if isinstance(value, str | bool | float) or value is None:
        return ascii(value)[:80]
    return f"of type {type(value).__name__} or holds what does not fit"


def _is_a(value: Any, kind: type) -> bool:  # noqa: ANN401
    return isinstance(value, kind)


def _is_id(value: object) -> bool:
    return type(value) is int


def _is_list_of(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_a(value, list) and all(map(each, value))


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_biases(value: Any) -> bool:  # noqa: ANN401
    return _is_a(value, dict) and all(
        type(key) is int and isinstance(bias, int | float) and bias == bias
        for key, bias in value.items()
    )


def _is_named(value: Any) -> bool:  # noqa: ANN401
    return _is_a(value, dict) and all(isinstance(key, str) for key in value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


_TEXTS = (_is_list_of(lambda value: isinstance(value, str)), "a list of strings")
_IDS = (_is_list_of(_is_id), "a list of token ids")
_MAYBE_IDS = (_or_none(_is_list_of(_is_id)), "a list of token ids")
_SWITCH = (_is_bool, "true or false")

#: field: what fits, and how to say so
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "stop": _TEXTS,
    "bad_words": _TEXTS,
    "stop_token_ids": _IDS,
    "bad_words_token_ids": (_is_list_of(_is_list_of(_is_id)), "a list of lists of token ids"),
    "allowed_token_ids": _MAYBE_IDS,
    "logprob_token_ids": _MAYBE_IDS,
    "prompt_logprob_token_ids": _MAYBE_IDS,
    "logit_bias": (_or_none(_is_biases), "a table of token id to number"),
    "extra_args": (_or_none(_is_named), "a table of names to JSON values"),
    "ignore_eos": _SWITCH,
    "flat_logprobs": _SWITCH,
    "detokenize": _SWITCH,
    "skip_special_tokens": _SWITCH,
    "spaces_between_special_tokens": _SWITCH,
    "include_stop_str_in_output": _SWITCH,
    "skip_reading_prefix_cache": _SWITCH,
    "output_kind": (lambda v: isinstance(v, str) and v in _KINDS, f"one of {', '.join(_KINDS)}"),
}
