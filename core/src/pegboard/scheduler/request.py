"""A request as the scheduler sees it: its tokens, how far they are computed, what it holds."""

from enum import Enum

from pegboard.api.messages import EngineCoreRequest, RequestEvent, TokenLogprobs
from pegboard.kv.block_hash import HashExtras
from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.stopping import StopRules

__all__ = ["Report", "Request", "RequestStatus"]

NO_ROW = -1


class RequestStatus(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Report:
    """What the front end has yet to hear of a request, and what it heard already.

    Attributes:
        num_cached_tokens: prefix hits of the first admission.
        events: since the last output.
        is_due: whether the next output must carry anything of this.
    """

    __slots__ = ("_num_prompt_logprobs_seen", "_num_prompt_logprobs_sent", "events", "is_due",
                 "num_cached_tokens")  # fmt: skip

    def __init__(self) -> None:
        self.num_cached_tokens = 0
        self.events: list[RequestEvent] = []
        self.is_due = False
        self._num_prompt_logprobs_seen = 0
        self._num_prompt_logprobs_sent = 0

    def add(self, event: RequestEvent) -> None:
        """Note an event for the next output."""
        self.events.append(event)
        self.is_due = True

    def take_events(self) -> list[RequestEvent]:
        """Return the events, which are then told."""
        events = self.events
        self.events = []
        self.is_due = False
        return events

    def restart_prompt(self) -> None:
        """The prompt is computed anew; what was sent of its logprobs is not sent again."""
        self._num_prompt_logprobs_seen = 0

    def new_prompt_logprobs(self, entries: list[TokenLogprobs]) -> list[TokenLogprobs]:
        """Return the entries that were not sent before; they count as sent."""
        first = self._num_prompt_logprobs_seen
        self._num_prompt_logprobs_seen = first + len(entries)
        skip = max(0, self._num_prompt_logprobs_sent - first)
        self._num_prompt_logprobs_sent = max(
            self._num_prompt_logprobs_sent, self._num_prompt_logprobs_seen
        )
        return entries[skip:]


class Request:
    """One sequence. `num_computed <= target`, and the step that reaches `target` samples.

    Attributes:
        source: as it came.
        request_id, priority, arrival_time, num_prompt_tokens: what a policy may look at.
        sort_key: the policy's, made unique by the order of arrival in the scheduler.
        token_ids: prompt and known output.
        target: known tokens and those that steps in flight will have sampled.
        num_computed: tokens whose KV exists once all steps in flight have ended.
        num_confirmed: tokens whose KV exists now.
        drafts: proposals to verify in the next step.
        last_step: the last step that has tokens of it; -1 for none.
        row: its index in the persistent batch, or -1.
        num_passed_over: later requests that were admitted before it because it did not fit.
    """

    __slots__ = (
        "arrival_time",
        "drafts",
        "kv",
        "last_step",
        "num_computed",
        "num_confirmed",
        "num_passed_over",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "report",
        "request_id",
        "row",
        "sort_key",
        "source",
        "status",
        "stop",
        "target",
        "token_ids",
    )

    def __init__(self, source: EngineCoreRequest, kv: KVCacheManager, *, max_len: int) -> None:
        params = source.sampling
        self.source = source
        self.request_id = source.request_id
        self.priority = source.priority
        self.arrival_time = source.arrival_time
        self.num_prompt_tokens = len(source.prompt_token_ids)
        self.sort_key: tuple[float, ...] = ()
        self.token_ids = list(source.prompt_token_ids)
        self.stop = StopRules(
            params,
            source.eos_token_ids,
            num_prompt_tokens=self.num_prompt_tokens,
            max_len=max_len,
        )
        extras = HashExtras(cache_salt=source.cache_salt, lora=source.lora, media=source.media)
        wants_prompt_logprobs = (
            params.prompt_logprobs is not None or params.prompt_logprob_token_ids is not None
        )
        self.kv = kv.new_request(
            extras, can_read=not (wants_prompt_logprobs or params.skip_reading_prefix_cache)
        )
        self.report = Report()
        self.status = RequestStatus.WAITING
        self.target = self.num_prompt_tokens
        self.num_computed = 0
        self.num_confirmed = 0
        self.drafts: list[int] = []
        self.last_step = -1
        self.row = NO_ROW
        self.num_passed_over = 0
        self.num_preemptions = 0

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, tokens={len(self.token_ids)}, "
            f"target={self.target}, computed={self.num_computed}, row={self.row})"
        )
