"""What is compiled is machine code of the architecture that was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autotune.errors import DamagedFile
from autotune.tvm_backend.cuda import cubin, runtime

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) twice(float* x) {
  __shared__ float tile[128];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = 2.0f * tile[127 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def compile_for(tmp_path_factory: pytest.TempPathFactory):
    nvcc = runtime.nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("cubin")
    (folder / "k.cu").write_text(SOURCE)

    def make(arch: str) -> bytes:
        subprocess.run([nvcc, "--cubin", "-arch", arch, "-o", "k.cubin", "k.cu"], cwd=folder, check=True)
        return (folder / "k.cubin").read_bytes()

    return make


@pytest.mark.parametrize(("arch", "reserved"), [("sm_75", 0), ("sm_90", 1024), ("sm_120", 1024)])
def test_architecture_and_needs_of_kernels_are_read(compile_for, arch, reserved):
    code = cubin.read(compile_for(arch))
    assert code.arch == arch
    (kernel,) = code.kernels
    assert (kernel.name, kernel.shared_bytes, kernel.stack_bytes) == ("twice", 512 + reserved, 0)
    assert 4 <= kernel.registers <= 64


def test_cubins_are_found_in_a_library(compile_for):
    data = compile_for("sm_80")
    assert [code.arch for code in cubin.find(b"\0" * 100 + data + SOURCE.encode() + data)] == ["sm_80", "sm_80"]
    assert not list(cubin.find(SOURCE.encode()))


def test_a_library_needs_the_most_that_one_of_its_kernels_does(compile_for):
    old, new = (compile_for(arch) for arch in ("sm_75", "sm_90"))
    needs = cubin.needs(b"\0" * 100 + old + new)
    assert needs is not None and needs.registers >= 4
    assert (needs.stack_bytes, needs.shared_bytes) == (0, 512 + 1024)
    assert cubin.needs(SOURCE.encode()) is None


@pytest.mark.parametrize("data", [b"", SOURCE.encode(), b"\x7fELF\x02\x01", Path("/bin/true").read_bytes()])
def test_data_that_is_no_cubin_is_refused(data):
    with pytest.raises(DamagedFile):
        cubin.read(data)


def test_a_torn_cubin_is_refused(compile_for):
    data = compile_for("sm_90")
    for length in (6, 40, 64, 300):
        with pytest.raises(DamagedFile):
            cubin.read(data[:length])
