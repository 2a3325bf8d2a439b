"""Read a lowered model as a list of blocks with planned memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax, tirx

from autotune.errors import ModelError
from autotune.network_plan.arena import FOR_EVER, Lifetimes, aligned, place
from autotune.tvm_backend.expressions import bindings_of, is_tensor_constant
from autotune.tvm_backend.programs import runtime_functions
from autotune.tvm_backend.threads.extents import MAX_THREADS
from autotune.tvm_backend.types import Binding, Call, Expr, Function, IRModule, PrimFunc, Var

# Calls of the virtual machine that check what the C++ program declares, or begin or end the life of an object.
_NOT_COMPUTED = frozenset(
    {
        "relax.null_value",
        "relax.vm.alloc_storage",
        "relax.vm.kill_object",
        "vm.builtin.check_tensor_info",
        "vm.builtin.match_shape",
    }
)
_PARALLEL = 1  # the kind of a loop that is run by several threads


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor of the network.

    Attributes:
        name: Its name in the C++ program.
        dtype: The type of its elements.
        offset: Where it is, in bytes from the start of the arena or of the weights; 0 for a view.
        viewed: The name of the tensor whose elements it shows in another shape; empty if it has elements of its own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    viewed: str = ""


@dataclass(frozen=True)
class FusedBlock:
    """A call of a kernel.

    Attributes:
        kernel: The name of the tensor program.
        arguments: The names of its tensors, the results last.
        threads: On how many threads it runs at most: 1 if it has no parallel loop, None if on all.
    """

    kernel: str
    arguments: tuple[str, ...]
    threads: int | None


@dataclass(frozen=True)
class Network:
    """A model as blocks that run one after another.

    Attributes:
        inputs: The inputs, in the order of the model.
        buffers: What blocks write and read.
        views: Tensors that show the elements of another one. Each comes after the tensor that it shows.
        weights: The constants, in the order of their use.
        blocks: The blocks, in order.
        outputs: The names of the tensors that hold the outputs.
        arena_bytes: The size of the memory of inputs and buffers.
        sum_bytes: What it would be if no buffer shared memory with another.
        values: The elements of each weight.
    """

    inputs: tuple[PlacedTensor, ...]
    buffers: tuple[PlacedTensor, ...]
    views: tuple[PlacedTensor, ...]
    weights: tuple[PlacedTensor, ...]
    blocks: tuple[FusedBlock, ...]
    outputs: tuple[str, ...]
    arena_bytes: int
    sum_bytes: int
    values: tuple[npt.NDArray[Any], ...]


def read_network(module: IRModule, weights_start: int) -> Network:
    """Read a lowered model.

    Args:
        module: What `finish` returned.
        weights_start: The offset of the first weight in the file of weights.

    Returns:
        The network.

    Raises:
        ModelError: The model does more than call kernels on tensors of fixed sizes. The message names what.
    """
    check_functions(module)
    kernels = {name.name_hint: item for name, item in module.functions.items() if name.name_hint != "main"}
    return _Reader(kernels, weights_start).read(module["main"])


def check_functions(module: IRModule) -> None:
    """Check that a module has the function `main` alone, besides its kernels. Errors are those of `read_network`."""
    functions = [name.name_hint for name, item in module.functions.items() if isinstance(item, relax.Function)]
    if functions != ["main"]:
        raise refused(f"it has the functions {', '.join(sorted(functions))}; only main can be written")


def refused(why: str) -> ModelError:
    """Return the error for a model that cannot be written as source."""
    return ModelError(f"cannot write this model as C++ source: {why}; export it without --source")


@dataclass
class _Reader:
    kernels: dict[str, PrimFunc]
    weights_end: int
    lifetimes: Lifetimes[str] = field(default_factory=Lifetimes)  # by the names of tensors
    starts: dict[str, int] = field(default_factory=dict)  # by tensor: where it begins in the memory that it lies in
    values: dict[Var, Any] = field(default_factory=dict)  # by variable: the number of a storage, a tensor, or a tuple
    inputs: list[PlacedTensor] = field(default_factory=list)
    buffers: list[PlacedTensor] = field(default_factory=list)
    views: list[PlacedTensor] = field(default_factory=list)
    weights: dict[bytes, tuple[PlacedTensor, npt.NDArray[Any]]] = field(default_factory=dict)
    blocks: list[FusedBlock] = field(default_factory=list)
    threads: dict[str, int | None] = field(default_factory=dict)  # by kernel

    def read(self, main: Function) -> Network:
        for param in main.params:
            self._input(param)
        for binding in bindings_of(main):
            self._bind(binding)
        outputs = self._leaves(self._value(main.body.body))
        for tensor in outputs:
            self.lifetimes.use(tensor.name, len(self.blocks))
        lives = self.lifetimes.lives(unused=True)
        places, arena_bytes = place(list(lives.values()))
        offsets = dict(zip(lives, places, strict=True))
        return Network(
            inputs=self._placed(self.inputs, offsets),
            buffers=self._placed(self.buffers, offsets),
            views=tuple(self.views),
            weights=tuple(tensor for tensor, _ in self.weights.values()),
            blocks=tuple(self.blocks),
            outputs=tuple(tensor.name for tensor in outputs),
            arena_bytes=arena_bytes,
            sum_bytes=sum(aligned(life.bytes) for life in lives.values()),
            values=tuple(value for _, value in self.weights.values()),
        )

    def _placed(self, tensors: Sequence[PlacedTensor], offsets: Mapping[str, int]) -> tuple[PlacedTensor, ...]:
        owners = (self.lifetimes.owner(tensor.name) or "" for tensor in tensors)
        return tuple(
            replace(tensor, offset=offsets[owner] + self.starts[tensor.name])
            for tensor, owner in zip(tensors, owners, strict=True)
        )

    def _input(self, param: Var) -> None:
        """Place an input. It is in use all the time, so that the network can run again on the same inputs."""
        tensor = PlacedTensor(f"input{len(self.inputs)}", str(param.ty.dtype), _sizes(param.ty.shape, "an input"))
        self._allocate(tensor)
        self.inputs.append(tensor)
        self.values[param] = tensor
        for block in (0, FOR_EVER):
            self.lifetimes.use(tensor.name, block)

    def _allocate(self, tensor: PlacedTensor) -> None:
        self.lifetimes.allocate(tensor.name, tensor_bytes(tensor))
        self.starts[tensor.name] = 0

    def _bind(self, binding: Binding) -> None:
        value = binding.value
        if not isinstance(value, relax.Call):
            self.values[binding.var] = self._value(value)
            return
        name = _called(value)
        if isinstance(value.op, tvm.ir.GlobalVar):
            self._block(name, value.args)
        elif name == "relax.vm.alloc_tensor":
            self.values[binding.var] = self._own_buffer(binding.var)
        elif name == "vm.builtin.reshape":
            self.values[binding.var] = self._view(self._tensor(value.args[0]), _sizes(value.args[1], "a reshape"))
        elif name == "runtime.TVMTensorCreateView":
            self.values[binding.var] = self._piece(binding.var, self._tensor(value.args[0]), int(value.args[3].value))
        elif name not in _NOT_COMPUTED:
            raise refused(f"it calls {name}, which is not a compiled kernel")

    def _own_buffer(self, var: Var) -> PlacedTensor:
        """Give a tensor memory of its own, whatever storage the virtual machine gives it: `place` shares better."""
        tensor = self._buffer(var)
        self._allocate(tensor)
        return tensor

    def _buffer(self, var: Var) -> PlacedTensor:
        tensor = PlacedTensor(f"buffer{len(self.buffers)}", str(var.ty.dtype), _sizes(var.ty.shape, "a buffer"))
        self.buffers.append(tensor)
        return tensor

    def _piece(self, var: Var, whole: PlacedTensor, offset: int) -> PlacedTensor:
        """Place a part of a tensor, which begins so many bytes after it."""
        if whole.name not in self.starts:
            raise refused(f"it takes a part of the constant {whole.name}")
        tensor = self._buffer(var)
        self._share(tensor, whole, offset)
        return tensor

    def _share(self, tensor: PlacedTensor, whole: PlacedTensor, offset: int = 0) -> None:
        """Let a tensor lie in the memory of another one, unless that is a constant."""
        self.lifetimes.share(tensor.name, whole.name)
        if whole.name in self.starts:
            self.starts[tensor.name] = self.starts[whole.name] + offset

    def _view(self, tensor: PlacedTensor, shape: tuple[int, ...]) -> PlacedTensor:
        view = PlacedTensor(f"view{len(self.views)}", tensor.dtype, shape, viewed=tensor.name)
        self.views.append(view)
        self._share(view, tensor)
        return view

    def _block(self, kernel: str, arguments: Sequence[Expr]) -> None:
        tensors = [self._tensor(item) for item in arguments]
        for tensor in tensors:
            self.lifetimes.use(tensor.name, len(self.blocks))
        if kernel not in self.threads:
            self.threads[kernel] = _threads(self.kernels[kernel], kernel)
        self.blocks.append(FusedBlock(kernel, tuple(tensor.name for tensor in tensors), self.threads[kernel]))

    def _tensor(self, expression: Expr) -> PlacedTensor:
        value = self._value(expression)
        if not isinstance(value, PlacedTensor):
            raise refused(f"a kernel takes {expression}, which is not a tensor")
        return value

    def _value(self, expression: Expr) -> Any:
        if isinstance(expression, relax.Tuple):
            return tuple(self._value(item) for item in expression.fields)
        if isinstance(expression, relax.TupleGetItem):
            return self._value(expression.tuple_value)[expression.index]
        if is_tensor_constant(expression):
            return self._weight(expression.value.numpy(), str(expression.ty.dtype))
        if isinstance(expression, relax.Var) and expression in self.values:
            return self.values[expression]
        raise refused(f"it has a {type(expression).__name__} where only tensors are expected")

    def _weight(self, value: npt.NDArray[Any], dtype: str) -> PlacedTensor:
        """Place a constant. Equal ones are stored once."""
        key = hashlib.sha256(f"{dtype} {value.shape} ".encode() + value.tobytes()).digest()
        if key not in self.weights:
            tensor = PlacedTensor(f"weight{len(self.weights)}", dtype, value.shape, self.weights_end)
            self.weights[key] = (tensor, np.ascontiguousarray(value))
            self.weights_end += aligned(value.nbytes)
        return self.weights[key][0]

    def _leaves(self, value: Any) -> list[PlacedTensor]:
        return [leaf for item in value for leaf in self._leaves(item)] if isinstance(value, tuple) else [value]


def tensor_bytes(tensor: PlacedTensor) -> int:
    """Return the number of bytes of a tensor's elements."""
    return int(np.prod(tensor.shape, dtype=np.int64)) * element_bytes(tensor.dtype)


def element_bytes(dtype: str) -> int:
    """Return the number of bytes of an element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _called(call: Call) -> str:
    """Return the name of what a call calls."""
    if isinstance(call.op, tvm.ir.GlobalVar):
        return str(call.op.name_hint)
    return str(call.op.global_symbol if isinstance(call.op, relax.ExternFunc) else getattr(call.op, "name", call.op))


def _sizes(shape: Expr, what: str) -> tuple[int, ...]:
    values = getattr(shape, "values", None)
    if values is None or not all(isinstance(item, tirx.IntImm) for item in values):
        raise refused(f"{what} has the size {shape}, which is not fixed")
    return tuple(int(item) for item in values)


def _threads(program: PrimFunc, name: str) -> int | None:
    """Return on how many threads a kernel runs at most. Refuse one that calls a function of TVM's runtime."""
    packed = runtime_functions(program)
    if packed:
        raise refused(f"the operator {name} calls {packed[0]} of TVM's runtime")
    loops: list[bool] = []
    tvm_ffi.structural_walk(program.body, ((tirx.For, lambda loop: loops.append(int(loop.kind) == _PARALLEL)),))
    limit = (program.attrs or {}).get(MAX_THREADS)
    return (None if limit is None else int(limit)) if any(loops) else 1
