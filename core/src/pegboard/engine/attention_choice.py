"""What a model asks of an attention backend, read off its description. No torch."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from pegboard.api.attention import AttentionBackendSpec, AttentionQuery
from pegboard.api.models import ModelDescription
from pegboard.api.platforms import Detection
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.selection import Selection

__all__ = ["attention_query", "head_size", "select_attention"]


def head_size(config: Mapping[str, Any]) -> int:
    """Return the size of an attention head; 0 where the configuration has no heads."""
    if config.get("head_dim"):
        return int(config["head_dim"])
    heads = int(config.get("num_attention_heads") or 0)
    return int(config.get("hidden_size") or 0) // heads if heads else 0


def attention_query(
    description: ModelDescription,
    *,
    platform: str,
    detection: Detection,
    dtype: str,
    kv_dtype: str,
    block_size: int,
) -> AttentionQuery:
    """Return the query of a model on a platform."""
    config = description.config
    return AttentionQuery(
        platform=platform,
        platform_features=detection.features,
        capability=detection.capability,
        dtype=dtype,
        kv_dtype=kv_dtype,
        head_sizes=(head_size(config),),
        block_size=block_size,
        features=tuple(_features(config)),
    )


def _features(config: Mapping[str, Any]) -> list[str]:
    features: list[str] = []
    if _uses_window(config):
        features.append("sliding_window")
    if config.get("attn_logit_softcapping"):
        features.append("soft_cap")
    return features


def _uses_window(config: Mapping[str, Any]) -> bool:
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return False
    layer_types = config.get("layer_types")
    return layer_types is None or "sliding_attention" in layer_types


def select_attention(
    catalog: Catalog, query: AttentionQuery, *, name: str | None, block_size: int | None
) -> tuple[Selection, AttentionQuery]:
    """Choose the backend, and with it the block size where the user named none.

    Args:
        catalog: to choose from.
        query: whose block size is replaced.
        name: an explicit choice, or None.
        block_size: the user's, or None for the backend's preferred one.

    Returns:
        The selection, and the query it answers.

    Raises:
        SelectionError: nobody fits, or the one asked for does not.
    """
    if block_size is not None:
        query = msgspec.structs.replace(query, block_size=block_size)
        return catalog.select("attention_backends", query, name=name), query
    specs = [e.spec for e in catalog.entries("attention_backends")]
    any_size = math.lcm(
        *(s.preferred_block_size for s in specs if isinstance(s, AttentionBackendSpec))
    )
    first = catalog.select(
        "attention_backends", msgspec.structs.replace(query, block_size=any_size), name=name
    )
    preferred = msgspec.structs.replace(query, block_size=first.spec.preferred_block_size)
    if first.spec.reasons_against(preferred):  # it does not take its own preferred size: say so
        return catalog.select("attention_backends", preferred, name=first.entry.name), preferred
    return first, preferred
