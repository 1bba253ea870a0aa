"""The kit as tests; `pytest --pyargs pegboard.conformance --plugin NAME` collects this."""

import pytest

from pegboard.conformance.kit import Check, NotApplicable, Outcome, Subject
from pegboard.conformance.pytest_plugin import KitReport

__all__ = ["test_component"]


def test_component(kit_case: tuple[Check, Subject], pytestconfig: pytest.Config) -> None:
    """One check of one component."""
    check, subject = kit_case
    report = pytestconfig.pluginmanager.get_plugin("pegboard-kit-report")
    name = subject.spec.name
    outcome = Outcome(check, name, "pass")
    try:
        check.function(subject)
    except NotApplicable as reason:
        outcome = Outcome(check, name, "skip", str(reason))
        pytest.skip(str(reason))
    except Exception as error:
        outcome = Outcome(check, name, "fail", f"{type(error).__name__}: {error}")
        raise
    finally:
        if isinstance(report, KitReport):
            report.add(outcome)
