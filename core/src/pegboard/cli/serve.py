"""`platform serve`: options → catalog → resolve → address → engine → clients.

Imports no torch: the model runs in the engine core's process.
"""

import argparse
import asyncio
import json
import logging
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pegboard.api.engine import EngineClient
from pegboard.api.errors import ConfigError
from pegboard.api.frontends import CliCommand, Frontend, FrontendQuery, HttpRouteSpec, MountedRoute
from pegboard.catalog import Catalog, Entry, build_catalog
from pegboard.catalog.discovery import nearest
from pegboard.catalog.explain import merge_reports
from pegboard.cli.flags import add_engine_flags, add_struct_flags, engine_options, struct_options
from pegboard.cli.output import line, table
from pegboard.config.engine import EngineOptions
from pegboard.config.env import Environment
from pegboard.observability.logging import configure_logging
from pegboard.observability.phases import StartPhases

if TYPE_CHECKING:
    from pegboard.engine.async_llm import AsyncLLM

__all__ = ["Serve"]

logger = logging.getLogger(__name__)

_HELP = """\
MODEL is a folder (config.json, safetensors, tokenizer), a .gguf file or a hub id; without one the
built-in default model is served. Flags take dashes or underscores; integers take units (8k = 8000,
8K = 8192); --no-NAME turns a switch off; tables take JSON, or one key at a time:
--hf-overrides.rope_theta 1e6. Each flag is also a key of the TOML file that --config names.
--help=WORD shows only what is about WORD, such as --help=cache."""


class Serve(CliCommand):
    """Runs a front end on an engine until a signal."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the engine's flags, and the options of the front end's plugin as plain flags."""
        invocation = parser.get_default("invocation")
        parser.usage = "platform serve [MODEL] [FLAGS]"
        parser.description = f"{parser.description}\n\n{_HELP}"
        add_engine_flags(parser)
        parser.add_argument(
            "--frontend",
            metavar="NAME",
            help="front end to run; default: the only one, or the one of highest priority",
        )
        name = _early_frontend(invocation.argv)
        asks_help = any(w in ("-h", "--help") or w[:7] == "--help=" for w in invocation.argv)
        if asks_help and not invocation.catalog.entries("frontends"):
            return  # help works without a front end; a start says that it is missing
        entry = _frontend(invocation.catalog, name)
        struct = type(invocation.catalog.plugin_config(entry.plugin))
        if issubclass(struct, msgspec.Struct):
            add_struct_flags(parser, struct, f"Front end {entry.name}", entry.plugin)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until stopped; return the exit status."""
        environment = args.invocation.environment
        phases = StartPhases()
        options = engine_options(args, environment)
        entry = _frontend(args.invocation.catalog, args.frontend)
        options = _with_frontend_flags(options, entry, args, environment)
        catalog = build_catalog(options.plugins)
        packages = {p.resolved.target.partition(".")[0] for p in catalog.plugins}
        configure_logging(options.observability, process="frontend", packages=packages)
        return _serve(options, catalog, entry, phases)


def _serve(options: EngineOptions, catalog: Catalog, entry: Entry, phases: StartPhases) -> int:
    from pegboard.engine.async_llm import AsyncLLM

    # The engine core's process is started first: it imports while this one resolves.
    client = AsyncLLM.from_options(options, catalog=catalog, progress=partial(_progress, phases))
    config = client.config
    catalog.select("frontends", FrontendQuery(name=entry.name), name=entry.name)
    frontend: Frontend = catalog.create(entry, config=config)

    async def serve() -> None:
        try:
            address = frontend.bind()
            name = config.model.served_model_name[0]
            line(f"Pegboard starts {name} on {config.platform} as {config.model.dtype}")
            await client.start(frontend.prepare)
            routes = _routes(catalog, client)
            await frontend.run(client, routes, lambda: _report(client, entry, address, phases))
        finally:
            await client.shutdown()

    with asyncio.Runner(loop_factory=frontend.loop_factory()) as runner:
        runner.run(serve())
    return 0


def _routes(catalog: Catalog, client: EngineClient) -> list[MountedRoute]:
    """Make the applications of routes whose plugins are enabled by name."""
    routes = []
    for route in catalog.acting("http_routes"):
        factory = catalog.load(route)
        with catalog.guard.calling(route.plugin, "http_routes", scope="request"):
            app = factory(catalog.context(route.plugin, config=client.config), client)
        routes.append(MountedRoute(spec=_route_spec(route), app=app))
    return routes


def _route_spec(route: Entry) -> HttpRouteSpec:
    assert isinstance(route.spec, HttpRouteSpec)
    return route.spec


def _frontend(catalog: Catalog, name: str | None) -> Entry:
    """Return the front end that is asked for, or the preferred one.

    Raises:
        ConfigError: there is none, or none of this name.
    """
    entries = catalog.entries("frontends")
    if not entries:
        raise ConfigError(
            "no plugin offers a front end; pip install pegboard-server, and do not remove "
            "`server` with --plugins=-server or --only-plugins"
        )
    if name is None:
        return max(entries, key=lambda entry: entry.spec.priority)
    for entry in entries:
        if entry.answers_to(name):
            return entry
    names = [entry.name for entry in entries]
    raise ConfigError(
        f"there is no front end {name!r}{nearest(name, names)} "
        f"(there are {', '.join(names)}; --frontend)"
    )


def _early_frontend(argv: list[str]) -> str | None:
    """Read --frontend before the parser knows all flags, since its own flags depend on it."""
    for word, following in zip(argv, [*argv, None][1:], strict=True):
        if word == "--frontend":
            return following
        if word.startswith("--frontend="):
            return word.partition("=")[2]
    return None


def _with_frontend_flags(
    options: EngineOptions, entry: Entry, args: argparse.Namespace, environment: Environment
) -> EngineOptions:
    """Lay the front end's plain flags, and PEGBOARD_API_KEY, over its plugin's table."""
    struct = type(args.invocation.catalog.plugin_config(entry.plugin))
    if not issubclass(struct, msgspec.Struct):
        return options
    table = dict(options.plugins.options.get(entry.plugin, {}))
    if environment.api_key and "api_key" in struct.__struct_fields__:
        table.setdefault("api_key", environment.api_key)
    table = struct_options(args, struct, entry.plugin, table)
    plugins = msgspec.structs.replace(
        options.plugins, options={**options.plugins.options, entry.plugin: table}
    )
    return msgspec.structs.replace(options, plugins=plugins)


def _progress(phases: StartPhases, text: str) -> None:
    line(f"  {phases.elapsed_s:6.1f} s  {text}")


def _report(client: "AsyncLLM", entry: Entry, address: str, phases: StartPhases) -> None:
    """Print what was chosen, and how to try it."""
    told = client.explain()
    core = told.get("engine_core")
    merged = merge_reports([told, core] if core else [told])
    rows = [
        [word, f"{told[key]}{_owner(merged['chosen'], kind)}"]
        for word, key, kind in (
            ("platform", "platform", "platforms"),
            ("attention", "attention_backend", "attention_backends"),
            ("executor", "executor", "executors"),
            ("loader", "loader", "model_loaders"),
            ("tokenizer", "tokenizer", "tokenizers"),
        )
    ]
    rows.append(["plugins", ", ".join(_plugin(plugin) for plugin in merged["plugins"])])
    idle = [name for name in merged["unused"] if _is_idle(name, merged)]
    if idle:
        rows.append(["never used", f"{', '.join(idle)} (loaded; nothing of theirs was chosen)"])
    rows += [
        ["fell back", f"{back['kind']}: {back['got']}, not {back['wanted']}: {back['reason']}"]
        for back in merged["fell_back"]
    ]
    rows += [["left out", f"{name}: {why}"] for name, why in merged["failed"].items()]
    table(rows, indent=2)
    line(f"Ready on {address} after {phases.elapsed_s:.1f} s; stop with Ctrl-C. Try it:")
    needs_key = bool(getattr(client.catalog.plugin_config(entry.plugin), "api_key", None))
    name = client.config.model.served_model_name[0]
    for example in _examples(address, name, needs_key=needs_key):
        line(example)


def _is_idle(plugin: str, merged: dict[str, Any]) -> bool:
    """Return whether a plugin offers something and nothing of it was used in any process."""
    if plugin == "builtin":
        return False
    offered = next(p["components"] for p in merged["plugins"] if p["name"] == plugin)
    return len(merged["unused"][plugin]) == sum(len(names) for names in offered.values())


def _owner(chosen: dict[str, Any], kind: str) -> str:
    if kind not in chosen:
        return ""
    return f" (plugin {chosen[kind]['plugin']}: {chosen[kind]['reason']})"


def _plugin(plugin: dict[str, Any]) -> str:
    acts = " (acts)" if plugin["enabled"] and plugin["name"] != "builtin" else ""
    return f"{plugin['name']} {plugin['version']}{acts}"


def _examples(address: str, model: str, *, needs_key: bool) -> list[str]:
    """Return a command that tries it, where the address is one that curl takes."""
    if not address.startswith(("http://", "https://")):
        return []
    messages = [{"role": "user", "content": "Name three rivers."}]
    body = json.dumps(
        {"model": model, "messages": messages, "max_tokens": 64, "temperature": 0},
        ensure_ascii=False,
    )
    words = ["curl", f"{address}/v1/chat/completions", "-H", "Content-Type: application/json"]
    text = shlex.join(words)
    if needs_key:
        text += ' -H "Authorization: Bearer $PEGBOARD_API_KEY"'
    return [f"  {text} -d {shlex.quote(body)}"]
