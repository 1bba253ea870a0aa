"""The tiny platform's probe."""

from pegboard.api.platforms import Detection


def detect() -> Detection:
    return Detection(available=True, reason="it is a processor", num_devices=1)
