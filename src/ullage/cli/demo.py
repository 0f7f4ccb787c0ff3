"""`ullage demo`: the comparison, with a model that is made on the spot."""

from __future__ import annotations

from typing import Annotated, Final

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

# The quick look does not fill a cache of several hundred thousand tokens.
SMALL_CONCURRENCY: Final = 64


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
    from ullage.cli.progress import bytes_bar
    from ullage.compare.interrupt import interruptible
    from ullage.compare.machine import preferred_dtype
    from ullage.compare.model import MAX_POSITIONS, cached_model, demo_shape
    from ullage.compare.run import Request

    form = output_form(json_=json_, markdown=markdown)
    memory_bytes = limit(memory, unconfined=unconfined)
    dtype = preferred_dtype()
    shape = demo_shape(dtype, small=small)
    with interruptible(), bytes_bar("Making the demo model", shape.weights_bytes) as progress:
        model = cached_model(shape, progress)
    compare_and_print(
        Request(
            model=model,
            model_label="small demo model" if small else "demo model",
            memory_bytes=memory_bytes,
            unconfined=unconfined,
            starts=starts,
            files=files.value,
            tune_stock=tune_stock,
            compiled=compile_,
            output=output or default_output(),
            dtype=dtype,
            max_model_len=MAX_POSITIONS,
            input_tokens=192,
            output_tokens=64,
            concurrency=SMALL_CONCURRENCY if small else None,
            prompts=None,
            port=None,
            extra=(),
        ),
        form,
    )
