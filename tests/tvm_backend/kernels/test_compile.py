"""What is compiled is what the schedule says, and a candidate is not to blame for a machine that starts no linker."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import ProcessRefused, WorkerError
from autotune.tvm_backend.kernels.compile import link_shared, lowering


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_starts_no_linker_is_the_machines_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ProcessRefused, match="starts no more processes"):
        link_shared(str(tmp_path / "out.so"), [])


def test_what_the_linker_refuses_is_the_candidates_problem(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.o"
    damaged.write_bytes(b"no object file")
    with pytest.raises(WorkerError, match="failed"):
        link_shared(str(tmp_path / "out.so"), [str(damaged)])


def test_a_sketch_with_a_pipeline_copies_asynchronously(matmul_of: Any) -> None:
    """Its kernel's source has the instructions that copy, and not only those that wait for copies."""
    import tvm

    from autotune.tvm_backend.load import load_tvm
    from autotune.tvm_backend.search.knobs import Knobs
    from autotune.tvm_backend.target import resolve_target, tvm_target

    load_tvm("cuda")
    target = tvm_target(resolve_target('{"kind": "cuda", "arch": "sm_80"}', 1).description)
    knobs = Knobs(matmul_of(256), target)
    pipelined = next(index for index, (steps, _) in enumerate(knobs.sketches()) if "async_stages" in str(steps))
    rng = np.random.default_rng(1)
    sizes = [len(knob.values) for knob in knobs.space.knobs[1:]]
    drawn = ((pipelined, *map(int, rng.integers(sizes))) for _ in range(200))
    applied = next(filter(None, map(knobs.apply, drawn)))
    with target, lowering(applied.schedule.mod, target):
        source = tvm.tirx.build(applied.schedule.mod, target=target).imports[0].inspect_source()
    assert "cp.async.ca.shared" in source or "cp.async.cg.shared" in source
