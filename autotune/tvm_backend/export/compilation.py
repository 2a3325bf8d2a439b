"""Compile a whole model, a job's or another, with the best schedule of every task or with none.

The modules of several sets of shapes are joined into one, with a function for each and one copy of what they share.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax
from tvm.s_tir import dlight
from tvm.s_tir.meta_schedule.database import MemoryDatabase

from autotune import strategies
from autotune.errors import VerificationError, WorkerError
from autotune.network_plan.plan import Plan
from autotune.storage.formats import Candidate, JobSpec, Trial
from autotune.storage.job_files import read_plan
from autotune.storage.kept_objects import KeptObjects
from autotune.storage.paths import JobPaths
from autotune.strategies import samplers
from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.codegen.row_vectors import record_to_compile, without_guarded_vectors
from autotune.tvm_backend.export.mapped_weights import MappedWeights, map_weights
from autotune.tvm_backend.export.submitted import OnnxModel, submitted
from autotune.tvm_backend.graph.joined_modules import Joiner
from autotune.tvm_backend.graph.joined_tables import join_tables
from autotune.tvm_backend.graph.open_loops import compose_loops, fuse_bodies
from autotune.tvm_backend.graph.tensor_objects import share_objects
from autotune.tvm_backend.kernels.build_kernel import linking, lowering
from autotune.tvm_backend.kernels.object_cache import kernel_objects, linked_pipeline, without_kernels
from autotune.tvm_backend.lowering import finish, prepare
from autotune.tvm_backend.search import propose
from autotune.tvm_backend.search.cost_model import prior
from autotune.tvm_backend.search.design_space import is_too_wide
from autotune.tvm_backend.search.evolutionary import EvolutionParameters, propose_without_knobs
from autotune.tvm_backend.search.knobs import Knobs
from autotune.tvm_backend.search.tasks import extract_programs, task_hash
from autotune.tvm_backend.target import tvm_target
from autotune.tvm_backend.types import Database, Executable, IRModule, Target
from autotune.tvm_backend.vector_math import registry

_DEFAULT_SEED = 1


@dataclass(frozen=True)
class JobModel:
    """A model with a function for each set of shapes.

    Attributes:
        prepared: The model after the passes.
        programs: The tensor programs of its tasks.
        target: What it is compiled for.
    """

    imported: IRModule
    prepared: IRModule
    programs: tuple[IRModule, ...]
    target: Target

    @classmethod
    def read(cls, paths: JobPaths, spec: JobSpec) -> JobModel:
        """Read the copy of the model that was submitted, and extract its tasks again.

        Args:
            paths: The files of the job.

        Raises:
            VerificationError: They are not those that were submitted.
        """
        target = tvm_target(spec.target)
        imported = Joiner()
        prepared = Joiner()
        programs = dict[str, IRModule]()
        plan = read_plan(paths)
        for entry, model in zip(spec.all_entries, submitted(paths, spec), strict=True):
            module = model.module()
            lowered = prepare_by_plan(module, target, spec, plan)
            # Of equal programs, whose blocks may have other names, the first is that in the joined module.
            programs = extract_programs(lowered, target) | programs
            imported.add(entry.name, module)
            prepared.add(entry.name, lowered)
        used = {task.hash for task in spec.tasks if task.weight}
        lost = set(programs) ^ used
        if lost:
            raise VerificationError(
                f"the model has other tasks than when it was submitted ({len(lost)} differ); submit it again"
            )
        return cls(imported.module(), prepared.module(), tuple(programs.values()), target)

    @classmethod
    def with_outputs(cls, paths: JobPaths, spec: JobSpec, index: int, names: Sequence[str]) -> JobModel:
        """Read an ONNX model at one of its sets of shapes, with more outputs. Most of its tasks are those of the job.

        Args:
            paths: The files of the job.
            names: Tensors of its graph that it puts out, too, after its outputs.
        """
        target = tvm_target(spec.target)
        model = submitted(paths, spec)[index]
        assert isinstance(model, OnnxModel), "other models have no tensors with names"
        module = model.module_with(names)
        lowered = prepare_as_submitted(module, target, paths, spec)
        imported = Joiner()
        prepared = Joiner()
        imported.add(spec.all_entries[index].name, module)
        prepared.add(spec.all_entries[index].name, lowered)
        return cls(imported.module(), prepared.module(), tuple(extract_programs(lowered, target).values()), target)

    def compile_tuned(
        self,
        best: Mapping[str, Trial],
        library: Path,
        *,
        cuda_graph: bool = False,
        kept: KeptObjects | None = None,
        children: int = 0,
    ) -> tuple[IRModule, Executable]:
        """Write the library with the best trial of each task.

        Args:
            best: The trials, by the hash of the task.
            library: The file to write.
            cuda_graph: That of `finish`.
            kept: For CPUs, where compiled kernels are kept, so that those that are there are linked only; None to
                compile all of them together.
            children: How many processes compile those that are not there at the same time; 0 to compile in this one.

        Returns:
            The module as it was lowered, and the executable, which lacks the kernels that were linked.
        """
        lowered = lower_tuned(self.prepared, self.programs, best, self.target, cuda_graph=cuda_graph)
        return lowered, self._write(lowered, library, kept, children)

    def _write(
        self, lowered: IRModule, library: Path, kept: KeptObjects | None = None, children: int = 0
    ) -> Executable:
        triple = str(self.target.attrs.get("mtriple") or "")
        on_cpu = self.target.kind.name == "llvm"
        module, weights = map_weights(lowered, triple) if on_cpu else (lowered, MappedWeights(()))
        kernels = kernel_objects(module, self.target, kept, children) if on_cpu and kept and kept.most_bytes else {}
        executable = build_lowered(module, self.target, linked=bool(kernels))
        with tempfile.TemporaryDirectory() as folder:
            objects = weights.objects(Path(folder), triple) + _written(Path(folder), kernels)
            executable.export_library(str(library), fcompile=linking(self.target, objects=objects))
        return executable

    def compile_untuned(self, library: Path) -> None:
        """Write the library that TVM makes by default."""
        linking_alone = linking(self.target, pool=False)  # it stands for what TVM does by itself
        compile_untuned(self.imported, self.target).export_library(str(library), fcompile=linking_alone)


def _written(folder: Path, objects: Mapping[str, bytes]) -> list[str]:
    """Write object files to a folder, and return their paths."""
    paths = [folder / f"kernel-{number}.o" for number in range(len(objects))]
    for path, content in zip(paths, objects.values(), strict=True):
        path.write_bytes(content)
    return list(map(str, paths))


def prepare_as_submitted(module: IRModule, target: Target, paths: JobPaths, spec: JobSpec) -> IRModule:
    """Prepare the imported model of a job as `submit` did."""
    return prepare_by_plan(module, target, spec, read_plan(paths))


def prepare_by_plan(module: IRModule, target: Target, spec: JobSpec, plan: Plan) -> IRModule:
    """Prepare the imported model of a job by a plan."""
    return prepare(
        module,
        target,
        winograd=spec.winograd,
        precision=spec.precision,
        activations=spec.activations,
        plan=plan,
        memory_mb=spec.memory_mb,
    )


def compile_untuned(module: IRModule, target: Target) -> Executable:
    """Compile an imported model with TVM's default pipeline.

    Returns:
        The executable.
    """
    with target, tvm.transform.PassContext(opt_level=3), registry.library_functions():
        return relax.build(compose_loops(fuse_bodies(module)), target=target)


def compile_tuned(
    prepared: IRModule, programs: Iterable[IRModule], best: Mapping[str, Trial], target: Target
) -> Executable:
    """Compile a prepared model with the best schedules.

    Args:
        prepared: The module that `prepare` returned.
        programs: The tensor programs of its tasks.
        best: The best trial of each task, by the hash of its program. A task without a trial gets the schedule that the
            prior predicts to be the fastest, or any valid schedule if there is no prior.

    Returns:
        The executable.
    """
    return build_lowered(lower_tuned(prepared, programs, best, target), target)


def build_lowered(lowered: IRModule, target: Target, *, linked: bool = False) -> Executable:
    """Compile a module that `lower_tuned` returned, and return the executable; `linked` leaves its kernels out."""
    if target.kind.name == "llvm":  # a CUDA graph keeps tensors from the call that records it to those that launch it
        lowered = share_objects(lowered)
    module = without_kernels(lowered) if linked else lowered
    passes = linked_pipeline(target) if linked else pipeline(target)
    with target, lowering(lowered, target):  # without the target TVM would compile CUDA for the GPU that is here
        return relax.build(module, target=target, relax_pipeline=None, tir_pipeline=passes)


def lower_tuned(
    prepared: IRModule,
    programs: Iterable[IRModule],
    best: Mapping[str, Trial],
    target: Target,
    *,
    cuda_graph: bool = False,
) -> IRModule:
    """Schedule a prepared model as `compile_tuned` does, and lower it to what `build_lowered` compiles.

    `cuda_graph` is that of `finish`.
    """
    database = _database(programs, best, target)
    with target, database, tvm.transform.PassContext(opt_level=3):
        scheduled = relax.transform.MetaScheduleApplyDatabase()(prepared)
        if target.kind.name != "llvm":
            rules = [dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction()]
            rules += [dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()]
            scheduled = dlight.ApplyDefaultSchedule(*rules)(scheduled)
    return finish(compose_loops(join_tables(scheduled, target)), target, cuda_graph=cuda_graph)


def _database(programs: Iterable[IRModule], best: Mapping[str, Trial], target: Target) -> Database:
    database = MemoryDatabase()
    for program in programs:
        best_trial = best.get(task_hash(program))
        trial = best_trial or _default_trial(program, target)
        if trial is not None:
            workload = database.commit_workload(program)
            record = record_to_compile(trial, workload, target)
            database.commit_tuning_record(record if best_trial else without_guarded_vectors(record, workload, target))
    return database


def _default_trial(program: IRModule, target: Target) -> Trial | None:
    """Choose a schedule for a program without trials. The choice is the same every time.

    It is one that is known to be good. For other programs, it is the one that the prior predicts to be the fastest, if
    there is a prior for the kind of target.

    Returns:
        The schedule as a trial; None if TVM finds none, the program is too wide or the target is a GPU.
    """
    if target.kind.name != "llvm" or is_too_wide(program):
        return None  # the default schedules for GPUs are better than a random one
    candidate = propose.by_hand(program) or propose.by_rule(program) or _by_prior(program, target)
    if candidate is None:
        tiny = EvolutionParameters(population=8, generations=0, init_unmeasured=1, mutation_probability=0.0)
        request = propose.Request((), (), 1, None, _DEFAULT_SEED)
        candidate = next(iter(propose_without_knobs(program, target, request, tiny).candidates), None)
    return Trial(candidate.hash, candidate.trace, candidate.args, (1.0,), None, "", 0, 0.0) if candidate else None


def _by_prior(program: IRModule, target: Target) -> Candidate | None:
    request = propose.Request((), (), 1, prior(target.kind.name), _DEFAULT_SEED)
    try:
        proposal = propose.propose(
            Knobs(program, target), strategies.get("beam"), samplers.make("greedy", 0.0, True), request
        )
    except WorkerError:  # strategies cannot search this design space
        return None
    return proposal.candidates[0] if proposal.candidates else None
