from pathlib import Path

import pytest

from pegboard.api.errors import ConfigError
from pegboard.config.engine import EngineOptions
from pegboard.config.env import Environment
from pegboard.config.fields import engine_groups, parse_integer
from pegboard.config.load import load_options


def environment(**values) -> Environment:
    fields = {
        "plugins": None,
        "config": None,
        "cache": Path("cache"),
        "api_key": None,
        "log_level": None,
        "offline": False,
        "inherited": {},
    }
    return Environment(**(fields | values))


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pegboard.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-1", -1),
        ("8k", 8000),
        ("8K", 8192),
        ("1.5k", 1500),
        ("1g", 10**9),
        ("1G", 2**30),
        ("2M", 2 * 2**20),
        ("1_000", 1000),
        ("1.5", "1.5"),
        ("8kb", "8kb"),
        ("k", "k"),
        ("", ""),
    ],
)
def test_integers_take_units_of_a_thousand_and_of_1024(text, value):
    assert parse_integer(text) == value


def test_nothing_given_is_the_defaults():
    assert load_options() == EngineOptions()
    assert load_options({"seed": None}) == EngineOptions()


def test_file_is_overridden_by_environment_and_that_by_flags(tmp_path):
    path = toml(
        tmp_path,
        """
        [observability]
        log_level = "error"
        log_format = "json"
        [scheduler]
        max_num_seqs = 4
        stream_interval = 3
        """,
    )
    assert load_options({}, path).observability.log_level == "error"
    env = environment(log_level="warning", config=str(path))
    assert load_options({}, None, env).observability.log_level == "warning"
    options = load_options({"log_level": "debug", "max_num_seqs": "8"}, None, env)
    assert options.observability.log_level == "debug"
    assert options.observability.log_format == "json"
    assert (options.scheduler.max_num_seqs, options.scheduler.stream_interval) == (8, 3)


def test_named_file_replaces_the_environments(tmp_path):
    path = toml(tmp_path, "[model]\nseed = 5\n")
    env = environment(config=str(tmp_path / "not_there.toml"))
    assert load_options({}, path, env).model.seed == 5


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        ({"max_model_len": "8K"}, lambda o: o.model.max_model_len == 8192),
        ({"scheduler.max_num_seqs": 3}, lambda o: o.scheduler.max_num_seqs == 3),
        ({"gpu_memory_utilization": "0.5"}, lambda o: o.cache.gpu_memory_utilization == 0.5),
        ({"enable_prefix_caching": False}, lambda o: not o.cache.enable_prefix_caching),
        ({"enable_prefix_caching": "false"}, lambda o: not o.cache.enable_prefix_caching),
        ({"served_model_name": "a,b"}, lambda o: o.model.served_model_name == ["a", "b"]),
        ({"served_model_name": '["a,b"]'}, lambda o: o.model.served_model_name == ["a,b"]),
        ({"served_model_name": ["a,b"]}, lambda o: o.model.served_model_name == ["a,b"]),
        ({"hf_overrides": '{"a": 1}'}, lambda o: o.model.hf_overrides == {"a": 1}),
        ({"hf_overrides.a.b": "1.5"}, lambda o: o.model.hf_overrides == {"a": {"b": 1.5}}),
        ({"model.hf_overrides.a": "x"}, lambda o: o.model.hf_overrides == {"a": "x"}),
        (
            {"attention": '{"attention_backend": "X"}'},
            lambda o: o.attention.attention_backend == "X",
        ),
        ({"attention": {"attention_backend": "X"}}, lambda o: o.attention.attention_backend == "X"),
        ({"ops.rms_norm": "a,b"}, lambda o: o.ops.priority == {"rms_norm": ["a", "b"]}),
        ({"ops": '{"rms_norm": ["a"]}'}, lambda o: o.ops.priority == {"rms_norm": ["a"]}),
        ({"only_plugins": ["a,b", "c"]}, lambda o: o.plugins.only == ["a", "b", "c"]),
        ({"plugins.on_error": "warn"}, lambda o: o.plugins.on_error == "warn"),
    ],
)
def test_flags_are_read_as_the_options_type(flags, read):
    assert read(load_options(flags))


def test_op_and_plugin_tables_have_open_keys(tmp_path):
    path = toml(
        tmp_path,
        """
        [ops]
        rms_norm = ["a.rms_norm", "reference"]
        [plugins]
        enabled = ["server", "x"]
        on_error = "warn"
        [plugins.x]
        depth = 3
        nested = { deep = true }
        """,
    )
    options = load_options({}, path)
    assert options.ops.priority == {"rms_norm": ["a.rms_norm", "reference"]}
    assert options.plugins.enabled == ("server", "x")
    assert options.plugins.options == {"x": {"depth": 3, "nested": {"deep": True}}}


def test_one_key_of_a_table_is_added_to_those_of_the_file(tmp_path):
    path = toml(tmp_path, "[model.hf_overrides]\nkept = 1\n[plugins.x]\nkept = 2\n")
    flags = {"hf_overrides.added": "2", "plugin_config": ["x.added=3"]}
    options = load_options(flags, path)
    assert options.model.hf_overrides == {"kept": 1, "added": 2}
    assert options.plugins.options == {"x": {"kept": 2, "added": "3"}}


@pytest.mark.parametrize(
    ("words", "enabled", "disabled"),
    [
        (["a,b"], ("server", "a", "b"), []),
        (["a", "b"], ("server", "a", "b"), []),
        (["-server"], (), ["server"]),
        (["a,-b"], ("server", "a"), ["b"]),
        (["-a", "a"], ("server", "a"), []),
        (["server"], ("server",), []),
        (["./x.py"], ("server", "./x.py"), []),
    ],
)
def test_plugins_are_named_in_addition_and_removed_with_a_dash(words, enabled, disabled):
    plugins = load_options({"plugins": words}).plugins
    assert (plugins.enabled, plugins.disabled) == (enabled, disabled)


def test_flag_wins_over_environment_and_file_on_the_same_plugin(tmp_path):
    path = toml(tmp_path, '[plugins]\nenabled = ["server", "x"]\n')
    env = environment(plugins="-x,y")
    plugins = load_options({}, path, env).plugins
    assert (plugins.enabled, plugins.disabled) == (("server", "y"), ["x"])
    plugins = load_options({"plugins": ["x,-y"]}, path, env).plugins
    assert (plugins.enabled, plugins.disabled) == (("server", "x"), ["y"])


WRONG_FLAGS = [
    ({"max_num_seqs": 0}, "scheduler.max_num_seqs is 0; at least 1 is needed (--max-num-seqs)"),
    ({"max_num_seqs": "x"}, "max_num_seqs is 'x'; an integer is needed (--max-num-seqs)"),
    ({"max_num_seqs": "1.5"}, "max_num_seqs is '1.5'; an integer is needed (--max-num-seqs)"),
    (
        {"gpu_memory_utilization": "1.5"},
        "cache.gpu_memory_utilization is 1.5; at most 1 is needed (--gpu-memory-utilization)",
    ),
    ({"gpu_memory_utilization": 0}, "more than 0 is needed (--gpu-memory-utilization)"),
    ({"watermark": "1"}, "scheduler.watermark is 1.0; less than 1 is needed (--watermark)"),
    (
        {"dtype": "int4"},
        "model.dtype is 'int4'; it must be one of auto, bfloat16, float, float16, float32, half",
    ),
    ({"hf_overrides": "{"}, "model.hf_overrides is '{'; a table is needed (--hf-overrides)"),
    ({"attention": "X"}, "--attention-config is 'X'; a JSON object is needed"),
    ({"attention": '{"backend": "X"}'}, "attention.backend is not a known key"),
    ({"max_num_sequences": 3}, "max_num_sequences is not a known option"),
    ({"scheduler.max_num_sqs": 3}, "did you mean max_num_seqs?"),
    ({"seed.x": 3}, "model.seed has no keys of its own"),
    ({"plugin_config": ["x"]}, "--plugin-config 'x' must read name.key=value"),
    ({"plugin_config": ["x.y"]}, "must read name.key=value"),
    ({"use_weight_cache": "maybe"}, "load.use_weight_cache is 'maybe'; true or false is needed"),
]


@pytest.mark.parametrize(("flags", "says"), WRONG_FLAGS)
def test_wrong_flag_names_key_value_need_and_flag_on_one_line(flags, says):
    with pytest.raises(ConfigError) as caught:
        load_options(flags)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG_FILES = [
    ("[scheduler]\nmax_num_seqs = 0", "scheduler.max_num_seqs is 0; at least 1 is needed"),
    ("[scheduler]\nmax_num_seqs = [1]", "scheduler.max_num_seqs is [1]; an integer is needed"),
    ("[scheduler]\nmax_num_sqs = 1", "scheduler.max_num_sqs is not a known key; did you mean"),
    ("[schedule]\nmax_num_seqs = 1", "[schedule] is not a known table; did you mean scheduler?"),
    ("scheduler = 3", "scheduler is 3; [scheduler] must be a table"),
    ("[ops]\nrms_norm = 3", "ops.priority is {'rms_norm': 3}; a list is needed"),
    ("[plugins]\nenable = ['a']", "plugins.enable is not a known key; did you mean enabled?"),
    ("[model]\nserved_model_name = [1]", "model.served_model_name is [1]; a string is needed"),
    ("[model", "is not TOML"),
]


@pytest.mark.parametrize(("text", "says"), WRONG_FILES)
def test_wrong_file_is_named_with_key_value_and_need(tmp_path, text, says):
    path = toml(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_options({}, path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"not_there\.toml cannot be read.*\(--config\)"):
        load_options({}, tmp_path / "not_there.toml")


def test_wrong_environment_is_named():
    with pytest.raises(
        ConfigError, match=r"PEGBOARD_LOG_LEVEL: observability\.log_level is 'loud'"
    ):
        load_options({}, None, environment(log_level="loud"))


def test_every_option_has_a_flag_of_its_own_and_help():
    fields = [field for group in engine_groups() for field in group.fields]
    flags = [flag for field in fields for flag in field.flags]
    assert len(flags) == len(set(flags))
    assert len({field.name for field in fields}) == len(fields)
    assert [field.path for field in fields if not field.help] == []
