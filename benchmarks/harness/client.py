"""A client that holds many requests open, and can close any of them.

In the script's own process, outside the measured group.  It is not `vllm bench serve`, which loads
torch: pages of torch's files that the engine's group has lost would come back at the client's cost,
and the engine's own need for them would not show.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import aiohttp

from ullage.compare.server import HOST, SERVED_NAME

Outcome = Literal["done", "aborted", "refused", "failed", "cut"]

_TAIL_BYTES: Final = 256
_PAUSE_S: Final = 0.5  # after a failure, so that a dead engine is not asked without end


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One streamed completion.  The client closes it after so many pieces or seconds, or never.

    `refusable`: HTTP 400 is the answer that is expected.
    """

    kind: str
    prompt: tuple[int, ...]
    output_tokens: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    close_after_pieces: int | None = None
    close_after_s: float | None = None
    refusable: bool = False

    def body(self) -> dict[str, Any]:
        return {
            "model": SERVED_NAME,
            "prompt": list(self.prompt),
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
            **self.extra,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """`cut`: still open when the load ended."""

    kind: str
    outcome: Outcome
    reason: str | None
    elapsed_s: float


class Client:
    """For one server on this machine."""

    def __init__(self, port: int) -> None:
        self._base = f"http://{HOST}:{port}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        # No limit of time or connections: the queue is meant to be longer than the pool.
        self._session = aiohttp.ClientSession(
            self._base,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open().close()

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None  # noqa: S101 - used within its `async with` only
        return self._session

    async def ask(self, ask: Ask) -> Answer:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(ask.close_after_s):
                outcome, reason = await self._stream(ask)
        except TimeoutError:
            outcome, reason = "aborted", None
        except asyncio.CancelledError:
            outcome, reason = "cut", None
        except (aiohttp.ClientError, OSError) as error:
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        elapsed_s = round(time.monotonic() - began_s, 2)
        return Answer(kind=ask.kind, outcome=outcome, reason=reason, elapsed_s=elapsed_s)

    async def _stream(self, ask: Ask) -> tuple[Outcome, str | None]:
        pieces, tail = 0, b""
        async with self._open().post("/v1/completions", json=ask.body()) as answer:
            if answer.status != 200:
                text = (await answer.text())[:_TAIL_BYTES]
                expected = ask.refusable and answer.status == 400
                return ("refused" if expected else "failed"), f"HTTP {answer.status}: {text}"
            async for piece in answer.content.iter_any():
                pieces += 1
                tail = tail[-_TAIL_BYTES:] + piece
                if b'data: {"error"' in tail:
                    return "failed", tail.decode(errors="replace")[:_TAIL_BYTES]
                if ask.close_after_pieces is not None and pieces >= ask.close_after_pieces:
                    answer.close()
                    return "aborted", None
        whole = b"data: [DONE]" in tail
        return ("done", None) if whole else ("failed", "the stream ended before its end")

    async def metrics(self) -> str | None:
        """The server's metrics; None where it does not answer in time."""
        patience = aiohttp.ClientTimeout(total=5)
        try:
            async with self._open().get("/metrics", timeout=patience) as answer:
                return await answer.text()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None


async def load_for(
    client: Client,
    asks: Iterator[Ask],
    *,
    in_flight: int,
    seconds: float,
    alive: Callable[[], bool],
) -> list[Answer]:
    """`in_flight` requests at once; each that ends is followed by another.  At the end, and when
    the engine died, all that are open are closed at once."""
    answers: list[Answer] = []
    ends_s = time.monotonic() + seconds

    async def one_after_another() -> None:
        while time.monotonic() < ends_s and alive():
            answers.append(await client.ask(next(asks)))
            if answers[-1].outcome == "cut":
                return
            if answers[-1].outcome == "failed":
                await asyncio.sleep(_PAUSE_S)

    tasks = [asyncio.create_task(one_after_another()) for _ in range(in_flight)]
    while time.monotonic() < ends_s and alive():
        await asyncio.sleep(_PAUSE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answers


async def load_all(client: Client, asks: list[Ask], *, in_flight: int) -> list[Answer]:
    """All of `asks`, at most `in_flight` at once."""
    waiting = iter(asks)
    answers: list[Answer] = []

    async def one_after_another() -> None:
        for ask in waiting:
            answers.append(await client.ask(ask))

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return answers
