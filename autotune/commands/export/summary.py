"""What `export` prints of a report when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.commands.references import LanguageFacts, title
from autotune.storage.quantisation import Quantisation

_MAX_UNUSED = 10  # trials that are named in the end; the report has all of them
_SUFFIXES = {
    "torch": "pt2",
    "litert": "tflite",
    "gguf": "gguf",
}  # of the model as submitted, by what runs it; else ONNX


def report_text(report: Mapping[str, Any], output: str) -> str:
    """Return what `export` prints when it is done."""
    if "metric" in report:  # of commands
        from autotune.command_jobs import best

        return best.summary(report, output)
    entries = report.get("entries", [])
    lines = [line for entry in entries for line in (entry["name"], *_latencies(entry))] or _latencies(report)
    own = report.get("own_error")
    language = LanguageFacts.of_report(report.get("language") or {})
    lines += [
        f"verified: largest relative error {report['largest_relative_error']:.2g}, {_compared_with(report)}",
        *([f"which is within {own:.2g}, twice how far the runtime of the model is from itself"] if own else []),
        *map(_nearness, filter(None, [report.get("in_float32")])),
        *map(_choice, report.get("choices", [])),
        *_padding(report.get("padding") or {}),
        *([_loading(report)] if "load_ms" in report else []),
        *([language.text()] if language else []),
        *([_activations(report["activations"])] if report.get("activations") else []),
        *(f"not used for {item['task']}: {_unused(item)}" for item in report.get("set_aside", [])[:_MAX_UNUSED]),
        f"wrote {output}: model.so, report.json, run.py, autotune.lock"
        + (", cpp/" if report["target"]["kind"] == "llvm" and not report.get("board") else "")
        + (", source/" if report.get("source") else ""),
        *(_slower(entry) for entry in entries or [report] if entry.get("slower")),
    ]
    return "\n".join(lines)


def _padding(found: Mapping[str, Any]) -> list[str]:
    """Return the lines about open dimensions: those of which several sizes were tuned, and those that data decide."""
    refused = found.get("refused", {})
    sizes = {dim: ", ".join(map(str, tuned)) for dim, tuned in found.get("sizes", {}).items()}
    lines = [
        f"{dim} may be 1 to {found['sizes'][dim][-1]}: inputs are padded with zeros to the next of {tuned}"
        for dim, tuned in sizes.items()
        if dim not in refused
    ]
    if lines:
        tried = "another size" if found["verified"] == 1 else f"{found['verified']} other sizes"
        lines.append(f"verified with padding at {tried}: largest relative error {found['largest_relative_error']:.2g}")
    lines += [
        f"{dim} depends on the data: it is {here} of at most {most} on what was verified"
        + ("" if here else ", so give real inputs with --inputs")
        for dim, (here, most) in found.get("counted", {}).items()
    ]
    return lines + [f"{dim} has to be one of {sizes[dim]}: {why}" for dim, why in refused.items()]


def _nearness(distances: Mapping[str, float]) -> str:
    """Return the line about a quantised model whose runtime rounds otherwise."""
    return (
        f"the same weights in float32, which round nothing, decide: the library is {distances['ours']:.2g} from them,"
        f" and ONNX Runtime {distances['runtime']:.2g} (root mean square)"
    )


def _choice(choice: Mapping[str, Any]) -> str:
    """Return the line about an output that depends on a choice."""
    return (
        f"{choice['output']} is a choice by {', '.join(choice['operators'])}: what it chooses by is within"
        f" {choice['error']:.1g}, and {choice['same']} of {choice['rows']} rows are in the same place, which these"
        " inputs cannot decide"
    )


def _activations(bytes: Mapping[str, int]) -> str:
    """Return the line about the memory of activations."""
    library, alone, least = (f"{bytes[key] / 1e6:.2f} MB" for key in ("library", "sum", "least"))
    return f"activations take {library}; {alone} if none shared memory, {least} at least in any order of the kernels"


def _unused(trial: Mapping[str, Any]) -> str:
    """Say which trial an export has not used, and why."""
    which = f"the trial of {trial['best_us']:g} us, candidate {trial['hash']}: " if trial["hash"] else ""
    return which + str(trial["reason"])


def _latencies(report: Mapping[str, Any]) -> list[str]:
    """Return the lines with the latencies at one set of shapes."""
    latency = report["latency"]
    runtime = report.get("reference", "onnxruntime")
    if not latency:
        return [f"{'tuned':>12}  not timed: export it without --quick or --frozen to time it"]
    ours = [f"{'tuned':>12}  {latency['tuned_ms']:10.3f} ms"]
    if latency.get("untuned_ms") is not None:
        untuned = f"{'untuned':>12}  {latency['untuned_ms']:10.3f} ms   TVM's default, no tuning"
        speedup = latency["untuned_ms"] / latency["tuned_ms"]
        ours = [untuned, f"{ours[0]}   {speedup:.1f} times as fast as untuned"]
    if latency.get("without_graph_ms") is not None:
        ours.append(
            f"{'no graph':>12}  {latency['without_graph_ms']:10.3f} ms   tuned, its kernels launched one by one"
        )
    if runtime == "gguf":  # which computes with NumPy: that its time is longer says nothing
        return ours
    if latency.get(f"{runtime}_ms") is None:
        where = "a board" if report.get("board") else "the GPU"
        return [*ours, f"timed on {where}; {title(runtime)} was not timed there"]
    reference_ms = latency[f"{runtime}_ms"]
    middle, low, high = report[f"share_of_{runtime}"]
    share = f"{middle:.2f} of it"
    processes = report["processes"]
    spread = f"({low:.2f} to {high:.2f} in {processes} processes of each)" if processes > 1 else "(one process of each)"
    return [
        *ours,
        f"{title(runtime):>12}  {reference_ms:10.3f} ms   tuned takes {share} {spread}",
    ]


def _slower(report: Mapping[str, Any]) -> str:
    """Return the line about a slower library than the model as submitted: what holds it back, and what helps."""
    slower = report["slower"]
    kernels = ", ".join(
        f"{kernel['name']} {kernel['share']:.0%} of the time"
        + (f" at {kernel['of_limit']:.0%} of what the machine allows" if kernel["of_limit"] is not None else "")
        for kernel in slower["kernels"]
    )
    may_help = "more trials may help: submit it with more --trials"
    helps = may_help if slower["more_trials"] else "more trials will not help"
    return (
        f"slower than {title(slower['than'])}, which takes {1 / slower['ratio']:.0%} of its time: {kernels};"
        f" {slower['between']:.0%} of the time passes between kernels; {helps}"
    )


def _compared_with(report: Mapping[str, Any]) -> str:
    precision = report.get("precision", "fp32")
    if cost := report.get("quantisation"):
        return f"against the model in int8; {Quantisation(**cost).text()}; {_compared_on(report)}"
    in_bytes = report.get("activations_in") == "int8"
    computed = "with activations in int8" if in_bytes else f"in {precision}"
    limit = "" if computed == "in fp32" else f"{computed}, which may have {report['tolerance']:g}, "
    return limit + _compared_on(report)


def _compared_on(report: Mapping[str, Any]) -> str:
    if report["target"]["kind"] == "cuda":
        return f"against {title(report.get('reference', 'onnxruntime'))} on the CPU"
    if report.get("reference") == "gguf":
        return f"against {title('gguf')} in float32, {report['threads']} threads"
    if times := report.get("ms_by_threads"):
        tried = ", ".join(f"{ms:.3f} ms on {count}" for count, ms in times.items())
        return f"{report['threads']} threads of the library ({tried}), {report['reference_threads']} of the other"
    return f"{report['threads']} threads each"


def _loading(report: Mapping[str, Any]) -> str:
    """Return the line about loading, memory and files; in brackets the model as submitted, if it was timed."""
    load = report["load_ms"]
    memory = report["memory_mb"]
    size = report["size_mb"]
    runtime = report.get("reference", "onnxruntime")
    model = size[_SUFFIXES.get(runtime, "onnx")]
    if load[f"{runtime}_ms"] is None:
        return (
            f"first outputs after {load['tuned_ms']:.0f} ms, peak memory {memory['tuned_ms']:.0f} MB,"
            f" model.so {size['model.so']:.1f} MB"
        )
    return (
        f"first outputs after {load['tuned_ms']:.0f} ms ({load[f'{runtime}_ms']:.0f}), peak memory"
        f" {memory['tuned_ms']:.0f} MB ({memory[f'{runtime}_ms']:.0f}), model.so {size['model.so']:.1f} MB"
        f" ({model:.1f}); in brackets {title(runtime)}"
    )
