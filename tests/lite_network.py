"""Models of TensorFlow Lite, built operator by operator, with the schema that LiteRT's package has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class Network:
    """A graph. Tensors are numbers, which `input`, `constant` and `add` return."""

    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema: Any = schema
        self.graph = schema.SubGraphT()
        self.graph.tensors = []
        self.graph.operators = []
        self.graph.inputs = []
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.subgraphs = [self.graph]
        self.model.operatorCodes = []
        self.model.buffers = [schema.BufferT()]

    def input(self, name: str, *shape: int, dtype: Any = np.float32) -> int:
        self.graph.inputs.append(self._tensor(name, shape, dtype, 0))
        return int(self.graph.inputs[-1])

    def constant(self, value: Any) -> int:
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        return self._tensor(f"constant{len(self.model.buffers)}", value.shape, value.dtype, len(self.model.buffers) - 1)

    def sparse(self, rows: Any) -> int:
        """A constant (O, 1, 1, I) of which the file has only what is not zero."""
        number = self.constant(rows[rows != 0])
        tensor = self.graph.tensors[number]
        tensor.shape = [rows.shape[0], 1, 1, rows.shape[1]]
        tensor.sparsity = self.schema.SparsityParametersT()
        tensor.sparsity.traversalOrder = [0, 1, 2, 3]
        tensor.sparsity.dimMetadata = [self._dense(size) for size in tensor.shape[:3]]
        dimension = self.schema.DimensionMetadataT()
        dimension.format = self.schema.DimensionType.SPARSE_CSR
        ends = [0, *np.cumsum((rows != 0).sum(1)).tolist()]
        vectors = {"arraySegments": ends, "arrayIndices": np.nonzero(rows)[1].tolist()}
        for name, values in vectors.items():
            vector = self.schema.Int32VectorT()
            vector.values = values
            setattr(dimension, name, vector)
            setattr(dimension, f"{name}Type", self.schema.SparseIndexVector.Int32Vector)
        tensor.sparsity.dimMetadata.append(dimension)
        return number

    def _dense(self, size: int) -> Any:
        dimension = self.schema.DimensionMetadataT()
        dimension.format = self.schema.DimensionType.DENSE
        dimension.denseSize = size
        return dimension

    def add(
        self,
        operator: str,
        *inputs: int,
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        kind: str = "",
        **options: Any,
    ) -> int:
        """Add an operator with one output. `kind` is the table of its options, which are in the schema's words."""
        entry = self.schema.OperatorT()
        entry.opcodeIndex = self._code(operator)
        entry.inputs = list(inputs)
        entry.outputs = [self._tensor(f"{operator.lower()}{len(self.graph.operators)}", shape, dtype, 0)]
        if kind:
            entry.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
            entry.builtinOptions = getattr(self.schema, f"{kind}T")()
            for name, value in options.items():
                setattr(entry.builtinOptions, name, value)
        self.graph.operators.append(entry)
        return int(entry.outputs[0])

    def quantise(self, number: int, scale: Any = 0.5, zero: int = 0, axis: int = 0) -> int:
        """Say that the numbers of a tensor are quantised, with a scale for all or for each slice of an axis."""
        quantisation = self.schema.QuantizationParametersT()
        quantisation.scale = np.atleast_1d(scale).tolist()
        quantisation.zeroPoint = [zero] * len(quantisation.scale)
        quantisation.quantizedDimension = axis
        self.graph.tensors[number].quantization = quantisation
        return number

    def write(self, path: Path, *outputs: int) -> Path:
        import flatbuffers

        self.graph.outputs = list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        path.write_bytes(bytes(builder.Output()))
        return path

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: Any, buffer: int) -> int:
        tensor = self.schema.TensorT()
        tensor.name = name
        tensor.shape = list(shape)
        tensor.buffer = buffer
        tensor.type = getattr(self.schema.TensorType, np.dtype(dtype).name.upper())
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def _code(self, operator: str) -> int:
        """The number of an operator in the model. One that TensorFlow Lite does not have is a custom one."""
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, operator, self.schema.BuiltinOperator.CUSTOM)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        code.customCode = operator if code.builtinCode == self.schema.BuiltinOperator.CUSTOM else None
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1
