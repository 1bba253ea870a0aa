"""Pegboard: an LLM inference platform with a small core where everything interesting is a plugin.

Importing this imports no torch; the names below load when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pegboard.api.sampling_params import SamplingParams
    from pegboard.engine.async_llm import AsyncLLM
    from pegboard.engine.llm import LLM

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

__version__ = "0.1.0"

_LAZY = {
    "LLM": "pegboard.engine.llm",
    "AsyncLLM": "pegboard.engine.async_llm",
    "SamplingParams": "pegboard.api.sampling_params",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- whatever the name stands for
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'pegboard' has no attribute {name!r}")
