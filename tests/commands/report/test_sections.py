"""What a report says of a latency that fell, and of a job in which layers stay in floats: which, and why."""

from __future__ import annotations

from dataclasses import replace

from autotune.commands.references import LanguageFacts
from autotune.commands.report.facts import gather
from autotune.commands.report.history import LatencyPoint
from autotune.commands.report.sections import _mixed, sections
from autotune.storage.paths import JobPaths, Workspace
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


def test_of_a_language_model_perplexities_stand_beside_tokens_a_second(workspace: Workspace, tuned: JobPaths) -> None:
    (job,) = gather(workspace, [tuned], 1_700_000_300.0).jobs
    assert job.references is not None
    facts = LanguageFacts(350.0, 3900.0, 2048, 24.78, 24.66)
    (language,) = (
        part
        for part in sections(replace(job, references=replace(job.references, language=facts)))
        if part.name == "language"
    )
    assert [row[1:] for row in language.rows] == [(24.78, 350.0, 3900.0), (24.66, None, None)]
    assert "the perplexity of 2048 tokens of English is 24.78, and 24.66 with" in language.says
    assert "perplexity" not in replace(facts, tokens=0, perplexity=None, in_float32=None).text()


def test_the_latency_is_said_to_have_fallen_so_many_times(workspace: Workspace, tuned: JobPaths) -> None:
    points = (LatencyPoint(30.0, 3, 5.0), LatencyPoint(600.0, 40, 2.01), LatencyPoint(900.0, 48, 2.0))
    (job,) = gather(workspace, [tuned], 1_700_000_300.0).jobs
    (latency,) = (part for part in sections(replace(job, latency=points)) if part.name == "latency")
    assert latency.says == (
        "The sum of the tasks' best times fell from 5 ms after 3 trials to 2 ms after 48: 2.5 times as good."
        " It was within 1% of that after 40 trials, 10m00s into the job."
    )
