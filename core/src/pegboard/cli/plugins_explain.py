"""`platform plugins explain`: each choice with the verdict on every candidate."""

import argparse
from typing import Any

import msgspec

from pegboard.api.errors import ConfigError, PegboardError
from pegboard.api.hookspecs import COMPONENT_HOOKS
from pegboard.catalog import Catalog, Verdict, build_catalog
from pegboard.catalog.discovery import nearest
from pegboard.catalog.explain import (
    EXPLAINED_KINDS,
    Explanation,
    explain_kind,
    explain_ops,
    verdict_rows,
)
from pegboard.cli.flags import engine_options
from pegboard.cli.output import line, show_json, table
from pegboard.config.engine import EngineOptions

__all__ = ["explain"]

#: What people call some kinds.
_SHORT = {"attention": "attention_backends", "ops": "op_implementations"}


def explain(args: argparse.Namespace) -> int:
    """Print what would be chosen under these options; return 1 if something cannot be chosen.

    Raises:
        ConfigError: an unknown kind, or wrong options.
    """
    kinds = [_kind(word) for word in args.kinds]
    options = engine_options(args, args.invocation.environment)
    catalog = build_catalog(options.plugins)
    problem = ""
    if options.model.model is None:
        explanations = _without_model(catalog, options, kinds)
    else:
        explanations, problem = _with_model(catalog, options, kinds)
    if args.json:
        show_json(_as_json(explanations, problem))
    else:
        _show(explanations, problem)
    return int(bool(problem))


def _without_model(catalog: Catalog, options: EngineOptions, kinds: list[str]) -> list[Explanation]:
    explanations: list[Explanation] = []
    for kind in kinds or EXPLAINED_KINDS:
        if kind == "op_implementations":
            explanations += explain_ops(catalog, options)
        else:
            explanations.append(explain_kind(catalog, kind, options))
    return explanations


def _with_model(
    catalog: Catalog, options: EngineOptions, kinds: list[str]
) -> tuple[list[Explanation], str]:
    """Resolve as a start would, and read what the catalog recorded on the way."""
    from pegboard.engine.resolve import resolve

    problem = ""
    try:
        config = resolve(options, catalog)
    except PegboardError as error:
        problem = str(error)
    else:
        options = msgspec.structs.replace(
            options,
            model=msgspec.structs.replace(options.model, dtype=config.model.dtype),
            parallel=msgspec.structs.replace(options.parallel, platform=config.platform),
        )
    recorded = catalog.report()["chosen"]
    explanations = [
        Explanation(
            kind=key.partition("/")[0],
            question=f"for {options.model.model}",
            verdicts=tuple(msgspec.convert(chosen["verdicts"], list[Verdict])),
        )
        for key, chosen in recorded.items()
        if not kinds or key.partition("/")[0] in kinds
    ]
    known = {explanation.kind for explanation in explanations}
    for kind in kinds:
        if kind not in known:
            explanations += _without_model(catalog, options, [kind])
    return explanations, problem


def _kind(word: str) -> str:
    kind = _SHORT.get(word, word.replace("-", "_"))
    if kind not in COMPONENT_HOOKS and f"{kind}s" in COMPONENT_HOOKS:
        kind = f"{kind}s"
    if kind not in COMPONENT_HOOKS:
        raise ConfigError(
            f"there is no kind {word!r}{nearest(kind, COMPONENT_HOOKS)} "
            f"(kinds: {', '.join(COMPONENT_HOOKS)})"
        )
    return kind


def _show(explanations: list[Explanation], problem: str) -> None:
    for explanation in explanations:
        flag = f"; {explanation.flag} NAME forces one" if explanation.flag else ""
        line(f"{explanation.kind}: {explanation.question}{flag}")
        if explanation.verdicts:
            table(verdict_rows(explanation.verdicts), indent=2)
        else:
            line("  no plugin offers any")
    if problem:
        line(f"the start would fail: {problem}")
    else:
        line("-> chosen    x does not fit")


def _as_json(explanations: list[Explanation], problem: str) -> dict[str, Any]:
    return {"explanations": msgspec.to_builtins(explanations), "problem": problem or None}
