import json
import logging
import warnings

import pytest

from pegboard.config.runtime import ObservabilityConfig
from pegboard.observability.logging import configure_logging


@pytest.fixture
def logged(capsys):
    """Configure logging onto standard error, and put everything back afterwards."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("pegboard").level)
    showing = warnings.showwarning

    def configure(**values):
        configure_logging(
            ObservabilityConfig(**values), process="engine_core", packages=["myorg_metrics"]
        )
        return lambda: capsys.readouterr().err

    yield configure
    logging.captureWarnings(capture=False)
    warnings.showwarning = showing
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.getLogger("pegboard").setLevel(before[2])
    logging.getLogger("myorg_metrics").setLevel(logging.NOTSET)


def test_text_line_names_time_level_process_and_logger(logged):
    written = logged()
    logging.getLogger("pegboard.engine.core").info("ready in %d s", 3)
    head, _, message = written().partition(": ")
    assert head.split()[1:] == ["INFO", "engine_core", "pegboard.engine.core"]
    assert message == "ready in 3 s\n"


def test_text_keeps_a_hostile_message_on_one_line(logged):
    written = logged()
    logging.getLogger("pegboard").info("name %s", "a\nERROR forged")
    assert written().count("\n") == 1


def test_json_line_has_extras_and_the_traceback(logged):
    written = logged(log_format="json")
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        logging.getLogger("pegboard").exception("failed", extra={"request_id": "r1"})
    (text,) = written().splitlines()
    record = json.loads(text)
    assert (record["level"], record["process"], record["message"], record["request_id"]) == (
        "error",
        "engine_core",
        "failed",
        "r1",
    )
    assert "ValueError: bad" in record["exception"]


def test_level_holds_for_pegboard_and_plugins_while_others_stay_at_warning(logged):
    written = logged(log_level="debug")
    for name in ("pegboard.x", "myorg_metrics.x", "somelibrary"):
        logging.getLogger(name).debug("fine")
    logging.getLogger("somelibrary").warning("loud")
    lines = written().splitlines()
    assert [line.split()[3] for line in lines] == [
        "pegboard.x:",
        "myorg_metrics.x:",
        "somelibrary:",
    ]


def test_configuring_twice_logs_once(logged):
    logged()
    written = logged(log_level="warning")
    logging.getLogger("pegboard").info("quiet")
    logging.getLogger("pegboard").warning("once")
    assert len(written().splitlines()) == 1
