"""Run a model in this process with one of the runtimes, each of which is loaded only where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from autotune.options import Constant, InputSpec
from autotune.tvm_backend.export.host_tensors import HostTensors, Returned, host_arrays, tensors_of
from autotune.tvm_backend.models.model import constant_array
from autotune.tvm_backend.types import Device, DeviceArray, Executable, InferenceSession, Kernel, RuntimeModule

Arrays = list[npt.NDArray[Any]]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def onnx_session(model: Path | bytes, threads: int, *, plain: bool = False) -> InferenceSession:
    """Open a model with ONNX Runtime on the CPU, with all of its graph optimisations; with none if `plain`.

    What is multiplied with a matrix that is dequantised in blocks stays in float32: by default it would be rounded to
    8 bits, which the model does not ask for.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnx_runner(
    session: InferenceSession, inputs: Sequence[InputSpec], arrays: Arrays, values: Mapping[str, Constant] | None = None
) -> Callable[[], Arrays]:
    """Return a function that runs the model once and returns its outputs.

    Args:
        session: What `onnx_session` returned.
        inputs: The inputs of the model, without the constant ones.
        arrays: The value of each input, in the same order.
        values: The constant inputs by name.
    """
    feed = onnx_feed(session, inputs, arrays, values or {})
    return lambda: list(session.run(None, feed))


def onnx_feed(
    session: InferenceSession, inputs: Sequence[InputSpec], arrays: Arrays, values: Mapping[str, Constant]
) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of a session by name, in the types that it takes: a job may have been given others.

    The arguments are those of `onnx_runner`.
    """
    given = {item.name: array for item, array in zip(inputs, arrays, strict=True)}
    dtypes = {item.name: _DTYPES.get(item.type) for item in session.get_inputs()}
    feed = {name: array.astype(dtypes.get(name) or array.dtype, copy=False) for name, array in given.items()}
    return feed | constant_inputs(session, values)


def constant_inputs(session: InferenceSession, values: Mapping[str, Constant]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the constant inputs by name, in the types that the session takes."""
    return {
        item.name: constant_array(values[item.name], len(item.shape), _DTYPES[item.type])
        for item in session.get_inputs()
        if item.name in values
    }


def torch_runner(model: Path, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
    """Return a function that runs a job's program of PyTorch once, without compilation, and returns its outputs."""
    import torch

    from autotune.tvm_backend.models.pytorch.program import load_program

    torch.set_num_threads(threads)
    module = load_program(model).module()
    tensors = [torch.from_numpy(np.array(array)) for array in arrays]

    def run() -> Arrays:
        with torch.inference_mode():
            return [output.numpy() for output in module(*tensors)]

    return run


def litert_runner(model: Path, arrays: Arrays, threads: int) -> Callable[[], Arrays]:
    """Return a function that runs a model of TensorFlow Lite once and returns its outputs.

    LiteRT computes with XNNPACK, as it does by default.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(model), num_threads=threads)
    interpreter.allocate_tensors()
    inputs = interpreter.get_input_details()
    outputs = interpreter.get_output_details()

    def run() -> Arrays:
        for item, array in zip(inputs, arrays, strict=True):
            interpreter.set_tensor(item["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(item["index"]) for item in outputs]

    return run


def gguf_runner(model: Path, arrays: Arrays) -> Callable[[], Arrays]:
    """Return a function that runs a language model once with NumPy, in float32, and returns its logits."""
    from autotune.tvm_backend.models.gguf.network import read_network
    from autotune.tvm_backend.models.gguf.reference import DecoderReference

    return partial(DecoderReference(read_network(model)).outputs, arrays)


def output_names(model: Path) -> list[str]:
    """Return the names of a model's outputs, in order."""
    import onnx

    return [item.name for item in onnx.load(str(model), load_external_data=False).graph.output]


def vm_runner(executable: Executable, device: Device, arrays: Arrays) -> Callable[[], Arrays]:
    """Return a function that runs a compiled model once and returns its outputs."""
    from tvm import relax

    return machine_runner(relax.VirtualMachine(executable, device).module, device, arrays, "main")


@runtime_checkable
class DeviceRun(Protocol):
    """A model that is loaded on a device. A call runs it once and returns its outputs."""

    def __call__(self) -> Arrays: ...

    def on_zeros(self) -> None:
        """Run it once on inputs of zeros."""

    def stay(self) -> Returned:
        """Run it once, and leave the outputs on the device."""


@dataclass(frozen=True)
class MachineRun:
    """A function of a model on a virtual machine that has it loaded. A call runs it once and returns its outputs.

    Attributes:
        device: Where it runs; None for the CPU, which TVM's runtime alone has loaded it for.
        tensors: Its inputs there.
        machine: That virtual machine, as TVM's runtime has it.
        fill: Copies the inputs into the tensors before each call, as `LoadedModel` does; None where they are on a GPU.
    """

    function: Kernel
    device: Device | None
    tensors: Sequence[DeviceArray]
    machine: RuntimeModule
    fill: Callable[[], object] | None = None

    def __call__(self) -> Arrays:
        if self.fill is None:
            return [tensor.numpy() for tensor in tensors_of(self.stay())]
        self.fill()
        return host_arrays(self.function(*self.tensors))

    def on_zeros(self) -> None:
        """Run it once on inputs of zeros."""
        import tvm

        zeros = [tvm.runtime.tensor(np.zeros_like(tensor.numpy()), device=self.device) for tensor in self.tensors]
        replace(self, tensors=zeros).stay()

    def stay(self) -> Returned:
        """Run it once, and leave the outputs on the device."""
        result = self.function(*self.tensors)
        self.sync()
        return result

    def sync(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device is not None:
            self.device.sync()


def machine_runner(
    machine: RuntimeModule,
    device: Device | None,
    arrays: Arrays,
    function: str = "main",
    kept: Sequence[bool] = (),
) -> MachineRun:
    """Return what runs a model on a virtual machine that has it loaded.

    Args:
        machine: The virtual machine, as TVM's runtime has it.
        device: Where it runs; None for the CPU, where TVM's runtime alone is loaded.
        arrays: The value of each input.
        kept: Whether each input stays as the model has changed it; none does by default.
    """
    if device is not None and str(device.type) != "cpu":
        import tvm

        tensors = [tvm.runtime.tensor(array, device=device) for array in arrays]
        return MachineRun(machine[function], device, tensors, machine)
    host = HostTensors([(array.shape, str(array.dtype)) for array in arrays])
    host.fill(arrays)
    return MachineRun(machine[function], device, host.tensors, machine, partial(host.fill, arrays, kept))
