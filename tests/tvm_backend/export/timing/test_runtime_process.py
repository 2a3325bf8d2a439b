"""A process with a runtime: what it answers, and how its end is told."""

from __future__ import annotations

import os

import pytest

from autotune.errors import WorkerCrashed, WorkerError
from autotune.tvm_backend.export.timing.runtime_process import RuntimeProcess

ANSWERS = """
import json, sys
print(json.dumps({"request": json.loads(sys.stdin.readline())}), flush=True)
for index, _ in enumerate(sys.stdin):
    print(json.dumps({"ms": index + 0.5} if index < 2 else {"error": "it is tired"}), flush=True)
"""


def process(program: str) -> RuntimeProcess:
    return RuntimeProcess("ours", {"model": "m.so"}, 3, ("-c", program))


def test_each_timing_is_asked_for() -> None:
    with process(ANSWERS) as made:
        assert made.answer == {"request": {"model": "m.so"}}
        assert [made.time(), made.time()] == [0.5, 1.5]
        with pytest.raises(WorkerError, match=r"^ours cannot run the model: it is tired$"):
            made.time()


def test_the_process_gets_its_threads_and_its_end() -> None:
    says = "import json, os, time; print(json.dumps({'n': os.environ['TVM_NUM_THREADS'], 'pid': os.getpid()})); "
    with process(says + "print(flush=True); time.sleep(600)") as made:
        assert made.answer["n"] == "3"
    with pytest.raises(ProcessLookupError):
        os.kill(made.answer["pid"], 0)


def test_the_time_of_its_answers_is_known() -> None:
    with process("import time; time.sleep(0.2); print('{}')") as made:
        assert made.waited_s >= 0.2


@pytest.mark.parametrize("begins", ["", "import sys; sys.stdin.readline(); print('{}', flush=True); "])
def test_a_process_that_dies_is_told_with_its_last_words(begins: str) -> None:
    dies = begins + "import os; os.write(2, b'a\\nno such instruction\\n'); os._exit(7)"
    said = r"^the process that ran ours died \(7\): no such instruction$"
    with pytest.raises(WorkerCrashed, match=said), process(dies) as made:
        made.time()
