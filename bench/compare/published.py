# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/performance.md that show whole models, made from the stored rows; a test compares them."""
from compare import acceptance, depth_plot
from compare.engines import LLAMA_FORMS
from compare.model_rows import by_machine, last_rows, number, waited

CASES = {"decode": "decode", "prefill": "prefill", "first_token": "first token", "memory": "memory"}
OPEN_BARS = "Bars that are missed or not measured"


def ratio(row, other):
    """With its interval, where there is more than one block to have it from."""
    value = row[f"ratio_{other}"]
    if value is None or row["blocks"] == 1:
        return number(value)
    low, high = row[f"ratio_{other}_95"]
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


HEADS = ["depth", "threads", "cache", "quern", "to ONNX Runtime", "to its shared buffer", "to llama.cpp", "percent",
         "blocks", "measured"]


def columns(row, unit):
    llama = " / ".join(number(row[f"ratio_{form}"]) for form in LLAMA_FORMS)
    percent = row.get("pct_floor")
    cache = row["kv"] if row["scales"] == "bf16" else f"{row['kv']}, {row['scales']} scales"
    if waited(row):
        cache += f", {waited(row)}"
    return [row["depth"], row["threads"], cache, number(row[f"quern_{unit}"], 0 if unit == "mb" else 2),
            ratio(row, "ort"), ratio(row, "ort_shared"), "-" if llama == "- / -" else llama,
            "" if percent is None else f"{percent:.0f} % of {row['probe_gbps']:.0f}", f"{row['blocks']} of {row['blocks'] + row['discarded']}",
            f"{row['machine']['date']} {row['machine']['commit']}"]


def table(title, rows, unit):
    """Lines; none where there are no rows. `unit`: ms or mb, as in the rows."""
    if not rows:
        return []
    heads = ["quern " + {"ms": "ms", "mb": "MiB"}[unit] if head == "quern" else head for head in HEADS]
    return ["", depth_plot.line(title, heads), "|---" * (len(heads) + 1) + "|",
            *(depth_plot.line(CASES[row["case"]], columns(row, unit)) for row in rows)]


def open_bars(rows):
    """Missed on a machine, or measured on none."""
    lines = ["", "| machine | case | threads | cache | scales | against | bar | seen (95 %) | at most |",
             "|---" * 9 + "|"]
    machines = by_machine(rows)
    unmeasured = set(acceptance.all_bars())
    for name, own in machines.items():
        for bar in acceptance.all_bars():
            result = acceptance.seen(bar, own)
            if result.value is not None:
                unmeasured.discard(bar)
                if not acceptance.holds(bar, result):
                    lines.append(f"| {name} | {acceptance.described(bar)} | {acceptance.shown(bar, result)} |")
    for bar in acceptance.all_bars():
        if bar in unmeasured:
            lines.append(f"| none | {acceptance.described(bar)} | {acceptance.shown(bar, acceptance.NOT_SEEN)} |")
    return lines


def document(rows):
    """{heading: lines of the tables below it}; `rows` oldest first."""
    result = {}
    for name, own in by_machine(rows).items():
        last = sorted(last_rows(own), key=lambda r: (list(CASES).index(r["case"]), r["threads"], r["depth"], r["kv"],
                                                        r["scales"], r.get("least_gbps") or 0))
        result[name] = [*table("case", [r for r in last if r["case"] != "memory"], "ms"),
                        *table("most resident", [r for r in last if r["case"] == "memory"], "mb"),
                        *depth_plot.table(last)]
    return result | {OPEN_BARS: open_bars(rows)}


def print_document(rows):
    for heading, lines in document(rows).items():
        print(f"\n### {heading}\n" + "\n".join(lines))
