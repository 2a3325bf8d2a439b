"""What identifies a program of PyTorch that is in no file: operators, the shapes and types of all, and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from autotune.errors import ModelError
from autotune.storage.model_digest import ModelDigest

_SEPARATOR = b"\0"


def program_digest(program: Any) -> ModelDigest:
    """Return the digest of what `torch.export.export` returned. Names make no difference to it.

    Raises:
        ModelError: The program has control flow or objects of its own, which a library cannot have.
    """
    digest = hashlib.sha256()
    size = 0
    for part in _parts(program):
        digest.update(part)
        digest.update(_SEPARATOR)
        size += len(part)
    return ModelDigest(size, digest.hexdigest())


def weights_of(program: Any) -> list[Any]:
    """Return the parameters, buffers and constants of a program that are tensors, in the order of its graph."""
    names = [item.target for item in program.graph_signature.input_specs if item.kind is not InputKind.USER_INPUT]
    return [program.state_dict[name] if name in program.state_dict else program.constants[name] for name in names]


def _parts(program: Any) -> Iterator[bytes]:
    weights = iter(weights_of(program))
    kinds = iter(program.graph_signature.input_specs)
    numbers: dict[Any, str] = {}
    for node in program.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        yield f"{node.op} {_type(node.meta.get('val'))}".encode()
        if node.op == "placeholder":
            if next(kinds).kind is not InputKind.USER_INPUT:
                yield _content(next(weights))
            continue
        if node.op == "get_attr":
            raise ModelError(f"it has control flow or objects of its own ({node.target})")
        arguments = torch.fx.map_arg((node.args, dict(node.kwargs)), numbers.__getitem__)
        yield f"{'' if node.op == 'output' else node.target} {arguments}".encode()


def _type(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_type, value))}]"
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return type(value).__name__


def _content(weight: Any) -> bytes:
    if not isinstance(weight, torch.Tensor):
        raise ModelError(f"it has an object of its own ({type(weight).__name__})")
    flat = weight.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


class GraphModule(torch.nn.Module):  # type: ignore[misc]
    """A graph with its weights, which takes its other inputs."""

    def __init__(self, graph: Any, static: Sequence[bool], weights: Sequence[Any]) -> None:
        super().__init__()
        self.graph = graph
        self.static = static
        for number, tensor in enumerate(weights):
            self.register_buffer(f"weight_{number}", tensor)
        self.count = len(weights)
        self.eval()

    def forward(self, *inputs: Any) -> Any:
        rest = iter(inputs)
        weights = (getattr(self, f"weight_{number}") for number in range(self.count))
        return self.graph(*(next(weights) if static else next(rest) for static in self.static))
