"""Ranks that wait for each other, as real processes with a gloo group."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.vllm_plugin.ranks import ALONE

pytest.importorskip("torch", reason="needs torch")

SOURCE = str(Path(ullage.__file__).parents[1])
WITHIN_S = 60  # a rank that is left waiting fails the test

RANK = """
import datetime, json, os, sys
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
from ullage.errors import DoesNotFit, MemoryRefused, UllageError
from ullage.vllm_plugin.ranks import Ranks
rank, size, store, *programs = int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=rank, world_size=size,
    timeout=datetime.timedelta(seconds=40))
ranks = Ranks(rank=rank, size=size, group=dist.group.WORLD)
done = []
def note():
    with open(f"{store}/order", "a") as file:
        file.write(str(rank))
def fails_on(which, error):
    def work():
        if rank == which:
            raise error
        done.append(rank)
        return rank
    return work
def outcome(program):
    done.clear()
    try:
        answer = eval(program)
    except UllageError as error:
        answer = [type(error).__name__, str(error)]
    # Where the ranks were out of step, this would be somebody else's answer.
    return {"answer": answer, "done": list(done), "afterwards": ranks.gather(lambda: rank)}
print(json.dumps([outcome(program) for program in programs]))
sys.stdout.flush()
os._exit(0)  # the interpreter's own end aborts now and then, with gloo's threads still running
"""

PROGRAMS = {
    "everybody's": "ranks.gather(lambda: 10 + rank)",
    "first": "ranks.first(lambda: done.append(rank) or 'a' * 3)",
    "kept": "sum(ranks.together(lambda: (number for number in (1, rank))))",  # cannot be sent
    "in turn": "ranks.in_turn(lambda: [note(), note()]) and open(f'{store}/order').read()",
    "another's": "ranks.gather(fails_on(1, ValueError('bad')))",
    "several": "ranks.gather(lambda: fails_on(rank, DoesNotFit(str(rank)))())",
    "no further": "ranks.in_turn(fails_on(1, DoesNotFit('no')))",
    **{
        f"{way} {which}": f"ranks.{way}(fails_on({which}, MemoryRefused('refused')))"
        for way in ("gather", "together", "in_turn")
        for which in (0, 1)
    },
    **{
        f"{place} {which}": f"ranks.together(lambda: ranks.together(lambda: {inner}))"
        for which in (0, 1)
        for place, inner in {
            "inside": f"ranks.gather(fails_on({which}, MemoryRefused('refused')))",
            "between": f"(fails_on({which}, MemoryRefused('refused'))(), ranks.gather(lambda: 1))",
        }.items()
    },
}


def run(*programs: str, size: int) -> list[list[dict[str, Any]]]:
    """What each program, an expression, was on each rank, in processes of their own."""
    with tempfile.TemporaryDirectory() as store:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, SOURCE, str(rank), str(size), store, *programs],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            outputs = [process.communicate(timeout=WITHIN_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert [process.returncode for process in processes] == [0] * size, outputs
    return [json.loads(output) for output, _ in outputs]


@functools.cache
def of_three() -> dict[str, list[dict[str, Any]]]:
    """All programs, one after the other, by name and rank."""
    by_rank = run(*PROGRAMS.values(), size=3)
    return dict(zip(PROGRAMS, map(list, zip(*by_rank, strict=True)), strict=True))


def answers(name: str) -> list[Any]:
    return [each["answer"] for each in of_three()[name]]


def done(name: str) -> list[Any]:
    return [each["done"] for each in of_three()[name]]


def test_all_get_every_rank_s_answer_by_rank():
    assert answers("everybody's") == [[10, 11, 12]] * 3


def test_the_first_rank_s_answer_is_everybody_s_and_only_it_works():
    assert answers("first") == ["aaa"] * 3
    assert done("first") == [[0], [], []]


def test_an_answer_that_is_kept_never_leaves_its_process():
    assert answers("kept") == [1, 2, 3]


def test_in_turn_each_begins_when_the_one_before_has_ended():
    assert answers("in turn") == ["001122"] * 3


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("way", ["gather", "together", "in_turn", "inside", "between"])
def test_an_error_on_one_rank_is_the_same_error_on_all_wherever_it_was_met(way: str, which: int):
    assert answers(f"{way} {which}") == [["MemoryRefused", "refused"]] * 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_happened_the_ranks_are_in_step_afterwards(name: str):
    assert [each["afterwards"] for each in of_three()[name]] == [[0, 1, 2]] * 3


def test_an_error_that_is_not_ours_names_its_rank_on_all():
    sentence = "Rank 1 failed with ValueError. Its own log lines say where and why."
    assert answers("another's") == [["EngineFailed", sentence]] * 3


def test_of_several_errors_the_first_rank_s_is_raised():
    assert answers("several") == [["DoesNotFit", "0"]] * 3


def test_once_one_has_failed_in_its_turn_the_next_do_not_begin():
    assert answers("no further") == [["DoesNotFit", "no"]] * 3
    assert done("no further") == [[0], [], []]


def test_a_rank_that_dies_leaves_no_one_waiting():
    with pytest.raises(AssertionError, match=r"assert \[1, 3\] == \[0, 0\]"):
        run("ranks.gather(lambda: os._exit(3) if rank == 1 else rank)", size=2)


def test_a_single_rank_needs_no_group():
    assert ALONE.gather(lambda: 5) == (5,)
    assert (ALONE.first(lambda: 6), ALONE.together(lambda: 7), ALONE.in_turn(lambda: 8)) == (
        6,
        7,
        8,
    )
    with pytest.raises(KeyError, match="as it is"):
        ALONE.gather(lambda: {}["as it is"])
