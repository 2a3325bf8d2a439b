"""Python runs this as it starts, where it is on the path: workers then write down when they held which CPUs."""

import json
import os
import time
from contextlib import contextmanager

from autotune.machine import leases

_real = leases.lease


@contextmanager
def _recorded(folder, names, wait_s):
    names = list(names)
    with _real(folder, names, wait_s):
        begin = time.monotonic()
        try:
            yield
        finally:
            line = {"begin": begin, "end": time.monotonic(), "names": names, "cpus": sorted(os.sched_getaffinity(0))}
            record = os.open(os.environ["LEASE_RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(record, json.dumps(line).encode() + b"\n")
            os.close(record)


leases.lease = _recorded
