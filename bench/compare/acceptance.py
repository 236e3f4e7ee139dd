# SPDX-License-Identifier: Apache-2.0
"""The bars that the whole model has to reach at the 0.6B geometry, the cells that show them, and the table of both."""
import dataclasses
import math

from compare.engines import LLAMA_FORMS
from compare.model_rows import Cell

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


def seen(bar, rows):
    """The value and its 95 % interval (None for the floor), or why there is none."""
    found = [r for r in rows if (r["case"], r["depth"], r["scales"]) == (bar.case, bar.depth, bar.scales) and
             bar.threads in (None, r["threads"]) and (r["kv"] == bar.kv if bar.kv else r["kv_default"])]
    if not found:
        return None, "absent" if any(f"quern:{bar.kv}" in r["absent"] for r in rows) else "not measured"
    row = max(found, key=lambda r: r["threads"])
    if bar.against == "floor":
        return row.get("pct_floor"), ""
    against = bar.against
    if against == "llama":
        against = min(LLAMA_FORMS, key=lambda form: row.get(f"ratio_{form}") or math.inf)
    ratio = row[f"ratio_{against}"]
    if ratio is None:
        return None, row["absent"].get(against, "not measured")
    low, high = row[f"ratio_{against}_95"]
    if bar.at_most:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    return ratio, f"({low:.2f}-{high:.2f})"


def print_table(rows):
    """Markdown, so that it can be kept. Returns how many bars are not reached or not measured."""
    missed = 0
    print("| case | threads | cache | scales | against | bar | seen (95 %) | holds |")
    print("|---|---|---|---|---|---|---|---|")
    for bar in all_bars():
        value, note = seen(bar, rows)
        if bar.against == "floor":
            wanted, shown = f">= {bar.bar:.0f} %", None if value is None else f"{value:.0f} %"
        else:
            wanted = f"<= {bar.bar}x" if bar.at_most else f">= {bar.bar}x"
            shown = None if value is None else f"{value:.2f}x {note}"
        holds = value is not None and (value <= bar.bar if bar.at_most else value >= bar.bar)
        missed += not holds
        print(f"| {bar.case} {bar.depth} | {bar.threads or 'all'} | {bar.kv or 'default'} | {bar.scales} | {bar.against} | {wanted} | "
              f"{shown or '-'} | {'yes' if holds else 'no' if value is not None else note} |")
    return missed
