"""What each GGUF architecture is called elsewhere: class, tensor names and changed values.

A converter to GGUF renames tensors and, for some families, changes their values; loading undoes
both. A family is one entry of the table at the end.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pegboard.api.errors import ModelError
from pegboard_loaders.gguf.reader import GgufFile

__all__ = ["Architecture", "architecture_of", "undo_rotary_order"]

#: Changes an expanded tensor back: (values, shape outermost first, config) to values.
Restore = Callable[[np.ndarray, dict[str, Any]], np.ndarray]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family.

    Attributes:
        prefix: of its metadata keys; what `general.architecture` says.
        name: class name as Hugging Face writes it.
        model_type: as Hugging Face writes it.
        constants: configuration that the file does not hold, because the family fixes it.
        layer_names: part of a layer's tensor name to Hugging Face's; norms differ by family.
        restore: (pattern over Hugging Face's names, how to undo the converter's change).
        adjust: completes the configuration from the file.
    """

    prefix: str
    name: str
    model_type: str
    constants: dict[str, Any]
    layer_names: dict[str, str]
    restore: tuple[tuple[re.Pattern[str], Restore], ...] = ()
    adjust: Callable[[GgufFile, dict[str, Any]], None] | None = None
    ignored: frozenset[str] = field(default=frozenset(("rope_freqs.weight",)))

    def tensor_name(self, name: str, source: str) -> str | None:
        """Return Hugging Face's name of a tensor, or None for one that loading ignores.

        Raises:
            ModelError: a tensor that this family does not have.
        """
        if name in self.ignored:
            return None
        outer = _OUTER_NAMES.get(name)
        if outer is not None:
            return outer
        match = _LAYER.fullmatch(name)
        if match is None or match["part"] not in self.layer_names:
            raise ModelError(
                f"{source} holds the tensor {name!r}, which the architecture {self.prefix!r} "
                "does not have here; this variant is not supported"
            )
        return f"model.layers.{match['layer']}.{self.layer_names[match['part']]}.{match['end']}"

    def restored(self, name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
        """Undo what the converter did to the tensor `name` (Hugging Face's)."""
        for pattern, restore in self.restore:
            if pattern.search(name):
                values = restore(values, config)
        return values


_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(?P<layer>\d{1,5})\.(?P<part>\w+)\.(?P<end>weight|bias)")

_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TWO_NORMS = {**_MATRICES, "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_NORMS = {
    **_MATRICES,
    **_HEAD_NORMS,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def undo_rotary_order(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Put each head's rows back from interleaved pairs to two halves.

    The converter turns rows (a0 a1 … b0 b1 …) of a head into (a0 b0 a1 b1 …).

    Args:
        values: [num_heads * head_dim, …].
        num_heads: heads in `values`.
    """
    half = values.shape[0] // num_heads // 2
    pairs = values.reshape(num_heads, half, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _restore_query(values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    return undo_rotary_order(values, config["num_attention_heads"])


def _restore_key(values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    return undo_rotary_order(values, config["num_key_value_heads"])


def _restore_norm(values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """The file holds 1 + weight."""
    del config
    return values - np.float32(1)


def _adjust_gemma3(file: GgufFile, config: dict[str, Any]) -> None:
    """Fill in the layer pattern, the window and the second rotary base."""
    window = file.metadata.get("gemma3.attention.sliding_window")
    if not isinstance(window, int) or not 1 <= window <= 1 << 24:
        raise ModelError(f"{file.path}: gemma3.attention.sliding_window is {window!r}, no window")
    num_layers = config["num_hidden_layers"]
    config["sliding_window"] = window
    config["layer_types"] = [
        "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention"
        for layer in range(num_layers)
    ]
    config["query_pre_attn_scalar"] = config["head_dim"]
    if num_layers == 62:  # the 27B model alone scales by hidden size over heads
        config["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"]
    config["rope_parameters"] = {
        "full_attention": config["rope_parameters"],
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": float(file.metadata.get("gemma3.rope.freq_base_swa", 10_000.0)),
        },
    }


def _adjust_llama(file: GgufFile, config: dict[str, Any]) -> None:
    if file.metadata.get("llama.expert_count"):
        raise ModelError(
            f"{file.path} is a mixture of experts in the llama architecture, which is not supported"
        )
    del config


_ARCHITECTURES = {
    "llama": Architecture(
        prefix="llama",
        name="LlamaForCausalLM",
        model_type="llama",
        constants={"hidden_act": "silu"},
        layer_names=_TWO_NORMS,
        restore=(
            (re.compile(r"\.q_proj\."), _restore_query),
            (re.compile(r"\.k_proj\."), _restore_key),
        ),
        adjust=_adjust_llama,
    ),
    "qwen2": Architecture(
        prefix="qwen2",
        name="Qwen2ForCausalLM",
        model_type="qwen2",
        constants={"hidden_act": "silu"},
        layer_names=_TWO_NORMS,
    ),
    "qwen3": Architecture(
        prefix="qwen3",
        name="Qwen3ForCausalLM",
        model_type="qwen3",
        constants={"hidden_act": "silu"},
        layer_names={**_TWO_NORMS, **_HEAD_NORMS},
    ),
    "gemma3": Architecture(
        prefix="gemma3",
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        constants={
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
        layer_names=_GEMMA_NORMS,
        restore=((re.compile(r"norm\.weight$"), _restore_norm),),
        adjust=_adjust_gemma3,
    ),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return the family that the file names.

    Raises:
        ModelError: it names none, or one that is not supported.
    """
    name = file.metadata.get("general.architecture")
    architecture = _ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise ModelError(
            f"{file.path}: general.architecture is {name!r}, which is not supported; supported "
            f"are {', '.join(_ARCHITECTURES)}"
        )
    return architecture
