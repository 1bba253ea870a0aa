"""Runs the HTTP front end on a real socket, in a thread with its own event loop."""

import asyncio
import threading
from contextlib import contextmanager

from tests.support.fake_engine import FakeEngineClient

from pegboard.api.plugin import ComponentContext
from pegboard_server.config import ServerConfig
from pegboard_server.frontend import HttpFrontend


class Served:
    """A running server: its address, its engine client, what its run raised."""

    def __init__(self):
        self.url = ""
        self.client = None
        self.frontend = None
        self.loop = None
        self.error = None
        self.ready = threading.Event()
        self.thread = None

    def in_loop(self, function):
        """Run a function in the server's loop and return its result."""
        done = threading.Event()
        result = []

        def call():
            result.append(function())
            done.set()

        self.loop.call_soon_threadsafe(call)
        assert done.wait(10)
        return result[0]

    def stop(self):
        self.loop.call_soon_threadsafe(self.frontend.stop)


@contextmanager
def serve(config=None, routes=(), setup=None, **engine):
    """Yield a running server; stops it, and waits for it, at the end."""
    served = Served()
    options = {"port": 0, "shutdown_timeout": 2.0, **(config or {})}
    context = ComponentContext(plugin="server", plugin_config=ServerConfig(**options))
    served.frontend = HttpFrontend(context)
    served.url = served.frontend.bind()

    async def main():
        served.loop = asyncio.get_running_loop()
        served.client = FakeEngineClient(**engine)
        if setup is not None:
            setup(served.client)
        await served.frontend.run(served.client, list(routes), served.ready.set)

    def run():
        try:
            with asyncio.Runner(loop_factory=served.frontend.loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:
            served.error = error
        finally:
            served.ready.set()

    served.thread = threading.Thread(target=run, daemon=True)
    served.thread.start()
    assert served.ready.wait(20)
    if served.error is not None:
        raise served.error
    try:
        yield served
    finally:
        if served.thread.is_alive():
            served.stop()
            served.thread.join(10)
        assert not served.thread.is_alive(), "the server did not stop"
