#!python
"""In the place of nvcc, as TVM calls it: compiles one source to an image that the stand-in's driver launches."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, (HERE / "package").read_text())
from on_cpu.image import compile_image  # noqa: E402
from on_cpu.ptx import UnknownPtx  # noqa: E402

arguments = sys.argv[1:]
sources = [word for word in arguments if word.endswith(".cu")]
if "-o" not in arguments or not sources:
    sys.exit("nvcc on a CPU: it compiles .cu to a cubin, and nothing else")
(arch,) = set(re.findall(r"code=(sm_\d+)", " ".join(arguments)))
try:
    made = compile_image(Path(sources[0]).read_text(), arch, HERE)
except (UnknownPtx, RuntimeError) as error:
    sys.exit(str(error))
Path(arguments[arguments.index("-o") + 1]).write_bytes(made)
