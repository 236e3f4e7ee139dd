# SPDX-License-Identifier: Apache-2.0
"""The binary from outside: what it prints where, in which shape, and with which exit code.

What the tokens should be is the oracle's matter; here they only have to be the same where the contract says so. Over 600 lines
because the rules of output, exit codes and messages hold for every command, and tests of them run over all commands.
"""

import csv
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import onnx
import pytest
from made_models import make_model

OWNERS = {"kernel", "prepared", "view", "fused"}
GREEDY = ("-n", "12", "--greedy")


# Generation ----------------------------------------------------------------------------------------------------------

def test_json_has_the_promised_shape(quern, block):
    out = quern.json("run", block, "-p", "hello", *GREEDY)
    assert set(out) >= {"text", "token_ids", "prompt_ids", "finish_reason", "timings", "counts", "memory", "ownership"}
    assert isinstance(out["text"], str) and len(out["token_ids"]) == 12 and out["prompt_ids"]
    assert out["finish_reason"] == "length"
    for name in ("load_ms", "prefill_ms", "decode_ms_per_token"):
        assert out["timings"][name] > 0
    assert out["counts"]["prompt_tokens"] == len(out["prompt_ids"])
    assert out["counts"]["generated_tokens"] == 12
    assert out["memory"]["weight_bytes"] > 0
    assert out["memory"]["kv_type"] == "fp16"
    ownership = out["ownership"]
    assert ownership["nodes"] == sum(ownership[owner] for owner in OWNERS) == 51


def test_text_goes_to_standard_output_and_nothing_else_does(quern, block):
    expected = quern.json("run", block, "-p", "hello", *GREEDY)["text"]
    done = quern("run", block, "-p", "hello", *GREEDY)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, expected, b"")


def test_every_source_of_a_prompt_gives_the_same(quern, block, tmp_path):
    prompt = "Grüße, 世界!\n"
    (tmp_path / "prompt.txt").write_bytes(prompt.encode())
    expected = quern.json("run", block, "-p", prompt, *GREEDY)
    assert quern.json("run", block, "-f", tmp_path / "prompt.txt", *GREEDY)["token_ids"] == expected["token_ids"]
    assert quern.json("run", block, "-", *GREEDY, stdin=prompt.encode())["token_ids"] == expected["token_ids"]
    ids = ",".join(map(str, expected["prompt_ids"]))
    assert quern.json("run", block, "--prompt-ids", ids, *GREEDY)["token_ids"] == expected["token_ids"]


def test_a_saved_timeline_goes_on(quern, block, tmp_path):
    kept = tmp_path / "kept.state"
    for kv in ("fp32", "fp16", "bf16", "int8"):
        whole = quern.json("run", block, "-p", "hello there", "-n", "9", "--greedy", "--kv", kv)
        assert whole["memory"]["kv_type"] == kv
        first = quern.json("run", block, "-p", "hello there", "-n", "4", "--greedy", "--kv", kv, "--save-state", kept)
        assert first["token_ids"] == whole["token_ids"][:4]
        ids = ",".join(map(str, whole["token_ids"][4:5]))
        rest = quern.json("run", block, "--prompt-ids", ids, "-n", "4", "--greedy", "--kv", kv, "--load-state", kept)
        assert rest["token_ids"] == whole["token_ids"][5:], kv
    done = quern("run", block, "-p", "a", "--load-state", kept)
    assert done.returncode == 5 and b"int8" in done.stderr and b"fp16" in done.stderr
    kept.write_bytes(kept.read_bytes()[:-9])
    done = quern("run", block, "-p", "a", "--kv", "int8", "--load-state", kept)
    assert done.returncode == 5 and str(kept).encode() in done.stderr


def test_a_saved_timeline_goes_on_without_another_token(quern, demo, tmp_path):
    kept = tmp_path / "kept.state"
    for sampling in (("--greedy",), ("--temperature", "1", "--top-k", "1", "--seed", "3")):
        whole = quern.json("run", demo, "-p", "In the beginning", "-n", "9", *sampling)
        quern.json("run", demo, "-p", "In the beginning", "-n", "4", *sampling, "--save-state", kept)
        rest = quern.json("run", demo, "-p", "", "-n", "5", *sampling, "--load-state", kept)
        assert rest["prompt_ids"] == [] and rest["token_ids"] == whole["token_ids"][4:]


def test_a_timeline_longer_than_the_context_names_its_file(quern, demo, tmp_path):
    kept = tmp_path / "kept.state"
    quern.json("run", demo, "--prompt-ids", ",".join("5" * 20), "-n", "0", "--save-state", kept)
    text = quern.refused(5, "run", demo, "-p", "a", "--ctx", "10", "--load-state", kept)
    assert str(kept) in text and " 20 " in text and " 10" in text


def test_a_timeline_is_saved_whatever_ended_it(quern, demo, tmp_path, short_context):
    kept = tmp_path / "kept.state"
    out = quern.json("run", short_context, "--prompt-ids", "1,2,3,4,5,6,7,8,9,10", "-n", "9", "--greedy", "--save-state", kept)
    assert len(out["token_ids"]) == 7 and kept.is_file()  # the last one was chosen in a full context
    done = quern("run", demo, "-p", "a", "-n", "1", "--save-state", tmp_path / "nowhere" / "f")
    assert done.returncode == 7 and done.stdout == b""  # before anything is computed
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert quern("run", demo, "-p", "a", "-n", "1", "--save-state", pipe).returncode == 7 and pipe.is_fifo()
    limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", quern.path, "run", str(demo), "-p", "a", "-n", "1", "--greedy",
               "--save-state", str(tmp_path / "limited.state")]
    done = subprocess.run(limited, capture_output=True, timeout=60)
    assert done.returncode == 7 and b"limited.state" in done.stderr and done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.state", "pipe"]


def test_values_beyond_the_cache_are_explained(quern, demo, tmp_path):
    """Keys are scaled up and queries down: the same logits, but keys beyond float16's range."""
    folder = tmp_path / "loud"
    shutil.copytree(demo, folder)
    model = onnx.load(folder / "model.onnx")
    for tensor in model.graph.initializer:
        factor = 2e4 if "k_norm" in tensor.name else 5e-5 if "q_norm" in tensor.name else None
        if factor:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(factor), tensor.name))
    onnx.save(model, folder / "model.onnx")
    expected = quern.json("run", demo, "-p", "In the", "-n", "8", "--greedy", "--kv", "fp32")["text"]
    assert quern.json("run", folder, "-p", "In the", "-n", "8", "--greedy", "--kv", "bf16")["text"] == expected
    done = quern("run", folder, "-p", "In the", "-n", "8", "--greedy", "--kv", "fp16")
    assert done.returncode == 3 and b"fp16" in done.stderr and b"65504" in done.stderr


def test_zero_tokens_compute_the_prompt_only(quern, block):
    out = quern.json("run", block, "-p", "hello", "-n", "0")
    assert (out["text"], out["token_ids"], out["finish_reason"]) == ("", [], "length")


def test_seed_decides_the_tokens(quern, block):
    def sample(seed):
        return quern.json("run", block, "-p", "hello", "-n", "30", "--temperature", "2", "--seed", seed)["token_ids"]
    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_reported_seed_repeats_the_run(quern, block):
    first = quern.json("run", block, "-p", "hello", "-n", "20", "--temperature", "2")
    again = quern.json("run", block, "-p", "hello", "-n", "20", "--temperature", "2", "--seed", first["sampling"]["seed"])
    assert first["token_ids"] == again["token_ids"]


def test_sampling_defaults_are_the_models(quern, block):
    sampling = quern.json("run", block, "-p", "hello", "-n", "1")["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"]) == (0.6, 20, 0.95)


@pytest.mark.parametrize("sampling", [("--greedy",), ("--seed", "5")])
def test_thread_count_does_not_matter(quern, block, sampling):
    prompt = ("run", block, "-p", "some words to make a longer prompt of " * 8, "-n", "40", *sampling)
    assert quern.json(*prompt, "-t", "1")["token_ids"] == quern.json(*prompt, "-t", "3")["token_ids"]


def test_top_k_of_one_is_greedy(quern, block):
    greedy = quern.json("run", block, "-p", "hello", *GREEDY)["token_ids"]
    assert quern.json("run", block, "-p", "hello", "-n", "12", "--top-k", "1", "--seed", "3")["token_ids"] == greedy
    assert quern.json("run", block, "-p", "hello", "-n", "12", "--temperature", "0")["token_ids"] == greedy


def test_stop_string_ends_the_text_in_front_of_it(quern, demo):
    prompt = ("run", demo, "-p", "In the beginning", "-n", "60", "--seed", "4")
    free = quern.json(*prompt)
    stop = free["text"][30:37]
    out = quern.json(*prompt, "--stop", "never there", "--stop", stop)
    assert out["finish_reason"] == "stop"
    assert out["text"] == free["text"][:free["text"].index(stop)]
    assert out["token_ids"] == free["token_ids"][:len(out["token_ids"])]
    assert quern(*prompt, "--stop", stop).stdout.decode() == out["text"]
    assert "stop string 0" in quern.refused(5, *prompt, "--stop=")


def test_bias_and_penalties_are_obeyed_and_reported(quern, block):
    free = quern.json("run", block, "-p", "hello", *GREEDY)
    other = quern.json("run", block, "-p", "hello", *GREEDY, "--logit-bias", f"{free['token_ids'][0]}=-inf", "--logit-bias=7=0.5")
    assert other["token_ids"][0] != free["token_ids"][0]
    penalties = ("--repeat-penalty", "1e6", "--presence-penalty", "-0.5", "--frequency-penalty", "0.25")
    out = quern.json("run", block, "-p", "hello", *GREEDY, *penalties)
    assert len(set(out["token_ids"]) - set(out["prompt_ids"])) == 12
    assert out["sampling"] == {"greedy": True, "repetition_penalty": 1e6, "presence_penalty": -0.5, "frequency_penalty": 0.25}
    assert quern.json("run", block, "-p", "hello", "-n", "1", "--min-p", "0.1")["sampling"]["min_p"] == 0.1
    text = quern.refused(5, "run", block, "-p", "hello", "--logit-bias", "512=1")
    assert "512" in text and "511" in text
    assert "twice" in quern.refused(5, "run", block, "-p", "hello", "--logit-bias", "5=1", "--logit-bias", "5=2")


def test_models_repetition_penalty_is_the_default(quern, broken):
    broken.config(lambda config: config["search"].update(repetition_penalty=1.25))
    for options in ([], ["--greedy"], ["--temperature", "1", "--top-k", "3", "--top-p", "1"]):
        assert quern.json("run", broken.folder, "-p", "hello", "-n", "1", *options)["sampling"]["repetition_penalty"] == 1.25
    out = quern.json("run", broken.folder, "-p", "hello", "-n", "1", "--repeat-penalty", "1")
    assert out["sampling"]["repetition_penalty"] == 1


def test_log_probabilities_come_with_every_token(quern, block):
    out = quern.json("run", block, "-p", "hello", *GREEDY, "--logprobs", "3")
    assert [row["id"] for row in out["logprobs"]] == out["token_ids"]
    for row in out["logprobs"]:
        assert len(row["top"]) == 3 and row["top"][0] == {"id": row["id"], "log_prob": row["log_prob"]}
        assert 0 >= row["top"][0]["log_prob"] >= row["top"][1]["log_prob"] >= row["top"][2]["log_prob"]
    assert all(row["top"] == [] for row in quern.json("run", block, "-p", "hello", *GREEDY, "--logprobs", "0")["logprobs"])
    assert "logprobs" not in quern.json("run", block, "-p", "hello", *GREEDY)


def test_stop_id_ends_the_text(quern, broken):
    free = quern.json("run", broken.folder, "-p", "hello", *GREEDY)
    assert free["finish_reason"] == "length"
    stop = free["token_ids"][4]

    def edit(config):
        config["model"]["eos_token_id"] = stop
    broken.config(edit)
    out = quern.json("run", broken.folder, "-p", "hello", *GREEDY)
    assert out["finish_reason"] == "stop"
    assert out["token_ids"] == free["token_ids"][:free["token_ids"].index(stop) + 1]
    assert free["text"].startswith(out["text"])


def test_full_context_ends_the_text(quern, block):
    out = quern.json("run", block, "--prompt-ids", ",".join(["7"] * 2046), "-n", "50", "--greedy")
    assert out["finish_reason"] == "length"
    assert len(out["token_ids"]) == 3  # two positions, and one token behind the last


@pytest.mark.parametrize("isa", ["scalar", "avx2"])
def test_instruction_set_can_be_capped(quern, block, isa):
    usable = quern.json("inspect", "cpu")["usable"].split()
    if isa not in usable:
        pytest.skip(f"this machine has no {isa}")
    out = quern.json("run", block, "-p", "hello", *GREEDY, env={"QUERN_ISA": isa})
    assert out["isa"].split()[-1] == isa
    kernels = quern.json("inspect", "kernels", env={"QUERN_ISA": isa})["kernels"]
    assert any(not row["usable"] and row["reason"] for row in kernels) or len(usable) == 1


def test_demo_model_writes_text(quern, demo):
    out = quern.json("run", demo, "-p", "In the beginning", "-n", "20", "--seed", "1")
    assert out["token_ids"] and out["text"].strip()


# Interruption and broken output --------------------------------------------------------------------------------------

def test_interrupt_ends_the_text_cleanly(quern, long_context):
    command = [quern.path, "run", str(long_context), "-p", "hello", "-n", "40000", "--greedy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert (first + rest).decode()  # whole characters
    assert errors == b""


def test_interrupt_while_the_prompt_is_awaited(quern, block):
    with subprocess.Popen([quern.path, "run", str(block), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        timer = threading.Timer(1.0, process.send_signal, [signal.SIGINT])
        timer.start()
        assert process.wait(timeout=60) == 130


# An interrupt is never explained to whoever sent it; the exit code tells it to others.
@pytest.mark.parametrize("command", [("tokenize", "{model}"), ("tokenize", "{model}", "-"), ("run", "{model}", "-"), ("chat", "{model}"),
                                     ("perplexity", "{model}", "-f", "-")])
def test_interrupt_while_input_is_awaited(quern, block, command):
    command = [str(block) if word == "{model}" else word for word in command]
    with subprocess.Popen([quern.path, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_interrupt_of_a_long_prompt(quern, long_context, tmp_path):
    (tmp_path / "text").write_text("In the beginning was the word. " * 1000)
    command = [quern.path, "run", str(long_context), "-f", str(tmp_path / "text")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"") and process.returncode == 130


def test_full_disk_is_an_output_error(quern, block):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([quern.path, "run", str(block), "-p", "hello", *GREEDY], stdout=full,
                              stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 7
    assert b"standard output" in done.stderr


def end_code(quern, *args, **streams):
    return subprocess.run([quern.path, *map(str, args)], timeout=60, **{
        "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}).returncode


@pytest.mark.parametrize("args, code", [(("inspect", "/nothing"), 3), (("frobnicate",), 2), (("run",), 2)])
def test_messages_that_cannot_be_written_change_nothing(quern, args, code):
    with open("/dev/full", "wb") as full:
        assert end_code(quern, *args, stderr=full) == code
    assert end_code(quern, *args, preexec_fn=lambda: os.close(2)) == code


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("run", "--help"), ("inspect", "kernels")])
def test_output_that_cannot_be_written_is_an_error(quern, args):
    with open("/dev/full", "wb") as full:
        assert end_code(quern, *args, stdout=full) == 7
    assert end_code(quern, *args, preexec_fn=lambda: os.close(1)) == 7


def test_progress_is_for_terminals(quern, block):
    master, slave = pty.openpty()
    done = subprocess.Popen([quern.path, "run", str(block), "-p", "hello", *GREEDY], stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:  # the terminal's other end is closed
        pass
    os.close(master)
    text = done.communicate(timeout=60)[0].decode()
    assert done.returncode == 0
    assert b"loading" in seen and b"prompt:" in seen
    assert text == quern.json("run", block, "-p", "hello", *GREEDY)["text"]


# Inspection ----------------------------------------------------------------------------------------------------------

def test_inspect_has_the_promised_shape(quern, block):
    out = quern.json("inspect", block)
    assert set(out) == {"model", "nodes", "counts", "memory"}
    assert out["model"]["model_type"] == "qwen3" and out["model"]["layers"] == 2
    for node in out["nodes"]:
        assert set(node) == {"name", "op", "domain", "owner", "variant", "reason", "bytes_copied"}
    assert out["counts"]["nodes"] == len(out["nodes"]) == 51


def test_every_node_of_the_large_graph_has_an_owner(quern, deep):
    out = quern.json("inspect", deep)
    counts = out["counts"]
    assert counts["nodes"] == len(out["nodes"]) == 519
    assert {node["owner"] for node in out["nodes"]} <= OWNERS
    for owner in OWNERS:
        assert counts[owner] == sum(node["owner"] == owner for node in out["nodes"])
    assert all(node["variant"] for node in out["nodes"] if node["owner"] == "kernel")
    assert all(node["reason"] for node in out["nodes"])
    # Decoding moves no payload: reshapes and splits are views, the cache is appended to in place.
    assert sum(node["bytes_copied"] for node in out["nodes"]) == 0


@pytest.mark.parametrize("kv, rows", [("fp32", "f32"), ("fp16", "f16"), ("bf16", "bf16"), ("int8", "i8")])
def test_attention_is_reported_with_the_kernels_of_its_cache(quern, block, kv, rows):
    chosen = {row["role"]: row["symbol"] for row in quern.json("inspect", "kernels")["kernels"]
              if row["room"] == "gqa_attention" and row["chosen"]}
    nodes = [n for n in quern.json("inspect", block, "--kv", kv)["nodes"] if n["op"] == "GroupQueryAttention"]
    assert len(nodes) == 2
    for node in nodes:
        # One token takes the form for few rows, a prompt the other.
        assert node["variant"] == chosen[f"rows {rows}"] and f"_{rows}_" in node["variant"]
        assert chosen[f"tile {rows}"] in node["reason"].split()


def test_a_pass_over_the_graph_can_be_left_out(quern, block):
    joint = quern.json("inspect", block)
    # Gate and up of both layers read the same rows; the second product gates the elements of up.
    passes = {"shared_rows": ("up_proj/MatMul_Q4", "gate_proj/MatMul_Q4"), "silu_mul": ("act_fn/Sigmoid", "Mul")}
    for name, (fused, by) in passes.items():
        nodes = {node["name"]: node for node in joint["nodes"]}
        for i in (0, 1):
            node = nodes[f"/model/layers.{i}/mlp/{fused}"]
            assert node["owner"] == "fused" and node["variant"] == ""
            assert f"'/model/layers.{i}/mlp/{by}'" in node["reason"] and name in node["reason"]
    counts = [quern.json("inspect", block, *option)["counts"] for option in
              ([], ["--no-fuse", "shared_rows"], ["--no-fuse", "silu_mul"], ["--no-fuse=shared_rows", "--no-fuse", "silu_mul"])]
    assert [c["fused"] for c in counts] == [6, 4, 2, 0]
    assert {c["fused"] + c["kernel"] for c in counts} == {32}
    texts = [quern.json("run", block, "-p", "hello", *GREEDY, *option)["token_ids"] for option in ([], ["--no-fuse", "shared_rows"])]
    assert texts[0] == texts[1]
    rows = quern("bench", block, "-p", "0", "-n", "1", "-r", "1", "--no-fuse=shared_rows", "--no-fuse", "shared_rows", "--output", "csv")
    assert rows.returncode == 0, rows.stderr.decode()


@pytest.mark.parametrize("command", [["run", "-p", "a"], ["inspect"], ["bench"], ["perplexity", "-f", __file__]])
@pytest.mark.parametrize("name", ["shared_row", ""])
def test_a_pass_that_does_not_exist_is_refused_with_those_that_do(quern, block, command, name):
    text = quern.refused(5, *command, block, f"--no-fuse={name}")
    assert f"'{name}'" in text and "shared_rows" in text


def test_inspect_needs_no_tokenizer(quern, broken):
    (broken.folder / "tokenizer.json").unlink()
    assert quern.json("inspect", broken.folder)["counts"]["nodes"] == 51


def test_inspect_shows_where_the_bytes_are(quern, block):
    seen = quern.json("inspect", block)
    rows = seen["memory"]["weights_by_op"]
    ops = {row["op"]: row for row in rows}
    assert rows[0]["op"] == "MatMulNBits" and ops["MatMulNBits"]["share"] == 1
    assert sum(row["nodes"] for row in rows) == len(seen["nodes"])
    assert ops["MatMulNBits"]["weight_bytes"] == seen["memory"]["weight_bytes"] > 0
    assert ops["MatMulNBits"]["variants"] == sorted({n["variant"] for n in seen["nodes"] if n["op"] == "MatMulNBits" and n["variant"]})
    table = quern("inspect", block).stdout.decode()
    assert re.search(r"^MatMulNBits +\d+ +\d+ +100\.0%  matmul_nbits", table, re.M)
    assert re.search(r"^memory +\d+ MB: program \d+, .* MB are available \(.+\)$", table, re.M)


def test_inspect_table_names_every_node(quern, block):
    done = quern("inspect", block)
    assert done.returncode == 0 and done.stderr == b""
    for node in quern.json("inspect", block)["nodes"]:
        assert node["name"] in done.stdout.decode()


def test_names_that_are_not_utf8_stay_readable(quern, broken):
    path = broken.folder / "model.onnx"
    name = b"/model/layers.0/mlp/act_fn/Sigmoid"
    assert path.read_bytes().count(b"\x1a" + bytes([len(name)]) + name) == 1  # the node's own name field
    content = path.read_bytes().replace(b"\x1a" + bytes([len(name)]) + name, b"\x1a" + bytes([len(name)]) + b"\xff\xfe" + name[2:])
    path.write_bytes(content)
    names = [node["name"] for node in quern.json("inspect", broken.folder)["nodes"]]
    assert "\\xff\\xfe" + name[2:].decode() in names


def test_inspect_lists_operators_kernels_and_the_machine(quern):
    ops = {(row["domain"], row["op"]) for row in quern.json("inspect", "ops")["ops"]}
    assert ("com.microsoft", "MatMulNBits") in ops and ("ai.onnx", "Gather") in ops
    for what in ("ops", "kernels", "cpu"):
        assert quern("inspect", what).returncode == 0


@pytest.mark.parametrize("cap", ["", "avx2", "scalar"])
def test_inspect_says_of_each_kernel_why_it_is_not_chosen(quern, cap):
    machine = quern.json("inspect", "cpu", env={"QUERN_ISA": cap})
    if cap and cap not in machine["usable"].split():
        pytest.skip(f"the processor lacks {cap}")
    kernels = quern.json("inspect", "kernels", env={"QUERN_ISA": cap})["kernels"]
    for room, role in {(row["room"], row["role"]) for row in kernels}:
        rows = [row for row in kernels if (row["room"], row["role"]) == (room, role)]
        assert rows[-1]["isa"] == "scalar" and [row["chosen"] for row in rows].count(True) == 1
        first = next(i for i, row in enumerate(rows) if row["usable"])
        for i, row in enumerate(rows):
            assert row["chosen"] == (i == first) and row["usable"] == (row["isa"] in machine["usable"].split())
            if i < first:  # named with what keeps it out
                assert row["isa"] in row["reason"] and ("lacks" in row["reason"] or f"QUERN_ISA={cap}" in row["reason"])
            elif i > first:
                assert row["reason"] == (f"{rows[first]['isa']} comes first" if row["usable"] else row["reason"]) != ""


def test_inspect_cpu_is_written_for_people(quern):
    machine = quern.json("inspect", "cpu", env={"QUERN_ISA": "scalar"})
    text = quern("inspect", "cpu", env={"QUERN_ISA": "scalar"}).stdout.decode()
    rows = [line.split(None, 1) for line in text.splitlines()]
    assert all(len(row) == 2 for row in rows) and not set("[]{}\"") & set(text)
    for name, several in (("numa_nodes", machine["numa_nodes"]), ("refused", machine["refused"])):
        assert [value for key, value in rows if key == name] == ([
            f"{one['node']}: {one['cores']} cores, {one['memory_bytes'] / 1e9:.1f} GB" if name == "numa_nodes" else one
            for one in several] or ["none"])
    assert dict(rows)["quota"] == (str(machine["quota"]) if machine["quota"] else "none")


def test_inspect_says_why_so_many_threads_and_how_much_memory(quern):
    machine = quern.json("inspect", "cpu")
    assert 1 <= machine["default_threads"] <= machine["physical_cores"] <= machine["logical_processors"]
    assert machine["threads_reason"].startswith(f"{machine['physical_cores']} physical core")
    assert 0 < machine["available_bytes"] and machine["available_bound"]
    assert sum(node["cores"] for node in machine["numa_nodes"]) in (0, machine["physical_cores"])
    one = min(os.sched_getaffinity(0))
    pinned = subprocess.run(["taskset", "-c", str(one), quern.path, "inspect", "cpu", "--json"], capture_output=True)
    pinned = json.loads(pinned.stdout)
    assert pinned["default_threads"] == 1
    if machine["logical_processors"] > 1:
        assert "in an affinity mask of 1 of" in pinned["threads_reason"]


# Tokens --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text", ["hello", "a b\n\nc", "Grüße 世界 🙂", " ", "<|im_end|> and <think>"])
def test_tokens_and_text_are_inverse(quern, block, text):
    out = quern.json("tokenize", block, text)
    ids = quern("tokenize", block, text).stdout.split()
    assert [int(i) for i in ids] == out["ids"] and len(out["pieces"]) == len(out["ids"])
    assert quern("tokenize", block, stdin=text.encode()).stdout.split() == ids
    assert quern("detokenize", block, *ids).stdout.decode() == text
    assert quern.json("detokenize", block, ",".join(str(int(i)) for i in ids))["text"] == text


def test_empty_text_has_no_tokens(quern, block):
    assert quern.json("tokenize", block, "")["ids"] == []


def test_prompt_ids_are_those_of_tokenize(quern, block):
    text = "The same tokens"
    assert quern.json("run", block, "-p", text, "-n", "1")["prompt_ids"] == quern.json("tokenize", block, text)["ids"]


def test_special_tokens_can_be_left_out(quern, block):
    ids = quern.json("tokenize", block, "a<|im_end|>b")["ids"]
    assert quern("detokenize", block, "--skip-special", *ids).stdout == b"ab"


# Perplexity ----------------------------------------------------------------------------------------------------------

def test_perplexity_has_the_promised_shape(quern, block, tmp_path):
    text = b"In the beginning was the word. " * 40
    (tmp_path / "text").write_bytes(text)
    out = quern.json("perplexity", block, "-f", tmp_path / "text", "--ctx", "100", "--stride", "60")
    assert set(out) == {"perplexity", "mean_negative_log_likelihood", "counts", "timings", "memory", "threads", "isa"}
    tokens = len(quern.json("tokenize", block, text.decode())["ids"])
    assert out["counts"]["tokens"] == tokens and out["counts"]["scored_tokens"] == tokens - 1
    assert set(out["timings"]) == {"load_ms", "tokenize_ms", "score_ms"}
    piped = quern.json("perplexity", block, "-f", "-", "--ctx", "100", "--stride", "60", stdin=text)
    assert piped["perplexity"] == out["perplexity"]
    done = quern("perplexity", block, "-f", tmp_path / "text", "--ctx", "100", "--stride", "60")
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.decode().startswith(f"perplexity {out['perplexity']:.4f}, ")


def test_perplexity_is_the_same_on_any_number_of_threads(quern, block):
    text = b"one two three " * 60
    one, three = (quern.json("perplexity", block, "-f", "-", "-t", n, stdin=text)["mean_negative_log_likelihood"] for n in (1, 3))
    assert one == three


@pytest.mark.parametrize("text", [b"", b"a"])
def test_perplexity_needs_two_tokens(quern, block, text):
    assert f"has {len(text)} tokens" in quern.refused(5, "perplexity", block, "-f", "-", stdin=text)


def test_windows_that_do_not_fit_name_both_numbers(quern, block):
    text = quern.refused(5, "perplexity", block, "-f", "-", "--ctx", "2049", stdin=b"some text")
    assert "2049" in text and "2048" in text
    text = quern.refused(5, "perplexity", block, "-f", "-", "--ctx", "10", "--stride", "11", stdin=b"some text")
    assert "11" in text and "10" in text and "stride" in text


def test_text_to_score_that_is_not_there(quern, block, tmp_path):
    assert "nothing.txt" in quern.refused(7, "perplexity", block, "-f", tmp_path / "nothing.txt")
    assert "UTF-8" in quern.refused(5, "perplexity", block, "-f", "-", stdin=b"abc\xff")


def test_interrupted_perplexity_gives_no_figure(quern, block, tmp_path):
    (tmp_path / "text").write_text("In the beginning was the word. " * 20000)
    with subprocess.Popen([quern.path, "perplexity", str(block), "-f", str(tmp_path / "text")], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)  # it would take far longer
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b"" and errors == b""


# Usage ---------------------------------------------------------------------------------------------------------------

def test_version_and_help_succeed(quern):
    assert quern("--version").stdout.startswith(b"quern ")
    for command in ([], ["run"], ["chat"], ["inspect"], ["bench"], ["perplexity"], ["tokenize"], ["detokenize"]):
        done = quern(*command, "--help")
        assert done.returncode == 0 and done.stdout and not done.stderr


@pytest.mark.parametrize("args", [
    [], ["frobnicate"], ["run"], ["run", "{model}"], ["run", "{model}", "-p", "a", "-f", "b"], ["run", "{model}", "+"],
    ["run", "{model}", "-p", "a", "-n", "-1"], ["run", "{model}", "-p", "a", "-n", "many"],
    ["run", "{model}", "-p", "a", "-t", "0"], ["run", "{model}", "-p", "a", "--greedy", "--temperature", "1"],
    ["run", "{model}", "-p", "a", "--seed", "x"], ["inspect"], ["tokenize"], ["detokenize", "{model}"],
    ["detokenize", "{model}", "x"], ["bench", "{model}", "--output", "xml"],
    *[["run", "{model}", "--prompt-ids", ids] for ids in ("", ",", "1,,2", ",5", "5,", "0x10", "+1", "1 2", "1.0")],
    ["run", "{model}", "--prompt-ids=", "-n", "1"], ["run", "{model}", "--prompt-ids=", "1"],
    ["detokenize", "{model}", "1,,2"], ["detokenize", "{model}", "0x10"], ["bench", "{model}", "-p", "8,,16"],
    *[["run", "{model}", "-p", "a", f"--seed={seed}"] for seed in ("", "-1", "18446744073709551616", "0x1", "1.5")],
    *[["run", "{model}", "-p", "a", f"--top-p={p}"] for p in ("0", "1e-46", "1e-400", "-0.1", "1.5", "nan", "x")],
    *[["run", "{model}", "-p", "a", f"--temperature={t}"] for t in ("1e308", "1e39", "-1", "nan", "inf")],
    ["run", "{model}", "-p", "a", "--top-k=-2"], ["run", "{model}", "-p", "a", "-t", "1025"],
    ["bench", "{model}", "-t", "2147483647"],
    ["perplexity", "{model}"], ["perplexity", "-f", "x"], ["perplexity", "{model}", "-f", "x", "--ctx", "1"],
    ["perplexity", "{model}", "-f", "x", "--stride", "0"], ["perplexity", "{model}", "-f", "x", "--stride", "1.5"],
    *[["run", "{model}", "-p", "a", f"--min-p={p}"] for p in ("-0.1", "1.5", "nan", "x")],
    *[["run", "{model}", "-p", "a", f"--repeat-penalty={p}"] for p in ("0", "-1", "inf", "1e-46")],
    *[["run", "{model}", "-p", "a", f"--presence-penalty={p}"] for p in ("nan", "1e39", "")],
    *[["run", "{model}", "-p", "a", f"--logit-bias={b}"] for b in ("", "5", "5=", "=1", "5=inf", "5=nan", "-1=1", "x=1", "5=1,6=1")],
    ["run", "{model}", "-p", "a", "--greedy", "--min-p", "0.1"], ["run", "{model}", "-p", "a", "--stop"],
    ["run", "{model}", "-p", "a", "--logprobs", "3"], ["run", "{model}", "-p", "a", "--json", "--logprobs", "-1"],
    ["run", "{model}", "-p", "a", "--no-think"], ["run", "{model}", "--prompt-ids", "5", "--chat"],
    ["run", "{model}", "-p", "a", "--repeat-guard", "1"], ["chat"], ["chat", "{model}", "--think", "--no-think"],
    ["chat", "{model}", "-n", "0"], ["chat", "{model}", "--when-full", "cut"], ["chat", "{model}", "--system", "a", "--messages", "x"],
    # Flags of later versions are refused, not ignored.
    ["run", "{model}", "-p", "a", "--kv", "half"],
    ["run", "{model}", "-p", "a", "--kv", "auto"], ["run", "{model}", "-p", "a", "--compute", "fp16"],
    *[[*command, f"--ctx={n}"] for n in ("0", "-1", "x", "99999999999")
      for command in (["run", "{model}", "-p", "a"], ["chat", "{model}"], ["inspect", "{model}"], ["bench", "{model}"])],
    ["run", "{model}", "-p", "a", "--device", "cuda"],
])
def test_wrong_usage(quern, block, args):
    text = quern.refused(2, *[str(block) if a == "{model}" else a for a in args])
    assert text.startswith("quern: usage: ") and re.search("; see quern( [a-z]+)? --help\n$", text)


@pytest.mark.parametrize("words", [["In the beginning"], ["-p", "a", "--temp", "1"]])
def test_a_word_without_an_option_is_named(quern, block, words):
    text = quern.refused(2, "run", block, *words)
    assert f"'{words[-1]}' belongs to no option that is known" in text and " -p" in text


def test_unknown_command_is_named(quern):
    assert "'frobnicate'" in quern.refused(2, "frobnicate")


@pytest.mark.parametrize("option, word", [("--top-p", "1e-46"), ("--temperature", "1e308"), ("--seed", "-1"),
                                          ("--max-tokens", "-1"), ("--threads", "99999999999")])
def test_refused_numbers_are_shown_as_written(quern, block, option, word):
    done = quern("run", block, "-p", "a", f"{option}={word}")
    assert done.returncode == 2
    message = done.stderr.decode()
    assert f"'{word}'" in message and option in message and len(message) < 120


def test_numbers_are_decimal(quern, block):
    assert quern.json("run", block, "--prompt-ids", "010,7", "-n", "0")["prompt_ids"] == [10, 7]
    assert len(quern.json("run", block, "-p", "a", "-n", "010", "--greedy")["token_ids"]) == 10
    assert quern.json("detokenize", block, "010")["ids"] == [10]
    largest = quern.json("run", block, "-p", "a", "-n", "1", "--temperature", "1", "--seed", str(2**64 - 1))
    assert largest["sampling"]["seed"] == 2**64 - 1


# Bad requests --------------------------------------------------------------------------------------------------------

def test_prompt_longer_than_the_context_names_both_numbers(quern, block):
    text = quern.refused(5, "run", block, "--prompt-ids", ",".join(["7"] * 2049))
    assert "2049" in text and "2048" in text


def test_prompt_without_tokens(quern, block):
    assert "prompt" in quern.refused(5, "run", block, "-p", "")
    assert "prompt" in quern.refused(5, "run", block, "--prompt=", "-n", "1")


def test_prompt_without_an_end(quern, block):
    assert str(64 << 20) in quern.refused(5, "run", block, "-f", "/dev/zero")


@pytest.mark.parametrize("bad", ["512", "-1", "99999999999", "99999999999999999999"])
def test_token_id_out_of_range(quern, block, bad):
    text = quern.refused(5, "run", block, f"--prompt-ids=1,{bad}")
    assert bad in text and "511" in text
    assert bad in quern.refused(5, "detokenize", block, "--", "1", bad)


def test_prompt_that_is_not_utf8(quern, block):
    assert "UTF-8" in quern.refused(5, "run", block, "-", stdin=b"abc\xff")
    assert "UTF-8" in quern.refused(5, "tokenize", block, stdin=b"abc\xff")


def test_instruction_set_that_is_not_there(quern, block):
    assert "mmx" in quern.refused(5, "run", block, "-p", "a", env={"QUERN_ISA": "mmx"})


def test_prompt_file_that_is_not_there(quern, block, tmp_path):
    assert "nothing.txt" in quern.refused(7, "run", block, "-f", tmp_path / "nothing.txt")
    quern.refused(7, "run", block, "-f", tmp_path)


@pytest.mark.parametrize("option", ["--save-state", "--load-state", "-f"])
def test_an_empty_file_name_is_seen(quern, block, option):
    text = quern.refused(7, "run", block, option, "", *([] if option == "-f" else ["-p", "a"]))
    assert text.startswith("quern: io: '': ")


ODD = b"a\n\x1b[31m\xff\xc2\x9b\xe4b"


# One line of UTF-8 without control characters, whatever the user's names hold.
@pytest.mark.parametrize("args, code", [
    (("run", ODD, "-p", "a"), 3), (("run", "{model}", "-f", ODD), 7), (("run", "{model}", "-p", "a", "--load-state", ODD), 7),
    (("run", "{model}", "-p", "a", "--save-state", b"/nothing/" + ODD), 7), (("chat", "{model}", "--messages", ODD), 7),
    (("run", "{model}", "-p", "a", ODD), 2), (("run", "{model}", "-p", "a", b"--" + ODD), 2), ((ODD,), 2),
    (("bench", "{model}", "--output", ODD), 2)])
def test_messages_are_one_printable_line(quern, block, args, code):
    text = quern.refused(code, *[block if a == "{model}" else a for a in args])
    assert all(c.isprintable() for c in text[:-1]), ascii(text)
    assert "\\x0a\\x1b[31m\\xff\\xc2\\x9b\\xe4b" in text


def test_other_words_of_a_user_are_printable(quern, block):
    for text in (quern.refused(5, "run", block, "-p", "a", env={"QUERN_ISA": "a\n\x1b[31m"}),
                 quern.refused(5, "chat", block, stdin=b"/a\x1b[31m\xff\n"),
                 quern.refused(7, "chat", block, stdin=b"/save /nothing/a\x1b[31m\xff\n")):
        assert "a" in text and "\\x1b" in text and text[:-1].isprintable()


# Models that are none, or not quern's --------------------------------------------------------------------------------

COMMANDS = [("run", "-p", "a"), ("inspect",), ("bench",), ("perplexity", "-f", __file__)]


@pytest.mark.parametrize("command", [*COMMANDS, ("tokenize", "a")])
def test_folder_that_is_not_there(quern, tmp_path, command):
    assert "nothing" in quern.refused(3, command[0], tmp_path / "nothing", *command[1:])
    assert "model folder ''" in quern.refused(3, command[0], "", *command[1:])


PARTS = ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "circle"])
def test_part_that_is_no_file(quern, broken, part, kind):
    path = broken.folder / part
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    text = quern.refused(3, "run", broken.folder, "-p", "a")
    assert part in text and ("leads to itself" if kind == "circle" else f"not a regular file but a {kind}") in text


def test_part_behind_a_link_is_read(quern, broken, tmp_path):
    for part in ("genai_config.json", "tokenizer.json", "tokenizer_config.json"):
        os.rename(broken.folder / part, tmp_path / part)
        (broken.folder / part).symlink_to(tmp_path / part)
    assert quern.json("run", broken.folder, "-p", "hello", "-n", "1")["token_ids"]


@pytest.mark.parametrize("content, byte", [(b'{"a": 1', 7), (b'{"a": 1} x', 9), (b'{"a"; 1}', 4)])
def test_damaged_json_names_the_byte(quern, broken, content, byte):
    (broken.folder / "tokenizer_config.json").write_bytes(content)
    assert f"tokenizer_config.json: byte {byte}:" in quern.refused(3, "run", broken.folder, "-p", "a")
    (broken.folder / "genai_config.json").write_bytes(content)
    assert f"genai_config.json@{byte}:" in quern.refused(3, "run", broken.folder, "-p", "a")


@pytest.mark.parametrize("command", COMMANDS)
def test_empty_folder_names_what_is_missing(quern, tmp_path, command):
    assert "genai_config.json" in quern.refused(3, command[0], tmp_path, *command[1:])


@pytest.mark.parametrize("missing, code", [("model.onnx", 3), ("model.onnx.data", 3), ("tokenizer.json", 3)])
def test_missing_part_is_named(quern, broken, missing, code):
    (broken.folder / missing).unlink()
    assert missing in quern.refused(code, "run", broken.folder, "-p", "a")


def test_unknown_model_type(quern, broken):
    broken.config(lambda config: config["model"].update(type="llama"))
    assert "llama" in quern.refused(4, "run", broken.folder, "-p", "a")


def test_checkpoint_of_the_onnx_line_says_how_to_export_it(quern, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    text = quern.refused(4, "inspect", tmp_path)
    assert "ONNX" in text and "QUERN_MODEL_LINES" not in text


def test_binary_without_lines_names_the_option(block, tmp_path):
    build = os.environ.get("QUERN_BUILD_WITHOUT_LINES")
    if build is None:
        pytest.skip("QUERN_BUILD_WITHOUT_LINES names no build folder")
    from conftest import Quern, ROOT
    bare = Quern(ROOT / build / "quern")
    assert "QUERN_MODEL_LINES" in bare.refused(4, "run", block, "-p", "a")
    # By the type alone: also siblings that a binary with the line refuses, and folders without weights.
    from test_qwen4 import SIBLINGS, published_config
    for edit, _ in [(lambda config: None, ""), *SIBLINGS]:
        config = published_config()
        edit(config)
        (tmp_path / "config.json").write_text(json.dumps(config))
        text = bare.refused(4, "inspect", tmp_path)
        assert config["model_type"] in text and "QUERN_MODEL_LINES containing qwen4_exp" in text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"model": {"type": "qwen3"}}'])
def test_damaged_configuration(quern, broken, content):
    (broken.folder / "genai_config.json").write_bytes(content)
    assert "genai_config.json" in quern.refused(3, "run", broken.folder, "-p", "a")


@pytest.mark.parametrize("field, value", [("num_hidden_layers", 3), ("num_key_value_heads", 4), ("head_size", 64),
                                          ("hidden_size", 512), ("num_attention_heads", 8)])
def test_configuration_that_disagrees_with_the_graph(quern, broken, field, value):
    seen = json.loads((broken.folder / "genai_config.json").read_text())["model"]["decoder"][field]
    broken.config(lambda config: config["model"]["decoder"].update({field: value}))
    text = quern.refused(3, "run", broken.folder, "-p", "a")
    assert field in text and str(value) in text and str(seen) in text


# Broken graphs -------------------------------------------------------------------------------------------------------

def initializer(model, end):
    return next(t for t in model.graph.initializer if t.name.endswith(end))


def external(tensor, key, value):
    next(e for e in tensor.external_data if e.key == key).value = value


def test_unknown_operator_is_named(quern, broken):
    def edit(model):
        node = next(n for n in model.graph.node if n.op_type == "Sigmoid")
        node.op_type = "Frobnicate"
    broken.graph(edit)
    for command in COMMANDS:
        text = quern.refused(4, command[0], broken.folder, *command[1:])
        assert "Frobnicate" in text and "/model/layers.0/mlp/act_fn/Sigmoid" in text


def test_unknown_attention_is_named(quern, broken):
    def edit(model):
        next(n for n in model.graph.node if n.op_type == "GroupQueryAttention").op_type = "OtherAttention"
    broken.graph(edit)
    text = quern.refused(4, "run", broken.folder, "-p", "a")
    assert "OtherAttention" in text and "/model/layers.0/attn/GroupQueryAttention" in text


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_truncated_graph(quern, broken, part):
    path = broken.folder / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content[:int(part * len(content))])
    assert "model.onnx" in quern.refused(3, "run", broken.folder, "-p", "a")


def test_truncated_external_data(quern, broken):
    broken.data(lambda content: content[:-1])
    assert "model.onnx.data" in quern.refused(3, "run", broken.folder, "-p", "a")


@pytest.mark.parametrize("location", ["../model.onnx.data", "/etc/passwd", "link"])
def test_external_data_outside_of_the_folder(quern, broken, location, tmp_path):
    (tmp_path / "model.onnx.data").write_bytes(b"\0" * 4096)
    (broken.folder / "link").symlink_to(tmp_path / "model.onnx.data")
    broken.graph(lambda model: external(model.graph.initializer[0], "location", location))
    assert location in quern.refused(3, "run", broken.folder, "-p", "a")


@pytest.mark.parametrize("key, value", [("offset", "-4"), ("offset", "x"), ("offset", str(1 << 62)), ("length", "3"),
                                        ("length", str(1 << 63))])
def test_external_ranges_that_cannot_be(quern, broken, key, value):
    broken.graph(lambda model: external(model.graph.initializer[0], key, value))
    quern.refused(3, "run", broken.folder, "-p", "a")


def test_wrong_element_type(quern, broken):
    def edit(model):
        scales = initializer(model, "lm_head.MatMul.weight_scales")
        scales.data_type, scales.dims[1] = 10, scales.dims[1] * 2  # float16, as many bytes
    broken.graph(edit)
    done = quern("run", broken.folder, "-p", "a")
    assert done.returncode in (3, 4) and b"/lm_head/MatMul_Q4" in done.stderr


def test_mask_of_another_type(quern, broken):
    def edit(model):
        next(i for i in model.graph.input if i.name == "attention_mask").type.tensor_type.elem_type = 1
    broken.graph(edit)
    done = quern("run", broken.folder, "-p", "a")
    assert done.returncode in (3, 4) and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("end", ["lm_head.MatMul.weight_Q4", "lm_head.MatMul.weight_scales", "q_norm.layernorm.weight",
                                 "input_layernorm.weight", "embed_tokens.weight", "cos_cache"])
def test_wrong_shape(quern, broken, end):
    def edit(model):
        tensor = initializer(model, end)
        tensor.dims[0] //= 2
        length = next(e for e in tensor.external_data if e.key == "length")
        length.value = str(int(length.value) // 2)
    broken.graph(edit)
    quern.refused(3, "run", broken.folder, "-p", "hello")


@pytest.mark.parametrize("dims", [[1 << 62, 1 << 62], [1 << 40, 256], [-1, 256], [1 << 31, 1 << 31, 1 << 31]])
def test_absurd_dimensions(quern, broken, dims):
    def edit(model):
        tensor = initializer(model, "embed_tokens.weight")
        tensor.dims[:] = dims
    broken.graph(edit)
    quern.refused(3, "run", broken.folder, "-p", "a")


def test_scales_that_are_not_numbers(quern, broken):
    offset = {}

    def find(model):
        scales = initializer(model, "lm_head.MatMul.weight_scales")
        offset["at"] = int(next(e for e in scales.external_data if e.key == "offset").value)
    broken.graph(find)

    def poison(content):
        content[offset["at"]:offset["at"] + 4] = b"\x00\x00\xc0\x7f"
    broken.data(poison)
    text = quern.refused(3, "run", broken.folder, "-p", "hello", *GREEDY)
    assert "nan" in text.lower() or "finite" in text


def test_cycle(quern, broken):
    def edit(model):
        node = next(n for n in model.graph.node if n.op_type == "Sigmoid")
        node.input[0] = node.output[0]
    broken.graph(edit)
    quern.refused(3, "run", broken.folder, "-p", "a")


def test_random_damage_never_crashes(quern, broken):
    """One byte of the graph changed at a time: any answer but a crash, a hang or a defect."""
    path = broken.folder / "model.onnx"
    content = path.read_bytes()
    for i in range(60):
        damaged = bytearray(content)
        damaged[i * 7919 % len(content)] ^= 1 << i % 8
        path.write_bytes(damaged)
        done = quern("run", broken.folder, "-p", "a", "-n", "2")
        assert done.returncode in (0, 3, 4, 6), (i, done.returncode, done.stderr)


# Benchmark -----------------------------------------------------------------------------------------------------------

def test_bench_rows_hold_their_samples(quern, block):
    done = quern("bench", block, "-p", "8,16", "-n", "4", "-d", "0,32", "-t", "1", "-r", "2", "--output", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    machine = quern.json("inspect", "cpu")
    cache = machine["l3_bytes"] or machine["l2_bytes"]
    assert [(r["case"], r["depth"]) for r in rows] == [("prefill", 8), ("prefill", 16), ("decode", 0), ("decode", 32)]
    assert [len(r["samples"]) for r in rows] == [2, 2, 8, 8]
    assert all(r["threads"] == 1 and r["quern_ms"] > 0 for r in rows)
    # Two layers of keys and values of 2 heads of 128 float16; of the embedding a token reads a row, and no weights twice.
    for row in rows[2:]:
        assert row["cache_bytes_per_token"] == 2 * 2 * 2 * 128 * 2 and 0 < row["weight_bytes_read"] <= row["weight_bytes"]
        assert row["p10_ms"] <= row["quern_ms"] <= row["p90_ms"] and row["gbps"] > 0
        assert row["read_gbps"] > 0
        if row["weight_bytes_read"] > cache:
            assert abs(row["pct_bandwidth"] - row["gbps"] / row["read_gbps"] * 100) < 1e-6
        else:  # then memory is not the limit
            assert "pct_bandwidth" not in row and row["last_level_cache_bytes"] == cache


def test_bench_forms_hold_the_same_cases(quern, block):
    args = ["bench", block, "-p", "4", "-n", "2", "-d", "8,0", "-r", "1", "-t", "1,2", "--output"]
    wanted = [(case, depth, threads) for threads in (1, 2) for case, depth in (("prefill", 4), ("decode", 8), ("decode", 0))]
    table, lines, sheet = (quern(*args, form).stdout.decode() for form in ("table", "jsonl", "csv"))
    cells = [line.split() for line in table.splitlines()[1:]]
    assert [(f[0], int(f[1]), int(f[3])) for f in cells] == wanted
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [(r["case"], r["depth"], r["threads"]) for r in rows] == wanted
    assert all((f[-1] == "-") == ("pct_bandwidth" not in r) for f, r in zip(cells, rows, strict=True))
    assert all(r["machine"]["cpu"] and len(r["samples"]) == (2 if r["case"] == "decode" else 1) for r in rows)
    rows = list(csv.DictReader(sheet.splitlines()))
    assert [(r["case"], int(r["depth"]), int(r["threads"])) for r in rows] == wanted


@pytest.mark.parametrize("kv, bytes_per_element", [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_bench_rows_name_their_cache(quern, block, kv, bytes_per_element):
    done = quern("bench", block, "-p", "0", "-n", "1", "-r", "1", "--kv", kv, "--output", "json")
    row, = json.loads(done.stdout)["rows"]
    assert (row["kv"], row["cache_bytes_per_token"]) == (kv, 2 * 2 * 2 * 128 * bytes_per_element)


@pytest.mark.parametrize("args, what, seen", [(["-p", "8,2049"], "prompt", 2049), (["-p", "8", "-n", "8", "-d", "0,2041"], "depth", 2049),
                                              (["-p", "2050", "-n", "8", "-d", "4000"], "prompt", 2050)])
def test_bench_refuses_what_the_context_cannot_hold_before_it_measures(quern, block, args, what, seen):
    text = quern.refused(5, "bench", block, *args, "--output", "jsonl")
    assert what in text and f" {seen} " in text and "2048" in text


def test_interrupted_bench_says_so(quern, block):
    with subprocess.Popen([quern.path, "bench", str(block), "-r", "100000", "--output", "json"], stdout=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b""


@pytest.mark.slow
@pytest.mark.memory
def test_pages_of_a_large_file_stay_out_of_resident_memory(quern, tmp_path):
    """A layer, the packed head and a cache; the 600 MB of the embedding are read row by row."""
    model = make_model(tmp_path / "model", "--size", "0.6b", "--layers", "1")
    assert quern.json("run", model, "-p", "words", "-n", "2")["memory"]["peak_resident_bytes"] < 250e6
