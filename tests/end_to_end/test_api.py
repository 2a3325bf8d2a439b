"""A notebook: from a model to a compiled one that is called with NumPy arrays."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi

import autotune
from autotune.errors import BadInput

from .conftest import User

SHAPE = (1, 3, 16, 16)


@pytest.fixture(scope="module")
def exported(tuned: User, tmp_path_factory: pytest.TempPathFactory) -> autotune.Exported:
    return autotune.open_job("last", tuned.root).export(tmp_path_factory.mktemp("exported"), source=True)


class TestAnExportedModel:
    def test_computes_what_the_model_does(self, exported: autotune.Exported, models: Path) -> None:
        session = onnxruntime.InferenceSession(str(models / "tiny_cnn.onnx"), providers=["CPUExecutionProvider"])
        x = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
        name = session.get_inputs()[0].name
        expected = session.run(None, {name: x})[0]
        model = exported.load()
        np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model(**{name: x}), expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
    @pytest.mark.parametrize("folder", ["cpp", "source"])
    def test_runs_in_a_program_without_python(self, exported: autotune.Exported, tmp_path: Path, folder: str) -> None:
        site = Path(tvm_ffi.__file__).parents[1]
        for words in (["-S", exported.folder / folder, "-B", tmp_path, f"-DTVM_SITE={site}"], ["--build", tmp_path]):
            subprocess.run(["cmake", *map(str, words)], check=True, capture_output=True)
        x = np.random.default_rng(8).standard_normal(SHAPE).astype(np.float32)
        (tmp_path / "x.bin").write_bytes(x.tobytes())
        subprocess.run([tmp_path / "main", "x.bin"], cwd=tmp_path, check=True, capture_output=True)
        found = np.frombuffer((tmp_path / "output0.bin").read_bytes(), np.float32)
        assert np.array_equal(found, np.ravel(exported.load()(x)))
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

    def test_is_found_again_by_its_folder(self, exported: autotune.Exported) -> None:
        again = autotune.Exported.open(exported.folder)
        assert again.latency_ms == exported.latency_ms > 0

    def test_is_missed_with_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="holds no exported model"):
            autotune.Exported.open(tmp_path)


def test_tune_runs_the_queue_itself(user: User, models: Path) -> None:
    proto = onnx.load(str(models / "mlp.onnx"))
    job = autotune.tune(proto, trials=4, workspace=user.root, timeout_s=240)
    assert job.progress().state == "done"
    assert sum(user.trials().values()) >= 4
    assert "no daemon is running" in user.run("daemon", "status").stdout
