"""Write `run.py`, which runs an exported library with nothing but TVM's runtime and NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

from autotune.device_settings import BoardSettings
from autotune.devices import kind_of
from autotune.storage.formats import JobSpec
from autotune.tvm_backend.cuda.runtime import CUDART
from autotune.tvm_backend.export import padding
from autotune.tvm_backend.export.loadable import LIBRARY, OpenDimensions
from autotune.tvm_backend.export.loaded import check_index
from autotune.tvm_backend.export.writing import language_script
from autotune.tvm_backend.export.writing.files import MADE_BY
from autotune.tvm_backend.isa.instruction_sets import permissions
from autotune.version import __version__

_PADDING = (
    padding.pick_entry,
    padding.check_sizes,
    padding.fits,
    padding.elements,
    padding.sizes_of,
    padding.split_counts,
    padding.padded,
    padding.cut,
)
_ONE = '''"""Run {name} once on random inputs, with the TVM runtime alone. {made_by} {version}."""
import os
import sys

os.environ.setdefault("TVM_NUM_THREADS", "{threads}")  # TVM's own default is half of the CPUs
{preload}from pathlib import Path
import numpy, tvm
from tvm import relax
{machine}
model = relax.VirtualMachine(tvm.runtime.load_module(str(Path(__file__).parent / "{library}")), tvm.{device}(0))
inputs = [numpy.asarray(numpy.random.rand(*shape)).astype(dtype) for shape, dtype in {inputs}]
outputs = model["main"](*[tvm.runtime.tensor(array, device=tvm.{device}(0)) for array in inputs])
for output in [outputs] if hasattr(outputs, "numpy") else outputs:
    print(output.shape, output.dtype, output.numpy().ravel()[:4])
'''

_SEVERAL = '''"""Run {name} with the TVM runtime alone: python run.py [INPUTS.npz]. {made_by} {version}.

The library has an entry for each of several sets of shapes. That for the inputs in the file is run, or, without a file,
each of them on random inputs. `run` may be imported, too: it takes NumPy arrays by the names of the inputs. Inputs with
open dimensions are padded with zeros to the next entry, and its outputs are cut back. Outputs whose size depends on the
data are cut to the counts that the library puts out after them.
"""
from __future__ import annotations

import os
import sys

os.environ.setdefault("TVM_NUM_THREADS", "{threads}")  # TVM's own default is half of the CPUs
{preload}import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any
import numpy as np
import tvm
from tvm import relax

ENTRIES = {entries}
DTYPES = {dtypes}
ROWS = {rows}  # of the tables that inputs are indices into
OPEN = {open_inputs}  # the names of the open dimensions of inputs, and of each output
OPEN_OUTPUTS = {open_outputs}
COUNTS = {counts}  # the names of those that the library counts

{machine}
device = tvm.{device}(0)
model = relax.VirtualMachine(tvm.runtime.load_module(str(Path(__file__).parent / "{library}")), device)


{functions}

def run(**inputs):
    """Run the entry for inputs of these shapes, and return its outputs."""
    missing = [name for name in DTYPES if name not in inputs]
    if missing:
        raise ValueError(f"the input {{missing[0]}} is missing; the inputs: {{', '.join(DTYPES)}}")
    shapes = {{name: np.shape(inputs[name]) for name in DTYPES}}
    entry = pick_entry(ENTRIES, shapes, OPEN)
    for name, rows in ROWS[entry].items():
        check_index(name, np.asarray(inputs[name]), rows)
    arrays = {{name: np.asarray(inputs[name], dtype, order="C") for name, dtype in DTYPES.items()}}
    whole = [padded(array, ENTRIES[entry][name]) for name, array in arrays.items()]
    result = model[entry](*[tvm.runtime.tensor(array, device=device) for array in whole])
    outputs = [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]
    outputs, counts = split_counts(outputs, COUNTS)
    sizes = {{**sizes_of(shapes, OPEN), **counts}}
    return [cut(output, dims, sizes) for output, dims in zip(outputs, OPEN_OUTPUTS)] if OPEN_OUTPUTS else outputs


def show(inputs):
    for output in run(**inputs):
        print(output.shape, output.dtype, output.ravel()[:4])


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            show(np.load(sys.argv[1]))
        else:
            for entry, shapes in ENTRIES.items():
                print(entry)
                show({{name: np.asarray(np.random.rand(*shape), DTYPES[name]) for name, shape in shapes.items()}})
    except (OSError, ValueError) as error:
        sys.exit(f"run.py: {{error}}")
'''


_PRELOAD = f"""import ctypes, importlib.util

# TVM does not look for the CUDA runtime among Python's packages.
for folder in getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", ()):
    if os.path.exists(f"{{folder}}/cu13/lib/{CUDART}"):
        ctypes.CDLL(f"{{folder}}/cu13/lib/{CUDART}")

"""

_MACHINE = """
try:
    listed = [line.split() for line in open("/proc/cpuinfo") if line.startswith(("flags", "Features"))]
except OSError:
    listed = []
missing = [name for name in {instructions} if listed and name not in listed[0]]
if missing:
    sys.exit(f"run.py: the model was compiled for a CPU with {{', '.join(missing)}}, which this one lacks")
"""

_PERMISSION = """
import ctypes, errno


{ask}

{refusal}

if refused := {refusal_name}({ask_name}()):
    sys.exit(f"run.py: {{refused}}")
"""

_BOARD = '''"""Run {name} once on random inputs, on a board. {made_by} {version}.

    python run.py                   on a board with the key {key} of the tracker {tracker}
    python run.py HOST:PORT         on one of another tracker
    python run.py here              on this machine, if it is such a board
"""
import os
import sys

os.environ.setdefault("TVM_NUM_THREADS", "{threads}")
from pathlib import Path
import numpy, tvm
from tvm import relax, rpc

ENTRIES = {entries}

library = Path(__file__).parent / "{library}"
if sys.argv[1:] == ["here"]:
{machine}
    module, device = tvm.runtime.load_module(str(library)), tvm.cpu(0)
else:
    host, port = (sys.argv[1:] or ["{tracker}"])[0].rsplit(":", 1)
    board = rpc.connect_tracker(host, int(port)).request("{key}")
    board.get_function("runtime.config_threadpool")(1, {threads})
    board.upload(str(library))
    module, device = board.load_module(library.name), board.cpu(0)
model = relax.VirtualMachine(module, device)
for entry, inputs in ENTRIES.items():
    arrays = [numpy.asarray(numpy.random.rand(*shape)).astype(dtype) for shape, dtype in inputs]
    model.set_input(entry, *[tvm.runtime.tensor(array, device=device) for array in arrays])
    model.invoke_stateful(entry)
    outputs = model.get_outputs(entry)
    for output in [outputs] if hasattr(outputs, "numpy") else outputs:
        print(output.shape, output.dtype, output.numpy().ravel()[:4])
'''


def board_source(spec: JobSpec, board: BoardSettings, threads: int, instructions: Sequence[str] = ()) -> str:
    """Return the script for the library of a job that is for boards.

    Args:
        threads: How many threads the model uses there.
        instructions: What the CPU of the board must have, as the kernel names it.
    """
    return _BOARD.format(
        **_common(spec, threads),
        machine=indent(_machine(instructions), "    ").strip("\n"),
        key=board.key,
        tracker=board.tracker,
        entries={entry.name: [(item.shape, item.dtype) for item in entry.inputs] for entry in spec.all_entries},
    )


def source(
    spec: JobSpec,
    threads: int,
    rows: Sequence[Mapping[str, int]],
    instructions: Sequence[str] = (),
    open_dimensions: OpenDimensions | None = None,
) -> str:
    """Return the script for a job's library.

    Args:
        threads: How many threads the model uses unless TVM_NUM_THREADS is set.
        rows: For each set of shapes, the number of rows of the table of each input that is an index.
        instructions: What the CPU must have, as the kernel names it.
        open_dimensions: The dimensions that may be smaller; None for none.
    """
    opened = open_dimensions or OpenDimensions()
    template = _SEVERAL if spec.entries or opened.counts else _ONE
    device = kind_of(spec).runtime
    return template.format(
        **_common(spec, threads),
        device=device,
        preload=_PRELOAD if device == "cuda" else "",
        machine=_machine(instructions),
        inputs=[(item.shape, item.dtype) for item in spec.inputs],
        dtypes={item.name: item.dtype for item in spec.inputs},
        entries={entry.name: {item.name: item.shape for item in entry.inputs} for entry in spec.all_entries},
        rows={entry.name: dict(tables) for entry, tables in zip(spec.all_entries, rows, strict=True)},
        open_inputs=dict(opened.inputs),
        open_outputs=opened.outputs,
        counts=opened.counts,
        functions="\n\n".join(inspect.getsource(function) for function in (*_PADDING, check_index)),
    )


def language_source(
    spec: JobSpec, threads: int, instructions: Sequence[str], rows: Mapping[str, int], end: Sequence[int]
) -> str:
    """Return the script for the library of a language model, which lets it write.

    Args:
        threads: How many threads the model uses unless TVM_NUM_THREADS is set.
        instructions: What the CPU must have, as the kernel names it.
        rows: The number of rows of the table of each input that is an index.
        end: The tokens that end a text.
    """
    ids, *_, keys, values = spec.inputs
    return language_script.source(
        **_common(spec, threads),
        machine=_machine(instructions),
        functions={entry.inputs[0].shape[0]: entry.name for entry in spec.entries},
        cache=[(item.shape, item.dtype) for item in (keys, values)],
        vocabulary=rows[ids.name],
        context=values.shape[2],
        end=tuple(end),
    )


def _machine(instructions: Sequence[str]) -> str:
    """The part that refuses a machine on which a kernel would end the process by a signal."""
    check = _MACHINE.format(instructions=list(instructions)) if instructions else ""
    for item in permissions(instructions):
        check += _PERMISSION.format(
            ask=inspect.getsource(item.ask),
            refusal=inspect.getsource(item.refusal),
            ask_name=item.ask.__name__,
            refusal_name=item.refusal.__name__,
        )
    return check


def _common(spec: JobSpec, threads: int) -> dict[str, Any]:
    """Return what every script says."""
    return {"name": spec.name, "made_by": MADE_BY, "version": __version__, "threads": threads, "library": LIBRARY}
