"""What would be chosen, told without choosing: the questions and the tables of answers.

It knows no model; who has one (`pegboard.engine.resolve`) asks the catalog with real queries and
reads what the catalog recorded.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pegboard.api.attention import AttentionBackendSpec, AttentionQuery
from pegboard.api.engine import ExecutorQuery
from pegboard.api.hookspecs import COMPONENT_HOOKS
from pegboard.api.ops import OpDefinition, OpQuery
from pegboard.api.platforms import Detection, PlatformQuery
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.selection import Entry, Verdict
from pegboard.config.engine import EngineOptions

__all__ = [
    "EXPLAINED_KINDS",
    "Explanation",
    "explain_kind",
    "explain_ops",
    "merge_reports",
    "verdict_rows",
]

#: Kinds that are chosen by comparing, in the order of the choices; others are asked for by name.
EXPLAINED_KINDS = ("platforms", "executors", "attention_backends")

#: What is assumed of a model where none is named: SmolLM2's and Llama's usual head size.
_ASSUMED_HEAD_SIZE = 64


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of one choice.

    Attributes:
        kind: the component kind.
        question: what was asked, for the reader; "" where components are asked for by name.
        verdicts: of every candidate, the preferred first.
        flag: what forces a choice.
    """

    kind: str
    question: str
    verdicts: tuple[Verdict, ...]
    flag: str = ""


def explain_kind(catalog: Catalog, kind: str, options: EngineOptions) -> Explanation:
    """Explain a choice by what options and platform say alone.

    Raises:
        KeyError: there is no such kind.
    """
    if kind == "platforms":
        name = options.parallel.platform
        verdicts = catalog.explain(kind, PlatformQuery(), name=name)
        return _explanation(kind, "what this machine has", verdicts, "--platform")
    if kind == "executors":
        size = options.parallel.tensor_parallel_size
        name = options.parallel.distributed_executor_backend
        verdicts = catalog.explain(kind, ExecutorQuery(world_size=size), name=name)
        question = f"a fleet of {size}"
        return _explanation(kind, question, verdicts, "--distributed-executor-backend")
    if kind == "attention_backends":
        return _explain_attention(catalog, options)
    return _listing(catalog, kind)


def explain_ops(catalog: Catalog, options: EngineOptions, kv_layout: str = "") -> list[Explanation]:
    """Explain each named op's implementation on the platform that would be chosen."""
    platform, detection = _platform(catalog, options)
    dtype = _dtype(options)
    result = []
    for definition in catalog.entries("op_definitions"):
        query = OpQuery(
            op=definition.name,
            platform=platform,
            platform_features=detection.features,
            capability=detection.capability,
            dtype=dtype,
            kv_layout=kv_layout,
        )
        verdicts = catalog.explain("op_implementations", query)
        order = options.ops.priority.get(definition.name)
        if order is not None:
            verdicts = _by_order(verdicts, order)
        verdicts.append(_last_resort(definition, verdicts, order))
        flag = f"--ops.{definition.name}"
        result.append(_explanation("op_implementations", definition.name, verdicts, flag))
    return result


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Return table rows: a mark for the chosen, name, plugin, reason."""
    return [
        ["->" if v.chosen else ("  " if v.fits else " x"), v.name, v.plugin, v.reason]
        for v in verdicts
    ]


def _explain_attention(catalog: Catalog, options: EngineOptions) -> Explanation:
    platform, detection = _platform(catalog, options)
    dtype = _dtype(options)
    kv_dtype = options.cache.kv_cache_dtype
    query = AttentionQuery(
        platform=platform,
        platform_features=detection.features,
        capability=detection.capability,
        dtype=dtype,
        kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
        head_sizes=(_ASSUMED_HEAD_SIZE,),
        block_size=options.cache.block_size or _block_size(catalog),
    )
    verdicts = catalog.explain(
        "attention_backends", query, name=options.attention.attention_backend
    )
    question = (
        f"platform {platform}, {query.dtype}, head size {_ASSUMED_HEAD_SIZE}, "
        f"block size {query.block_size}; --model gives a model's own numbers"
    )
    return _explanation("attention_backends", question, verdicts, "--attention-backend")


def _platform(catalog: Catalog, options: EngineOptions) -> tuple[str, Detection]:
    verdicts = catalog.explain("platforms", PlatformQuery(), name=options.parallel.platform)
    for entry in catalog.entries("platforms"):
        if any(v.chosen and v.name == entry.name for v in verdicts):
            return entry.name, catalog.detect(entry)
    return "none", Detection(available=False, reason="no platform is available")


def _dtype(options: EngineOptions) -> str:
    short = {"auto": "bfloat16", "half": "float16", "float": "float32"}
    return short.get(options.model.dtype, options.model.dtype)


def _block_size(catalog: Catalog) -> int:
    """Return the block size of the backend that would be preferred, whatever fits."""
    specs = [entry.spec for entry in catalog.entries("attention_backends")]
    sized = [spec for spec in specs if isinstance(spec, AttentionBackendSpec)]
    best = max(sized, key=lambda spec: spec.priority, default=None)
    return best.preferred_block_size if best else 16


def _by_order(verdicts: Sequence[Verdict], order: Sequence[str]) -> list[Verdict]:
    """Judge again under `[ops]`: only what it names before the reference may win, in its order."""
    named = order[: order.index("reference")] if "reference" in order else order
    ranked = sorted(verdicts, key=lambda v: named.index(v.name) if v.name in named else len(named))
    result: list[Verdict] = []
    for verdict in ranked:
        chosen = verdict.fits and verdict.name in named and not any(v.chosen for v in result)
        reason = verdict.reason
        if chosen:
            reason = "first that fits in the configured order"
        elif verdict.fits:
            reason = "fits; the configured order prefers another"
        result.append(msgspec.structs.replace(verdict, chosen=chosen, reason=reason))
    return result


def _last_resort(
    definition: Entry, verdicts: Sequence[Verdict], order: Sequence[str] | None
) -> Verdict:
    """Return the verdict on the reference; on running separate ops, where the op is optional."""
    chosen = not any(verdict.chosen for verdict in verdicts)
    assert isinstance(definition.spec, OpDefinition)
    name = "none" if definition.spec.optional else "reference"
    if order and "reference" in order and chosen:
        reason = "asked for by the configured order"
    elif definition.spec.optional:
        reason = "nothing fits; separate ops do its work" if chosen else "separate ops come last"
    else:
        reason = "nothing faster fits" if chosen else "fits; the plain reference comes last"
    return Verdict(name=name, plugin=definition.plugin, chosen=chosen, fits=True, reason=reason)


def _listing(catalog: Catalog, kind: str) -> Explanation:
    acts = COMPONENT_HOOKS[kind].acts_unselected
    verdicts = []
    for entry in catalog.entries(kind):
        enabled = catalog.is_enabled(entry.plugin)
        if not acts:
            reason = entry.spec.summary
        elif enabled:
            reason = "acts: its plugin is enabled by name"
        else:
            reason = f"does not act: enable it with --plugins {entry.plugin}"
        verdicts.append(
            Verdict(
                name=entry.name,
                plugin=entry.plugin,
                chosen=acts and enabled,
                fits=not acts or enabled,
                reason=reason,
                priority=entry.spec.priority,
            )
        )
    question = "acts without being selected" if acts else "asked for by name"
    return _explanation(kind, question, verdicts, "")


def _explanation(kind: str, question: str, verdicts: Sequence[Verdict], flag: str) -> Explanation:
    return Explanation(kind=kind, question=question, verdicts=tuple(verdicts), flag=flag)


def merge_reports(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the reports of several processes: a component is unused if every process says so.

    The first report's plugins and choices stand before those of the others: children load exactly
    the same plugins, and are told by name what the parent chose.
    """
    first = reports[0]
    unused = {
        plugin: [name for name in names if all(_is_unused(r, plugin, name) for r in reports)]
        for plugin, names in first["unused"].items()
    }
    return {
        "plugins": first["plugins"],
        "chosen": {key: value for r in reversed(reports) for key, value in r["chosen"].items()},
        "unused": {plugin: names for plugin, names in unused.items() if names},
        "fell_back": [line for r in reports for line in r["fell_back"]],
        "failed": first["failed"],
        "unhooked": [name for r in reports for name in r["unhooked"]],
        "hook_times": {r["process"]: r["hook_times"] for r in reports},
    }


def _is_unused(report: dict[str, Any], plugin: str, name: str) -> bool:
    return name in report["unused"].get(plugin, ())
