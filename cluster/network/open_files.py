"""The number of files that a process may have open. Connections of strangers count until they are dropped."""

import resource


def allow_open_files(number: int) -> int:
    """Raise this process's soft limit of open files to `number`, as far as its hard limit permits. Returns how many
    files may be open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return number
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
