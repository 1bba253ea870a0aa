import pytest
import torch

from pegboard.sampling.philox import STREAM_SAMPLE, philox_4x32_10, philox_uniform, seed_of

#: Published with Random123: counter, key, output.
VECTORS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_words_are_those_that_were_published(counter, key, expected):
    words = philox_4x32_10(torch.tensor([counter]).T, torch.tensor([key]).T)
    assert tuple(words[:, 0].tolist()) == expected


def test_all_counters_of_a_batch_are_independent_of_each_other():
    counters = torch.tensor([vector[0] for vector in VECTORS]).T
    keys = torch.tensor([vector[1] for vector in VECTORS]).T
    words = philox_4x32_10(counters, keys)
    assert [tuple(column) for column in words.T.tolist()] == [vector[2] for vector in VECTORS]


def test_uniform_is_the_53_leading_bits_of_the_first_two_words():
    uniform = philox_uniform(torch.tensor([0]), torch.tensor([0]), STREAM_SAMPLE)
    expected = ((0x6627E8D5 << 21) | (0xE169C58D >> 11)) / 2**53
    assert uniform.item() == expected


def test_uniform_depends_on_seed_position_and_stream_alone():
    seeds = torch.tensor([3, -(2**63), 2**63 - 1, 3, 3])
    positions = torch.tensor([7, 7, 7, 8, 7])
    first = philox_uniform(seeds, positions, 0)
    assert first[0] == first[4]
    assert len(set(first.tolist())) == 4
    alone = philox_uniform(seeds[1:2], positions[1:2], 0)
    assert alone[0] == first[1]
    assert philox_uniform(seeds, positions, 1)[0] != first[0]


def test_uniforms_are_spread_evenly():
    numbers = philox_uniform(torch.full((20_000,), 11), torch.arange(20_000), STREAM_SAMPLE)
    counts = torch.histc(numbers, 20, 0.0, 1.0)
    chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
    assert chi_square < 50  # 19 degrees of freedom: passed by all but 1 seed in 10,000
    assert numbers.min() >= 0
    assert numbers.max() < 1


def test_a_request_without_a_seed_gets_its_own():
    assert seed_of(-5, "a", 0) == -5
    assert seed_of(None, "a", 0) == seed_of(None, "a", 0)
    assert len({seed_of(None, "a", 0), seed_of(None, "b", 0), seed_of(None, "a", 1)}) == 3
    assert -(2**63) <= seed_of(None, "a", -7) < 2**63
