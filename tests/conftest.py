"""A workspace, and jobs in it as `submit` would publish them, without reading a model."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import filelock
import pytest

from autotune.options import InputSpec
from autotune.storage import formats
from autotune.storage.formats import Control, JobSpec, JobState, StageFile, TaskSpec
from autotune.storage.job_files import seal_of
from autotune.storage.paths import JobPaths, Workspace
from autotune.workers.worker import SINGLE_THREADED

from .cuda_stand_in import StandIn, compile_libraries
from .lite_network import Network
from .rpc_lab import Lab
from .suite_report import SuiteReport, add_options, making

TARGETS: dict[str, dict[str, Any]] = {
    "llvm": {"kind": "llvm", "mcpu": "x86-64", "num-cores": 1},
    "cuda": {"kind": "cuda", "arch": "sm_90"},
    "simulated": {"kind": "simulated"},
    "command": {"kind": "command"},
}
WAITING = ("tests/end_to_end", "tests/faults")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What a run may take."""
    add_options(parser)


def load_without_threads() -> None:
    """Load XGBoost with one thread, as workers do: tests fork, and a child waits for ever for threads left behind."""
    with patch.dict(os.environ, SINGLE_THREADED):
        import xgboost  # noqa: F401 - its OpenMP reads the environment when it is loaded


def pytest_configure(config: pytest.Config) -> None:
    """Say at the end what the tests cost."""
    load_without_threads()
    config.pluginmanager.register(SuiteReport(config.getoption("--minutes")))


def pytest_collection() -> None:
    """Collect no garbage among thousands of tests that come into being: the processes of a run spend seconds on it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but not what stays to the end: to look through it takes seconds of each process."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files whose tests mostly wait for daemons among the others: a CPU has something to compute meanwhile.

    The tests of a file stay together, for they share what they set up.
    """
    places = dict[Path, float]()
    for waiting in (True, False):
        paths = [item.path for item in items if item.nodeid.startswith(WAITING) is waiting]
        for place, path in enumerate(paths):
            places.setdefault(path, place / len(paths))
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A key for seals that is not the one of who runs the tests, for all processes that share a run of them."""
    os.environ["XDG_STATE_HOME"] = str(shared_folder(tmp_path_factory) / "state")


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the tests, which may have several processes."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def same_cpus() -> Iterator[None]:
    """Gives the CPUs back after a test that pins its process: daemons that later tests start inherit them."""
    usable = os.sched_getaffinity(0)
    yield
    if os.sched_getaffinity(0) != usable:
        os.sched_setaffinity(0, usable)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder of this name at the first call in any of the processes that share a run of the tests."""
    root = shared_folder(tmp_path_factory)

    def get(name: str, make: Callable[[Path], object]) -> Path:
        folder = root / f"once-{name}"
        done = root / f"once-{name}.done"
        with making(name), filelock.FileLock(str(root / f"once-{name}.lock")):
            if not done.exists():
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def computing_gpu(made_once: Callable[[str, Callable[[Path], object]], Path]) -> StandIn:
    """A GPU whose kernels run on the CPU. Tests that ask for it skip where `cuda_stand_in.on_cpu.image.missing()`."""
    folder = made_once("computing_gpu", lambda folder: compile_libraries(folder, computes=True))
    return StandIn.make(folder, folder / "gpus")


@pytest.fixture
def torch() -> Any:
    """PyTorch; a test that asks for it is skipped where it is not installed."""
    return pytest.importorskip(
        "torch", reason="NO TORCH: models of PyTorch were not tried; pip install 'autotune-tvm[torch]'"
    )


@pytest.fixture
def network() -> Network:
    """An empty model of TensorFlow Lite; a test that asks for it is skipped where nothing can read one."""
    for package in ("tflite", "ai_edge_litert"):
        pytest.importorskip(
            package, reason="NO TFLITE: models of TensorFlow Lite were not tried; pip install 'autotune-tvm[tflite]'"
        )
    return Network()


@pytest.fixture(scope="session")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A running tracker of TVM's RPC: it takes seconds to start."""
    pytest.importorskip("tornado", reason="NO TORNADO: boards were not tried; pip install 'autotune-tvm[rpc]'")
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.start_tracker()
    yield lab
    lab.close()


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """The tracker without servers."""
    yield _lab
    _lab.kill(*_lab.servers)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace, whose locks on CPUs are its own."""
    workspace = Workspace(tmp_path / "workspace")
    workspace.jobs.mkdir(parents=True)
    workspace.logs.mkdir()
    workspace.config.write_text(f'[machine]\nlock_dir = "{tmp_path / "locks"}"\n')
    return workspace


@pytest.fixture
def simulate(workspace: Workspace) -> Callable[..., None]:
    """Gives the workspace simulated devices and CPUs: with them a job made for `simulated` runs, without TVM."""

    def settle(devices: int = 2, cpus: int = 8, **settings: object) -> None:
        lines = [f"simulated_cpus = {cpus}"]
        for index in range(devices):
            lines += [f"[devices.gpu{index}]", 'kind = "simulated"']
            lines += [f"{key} = {value!r}" for key, value in settings.items()]
        workspace.config.write_text(workspace.config.read_text() + "\n".join(lines) + "\n")

    return settle


@pytest.fixture
def make_job(workspace: Workspace) -> Callable[..., JobPaths]:
    """Publishes a job. `tasks` is a number or task specs; `control` and `state` are files; the rest is the spec."""

    def make(
        id: int = 1,
        name: str = "net",
        tasks: int | tuple[TaskSpec, ...] = 2,
        target: str = "llvm",
        control: Control | None = None,
        state: JobState | None = None,
        **spec: Any,
    ) -> JobPaths:
        specs = _tasks(tasks) if isinstance(tasks, int) else tasks
        paths = workspace.job(id, name)
        with patch("os.fsync"):  # a test's job need not survive a power cut
            _publish(paths, _spec(id, name, specs, TARGETS[target], spec), control or Control(), state)
        return paths

    return make


def _publish(paths: JobPaths, spec: JobSpec, control: Control, state: JobState | None) -> None:
    paths.stages.mkdir(parents=True)
    formats.write(paths.spec, replace(spec, seal=seal_of(spec.on_end, spec.tasks)))
    formats.write(paths.control, control)
    if state is not None:
        formats.write(paths.state, state)
    for task in spec.tunable:
        formats.write(paths.stage(task, 0), StageFile(task, 0, "search"))


def _tasks(count: int) -> tuple[TaskSpec, ...]:
    return tuple(TaskSpec(f"conv{index}", f"{index:016x}", index + 1, "1x8", 0.5, True) for index in range(count))


def _spec(id: int, name: str, tasks: tuple[TaskSpec, ...], target: dict[str, Any], given: dict[str, Any]) -> JobSpec:
    values: dict[str, Any] = {
        "model": f"/models/{name}.onnx",
        "target_key": f"{target['kind']}-test",
        "inputs": (InputSpec("x", (1, 8), "float32"),),
        "trials": 64,
        "trials_per_round": 8,
        "strategy": "evolutionary",
        "sampler": "greedy",
        "winograd": False,
        "known_at_submit": (0,) * len(tasks),
        "submitted_at": 1_700_000_000.0,
    }
    return JobSpec(id=id, name=name, target=target, tasks=tasks, **{**values, **given})


@pytest.fixture(scope="session")
def convolution() -> Callable[..., Path]:
    """Writes an ONNX file with one convolution."""
    return write_convolution


def write_convolution(
    path: Path,
    shape: tuple[int, ...],
    outputs: int,
    *,
    kernel: int = 3,
    element: int = 1,
    tail: bool = False,
    **attributes: Any,
) -> Path:
    """An ONNX file with one convolution of `x`; with `tail`, a bias, a sum with another input and a ReLU after it."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    inputs = shape[1] // attributes.get("group", 1)
    dtype = helper.tensor_dtype_to_np_dtype(element)
    draw = np.random.default_rng(0).standard_normal
    weights = {"w": draw((outputs, inputs, kernel, kernel)) / np.sqrt(inputs * kernel**2), "b": draw(outputs)}
    attributes.setdefault("pads", [kernel // 2] * 4)
    nodes = [helper.make_node("Conv", ["x", "w", "b"] if tail else ["x", "w"], ["c"], **attributes)]
    nodes += [helper.make_node("Add", ["c", "r"], ["s"]), helper.make_node("Relu", ["s"], ["y"])] if tail else []
    given = [helper.make_tensor_value_info("x", element, shape)]
    given += [helper.make_tensor_value_info("r", element, (shape[0], outputs, *shape[2:]))] if tail else []
    made = [helper.make_tensor_value_info("y" if tail else "c", element, None)]
    constants = [numpy_helper.from_array(value.astype(dtype), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", given, made, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path
