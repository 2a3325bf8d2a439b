"""Whether this machine can do what a worker is there for: asked once for each target, before its first stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.device_settings import BoardSettings
from autotune.errors import MachineProblem
from autotune.machine.gpus import KIND, CudaDevice
from autotune.storage.formats import SIMULATED, JobSpec
from autotune.tvm_backend.load import Installation
from autotune.tvm_backend.target import check_board_job, check_here


@dataclass
class Fitness:
    """What one worker knows of its machine.

    A stage runs in a forked child, which inherits the targets that are `known` to work here, and hands the one that
    it tried out itself, `tried`, back to its worker.
    """

    installed: Installation = field(default_factory=Installation.now)
    known: set[str] = field(default_factory=set)
    tried: str = ""

    def check_installation(self) -> None:
        """Ask whether the TVM that this worker has loaded is still the one on the disk.

        Raises:
            MachineProblem: it is not, so that its parts no longer fit together in memory; the worker has to go.
        """
        if Installation.now() != self.installed:
            raise MachineProblem("TVM was changed while its worker was running; a new worker is started")

    def check_job(
        self,
        spec: JobSpec,
        gpu: CudaDevice | None = None,
        *,
        board: BoardSettings | None = None,
        cross: bool = False,
        answers: bool = True,
    ) -> None:
        """Ask whether a job is for this machine, and whether its target works here.

        Args:
            gpu: what the stage measures on, if that is a GPU.
            board: the settings of the boards that the job is for, if there are such.
            cross: whether it is measured on CPUs of another model, and this machine only searches and builds for it.
            answers: whether it has to compute right.

        Raises:
            MachineProblem: it was submitted elsewhere, or this machine cannot build or run what is compiled for it.
        """
        if spec.board:
            check_board_job(spec.target, spec.target_key, spec.board, board)
            self._check_cross_build(spec.target)
        elif cross:
            self._check_cross_build(spec.target)
        elif spec.target_kind != SIMULATED:
            check_here(spec.target, spec.target_key, spec.machine)
            self.check_target(spec.target, gpu, answers=answers)

    def _check_cross_build(self, target: Mapping[str, Any]) -> None:
        from autotune.tvm_backend.kernels.probe import check_cross_build

        key = json.dumps(["cross", target], sort_keys=True)
        if key not in self.known:
            check_cross_build(target)
            self.tried = key

    def check_target(self, target: Mapping[str, Any], gpu: CudaDevice | None = None, *, answers: bool = True) -> None:
        """Try the target out, and the GPU if there is one, unless that was done before.

        Raises:
            MachineProblem: this machine cannot build or run what is compiled for it.
        """
        from autotune.tvm_backend.kernels.gpu_probe import check_build, check_gpu
        from autotune.tvm_backend.kernels.probe import check_machine

        key = json.dumps([target, gpu and gpu.uuid, gpu and gpu.index], sort_keys=True)
        if key in self.known:
            return
        check_machine(target)
        if gpu is not None:
            check_gpu(target, gpu, answers=answers)
        elif target["kind"] == KIND:
            check_build(target)
        self.tried = key
