"""`ullage demo`: the comparison, with a model that is made on the spot."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ullage.cli.compare import (
    Compile,
    Files,
    FileStates,
    Json,
    Markdown,
    Memory,
    OutputDirectory,
    Starts,
    TuneStock,
    Unconfined,
    compare_and_print,
    default_output,
    limit,
    output_form,
)

if TYPE_CHECKING:
    from ullage.compare.model import Shape


def demo(
    memory: Memory = "4GiB",
    starts: Starts = 1,
    files: FileStates = Files.cold,
    tune_stock: TuneStock = False,
    small: Annotated[
        bool, typer.Option("--small", help="A model of 50 MiB and a short load: a quick look.")
    ] = False,
    unconfined: Unconfined = False,
    compile_: Compile = False,
    output: OutputDirectory = None,
    json_: Json = False,
    markdown: Markdown = False,
) -> None:
    """See the difference: a demo model in a 4 GiB container, with stock vLLM and with ullage.

    Makes a random model of 0.9 GiB once, without network, and keeps it in the user's cache. The
    whole table: ullage demo --starts 5 --tune-stock.
    """
    from ullage.compare.machine import preferred_dtype
    from ullage.compare.model import demo_shape
    from ullage.compare.request import demo_request

    form = output_form(json_=json_, markdown=markdown)
    memory_bytes = limit(memory, unconfined=unconfined)
    shape = demo_shape(preferred_dtype(), small=small)
    model = ready_model(shape, memory_bytes, unconfined=unconfined)
    logs = output or default_output()
    request = demo_request(shape, model, small=small, memory_bytes=memory_bytes, output=logs)
    compare_and_print(
        dataclasses.replace(
            request,
            unconfined=unconfined,
            starts=starts,
            files=files.value,
            tune_stock=tune_stock,
            compiled=compile_,
        ),
        form,
    )


def ready_model(shape: Shape, memory_bytes: int, *, unconfined: bool) -> Path:
    """The demo model's directory, made only where the comparison can run afterwards."""
    from ullage.cli.progress import bytes_bar
    from ullage.compare.checkpoint import check_fits
    from ullage.compare.interrupt import interruptible
    from ullage.compare.model import cached_model
    from ullage.compare.run import check_place

    check_fits("of the demo model", shape.weights_bytes, memory_bytes)
    with interruptible(), bytes_bar("Making the demo model", shape.weights_bytes) as progress:
        check_place(None if unconfined else memory_bytes)
        return cached_model(shape, progress)
