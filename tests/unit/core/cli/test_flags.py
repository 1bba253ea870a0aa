import msgspec
import pytest

from pegboard.api.errors import ConfigError
from pegboard.cli.flags import add_engine_flags, add_struct_flags, engine_options, struct_options
from pegboard.cli.parser import CommandParser, UsageError
from pegboard.config.engine import EngineOptions
from pegboard.config.env import read_environment
from pegboard.config.fields import engine_groups


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: list[str] = []
    extra: dict[str, int] = {}
    seed: int = 1
    quiet: bool = False


@pytest.fixture
def environment():
    env = read_environment()
    return msgspec.structs.replace(env, plugins=None, config=None, log_level=None, api_key=None)


def parser() -> CommandParser:
    made = CommandParser("platform serve")
    add_engine_flags(made)
    add_struct_flags(made, Options, "Front end", "front")
    return made


def options(environment, *argv: str) -> EngineOptions:
    return engine_options(parser().parse_args(argv), environment)


def front(environment, *argv: str, table: dict | None = None) -> Options:
    args = parser().parse_args(argv)
    table = engine_options(args, environment).plugins.options.get("front", {}) | (table or {})
    return msgspec.convert(struct_options(args, Options, "front", table), Options)


TABLE = [
    ("m", lambda o: o.model.model == "m"),
    ("--model m", lambda o: o.model.model == "m"),
    ("m --model m", lambda o: o.model.model == "m"),
    ("--max-model-len 8k", lambda o: o.model.max_model_len == 8000),
    ("--max_model_len 8K", lambda o: o.model.max_model_len == 8192),
    ("--max_model_len=8K", lambda o: o.model.max_model_len == 8192),
    ("--seed -3", lambda o: o.model.seed == -3),
    ("-tp 3", lambda o: o.parallel.tensor_parallel_size == 3),
    ("--tensor-parallel-size 3", lambda o: o.parallel.tensor_parallel_size == 3),
    ("--no-enable-prefix-caching", lambda o: not o.cache.enable_prefix_caching),
    ("--no_enable_prefix_caching", lambda o: not o.cache.enable_prefix_caching),
    ("--device-memory-utilization 0.5", lambda o: o.cache.gpu_memory_utilization == 0.5),
    ("--kv-cache-memory-bytes 1G", lambda o: o.cache.kv_cache_memory_bytes == 2**30),
    ("--served-model-name a,b", lambda o: o.model.served_model_name == ["a", "b"]),
    (
        "--served-model-name a --served-model-name b",
        lambda o: o.model.served_model_name == ["a", "b"],
    ),
    ('--hf-overrides {"a":{"b":1}}', lambda o: o.model.hf_overrides == {"a": {"b": 1}}),
    ("--hf-overrides.a.b 1", lambda o: o.model.hf_overrides == {"a": {"b": 1}}),
    ("--hf_overrides.a_b=x", lambda o: o.model.hf_overrides == {"a_b": "x"}),
    ("--model.seed 7", lambda o: o.model.seed == 7),
    ("--scheduler.max_num_seqs 7", lambda o: o.scheduler.max_num_seqs == 7),
    ("-ac.attention_backend X", lambda o: o.attention.attention_backend == "X"),
    ("--attention-config.attention_backend=X", lambda o: o.attention.attention_backend == "X"),
    ('-ac {"attention_backend":"X"}', lambda o: o.attention.attention_backend == "X"),
    ("--ops.rms_norm a,reference", lambda o: o.ops.priority == {"rms_norm": ["a", "reference"]}),
    ("--platform board", lambda o: o.parallel.platform == "board"),
    ("--plugins a,-b --plugins c", lambda o: o.plugins.enabled == ("server", "a", "c")),
    ("--plugins -b", lambda o: o.plugins.disabled == ["b"]),
    ("--plugins=-b", lambda o: o.plugins.disabled == ["b"]),
    ("--only-plugins a,b", lambda o: o.plugins.only == ["a", "b"]),
    ("--plugin-config a.b=c=d", lambda o: o.plugins.options == {"a": {"b": "c=d"}}),
    ("--plugins-on-error warn", lambda o: o.plugins.on_error == "warn"),
    ("--log-level debug", lambda o: o.observability.log_level == "debug"),
]


@pytest.mark.parametrize(("words", "holds"), TABLE, ids=[words for words, _ in TABLE])
def test_flags_reach_their_option(environment, words, holds):
    assert holds(options(environment, *words.split()))


def test_nothing_given_is_the_defaults(environment):
    assert options(environment) == EngineOptions()


def test_every_option_has_its_flag():
    known = {flag for action in parser()._actions for flag in action.option_strings}
    for group in engine_groups():
        for field in group.fields:
            if group.name != "plugins":
                assert set(field.flags) <= known, field.path


FRONT = [
    ("--port 8k", {"port": 8000}),
    ("--api-key a,b --api_key c", {"api_key": ["a", "b", "c"]}),
    ("--quiet", {"quiet": True}),
    ('--extra {"a":1}', {"extra": {"a": 1}}),
    ("--extra.a 1", {"extra": {"a": 1}}),
    ("--plugin-config front.port=9", {"port": 9}),
    ("--plugin-config front.port=9 --port 10", {"port": 10}),
    ("--plugin-config front.host=10", {"host": "10"}),
]


@pytest.mark.parametrize(("words", "expected"), FRONT, ids=[words for words, _ in FRONT])
def test_front_ends_options_are_plain_flags(environment, words, expected):
    filled = front(environment, *words.split())
    assert filled == msgspec.structs.replace(Options(), **expected)


def test_plain_flag_wins_over_the_file_and_leaves_the_rest(environment):
    filled = front(environment, "--port", "1", table={"port": 2, "host": "h"})
    assert (filled.port, filled.host) == (1, "h")


def test_engines_flag_wins_a_name_that_the_front_end_has_too(environment):
    assert options(environment, "--seed", "4").model.seed == 4
    assert front(environment, "--seed", "4").seed == 1
    assert front(environment, "--plugin-config", "front.seed=4").seed == 4


def test_wrong_front_end_flag_is_named(environment):
    with pytest.raises(ConfigError) as caught:
        front(environment, "--port", "many")
    assert str(caught.value) == "port is 'many'; an integer is needed (--port)"


WRONG = [
    ("--max-num-sqs 3", "unknown flag --max-num-sqs; did you mean --max-num-seqs?"),
    ("--max_num_sqs=3", "unknown flag --max-num-sqs; did you mean --max-num-seqs?"),
    ("--qqqqqq", "unknown flag --qqqqqq (see platform serve --help)"),
    ("a b", "unexpected argument 'b'"),
    ("--seed", "argument --seed: expected one argument"),
    ("--no-seed", "unknown flag --no-seed"),
    ("--max-num 3", "unknown flag --max-num"),
]


@pytest.mark.parametrize(("words", "says"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_command_line_is_one_line_with_the_nearest_flag(words, says):
    with pytest.raises(UsageError) as caught:
        parser().parse_args(words.split())
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_different_models_are_refused(environment):
    with pytest.raises(ConfigError, match="MODEL is a and --model is b; drop one"):
        options(environment, "a", "--model", "b")


def test_help_groups_flags_by_concern_and_shows_defaults():
    text = parser().format_help()
    for words in ("The KV cache:", "[scheduler] in the config file", "--enable-prefix-caching  "):
        assert words in text
    assert "(default: 0.9)" in text
    assert "--no-" not in text.partition("positional arguments")[2]


def test_help_about_a_word_shows_its_group_or_its_flags(capsys):
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["m", "--help=prefix_caching"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--enable-prefix-caching" in text
    assert "--max-num-seqs" not in text
    assert "--max-num-seqs" in parser().format_help_about("[scheduler]")
    with pytest.raises(UsageError, match="no flag of platform serve is about 'qqq'"):
        parser().format_help_about("qqq")
