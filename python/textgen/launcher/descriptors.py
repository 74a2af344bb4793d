"""Room for connections: each is a file descriptor, of which a process may have few until it asks for more."""

from __future__ import annotations

import resource

SPARE = 256  # files, sockets to shards, what the runtime opens for itself


def make_room(connections: int) -> str | None:
    """Raise the soft limit of open files to what connections need; a warning when the hard limit is below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= wanted:
        return None
    return (
        f"--max-connections {connections} needs {wanted} open files and the system allows {hard}: "
        f"raise its hard limit (ulimit -Hn) or lower --max-connections to {max(1, hard - SPARE)}"
    )
