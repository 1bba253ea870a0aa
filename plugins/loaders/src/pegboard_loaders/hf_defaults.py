"""Values that config.json may leave out, and the forms of other versions brought to one.

Checkpoints are written without the values that equal their class's defaults, and rotary settings
have had two forms; after `complete`, every family's configuration looks the same.
"""

import math
from pathlib import Path
from typing import Any

from pegboard.api.errors import ModelError

__all__ = ["complete"]

#: A value read from JSON, of any type until it is checked.
Json = Any

_COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}

#: Defaults of the configuration classes, by model_type.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    "qwen2": {"hidden_act": "silu"},
    "qwen3": {"hidden_act": "silu", "attention_bias": False, "head_dim": 128},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}


def complete(config: dict[str, Any], source: Path) -> None:
    """Fill in defaults and normalise the rotary settings, in place.

    Raises:
        ModelError: a value of the wrong type; names `source`.
    """
    kind = config.get("model_type")
    for key, value in {**_COMMON, **_DEFAULTS.get(str(kind), {})}.items():
        config.setdefault(key, value)
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = heads
    if config.get("head_dim") is None and type(heads) is int and type(hidden) is int and heads:
        config["head_dim"] = hidden // heads
    if kind == "gemma3_text":
        _complete_gemma3(config, source)
    else:
        scaling = config.pop("rope_scaling", None)
        theta = config.pop("rope_theta", 10_000.0)
        config["rope_parameters"] = _rope(config.get("rope_parameters"), scaling, theta, source)


def _complete_gemma3(config: dict[str, Any], source: Path) -> None:
    """Spell out the layers' kinds and the rotary settings of both kinds."""
    layers = config.get("num_hidden_layers")
    pattern = config.pop("sliding_window_pattern", config.pop("_sliding_window_pattern", 6))
    if config.get("layer_types") is None and type(layers) is int and 0 < layers <= 4096:
        if type(pattern) is not int or pattern < 1:
            raise ModelError(f"{source}: sliding_window_pattern is {pattern!r}, not a count")
        config["layer_types"] = [
            "sliding_attention" if (layer + 1) % pattern else "full_attention"
            for layer in range(layers)
        ]
    given = config.get("rope_parameters")
    full, sliding = given, None
    if isinstance(given, dict) and isinstance(given.get("full_attention"), dict):
        full, sliding = given["full_attention"], given.get("sliding_attention")
    scaling = config.pop("rope_scaling", None)
    theta = config.pop("rope_theta", 1_000_000.0)
    local = config.pop("rope_local_base_freq", 10_000.0)
    config["rope_parameters"] = {
        "full_attention": _rope(full, scaling, theta, source),
        "sliding_attention": _rope(sliding, None, local, source),
    }


def _rope(given: Json, scaling: Json, theta: Json, source: Path) -> dict[str, Any]:
    """Return one rotary setting in the newer form: rope_type, rope_theta, the type's numbers."""
    for value in (given, scaling):
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{source}: rotary settings are {value!r}, not a JSON object")
    rope: dict[str, Any] = {"rope_theta": theta, **(scaling or {}), **(given or {})}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    if not isinstance(rope["rope_type"], str):
        raise ModelError(f"{source}: rope_type is {rope['rope_type']!r}, not a name")
    numbers = ["rope_theta"]
    if rope["rope_type"] in ("linear", "yarn", "llama3", "dynamic"):
        numbers.append("factor")
    for key in numbers:
        value = rope.get(key)
        if not _is_positive(value):
            raise ModelError(f"{source}: {key} is {value!r}; a positive number is needed")
    original = rope.get("original_max_position_embeddings")
    if original is not None and (type(original) is not int or not 0 < original <= 1 << 30):
        raise ModelError(
            f"{source}: original_max_position_embeddings is {original!r}; a count is needed"
        )
    return rope


def _is_positive(value: Json) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0
