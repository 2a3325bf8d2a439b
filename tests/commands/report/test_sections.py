"""A report of a job in which layers stay in floats says which and why, and what the alternatives were."""

from __future__ import annotations

from autotune.commands.report.sections import _mixed
from autotune.storage.quantisation import FloatLayer, MixedModel, Quantisation

KEPT = FloatLayer("conv1", error=0.7, float_ms=0.3, quantised_ms=0.1)


def test_the_layers_in_floats_are_listed_beside_the_models_that_were_measured() -> None:
    curve = (MixedModel(0, 0.4, 0.9, 0.6), MixedModel(1, 0.5, 0.1, 0.99))
    floats, precision = _mixed(Quantisation(10, 0.1, 0.99, layers=4, floats=(KEPT,), curve=curve))
    assert floats.says.startswith("1 of 4 layers stay in float32")
    assert floats.rows == (("conv1", 0.7, 0.3, 0.1),)
    assert precision.rows == ((0, 40.0, 0.9, 60.0), (1, 50.0, 0.1, 99.0))
    assert _mixed(Quantisation(10, 0.1, 0.99)) == _mixed(None) == ()


def test_of_a_model_that_a_command_scores_the_curve_has_the_scores() -> None:
    curve = (MixedModel(0, 0.4, 0.9, 1.0, 0.5), MixedModel(1, 0.5, 0.1, 1.0, 0.71))
    cost = Quantisation(10, 0.1, 1.0, layers=4, floats=(KEPT,), curve=curve, score=0.71, score_before=0.72)
    floats, precision = _mixed(cost)
    assert floats.says == "1 of 4 layers stay in float32: in int8, the score of --accuracy falls too far."
    assert precision.columns[-1] == "score of --accuracy"
    assert [row[-1] for row in precision.rows] == [0.5, 0.71]
