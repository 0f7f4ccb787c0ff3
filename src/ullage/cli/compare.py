"""`ullage compare`: the same engine with and without ullage, in a container of a given size."""

from __future__ import annotations

import json
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ullage.errors import Usage
from ullage.units import parse_size

if TYPE_CHECKING:
    from ullage.compare.request import Request


class Files(StrEnum):
    cold = "cold"
    warm = "warm"


class Output(StrEnum):
    table = "table"
    json = "json"
    markdown = "markdown"


# Options that `ullage demo` takes as well.
Memory = Annotated[str, typer.Option(help="Limit of the container, with its unit.")]
Starts = Annotated[int, typer.Option(min=1, help="Starts of each side, in turns.")]
FileStates = Annotated[
    Files,
    typer.Option(
        help="Page cache before each start: cold, as a container's first start on a machine, or "
        "warm, as a restart. Cold drops the page cache of the whole machine where the user may "
        "(root), else that of the engine's and the model's files."
    ),
]
TuneStock = Annotated[
    bool,
    typer.Option(
        "--tune-stock",
        help="Also search the best working setting of the stock engine: --gpu-memory-utilization "
        "and --kv-cache-memory-bytes, by bisection; the best that serves three times wins. Takes a "
        "minute or two a start.",
    ),
]
Unconfined = Annotated[
    bool, typer.Option("--unconfined", help="Set no limit, where none can be enforced.")
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Let the engine compile, instead of --enforce-eager.")
]
OutputDirectory = Annotated[
    Path | None,
    typer.Option("--output", help="Directory for logs.  [default: ullage-compare-TIME]"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document: ullage.compare/1.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="The table in Markdown.")]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Requests at once.  [default: what fills 80 % of the KV cache]"),
]
Prompts = Annotated[
    int | None, typer.Option(min=1, help="Requests in all.  [default: as many as run at once]")
]
InputTokens = Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")]
OutputTokens = Annotated[int, typer.Option(min=1, help="Tokens of each answer.")]
MaxModelLen = Annotated[int, typer.Option(min=1, help="Longest sequence, on all sides.")]
Port = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Port of the engine.  [default: a free one]")
]

# Of this command alone.
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Directory of a model: config.json, safetensors.")
]
Extra = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- VLLM SERVE FLAGS]", help="Flags for the engine, on all sides, after --."
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Type on all sides.  [default: what this processor computes fastest]"),
]


def compare(
    model: Model,
    extra: Extra = None,
    memory: Memory = "4GiB",
    starts: Starts = 1,
    files: FileStates = Files.cold,
    tune_stock: TuneStock = False,
    unconfined: Unconfined = False,
    compile_: Compile = False,
    dtype: Dtype = None,
    max_model_len: MaxModelLen = 2048,
    input_tokens: InputTokens = 192,
    output_tokens: OutputTokens = 64,
    concurrency: Concurrency = None,
    prompts: Prompts = None,
    port: Port = None,
    output: OutputDirectory = None,
    json_: Json = False,
    markdown: Markdown = False,
) -> None:
    """Start the engine with and without ullage in a container, load it, and compare.

    Every side gets the same model, flags and requests. Logs of every start are kept. Ends with 0
    when every start of ullage served, 1 when one did not, 3 when the limit cannot be enforced, and
    4 when no side started.
    """
    from ullage.compare.request import Request

    compare_and_print(
        Request(
            model=model,
            model_label=model.resolve().name,
            memory_bytes=limit(memory, unconfined=unconfined),
            unconfined=unconfined,
            starts=starts,
            files=files.value,
            tune_stock=tune_stock,
            compiled=compile_,
            output=output or default_output(),
            dtype=known_dtype(dtype),
            max_model_len=max_model_len,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            prompts=prompts,
            port=port,
            extra=tuple(extra or ()),
        ),
        output_form(json_=json_, markdown=markdown),
    )


def limit(text: str, *, unconfined: bool) -> int:
    """The bytes of --memory, no more than the machine has where it is to be enforced.

    Raises Usage.
    """
    from ullage.compare.run import check_machine

    try:
        limit_bytes = parse_size(text)
    except ValueError as error:
        raise Usage(f"--memory: {error}") from error
    if not unconfined:
        check_machine(limit_bytes)
    return limit_bytes


def known_dtype(dtype: str | None) -> str | None:
    from ullage.compare.checkpoint import DTYPE_BYTES

    if dtype is not None and dtype not in DTYPE_BYTES:
        raise Usage(f"--dtype '{dtype}' is not known. Use one of {', '.join(DTYPE_BYTES)}.")
    return dtype


def default_output() -> Path:
    return Path(time.strftime("ullage-compare-%Y%m%d-%H%M%S"))


def output_form(*, json_: bool, markdown: bool) -> Output:
    if json_ and markdown:
        raise Usage("--json and --markdown both want stdout. Give one of them.")
    return Output.json if json_ else Output.markdown if markdown else Output.table


def compare_and_print(request: Request, form: Output) -> None:
    """Run it, print the result on stdout and progress on stderr, end with the result's code."""
    from ullage.cli.progress import phases
    from ullage.compare.interrupt import interruptible
    from ullage.compare.run import compare as run_comparison
    from ullage.compare.run import exit_code
    from ullage.report.comparison import document
    from ullage.report.comparison_table import markdown, print_table

    earlier = result_in(request.output)
    try:
        with interruptible(), phases() as phase:
            comparison = run_comparison(request, phase)
    except BaseException:
        left = result_in(request.output)
        if left is not None and earlier is None:
            typer.echo(f"Not finished. What there is of the result: {left}", err=True)
        raise
    if form is Output.json:
        typer.echo(json.dumps(document(comparison), indent=2))
    elif form is Output.markdown:
        typer.echo(markdown(comparison), nl=False)
    else:
        from rich.console import Console

        print_table(comparison, Console())
    typer.echo(f"Logs: {os.path.relpath(request.output)}", err=True)
    raise typer.Exit(exit_code(comparison))


def result_in(output: Path) -> str | None:
    """The path of a result in the directory of the logs; None without one."""
    from ullage.compare.result import RESULT

    result = output / RESULT
    return os.path.relpath(result) if result.is_file() else None
