"""Named ops: `reference` is the plain-torch truth, `dispatch` picks the implementations."""

__all__: list[str] = []
