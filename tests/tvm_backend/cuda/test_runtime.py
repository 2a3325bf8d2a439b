"""CUDA is found in wheels and toolkits, and a script in PATH does not lead astray."""

from __future__ import annotations

import pytest

from autotune.tvm_backend.cuda import runtime


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    runtime._root_of_nvcc.cache_clear()
    yield
    runtime._root_of_nvcc.cache_clear()


def fill(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


HEADERS = ("include/cuda_fp16.h", "include/cuda_runtime.h", "include/cccl/cuda/std/cstdint")


def test_a_wheel_has_the_library_and_the_headers(tmp_path, monkeypatch):
    site = tmp_path / "site"
    fill(site / "nvidia/cu13", "lib/libcudart.so.13", *HEADERS)
    monkeypatch.syspath_prepend(str(site))
    root = site / "nvidia/cu13"
    monkeypatch.setattr(runtime, "_named_roots", lambda: iter(()))
    assert runtime.cudart() == root / "lib/libcudart.so.13"
    assert runtime.include_folders() == (root / "include", root / "include/cccl")
    assert runtime.headers_root() == root


def test_a_toolkit_that_the_user_names_comes_first(tmp_path, monkeypatch):
    root = tmp_path / "toolkit"
    fill(root, "lib64/libcudart.so.13", "bin/nvcc", *HEADERS)
    monkeypatch.setenv("CUDA_PATH", str(root))
    assert runtime.cudart() == root / "lib64/libcudart.so.13"
    assert runtime.nvcc() == str(root / "bin/nvcc")
    assert runtime.headers_root() == root


def test_nvcc_says_where_it_is_itself(tmp_path, monkeypatch):
    fill(tmp_path / "real", "lib64/libcudart.so.13")
    fill(tmp_path, "bin/nvcc")
    script = tmp_path / "bin/nvcc"
    script.write_text(f"#!/bin/sh\necho '#$ _HERE_={tmp_path}/real/bin' >&2\n")
    script.chmod(0o755)
    monkeypatch.setattr(runtime, "_named_roots", lambda: iter(()))
    monkeypatch.setattr(runtime, "_wheels", lambda: iter(()))
    assert runtime.cudart() == tmp_path / "real/lib64/libcudart.so.13"
