"""Log lines as text or JSON, on standard error. Only a process's entry calls this."""

import datetime
import json
import logging
import sys
from collections.abc import Iterable

from pegboard.config.runtime import ObservabilityConfig

__all__ = ["JsonFormatter", "TextFormatter", "configure_logging"]

#: Attributes that every record has; what is not here came from `extra` and is shown in JSON.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """`12:00:00.123 INFO engine_core pegboard.engine.core: message`."""

    def __init__(self, process: str) -> None:
        """Name the process in every line."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; its traceback follows on lines of its own."""
        time = datetime.datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        head = f"{time} {record.levelname} {self._process} {record.name}: "
        text = head + record.getMessage().replace("\n", "\\n")
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, process, logger, message, then extras."""

    def __init__(self, process: str) -> None:
        """Name the process in every line."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {k: v for k, v in vars(record).items() if k not in _STANDARD and k not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure_logging(
    config: ObservabilityConfig, *, process: str, packages: Iterable[str] = ()
) -> None:
    """Send log lines to standard error, in the form and from the level the user chose.

    Everything logs from WARNING on; Pegboard and the plugins' packages from the chosen level.

    Args:
        config: level and form.
        process: what this process is: "frontend", "engine_core", "worker 0".
        packages: top-level packages of loaded plugins.
    """
    formatter = JsonFormatter(process) if config.log_format == "json" else TextFormatter(process)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    level = config.log_level.upper()
    for package in {"pegboard", *packages}:
        logging.getLogger(package).setLevel(level)
    logging.captureWarnings(capture=True)
