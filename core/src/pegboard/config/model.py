"""What is served, and how its weights are read."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pegboard.api.models import ModelDescription

__all__ = ["LoadConfig", "ModelConfig", "ModelOptions"]

DtypeOption = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model; `[model]` in the config file."""

    model: Annotated[
        str | None,
        Meta(description="Folder, .gguf file or hub id; nothing serves the built-in default."),
    ] = None
    served_model_name: Annotated[
        list[str],
        Meta(description="Names that requests may use; the first is reported. Default: MODEL."),
    ] = []
    runner: Annotated[Literal["auto", "generate"], Meta(description="What drives the model.")] = (
        "auto"
    )
    tokenizer: Annotated[
        str | None, Meta(description="Path to read the tokenizer from. Default: MODEL.")
    ] = None
    tokenizer_mode: Annotated[
        str, Meta(description="Tokenizer component; auto takes the checkpoint's own.")
    ] = "auto"
    dtype: Annotated[
        DtypeOption,
        Meta(description="Of activations and unquantised weights; auto asks the platform."),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Meta(description="Most tokens of a sequence; 8k = 8000, 8K = 8192. Default: the model's."),
    ] = None
    max_logprobs: Annotated[
        int, Meta(ge=-1, description="Most logprobs a position; -1 for no limit.")
    ] = 20
    logprobs_mode: Annotated[
        LogprobsMode, Meta(description="What logprobs report, before or after processing.")
    ] = "raw_logprobs"
    seed: Annotated[int, Meta(description="Seeds requests that bring none.")] = 0
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of a hub id.")] = None
    config_format: Annotated[str, Meta(description="Config reader; auto looks at the files.")] = (
        "auto"
    )
    hf_overrides: Annotated[
        dict[str, Any], Meta(description="JSON merged into the checkpoint's configuration.")
    ] = {}
    generation_config: Annotated[
        str,
        Meta(
            description="Default sampling values: auto takes the checkpoint's, none takes "
            "Pegboard's, or the path of a generation_config.json."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any], Meta(description="JSON merged into the default sampling values.")
    ] = {}
    chat_template: Annotated[
        str | None, Meta(description="Jinja file, or inline source, instead of the checkpoint's.")
    ] = None
    logits_processors: Annotated[
        list[str], Meta(description="Logits processors to use, by component name.")
    ] = []


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved model; satisfies `pegboard.api.engine.ModelConfigView`."""

    model: str
    served_model_name: list[str]
    description: ModelDescription
    architecture: str
    runner: Literal["generate"] = "generate"
    dtype: str
    max_model_len: int
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int = 0
    tokenizer_path: str
    default_sampling: dict[str, Any] = {}
    logits_processors: list[str] = []


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights are read; `[load]`."""

    load_format: Annotated[
        str,
        Meta(description="Model loader; auto takes the checkpoint's own, dummy random weights."),
    ] = "auto"
    download_dir: Annotated[
        str | None, Meta(description="Where hub downloads go. Default: the hub's own cache.")
    ] = None
    cache_dir: Annotated[
        str | None,
        Meta(
            description="Folder for fetched models and converted weights. Default: "
            "PEGBOARD_CACHE, or ~/.cache/pegboard."
        ),
    ] = None
    use_weight_cache: Annotated[
        bool, Meta(description="Keep converted weights in the cache folder for the next start.")
    ] = True
