"""The kit in the package's own CI: `pytest --plugin myorg_attn`."""

from pegboard.conformance.test_conformance import test_component

__all__ = ["test_component"]
