"""An engine client without an engine: bytes are tokens, the answer is a function of the prompt."""

import asyncio
import time
from types import SimpleNamespace

from pegboard.api.engine import EngineHealth, TextPrompt
from pegboard.api.errors import ContextLength, InvalidRequest
from pegboard.api.messages import (
    FinishedRequestStats,
    IterationStats,
    SchedulerStats,
)
from pegboard.api.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from pegboard.api.plugin import ComponentContext
from pegboard.api.renderers import RenderedPrompt

BOS = 256
VOCAB = 300


class ByteTokenizer:
    """One token a byte; id 256 begins a sequence."""

    vocab_size = VOCAB
    special_ids = frozenset((BOS,))
    special_tokens = {"bos_token": "<s>"}

    def encode(self, text, *, add_special_tokens=True):
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, token_ids, *, skip_special_tokens=True, spaces_between_special_tokens=True):
        kept = [t for t in token_ids if t < 256]
        return bytes(kept).decode("utf-8", "replace")

    def token(self, token_id):
        return chr(token_id) if token_id < 256 else None

    def token_id(self, token):
        return ord(token) if len(token) == 1 else None

    def max_chars_per_token(self):
        return 4


class LineRenderer:
    """One line a message."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.options = None

    def render_chat(self, messages, options):
        self.options = options
        if options.chat_template == "{{ broken":
            raise InvalidRequest("the chat template does not compile", param="chat_template")
        lines = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list):
                content = "".join(part.get("text", "") for part in content)
            lines.append(f"{message['role']}: {content}")
        text = "\n".join(lines) + ("\nassistant: " if options.add_generation_prompt else "")
        ids = self.tokenizer.encode(text, add_special_tokens=options.add_special_tokens)
        return RenderedPrompt(token_ids=ids, text=text)


def make_config(max_model_len=512, served=("fake-model", "alias"), policy="fcfs"):
    """Return what satisfies EngineConfigView."""
    return SimpleNamespace(
        model=SimpleNamespace(
            model="/models/fake",
            served_model_name=list(served),
            description=SimpleNamespace(vocab_size=VOCAB),
            dtype="float32",
            max_model_len=max_model_len,
            max_logprobs=20,
            seed=0,
            default_sampling={},
        ),
        cache=SimpleNamespace(block_size=16, kv_cache_dtype="float32", enable_prefix_caching=True),
        scheduler=SimpleNamespace(
            max_num_batched_tokens=512, max_num_seqs=8, scheduling_policy=policy
        ),
        parallel=SimpleNamespace(tensor_parallel_size=1),
        platform="fake",
    )


class FakeEngineClient:
    """Satisfies EngineClient.

    Attributes:
        reply: prompt text to the whole answer; upper case of it unless a test sets another.
        gate: outputs wait for it; set unless a test clears it.
        token_delay_s: between two tokens.
        started, aborted: request ids, as they come.
        calls: (prompt, params, keywords) of each generate.
        fail_after, failure: raise `failure` after so many tokens.
    """

    def __init__(self, **config):
        self.config = make_config(**config)
        self.tokenizer = ByteTokenizer()
        self.renderer = LineRenderer(self.tokenizer)
        self.stats = SchedulerStats()
        self.stat_loggers = []
        self.reply = str.upper
        self.gate = asyncio.Event()
        self.gate.set()
        self.token_delay_s = 0.0
        self.started = []
        self.aborted = []
        self.finished = []
        self.calls = []
        self.fail_after = None
        self.failure = None
        self.state = EngineHealth(live=True, ready=True)
        self.abort_requested = set()

    def health(self):
        return self.state

    def explain(self):
        return {"platform": "fake", "choices": []}

    async def abort(self, request_ids):
        self.abort_requested.update(request_ids)
        self.gate.set()

    async def call(self, method, *args):
        return None

    async def generate(
        self, prompt, params, request_id, *, priority=0, lora=None, trace_headers=None
    ):
        self.calls.append((prompt, params, {"priority": priority, "trace": trace_headers}))
        ids, text = self._prompt(prompt)
        self.started.append(request_id)
        done = False
        try:
            async for output in self._outputs(ids, text, params, request_id):
                done = output.finished
                yield output
        except Exception:
            done = True
            raise
        finally:
            (self.finished if done else self.aborted).append(request_id)

    def _prompt(self, prompt):
        if isinstance(prompt, TextPrompt):
            text = prompt.prompt
            ids = self.tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens)
        else:
            ids = prompt.prompt_token_ids
            text = prompt.prompt or self.tokenizer.decode(ids)
        if not ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        longest = self.config.model.max_model_len
        if len(ids) >= longest:
            raise ContextLength(f"the prompt has {len(ids)} tokens; the model takes {longest}")
        return ids, text

    def _answer(self, ids, text, params):
        room = self.config.model.max_model_len - len(ids)
        limit = min(room, params.max_tokens or room)
        whole = self.reply(text)
        reason, stop = "stop", None
        for mark in params.stop:
            if mark in whole:
                whole, stop = whole[: whole.index(mark)], mark
        pieces = list(whole)[:limit]
        if len(pieces) < len(whole):
            reason, stop = "length", None
        return pieces, reason, stop

    def _position(self, token_id, params, count):
        others = [t for t in range(97, 97 + count) if t != token_id][:count]
        entries = {token_id: Logprob(logprob=-0.5, rank=1, decoded_token=chr(token_id))}
        for rank, other in enumerate(others, 2):
            entries[other] = Logprob(logprob=-0.5 * rank, rank=rank, decoded_token=chr(other))
        return entries

    async def _outputs(self, ids, text, params, request_id):
        arrival = time.time()
        pieces, reason, stop = self._answer(ids, text, params)
        delta = params.output_kind == "delta"
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            count = params.prompt_logprobs
            prompt_logprobs = [None, *(self._position(t, params, count) for t in ids[1:])]
            for position in range(min(params.prompt_logprob_start or 0, len(ids))):
                prompt_logprobs[position] = None
        total = max(1, len(pieces))
        sums = [CompletionOutput(index=i, token_ids=[]) for i in range(params.n)]
        for number in range(total):
            await self.gate.wait()
            await asyncio.sleep(self.token_delay_s)
            if self.fail_after is not None and number >= self.fail_after:
                raise self.failure
            piece = pieces[number] if pieces else ""
            last = number == total - 1
            aborted = request_id in self.abort_requested
            fresh = []
            for sum_ in sums:
                one = self._one(sum_, piece, params)
                if last or aborted:
                    one.finish_reason = "abort" if aborted else reason
                    one.stop_reason = None if aborted else stop
                fresh.append(one if delta else sum_)
                if not delta:
                    sum_.finish_reason, sum_.stop_reason = one.finish_reason, one.stop_reason
            if delta or last or aborted:
                yield RequestOutput(
                    request_id=request_id,
                    prompt=text,
                    prompt_token_ids=ids,
                    prompt_logprobs=prompt_logprobs,
                    outputs=fresh,
                    finished=last or aborted,
                    num_cached_tokens=3,
                    metrics=RequestMetrics(
                        arrival_time=arrival,
                        first_token_ts=arrival + 0.01,
                        last_token_ts=arrival + 0.02,
                        num_generation_tokens=number + 1,
                    ),
                )
            if aborted:
                return

    def _one(self, sum_, piece, params):
        ids = [ord(piece) % 256] if piece else []
        logprobs = None
        count = params.logprobs
        if params.logprob_token_ids:
            count = len(params.logprob_token_ids)
        if count is not None:
            logprobs = [self._position(t, params, count) for t in ids]
            sum_.logprobs = [*(sum_.logprobs or []), *logprobs]
        if params.output_kind != "delta":
            sum_.text += piece
            sum_.token_ids += ids
        return CompletionOutput(index=sum_.index, text=piece, token_ids=ids, logprobs=logprobs)


def with_prometheus(client):
    """Give the client the server's stat logger and some numbers; return the client."""
    from pegboard_server.engine_metrics import PrometheusStatLogger

    logger = PrometheusStatLogger(ComponentContext(plugin="server", config=client.config))
    logger.record(
        SchedulerStats(num_running=2, num_steps=1, step_tokens=9, faults={"request": 1}),
        IterationStats(
            num_prompt_tokens=7,
            num_generation_tokens=3,
            time_to_first_token_s=[0.03],
            inter_token_latency_s=[0.02, 0.3],
            finished=[FinishedRequestStats(finish_reason="stop", e2e_latency_s=0.4)],
        ),
    )
    client.stat_loggers = [logger]
    client.stats = SchedulerStats(num_running=2, num_steps=1, step_tokens=9, kv_usage=0.25)
    return client
