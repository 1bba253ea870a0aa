"""One completion as its client sees it: text, ids and logprobs that wait to be given out."""

from collections.abc import Sequence

from pegboard.api.messages import EngineCoreOutput, FinishReason, TokenLogprobs
from pegboard.api.outputs import CompletionOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.api.tokenizers import Tokenizer
from pegboard.engine.detokenizer import IncrementalDetokenizer
from pegboard.engine.logprobs import FlatLogprobs, LogprobsDecoder
from pegboard.engine.stop_strings import StopMatch, StopStrings

__all__ = ["SequenceState"]


class SequenceState:
    """Grows with each output of the engine core; `take` hands out what was asked for.

    Attributes:
        index: of the completion.
        num_tokens: output tokens so far.
        last_token_ts: when the newest came; kept by the output processor.
        finish_reason, stop_reason: once it has ended.
    """

    __slots__ = (
        "_cumulative_logprob",
        "_decoder",
        "_deferred",
        "_detokenizer",
        "_is_delta",
        "_logprobs",
        "_params",
        "_pending_ids",
        "_stops",
        "_text",
        "_token_ids",
        "finish_reason",
        "index",
        "last_token_ts",
        "num_taken",
        "num_tokens",
        "stop_reason",
    )

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        tokenizer: Tokenizer,
        decoder: LogprobsDecoder,
    ) -> None:
        """Start empty, behind a prompt."""
        self.index = index
        self._params = params
        self._decoder = decoder
        self._stops = StopStrings(params.stop, include_in_output=params.include_stop_str_in_output)
        self._detokenizer = (
            IncrementalDetokenizer(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
            if params.detokenize
            else None
        )
        self._is_delta = params.output_kind == "delta"
        #: Nobody looks at the text before the end: decode once, then.
        self._deferred = params.output_kind == "final" and not params.stop
        self._pending_ids: list[int] = []
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs = self._no_logprobs()
        self._cumulative_logprob = 0.0
        self.num_tokens = 0
        self.num_taken = 0
        self.last_token_ts = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    @property
    def _wants_logprobs(self) -> bool:
        return self._params.logprobs is not None or self._params.logprob_token_ids is not None

    def _no_logprobs(self) -> list | FlatLogprobs:
        return FlatLogprobs() if self._params.flat_logprobs else []

    def accept(self, output: EngineCoreOutput) -> None:
        """Take one step's tokens; a stop string among them ends the sequence here."""
        ids = output.new_token_ids
        reason = output.finish_reason
        if reason is not None:
            self.finish_reason = reason
            self.stop_reason = output.stop_token_id
        num_text = len(ids)
        if reason == "stop" and ids and not self._params.include_stop_str_in_output:
            num_text -= 1  # the stop token is no text
        kept = len(ids)
        if self._detokenizer is not None:
            kept = self._accept_text(ids[:num_text], ended=reason is not None, whole=len(ids))
        self.num_tokens += kept
        self._token_ids += ids[:kept] if kept < len(ids) else ids
        if self._wants_logprobs:
            self._accept_logprobs(output.logprobs[:kept])

    def _accept_text(self, ids: list[int], *, ended: bool, whole: int) -> int:
        """Add the text of `ids`; return how many of the step's `whole` ids are kept."""
        detokenizer = self._detokenizer
        assert detokenizer is not None
        if not self._params.stop:
            if self._deferred:
                self._pending_ids += ids
                if ended:
                    self._text = detokenizer.push(self._pending_ids) + detokenizer.finish()
                    self._pending_ids = []
                return whole
            self._text += detokenizer.push(ids)
            if ended:
                self._text += detokenizer.finish()
            return whole
        for position, token_id in enumerate(ids, start=1):
            may_stop = self.num_tokens + position > self._params.min_tokens
            if self._add(detokenizer.push((token_id,)), may_stop=may_stop):
                return position
        if ended and not self._add(detokenizer.finish(), may_stop=True):
            self._text += self._stops.finish()
        return whole

    def _add(self, text: str, *, may_stop: bool) -> bool:
        """Add text that may hold a stop string; return whether the sequence has ended."""
        certain = self._stops.push(text, may_stop=may_stop)
        if isinstance(certain, StopMatch):
            self._text += certain.text
            self.finish_reason = "stop"
            self.stop_reason = certain.stop
            return True
        self._text += certain
        return False

    def _accept_logprobs(self, entries: list[TokenLogprobs]) -> None:
        for entry in entries:
            self._cumulative_logprob += entry.logprobs[0]
            if isinstance(self._logprobs, FlatLogprobs):
                self._logprobs.append(entry, self._decoder.texts(entry))
            else:
                self._logprobs.append(self._decoder.position(entry))

    def is_due(self, stream_interval: int) -> bool:
        """Return whether a stream gets an output now: first, last, or enough new tokens."""
        if self.finish_reason is not None or self.num_taken == 0:
            return True
        return self.num_tokens - self.num_taken >= stream_interval

    def take(self) -> CompletionOutput:
        """Return the completion so far, or what is new of it where deltas were asked for."""
        output = CompletionOutput(
            index=self.index,
            text=self._text,
            token_ids=self._token_ids if self._is_delta else list(self._token_ids),
            cumulative_logprob=self._cumulative_logprob if self._wants_logprobs else None,
            logprobs=self._logprobs if self._wants_logprobs else None,  # pyright: ignore[reportArgumentType] -- a sequence either way
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        self.num_taken = self.num_tokens
        if self._is_delta:
            self._text = ""
            self._token_ids = []
            self._logprobs = self._no_logprobs()
        return output
