# SPDX-License-Identifier: Apache-2.0
"""Tokens per second against depth: a plot with a panel for each machine and thread count, and a Markdown table."""
import sys

from compare.engines import Absent, LLAMA_FORMS, OTHERS, plotting
from compare.model_rows import by_machine

LABELS = {"ort": "ONNX Runtime, tensors (fp32 cache)", "ort_shared": "ONNX Runtime, shared buffer (fp32 cache)",
          "genai": "onnxruntime-genai (fp32 cache)", "llama": "llama.cpp Q4_0, another format (fp16 cache)",
          "llama_plain": "llama.cpp Q4_0 without flash attention (fp16 cache)"}
COLOURS = {"quern fp32": "tab:blue", "quern fp16": "tab:green", "ort": "tab:red", "ort_shared": "tab:orange", "genai": "tab:brown",
           "llama": "tab:purple", "llama_plain": "tab:pink"}


def curves(rows):
    """{threads: {engine: {depth: (tokens/s, slow end, fast end)}}} of the decode rows with the most exact scales measured, without
    those that waited for bandwidth."""
    decode = [r for r in rows if r["case"] == "decode" and not r.get("least_gbps")]
    scales = "bf16" if any(r["scales"] == "bf16" for r in decode) else "fp32"
    result = {}
    chosen = sorted((r for r in decode if r["scales"] == scales), key=lambda r: (r["threads"], r["kv"], r["depth"]))
    for engine in ("quern", *OTHERS):
        for r in chosen:
            engines = result.setdefault(r["threads"], {})
            if r[f"{engine}_ms"] is not None:
                name = f"quern {r['kv']}" if engine == "quern" else engine
                low, high = r["spread"][engine]
                engines.setdefault(name, {})[r["depth"]] = (1e3 / r[f"{engine}_ms"], 1e3 / high, 1e3 / low)
    return result


def label(name):
    return LABELS.get(name, f"{name} cache")


def line(first, others):
    return "| " + " | ".join(map(str, [first, *others])) + " |"


def table(rows):
    """Lines, one block a thread count."""
    lines = []
    for threads, engines in curves(rows).items():
        depths = sorted({d for points in engines.values() for d in points})
        title = f"tokens/s, {threads} thread{'s' if threads > 1 else ''}, at depth"
        lines += ["", line(title, depths), "|---" * (len(depths) + 1) + "|"]
        lines += [line(label(name), [f"{points[d][0]:.1f}" if d in points else "-" for d in depths])
                  for name, points in engines.items()]
    return lines


def print_table(rows):
    print("\n".join(table(rows)))


def draw(rows, path):
    """Writes a PNG. Raises Absent where there is no curve, or matplotlib cannot be installed."""
    sys.path.append(str(plotting()))  # behind the interpreter's own packages
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {(name, threads): engines
              for name, own in by_machine(rows).items() for threads, engines in curves(own).items()
              if any(len(points) > 1 for points in engines.values())}
    if not panels:
        raise Absent("no engine was measured at more than one depth")
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 5.5), squeeze=False, layout="constrained")
    for axis, ((name, threads), engines) in zip(axes[0], panels.items()):
        for engine, points in engines.items():
            depths = sorted(points)
            middle = [points[d][0] for d in depths]
            ends = [[points[d][0] - points[d][1] for d in depths], [points[d][2] - points[d][0] for d in depths]]
            axis.errorbar(depths, middle, yerr=[[max(e, 0) for e in end] for end in ends], marker="o", capsize=3,
                          linestyle="--" if engine in LLAMA_FORMS else "-", color=COLOURS.get(engine),
                          label=label(engine))
        axis.set_xscale("symlog", base=2, linthresh=128)
        ticks = sorted({d for points in engines.values() for d in points})
        axis.set_xticks(ticks, map(str, ticks))
        axis.set_ylim(bottom=0)
        axis.set_title(f"{rows[0]['model']}, {threads} thread{'s' if threads > 1 else ''}\n{name}")
        axis.set_xlabel("tokens before the decoded one")
        axis.set_ylabel("tokens per second: median, 10 to 90 %")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(panels) - 1, fontsize=8)
    figure.savefig(path, dpi=110)
