"""The plugin's switches."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ullage.errors import Usage
from ullage.units import MIB
from ullage.vllm_plugin.settings import KNOWN, read


def test_without_variables_everything_is_off():
    settings = read({"PATH": "/bin", "VLLM_USE_V1": "1"})
    assert not settings.enabled
    assert not settings.strict
    assert not settings.prompt_logprobs
    assert (settings.margin_bytes, settings.frontend_pid, settings.unknown) == (None, None, ())


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("ULLAGE", "enabled"),
        ("ULLAGE_STRICT", "strict"),
        ("ULLAGE_PROMPT_LOGPROBS", "prompt_logprobs"),
        ("ULLAGE_EXPLAIN", "explain"),
    ],
)
def test_a_switch_is_on_at_1_off_at_0_and_when_empty(name, field):
    assert [getattr(read({name: value}), field) for value in ("1", "0", "")] == [True, False, False]
    with pytest.raises(Usage, match=rf"^{name} is 'yes'\. Set it to 1 or 0\.$"):
        read({name: "yes"})


def test_the_margin_is_a_size_with_a_unit():
    assert read({"ULLAGE_MARGIN": "512MiB"}).margin_bytes == 512 * MIB
    assert read({"ULLAGE_MARGIN": "0B"}).margin_bytes == 0
    assert read({"ULLAGE_MARGIN": ""}).margin_bytes is None
    for wrong in ("512", "-1GiB", "much"):
        with pytest.raises(Usage, match=r"^ULLAGE_MARGIN: .*Write it like"):
            read({"ULLAGE_MARGIN": wrong})


def test_a_share_is_a_part_of_one():
    assert read({"ULLAGE_SHARE": "1/3"}).share == Fraction(1, 3)
    assert read({"ULLAGE_SHARE": ""}).share is None
    with pytest.raises(Usage, match=r"^ULLAGE_SHARE: '3' is not a share\. Write it like 1/3"):
        read({"ULLAGE_SHARE": "3"})


def test_the_front_end_is_a_process_id():
    assert read({"ULLAGE_FRONTEND": "123"}).frontend_pid == 123
    assert read({"ULLAGE_FRONTEND": "x"}).frontend_pid is None
    assert read({"ULLAGE_FRONTEND": "²"}).frontend_pid is None


def test_names_that_are_not_known_are_listed_in_order():
    names = ("ULLAGE_STRIKT", "ULLAGE_MARGINS", "ULLAGE_MARGIN", "MY_ULLAGE_X", "ULLAGES")
    assert read(dict.fromkeys(names, "")).unknown == ("ULLAGE_MARGINS", "ULLAGE_STRIKT")


def test_no_known_name_is_called_unknown():
    assert read(dict.fromkeys(KNOWN, "")).unknown == ()
