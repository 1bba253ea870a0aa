"""Declares the readers of checkpoint formats."""

from pegboard.api.loaders import ModelLoaderSpec
from pegboard.api.models import ConfigReaderSpec
from pegboard.api.plugin import PluginInfo, hookimpl
from pegboard.api.tokenizers import TokenizerSpec

PLUGIN = PluginInfo(
    name="loaders",
    version="0.1.0",
    api="1.0",
    summary="Checkpoint formats: safetensors, GGUF, random weights.",
)


@hookimpl
def config_readers() -> list[ConfigReaderSpec]:
    """Readers of a Hugging Face folder and of a GGUF file's metadata."""
    return [
        ConfigReaderSpec(
            name="hf",
            target="pegboard_loaders.hf_config:HfConfigReader",
            summary="A folder with config.json, as Hugging Face writes it.",
            folder_files=("config.json",),
        ),
        ConfigReaderSpec(
            name="gguf",
            target="pegboard_loaders.gguf.config:GgufConfigReader",
            summary="The metadata of a .gguf file.",
            suffixes=(".gguf",),
        ),
    ]


@hookimpl
def model_loaders() -> list[ModelLoaderSpec]:
    """Streams of weights, one a format."""
    return [
        ModelLoaderSpec(
            name="safetensors",
            target="pegboard_loaders.safetensors_loader:SafetensorsLoader",
            example="pegboard_loaders.examples:safetensors",
            summary="One safetensors file or the shards of an index, mapped.",
        ),
        ModelLoaderSpec(
            name="gguf",
            target="pegboard_loaders.gguf.loader:GgufLoader",
            example="pegboard_loaders.examples:gguf",
            summary="Quantised GGUF weights, expanded once and kept in the weight cache.",
        ),
        ModelLoaderSpec(
            name="dummy",
            target="pegboard_loaders.dummy_loader:DummyLoader",
            summary="Small random weights; reads no file.",
        ),
    ]


@hookimpl
def tokenizers() -> list[TokenizerSpec]:
    """The tokenizer inside a GGUF file."""
    return [
        TokenizerSpec(
            name="gguf",
            target="pegboard_loaders.gguf.tokenizer:GgufTokenizer",
            summary="Vocabulary and merges from a GGUF file's metadata.",
        )
    ]
