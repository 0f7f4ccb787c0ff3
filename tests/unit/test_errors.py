"""The tree of errors keeps its promises: a drawing that is true, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ullage import errors

DRAWN = re.compile(r"\+-- (?P<name>\w+) +(?P<code>\d)")


def subclasses(of: type[errors.UllageError]) -> Iterator[type[errors.UllageError]]:
    for each in of.__subclasses__():
        yield each
        yield from subclasses(each)


def test_the_drawing_lists_every_error_with_its_exit_code():
    drawn = {match["name"]: int(match["code"]) for match in DRAWN.finditer(errors.__doc__ or "")}
    declared = {
        name: each.exit_code
        for name, each in vars(errors).items()
        if isinstance(each, type)
        and issubclass(each, errors.UllageError)
        and each is not errors.UllageError
    }
    assert drawn == declared


def test_an_error_keeps_its_kind_s_exit_code_below_it():
    """Handling a parent handles its children alike, so a child must not change the code."""
    for each in subclasses(errors.UllageError):
        parent = each.__base__
        assert parent is not None
        assert parent is errors.UllageError or parent.exit_code == each.exit_code, each


def test_every_exit_code_is_one_that_is_documented():
    codes = {each.exit_code for each in subclasses(errors.UllageError)}
    assert codes == {1, 2, 3, 4}
