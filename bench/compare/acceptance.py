# SPDX-License-Identifier: Apache-2.0
"""The bars that the whole model has to reach at the 0.6B geometry, the cells that show them, and the table of both."""
import dataclasses
import math

from compare.engines import LLAMA_FORMS
from compare.model_rows import Cell, waited

DEPTHS = (0, 1024, 4096)
LONG_PROMPT = 4096


@dataclasses.dataclass(frozen=True)
class Bar:
    case: str
    depth: int
    threads: int | None  # None: as many as were used
    kv: str | None  # None: the engine's default
    scales: str
    against: str  # an engine (llama: the better of its forms), or floor: percent of the time that reading weights and cache takes
    bar: float
    at_most: bool = False  # quern's share of the other's time or memory, instead of a ratio of at least


def all_bars():
    for threads, floor, ort, llama in ((1, 80, (1.6, 1.75), (1.4, 1.5)), (2, 75, (1.9, 2.1), (1.5, 1.6))):
        for i, scales in enumerate(("fp32", "bf16")):
            for against, bar in (("ort", ort[i]), ("floor", floor), ("llama", llama[i])):
                yield Bar("decode", 0, threads, None, scales, against, bar)
    for kv, bars in (("fp16", (("ort", 3.8), ("ort_shared", 2.2), ("llama", 1.9))), ("fp32", (("ort", 3.0), ("ort_shared", 1.8)))):
        yield from (Bar("decode", 1024, 2, kv, "bf16", *bar) for bar in bars)
    for threads in (1, 2):
        yield from (Bar("decode", 4096, threads, "fp16", "bf16", *bar) for bar in (("ort", 5.0), ("ort_shared", 2.5), ("llama", 2.2)))
    for depth, ort, llama in ((128, 2.5, 2.2), (512, 2.3, 2.0)):
        for threads in (1, 2):
            yield from (Bar("prefill", depth, threads, None, "bf16", *bar) for bar in (("ort", ort), ("llama", llama)))
    for threads in (1, 2):
        yield from (Bar("prefill", LONG_PROMPT, threads, "fp32", "bf16", *bar) for bar in (("ort", 1.5), ("llama", 1.5)))
        yield Bar("prefill", LONG_PROMPT, threads, "bf16", "bf16", "ort", 2.0)
    for case, depth, bar in (("memory", 1024, 0.6), ("first_token", 32, 0.4)):
        # Against the better of its forms as well, which the bar does not say.
        yield from (Bar(case, depth, None, None, "bf16", against, bar, True) for against in ("ort", "ort_shared", "llama"))


def cells(default_kv):
    """By form of scales. Decode is measured with both cache types at every depth: the plot shows both."""
    decode = tuple(dict.fromkeys((default_kv, "fp32", "fp16")))
    yield "bf16", [*(Cell("decode", depth, decode) for depth in DEPTHS), Cell("prefill", 128, (default_kv,)),
                   Cell("prefill", 512, (default_kv,)), Cell("prefill", LONG_PROMPT, tuple(dict.fromkeys(("fp32", "bf16")))),
                   Cell("memory", 1024, (default_kv,)), Cell("first_token", 32, (default_kv,))]
    yield "fp32", [Cell("decode", 0, (default_kv,))]


@dataclasses.dataclass(frozen=True)
class Seen:
    value: float | None
    note: str  # its 95 % interval, or why there is no value
    most: float | None = None  # of an engine that only reads weights and cache, at the bandwidth of the row


NOT_SEEN = Seen(None, "not measured")


def holds(bar, result):
    return result.value is not None and (result.value <= bar.bar if bar.at_most else result.value >= bar.bar)


def form_of(bar, row):
    """The engine that a bar is held against; of llama.cpp's forms the better one of the row."""
    if bar.against != "llama":
        return bar.against
    return min(LLAMA_FORMS, key=lambda form: row.get(f"ratio_{form}") or math.inf)


def value_of(bar, row):
    return row.get("pct_floor") if bar.against == "floor" else row[f"ratio_{form_of(bar, row)}"]


def seen(bar, rows):
    """In the rows of one machine, oldest first: the last one of the bar's case with the engine asked for. Rows that waited for
    bandwidth come before others: the bars were set where two threads read 69 GB/s."""
    found = [r for r in rows if (r["case"], r["depth"], r["scales"]) == (bar.case, bar.depth, bar.scales) and
             bar.threads in (None, r["threads"]) and (r["kv"] == bar.kv if bar.kv else r["kv_default"])]
    with_value = [r for r in found if value_of(bar, r) is not None]
    if not with_value:
        if found:
            return Seen(None, found[-1]["absent"].get(form_of(bar, found[-1]), NOT_SEEN.note))
        return Seen(None, "absent") if any(f"quern:{bar.kv}" in r["absent"] for r in rows) else NOT_SEEN
    most_threads = max(r["threads"] for r in with_value)
    row = sorted((r for r in with_value if r["threads"] == most_threads), key=lambda r: r.get("least_gbps") or 0)[-1]
    value, against = value_of(bar, row), form_of(bar, row)
    level = f" {waited(row)}".rstrip()
    if bar.against == "floor":
        return Seen(value, level)
    low, high = row[f"ratio_{against}_95"]
    if bar.at_most:
        value, low, high = 1 / value, 1 / high, 1 / low
    note = f"({low:.2f}-{high:.2f})" if row["blocks"] > 1 else "(one block)"
    if bar.against == "llama":
        note += "".join(f", {form} not measured" for form in LLAMA_FORMS if row[f"ratio_{form}"] is None)
    note += level
    most = row[f"{against}_ms"] * row["probe_gbps"] * 1e6 / row["bytes_read"] if bar.case == "decode" else None
    return Seen(value, note, most)


def described(bar):
    return f"{bar.case} {bar.depth} | {bar.threads or 'all'} | {bar.kv or 'default'} | {bar.scales} | {bar.against}"


def shown(bar, result):
    """The bar, what was seen, and what would be the most."""
    if bar.against == "floor":
        wanted, value = f">= {bar.bar:.0f} %", f"{result.value:.0f} %{result.note}" if result.value is not None else "-"
    else:
        wanted = f"{'<=' if bar.at_most else '>='} {bar.bar}x"
        value = f"{result.value:.2f}x {result.note}" if result.value is not None else "-"
    return f"{wanted} | {value} | {f'{result.most:.2f}x' if result.most else '-'}"


def print_table(rows):
    """Markdown, so that it can be kept. Returns how many bars are not reached or not measured."""
    missed = 0
    print("| case | threads | cache | scales | against | bar | seen (95 %) | at most | holds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for bar in all_bars():
        result = seen(bar, rows)
        missed += not holds(bar, result)
        verdict = "yes" if holds(bar, result) else "no" if result.value is not None else result.note
        print(f"| {described(bar)} | {shown(bar, result)} | {verdict} |")
    return missed
