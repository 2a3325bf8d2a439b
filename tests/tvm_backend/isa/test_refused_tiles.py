"""A kernel that multiplies tiles ends its process with a line where the system refuses it the tiles."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from autotune.tvm_backend.codegen.lowering_passes import pipeline
from autotune.tvm_backend.isa.amx import AmxProduct
from autotune.tvm_backend.isa.available import Instructions
from autotune.tvm_backend.isa.instruction_sets import cpu_flags
from autotune.tvm_backend.kernels.build_kernel import link_shared
from autotune.tvm_backend.operators.chunked_product import ChunkedProduct, Grouping
from autotune.tvm_backend.operators.element_types import BYTES
from autotune.tvm_backend.operators.integer_product import product_program
from autotune.tvm_backend.search.design_space import replay
from autotune.tvm_backend.search.propose import by_hand
from autotune.tvm_backend.target import tvm_target
from tests.tvm_backend.intrinsics.test_amx_and_vector_tiles import _CONSTANTS, _TILED, operands_of
from tests.tvm_backend.isa.dots import DOTS

# A process that has a small alternate signal stack, as a program in Go or Rust may, before it loads a library.
_CALL = """
import ctypes, sys
import numpy, tvm

class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]

memory = ctypes.create_string_buffer(2048)
small = Stack(ctypes.addressof(memory), 0, 2048)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(small), None) == 0
arrays = numpy.load(sys.argv[2])
tvm.runtime.load_module(sys.argv[1])["main"](*[tvm.runtime.tensor(arrays[name]) for name in arrays.files])
"""


def test_a_kernel_that_is_refused_the_tiles_says_why_and_how_to_get_them(target: Any, tmp_path: Path) -> None:
    mcpu = "znver4" if "avx512_vnni" in cpu_flags() else "x86-64-v3"
    here = tvm_target({"kind": "llvm", "mcpu": mcpu, "mattr": ["+amx-tile", "+amx-int8"], "num-cores": 2})
    (data, weight), window = _TILED["few channels"]
    product = ChunkedProduct(BYTES, window, Instructions(DOTS[0].name, tiles=AmxProduct), Grouping(0, 0, data[3]))
    program, _ = product_program(product, [(data, "uint8"), (weight, "int8"), *_CONSTANTS], "uint8")
    module = tvm.IRModule({"main": program.with_attr("global_symbol", "main")})
    (schedule,) = (item.sch for item in replay([by_hand(module)], module, here))
    built = tvm.tirx.build(schedule.mod, target=here, pipeline=pipeline(here))
    built.export_library(str(tmp_path / "kernel.so"), fcompile=link_shared)
    np.savez(tmp_path / "arrays.npz", *(tensor.numpy() for tensor in operands_of(module["main"])))
    words = [sys.executable, "-c", _CALL, tmp_path / "kernel.so", tmp_path / "arrays.npz"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == -signal.SIGILL
    (line,) = done.stderr.splitlines()
    assert line.startswith("autotune: the system refuses the tiles of AMX") and "sigaltstack" in line
