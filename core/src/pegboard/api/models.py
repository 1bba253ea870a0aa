"""Model architectures and the readers of checkpoint configurations."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import msgspec

from pegboard.api.attention import AttentionLayer
from pegboard.api.distributed import ProcessGroup
from pegboard.api.kv import KVLayerNeed
from pegboard.api.ops import OpTable
from pegboard.api.plugin import ComponentContext, ComponentSpec

if TYPE_CHECKING:
    import torch

__all__ = [
    "ConfigReader",
    "ConfigReaderQuery",
    "ConfigReaderSpec",
    "Model",
    "ModelArchitectureQuery",
    "ModelArchitectureSpec",
    "ModelContext",
    "ModelDescription",
    "Runner",
]

Runner = Literal["generate", "pooling", "draft"]


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of itself, in one form whatever its format. Made without torch.

    Attributes:
        path: the local file or folder.
        format: the reader's name, such as "hf" or "gguf".
        architectures: class names as Hugging Face writes them, the preferred first.
        config: the text model's configuration under Hugging Face's keys (hidden_size,
            num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, rope_parameters).
        dtype: of the stored weights, such as "bfloat16"; quantised formats say what they
            expand to.
        vocab_size: rows of the embedding.
        max_model_len: positions the model was made for.
        loader: name of the model loader that reads its weights.
        tokenizer: name of the tokenizer component that reads its tokenizer ("hf", "gguf").
        chat_template: Jinja source, or None.
        generation: default sampling values of the checkpoint (temperature, top_p, eos_token_id…).
        eos_token_ids: ids that end a sequence.
        bos_token_id: put before a plain prompt where the tokenizer says so.
        quantization: the checkpoint's quantization section, or None.
    """

    path: str
    format: str
    architectures: tuple[str, ...]
    config: dict[str, Any]
    dtype: str
    vocab_size: int
    max_model_len: int
    loader: str
    tokenizer: str
    chat_template: str | None = None
    generation: dict[str, Any] = {}
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    quantization: dict[str, Any] | None = None


class ConfigReaderQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A local path, or the format asked for with --config-format."""

    path: str
    format: str | None = None


class ConfigReaderSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `ConfigReader`; its `target` is the class. Imports no torch.

    Attributes:
        suffixes: of files it reads, such as (".gguf",).
        folder_files: a folder is read if it holds one of these, such as ("config.json",).
    """

    kind: ClassVar[str] = "config_readers"

    suffixes: tuple[str, ...] = ()
    folder_files: tuple[str, ...] = ()

    def reasons_against(self, query: ConfigReaderQuery) -> list[str]:
        """Look at the path's name only; whether a folder holds a file, `supports` says."""
        if query.format is not None and query.format not in (self.name, *self.aliases):
            return [f"format {query.format} was asked for"]
        return []


class ConfigReader(ABC):
    """Reads a checkpoint's description. Runs in the front end; imports no torch."""

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context."""
        self.context = context

    @abstractmethod
    def recognises(self, path: str) -> str | None:
        """Return None if it can read `path` (which exists), else one line why not."""

    @abstractmethod
    def read(self, path: str) -> ModelDescription:
        """Read the description.

        Raises:
            ModelError: unreadable, truncated or inconsistent; one line that names the file.
        """


class ModelArchitectureQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The architectures a checkpoint names, and the runner that will drive the model."""

    architectures: tuple[str, ...]
    runner: Runner = "generate"


class ModelArchitectureSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `Model`; `name` is the architecture, `target` the class.

    Attributes:
        runners: that can drive it.
        example: "module:function()" returning a tiny configuration under Hugging Face's keys,
            `model_type` among them; the conformance kit makes a random checkpoint of it.
    """

    kind: ClassVar[str] = "model_architectures"

    runners: tuple[Runner, ...] = ("generate",)
    example: str | None = None

    def reasons_against(self, query: ModelArchitectureQuery) -> list[str]:
        """Fits if the checkpoint names it and the runner can drive it."""
        reasons: list[str] = []
        if not {self.name, *self.aliases} & set(query.architectures):
            reasons.append(f"the checkpoint is {', '.join(query.architectures)}")
        if query.runner not in self.runners:
            reasons.append(f"serves {', '.join(self.runners)}, not {query.runner}")
        return reasons


class ModelContext(Protocol):
    """What a model is built in: its numbers, its ops and its neighbours. Made by the worker."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`ModelDescription.config`, after overrides."""
        ...

    @property
    def dtype(self) -> "torch.dtype":
        """Of activations and unquantised weights."""
        ...

    @property
    def kv_dtype(self) -> "torch.dtype":
        """Of the KV cache."""
        ...

    @property
    def device(self) -> "torch.device":
        """Where weights and activations live."""
        ...

    @property
    def ops(self) -> OpTable:
        """The worker's op table."""
        ...

    @property
    def tensor_parallel(self) -> ProcessGroup:
        """The tensor-parallel group."""
        ...

    @property
    def max_model_len(self) -> int:
        """Positions this engine serves; rotary tables need no more."""
        ...

    def add_attention(
        self,
        layer: AttentionLayer,
        need: KVLayerNeed | None,
        sinks: "torch.Tensor | None" = None,
    ) -> None:
        """Declare an attention layer as it is built.

        Args:
            layer: what it is, on this rank.
            need: what it asks of the KV manager; None for layers without a cache.
            sinks: handed to `AttentionBackend.implementation`.

        Raises:
            ModelError: a second layer with the same index.
        """
        ...


class Model(Protocol):
    """An architecture: `Class(context: ModelContext)`. Usually a torch.nn.Module on `layers`."""

    def __call__(
        self,
        input_ids: "torch.Tensor",
        positions: "torch.Tensor",
        intermediate: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Return hidden states after the final norm.

        Args:
            input_ids: [num_tokens] int64.
            positions: [num_tokens] int64.
            intermediate: the previous pipeline stage's hidden states, or None on the first.

        Returns:
            [num_tokens, hidden_size]; the last norm applied on the last stage.
        """
        ...

    def compute_logits(self, hidden: "torch.Tensor") -> "torch.Tensor":
        """Return [num_rows, vocab_size] float32 logits, whole on every rank.

        Args:
            hidden: [num_rows, hidden_size], the rows that sample.
        """
        ...

    def load_weights(self, weights: "Iterable[tuple[str, torch.Tensor]]") -> None:
        """Take the checkpoint's tensors as they stream in, under its names.

        Each tensor is copied or packed at once and not kept.

        Raises:
            ModelError: names missing or unexpected, or a wrong shape; one line that lists them.
        """
        ...

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of every tensor that `load_weights` needs, before any split.

        Names are those that `load_weights` takes. Loaders that make weights up read it.
        """
        ...
