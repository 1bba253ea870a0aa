"""Finds plugins, checks them, and selects among the components they offer, with reasons.

`build_catalog` runs once, in the parent; `rebuild_catalog` loads exactly the same plugins in a
child. Neither imports an implementation: those load when something is selected.
"""

from pegboard.catalog.build import build_catalog, rebuild_catalog
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.selection import Entry, Selection, Verdict

__all__ = [
    "Catalog",
    "Entry",
    "Selection",
    "Verdict",
    "build_catalog",
    "rebuild_catalog",
]
