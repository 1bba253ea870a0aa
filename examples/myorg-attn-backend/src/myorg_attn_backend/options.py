"""The plugin's options: `[plugins.myorg_attn]`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gather_limit_tokens: Annotated[
        int, Meta(ge=1024, description="Most cache slots gathered at once for decodes.")
    ] = 65_536
