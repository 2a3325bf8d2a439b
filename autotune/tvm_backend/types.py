"""The types of TVM, ONNX, TensorFlow Lite and PyTorch, by the names that signatures give them.

mypy follows no import of these packages, so each of these is `Any` to it, and the name is for the reader. They are here
and not imported from TVM because some modules are loaded before TVM is. The comments say where the classes are defined.
"""

from __future__ import annotations

from typing import Any, TypeAlias

# Programs
IRModule: TypeAlias = Any  # tvm.IRModule: functions by name
Target: TypeAlias = Any  # tvm.target.Target: what programs are compiled for
PrimFunc: TypeAlias = Any  # tvm.tirx.PrimFunc: a tensor program, which becomes a kernel
GlobalVar: TypeAlias = Any  # tvm.ir.GlobalVar: the name of a function in a module
Pass: TypeAlias = Any  # tvm.transform.Pass: a function from a module to a module

# Relax: the graph of a model
Expr: TypeAlias = Any  # tvm.relax.Expr: any of what follows, constants and tuples
Var: TypeAlias = Any  # tvm.relax.Var: the name of a value
Call: TypeAlias = Any  # tvm.relax.Call: an operator or a function on arguments
Binding: TypeAlias = Any  # tvm.relax.VarBinding: a variable and its value
BindingBlock: TypeAlias = Any  # tvm.relax.BindingBlock: bindings, one after another
Function: TypeAlias = Any  # tvm.relax.Function: parameters, blocks of bindings, and what is returned
BlockBuilder: TypeAlias = Any  # tvm.relax.BlockBuilder: makes a function, one binding after another

# Tensor programs
TensorExpr: TypeAlias = Any  # tvm.te.Tensor: a tensor as the computation of its elements
PrimExpr: TypeAlias = Any  # tvm.ir.Expr on numbers: an index, a size, an element
Stmt: TypeAlias = Any  # tvm.tirx.Stmt
Loop: TypeAlias = Any  # tvm.tirx.For
Block: TypeAlias = Any  # tvm.s_tir.SBlock: the unit that a schedule transforms
Buffer: TypeAlias = Any  # tvm.tirx.Buffer

# Schedules
Schedule: TypeAlias = Any  # tvm.s_tir.Schedule: a program, and how it is transformed
Trace: TypeAlias = Any  # tvm.s_tir.schedule.Trace: the instructions of a schedule, with their decisions
Instruction: TypeAlias = Any  # tvm.s_tir.schedule.Instruction
Decision: TypeAlias = Any  # what an instruction sampled: a number, or the factors of a tile
LoopRV: TypeAlias = Any  # tvm.s_tir.schedule.LoopRV: a loop in a schedule
BlockRV: TypeAlias = Any  # tvm.s_tir.schedule.SBlockRV: a block in a schedule
TuneContext: TypeAlias = Any  # tvm.s_tir.meta_schedule.TuneContext: a program, its target and its design space
SpaceGenerator: TypeAlias = Any  # tvm.s_tir.meta_schedule.SpaceGenerator: makes the sketches of a program
PlainTrace: TypeAlias = Any  # a trace in TVM's JSON form, made of Python's containers and numbers
PlainArguments: TypeAlias = Any  # the types and shapes of arguments, as ArgInfo.as_json writes them
PlainInstruction: TypeAlias = Any  # one of its instructions: kind, inputs, attributes and outputs
Postprocessor: TypeAlias = Any  # tvm.s_tir.meta_schedule.Postproc: changes or refuses a schedule before it is built
Workload: TypeAlias = Any  # tvm.s_tir.meta_schedule.database.Workload: a program, as a database knows it
TuningRecord: TypeAlias = Any  # tvm.s_tir.meta_schedule.database.TuningRecord: a trace and its times
Database: TypeAlias = Any  # tvm.s_tir.meta_schedule.database.Database: the tuning records of programs
MeasureCandidate: TypeAlias = Any  # tvm.s_tir.meta_schedule.MeasureCandidate: a schedule and its arguments

# What runs
Executable: TypeAlias = Any  # tvm.runtime.Executable, tvm.relax.VMExecutable: compiled, not yet loaded
RuntimeModule: TypeAlias = Any  # tvm.runtime.Module: compiled functions by name
VirtualMachine: TypeAlias = Any  # tvm.relax.VirtualMachine: runs a whole model
Device: TypeAlias = Any  # tvm.runtime.Device
Kernel: TypeAlias = Any  # tvm_ffi.Function: a function of a loaded module
DeviceArray: TypeAlias = Any  # tvm.runtime.Tensor: an array in the memory of a device
RPCSession: TypeAlias = Any  # tvm.rpc.RPCSession: a connection to a board

# ONNX
InferenceSession: TypeAlias = Any  # onnxruntime.InferenceSession: a model that is loaded
ModelProto: TypeAlias = Any  # onnx.ModelProto: a graph with the version of its operators
GraphProto: TypeAlias = Any  # onnx.GraphProto: nodes, constants, inputs and outputs
NodeProto: TypeAlias = Any  # onnx.NodeProto: an operator with the names of what it reads and writes
FunctionProto: TypeAlias = Any  # onnx.FunctionProto: an operator in terms of others
AttributeProto: TypeAlias = Any  # onnx.AttributeProto: an option of a node, which may be a graph
OperatorSetIdProto: TypeAlias = Any  # onnx.OperatorSetIdProto: a version of the operators
TensorProto: TypeAlias = Any  # onnx.TensorProto: a constant
ValueInfoProto: TypeAlias = Any  # onnx.ValueInfoProto: the name, type and shape of a value

# TensorFlow Lite
LiteOperator: TypeAlias = Any  # tflite.Operator: an operator as it lies in the file
TensorWrapper: TypeAlias = Any  # tvm.relax.frontend.tflite.tflite_frontend.TensorWrapper: a tensor with its scale
ModelT: TypeAlias = Any  # ai_edge_litert.schema_py_generated.ModelT: a model as objects that can be changed
OperatorT: TypeAlias = Any  # ai_edge_litert.schema_py_generated.OperatorT: an operator of it

# PyTorch
ExportedProgram: TypeAlias = Any  # torch.export.ExportedProgram: a model as operators of ATen
