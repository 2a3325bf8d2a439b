#!/usr/bin/env python
"""The process of a comparison on a GPU: `timed_process`, with torch in five ways and ONNX Runtime's CUDA provider.

`bench_gpu.py` starts it. The environment says whether they may use TF32 (BENCH_TF32) and whether torch computes
in another type (BENCH_HALF: float16 or bfloat16).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.tvm_backend.export import runners
from autotune.tvm_backend.export.timing import timed_process

TF32 = bool(os.environ.get("BENCH_TF32"))
HALF = os.environ.get("BENCH_HALF", "")
_MODES = {"compile": "default", "compile_graph": "reduce-overhead", "compile_most": "max-autotune"}


@dataclass
class TorchRun:
    """A program of torch on inputs that stay where they are. A graph reads them there."""

    call: Callable[[], Any]
    inputs: list[Any]
    device: str

    def __call__(self) -> runners.Arrays:
        outputs = self.stay()
        return [item.float().cpu().numpy() for item in (outputs if isinstance(outputs, (tuple, list)) else [outputs])]

    def on_zeros(self) -> None:
        kept = [tensor.clone() for tensor in self.inputs]
        for tensor in self.inputs:
            tensor.zero_()
        self.stay()
        for tensor, values in zip(self.inputs, kept, strict=True):
            tensor.copy_(values)

    def stay(self) -> Any:
        outputs = self.call()
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
        return outputs


def torch_in(way: str) -> Callable[[Mapping[str, Any], timed_process.Arrays], TorchRun]:
    """Return what loads a model with torch: `eager`, `graph` (a CUDA graph of that), or a key of `_MODES`."""

    def load(request: Mapping[str, Any], arrays: timed_process.Arrays) -> TorchRun:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TF32
        torch.backends.cudnn.benchmark = True
        device = request["device"]
        module = _module(Path(request["model"])).to(device)
        inputs = [torch.from_numpy(array.copy()).to(device) for array in arrays.values()]
        if HALF:
            dtype = getattr(torch, HALF)
            module = module.to(dtype)
            inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
        if way in _MODES:
            module = torch.compile(module, mode=_MODES[way])

        def call() -> Any:
            with torch.inference_mode():
                return module(*inputs)

        return TorchRun(_captured(call) if way == "graph" else call, inputs, device)

    return load


def _module(model: Path) -> Any:
    if model.suffix == ".onnx":
        import onnx2torch

        return onnx2torch.convert(str(model)).eval()
    from autotune.tvm_backend.models.pytorch.program import load_program

    return load_program(model).module()


def _captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return what launches the kernels of a call as one CUDA graph, and returns its outputs."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


@dataclass
class OrtRun:
    """A session of ONNX Runtime whose inputs and outputs stay on the GPU."""

    session: Any
    arrays: timed_process.Arrays

    def __post_init__(self) -> None:
        self.binding = self.session.io_binding()
        self._bind(self.arrays)
        for output in self.session.get_outputs():
            self.binding.bind_output(output.name, "cuda", 0)

    def _bind(self, arrays: timed_process.Arrays) -> None:
        import onnxruntime

        for name, array in arrays.items():
            self.binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))

    def __call__(self) -> runners.Arrays:
        self.stay()
        return list(self.binding.copy_outputs_to_cpu())

    def on_zeros(self) -> None:
        self._bind({name: array * 0 for name, array in self.arrays.items()})
        self.stay()
        self._bind(self.arrays)

    def stay(self) -> Any:
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()


def ort_cuda(request: Mapping[str, Any], arrays: timed_process.Arrays) -> OrtRun:
    import onnxruntime

    provider = "CUDAExecutionProvider"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    providers = [(provider, {"use_tf32": str(int(TF32))}), ("CPUExecutionProvider", {})]
    session = onnxruntime.InferenceSession(request["model"], options, providers=providers)
    if provider not in session.get_providers():
        raise RuntimeError("ONNX Runtime did not load its CUDA provider")
    return OrtRun(session, {**arrays, **runners.constant_inputs(session, request["values"])})


def main() -> None:
    for way in ("eager", "graph", *_MODES):
        timed_process.RUNTIMES[f"torch_{way}"] = torch_in(way)
        timed_process.PACKAGES[f"torch_{way}"] = ("torch",)
    timed_process.RUNTIMES["ort_cuda"] = ort_cuda
    timed_process.PACKAGES["ort_cuda"] = ("onnxruntime",)
    timed_process.main()


if __name__ == "__main__":
    main()
