"""The steps that a runner takes before it is ready, so that the first request does not wait."""

from collections.abc import Iterator

from pegboard.api.messages import NewRequest, SchedulerOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.config.engine import EngineConfig

__all__ = ["warm_up_steps"]

_PROMPT_TOKENS = 8


def warm_up_steps(config: EngineConfig, num_groups: int) -> Iterator[SchedulerOutput]:
    """Yield a prefill, a random draw, a greedy decode, and a step that clears the batch.

    They write the null block only, which nobody reads, and take ids below zero.

    Args:
        config: for the limits.
        num_groups: KV groups.
    """
    limits = (
        config.cache.block_size - 2,
        config.scheduler.max_num_batched_tokens,
        config.model.max_model_len - 2,
    )
    length = min(_PROMPT_TOKENS, *limits)
    if length < 1:
        return
    for index, params in enumerate((SamplingParams(seed=0), SamplingParams(temperature=0.0))):
        request = NewRequest(
            request_id="warm-up",
            row=0,
            token_ids=[0] * length,
            num_prompt_tokens=length,
            num_computed_tokens=0,
            sampling=params,
            block_ids=[[0] for _ in range(num_groups)],
        )
        yield SchedulerOutput(
            step_id=-4 + 2 * index,
            new_requests=[request],
            rows=[0],
            num_scheduled_tokens=[length],
            total_num_scheduled_tokens=length,
        )
        yield SchedulerOutput(
            step_id=-3 + 2 * index,
            rows=[0],
            num_scheduled_tokens=[1],
            total_num_scheduled_tokens=1,
        )
    yield SchedulerOutput(step_id=-1, finished_rows=[0])
