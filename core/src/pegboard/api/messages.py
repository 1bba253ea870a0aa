"""Everything that crosses a seam between processes, as msgspec structs.

    front end --EngineCoreRequest--> engine core --SchedulerOutput--> workers
    front end <--EngineCoreOutputs-- engine core <--StepOutput------- workers

Tensors do not travel here; large arrays travel as raw buffers beside the message. Nothing is
pickled. A *row* is a request's index in the persistent batch: the scheduler gives it out when it
admits a request and takes it back when the request finishes or is preempted, so that both sides
speak of a running request by one small integer.
"""

from typing import Any, Literal

import msgspec

from pegboard.api.sampling_params import SamplingParams

__all__ = [
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "EngineCoreRequest",
    "FinishReason",
    "FinishedRequestStats",
    "IterationStats",
    "LoraRequest",
    "MediaInput",
    "NewRequest",
    "RequestEvent",
    "SchedulerOutput",
    "SchedulerStats",
    "StepOutput",
    "TokenLogprobs",
    "UtilityCall",
    "UtilityResult",
]

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


class LoraRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that a request runs with.

    Attributes:
        name: what clients call it.
        lora_id: at least 1; 0 means the base model.
        path: folder of the adapter's weights.
    """

    name: str
    lora_id: int
    path: str


class MediaInput(msgspec.Struct, frozen=True, kw_only=True):
    """One processed media item of a prompt.

    Attributes:
        modality: "image", "audio" or "video".
        content_hash: computed by the engine from the content; keys the encoder cache.
        offset, length: the prompt positions that its embeddings replace.
        tensors: name to (dtype, shape, raw little-endian bytes).
    """

    modality: str
    content_hash: str
    offset: int
    length: int
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}


class EngineCoreRequest(msgspec.Struct, kw_only=True):
    """A checked, tokenised request on its way to the engine core.

    Attributes:
        request_id: unique in the engine (front ends add random characters to a client's id).
        prompt_token_ids: at least one id, all inside the vocabulary.
        sampling: parameters of one sequence (n is 1, seed is set, max_tokens is set).
        eos_token_ids: ids that end the sequence unless `sampling.ignore_eos`.
        arrival_time: seconds since the epoch.
        priority: smaller goes first under the "priority" policy.
        cache_salt: prefix blocks are shared only between equal salts.
        media, lora: what the prompt carries beside tokens.
        client_index: which front end gets the outputs.
        trace_headers: W3C trace context, when tracing.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: list[int] = []
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    media: list[MediaInput] = []
    lora: LoraRequest | None = None
    client_index: int = 0
    trace_headers: dict[str, str] | None = None


class NewRequest(msgspec.Struct, kw_only=True):
    """A request that enters the persistent batch, whole; sent once, again after preemption.

    Attributes:
        request_id: for logs and faults; rows are used otherwise.
        row: its index in the persistent batch from now on.
        token_ids: the prompt, and after preemption the output so far.
        num_prompt_tokens: how many of `token_ids` are prompt.
        num_computed_tokens: those whose KV already exists (prefix hits).
        sampling: how it is sampled.
        eos_token_ids: masked while fewer than `sampling.min_tokens` are out.
        block_ids: per KV group, the block table so far.
        media, lora_id: what the prompt carries beside tokens; 0 is the base model.
    """

    request_id: str
    row: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    sampling: SamplingParams
    eos_token_ids: list[int] = []
    block_ids: list[list[int]]
    media: list[MediaInput] = []
    lora_id: int = 0


class SchedulerOutput(msgspec.Struct, kw_only=True):
    """What one step does. New requests come whole, running ones as diffs.

    The runner advances a row's computed tokens by its scheduled tokens (less rejected drafts); a
    row samples in a step exactly if the step reaches its last known token, where a token sampled
    by an earlier step in flight counts as known (its value lives on the device).

    The runner applies the fields in this order: `finished_rows`, `preempted_rows`,
    `new_requests`, `new_block_ids`, `blocks_to_zero`, `blocks_to_copy`, then the step itself.

    A row may read blocks that another row writes in the same step (a prefix that both share): in
    each layer, the whole step's keys and values are written before any row reads. After a step
    that raised, rows may be named as finished that the runner never saw.

    Attributes:
        step_id: counts up by one; `StepOutput` answers with it.
        new_requests: rows that enter the batch (admitted or resumed).
        resumed_rows: those among them that had been preempted.
        rows: [num_reqs] rows with tokens in this step, in batch order: rows with one token first.
        num_scheduled_tokens: [num_reqs] new tokens a row, drafts included.
        total_num_scheduled_tokens: their sum.
        new_block_ids: row to, per KV group, the block ids appended to its table.
        finished_rows, preempted_rows: rows that leave the batch before this step.
        draft_token_ids: row to the draft tokens verified in this step.
        num_drafts_wanted: most tokens the speculator proposes after this step.
        encoder_inputs: row to the indices of its media to encode in this step.
        freed_encoder_hashes: encoder outputs that may be dropped.
        structured_rows: rows whose sampling waits for a grammar mask.
        blocks_to_zero: blocks that must read as zero before the step (state groups).
        blocks_to_copy: (from, to) block copies before the step (copy on write).
        connector_metadata, ec_connector_metadata: for the worker halves of connectors.
    """

    step_id: int
    new_requests: list[NewRequest] = []
    resumed_rows: list[int] = []
    rows: list[int] = []
    num_scheduled_tokens: list[int] = []
    total_num_scheduled_tokens: int = 0
    new_block_ids: dict[int, list[list[int]]] = {}
    finished_rows: list[int] = []
    preempted_rows: list[int] = []
    draft_token_ids: dict[int, list[int]] = {}
    num_drafts_wanted: int = 0
    encoder_inputs: dict[int, list[int]] = {}
    freed_encoder_hashes: list[str] = []
    structured_rows: list[int] = []
    blocks_to_zero: list[int] = []
    blocks_to_copy: list[tuple[int, int]] = []
    connector_metadata: bytes | None = None
    ec_connector_metadata: bytes | None = None


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position.

    Attributes:
        token_ids: the token itself first, then the reported ones, most likely first.
        logprobs: natural logarithms, aligned with `token_ids`.
        ranks: aligned with `token_ids`; 1 is the most likely of the vocabulary.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class StepOutput(msgspec.Struct, kw_only=True):
    """What a step gave. All lists are aligned with the step's `SchedulerOutput.rows`.

    Attributes:
        step_id: of the `SchedulerOutput`.
        sampled_token_ids: [num_reqs] lists; empty where the row did not sample, several tokens
            where drafts were accepted.
        logprobs: row to one entry a sampled token, for rows that asked.
        prompt_logprobs: row to one entry a prompt position of this chunk that has one: the
            logprobs of the token at position p + 1 for each computed p + 1 < num_prompt_tokens.
        draft_token_ids: row to the speculator's proposals for the next step.
        faults: row to the reason why that request alone fails.
        connector_output, ec_connector_output: from the worker halves of connectors.
    """

    step_id: int
    sampled_token_ids: list[list[int]] = []
    logprobs: dict[int, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    draft_token_ids: dict[int, list[int]] = {}
    faults: dict[int, str] = {}
    connector_output: bytes | None = None
    ec_connector_output: bytes | None = None


class RequestEvent(msgspec.Struct, array_like=True):
    """When something happened to a request in the engine core, seconds since the epoch."""

    kind: Literal["queued", "scheduled", "preempted"]
    time: float


class EngineCoreOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one request got from one step.

    Attributes:
        request_id: the engine's id.
        new_token_ids: may be empty (prompt logprobs or a fault alone).
        logprobs: one entry a new token, where asked for.
        prompt_logprobs: entries for further prompt positions, where asked for.
        finish_reason: None while it runs.
        stop_token_id: the stop token that ended it; None for end-of-sequence tokens.
        error: one line, when the reason is "error".
        num_cached_tokens: prompt tokens that came from the prefix cache.
        events: what happened since the last output.
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    events: list[RequestEvent] = []


class SchedulerStats(msgspec.Struct, kw_only=True):
    """The engine core's state after a step; counters count from the start."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    kv_usage: float = 0.0
    num_free_blocks: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    step_tokens: int = 0
    faults: dict[str, int] = {}


class FinishedRequestStats(msgspec.Struct, kw_only=True):
    """One finished request in numbers; times in seconds, 0 where it never got so far.

    Attributes:
        finish_reason: why it ended.
        e2e_latency_s: arrival to last token, in the front end.
        queued_s: queued to first scheduled.
        prefill_s: first scheduled to first token.
        decode_s: first to last token.
        inference_s: first scheduled to last token.
        num_prompt_tokens, num_cached_tokens, num_generation_tokens: its counts.
        max_tokens, n: as it asked.
        num_preemptions: how often it was preempted.
    """

    finish_reason: FinishReason
    e2e_latency_s: float = 0.0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    inference_s: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    max_tokens: int | None = None
    n: int = 1
    num_preemptions: int = 0


class IterationStats(msgspec.Struct, kw_only=True):
    """What the front end saw in one batch of outputs; times in seconds."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    time_to_first_token_s: list[float] = []
    inter_token_latency_s: list[float] = []
    finished: list[FinishedRequestStats] = []


class EngineCoreOutputs(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message from the engine core to one front end.

    Attributes:
        outputs: of the requests of that front end.
        stats: after the step, to front end 0 only.
        utility_result: the answer to a `UtilityCall`.
        engine_dead: the one line why the engine core stops; nothing follows it.
    """

    outputs: list[EngineCoreOutput] = []
    stats: SchedulerStats | None = None
    utility_result: "UtilityResult | None" = None
    engine_dead: str | None = None


class UtilityCall(msgspec.Struct, kw_only=True):
    """A call of one of the engine core's named utilities (reset_prefix_cache, sleep, …)."""

    call_id: int
    method: str
    args: list[Any] = []
    client_index: int = 0


class UtilityResult(msgspec.Struct, kw_only=True):
    """The answer to a `UtilityCall`: a msgpack value, or one line of error."""

    call_id: int
    value: Any = None
    error: str | None = None
