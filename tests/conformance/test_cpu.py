"""The conformance kit on the CPU plugin, exactly as an outside plugin runs it."""

import secrets

import pytest

from pegboard.catalog import build_catalog
from pegboard.config.plugins import PluginsConfig
from pegboard.conformance.kit import KINDS, Subject, run_checks

_CATALOG = build_catalog(PluginsConfig(enabled=("cpu",)))
_SUBJECTS = [
    (kind, entry) for kind in KINDS for entry in _CATALOG.entries(kind) if entry.plugin == "cpu"
]


@pytest.mark.parametrize(
    ("kind", "entry"), _SUBJECTS, ids=[entry.spec.name for _, entry in _SUBJECTS]
)
def test_component_conforms(kind: str, entry: object) -> None:
    outcomes = run_checks(kind, Subject(_CATALOG, entry, seed=secrets.randbits(31)))  # type: ignore[arg-type]
    assert outcomes
    assert [f"{o.check.name}: {o.detail}" for o in outcomes if o.status == "fail"] == []
