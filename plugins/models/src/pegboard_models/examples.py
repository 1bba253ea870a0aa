"""A tiny configuration of each architecture, for the conformance kit."""

from typing import Any

__all__ = ["gemma3", "llama", "mistral", "qwen2", "qwen3"]

_SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def llama() -> dict[str, Any]:
    """Llama with an untied head and llama3 rotary scaling."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return {"model_type": "llama", **_SMALL, "tie_word_embeddings": False, "rope_parameters": rope}


def mistral() -> dict[str, Any]:
    """Mistral whose window is shorter than a prompt."""
    return {"model_type": "mistral", **_SMALL, "sliding_window": 11}


def qwen2() -> dict[str, Any]:
    """Qwen 2 with a tied head."""
    return {"model_type": "qwen2", **_SMALL, "tie_word_embeddings": True}


def qwen3() -> dict[str, Any]:
    """Qwen 3 with heads wider than hidden_size / num_heads."""
    return {"model_type": "qwen3", **_SMALL, "head_dim": 16, "tie_word_embeddings": True}


def gemma3() -> dict[str, Any]:
    """Gemma 3 with both kinds of layer and a short window."""
    return {
        "model_type": "gemma3_text",
        **_SMALL,
        "head_dim": 16,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
