"""A comparison as a table and as a document."""

from __future__ import annotations

import dataclasses
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from ullage.compare.run import exit_code
from ullage.report.comparison import Comparison, Machine, Settings, Side, Start, document
from ullage.report.comparison_table import markdown, print_table, rows
from ullage.units import GIB

REFUSED = Start(started=False, error="ValueError: 2.3 of 4.0 GiB", oom_kills=0)
SERVED = Start(
    started=True,
    error=None,
    kv_tokens=18_000,
    kv_bytes=18_000 * 81_920,
    start_s=61.0,
    output_tok_s=51.39,
    ttft_ms_median=31_026.0,
    tpot_ms_median=324.5,
    completed=62,
    failed=0,
    oom_kills=0,
    peak_unreclaimable_bytes=int(3.5 * GIB),
)
LESS = dataclasses.replace(SERVED, kv_tokens=2_304, kv_bytes=2_304 * 81_920)


def comparison(*, stock: Start = REFUSED, tuned: Side | None = None, ullage: Start = SERVED) -> Any:
    sides = {
        "stock": Side(label="stock, default", flags=(), starts=(stock,)),
        "ullage": Side(
            label="ullage, default",
            flags=(),
            starts=(ullage, dataclasses.replace(ullage, kv_tokens=18_200)),
        ),
    }
    if tuned is not None:
        sides["stock_tuned"] = tuned
    return Comparison(
        machine=Machine(cpu="x", cores=2, memory_bytes=8 * GIB, kernel="6", cgroup="v1"),
        versions={"ullage": "0.1.0"},
        settings=Settings(
            model="demo model",
            starts=2,
            memory_bytes=4 * GIB,
            files="cold",
            mode="eager",
            dtype="bfloat16",
            weights_bytes=974_231_768,
            kv_token_bytes=81_920,
            flags=("--dtype", "bfloat16"),
            input_tokens=192,
            output_tokens=64,
            concurrency=62,
            prompts=62,
        ),
        sides=sides,  # type: ignore[arg-type]
    )


def hand_tuned(*starts: Start) -> Side:
    flags = ("--kv-cache-memory-bytes", "188743680")
    return Side(label="stock, best by hand", flags=flags, starts=starts)


def printed(value: Comparison, width: int = 80) -> str:
    stream = io.StringIO()
    print_table(value, Console(file=stream, width=width))
    return stream.getvalue()


def test_the_rows_are_the_questions_and_a_range_is_min_to_max() -> None:
    table = {row[0]: row[1:] for row in rows(comparison())}
    assert table["started"] == ["0 of 1", "(with --tune-stock)", "2 of 2"]
    assert table["KV cache, tokens"] == ["-", "", "18,000 to 18,200"]
    assert table["OOM kills"] == ["0", "", "0"]
    assert table["failed requests"] == ["-", "", "0"]
    assert table["peak unreclaimable memory / limit"][2] == "3.50 / 4.00 GiB"


def test_the_title_names_every_condition() -> None:
    title = rows(comparison())[0][0]
    assert title == "4 GiB container, demo model, cold files, eager, bfloat16"


def test_an_unconfined_run_says_so_in_its_title() -> None:
    value = comparison()
    settings = dataclasses.replace(value.settings, memory_bytes=None)
    table = rows(dataclasses.replace(value, settings=settings))
    assert table[0][0].startswith("no limit enforced")
    assert table[-1][-1] == "-"


def test_a_refused_start_shows_its_error_in_full_below_the_table() -> None:
    long = "ValueError: " + "a reason of many words " * 20
    text = printed(comparison(stock=dataclasses.replace(REFUSED, error=long.strip())))
    assert f"stock, default, start 1 refused: {long.strip()}" in text


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("tuned", [None, hand_tuned(LESS, SERVED)])
def test_the_table_fits_the_terminal_and_breaks_no_label_but_the_longest(
    columns: int, tuned: Side | None
) -> None:
    table, _, _ = printed(comparison(tuned=tuned), columns).partition("Load:")
    lines = table.splitlines()
    assert max(map(len, lines[1:])) <= columns
    assert "…" not in table
    labels = [line[:18].strip() for line in lines[1:] if line[:18].strip(" ─")]
    assert labels == [
        *("started", "KV cache, tokens", "output tok/s", "median TTFT, s", "median TPOT, ms"),
        *("failed requests", "OOM kills", "peak unreclaimable", "memory / limit"),
    ]


def test_a_terminal_gets_whole_words_and_a_pipe_whole_sentences() -> None:
    value = comparison(stock=dataclasses.replace(REFUSED, error="a reason of many words " * 9))
    terminal = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    print_table(value, terminal)
    assert max(map(len, terminal.file.getvalue().splitlines())) <= 60  # type: ignore[attr-defined]
    assert max(map(len, printed(value, 60).splitlines())) > 200


def test_the_ratio_leaves_out_starts_that_did_not_serve() -> None:
    failed = dataclasses.replace(LESS, kv_tokens=90_000, failed=3)
    value = comparison(tuned=hand_tuned(LESS, failed))
    assert "ullage has 7.81 times stock's best by hand" in markdown(value)
    assert "times stock's" not in markdown(comparison(tuned=hand_tuned(failed)))


def test_files_that_stayed_in_memory_are_named_below_the_table() -> None:
    warm = dataclasses.replace(SERVED, warm_file_bytes=GIB // 2)
    assert "up to 0.50 GiB of them stayed in memory" in markdown(comparison(ullage=warm))
    little = dataclasses.replace(SERVED, warm_file_bytes=60 << 20)
    assert "stayed in memory" not in markdown(comparison(ullage=little))


def test_a_start_with_an_error_has_not_served() -> None:
    unloaded = dataclasses.replace(SERVED, error="ullage's plugin was not loaded")
    assert not unloaded.served
    assert "start 1, 2 did not serve: ullage's plugin" in markdown(comparison(ullage=unloaded))


def test_a_doubt_about_the_search_is_told_and_part_of_the_document() -> None:
    value = comparison(tuned=dataclasses.replace(hand_tuned(LESS), notes=("the client failed",)))
    assert "stock, best by hand: the client failed" in markdown(value)
    assert document(value)["sides"]["stock_tuned"]["notes"] == ["the client failed"]


def test_the_ratio_is_the_worst_of_ours_over_the_best_of_theirs() -> None:
    text = markdown(comparison(tuned=hand_tuned(LESS)))
    assert "ullage has 7.81 times stock's best by hand" in text
    assert "--kv-cache-memory-bytes 188743680" in text


def test_a_search_that_found_nothing_says_so() -> None:
    table = rows(comparison(tuned=hand_tuned()))
    assert table[1] == ["started", "0 of 1", "no setting works", "2 of 2"]


def test_markdown_has_a_row_a_question_with_as_many_cells() -> None:
    lines = [line for line in markdown(comparison()).splitlines() if line.startswith("|")]
    assert len(lines) == 10
    assert {line.count("|") for line in lines} == {5}


def published_schema() -> dict[str, Any]:
    text = resources.files("ullage.report").joinpath("schemas/compare-1.schema.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


@pytest.mark.parametrize("tuned", [None, hand_tuned(LESS), hand_tuned()])
def test_the_document_is_what_the_published_schema_describes(tuned: Side | None) -> None:
    schema = published_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json.dumps(document(comparison(tuned=tuned)))), schema)


def test_the_schema_requires_every_field_of_a_start() -> None:
    required = published_schema()["$defs"]["start"]["required"]
    assert sorted(required) == sorted(field.name for field in dataclasses.fields(Start))


def test_the_exit_code_is_ullages_result() -> None:
    killed = dataclasses.replace(SERVED, oom_kills=1)
    unanswered = dataclasses.replace(SERVED, failed=1)
    assert exit_code(comparison()) == 0
    assert exit_code(comparison(ullage=killed)) == 1
    assert exit_code(comparison(ullage=unanswered)) == 1
    assert exit_code(comparison(stock=SERVED, ullage=REFUSED)) == 1
    assert exit_code(comparison(ullage=REFUSED)) == 4


RESULTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*-*GiB-*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_result_that_is_kept_follows_the_schema_and_names_what_it_is_of(path: Path) -> None:
    result = json.loads(path.read_text())
    jsonschema.validate(result, published_schema())
    assert {"commit", "command", "logs"} <= result.keys()
