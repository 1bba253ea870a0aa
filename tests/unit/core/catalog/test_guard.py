import threading

import pytest

from pegboard.api.errors import InvalidRequest, PluginError
from pegboard.api.observers import EngineEvent, Fault
from pegboard.catalog import build_catalog
from pegboard.catalog.guard import Breaker, Guard
from pegboard.config.plugins import PluginsConfig

OBSERVER = """
seen = []
@hookimpl
def on_step_finished(event):
    seen.append(event.name)
    if event.attributes.get("bad"):
        raise ValueError("cannot take it")
@hookimpl
def on_engine_start():
    seen.append("start")
@hookimpl
def on_fault(fault):
    seen.append((fault.plugin, fault.hook, fault.scope))
"""


def step(**attributes) -> EngineEvent:
    return EngineEvent(name="step_finished", time=1.0, attributes=attributes)


def observing(fake_plugins, *names: str):
    plugins = PluginsConfig(enabled=names, only=list(names))
    return build_catalog(plugins, process="engine_core")


def seen(module: str) -> list:
    return __import__(module).seen


def fail(guard: Guard, scope="plugin", hook="parse") -> None:
    with pytest.raises(PluginError), guard.calling("p", hook, scope=scope):
        raise ValueError("bang")


def test_breaker_trips_after_consecutive_faults_only():
    breaker = Breaker(3)
    assert not breaker.fault("a")
    assert not breaker.fault("b")
    breaker.success()
    assert [breaker.fault(c) for c in "cde"] == [False, False, True]
    assert breaker.tripped
    assert breaker.cause == "e"


def test_plugin_scoped_faults_switch_the_hook_off():
    guard = Guard(threshold=2)
    fail(guard)
    fail(guard)
    with (
        pytest.raises(PluginError, match=r"switched off.*bang"),
        guard.calling("p", "parse", scope="plugin"),
    ):
        pytest.fail("must not run")
    with guard.calling("p", "other", scope="plugin"):
        pass
    assert guard.tripped("p", "parse")


def test_plugin_cannot_end_the_process():
    faults = []
    guard = Guard(on_fault=faults.append)
    with (
        pytest.raises(PluginError, match="SystemExit: 3"),
        guard.calling("p", "parse", scope="plugin"),
    ):
        raise SystemExit(3)
    assert [fault.plugin for fault in faults] == ["p"]


def test_observer_that_exits_is_confined(fake_plugins):
    fake_plugins.install("leaver", "@hookimpl\ndef on_engine_start():\n    raise SystemExit(3)\n")
    observing(fake_plugins, "leaver").observe("on_engine_start", step())


def test_plugin_that_exits_when_asked_what_it_offers_is_named(fake_plugins):
    fake_plugins.install("leaver", "@hookimpl\ndef op_definitions():\n    raise SystemExit(3)\n")
    with pytest.raises(PluginError, match=r"leaver.*op_definitions.*SystemExit"):
        observing(fake_plugins, "leaver")


def test_request_scoped_faults_never_switch_anything_off():
    guard = Guard(threshold=2)
    for _ in range(5):
        fail(guard, scope="request")
    assert not guard.tripped("p", "parse")
    assert guard.report()["p"]["parse"]["faults"] == 5


def test_errors_raised_on_purpose_pass_and_are_no_fault():
    guard = Guard(threshold=1)
    with pytest.raises(InvalidRequest), guard.calling("p", "parse", scope="plugin"):
        raise InvalidRequest("no such schema")
    assert not guard.tripped("p", "parse")
    assert guard.report()["p"]["parse"] == {
        **guard.report()["p"]["parse"],
        "calls": 1,
        "faults": 0,
    }


def test_every_fault_is_reported_with_its_request():
    faults: list[Fault] = []
    guard = Guard(on_fault=faults.append)
    with (
        pytest.raises(PluginError, match="parse of plugin 'p' raised KeyError"),
        guard.calling("p", "parse", scope="request", request_id="r1"),
    ):
        raise KeyError("x")
    (fault,) = faults
    assert (fault.plugin, fault.hook, fault.scope, fault.request_id) == (
        "p",
        "parse",
        "request",
        "r1",
    )


def test_slow_call_counts_against_the_budget_and_is_logged_once(caplog):
    guard = Guard(budget_s=-1.0)
    for _ in range(3):
        with guard.calling("p", "parse", scope="request"):
            pass
    assert guard.report()["p"]["parse"]["over_budget"] == 3
    assert caplog.text.count("over its budget") == 1


def test_calls_from_many_threads_are_all_counted():
    guard = Guard()

    def work() -> None:
        for _ in range(200):
            with guard.calling("p", "parse", scope="request"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert guard.report()["p"]["parse"]["calls"] == 800


def test_observers_of_enabled_plugins_hear_in_order(fake_plugins):
    heard = fake_plugins.install("heard", OBSERVER)
    deaf = fake_plugins.install("deaf", OBSERVER)
    catalog = build_catalog(PluginsConfig(enabled=("heard",), only=["heard", "deaf"]))
    catalog.observe("on_engine_start", step())
    catalog.observe("on_step_finished", step())
    assert seen(heard) == ["start", "step_finished"]
    assert seen(deaf) == []
    assert catalog.observed("on_step_finished")
    assert not catalog.observed("on_engine_stop")


def test_raising_observer_is_confined_told_of_and_finally_unhooked(fake_plugins, caplog):
    bad = fake_plugins.install("a_bad", OBSERVER)
    good = fake_plugins.install("b_good", OBSERVER.replace('event.attributes.get("bad")', "False"))
    catalog = observing(fake_plugins, "a_bad", "b_good")
    for _ in range(5):
        catalog.observe("on_step_finished", step(bad=True))
    assert seen(bad).count("step_finished") == 3
    assert seen(good).count("step_finished") == 5
    assert seen(good).count(("a_bad", "on_step_finished", "plugin")) == 3
    report = catalog.report()
    assert report["unhooked"] == ["a_bad.on_step_finished"]
    assert report["hook_times"]["a_bad"]["on_step_finished"]["faults"] == 3
    assert "cannot take it" in caplog.text


def test_observer_that_succeeds_between_faults_stays(fake_plugins):
    module = fake_plugins.install("flaky", OBSERVER)
    catalog = observing(fake_plugins, "flaky")
    for bad in (True, True, False, True, True, False):
        catalog.observe("on_step_finished", step(bad=bad))
    assert seen(module).count("step_finished") == 6
    assert catalog.report()["unhooked"] == []


def test_fault_in_the_fault_observer_does_not_recur(fake_plugins):
    fake_plugins.install("worst", "@hookimpl\ndef on_fault(fault):\n    raise ValueError('again')")
    catalog = observing(fake_plugins, "worst")
    for count in (1, 2, 3, 3):
        catalog.observe("on_fault", Fault(scope="engine", hook="step", cause="x"))
        assert catalog.report()["hook_times"]["worst"]["on_fault"]["faults"] == count


def test_unknown_lifecycle_hook_is_a_key_error(fake_plugins):
    with pytest.raises(KeyError):
        observing(fake_plugins).observe("on_nothing", step())
