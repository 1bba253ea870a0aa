import json
import threading

import pytest

from pegboard.api.errors import ConfigError
from pegboard.observability.phases import StartPhases
from pegboard.observability.timeline import open_timeline


def events(path) -> list[dict]:
    return json.loads(path.read_text())


def test_spans_are_complete_chrome_events(tmp_path):
    timeline = open_timeline(str(tmp_path / "out.json"), "engine_core")
    with timeline, timeline.span("step", step=3), timeline.span("schedule"):
        pass
    name, inner, outer = events(tmp_path / "out.engine_core.json")
    assert name["args"] == {"name": "engine_core"}
    assert (inner["name"], outer["name"], outer["ph"]) == ("schedule", "step", "X")
    assert outer["args"] == {"step": 3}
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_span_is_recorded_although_its_block_raises(tmp_path):
    timeline = open_timeline(str(tmp_path / "out.json"), "worker 0")
    with pytest.raises(ValueError, match="bang"), timeline.span("forward"):
        raise ValueError("bang")
    timeline.close()
    timeline.close()
    assert events(tmp_path / "out.worker_0.json")[-1]["name"] == "forward"


def test_more_than_a_buffer_of_events_from_several_threads(tmp_path):
    timeline = open_timeline(str(tmp_path / "out.json"), "p")

    def work() -> None:
        for _ in range(400):
            with timeline.span("x", padding="y" * 100):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    timeline.close()
    assert len(events(tmp_path / "out.p.json")) == 1201


def test_without_a_path_nothing_is_recorded():
    timeline = open_timeline(None, "p")
    assert not timeline.enabled
    with timeline.span("x"):
        pass
    timeline.close()


def test_path_that_cannot_be_written_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be written.*--timeline-path"):
        open_timeline(str(tmp_path / "no_folder" / "out.json"), "p")


def test_phases_add_up_in_order_and_announce_themselves():
    now = iter([0.0, 1.0, 3.0, 3.0, 3.5, 4.0, 5.0])
    begun: list[str] = []
    phases = StartPhases(on_begin=begun.append, clock=lambda: next(now))
    with phases.phase("resolve"):
        pass
    with pytest.raises(ValueError, match="no"), phases.phase("load"):
        raise ValueError("no")
    with phases.phase("resolve"):
        pass
    phases.add("child", 2.0)
    assert phases.as_dict() == {"resolve": 3.0, "load": 0.5, "child": 2.0}
    assert begun == ["resolve", "load", "resolve"]
