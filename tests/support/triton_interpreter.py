"""Triton's interpreter, made to run with the NumPy of this environment.

Import it first in a process that has TRITON_INTERPRET=1.
"""

from typing import Any

from triton.runtime import interpreter

__all__: list[str] = []

_patch_tensor = interpreter._patch_lang_tensor


def _patch_with_scalars(tensor: Any, scope: Any) -> None:
    """Take a loop's bounds out of one-element arrays, which newer NumPy refuses to convert."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_scalars
