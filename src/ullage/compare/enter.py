"""Run a program inside a memory group that it sees as the root, as in a container.

    python -m ullage.compare.enter VERSION GROUP MOUNT_POINT PROGRAM [ARGUMENT ...]

The process joins the group first and leaves its cgroup namespace after, so that the group becomes
the root of the new namespace (cgroup_namespaces(7)); a bind mount, private to the process and its
children, shows its directory where the hierarchy's root is mounted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ullage.drivers import namespaces
from ullage.drivers.memory_group import MemoryGroup


def enter(group: MemoryGroup, mount_point: str) -> None:
    """Put the calling process into `group`.  Raises OSError where that is not permitted."""
    group.join()
    namespaces.unshare(namespaces.CLONE_NEWCGROUP | namespaces.CLONE_NEWNS)
    namespaces.make_mounts_private()
    namespaces.bind(str(group.path), mount_point)


def main() -> None:
    version, path, mount_point, *program = sys.argv[1:]
    group = MemoryGroup(version=2 if version == "2" else 1, path=Path(path))
    try:
        enter(group, mount_point)
        os.execvp(program[0], program)  # noqa: S606 - an argument list, never a shell
    except OSError as error:
        sys.exit(f"cannot enter the memory group: {error}")


if __name__ == "__main__":
    main()
