# SPDX-License-Identifier: Apache-2.0
"""What is kept of a measurement: one row a cell, cache type and form of scales, with every sample; and how rows are shown.

Times are milliseconds: of one token (decode), of a prompt to its last row of logits (prefill), of loading a model and computing
a prompt's first token (first_token). memory is the most resident memory of a whole run in MiB. ratio_X is X over quern: above 1,
quern needs less.
"""
import dataclasses
import json
import statistics

from compare.engines import FORMS, OTHERS
from paired import kept_blocks, ratio_interval

KEY = ("model", "scales", "kv", "case", "depth", "threads")  # beside the machine


@dataclasses.dataclass(frozen=True)
class Cell:
    case: str  # decode, prefill, memory or first_token
    depth: int  # tokens before the decoded one, or of the prompt
    kvs: tuple  # cache types of quern

    @property
    def whole(self):
        """A run in a process of its own, instead of blocks in processes that stay."""
        return self.case in ("memory", "first_token")

    @property
    def unit(self):
        return "mb" if self.case == "memory" else "ms"

    @property
    def limit(self):
        """The figure of the probe that bounds it and judges its blocks: a decoded token reads, a prompt computes."""
        return "read_gbps" if self.case == "decode" else "int8_gops"


def quantiles(values, *parts):
    ordered = sorted(values)
    return [round(ordered[round(part * (len(ordered) - 1))], 3) for part in parts]


def probe_of(block, ours):
    """What the machine gave beside a block, or beside quern's turn in a block of turns that waited for bandwidth; None where
    nobody looked."""
    if "turns" not in block:
        return block.get("probe")
    seen = block["turns"][ours]["probes"]
    return {figure: statistics.mean(p[figure] for p in seen) for figure in ("read_gbps", "int8_gops")}


def row_of(cell, kv, ours, blocks, absent, footprint, least_gbps=None):
    """`blocks`: [{"probe": answer of the machine's probe, or absent, engine: samples, "rss_mb": {engine: peak of its
    process so far}}]; a block that waited for bandwidth has instead of a probe "turns": {engine: {"probes": [before, after],
    "dropped": turns before it that did not count}}. `ours`: the engine that is quern with this cache type; `footprint`: bytes
    that a decoded token must read, {"weights", "token"}; `least_gbps`: the bandwidth that was waited for."""
    probes = [probe_of(b, ours) for b in blocks]
    judged = probes[0] is not None and least_gbps is None
    kept = kept_blocks([p[cell.limit] for p in probes]) if judged else range(len(blocks))
    chosen, beside = [blocks[i] for i in kept], [probes[i] for i in kept]
    names = {"quern": ours} | {e: e for e in OTHERS if e in blocks[0]}
    unit = cell.unit
    row = {"kv": kv, "case": cell.case, "depth": cell.depth, "blocks": len(chosen), "discarded": len(blocks) - len(chosen)}
    medians = {e: [statistics.median(b[key]) for b in chosen] for e, key in names.items()}
    for engine in ("quern", *OTHERS):
        row[f"{engine}_{unit}"] = round(statistics.median(medians[engine]), 3) if engine in medians else None
    for other in OTHERS:
        row[f"ratio_{other}"] = None
        if other in medians:
            median, low, high = ratio_interval([theirs / own for theirs, own in zip(medians[other], medians["quern"])])
            row |= {f"ratio_{other}": round(median, 3), f"ratio_{other}_95": [round(low, 3), round(high, 3)]}
    row["spread"] = {e: quantiles([s for b in chosen for s in b[key]], 0.1, 0.9) for e, key in names.items()}
    if probes[0] is not None:
        row["probe_gbps"] = round(statistics.median(p["read_gbps"] for p in beside), 2)
        row["probe_gops"] = round(statistics.median(p["int8_gops"] for p in beside), 1)
        row |= {"judged_by": cell.limit, "probes": probes}
    if least_gbps is not None:
        row |= {"least_gbps": least_gbps, "turns": {e: [b["turns"][key] for b in blocks] for e, key in names.items()}}
    if cell.case == "decode":
        least = footprint["weights"] + (cell.depth + 1) * footprint["token"]
        row["bytes_read"] = least
        floors = [least / p["read_gbps"] / 1e6 for p in beside]
        row["pct_floor"] = round(statistics.median(100 * f / ms for f, ms in zip(floors, medians["quern"])), 1)
    row["rss_mb"] = {e: round(max(b["rss_mb"][key] for b in blocks)) for e, key in names.items()}
    row["absent"] = absent
    row["samples"] = {e: [[round(s, 4) for s in b[key]] for b in blocks] for e, key in names.items()}
    return row


def read_rows(path):
    """The rows of a file of results, oldest first. Rows of the oldest form, without a cache type, are passed over. Later
    ones may lack what was not recorded yet: the hash of the model, facts of the build, more of a probe than its read
    bandwidth, by which then the blocks of prompts were judged, too."""
    with open(path) as file:
        return [row for row in map(json.loads, file) if "kv" in row]


def waited(row):
    """"from 50 GB/s on" for a row that waited for bandwidth, else nothing."""
    return f"from {row['least_gbps']:.0f} GB/s on" if row.get("least_gbps") else ""


def processor(row):
    return row["machine"]["family"], row["machine"]["model"]


def last_rows(rows):
    """The last row of each case on each machine; those that waited for bandwidth are cases of their own."""
    return list({(processor(row), row.get("least_gbps"), *(row[k] for k in KEY)): row for row in rows}.values())


def stored(path):
    return last_rows(read_rows(path))


def by_machine(rows):
    """{name of the machine: its rows}, in the order of the rows."""
    machines = {}
    for row in rows:
        machines.setdefault(processor(row), []).append(row)
    return {f"{own[-1]['machine']['cpu']}, family {family} model {model}": own
            for (family, model), own in machines.items()}


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def print_rows(rows):
    print(f"{'case':11} {'depth':>5} {'thr':>3} {'kv':5} {'scales':6} {'quern':>9} " + " ".join(f"{e:>10}" for e in OTHERS) +
          "   times quern: " + " ".join(f"{e:>18}" for e in OTHERS) + "  % of floor")
    for r in rows:
        unit = "mb" if r["case"] == "memory" else "ms"
        ratios = []
        for e in OTHERS:
            interval = r.get(f"ratio_{e}_95")
            ratios.append(f"{r[f'ratio_{e}']:.2f} ({interval[0]:.2f}-{interval[1]:.2f})" if interval else "-")
        print(f"{r['case']:11} {r['depth']:5} {r['threads']:3} {r['kv']:5} {r['scales']:6} {number(r[f'quern_{unit}']):>9} " +
              " ".join(f"{number(r[f'{e}_{unit}']):>10}" for e in OTHERS) + "                " +
              " ".join(f"{t:>18}" for t in ratios) + f"  {number(r.get('pct_floor'), 0):>5}  {waited(r)}".rstrip())


def print_notes(rows):
    print()
    for name, form in FORMS.items():
        print(f"{name:10} {form}")
    for name, reason in sorted({(n, reason) for r in rows for n, reason in r["absent"].items()}):
        print(f"absent: {name}: {reason}")
    for commit in sorted({r["machine"]["commit"] + ", " + r["machine"]["cpu"] + ", " + r["machine"]["date"] for r in rows}):
        print(f"measured: {commit}")
