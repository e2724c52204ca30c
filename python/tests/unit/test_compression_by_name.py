"""A dictionary of compressions: which one a tensor has by its name."""

import pytest

from corro._front.engine_compression import EngineCompression, settings_of

NONE = object()


def test_the_first_pattern_that_fits_counts():
    setting = settings_of(
        {"*.bias": NONE, "head.*": None, "1.*": "int8 block=128", "*": EngineCompression("onebit")}, NONE
    )
    assert setting is not None
    assert setting("1.bias", 4096) is None
    assert setting("head.weight", 4096) is None
    assert setting("1.weight", 4096) == EngineCompression("int8 block=128").spec
    assert setting("2.weight", 4096) == EngineCompression("onebit").spec


def test_what_fits_no_pattern_goes_as_it_is():
    setting = settings_of({"1.*": "int8"}, NONE)
    assert setting is not None
    assert setting("2.weight", 4096) is None


@pytest.mark.parametrize("value", [17, {"*": "int8"}, "int8 blok=3"])
def test_what_can_not_be_chosen_is_named(value):
    with pytest.raises(ValueError, match=r"1\.\*|blok"):
        settings_of({"1.*": value}, NONE)
