"""The log of a daemon in the background does not grow without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LOGS = """
import logging, os, sys
from pathlib import Path
from autotune.commands.daemon.daemon import log_to_standard_error
log_to_standard_error(Path(sys.argv[1]), 2000)
for number in range(200):
    logging.getLogger("autotune.daemon").info("stage %d", number)
    if number % 50 == 49:
        os.write(2, b"raw %d\\n" % number)
"""


def test_a_full_log_goes_on_in_an_empty_file_with_all_that_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    with path.open("ab") as log:
        subprocess.run([sys.executable, "-c", _LOGS, str(path)], check=True, stdout=log, stderr=log)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["daemon.log", "daemon.log.1"]
    now = path.read_text()
    before = path.with_name("daemon.log.1").read_text()
    assert len(now) < 2100 and len(before) < 2100
    assert now.endswith("stage 199\nraw 199\n")
    last = [int(line.split()[-1]) for line in (before + now).splitlines() if "stage" in line]
    assert last == list(range(last[0], 200))
