"""What the pre-norm families read from their configurations."""

import pytest

from pegboard_models.decoder import layer_windows

FORMER = {"num_hidden_layers": 4, "sliding_window": 7}


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (
            {
                "num_hidden_layers": 2,
                "sliding_window": 7,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            [None, 7],
        ),
        ({**FORMER, "use_sliding_window": True, "max_window_layers": 2}, [None, None, 7, 7]),
        ({**FORMER, "use_sliding_window": True}, [7] * 4),
        ({**FORMER, "use_sliding_window": False, "max_window_layers": 0}, [None] * 4),
        ({**FORMER, "sliding_window": None, "use_sliding_window": True}, [None] * 4),
        ({"num_hidden_layers": 4}, [None] * 4),
    ],
)
def test_windows_in_both_spellings(config: dict, windows: list[int | None]) -> None:
    assert layer_windows(config) == windows
