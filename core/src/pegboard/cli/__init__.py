"""The command `platform`: one module a subcommand, each imported when it is asked for."""
