def pytest_configure(config):
    if not config.getoption("--plugin"):
        config.option.plugin.append("myorg_attn")
