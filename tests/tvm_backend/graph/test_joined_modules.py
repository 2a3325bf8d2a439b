"""Several modules become one, which has each of their functions and shares what they have in common."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.tvm_backend.graph.joined_modules import Joiner

WEIGHTS = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
NAMES = {"sequence=8,batch=2": 8, "sequence=4": 4}


@pytest.fixture(scope="module")
def module_of(target):
    """A module that computes exp(x @ WEIGHTS), with a copy of the weights of its own, for so many rows."""
    from tvm import relax

    def make(rows):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((rows, 64), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                product = builder.emit(relax.op.matmul(x, relax.const(WEIGHTS.copy())))
                result = builder.emit_output(relax.op.exp(product))
            builder.emit_func_output(result)
        return relax.transform.LegalizeOps()(builder.get())

    return make


@pytest.fixture(scope="module")
def joined(module_of):
    joiner = Joiner()
    for name, rows in NAMES.items():
        joiner.add(name, module_of(rows))
    joiner.add("again", module_of(4))
    joiner.module()  # may be asked for more than once
    return joiner.module()


def test_each_function_computes_what_it_did(joined, target):
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(relax.build(joined, target), tvm.cpu(0))
    for name, rows in NAMES.items():
        x = np.full((rows, 64), 0.01, np.float32)
        np.testing.assert_allclose(machine[name](tvm.runtime.tensor(x)).numpy(), np.exp(x @ WEIGHTS), rtol=1e-5)


def test_equal_programs_and_equal_constants_are_there_once(joined, module_of):
    from tvm import relax, tirx
    from tvm.relax.analysis import post_order_visit

    programs = [program for program in joined.functions.values() if isinstance(program, tirx.PrimFunc)]
    assert len(programs) == 2 * len(module_of(4).functions) - 2  # those for 4 rows serve two functions
    constants = []

    def visit(expr):
        if type(expr).__name__ == "GenericConst":
            constants.append(expr)

    for function in joined.functions.values():
        if isinstance(function, relax.Function):
            post_order_visit(function, visit)
    assert len(constants) == 3 and all(item.value.same_as(constants[0].value) for item in constants)


def test_a_single_module_stays_as_it_is(module_of):
    module = module_of(4)
    joiner = Joiner()
    joiner.add("main", module)
    assert joiner.module() is module
