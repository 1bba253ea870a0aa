"""When a sequence ends: end-of-sequence, stop token, length, repetition, in this order."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from pegboard.api.messages import FinishReason
from pegboard.api.sampling_params import RepetitionDetection, SamplingParams

__all__ = ["Finish", "StopRules", "repeats"]


class Finish(NamedTuple):
    """Why a sequence ended; `stop_token_id` is set for stop tokens only."""

    reason: FinishReason
    stop_token_id: int | None = None


class StopRules:
    """One request's rules, as positions in its sequence of prompt and output.

    Attributes:
        max_total: tokens at which the sequence ends.
        token_ids: all ids that may end it.
        always_checks: whether `check` must see every token, not just those ids.
    """

    __slots__ = (
        "_eos",
        "_min_total",
        "_num_prompt_tokens",
        "_repetition",
        "always_checks",
        "max_total",
        "token_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        *,
        num_prompt_tokens: int,
        max_len: int,
    ) -> None:
        max_tokens = sys.maxsize if params.max_tokens is None else params.max_tokens
        self.max_total = min(max_len, num_prompt_tokens + max_tokens)
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self.token_ids = self._eos.union(params.stop_token_ids)
        self._num_prompt_tokens = num_prompt_tokens
        self._min_total = num_prompt_tokens + params.min_tokens
        self._repetition = params.repetition_detection
        self.always_checks = self._repetition is not None

    def check(self, token_ids: Sequence[int]) -> Finish | None:
        """Return why the sequence ends with its last token, or None if it goes on.

        A token that is among the first `min_tokens` of the output ends nothing but by length.
        """
        length = len(token_ids)
        if length > self._min_total:
            token = token_ids[-1]
            if token in self._eos:
                return Finish("stop")
            if token in self.token_ids:
                return Finish("stop", token)
        if length >= self.max_total:
            return Finish("length")
        if self._repetition is not None and length >= self._min_total:
            num_output_tokens = length - self._num_prompt_tokens
            if repeats(token_ids, num_output_tokens, self._repetition):
                return Finish("repetition")
        return None


def repeats(token_ids: Sequence[int], num_tokens: int, rule: RepetitionDetection) -> bool:
    """Whether the last tokens repeat a pattern as often as `rule` says.

    Args:
        token_ids: the sequence.
        num_tokens: how many of its last tokens count.
        rule: the pattern's sizes and the count.
    """
    end = len(token_ids)
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        needed = size * rule.min_count
        if needed > num_tokens:
            return False
        # Equal to itself shifted by one pattern: compare from the end, which differs soonest.
        if all(
            token_ids[index] == token_ids[index - size]
            for index in range(end - 1, end - 1 - (needed - size), -1)
        ):
            return True
    return False
