"""A notebook: from a model to a compiled one that is called with NumPy arrays."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi

import autotune
from autotune.errors import BadInput
from autotune.onnxruntime import InferenceSession
from autotune.storage import export_registry
from autotune.storage.model_digest import ModelDigest
from autotune.tvm_backend.export.loaded import load

from .conftest import User

SHAPE = (1, 3, 16, 16)


class TestAnExportedModel:
    def test_computes_what_the_model_does(self, exported: autotune.Exported, models: Path) -> None:
        session = onnxruntime.InferenceSession(str(models / "tiny_cnn.onnx"), providers=["CPUExecutionProvider"])
        x = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
        name = session.get_inputs()[0].name
        expected = session.run(None, {name: x})[0]
        model = exported.load()
        np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model(**{name: x}), expected, rtol=1e-4, atol=1e-5)

    def test_runs_in_the_place_of_onnx_runtime(
        self, exported: autotune.Exported, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        model = models / "tiny_cnn.onnx"
        export_registry.register(exported.folder, ModelDigest(**exported.report["digest"]))
        session = InferenceSession(model)
        assert session.chosen.startswith(f"the library in {exported.folder}")
        x = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
        feed = {session.get_inputs()[0].name: x}
        (output,) = session.run(None, feed)
        assert np.array_equal(output, autotune.load(exported.folder)(x))
        np.testing.assert_allclose(output, onnxruntime.InferenceSession(model).run(None, feed)[0], rtol=1e-4, atol=1e-5)

    @pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
    @pytest.mark.parametrize("folder", ["cpp", "source"])
    def test_runs_in_a_program_without_python(self, exported: autotune.Exported, tmp_path: Path, folder: str) -> None:
        site = Path(tvm_ffi.__file__).parents[1]
        for words in (["-S", exported.folder / folder, "-B", tmp_path, f"-DTVM_SITE={site}"], ["--build", tmp_path]):
            subprocess.run(["cmake", *map(str, words)], check=True, capture_output=True)
        x = np.random.default_rng(8).standard_normal(SHAPE).astype(np.float32)
        (tmp_path / "x.bin").write_bytes(x.tobytes())
        subprocess.run([tmp_path / "main", "x.bin"], cwd=tmp_path, check=True, capture_output=True)
        output = np.frombuffer((tmp_path / "output0.bin").read_bytes(), np.float32)
        assert np.array_equal(output, np.ravel(exported.load()(x)))
        linked = subprocess.run(["ldd", tmp_path / "main"], check=True, capture_output=True, text=True).stdout
        assert ("tvm" in linked) == (folder == "cpp")

    def test_says_what_it_takes(self, exported: autotune.Exported) -> None:
        model = exported.load()
        (name,) = model.inputs
        with pytest.raises(BadInput, match="has shape"):
            model(np.zeros((2, 3, 16, 16), np.float32))
        with pytest.raises(BadInput, match="has type"):
            model(np.zeros(SHAPE, np.complex64))
        with pytest.raises(BadInput, match="no input 'z'"):
            model(z=np.zeros(1))
        with pytest.raises(BadInput, match=f"needs the input {name!r}"):
            model()

    def test_serves_two_threads_and_two_models_in_one_process(self, exported: autotune.Exported) -> None:
        model = exported.load()
        other = exported.load()
        draw = np.random.default_rng(9).standard_normal
        given = [draw(SHAPE).astype(np.float32) for _ in range(16)]
        expected = [np.asarray(other(x)) for x in given]
        with ThreadPoolExecutor(4) as pool:
            outputs = list(pool.map(lambda pair: (model, other)[pair[0] % 2](pair[1]), enumerate(given)))
        assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))

    def test_is_silent_and_runs_with_another_number_of_threads(self, exported: autotune.Exported) -> None:
        code = (
            "import os, sys, time, numpy as np, autotune, psutil\n"
            f"model = autotune.Exported.open({str(exported.folder)!r}).load(threads=1)\n"
            f"x = np.ones({SHAPE}, np.float32)\n"
            "y = model(x)\n"
            "threads = psutil.Process().num_threads()\n"
            f"more = [autotune.Exported.open({str(exported.folder)!r}).load() for _ in range(3)]\n"
            "assert all(np.allclose(other(x), y, rtol=1e-4) for other in more)\n"
            "assert psutil.Process().num_threads() == threads, 'threads multiply with models'\n"
            "used = time.process_time(); time.sleep(1.0)\n"
            "assert time.process_time() - used < 0.5, 'idle threads spin'\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_says_which_instructions_a_cpu_lacks(self, exported: autotune.Exported) -> None:
        report = {**exported.report, "instructions": [*exported.report["instructions"], "avx4096"]}
        with pytest.raises(BadInput, match="compiled for a CPU with avx4096, which .* lacks"):
            load(exported.folder / "model.so", report)

    def test_refuses_an_index_that_its_table_does_not_have(self, exported: autotune.Exported) -> None:
        inputs = [{**item, "rows": 3} for item in exported.report["inputs"]]
        model = load(exported.folder / "model.so", {**exported.report, "inputs": inputs})
        for wrong in (3.0, -1.0):
            with pytest.raises(BadInput, match=f"has the index {wrong:.0f}; its table has 3 rows"):
                model(np.full(SHAPE, wrong, np.float32))
        model(np.full(SHAPE, 2.0, np.float32))

    def test_is_found_again_by_its_folder(self, exported: autotune.Exported) -> None:
        again = autotune.Exported.open(exported.folder)
        assert again.latency_ms == exported.latency_ms > 0

    def test_is_missed_with_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="holds no exported model"):
            autotune.Exported.open(tmp_path)


def test_tune_runs_the_queue_itself(user: User, models: Path) -> None:
    proto = onnx.load(str(models / "mlp.onnx"))
    job = autotune.tune(proto, trials=2, workspace=user.root, timeout_s=240)
    assert job.progress().state == "done"
    assert sum(user.trials().values()) == 2
    assert "no daemon is running" in user.run("daemon", "status").stdout
