"""Executors with one planted fault each, as a plugin; the kit must catch every one."""

from pegboard.api.engine import ExecutorSpec
from pegboard.api.plugin import PluginInfo, hookimpl

PLUGIN = PluginInfo(name="broken_executors", version="0", api="1.0", summary="Planted faults.")


@hookimpl
def executors() -> list[ExecutorSpec]:
    names = ("LosesTheCause", "AnswersAnything", "MixesUpSteps")
    return [
        ExecutorSpec(
            name=name,
            target=f"tests.unit.core.conformance.broken_executors:{name}",
            max_world_size=1,
        )
        for name in names
    ]
