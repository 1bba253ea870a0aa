"""A plugin for tests: a plain CPU platform, and a loader of a safetensors folder."""

from pegboard.api import API_VERSION, PluginInfo, hookimpl
from pegboard.api.loaders import ModelLoaderSpec
from pegboard.api.platforms import PlatformSpec

PLUGIN = PluginInfo(name="tiny", version="0.1.0", api=API_VERSION, summary="For tests.")


@hookimpl
def platforms() -> list[PlatformSpec]:
    return [
        PlatformSpec(
            name="tiny",
            target="tests.support.tiny_parts:TinyPlatform",
            detect="tests.support.tiny_detect:detect",
            device_type="cpu",
        ),
        PlatformSpec(
            name="own_worker",
            target="tests.support.tiny_parts:OwnWorkerPlatform",
            detect="tests.support.tiny_detect:detect",
            device_type="cpu",
        ),
        PlatformSpec(
            name="lopsided",
            target="tests.support.tiny_parts:LopsidedPlatform",
            detect="tests.support.tiny_detect:detect",
            device_type="cpu",
        ),
    ]


@hookimpl
def model_loaders() -> list[ModelLoaderSpec]:
    return [ModelLoaderSpec(name="tiny", target="tests.support.tiny_parts:TinyLoader")]
