"""Holds greedy output to transformers in float32, one forward pass a sequence.

If the reference's most likely token at each output position is the token that came, then greedy
decoding by the reference gives the same text, by induction. Where it is not, the two must be so
close that either is right.
"""

from collections.abc import Sequence

import torch
import transformers

#: The reference's two best logits may be swapped when they lie closer than this.
CLOSE = 1e-4


class GreedyReference:
    """A float32 transformers model that judges sequences; equal ones are judged once."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._model = model.eval()
        self._judged: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}

    def check(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Assert that `output` is greedy behind `prompt`; return how many positions were close."""
        key = (tuple(prompt), tuple(output))
        if key not in self._judged:
            self._judged[key] = self._check(list(prompt), list(output))
        return self._judged[key]

    def check_equal(
        self, prompt: Sequence[int], output: Sequence[int], other: Sequence[int]
    ) -> None:
        """Assert that two greedy outputs are equal, or part where the two best logits are close."""
        if list(output) == list(other):
            return
        assert len(output) == len(other), "one output is longer than the other"
        num_close = self.check(prompt, output) + self.check(prompt, other)
        assert num_close, "outputs differ although no position was close"

    def _check(self, prompt: list[int], output: list[int]) -> int:
        assert output, "there is no output"
        with torch.inference_mode():
            ids = torch.tensor([prompt + output[:-1]])
            logits = self._model(ids).logits[0, len(prompt) - 1 :].float()
        num_close = 0
        for position, token in enumerate(output):
            best = int(logits[position].argmax())
            if best == token:
                continue
            gap = float(logits[position, best] - logits[position, token])
            assert gap < CLOSE, (
                f"output token {position} is {token}; the reference takes {best}, whose logit is "
                f"{gap:.2e} higher"
            )
            num_close += 1
        return num_close


PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "Q: What is the boiling point of water at sea level?\nA:",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of robotics are:\n1.",
    "Hello",
    "In 1969, the first human being to walk on the Moon",
    "SELECT name, age FROM users WHERE",
    "To make a good cup of tea, first",
    "Die Hauptstadt von Deutschland ist",
    "List of the planets of the solar system, from the nearest to the Sun:",
    "import numpy as np\n\n# Multiply two matrices\n",
    "The quick brown fox jumps over the lazy dog. The lazy dog",
    "Photosynthesis is the process by which",
    "A haiku about autumn:\n",
    "“Where are you going?” she asked. “",
    "The difference between a virus and a bacterium is that",
    "Shakespeare wrote many plays, among them Hamlet, Macbeth, Othello and",
    "x",
    "The following is a conversation between a teacher and a pupil about the history of ancient "
    "Rome, its kings, its republic and its emperors, and how it came to rule the lands around the "
    "Mediterranean Sea.\nPupil: Who founded Rome?\nTeacher:",
    "The following is a conversation between a teacher and a pupil about the history of ancient "
    "Rome, its kings, its republic and its emperors, and how it came to rule the lands around the "
    "Mediterranean Sea.\nPupil: Who was Caesar?\nTeacher:",
    "The following is a conversation between a teacher and a pupil about the history of ancient "
    "Rome, its kings, its republic and its emperors, and how it came to rule the lands around the "
    "Mediterranean Sea.\nPupil: Why did it fall?\nTeacher:",
]
