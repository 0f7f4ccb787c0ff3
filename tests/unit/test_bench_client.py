"""The benchmarks' client, against a small server that behaves as an engine may."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="comes with the engine")

from aiohttp import web

from harness.client import Answer, Ask, Client, load_all, load_for
from harness.pool import PoolState, parse

PIECE = b'data: {"choices": []}\n\n'
DONE = b"data: [DONE]\n\n"


class Engine:
    """Answers by the first token of the prompt, and counts what is open."""

    def __init__(self) -> None:
        self.open = 0
        self.most_open = 0
        self.asked = 0
        self.left = asyncio.Event()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.open += 1
        self.asked += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self.stream(request, body["prompt"][0])
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.set()
            raise
        finally:
            self.open -= 1

    async def stream(self, request: web.Request, way: int) -> web.StreamResponse:
        if way == REFUSE:
            return web.Response(status=400, text="not this")
        answer = web.StreamResponse()
        await answer.prepare(request)
        while way == FOR_EVER:
            await answer.write(PIECE)
            await asyncio.sleep(0.01)
        if way == ERROR:
            await answer.write(b'data: {"error": {"message": "no room"}}\n\n')
        await answer.write(PIECE if way == CUT else PIECE + DONE)
        return answer


WHOLE, REFUSE, FOR_EVER, ERROR, CUT = range(5)


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_post("/v1/completions", engine.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with Client(runner.addresses[0][1]) as client:
            yield client
    finally:
        await runner.cleanup()


def played(scene: Callable[[Engine, Client], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        engine = Engine()
        async with serving(engine) as client:
            return await scene(engine, client)

    return asyncio.run(play())


def ask(way: int, **more: Any) -> Ask:
    return Ask(kind="some", prompt=(way,), output_tokens=1, **more)


@pytest.mark.parametrize(
    ("asked", "outcome", "reason"),
    [
        (ask(WHOLE), "done", None),
        (ask(REFUSE), "failed", "HTTP 400: not this"),
        (ask(REFUSE, refusable=True), "refused", "HTTP 400: not this"),
        (ask(CUT), "failed", "the stream ended before its end"),
    ],
)
def test_an_answer_says_how_a_request_ended(asked: Ask, outcome: str, reason: str | None) -> None:
    answer = played(lambda _, client: client.ask(asked))
    assert (answer.outcome, answer.reason) == (outcome, reason)


def test_an_error_within_a_stream_is_a_failure() -> None:
    answer = played(lambda _, client: client.ask(ask(ERROR)))
    assert answer.outcome == "failed"
    assert "no room" in answer.reason


@pytest.mark.parametrize("closing", [{"close_after_pieces": 2}, {"close_after_s": 0.05}])
def test_a_client_that_closes_is_seen_by_the_server_as_gone(closing: dict[str, Any]) -> None:
    async def scene(engine: Engine, client: Client) -> Answer:
        answer = await client.ask(ask(FOR_EVER, **closing))
        await asyncio.wait_for(engine.left.wait(), 10)
        return answer

    assert played(scene).outcome == "aborted"


def test_a_load_keeps_as_many_open_as_it_was_told_and_closes_them_all_at_the_end() -> None:
    async def scene(engine: Engine, client: Client) -> list[Answer]:
        asks = (ask(way) for way in itertools.cycle([WHOLE, FOR_EVER]))
        answers = await load_for(client, asks, in_flight=4, seconds=0.6, alive=lambda: True)
        assert engine.most_open == 4
        return answers

    answers = played(scene)
    assert sum(answer.outcome == "cut" for answer in answers) == 4
    assert any(answer.outcome == "done" for answer in answers)
    assert {answer.outcome for answer in answers} == {"cut", "done"}


def test_a_load_on_a_dead_engine_ends_at_once() -> None:
    async def scene(_: Engine, client: Client) -> list[Answer]:
        never = (ask(FOR_EVER) for _ in itertools.count())
        return await load_for(client, never, in_flight=2, seconds=3600, alive=lambda: False)

    assert played(scene) == []


def test_a_server_that_is_gone_is_a_failure_with_its_reason() -> None:
    async def scene() -> Answer:
        async with Client(1) as client:  # nothing listens on port 1
            return await client.ask(ask(WHOLE))

    answer = asyncio.run(scene())
    assert answer.outcome == "failed"
    assert "Connect" in answer.reason


def test_a_fixed_load_asks_each_request_once() -> None:
    async def scene(engine: Engine, client: Client) -> tuple[int, list[Answer]]:
        answers = await load_all(client, [ask(WHOLE)] * 7, in_flight=3)
        assert engine.most_open <= 3
        return engine.asked, answers

    asked, answers = played(scene)
    assert asked == len(answers) == 7


def test_the_pool_is_read_from_metrics_and_is_unknown_where_they_are_silent() -> None:
    text = (
        "# HELP vllm:kv_cache_usage_perc x\n"
        'vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.75\n'
        'vllm:num_requests_waiting{engine="0"} 12.0\n'
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0\n'
    )
    assert parse(text) == PoolState(usage=0.75, running=None, waiting=12.0, preemptions=None)
