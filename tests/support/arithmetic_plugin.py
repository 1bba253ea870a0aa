"""A plugin for tests of the engine without a model: platform, executor, tokenizer, checkpoint."""

from pegboard.api import API_VERSION, PluginInfo, hookimpl
from pegboard.api.engine import ExecutorSpec
from pegboard.api.loaders import ModelLoaderSpec
from pegboard.api.models import ConfigReaderSpec, ModelArchitectureSpec
from pegboard.api.platforms import PlatformSpec
from pegboard.api.tokenizers import TokenizerSpec

PLUGIN = PluginInfo(name="fake", version="0.1.0", api=API_VERSION, summary="For tests.")


@hookimpl
def platforms() -> list[PlatformSpec]:
    return [
        PlatformSpec(
            name="fake",
            target="tests.support.arithmetic_parts:FakePlatform",
            detect="tests.support.arithmetic_parts:detect",
            device_type="cpu",
            priority=100,
        )
    ]


@hookimpl
def executors() -> list[ExecutorSpec]:
    return [
        ExecutorSpec(
            name="fake", target="tests.support.arithmetic_executor:FakeExecutor", priority=-1
        ),
        ExecutorSpec(
            name="broken", target="tests.support.arithmetic_executor:BrokenExecutor", priority=-2
        ),
    ]


@hookimpl
def tokenizers() -> list[TokenizerSpec]:
    return [TokenizerSpec(name="bytes", target="tests.support.arithmetic_parts:ByteTokenizer")]


@hookimpl
def config_readers() -> list[ConfigReaderSpec]:
    return [
        ConfigReaderSpec(
            name="fake", target="tests.support.arithmetic_parts:FakeReader", suffixes=(".fake",)
        )
    ]


@hookimpl
def model_loaders() -> list[ModelLoaderSpec]:
    return [ModelLoaderSpec(name="none", target="tests.support.arithmetic_parts:no_loader")]


@hookimpl
def model_architectures() -> list[ModelArchitectureSpec]:
    return [
        ModelArchitectureSpec(
            name="FakeForCausalLM", target="tests.support.arithmetic_parts:no_model"
        )
    ]
