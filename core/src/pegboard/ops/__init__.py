"""Named ops: `reference` is the plain-torch truth, `dispatch` picks the implementations."""
