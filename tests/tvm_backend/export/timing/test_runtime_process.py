"""A process with a runtime: what it answers, and how its end is told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from autotune.errors import WorkerCrashed, WorkerError
from autotune.tvm_backend.export.timing import runtime_process
from autotune.tvm_backend.export.timing.runtime_process import RuntimeProcess

ANSWERS = """
import json, sys
request = json.loads(sys.stdin.readline())
print("{}", flush=True)
sys.stdin.readline()
print(json.dumps({"request": request}), flush=True)
for index, _ in enumerate(sys.stdin):
    print(json.dumps({"ms": index + 0.5} if index < 2 else {"error": "it is tired"}), flush=True)
"""


def process(program: str) -> RuntimeProcess:
    return RuntimeProcess("ours", {"model": "m.so"}, 3, ("-c", program))


def test_each_timing_is_asked_for() -> None:
    with process(ANSWERS) as made:
        made.imported()
        assert made.load() == {"request": {"model": "m.so"}}
        assert [made.time(), made.time()] == [0.5, 1.5]
        with pytest.raises(WorkerError, match=r"^ours cannot run the model: it is tired$"):
            made.time()


def test_the_process_gets_its_threads_and_its_end() -> None:
    says = "import json, os, time; print(json.dumps({'n': os.environ['TVM_NUM_THREADS'], 'pid': os.getpid()})); "
    with process(says + "print(flush=True); time.sleep(600)") as made:
        answer = made.load()
        assert answer["n"] == "3"
    with pytest.raises(ProcessLookupError):
        os.kill(answer["pid"], 0)


def test_a_process_that_the_runtime_has_forked_is_not_waited_for() -> None:
    """As one that OpenVINO forks to report its use, which may hang with the pipes open."""
    forks = "import os, time; child = os.fork() or time.sleep(60); print('{\"child\": %d}' % child, flush=True)"
    with process(f"{forks}; time.sleep(60)") as made:
        child = made.load()["child"]
        began = time.monotonic()
    assert time.monotonic() - began < 30
    os.kill(child, signal.SIGKILL)  # it is still there


def test_a_run_that_does_not_end_is_ended_with_a_word_on_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_process, "MAX_S", 0.1)
    with (
        process("import time; time.sleep(600)") as made,
        pytest.raises(WorkerError, match=r"^ours has not answered in 0.1 s: .*; let the daemon run on"),
    ):
        made.load()


def test_processes_import_their_runtimes_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other's file, and answers nothing before."""
    waits = "import os, sys, time; own, other = {}; open(own, 'w').close()"
    code = f"{waits}\nwhile not os.path.exists(other): time.sleep(0.01)\nprint('{{}}')"
    files = [str(tmp_path / name) for name in "ab"]
    texts = [code.replace("{}", repr(order), 1) for order in (files, files[::-1])]
    with process(texts[0]) as one, process(texts[1]) as other:
        one.imported()
        other.imported()


def test_the_time_that_a_process_takes_to_answer_is_known() -> None:
    with process("import time; time.sleep(0.2); print('{}')") as made:
        made.imported()
        assert made.waited_s >= 0.2


@pytest.mark.parametrize("begins", ["", "import sys; sys.stdin.readline(); print('{}', flush=True); "])
def test_a_process_that_dies_is_told_with_its_last_words(begins: str) -> None:
    dies = begins + "import os; os.write(2, b'a\\nno such instruction\\n'); os._exit(7)"
    said = r"^the process that ran ours died \(7\): no such instruction$"
    with pytest.raises(WorkerCrashed, match=said), process(dies) as made:
        made.imported()
        made.time()
