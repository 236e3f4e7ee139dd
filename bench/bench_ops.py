# SPDX-License-Identifier: Apache-2.0
"""MatMulNBits at the shapes of Qwen3-0.6B: quern and ONNX Runtime (bench/compare) as paired processes on one graph, each
pinned to the same cores, one blocked on a pipe while the other runs; a probe of the machine beside each block.

  bench_ops.py                 the grid: five shapes, M from 1 to 512, 1 and 2 threads, all the machine has and AVX2 only
  bench_ops.py --table acceptance   every row of the acceptance table
  bench_ops.py --m 1 --scales bf16 --isa auto
                               one row of it; any form by --bits, --block, --asymmetric, --scales, --level

Times are a node: a call's time less that of a graph without nodes, over the number of nodes. Weights are cold for M = 1
and 2 and for the head (160 MB of nodes), else warm (8 MB), unless --weights says otherwise. GB/s counts the bytes that
quern packed. Percentages are of the median probe beside the cell's blocks; blocks with a probe below 80 % of it (of read
bandwidth for cold weights, else of the peak) are discarded. Ratios are ONNX Runtime's time over quern's, block by
block, with a 95 % interval of their median. --isa caps quern and the probe's peaks, not ONNX Runtime. "token" sums what
one token takes. Every sample goes to bench/results/ops.jsonl, one line a cell.
"""
import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
import tempfile

from ops_graph import SHAPES, TOKEN, Form, write_graph
from paired import (ROOT, Worker, build_folder, built, first_cores, kept_blocks, machine, numbers, ratio_interval,
                    versions)

ENGINES = ("quern", "ort")
BLOCKS = 2      # of a cell in each pair of processes
SECONDS = 0.12  # of samples a block
COLD_ROWS = 2
PROBES = ("read_gbps", "int8_gops", "fp32_gflops")
SAME = 0.01     # of the largest result: far above rounding, far below a wrong product


@dataclasses.dataclass(frozen=True)
class Cell:
    form: Form
    shape: str
    rows: int
    threads: int
    isa: str
    weights: str

    @property
    def graph(self):
        return self.form, self.shape, self.weights


def cells_of(form, rows, arguments, isas=None):
    for shape, m, threads, isa in itertools.product(arguments.shapes, rows, arguments.threads, isas or arguments.isa):
        # The head's weights do not fit into any cache.
        usual = "cold" if m <= COLD_ROWS or shape == "lm_head" else "warm"
        yield Cell(form, shape, m, threads, isa, usual if arguments.weights == "auto" else arguments.weights)


def acceptance_table(arguments):
    yield from cells_of(Form(), (1, 4, 16, 128, 512), arguments, ["auto"])
    yield from cells_of(Form(scales="bf16"), (1,), arguments, ["auto"])
    for form in (Form(level=0), Form(bits=8), Form(asymmetric=True), Form(block=128)):
        yield from cells_of(form, (1, 128), arguments, ["auto"])
    yield from cells_of(Form(), (1, 128), arguments, ["avx2"])


class Graphs:
    """Written at their first use."""

    def __init__(self, folder):
        self.folder, self.known = pathlib.Path(folder), {}

    def get(self, form, shape, weights):
        """The file and its number of nodes."""
        key = (form, shape, weights)
        if key not in self.known:
            path = self.folder / f"{len(self.known)}.onnx"
            self.known[key] = str(path), write_graph(path, form, shape, weights)
        return self.known[key]


def measure_pair(pair, threads, isa, cells, graphs, blocks, facts):
    """Appends to blocks[cell] what fresh processes give for the cells of this thread count and instruction set."""
    cores = first_cores(threads)
    cap = {"QUERN_ISA": "" if isa == "auto" else isa}
    script = ROOT / "bench" / "ops_worker.py"
    workers = {e: Worker([sys.executable, script, e, str(threads)], cores, cap) for e in ENGINES}
    probe = Worker([build_folder() / "machine_probe", str(threads)], cores, cap)

    def ask(engine, order):
        return workers[engine].turn(order)

    def load(path):
        return {e: ask(e, {"load": path}) for e in ENGINES}

    load(graphs.get(None, None, None)[0])
    call_ms = {e: statistics.median(ask(e, {"rows": 1, "seconds": SECONDS})["samples"]) for e in ENGINES}
    for graph, members in itertools.groupby(sorted(cells, key=lambda c: str(c.graph)), key=lambda c: c.graph):
        path, _ = graphs.get(*graph)
        answers = load(path)
        running = [e for e in ENGINES if "refused" not in answers[e]]
        for cell in members:
            facts[cell] = answers
            for number in range(BLOCKS if running else 0):
                first = pair == 0 and number == 0
                block = {"pair": pair, "call_ms": call_ms, "probe": probe.ask("go\n")}
                checks = []
                for engine in running if (pair + number) % 2 == 0 else reversed(running):
                    answer = ask(engine, {"rows": cell.rows, "seconds": SECONDS, "check": first})
                    block[engine] = answer["samples"]
                    checks.append(answer.get("check"))
                if first and len(checks) == 2 and not alike(*checks):
                    raise RuntimeError(f"{cell}: the engines differ: {checks}")
                blocks.setdefault(cell, []).append(block)
    for worker in [*workers.values(), probe]:
        worker.close()


def alike(ours, theirs):
    return max(abs(a - b) for a, b in zip(ours, theirs)) <= SAME * max(abs(v) for v in theirs)


def node_us(block, engine, nodes):
    return (statistics.median(block[engine]) - block["call_ms"][engine]) * 1e3 / nodes


def limit_of(cell):
    """The probe that bounds a cell, by which its blocks are judged."""
    if cell.weights == "cold" and cell.rows <= COLD_ROWS:
        return "read_gbps"
    return peak_of(cell)


def peak_of(cell):
    return "int8_gops" if cell.form.level == 4 else "fp32_gflops"


def kept(cell, blocks):
    return kept_blocks([block["probe"][limit_of(cell)] for block in blocks])


def ratio_of(row, theirs, ours):
    if theirs and ours:
        median, low, high = ratio_interval([t / o for t, o in zip(theirs, ours)])
        row["ratio"], row["ratio_95"] = round(median, 3), [round(low, 3), round(high, 3)]


def row_of(cell, nodes, blocks, facts):
    k, n = SHAPES[cell.shape]
    row = {"op": "MatMulNBits", "form": dataclasses.asdict(cell.form), "name": cell.shape, "shape": f"{k}x{n}", "m": cell.rows,
           "threads": cell.threads, "isa": cell.isa, "weights": cell.weights, "scales": cell.form.scales, "nodes": nodes,
           "quern_us": None, "ort_us": None, "ratio": None}
    row["refused"] = {e: answer["refused"] for e, answer in facts.items() if "refused" in answer}
    if not blocks:
        return row
    chosen = kept(cell, blocks)
    us = {e: [node_us(blocks[i], e, nodes) for i in chosen] for e in ENGINES if e not in row["refused"]}
    row |= {"blocks": len(chosen), "discarded": len(blocks) - len(chosen)}
    row |= {f"{e}_us": round(statistics.median(times), 2) for e, times in us.items()}
    ratio_of(row, us.get("ort"), us.get("quern"))
    if "quern" in us:
        read, peak = (statistics.median(blocks[i]["probe"][name] for i in chosen) for name in ("read_gbps", peak_of(cell)))
        gbps = facts["quern"]["packed_bytes"] / nodes / row["quern_us"] / 1e3
        gops = 2 * k * n * cell.rows / row["quern_us"] / 1e3
        row |= {"variant": facts["quern"]["variant"], "packed_bytes": facts["quern"]["packed_bytes"] // nodes, "gbps": round(gbps, 2),
                "read_gbps": read, "pct_bandwidth": round(100 * gbps / read, 1), "gops": round(gops, 1), "peak_gops": peak,
                "pct_peak": round(100 * gops / peak, 1)}
    row["samples"] = blocks
    return row


def token_rows(cells, graphs, blocks, rows):
    """One token: the layers' projections and the head, of each form measured at all shapes with one row and cold weights."""
    groups = {}
    for cell in cells:
        if cell.rows == 1 and cell.weights == "cold":
            groups.setdefault((cell.form, cell.threads, cell.isa), {})[cell.shape] = cell
    for (form, threads, isa), members in groups.items():
        if set(members) != set(SHAPES) or any(rows[c]["ratio"] is None for c in members.values()):
            continue
        common = set.intersection(*(set(kept(c, blocks[c])) for c in members.values()))
        us = {e: [sum(TOKEN[s] * node_us(blocks[c][i], e, graphs.get(*c.graph)[1]) for s, c in members.items()) for i in sorted(common)]
              for e in ENGINES}
        row = {"op": "token", "form": dataclasses.asdict(form), "scales": form.scales, "ratio": None, "m": 1, "threads": threads, "isa": isa, "weights": "cold", "blocks": len(common)}
        # Sums of the cells' medians; the ratio over blocks that are kept in all of them.
        row |= {f"{e}_us": round(sum(TOKEN[s] * rows[c][f"{e}_us"] for s, c in members.items()), 1) for e in ENGINES}
        ratio_of(row, us["ort"], us["quern"])
        size = {s: TOKEN[s] * rows[c]["packed_bytes"] for s, c in members.items()}
        least_us = sum(size[s] / rows[c]["read_gbps"] / 1e3 for s, c in members.items())
        row |= {"packed_bytes": sum(size.values()), "gbps": round(sum(size.values()) / row["quern_us"] / 1e3, 2),
                "pct_bandwidth": round(100 * least_us / row["quern_us"], 1)}
        yield row


def print_limits(rows):
    seen = {}
    for row in rows:
        for block in row.get("samples", ()):
            for name in PROBES:
                seen.setdefault((row["threads"], row["isa"]), {}).setdefault(name, []).append(block["probe"][name])
    print("probes, median and best over all blocks")
    for (threads, isa), values in sorted(seen.items()):
        read, int8, fp32 = (f"{statistics.median(values[name]):.1f} {max(values[name]):.1f}" for name in PROBES)
        print(f"{threads} thr {isa:10} read GB/s {read}   int8 GOP/s {int8}   fp32 GFLOP/s {fp32}")


def print_rows(rows):
    head, told = None, set()
    for row in sorted(rows, key=lambda r: (str(r["form"]), r["isa"], r["m"], r["threads"])):
        title = f"{Form(**row['form'])}; instruction sets: {row['isa']}"
        if title != head:
            head = title
            print(f"\n{title}\n{'':9} {'M':>4} thr weights {'quern us':>10} {'ort us':>10}  ratio (95 %)          GB/s  % read     GOP/s  % peak")
        ratio = f"{row['ratio']:5.2f} ({row['ratio_95'][0]:.2f}-{row['ratio_95'][1]:.2f})" if row["ratio"] else "    -"
        line = f"{row.get('name', row['op']):9} {row['m']:4} {row['threads']:3} {row['weights']:7}"
        line += "".join(f" {row[f'{e}_us']:10.1f}" if row[f"{e}_us"] else f" {'refused':>10}" for e in ENGINES) + f"  {ratio:19}"
        if "gbps" in row:
            line += f" {row['gbps']:7.1f} {row['pct_bandwidth']:7.1f}"
        if "gops" in row:
            line += f" {row['gops']:9.1f} {row['pct_peak']:7.1f}"
        if row.get("discarded"):
            line += f"  ({row['discarded']} of {row['discarded'] + row['blocks']} blocks discarded)"
        print(line)
        for refusal in set(row.get("refused", {}).items()) - told:
            told.add(refusal)
            print("  refused: {}: {}".format(*refusal))


def names(allowed):
    def parse(text):
        chosen = [name for name in text.split(",") if name]
        if not chosen or set(chosen) - set(allowed):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(allowed)}")
        return chosen
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=["acceptance"], help="instead of one form and --m, --isa")
    parser.add_argument("--shapes", type=names(SHAPES), default=list(SHAPES))
    parser.add_argument("--m", type=numbers, default=[1, 2, 4, 8, 16, 32, 128, 512])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--isa", type=names(["auto", "scalar", "avx2", "avxvnni", "avx512vnni"]), default=["auto", "avx2"])
    parser.add_argument("--weights", choices=["auto", "cold", "warm"], default="auto")
    parser.add_argument("--bits", type=int, choices=[4, 8], default=4)
    parser.add_argument("--block", type=int, choices=[16, 32, 64, 128, 256], default=32)
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--scales", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--level", type=int, choices=[0, 4], default=4)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "ops.jsonl"))
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.table:
        cells = list(acceptance_table(arguments))
    else:
        form = Form(arguments.bits, arguments.block, arguments.asymmetric, arguments.scales, arguments.level)
        cells = list(cells_of(form, arguments.m, arguments))
    machine_facts = machine() | built() | versions()
    blocks, facts = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        graphs = Graphs(folder)
        groups = sorted({(c.threads, c.isa) for c in cells})
        for pair, (threads, isa) in itertools.product(range(arguments.pairs), groups):
            members = [c for c in cells if (c.threads, c.isa) == (threads, isa)]
            measure_pair(pair, threads, isa, members, graphs, blocks, facts)
            print(f"pair {pair + 1} of {arguments.pairs}: threads {threads}, {isa}", file=sys.stderr, flush=True)
        by_cell = {c: row_of(c, graphs.get(*c.graph)[1], blocks.get(c), facts[c]) for c in cells}
        rows = [*by_cell.values(), *token_rows(cells, graphs, blocks, by_cell)]
    with open(arguments.out, "a") as out:
        for row in rows:
            out.write(json.dumps({"machine": machine_facts, **row}) + "\n")
    if arguments.json:
        print(json.dumps({"machine": machine_facts, "rows": rows}))
    else:
        print_limits(rows)
        print_rows(rows)
    return 1 if any("quern" in row.get("refused", {}) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
