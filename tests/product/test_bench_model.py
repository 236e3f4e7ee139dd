# SPDX-License-Identifier: Apache-2.0
"""The comparison of whole models: its guard, its workers and its arithmetic. No time is judged, and nothing is installed: of the
other engines only ONNX Runtime, which the tests have, takes part."""
import json
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from made_models import ROOT, make_model

sys.path.insert(0, str(ROOT / "bench"))

import bench_model  # noqa: E402
from compare import acceptance, depth_plot, published, same_model  # noqa: E402
from compare.engines import Absent, engine, engines  # noqa: E402
from compare.model_rows import Cell, by_machine, last_rows, read_rows, row_of, stored  # noqa: E402
from paired import built, machine, model_hash  # noqa: E402

pytestmark = pytest.mark.module
NAMES = ["ort", "quern", "ort_shared"]


def test_engines_show_that_they_compute_the_same_model(block, capfd):
    there, absent = engines(NAMES)
    facts = same_model.check(there, absent, block, 2)
    assert list(there) == NAMES and absent == {} and set(facts) == set(NAMES)
    assert capfd.readouterr().err.count("8 of 8 ids the same") == 2


def test_another_model_is_not_timed(block, tmp_path):
    other = make_model(tmp_path / "other", "--size", "block", "--seed", "1")
    ort = engine("ort")
    ids, rows, _ = same_model.rows_of(ort, block, 1, None, tmp_path / "rows")
    other_ids, other_rows, _ = same_model.rows_of(ort, other, 1, ids, tmp_path / "rows")
    with pytest.raises(same_model.Different, match="of their spread"):
        same_model.compare("quern", other_ids, other_rows, ids, rows)


def test_a_close_call_is_free_for_other_kernels_only(block, tmp_path):
    ids, rows, _ = same_model.rows_of(engine("ort"), block, 1, None, tmp_path / "rows")
    step = int(np.argmin([np.diff(np.sort(row)[-2:])[0] for row in rows]))  # where the first choice leads least
    second, best = np.argsort(rows[step])[-2:]
    swapped = rows.copy()
    swapped[step, [best, second]] = rows[step, [second, best]]
    chosen = [*ids[:step], int(second), *ids[step + 1:]]
    assert "7 of 8 ids the same (7 had to be)" in same_model.compare("quern", chosen, swapped, ids, rows)
    for name, other in (("ort_shared", swapped), ("quern", rows)):
        with pytest.raises(same_model.Different, match=f"token {step} is {second}, ONNX Runtime chooses {best}"):
            same_model.compare(name, chosen, other, ids, rows)


@pytest.mark.parametrize("name", NAMES)
def test_worker_answers_every_order(block, name):
    worker, greeting = engine(name).worker(block, 1, 48)
    assert greeting["load_ms"] > 0 and greeting["facts"]["version"]
    for case, depth, reps in (("decode", 0, 3), ("decode", 40, 2), ("prefill", 40, 1)):
        answer = worker.ask({"case": case, "depth": depth, "reps": reps, "prepare": True})
        assert len(answer["samples"]) == reps and min(answer["samples"]) > 0 and answer["rss_mb"] >= greeting["base_mb"] > 0
        assert answer["past"] == (depth if case == "decode" else 0)
    chain = {"case": "chain", "prompt": [5, 6, 7], "tokens": 6, "forced": None, "out": None}
    chosen = worker.ask(chain)
    assert len(chosen["ids"]) == 6 and worker.ask(chain)["ids"] == chosen["ids"]
    worker.close()


def test_engine_that_cannot_do_it_is_absent_with_a_reason(block):
    with pytest.raises(Absent, match="Error"):
        engine("quern:float7").worker(block, 1, 16)


RSS = {"rss_mb": {"quern": 300.4, "ort": 1000}}
PROBE = {"read_gbps": 10.0, "int8_gops": 400.0}
BLOCKS = [{"probe": PROBE, "quern": [2.0, 2.0, 8.0], "ort": [6.0, 6.0, 6.0], **RSS},
          {"probe": PROBE, "quern": [1.0, 4.0, 4.0], "ort": [8.0, 8.0, 8.0], **RSS},
          # From moments when memory was slow, and when the processor was.
          {"probe": PROBE | {"read_gbps": 1.0}, "quern": [1.0], "ort": [90.0], **RSS},
          {"probe": PROBE | {"int8_gops": 40.0}, "quern": [2.0], "ort": [4.0], **RSS}]


def test_row_holds_paired_ratios_of_the_blocks_kept():
    row = row_of(Cell("decode", 9, ("fp32",)), "fp32", "quern", BLOCKS[:3], {"llama": "no network"},
                 {"weights": 19_000_000, "token": 100_000})
    assert (row["blocks"], row["discarded"]) == (2, 1)
    assert (row["quern_ms"], row["ort_ms"], row["ratio_ort"], row["ratio_ort_95"]) == (3.0, 7.0, 2.5, [2.0, 3.0])
    # 20 MB at 10 GB/s are 2 ms, of medians 2 and 4 ms.
    assert (row["bytes_read"], row["pct_floor"]) == (20_000_000, 75.0)
    assert row["rss_mb"] == {"quern": 300, "ort": 1000}
    assert row["llama_ms"] is None and row["ratio_llama"] is None and row["absent"] == {"llama": "no network"}
    assert row["samples"] == {"quern": [b["quern"] for b in BLOCKS[:3]], "ort": [b["ort"] for b in BLOCKS[:3]]}
    assert (row["probe_gbps"], row["probe_gops"], row["probes"]) == (10.0, 400.0, [b["probe"] for b in BLOCKS[:3]])


@pytest.mark.parametrize("case, limit, ratios", [("decode", "read_gbps", [2.0, 2.0, 3.0]),
                                                 ("prefill", "int8_gops", [2.0, 3.0, 90.0])])
def test_blocks_are_judged_by_what_bounds_the_case(case, limit, ratios):
    row = row_of(Cell(case, 9, ("fp32",)), "fp32", "quern", BLOCKS, {}, {"weights": 0, "token": 0})
    assert (row["judged_by"], row["blocks"], row["discarded"]) == (limit, 3, 1)
    assert (row["ratio_ort"], row["ratio_ort_95"]) == (ratios[1], [ratios[0], ratios[2]])


class Answers:
    """Stands where a Worker would: answers in turn."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    def ask(self, _order):
        self.asked += 1
        return self.answers.pop(0)

    turn = ask

    def close(self):
        pass


def read(*gbps):
    return [{"read_gbps": g, "int8_gops": 400.0} for g in gbps]


def test_a_turn_waits_for_bandwidth_before_and_after_it(monkeypatch):
    monkeypatch.setattr(bench_model, "PAUSE_SECONDS", 0)
    probe, engine_ = Answers(*read(30, 60, 49, 40, 61, 50)), Answers("spoilt", "good")
    assert bench_model.guarded_turn(engine_, {}, probe, 50) == ("good", {"probes": read(61, 50), "dropped": 1})
    assert probe.answers == [] and engine_.asked == 2
    monkeypatch.setattr(bench_model, "WAIT_SECONDS", 0)
    assert bench_model.guarded_turn(engine_, {}, Answers(*read(60)), 50) is None


def test_a_block_without_bandwidth_leaves_the_next_one_whole(block, monkeypatch):
    """Every engine has its past before the first turn that waits, also those behind the one that waited in vain."""
    turns = iter([None])
    guarded = lambda worker, order, _probe, _least: next(turns, (worker.turn(order), {"probes": read(60, 60), "dropped": 0}))
    monkeypatch.setattr(bench_model, "guarded_turn", guarded)
    monkeypatch.setattr(bench_model, "Worker", lambda *_: Answers())
    there, _ = engines(["quern", "ort"])
    bench = SimpleNamespace(there=there, default_kv="fp16", folder=block, least_of=lambda _cell: 50.0)
    results = {(cell := Cell("decode", 8, ("fp16",))): []}
    bench_model.time_blocks(bench, [cell], 1, 0, results)
    (entry,) = results[cell]
    assert set(entry["turns"]) == {"quern", "ort"} and len(entry["ort"]) == bench_model.reps_of(cell) // 2


def test_row_of_turns_that_waited_for_bandwidth():
    """Floor and bandwidth are those beside quern's own turn, and no block is discarded."""
    turns = lambda gbps: {"quern": {"probes": read(gbps - 1, gbps + 1), "dropped": 3}, "ort": {"probes": read(90, 90), "dropped": 0}}
    blocks = [{"turns": turns(50), "quern": [2.0], "ort": [4.0], **RSS}, {"turns": turns(100), "quern": [1.0], "ort": [5.0], **RSS}]
    row = row_of(Cell("decode", 0, ("fp32",)), "fp32", "quern", blocks, {}, {"weights": 50_000_000, "token": 0}, 45.0)
    assert (row["blocks"], row["discarded"], row["least_gbps"], row["probe_gbps"]) == (2, 0, 45.0, 75.0)
    assert (row["ratio_ort"], row["pct_floor"]) == (3.5, 50.0)
    assert row["turns"] == {name: [b["turns"][name] for b in blocks] for name in ("quern", "ort")}


def test_bars_are_held_at_the_bandwidth_that_was_waited_for(capsys):
    row = row_of(Cell("decode", 0, ("fp32",)), "fp32", "quern", BLOCKS[:3], {}, {"weights": 20_000_000, "token": 0})
    where = {"cpu": "A", "family": 25, "model": 17, "date": "today", "commit": "abc"}
    any_level = stored_row(**row | {"kv": "fp16", "threads": 2, "ratio_ort": 1.5, "machine": where})
    upper = any_level | {"ratio_ort": 2.2, "least_gbps": 50.0}
    rows = [upper, any_level]
    assert last_rows(rows) == rows
    acceptance.print_table(rows)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| decode 0 | 2 | default | bf16 | ")]
    assert lines[0].endswith("| 2.20x (2.00-3.00) from 50 GB/s on | 3.50x | yes |") and "75 % from 50 GB/s on" in lines[1]
    assert depth_plot.curves([any_level]) == depth_plot.curves(rows)
    made = "\n".join(published.document(rows)["A, family 25 model 17"])
    assert "| fp16, from 50 GB/s on | 3.00 | 2.20" in made and "| fp16 | 3.00 | 1.50" in made and "| 75 % of 10 |" in made


def test_table_tells_reached_missed_and_not_measured(capsys):
    decode = row_of(Cell("decode", 0, ("fp32",)), "fp32", "quern", BLOCKS[:3], {"llama": "no network"},
                    {"weights": 20_000_000, "token": 0})
    memory = row_of(Cell("memory", 1024, ("fp32",)), "fp32", "quern", [{"quern": [300], "ort": [1000], **RSS}], {}, None)
    rows = [{**row, "threads": 2, "scales": "bf16", "kv_default": True} for row in (decode, memory)]
    bars = list(acceptance.all_bars())
    assert acceptance.print_table(rows) == len(bars) - 3
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == len(bars)
    of = lambda *words: next(line for line in lines if all(f"| {word} |" in line for word in words))
    assert of("decode 0", "2", "bf16", "ort").endswith("| >= 2.1x | 2.50x (2.00-3.00) | 3.50x | yes |")
    assert of("decode 0", "2", "bf16", "floor").endswith("| >= 75 % | 75 % | - | yes |")
    assert of("decode 0", "2", "bf16", "llama").endswith("| - | - | no network |")
    assert of("decode 0", "1", "bf16", "ort").endswith("| - | - | not measured |")
    assert of("memory 1024", "ort").endswith("| <= 0.6x | 0.30x (one block) | - | yes |")
    decode |= {"ratio_llama_plain": 1.5, "ratio_llama_plain_95": [1, 2], "ratio_llama": 1.7, "ratio_llama_95": [1, 2],
               "llama_plain_ms": 4.0}
    acceptance.print_table([{**decode, "threads": 2, "scales": "bf16", "kv_default": True}])
    line = "| decode 0 | 2 | default | bf16 | llama | >= 1.6x | 1.50x (1.00-2.00) | 2.00x | no |"
    assert line in capsys.readouterr().out.splitlines()
    assert of("memory 1024", "ort_shared").endswith("| - | - | not measured |")


def stored_row(**fields):
    return {"machine": {"cpu": "A", "family": 25, "model": 17}, "model": "m", "scales": "bf16", "kv": "fp16",
            "kv_default": True, "case": "decode", "depth": 0, "threads": 1, "quern_ms": 1, "absent": {}} | fields


def test_the_last_row_of_a_case_counts(tmp_path):
    path = tmp_path / "model.jsonl"
    rows = [{"model": "m", "case": "decode"}, stored_row(), stored_row(depth=8, quern_ms=2), stored_row(quern_ms=3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_rows(path) == rows[1:]
    assert sorted((r["depth"], r["quern_ms"]) for r in stored(path)) == [(0, 3), (8, 2)]


def test_rows_of_two_machines_do_not_mix(tmp_path, capsys):
    """Each has its table, and a bar the last row of its case in which the engine asked for took part."""
    other = {"cpu": "A", "family": 26, "model": 2}
    fields = {"quern_ms": 2.0, "ort_ms": 4.0, "ratio_ort": 2.0, "ratio_ort_95": [1, 3], "blocks": 2, "probe_gbps": 10.0,
              "bytes_read": 16_000_000, "ratio_llama": None, "ratio_llama_plain": None}
    llama = {"llama_ms": 3.2, "ratio_llama": 1.6, "ratio_llama_95": [1, 2]}
    rows = [stored_row(**fields | llama), stored_row(**fields | {"ratio_ort": 1.5, "absent": {"llama": "left out"}}),
            stored_row(**fields | {"ratio_ort": 9.0, "machine": other, "absent": {"llama": "left out"}})]
    path = tmp_path / "model.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [r["ratio_ort"] for r in stored(path)] == [1.5, 9.0]
    machines = by_machine(read_rows(path))
    assert list(machines) == ["A, family 25 model 17", "A, family 26 model 2"]
    seen = {}
    for name, own in machines.items():
        acceptance.print_table(own)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| decode 0 | 1 | default | bf")]
        seen[name] = {line.split(" | ")[4]: line for line in lines}
    first, second = seen.values()
    assert first["ort"].endswith("| 1.50x (1.00-3.00) | 2.50x | no |")
    assert second["ort"].endswith("| 9.00x (1.00-3.00) | 2.50x | yes |")
    assert first["llama"].endswith("| 1.60x (1.00-2.00), llama_plain not measured | 2.00x | yes |")
    assert second["llama"].endswith("| - | - | left out |")


def test_document_is_what_is_stored():
    """docs/performance.md shows every whole-model row of every machine, and no other."""
    written = (ROOT / "docs" / "performance.md").read_text()
    made = published.document(read_rows(ROOT / "bench" / "results" / "model.jsonl"))
    assert len(made) == 3
    for heading, lines in made.items():
        _, found, section = written.partition(f"\n### {heading}\n")
        assert found, f"docs/performance.md has no section {heading}"
        section = re.split(r"^##", section, flags=re.M)[0].splitlines()
        assert [line for line in section if line.startswith("|")] == [line for line in lines if line], heading


def test_rows_say_what_was_measured(block, tmp_path):
    facts = machine() | built()
    assert all(facts[name] for name in ("cpu", "family", "cores", "commit", "isa", "compiler", "build_type", "flags"))
    assert "-ffp-contract=off" in facts["flags"].split() and "scalar" in facts["isa"].split()
    copy = shutil.copytree(block, tmp_path / "copy")
    (copy / "model_last_row.onnx").write_bytes(b"what a benchmark writes beside it")
    assert model_hash(copy) == model_hash(block)
    data = next(copy.glob("model.onnx?data"))
    changed = bytearray(data.read_bytes())
    changed[-1] ^= 1
    data.write_bytes(changed)
    model_hash.cache_clear()
    assert model_hash(copy) != model_hash(block)
