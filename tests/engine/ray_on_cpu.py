"""vLLM's Ray executor on the CPU platform, which vLLM 0.32 itself refuses.

`initialize_ray_cluster` raises where the platform names no resource of Ray's
("current platform cpu does not support ray."), and CpuPlatform names none.  Here it says "GPU", and
a local Ray is told that it has as many as there are ranks.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms.cpu import CpuPlatform
from vllm.v1.executor import ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2, RayWorkerProc

CpuPlatform.ray_device_key = "GPU"


class CpuRayWorkerProc(RayWorkerProc):
    """Ray's processes import it from this module, and so have the line above."""

    def initialize_worker(self, local_rank: int, *args: Any, **kwargs: Any) -> None:
        # The multiprocessing executor binds each worker's threads; this one leaves that out.
        cores = sorted(os.sched_getaffinity(0))
        os.environ["OMP_NUM_THREADS"] = "1"
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
        super().initialize_worker(local_rank, *args, **kwargs)


class CpuRayExecutor(RayExecutorV2):
    def _init_executor(self) -> None:
        import ray

        if not ray.is_initialized():
            ranks = self.parallel_config.world_size
            ray.init(num_gpus=ranks, include_dashboard=False, object_store_memory=128 << 20)
        ray_executor_v2.RayWorkerProc = CpuRayWorkerProc
        super()._init_executor()
