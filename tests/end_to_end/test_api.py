"""A notebook: from a model to a compiled one that is called with NumPy arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import autotune
from autotune.errors import BadInput

from .conftest import User

SHAPE = (1, 3, 16, 16)


@pytest.fixture(scope="module")
def exported(tuned: User, tmp_path_factory: pytest.TempPathFactory) -> autotune.Exported:
    return autotune.open_job("last", tuned.root).export(tmp_path_factory.mktemp("exported"))


class TestAnExportedModel:
    def test_computes_what_the_model_does(self, exported: autotune.Exported, models: Path) -> None:
        session = onnxruntime.InferenceSession(str(models / "tiny_cnn.onnx"), providers=["CPUExecutionProvider"])
        x = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
        name = session.get_inputs()[0].name
        expected = session.run(None, {name: x})[0]
        model = exported.load()
        np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model(**{name: x}), expected, rtol=1e-4, atol=1e-5)

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
