"""Texts of many kinds, to hold tokenizers and detokenizers to."""

import random

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces before, and after  ",
    "tabs\tand\nnewlines\r\n\r\n\n   mixed \t\n",
    "it's they'll WE'RE I'd you've can't O'Neill '",
    "0 1 12 123 1234567890 3.14159 1,000,000 0x7fff ٣٤٥ ½ ²³",
    "naïve café Straße Ελληνικά русский עברית العربية हिन्दी ไทย",
    "日本語のテキストと中文字符和한국어 텍스트",
    "😀👍🏽👨‍👩‍👧‍👦🇫🇷 ❤️ ✌🏿",
    "e\u0301 vs \u00e9; \u1e9b\u0323; A\u030a",
    "zero\u200bwidth\u200djoiner\ufeffbom\u00a0nbsp\u3000ideographic",
    "def f(x: int) -> str:\n    return f'{x!r}' if x else \"\"\n\n\nclass A:\n\tpass\n",
    'for (int i = 0; i < n; ++i) { a[i] <<= 2; } // done\n#include <vector>\n{"k": [1, null]}',
    "https://example.org/a?b=c&d=%20#frag user@example.org C:\\temp\\x",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|im_start|> <|not_a_token|>",
    "<b>bold</b> &amp; **markdown** _under_ ~~strike~~ `code` $x^2_i$",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---***###@@@$$$%%%^^^&&&((()))",
    "MiXeD CaSe WORDS and_snake_case andCamelCase and-kebab-case",
    "\x00\x01\x1f control \x7f characters \x85 too",
    "\U00010348\U0001d54f\U000e0001 beyond the first plane",
]

_ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    " \t\n\r",
    ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
    "éüñßøæœÅŁđ",
    "日本語中文字符한국어",
    "😀👍🏽❤️🇫🇷",
    "\u200b\u200d\u0301\u00a0\u3000",
]


def random_text(generator: random.Random, length: int = 60) -> str:
    """Return a text of runs from different alphabets."""
    pieces = []
    while sum(map(len, pieces)) < length:
        alphabet = generator.choice(_ALPHABETS)
        pieces.append("".join(generator.choices(alphabet, k=generator.randint(1, 8))))
        if generator.random() < 0.4:
            pieces.append(" " * generator.randint(1, 3))
    return "".join(pieces)
