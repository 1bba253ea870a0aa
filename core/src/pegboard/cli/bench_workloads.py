"""The named workloads, their prompts, and the bounds of every run."""

import random
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LIMITS", "WORKLOADS", "Workload", "make_prompts", "shared_prefix_prompts"]

#: Highest value of each flag.
LIMITS: dict[str, int] = {
    "num_prompts": 2048,
    "input_len": 32_768,
    "output_len": 4096,
    "prefix_len": 32_768,
    "batch_size": 512,
    "num_iters": 100,
    "num_iters_warmup": 100,
    "max_concurrency": 256,
    "num_warmups": 64,
    "rounds": 20,
    "repeats": 20,
    "time_limit": 1200,
    "request_timeout": 1200,
}


class Workload(NamedTuple):
    """What one named workload sends.

    Attributes:
        requests: how many.
        input_len: words of each prompt (of its own part, where a prefix is shared).
        output_len: tokens of each answer.
        concurrency: clients at once; 0 for all at once.
        summary: one line for the help.
    """

    requests: int
    input_len: int
    output_len: int
    concurrency: int
    summary: str

    def describe(self) -> str:
        """Return one line."""
        return f"{self.requests} x ({self.input_len} + {self.output_len}): {self.summary}"


WORKLOADS = {
    "single": Workload(5, 512, 128, 1, "one at a time: time to first token, decode rate"),
    "online": Workload(64, 128, 128, 8, "8 clients, each sends its next when the last ended"),
    "throughput": Workload(64, 128, 128, 0, "all at once"),
    "prefix": Workload(32, 32, 16, 0, "all at once behind one shared prefix, twice"),
    "coldstart": Workload(1, 1, 8, 1, "command to first token, the median of several starts"),
    "memory": Workload(64, 128, 128, 32, "the highest sum of PSS over the server's processes"),
}

# Common words that are one token each in most byte-pair vocabularies when a space precedes them.
_WORD_LIST = (
    "river stone light paper green table music sound winter summer garden window bridge market "
    "letter number second minute hour week month year morning evening north south east west "
    "mountain valley forest field ocean island city town street house room door wall floor "
    "mother father brother sister child friend teacher student doctor king queen army law "
    "money price trade ship train road engine metal gold silver glass wood water fire earth "
    "wind rain snow sun moon star sky bird fish horse dog cat tree leaf flower fruit bread "
    "milk salt sugar color red blue black white yellow brown small large long short high low "
    "hot cold new old young good bad strong weak fast slow early late first last next open "
    "close begin end start stop move turn walk run stand sit speak hear see look find lose "
    "give take bring send make build break hold keep learn teach read write think know feel"
)


def _words(rng: random.Random, count: int) -> str:
    known = _WORD_LIST.split()
    return " ".join(rng.choice(known) for _ in range(count))


def make_prompts(rng: random.Random, count: int, words: int) -> list[str]:
    """Return `count` different prompts of `words` words."""
    return [_words(rng, words) for _ in range(count)]


def shared_prefix_prompts(
    rng: random.Random, count: int, prefix_words: int, own_words: int
) -> Sequence[str]:
    """Return prompts that share their first `prefix_words` words."""
    prefix = _words(rng, prefix_words)
    return [f"{prefix} {_words(rng, own_words)}" for _ in range(count)]
