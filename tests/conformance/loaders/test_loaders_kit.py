"""The kit on the components of the plugin `loaders`, as an outsider runs it."""

import pytest
from tests.support.kit import kit_cases

from pegboard.conformance import Check, NotApplicable, Subject


@pytest.mark.parametrize(("check", "subject"), kit_cases("loaders"))
def test_component(check: Check, subject: Subject) -> None:
    try:
        check.function(subject)
    except NotApplicable as reason:
        assert str(reason)
