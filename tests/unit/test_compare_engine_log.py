"""What is read from an engine's log, and what a refusal says about the next value to try."""

from __future__ import annotations

from ullage.compare.engine_log import (
    available_bytes,
    error_line,
    kv_tokens,
    plugin_acted,
    requested_for_kv_bytes,
)
from ullage.compare.tune import (
    EXPLICIT,
    Tried,
    doubts,
    lasting,
    outcome,
    probe,
    utilization,
)
from ullage.report.comparison import Start
from ullage.units import GIB, MIB

AT_START_UP = (
    "ValueError: Available memory on node 0 (2.3/4.0 GiB) on startup is less than desired CPU "
    "memory utilization (0.92, 3.68 GiB). On the CPU backend, the `--gpu-memory-utilization` flag "
    "controls the fraction of CPU memory reserved (despite its name)."
)
AT_THE_CACHE = (
    "ValueError: Available memory on node 0 (0.5/4.0 GiB) on kv cache allocation is less than "
    "requested memory for kv (0.7/2.3 GiB). Reduce CPU memory used by other processes."
)
WEIGHTS_TOOK_ALL = AT_THE_CACHE.replace("(0.7/2.3 GiB)", "(-0.2/1.4 GiB)")
EXPLICIT_TOO_LARGE = (
    "ValueError: Available memory on node 0 (0.5/4.0 GiB) on kv cache allocation is less than "
    "requested memory for kv (2.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, "
    "or reduce CPU memory used by other processes."
)


def refused(error: str) -> Start:
    return Start(started=False, error=error)


def served(kv_tokens: int) -> Start:
    return Start(started=True, error=None, kv_tokens=kv_tokens, failed=0, oom_kills=0)


def test_the_cache_is_the_last_one_that_the_log_names() -> None:
    lines = ["x CPU KV cache size: 4,608 tokens, Maximum", "y GPU KV cache size: 36,992 tokens"]
    assert kv_tokens(lines) == 36_992
    assert kv_tokens(["nothing of the kind"]) is None


def test_ullage_s_own_refusal_is_the_reason_whatever_its_name_and_whatever_follows() -> None:
    refusal = "DoesNotFit: No KV cache fits into 2.00 GiB: it is so. Raise the memory limit."
    log = [
        "(Worker pid=9) ERROR 11-30 18:37:00 [multiproc_executor.py:1063] WorkerProc failed",
        f"(Worker pid=9) ERROR 11-30 18:37:00 [multiproc_executor.py:1063] ullage.errors.{refusal}",
        f"(EngineCore pid=8) ERROR 11-30 18:37:01 [core.py:1100] RuntimeError: {refusal}",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert error_line(log) == refusal


def test_the_reason_is_told_and_not_its_echo() -> None:
    log = [
        f"(Worker pid=1) ERROR 11-30 18:37:00 [multiproc_executor.py:1063] {AT_START_UP}",
        "(EngineCore pid=2) Exception: WorkerProc initialization failed due to an exception",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert error_line(log) == AT_START_UP


def test_an_echo_is_better_than_nothing() -> None:
    assert error_line(["RuntimeError: Engine core initialization failed."]) is not None
    assert error_line(["INFO all is well"]) is None


def test_refusals_name_their_numbers() -> None:
    assert available_bytes(AT_START_UP) == int(2.3 * GIB)
    assert requested_for_kv_bytes(AT_START_UP) is None
    assert requested_for_kv_bytes(AT_THE_CACHE) == int(0.7 * GIB)
    assert available_bytes("RuntimeError: something else") is None


def test_a_start_up_refusal_hints_at_what_was_available() -> None:
    hint = probe(int(3.68 * GIB), refused(AT_START_UP)).hint_bytes
    assert hint is not None
    assert 2.28 * GIB < hint < 2.3 * GIB


def test_a_refusal_at_the_cache_hints_at_less_by_the_excess() -> None:
    hint = probe(int(2.3 * GIB), refused(AT_THE_CACHE)).hint_bytes
    assert hint is not None
    assert 2.08 * GIB < hint < 2.1 * GIB
    hint = probe(2 * GIB, refused(EXPLICIT_TOO_LARGE)).hint_bytes
    assert hint is not None
    assert 0.48 * GIB < hint < 0.5 * GIB


def test_a_value_below_the_weights_or_one_sequence_is_too_little() -> None:
    assert probe(GIB, refused(WEIGHTS_TOOK_ALL)).verdict == "too_little"
    one_sequence = (
        "ValueError: To serve at least one request with the model's max seq len (2048), (0.16 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (0.1 GiB)."
    )
    assert probe(100 * MIB, refused(one_sequence)).verdict == "too_little"


def test_a_start_that_fails_under_load_is_too_much() -> None:
    killed = Start(started=True, error="killed", kv_tokens=9_999, failed=3, oom_kills=1)
    assert probe(GIB, killed).verdict == "too_much"
    assert probe(GIB, served(1)).verdict == "works"


def test_a_client_that_fails_without_a_kill_is_a_doubt_and_told() -> None:
    client = Start(started=True, error="the client ended with code 1", failed=3, oom_kills=0)
    died = Start(started=True, error="RuntimeError: out", failed=3, oom_kills=0)
    unanswered = Start(started=True, error=None, failed=3, oom_kills=0)
    tried = [Tried(flags=("--a", str(n)), start=each) for n, each in enumerate([client, died])]
    assert probe(GIB, client).verdict == "too_much"
    assert doubts(tried) == ("--a 0 was taken for too much, although the client ended with code 1",)
    assert outcome(client).startswith("not for lack of memory: the client ended")
    assert "the engine lived and 3 requests failed" in outcome(unanswered)
    assert outcome(died) == "3 requests failed, 0 OOM kills"


def test_the_plugins_own_line_tells_that_it_acted() -> None:
    line = "(Worker) INFO 11-30 [cpu_worker.py:109] ullage committed 2312 blocks, 1.4 GiB, at"
    assert plugin_acted(["x", line])
    assert not plugin_acted(["ullage commits 2312 blocks.", "CPU KV cache size: 36,992 tokens"])


def test_the_better_knob_wins_by_tokens() -> None:
    tried = [
        Tried(flags=EXPLICIT.flags(GIB), start=served(100)),
        Tried(flags=utilization(4 * GIB).flags(GIB), start=served(200)),
        Tried(flags=EXPLICIT.flags(2 * GIB), start=refused(EXPLICIT_TOO_LARGE)),
    ]
    assert lasting(tried, lambda *_: served(200)) == (("--gpu-memory-utilization", "0.2500"), ())
    assert lasting(tried[2:], lambda *_: served(1)) == (None, ())


def test_a_setting_that_serves_once_and_not_again_is_passed_over_and_told() -> None:
    """Near the limit it is luck whether a start survives its load."""
    tried = [
        Tried(flags=("--a", "1"), start=served(19_840)),
        Tried(flags=("--a", "2"), start=served(17_024)),
        Tried(flags=("--a", "3"), start=served(11_392)),
    ]
    killed = Start(started=True, error="killed", kv_tokens=19_840, failed=40, oom_kills=1)
    calls: list[tuple[str, int]] = []

    def again(flags: tuple[str, ...], number: int) -> Start:
        calls.append((flags[1], number))
        return killed if (flags[1], number) in {("1", 2), ("2", 3)} else served(1)

    flags, fell = lasting(tried, again)
    assert flags == ("--a", "3")
    assert fell == (
        "--a 1 (19,840 tokens) served once, and at start 2: 40 requests failed, 1 OOM kills",
        "--a 2 (17,024 tokens) served once, and at start 3: 40 requests failed, 1 OOM kills",
    )
    assert calls == [("1", 2), ("2", 2), ("2", 3), ("3", 2), ("3", 3)]
