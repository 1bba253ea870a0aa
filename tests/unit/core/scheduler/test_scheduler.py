"""The scheduler's properties one by one, on a fake device."""

import pytest
from tests.support.scheduling import (
    Engine,
    FakeDevice,
    full_group,
    make_kv,
    make_request,
    make_scheduler,
    token_at,
    window_group,
)

from pegboard.api.errors import ContextLength, EngineError, InvalidRequest
from pegboard.api.messages import SchedulerOutput, StepOutput, TokenLogprobs
from pegboard.api.sampling_params import RepetitionDetection


def make_engine(depth: int = 1, *, num_blocks: int = 64, **options: object) -> Engine:
    groups = options.pop("groups", None) or [full_group(4)]
    caching = options.pop("enable_prefix_caching", True)
    kv = make_kv(num_blocks, groups, enable_prefix_caching=caching)
    options.setdefault("max_num_batched_tokens", 32)
    options.setdefault("max_num_seqs", 8)
    scheduler = make_scheduler(kv, async_scheduling=depth > 1, **options)
    device = FakeDevice(
        groups, max_num_seqs=options["max_num_seqs"], budget=options["max_num_batched_tokens"]
    )
    return Engine(scheduler, device, depth)


def row_tokens(step: SchedulerOutput) -> dict[int, int]:
    return dict(zip(step.rows, step.num_scheduled_tokens, strict=True))


depths = pytest.mark.parametrize("depth", [1, 2])


# --- steps and budget ---


def test_no_request_is_no_step() -> None:
    assert make_engine().scheduler.schedule() is None


def test_prompt_longer_than_the_budget_comes_in_chunks() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.scheduler.add(make_request("a", 20, max_tokens=2))
    engine.run()

    assert [step.total_num_scheduled_tokens for step in engine.steps] == [8, 8, 4, 1]
    assert engine.tokens("a") == [token_at("a", 20), token_at("a", 21)]


def test_rows_with_one_token_come_first() -> None:
    engine = make_engine()
    engine.scheduler.add(make_request("a", 6, max_tokens=8))
    engine.schedule()
    engine.end_step()
    engine.scheduler.add(make_request("b", 9))
    engine.scheduler.add(make_request("c", 1))

    step = engine.schedule()

    assert step is not None
    assert step.num_scheduled_tokens == [1, 1, 9]
    assert step.rows == [0, 2, 1]


def test_prompt_without_chunking_waits_for_a_step_with_room() -> None:
    engine = make_engine(max_num_batched_tokens=10, enable_chunked_prefill=False)
    engine.scheduler.add(make_request("a", 6))
    engine.scheduler.add(make_request("b", 6, arrival_time=1))
    first, second = engine.schedule(), None
    engine.end_step()
    second = engine.schedule()

    assert first is not None
    assert second is not None
    assert first.num_scheduled_tokens == [6]
    assert sorted(second.num_scheduled_tokens) == [1, 6]
    with pytest.raises(ContextLength, match="without chunked prefill a step takes at most 10"):
        engine.scheduler.add(make_request("c", 11))


def test_long_prompt_leaves_half_of_a_step_to_others() -> None:
    engine = make_engine(max_num_batched_tokens=16, max_model_len=200, num_blocks=100)
    engine.scheduler.add(make_request("long", 150, max_tokens=1))
    engine.schedule()
    for index in range(4):
        engine.scheduler.add(make_request(f"short{index}", 4, max_tokens=1, arrival_time=1))
    engine.end_step()
    engine.run()

    shorts = [new for step in engine.steps[1:3] for new in step.new_requests]
    assert {new.request_id for new in shorts} == {f"short{index}" for index in range(4)}
    assert len(engine.steps) == 11, "the budget is used up while the long prompt is there"


def test_newcomer_that_is_long_leaves_room_for_the_next() -> None:
    engine = make_engine(max_num_batched_tokens=16, max_model_len=200, num_blocks=100)
    engine.scheduler.add(make_request("long", 150, max_tokens=1))
    engine.scheduler.add(make_request("short", 4, max_tokens=1, arrival_time=1))

    step = engine.schedule()

    assert step is not None
    assert row_tokens(step) == {0: 12, 1: 4}


def test_threshold_caps_a_prompt_only_while_others_wait() -> None:
    engine = make_engine(long_prefill_token_threshold=5, max_model_len=100, num_blocks=100)
    engine.scheduler.add(make_request("long", 80, max_tokens=1))
    first = engine.schedule()
    engine.end_step()
    engine.scheduler.add(make_request("other", 40, max_tokens=1, arrival_time=1))
    second = engine.schedule()

    assert first is not None
    assert second is not None
    assert first.num_scheduled_tokens == [32]
    assert second.num_scheduled_tokens == [5, 5]


# --- order and fairness ---


def test_first_come_is_first_served() -> None:
    engine = make_engine(max_num_seqs=1)
    for name, arrival in (("late", 2.0), ("early", 1.0), ("latest", 3.0)):
        engine.scheduler.add(make_request(name, 3, arrival_time=arrival))
    engine.run()

    order = [new.request_id for step in engine.steps for new in step.new_requests]
    assert order == ["early", "late", "latest"]


def test_smaller_priority_goes_first_and_greatest_gives_way() -> None:
    engine = make_engine(num_blocks=10, policy="priority", max_model_len=36)
    engine.scheduler.add(make_request("low", 12, max_tokens=20, priority=5, arrival_time=0))
    engine.schedule()
    engine.end_step()
    engine.scheduler.add(make_request("high", 12, max_tokens=20, priority=1, arrival_time=9))
    engine.run()

    kinds = [event.kind for output in engine.outputs["low"] for event in output.events]
    assert "preempted" in kinds
    kinds = [event.kind for output in engine.outputs["high"] for event in output.events]
    assert kinds == ["queued", "scheduled"]


@depths
def test_request_that_does_not_fit_is_passed_over_but_not_for_ever(depth: int) -> None:
    engine = make_engine(depth, num_blocks=14, max_num_seqs=3)
    passed_it: set[str] = set()
    for index in range(300):
        # Two small ones are always there, so the large one never fits by itself.
        engine.scheduler.add(make_request(f"small{index}", 3, max_tokens=8, arrival_time=index))
        if index == 3:
            engine.scheduler.add(make_request("large", 48, max_tokens=1, arrival_time=3.5))
        for _ in range(3):
            engine.turn()
        started = {new.request_id for step in engine.steps for new in step.new_requests}
        if "large" in started:
            break
        passed_it = started
    engine.run()

    assert 50 < len(passed_it) < 100
    assert engine.tokens("large") == [token_at("large", 48)]


def test_rows_are_reused_lowest_first() -> None:
    engine = make_engine(max_num_seqs=2)
    engine.scheduler.add(make_request("a", 3, max_tokens=1))
    engine.scheduler.add(make_request("b", 3, max_tokens=9))
    engine.schedule()
    engine.end_step()
    engine.scheduler.add(make_request("c", 3))

    step = engine.schedule()

    assert step is not None
    assert step.finished_rows == [0]
    assert [new.row for new in step.new_requests] == [0]


# --- what cannot run ---


def test_unservable_requests_are_refused_with_both_numbers() -> None:
    engine = make_engine(num_blocks=9, max_model_len=100)
    with pytest.raises(ContextLength, match=r"the prompt has 100 tokens.*at most 99"):
        engine.scheduler.add(make_request("a", 100))
    with pytest.raises(ContextLength, match=r"the prompt has 40 tokens.*more than 31"):
        engine.scheduler.add(make_request("b", 40))
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        engine.scheduler.add(make_request("c", []))
    engine.scheduler.add(make_request("d", 4))
    with pytest.raises(InvalidRequest, match="'d' is in use"):
        engine.scheduler.add(make_request("d", 4))


@depths
def test_sequence_ends_where_the_pool_ends(depth: int) -> None:
    engine = make_engine(depth, num_blocks=6, max_model_len=100)
    engine.scheduler.add(make_request("a", 5, max_tokens=None))
    engine.run()

    assert len(engine.tokens("a")) == 15
    assert engine.finish_reason("a") == "length"


# --- the end of a request ---


@depths
def test_nothing_is_scheduled_beyond_max_tokens(depth: int) -> None:
    engine = make_engine(depth)
    engine.scheduler.add(make_request("a", 5, max_tokens=3))
    engine.run()

    assert sum(step.total_num_scheduled_tokens for step in engine.steps) == 5 + 2
    assert engine.finish_reason("a") == "length"


@depths
def test_nothing_is_scheduled_beyond_the_context(depth: int) -> None:
    engine = make_engine(depth, max_model_len=9)
    engine.scheduler.add(make_request("a", 5, max_tokens=None))
    engine.run()

    assert len(engine.tokens("a")) == 4
    assert sum(step.total_num_scheduled_tokens for step in engine.steps) == 8


@depths
def test_tokens_after_the_end_of_sequence_are_discarded(depth: int) -> None:
    engine = make_engine(depth)
    engine.device.forced["a", 6] = 77
    engine.scheduler.add(make_request("a", 5, max_tokens=9, eos_token_ids=[77]))
    engine.run()

    assert engine.tokens("a") == [token_at("a", 5), 77]
    assert engine.finish_reason("a") == "stop"
    assert engine.outputs["a"][-1].stop_token_id is None


def test_stop_token_is_named() -> None:
    engine = make_engine()
    engine.device.forced["a", 6] = 78
    engine.scheduler.add(make_request("a", 5, max_tokens=9, stop_token_ids=[78]))
    engine.run()

    assert engine.outputs["a"][-1].stop_token_id == 78


@depths
def test_repetition_ends_a_request(depth: int) -> None:
    engine = make_engine(depth)
    for position in range(5, 12):
        engine.device.forced["a", position] = 3
    rule = RepetitionDetection(max_pattern_size=1, min_count=3)
    engine.scheduler.add(make_request("a", 5, max_tokens=9, repetition_detection=rule))
    engine.run()

    assert engine.tokens("a") == [3, 3, 3]
    assert engine.finish_reason("a") == "repetition"


# --- preemption ---


@depths
def test_preempted_request_resumes_whole_and_gives_the_same_text(depth: int) -> None:
    engine = make_engine(depth, num_blocks=8, max_model_len=28)
    for index in range(3):
        engine.scheduler.add(make_request(f"r{index}", 6, max_tokens=20, arrival_time=index))
    engine.run()

    for index in range(3):
        expected = [token_at(f"r{index}", position) for position in range(6, 26)]
        assert engine.tokens(f"r{index}") == expected
    resumed = [
        new for step in engine.steps for new in step.new_requests if new.row in step.resumed_rows
    ]
    assert resumed
    assert all(len(new.token_ids) > new.num_prompt_tokens == 6 for new in resumed)
    assert engine.scheduler.stats().num_preemptions == len(resumed)


def test_oldest_request_is_never_preempted() -> None:
    engine = make_engine(2, num_blocks=8, max_model_len=28)
    for index in range(4):
        engine.scheduler.add(make_request(f"r{index}", 6, max_tokens=20, arrival_time=index))
    engine.run()

    events = [event.kind for output in engine.outputs["r0"] for event in output.events]
    assert events == ["queued", "scheduled"]


def test_resumed_request_hits_its_own_blocks_and_counts_no_lookup() -> None:
    engine = make_engine(num_blocks=40)
    engine.scheduler.add(make_request("a", 17, max_tokens=8))
    for _ in range(3):
        engine.schedule()
        engine.end_step()
    assert engine.scheduler.reset_prefix_cache() is False
    engine.scheduler._batch.preempt(engine.scheduler._batch.running[0])

    step = engine.schedule()

    assert step is not None
    assert step.new_requests[0].num_computed_tokens == 16
    assert step.num_scheduled_tokens == [4]
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (17, 0)


# --- prefix cache ---


@depths
def test_equal_prefix_in_one_step_is_computed_once(depth: int) -> None:
    engine = make_engine(depth, max_num_batched_tokens=64)
    prompt = list(range(21))
    for index in range(4):
        engine.scheduler.add(make_request(f"r{index}", prompt, max_tokens=2, arrival_time=index))
    step = engine.schedule()
    engine.run()

    assert step is not None
    assert step.num_scheduled_tokens == [1, 1, 1, 21]
    assert [engine.outputs[f"r{index}"][0].num_cached_tokens for index in range(4)] == [0] + [
        20
    ] * 3
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (4 * 21, 3 * 20)
    assert engine.device.num_computed_tokens == 21 + 3 + 4


def test_next_turn_of_a_conversation_hits_prompt_and_answer() -> None:
    engine = make_engine()
    prompt = list(range(10))
    engine.scheduler.add(make_request("one", prompt, max_tokens=7))
    engine.run()
    engine.scheduler.add(make_request("two", [*prompt, *engine.tokens("one"), 1, 2], max_tokens=1))
    engine.run()

    assert engine.outputs["two"][0].num_cached_tokens == 16


@depths
def test_generated_block_is_hittable_as_soon_as_it_is_full(depth: int) -> None:
    engine = make_engine(depth)
    engine.scheduler.add(make_request("one", 6, max_tokens=30))
    while len(engine.tokens("one")) < 3:
        engine.turn()
    prompt = [*make_request("one", 6).prompt_token_ids, *engine.tokens("one")]
    engine.scheduler.add(make_request("two", prompt, max_tokens=1))
    engine.run()

    assert engine.outputs["two"][0].num_cached_tokens == 8


def test_salts_and_opt_out_do_not_hit() -> None:
    engine = make_engine(max_num_batched_tokens=64)
    prompt = list(range(13))
    engine.scheduler.add(make_request("one", prompt, cache_salt="x"))
    engine.run()
    engine.scheduler.add(make_request("two", prompt))
    engine.scheduler.add(make_request("three", prompt, cache_salt="x", prompt_logprobs=1))
    engine.scheduler.add(
        make_request("four", prompt, cache_salt="x", skip_reading_prefix_cache=True)
    )
    engine.scheduler.add(make_request("five", prompt, cache_salt="x"))
    step = engine.schedule()

    assert step is not None
    cached = {new.request_id: new.num_computed_tokens for new in step.new_requests}
    assert cached == {"two": 0, "three": 0, "four": 0, "five": 12}
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (39, 12)


@depths
def test_reset_refuses_while_running_or_restarts(depth: int) -> None:
    engine = make_engine(depth)
    engine.scheduler.add(make_request("a", 13, max_tokens=9))
    engine.turn()
    assert engine.scheduler.reset_prefix_cache() is False
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True) is True
    engine.run()

    assert engine.tokens("a") == [token_at("a", position) for position in range(13, 22)]
    assert [new.num_computed_tokens for s in engine.steps for new in s.new_requests] == [0, 0]
    assert engine.scheduler.reset_prefix_cache() is True


def test_window_model_holds_only_its_window() -> None:
    engine = make_engine(groups=[window_group(5, 4, (0,))], num_blocks=30, max_model_len=90)
    engine.scheduler.add(make_request("a", 30, max_tokens=40))
    most = 0
    while engine.scheduler.has_unfinished():
        engine.schedule()
        engine.end_step()
        if len(engine.tokens("a")) > 1:
            most = max(most, 29 - engine.scheduler.stats().num_free_blocks)

    assert most <= 3
    assert engine.tokens("a") == [token_at("a", position) for position in range(30, 70)]


# --- aborts and faults ---


@depths
def test_abort_in_each_state_frees_everything(depth: int) -> None:
    engine = make_engine(depth, num_blocks=9, max_num_seqs=2, max_model_len=32)
    for index in range(4):
        engine.scheduler.add(make_request(f"r{index}", 10, max_tokens=20, arrival_time=index))
    for _ in range(14):
        engine.turn()
    assert engine.scheduler.stats().num_preemptions > 0

    outputs = engine.scheduler.abort(["r0", "r1", "r2", "r3", "r9"])

    assert {output.request_id for output in outputs} <= {f"r{index}" for index in range(4)}
    assert all(output.finish_reason == "abort" for output in outputs)
    assert not engine.scheduler.has_unfinished()
    engine.run()
    assert engine.scheduler.stats().num_free_blocks == 8
    assert engine.scheduler.stats().faults == {"unknown_abort": 5 - len(outputs)}


def test_blocks_of_an_aborted_request_return_when_its_step_has_ended() -> None:
    engine = make_engine(2, num_blocks=12)
    engine.scheduler.add(make_request("a", 20, max_tokens=20))
    engine.schedule()
    engine.scheduler.abort(["a"])
    assert engine.scheduler.stats().num_free_blocks == 6

    engine.end_step()

    assert engine.scheduler.stats().num_free_blocks == 11
    assert engine.schedule() is None


def test_abort_storm_leaks_nothing() -> None:
    engine = make_engine(2, num_blocks=20, max_num_seqs=4)
    for index in range(300):
        engine.scheduler.add(make_request(f"r{index}", 1 + index % 30, arrival_time=index))
        engine.turn()
        if index % 3:
            engine.take(engine.scheduler.abort([f"r{index - index % 7}"]))
        assert engine.scheduler.audit() == []
    engine.run()

    assert engine.scheduler.stats().num_free_blocks == 19


@depths
def test_fault_of_a_row_fails_that_request_only(depth: int) -> None:
    engine = make_engine(depth)
    for name in ("a", "b"):
        engine.scheduler.add(make_request(name, 9, max_tokens=6))
    engine.turn()
    engine.device.fault_rows = {"a"}
    engine.run()

    assert engine.finish_reason("a") == "error"
    assert engine.outputs["a"][-1].error == "the row is at fault"
    assert engine.tokens("b") == [token_at("b", position) for position in range(9, 15)]
    assert engine.scheduler.stats().faults == {"request": 1}


@depths
def test_failed_step_fails_its_requests_and_poisons_no_prefix(depth: int) -> None:
    engine = make_engine(depth, max_num_batched_tokens=64)
    prompt = list(range(17))
    engine.scheduler.add(make_request("a", prompt, max_tokens=3))
    engine.schedule(fails=True)
    engine.scheduler.add(make_request("b", prompt, max_tokens=3, arrival_time=1))
    engine.run()

    assert engine.finish_reason("a") == "error"
    assert engine.outputs["a"][-1].error == "the device is at fault"
    assert engine.tokens("b") == [token_at("b", position) for position in range(17, 20)]
    assert engine.scheduler.stats().num_free_blocks == 63


@depths
def test_failed_step_makes_all_others_start_over_and_nothing_cached_is_trusted(depth: int) -> None:
    engine = make_engine(depth, max_num_seqs=2, max_num_batched_tokens=4)
    engine.scheduler.add(make_request("a", 3, max_tokens=20))
    for _ in range(3):
        engine.turn()
    # The budget goes to the first two; the third runs in no failing step.
    engine.scheduler.add(make_request("b", 30, max_tokens=2, arrival_time=1))
    for _ in range(4):
        engine.turn()
    while len(engine.in_flight) == engine.depth:
        engine.end_step()
    engine.schedule(fails=True)
    engine.scheduler.add(make_request("c", 9, max_tokens=5, arrival_time=2))
    while engine.finish_reason("a") is None:
        engine.end_step()

    assert engine.scheduler._kv.pool.num_cached == 0
    engine.run()
    assert (engine.finish_reason("a"), engine.finish_reason("b")) == ("error", "error")
    assert engine.tokens("c") == [token_at("c", position) for position in range(9, 14)]


@pytest.mark.parametrize("sampled", [[], [1, 2]])
def test_worker_that_gives_a_wrong_number_of_tokens_fails_the_request(sampled: list[int]) -> None:
    engine = make_engine()
    engine.scheduler.add(make_request("a", 5))
    step = engine.scheduler.schedule()
    assert step is not None

    (output,) = engine.scheduler.update(
        step, StepOutput(step_id=step.step_id, sampled_token_ids=[sampled])
    )

    assert output.finish_reason == "error"
    assert f"gave {len(sampled)} token(s)" in (output.error or "")


def test_steps_end_in_order_and_with_all_rows() -> None:
    engine = make_engine(2)
    engine.scheduler.add(make_request("a", 5, max_tokens=9))
    first, second = engine.scheduler.schedule(), engine.scheduler.schedule()
    assert first is not None
    assert second is not None

    with pytest.raises(EngineError, match="out of order; the oldest in flight is 0"):
        engine.scheduler.update(second, StepOutput(step_id=1, sampled_token_ids=[[1]]))
    with pytest.raises(EngineError, match="has 1 rows, its output 0"):
        engine.scheduler.update(first, StepOutput(step_id=0))


# --- what the front end hears ---


def test_first_output_tells_the_events_and_later_ones_do_not() -> None:
    engine = make_engine()
    engine.scheduler.add(make_request("a", 5, max_tokens=2))
    engine.run()

    first, last = engine.outputs["a"]
    assert [(event.kind, event.time) for event in first.events] == [
        ("queued", 1.0),
        ("scheduled", 1.0),
    ]
    assert last.events == []


def test_logprobs_go_with_their_tokens() -> None:
    engine = make_engine()
    engine.scheduler.add(make_request("a", 5, logprobs=0))
    step = engine.scheduler.schedule()
    assert step is not None
    entry = TokenLogprobs([9], [-0.5], [1])

    (output,) = engine.scheduler.update(
        step, StepOutput(step_id=0, sampled_token_ids=[[9]], logprobs={0: [entry]})
    )

    assert output.logprobs == [entry]


def test_prompt_logprobs_are_sent_once_though_the_prompt_is_computed_twice() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    scheduler = engine.scheduler
    scheduler.add(make_request("a", 9, max_tokens=1, prompt_logprobs=0))
    sent: list[int] = []

    def do_step() -> None:
        step = scheduler.schedule()
        assert step is not None
        (row,), (count,) = step.rows, step.num_scheduled_tokens
        start = step.new_requests[0].num_computed_tokens if step.new_requests else do_step.end
        do_step.end = start + count
        entries = [TokenLogprobs([p + 1], [0.0], [1]) for p in range(start, min(start + count, 8))]
        sampled = [[5]] if start + count == 9 else [[]]
        answer = StepOutput(
            step_id=step.step_id, sampled_token_ids=sampled, prompt_logprobs={row: entries}
        )
        for output in scheduler.update(step, answer):
            sent.extend(entry.token_ids[0] for entry in output.prompt_logprobs)

    do_step()
    do_step()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    while scheduler.has_unfinished():
        do_step()

    assert sent == list(range(1, 9))


def test_stats_count_waiting_tokens_and_usage() -> None:
    engine = make_engine(max_num_seqs=1, num_blocks=11)
    engine.scheduler.add(make_request("a", 9))
    engine.scheduler.add(make_request("b", 7, arrival_time=1))
    engine.schedule()

    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_waiting_tokens) == (1, 1, 7)
    assert stats.kv_usage == pytest.approx(0.3)
    assert (stats.num_steps, stats.step_tokens) == (1, 9)


# --- speculation fits ---


@depths
def test_accepted_and_rejected_drafts_give_the_same_text_in_fewer_steps(depth: int) -> None:
    plain, speculative = make_engine(depth), make_engine(depth, num_drafts_wanted=3)
    speculative.device.num_drafts = 3
    for engine in (plain, speculative):
        engine.scheduler.add(make_request("a", 9, max_tokens=30))
        engine.run()

    assert speculative.tokens("a") == plain.tokens("a")
    assert all(step.num_drafts_wanted == 3 for step in speculative.steps)
    if depth == 1:
        assert len(speculative.steps) < len(plain.steps)


def test_drafts_never_reach_beyond_max_tokens() -> None:
    engine = make_engine(num_drafts_wanted=3)
    engine.device.num_drafts = 3
    for position in range(5, 20):
        engine.device.forced["a", position] = 7
    engine.scheduler.add(make_request("a", 5, max_tokens=3))
    engine.run()

    assert engine.tokens("a") == [7, 7, 7]
    assert [step.num_scheduled_tokens for step in engine.steps] == [[5], [2]]


def test_accepted_drafts_after_the_end_of_sequence_are_dropped() -> None:
    engine = make_engine(num_drafts_wanted=3)
    engine.device.num_drafts = 3
    for position, token in enumerate([7, 99, 9, 11, 13], 6):
        engine.device.forced["a", position] = token
    engine.scheduler.add(
        make_request("a", 5, max_tokens=20, eos_token_ids=[99], min_tokens=0, logprobs=None)
    )
    engine.run()

    assert engine.tokens("a") == [token_at("a", 5), 7, 99]
    assert len(engine.steps) == 2


# --- head-room ---


def test_admission_leaves_what_running_prompts_still_need() -> None:
    engine = make_engine(num_blocks=16, max_num_batched_tokens=16)
    engine.scheduler.add(make_request("long", 40, max_tokens=1))
    engine.schedule()
    engine.end_step()
    # 15 blocks: the long prompt holds 4 and needs 6 more, which leaves 5.
    engine.scheduler.add(make_request("large", 24, max_tokens=1, arrival_time=1))
    engine.scheduler.add(make_request("small", 20, max_tokens=1, arrival_time=2))

    step = engine.schedule()

    assert step is not None
    assert [new.request_id for new in step.new_requests] == ["small"]


def test_watermark_is_kept_free_unless_nothing_runs() -> None:
    engine = make_engine(num_blocks=20, watermark=0.5, max_num_batched_tokens=64)
    engine.scheduler.add(make_request("a", 50, max_tokens=10))
    first = engine.schedule()
    engine.end_step()
    engine.scheduler.add(make_request("b", 12, max_tokens=1, arrival_time=1))
    second = engine.schedule()
    engine.end_step()
    engine.run()

    assert first is not None
    assert second is not None
    assert len(first.new_requests) == 1
    assert second.new_requests == []
    assert engine.finish_reason("b") == "length"


# --- whoever read what a row at fault wrote ---


def test_reader_of_a_row_at_fault_starts_over_and_its_step_is_ignored() -> None:
    engine = make_engine(3, max_steps_in_flight=3, max_num_batched_tokens=64)
    prompt = list(range(17))
    engine.scheduler.add(make_request("writer", prompt, max_tokens=9))
    engine.device.fault_rows = {"writer"}
    engine.schedule()
    engine.scheduler.add(make_request("reader", prompt, max_tokens=4, arrival_time=1))
    engine.schedule()
    engine.schedule()

    engine.end_step()
    engine.end_step()

    assert engine.tokens("reader") == []
    engine.run()
    assert engine.tokens("reader") == [token_at("reader", position) for position in range(17, 21)]
    resumed = [new for step in engine.steps[3:] for new in step.new_requests]
    assert [(new.request_id, new.num_computed_tokens) for new in resumed] == [("reader", 0)]
