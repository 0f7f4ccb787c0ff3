"""Two real engines under one limit: the second one gets what the first one got."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from engines import tiny_model

from ullage.compare.container import container
from ullage.compare.counters import Sampler
from ullage.compare.run import cpu_list
from ullage.compare.server import (
    Server,
    ServerSettings,
    environment,
    free_port,
    inherited_environment,
    running,
    server_command,
)
from ullage.errors import NotEnforced
from ullage.leases import LeaseFolder
from ullage.units import GIB

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="needs vLLM")

LIMIT_BYTES = 4 * GIB


def test_two_halves_get_the_same_blocks_one_after_the_other_and_leave_nothing():
    cpus = cpu_list(os.sched_getaffinity(0))
    with ExitStack() as undo:
        # Sockets lie below it, and pytest's own folders are too long for them (unix(7): 107 bytes).
        scratch = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        try:
            inside = undo.enter_context(container(LIMIT_BYTES))
        except NotEnforced as error:
            pytest.skip(str(error))
        sampler = undo.enter_context(Sampler(inside.group))
        folder = LeaseFolder(scratch / "ullage")
        servers = undo.enter_context(ExitStack())
        blocks = []
        for name in ("one", "other"):
            (scratch / name).mkdir()
            settings = ServerSettings(
                model=tiny_model(),
                dtype="float32",
                compiled=False,
                max_model_len=512,
                max_num_batched_tokens=512,
                max_num_seqs=8,
                cpus=cpus,
                port=None,
                extra=(),
            )
            side = {
                "ULLAGE": "1",
                "ULLAGE_STRICT": "1",
                "ULLAGE_SHARE": "1/2",
                "XDG_RUNTIME_DIR": str(scratch),
            }
            env = environment(inherited_environment(), side, scratch / name, cpus)
            port = free_port()
            command = server_command(settings, (), port)
            log = scratch / f"{name}.log"
            server = servers.enter_context(running(inside, command, env, log, port))
            server.wait_ready()
            blocks.append(committed_blocks(server))
        living = folder.read().living
        servers.close()
        assert folder.read().living == ()
        counters = sampler.counters()
    assert abs(blocks[0] - blocks[1]) <= 1
    assert [lease.share for lease in living] == ["1/2", "1/2"]
    assert sum(lease.promised_bytes for lease in living) < LIMIT_BYTES
    assert counters.oom_kills == 0
    assert (counters.peak_unreclaimable_bytes or 0) < LIMIT_BYTES


def committed_blocks(server: Server) -> int:
    (blocks,) = re.findall(r"ullage committed (\d+) blocks", server.log.read_text(errors="replace"))
    return int(blocks)
