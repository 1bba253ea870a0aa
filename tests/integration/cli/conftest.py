"""Fake plugins as real entry points."""

from tests.support.plugins import fake_plugins

__all__ = ["fake_plugins"]
