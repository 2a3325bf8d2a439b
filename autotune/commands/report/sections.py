"""A report in sections: each has a sentence that says what it shows, a table, and most have a chart.

The page, the CSV files and nothing else are made of them, so that all say the same.
"""

from __future__ import annotations

import itertools
import time

from autotune.commands import gantt, render
from autotune.commands.durations import duration
from autotune.commands.references import KernelLimit, LanguageFacts, title
from autotune.commands.report import charts
from autotune.commands.report.facts import JobReport, Settings, TaskReport
from autotune.commands.report.knob_sections import knob_values, knobs
from autotune.commands.report.section import Cell, Section
from autotune.commands.submit.words import value_text
from autotune.planning.simulator import Span
from autotune.planning.view import StageId
from autotune.storage.quantisation import Quantisation

_MIN_S = 1e-3
_LAYER_TIMES = ("float32 alone, ms", "int8 alone, ms")
_CURVE = "The models that were measured to choose the layers. Time is the sum of single layers in ONNX Runtime."
_CURVE_COLUMNS = ("layers in floats", "time in % of all in floats", "largest error", "same top-1 answers in %")
_RUNTIMES = {"tuned": "exported library"}


def sections(job: JobReport) -> tuple[Section, ...]:
    """Return the sections of a job, the ones that most people look for first."""
    settings = (_settings(job.settings),) if job.settings else ()
    return (
        _latency(job),
        *(() if job.of_commands else (_references(job),)),
        *_language(job.references.language if job.references else None),
        *((_shapes(job),) if job.entries else ()),
        _forecast(job),
        _tasks(job),
        *(() if job.of_commands else (_kernels(job),)),
        _curves(job),
        knobs(job),
        *knob_values(job),
        _failures(job),
        _wall_time(job),
        _stages(job),
        *_mixed(job.settings.quantisation if job.settings else None),
        *settings,
    )


def answers(job: JobReport) -> tuple[str, ...]:
    """Return what most people open a report for, in sentences: what takes most, and whether more tuning is worth it."""
    verdict = job.outlook.verdict if job.outlook else ""
    whole = render.whole_model(job.job)
    sentence = f"{whole[0].upper()}{whole[1:]}." if whole else ""
    return tuple(filter(None, (sentence, _tasks_sentence(job), verdict)))


def _latency(job: JobReport) -> Section:
    points = job.latency
    metric = job.job.metric
    rows = tuple((point.seconds, point.trials, metric.in_column(point.latency_ms)) for point in points)
    drawn = (lambda: [charts.latency_over_time(job), charts.latency_over_trials(job)]) if points else None
    columns = ("seconds since the submission", "trials", metric.column)
    return Section("latency", "Latency", _latency_sentence(job), columns, rows, drawn, folded=True)


def _latency_sentence(job: JobReport) -> str:
    """Return how the latency fell, and when it fell last by more than a hundredth."""
    if not job.latency:
        if job.latency_ms is None:
            return "No task has a time yet."
        return f"The tasks take {job.in_words(job.latency_ms)}."
    what = f"The best {job.job.metric.name}" if job.of_commands else "The sum of the tasks' best times"
    first = job.latency[0]
    last = job.latency[-1]
    if first.latency_ms == last.latency_ms:
        return f"{what} is {job.in_words(last.latency_ms)} since trial {first.trials}."
    settled = next(point for point in job.latency if point.latency_ms <= 1.01 * last.latency_ms)
    return (
        f"{what} fell from {job.in_words(first.latency_ms)} after {first.trials} trials to"
        f" {job.in_words(last.latency_ms)} after {last.trials}: {first.latency_ms / last.latency_ms:.1f} times as"
        f" good. It was within 1% of that after {settled.trials} trials, {duration(settled.seconds)} into the job."
    )


def _references(job: JobReport) -> Section:
    columns = ("what ran", "latency in ms", "relative to the exported library")
    references = job.references
    if references is None:
        return _early_references(job, columns)
    rows = tuple((name, ms, ms / references.tuned_ms) for name, ms in references.named.items())
    exported = time.strftime("%Y-%m-%d %H:%M", time.localtime(references.exported_at))
    says = (
        f"The export of {exported} ran the whole model on {references.threads} threads in {references.tuned_ms:.4g} ms"
        + "".join(f", {name} in {ms:.4g} ms" for name, ms in references.others_ms.items())
    )
    return Section("references", "The whole model", f"{says}.{references.activations_text()}", columns, rows)


def _early_references(job: JobReport, columns: tuple[str, ...]) -> Section:
    """Return what is known of the whole model before an export."""
    whole = job.job.whole_model
    if whole is None:
        says = "The whole model has not been timed: `autotune export` does it, and later reports show it here."
        return Section("references", "The whole model", says, columns, ())
    rows = [("the library so far", whole.model_ms, 1.0)]
    if whole.reference_ms is not None:
        rows.append((title(whole.reference), whole.reference_ms, whole.reference_ms / whole.model_ms))
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(whole.measured_at))
    says = (
        f"By the measurement of {moment} the model takes {whole.outside_ms:.4g} ms besides its tasks, whose best times"
        " are added to that. `autotune export` times the library itself."
    )
    return Section("references", "The whole model", says, columns, tuple(rows))


def _language(facts: LanguageFacts | None) -> tuple[Section, ...]:
    """Return how well and how fast a language model writes."""
    if facts is None:
        return ()
    columns = ("what was computed", "perplexity", "tokens written a second", "tokens read a second")
    ours = ("the exported library", facts.perplexity, facts.written_per_s, facts.read_per_s)
    exact = ("its weights, with activations in float32", facts.in_float32, None, None)
    return (Section("language", "Language model", f"It {facts.text()}.", columns, (ours, exact)),)


def _kernels(job: JobReport) -> Section:
    columns = (
        "kernel", "task", "calls", "µs", "share of the time in %", "GFLOP/s", "GB/s", "of what the machine allows in %",
        "bound by",
    )  # fmt: skip
    references = job.references
    if references is None or not references.kernels:
        says = "The kernels have not been timed inside the model: `autotune export` does it."
        return Section("kernels", "Kernels of the exported library", says, columns, ())
    total = sum(kernel.us for kernel in references.kernels)
    rows = tuple(
        (kernel.name, kernel.task or "", kernel.calls, kernel.us, 100 * kernel.us / total, kernel.gflops,
         kernel.gb_per_s, 100 * kernel.least_us / kernel.us if kernel.least_us else None, kernel.bound)
        for kernel in references.kernels
    )  # fmt: skip
    limits = references.limits
    drawn = (lambda: [charts.roofline(references.kernels, limits)]) if limits else None
    says = references.kernels_text() + (f" They are those for {job.entries[0].name}." if job.entries else "")
    return Section("kernels", "Kernels of the exported library", says, columns, rows, drawn, True)


def _shapes(job: JobReport) -> Section:
    runtimes = list(dict.fromkeys(name for entry in job.entries for name in entry.exported_ms))
    columns = (
        "shapes",
        "inputs",
        "sum of the tasks in ms",
        "whole model in ms",
        *(f"{_RUNTIMES.get(name, name)} in ms" for name in runtimes),
    )
    rows = tuple(
        (entry.name, ", ".join(entry.inputs), entry.latency_ms, entry.model_ms, *map(entry.exported_ms.get, runtimes))
        for entry in job.entries
    )
    says = (
        f"The model is tuned for {len(rows)} sets of shapes. Latencies elsewhere are those of one run at each of them."
    )
    return Section("shapes", "Shapes", says, columns, rows)


def _forecast(job: JobReport) -> Section:
    metric = job.job.metric
    columns = ("when", "more trials", metric.column, "80%: from", "80%: to")
    outlook = job.outlook
    if outlook is None or not outlook.says:
        says = "There is no forecast before the first stage has ended and a task has a time."
        return Section("forecast", "What more trials would bring", says, columns, ())
    forecasts = (("after the rest of the budget", outlook.rest), ("after one more hour from now", outlook.hour))
    rows = tuple(
        (when, latency.trials, *map(metric.in_column, (latency.median_ms, latency.low_ms, latency.high_ms)))
        for when, latency in forecasts
        if latency is not None
    )
    now: tuple[Cell, ...] = ("now", 0, metric.in_column(outlook.latency_ms), None, None)
    says = (
        f"{outlook.says[0].upper()}{outlook.says[1:]}. It follows from how far each task is from the speed of the"
        " fastest, and from the trials that it has had."
    )
    return Section("forecast", "What more trials would bring", says, columns, (now, *rows))


def _tasks(job: JobReport) -> Section:
    columns = (
        "task", "name", "shape", "weight", "trials", "failed", "best in µs", "share of the time in %", "GFLOP/s",
        "of what the machine allows in %", "bound by", "GFLOP", "remark",
    )  # fmt: skip
    limits = job.references.limits_of_tasks() if job.references else {}
    rows = tuple(_task_row(task, limits.get(task.name)) for task in job.tasks)
    drawn = (lambda: [charts.task_bars(job)]) if charts.by_share(job) else None
    return Section("tasks", "Tasks", _tasks_sentence(job), columns, rows, drawn)


def _task_row(task: TaskReport, limit: KernelLimit | None) -> tuple[Cell, ...]:
    remark = f"set aside: {task.set_aside}" if task.set_aside else "" if task.tunable else "nothing to tune"
    share = None if task.share is None else 100 * task.share
    of_limit = 100 * limit.us / task.best_us if limit and task.best_us else None
    bound = limit.bound if limit else None
    return (
        task.index, task.name, task.shape, task.weight, task.trials, task.failed, task.best_us, share, task.gflops,
        of_limit, bound, task.gflop, remark,
    )  # fmt: skip


def _tasks_sentence(job: JobReport) -> str:
    ranked = charts.by_share(job)
    if not ranked:
        return "No task has a time yet."
    top = ranked[0]
    if job.of_commands:
        best = job.in_words(job.latency_ms or 0.0)
        return f"The best {job.job.metric.name} of {job.trials} combinations is {best}."
    speed = f" at {top.gflops:.3g} GFLOP/s" if top.gflops else ""
    sums = itertools.accumulate(task.share or 0.0 for task in ranked)
    half = next((count for count, total in enumerate(sums, 1) if total >= 0.5), len(ranked))
    several = "" if half == 1 else f" {half} of {len(ranked)} tasks take half of it."
    return f"Task {top.index}, {top.name}, takes most of the model's time: {top.share:.0%}{speed}.{several}"


def _curves(job: JobReport) -> Section:
    rows = tuple((task.index, task.name, point.trials, point.best_us) for task in job.tasks for point in task.curve)
    late = [
        task
        for task in charts.by_share(job)
        if task.trials and task.curve[-1].trials > 0.75 * max(task.trials, task.curve[-1].trials)
    ]
    says = (
        f"{len(late)} of {len(charts.by_share(job))} tasks improved in the last quarter of their trials;"
        f" a task that still does may gain from more. The chart has the {charts.MAX_TASKS} that take most."
        if rows
        else "No task has a time yet."
    )
    drawn = (lambda: [charts.best_over_trials(job)]) if rows else None
    columns = ("task", "name", "trials of the task", "best in µs")
    return Section("curves", "Best of each task over its trials", says, columns, rows, drawn, folded=True)


def _failures(job: JobReport) -> Section:
    rows = tuple((item.stage, item.kind, item.count, item.example) for item in job.failures)
    failed = sum(item.count for item in job.failures)
    columns = ("stage", "kind", "trials", "the latest reason")
    if not failed:
        return Section("failures", "Failures", f"None of {job.trials} trials failed.", columns, ())
    most = job.failures[0]
    share = failed / max(1, job.trials)
    says = f"{failed} of {job.trials} trials failed ({share:.0%}), most in {most.stage}: {most.kind}."
    names = [f"{item.stage}: {item.kind}" for item in job.failures]
    counts = [item.count for item in job.failures]
    return Section("failures", "Failures", says, columns, rows, lambda: [charts.horizontal(names, counts, "trials")])


def _wall_time(job: JobReport) -> Section:
    times = job.times
    longest = sorted(((name, s) for name, s in times.parts.items() if s >= _MIN_S), key=lambda part: -part[1])
    rows = tuple((name, seconds, 100 * seconds / max(times.wall_s, 1e-9)) for name, seconds in longest)
    columns = ("part", "seconds", "share in %")
    if not longest:
        return Section("wall_time", "Where the time went", "No time has passed.", columns, ())
    says = f"Of {duration(times.wall_s)} since the submission, most went to: {longest[0][0]}, {rows[0][2]:.0f}%."
    names = [name for name, _ in longest]
    values = [seconds for _, seconds in longest]
    chart = lambda: [charts.horizontal(names, values, "seconds")]  # noqa: E731
    return Section("wall_time", "Where the time went", says, columns, rows, chart)


def _stages(job: JobReport) -> Section:
    columns = ("task", "round", "stage", "began, s", "took, s", "CPUs", "device", "succeeded")
    rows = tuple(
        (run.task, run.round, run.kind, run.began, run.seconds, " ".join(map(str, run.cpus)), run.device,
         "yes" if run.succeeded else "no")
        for run in job.stages
    )  # fmt: skip
    if not rows:
        return Section("stages", "Stages", "No stage has ended yet.", columns, ())
    failed = sum(not run.succeeded for run in job.stages)
    says = f"{len(rows)} stages ran, {failed or 'none'} of which failed; the chart has a row for each CPU and device."
    return Section("stages", "Stages by resource", says, columns, rows, lambda: [_gantt(job)], folded=True)


def _gantt(job: JobReport) -> str:
    spans = [
        Span(StageId(job.job.id, run.task, run.round), run.kind, run.cpus, run.device, run.began, end)
        for run in job.stages
        if (end := run.began + run.seconds) > 0
    ]
    return gantt.timeline(spans, "the seconds since the submission")


def _mixed(cost: Quantisation | None) -> tuple[Section, ...]:
    """Return how the precision of each layer was chosen, of a job in which some stay in floats."""
    if cost is None or not cost.floats:
        return ()
    worse = "too many answers change" if cost.score is None else "the score of --accuracy falls too far"
    says = f"{len(cost.floats)} of {cost.layers} layers stay in float32: in int8, {worse}."
    layers = tuple((layer.name, layer.error, layer.float_ms, layer.quantised_ms) for layer in cost.floats)
    shown = tuple((model.floats, 100 * model.time, model.error, 100 * model.agreement) for model in cost.curve)
    columns: tuple[str, ...] = _CURVE_COLUMNS
    curve: tuple[tuple[Cell, ...], ...] = shown
    if cost.score is not None:
        columns = (*_CURVE_COLUMNS, "score of --accuracy")
        curve = tuple((*row, model.score) for row, model in zip(shown, cost.curve, strict=True))
    return (
        Section("floats", "Layers in floats", says, ("layer", "error if only it is in int8", *_LAYER_TIMES), layers),
        Section("precision", "Time and error by precision", _CURVE, columns, curve, folded=True),
    )


def _settings(settings: Settings) -> Section:
    rows: list[tuple[Cell, ...]] = [
        ("model", settings.model),
        *(("input", item) for item in settings.inputs),
        *(("constant input", f"{name}={value_text(value)}") for name, value in settings.values.items()),
        ("machine", settings.machine or "not written down"),
        ("target", ", ".join(f"{key} {value}" for key, value in settings.target.items())),
        ("tuning logs", settings.target_key),
        ("seed", settings.seed),
        ("strategy", settings.strategy),
        ("sampler", settings.sampler),
        ("trials", f"at most {settings.trials}" if settings.automatic else settings.trials),
        ("trials a round", settings.trials_per_round),
        ("ends at", "no latency" if settings.stop_at_ms is None else f"{settings.stop_at_ms:g} ms"),
        ("stages may run for", "any time" if settings.within_s is None else duration(settings.within_s)),
        ("counts new trials only", "yes" if settings.fresh else "no"),
        ("Winograd", "yes" if settings.winograd else "no"),
        ("precision", settings.precision),
        *([("quantised", settings.quantisation.text())] if settings.quantisation else []),
        *((f"version of {name}", version) for name, version in settings.versions.items()),
        *(("to repeat it", command) for command in settings.commands),
    ]
    says = "How the job was submitted. The versions are those of the machine that wrote this report."
    return Section("settings", "Settings, versions and commands", says, ("what", "value"), tuple(rows))
