"""Live and ready are two things, and neither waits for the engine."""

from pegboard.engine.health import HealthMonitor


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _monitor() -> tuple[HealthMonitor, Clock]:
    clock = Clock()
    monitor = HealthMonitor(silent_after_s=5, stalled_after_s=60, clock=clock)
    return monitor, clock


def test_engine_that_starts_lives_and_is_not_ready() -> None:
    monitor, clock = _monitor()
    assert (monitor.health(clock.now).live, monitor.health(clock.now).ready) == (True, False)
    monitor.started()
    assert monitor.health(clock.now).ready


def test_silence_ends_readiness_first_and_life_later() -> None:
    monitor, clock = _monitor()
    monitor.started()
    clock.now += 6
    health = monitor.health(100.0)
    assert (health.live, health.ready) == (True, False)
    assert "6 s" in health.reason
    clock.now += 60
    assert not monitor.health(100.0).live


def test_open_work_without_progress_is_no_life() -> None:
    monitor, clock = _monitor()
    monitor.started()
    monitor.heard(1, has_work=True)
    clock.now += 59
    monitor.heard(1, has_work=True)
    assert monitor.health(clock.now).live
    clock.now += 2
    monitor.heard(1, has_work=True)
    health = monitor.health(clock.now)
    assert (health.live, health.ready) == (False, False)
    monitor.heard(2, has_work=True)
    assert monitor.health(clock.now).ready


def test_idle_engine_stays_healthy() -> None:
    monitor, clock = _monitor()
    monitor.started()
    for _ in range(10):
        clock.now += 50
        monitor.heard(7, has_work=False)
        assert monitor.health(clock.now).ready


def test_first_cause_of_death_is_kept() -> None:
    monitor, clock = _monitor()
    monitor.started()
    monitor.died("out of memory")
    monitor.died("pipe closed")
    health = monitor.health(clock.now)
    assert (health.live, health.ready, health.reason) == (False, False, "out of memory")
