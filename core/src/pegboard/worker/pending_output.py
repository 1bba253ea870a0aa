"""A step's output between its sampling on the device and its reading on the host."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pegboard.api.messages import StepOutput

__all__ = ["PendingOutput", "to_host"]


class PendingOutput:
    """A step's output that may still be on its way from the device.

    Attributes:
        is_ready: nothing is to be waited for.
    """

    __slots__ = ("_event", "_finish", "is_ready")

    def __init__(self, finish: Callable[[], StepOutput], event: Any = None) -> None:  # noqa: ANN401
        """Keep what makes the output, and the event after which it can.

        Args:
            finish: called once the event has passed, in the thread that waits.
            event: recorded behind the step's last copy; None if there is nothing to wait for.
        """
        self._finish = finish
        self._event = event
        self.is_ready = event is None

    def wait_sync(self) -> StepOutput:
        """Wait for the device and return the output; call once, from any thread."""
        if self._event is not None:
            self._event.synchronize()
        return self._finish()


def to_host(tensors: list[Tensor]) -> tuple[list[Tensor], Any]:
    """Queue copies to the host; return them, and the event after which they can be read.

    Where tensors are on the host already they are returned as they are, with None.
    """
    device = tensors[0].device
    if device.type == "cpu":
        return tensors, None
    copies = [
        torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)
        for t in tensors
    ]
    event = torch.Event(device)
    event.record()
    return copies, event
