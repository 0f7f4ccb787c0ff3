"""vLLM's Ray executor on the CPU platform, which vLLM 0.32 itself refuses.

`initialize_ray_cluster` raises where the platform names no resource of Ray's
("current platform cpu does not support ray."), and CpuPlatform names none.  Here it says "GPU", and
a local Ray is told that it has as many as there are ranks.
"""

from __future__ import annotations

from typing import Any

import ray
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.executor import ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2, RayWorkerProc

CpuPlatform.ray_device_key = "GPU"


class CpuRayWorkerProc(RayWorkerProc):
    """Ray's processes import it from this module, and so have the line above."""


class CpuRayExecutor(RayExecutorV2):
    def _init_executor(self) -> None:
        ranks = self.parallel_config.world_size
        ray.init(num_gpus=ranks, include_dashboard=False, object_store_memory=128 << 20)
        ray_executor_v2.RayWorkerProc = CpuRayWorkerProc
        super()._init_executor()

    def _build_runtime_env(self) -> dict[str, Any]:
        """The multiprocessing executor binds each worker's threads; Ray's leaves that out."""
        environment: dict[str, Any] = super()._build_runtime_env()
        environment["env_vars"]["OMP_NUM_THREADS"] = "1"
        return environment
