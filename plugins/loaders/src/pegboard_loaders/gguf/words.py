"""How byte-level tokenizers cut text into words before merging: a table of named rules."""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from pegboard.api.errors import ModelError

__all__ = ["WordRule", "word_rule"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class WordRule:
    """One rule.

    Attributes:
        patterns: regular expressions whose matches become words of their own, one after another.
        split_digits: each digit is a word first.
        normalize_nfc: text is composed (NFC) first.
        ignore_merges: a word that is a token is taken whole, whatever the merges say.
        add_bos: the beginning of sequence is added where the file does not say.
    """

    patterns: tuple[str, ...]
    split_digits: bool = False
    normalize_nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the rule as the tokenizers library runs it, bytes spelt as letters."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.split_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
            for pattern in self.patterns
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_GPT2_RULE = WordRule((_GPT2,))
_DIGITS_RULE = WordRule((_GPT2,), split_digits=True)
_LLAMA3_RULE = WordRule(
    (rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",), ignore_merges=True, add_bos=True
)
_QWEN2_RULE = WordRule((rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}",), normalize_nfc=True)
_DEFAULT_RULE = WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_RULES: dict[str, WordRule] = {
    "default": _DEFAULT_RULE,
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "mpt": _GPT2_RULE,
    "olmo": _GPT2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "command-r": _DIGITS_RULE,
    "codeshell": _DIGITS_RULE,
    "exaone": _DIGITS_RULE,
    "minerva-7b": _DIGITS_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
}


def word_rule(name: str, source: str) -> WordRule:
    """Return the rule that a file names.

    Raises:
        ModelError: no such rule is known; guessing would give wrong tokens silently.
    """
    rule = _RULES.get(name)
    if rule is None:
        raise ModelError(
            f"{source}: tokenizer.ggml.pre is {name!r}, a word rule that is not supported; "
            f"supported are {', '.join(sorted(_RULES))}"
        )
    return rule
