"""How long each phase of the start took, in order; reported at ready."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["StartPhases"]


class StartPhases:
    """Times phases by name. For one thread; phases may nest, each counts its own whole time."""

    def __init__(
        self,
        *,
        on_begin: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Call `on_begin(name)` as each phase begins, to show progress."""
        self._clock = clock
        self._on_begin = on_begin
        self._started = clock()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside; a phase entered twice adds up."""
        if self._on_begin is not None:
            self._on_begin(name)
        started = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - started)

    def add(self, name: str, seconds: float) -> None:
        """Note a phase that was timed elsewhere, such as in a child."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since this was made."""
        return self._clock() - self._started

    def as_dict(self) -> dict[str, float]:
        """Return phase → seconds, in the order they began to end."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}
