"""Logits processors of plugins: called only for rows that ask, and confined when they raise."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pegboard.api.messages import NewRequest
from pegboard.api.sampling import LogitsProcessor

__all__ = ["NamedProcessor", "ProcessorChain"]

logger = logging.getLogger(__name__)


class NamedProcessor:
    """A processor with what its spec says of it.

    Attributes:
        name, plugin: of the component and of the plugin that offers it.
        argmax_invariant: it never changes which token is most likely.
        active: the rows it does anything for.
    """

    __slots__ = ("active", "argmax_invariant", "name", "plugin", "processor")

    def __init__(
        self, name: str, plugin: str, processor: LogitsProcessor, argmax_invariant: bool
    ) -> None:
        """Start with no rows."""
        self.name = name
        self.plugin = plugin
        self.processor = processor
        self.argmax_invariant = argmax_invariant
        self.active: set[int] = set()


class ProcessorChain:
    """The processors of one worker, in the configuration's order."""

    __slots__ = ("_processors",)

    def __init__(self, processors: Sequence[NamedProcessor] = ()) -> None:
        """Keep the processors."""
        self._processors = tuple(processors)

    def add_row(self, request: NewRequest) -> None:
        """Offer a request to every processor.

        Raises:
            Exception: whatever a processor raises; the request alone is at fault.
        """
        for named in self._processors:
            asked = named.processor.add_row(
                request.row, request.sampling, request.token_ids, request.num_prompt_tokens
            )
            if asked:
                named.active.add(request.row)

    def remove_row(self, row: int) -> None:
        """Forget a row in every processor."""
        for named in self._processors:
            named.active.discard(row)
            named.processor.remove_row(row)

    def needed(self, rows: Sequence[int], *, argmax_invariant: bool) -> bool:
        """Return whether `apply` would call anything for these rows."""
        return any(
            named.active and not named.active.isdisjoint(rows)
            for named in self._processors
            if named.argmax_invariant == argmax_invariant
        )

    def apply(
        self,
        logits: Tensor,
        rows: Sequence[int],
        device_rows: Tensor,
        batch: Any,  # noqa: ANN401 -- the read-only view that `LogitsProcessor.apply` describes
        *,
        argmax_invariant: bool,
    ) -> dict[int, str]:
        """Call the processors of one sort; return row to the reason, for rows that one failed."""
        faults: dict[int, str] = {}
        for named in self._processors:
            if named.argmax_invariant != argmax_invariant or named.active.isdisjoint(rows):
                continue
            try:
                named.processor.apply(logits, device_rows, batch)
            except Exception as error:
                logger.exception("logits processor=%s plugin=%s raised", named.name, named.plugin)
                reason = f"logits processor {named.name} of plugin {named.plugin} raised: {error}"
                faults.update(dict.fromkeys(named.active.intersection(rows), reason))
        return faults
