"""The conformance kit: what a component of each kind must do, as checks that anyone can run.

    platform plugins test myorg_attn                       a table of every check
    pytest --pyargs pegboard.conformance --plugin myorg_attn    the same, as tests

A kind's checks stand in the file of its name. A check takes a `Subject` and returns, raises
`AssertionError` with what was expected and what came, or raises `NotApplicable` with the reason.
"""

from pegboard.conformance.kit import Check, NotApplicable, Outcome, Subject, checks_of, run_checks

__all__ = ["Check", "NotApplicable", "Outcome", "Subject", "checks_of", "run_checks"]
