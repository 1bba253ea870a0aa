"""The conformance kit's checks of one plugin as parameters of a test."""

import secrets

import pytest

from pegboard.catalog import build_catalog
from pegboard.config.plugins import PluginsConfig
from pegboard.conformance.kit import KINDS, Subject, checks_of

#: Components whose checks take long; one of each form stays in the fast suite.
_SLOW = {"MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def kit_cases(plugin: str) -> list:
    """Return a parameter set for each check of each component of `plugin`."""
    catalog = build_catalog(PluginsConfig(enabled=()))
    cases = []
    for kind in KINDS:
        for entry in catalog.entries(kind):
            if entry.plugin != plugin:
                continue
            marks = [pytest.mark.slow] if entry.name in _SLOW else []
            for check in checks_of(kind):
                subject = Subject(catalog, entry, secrets.randbits(31))
                name = f"{entry.name}-{check.name}"
                cases.append(pytest.param(check, subject, id=name, marks=marks))
    return cases
