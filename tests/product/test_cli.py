# SPDX-License-Identifier: Apache-2.0
"""The binary from outside: what it prints where, in which shape, and with which exit code.

What the tokens should be is the oracle's matter; here they only have to be the same where the contract says so.
"""

import json
import os
import pty
import signal
import subprocess
import threading

import pytest

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
    if out["finish_reason"] == "length":
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


def test_a_pass_over_the_graph_can_be_left_out(quern, block):
    joint = quern.json("inspect", block)
    separate = quern.json("inspect", block, "--no-fuse", "shared_rows")
    # Gate and up of both layers read the same rows.
    fused = [node for node in joint["nodes"] if node["owner"] == "fused"]
    assert [node["name"] for node in fused] == [f"/model/layers.{i}/mlp/up_proj/MatMul_Q4" for i in (0, 1)]
    for i, node in enumerate(fused):
        assert f"/model/layers.{i}/mlp/gate_proj/MatMul_Q4" in node["reason"] and node["variant"] == ""
    assert separate["counts"]["fused"] == 0
    assert separate["counts"]["kernel"] == joint["counts"]["kernel"] + 2
    assert [node["name"] for node in separate["nodes"]] == [node["name"] for node in joint["nodes"]]
    texts = [quern.json("run", block, "-p", "hello", *GREEDY, *option)["token_ids"] for option in ([], ["--no-fuse", "shared_rows"])]
    assert texts[0] == texts[1]
    rows = quern("bench", block, "-p", "0", "-n", "1", "-r", "1", "--no-fuse=shared_rows", "--no-fuse", "shared_rows", "--output", "csv")
    assert rows.returncode == 0, rows.stderr.decode()


@pytest.mark.parametrize("command", [["run", "-p", "a"], ["inspect"], ["bench"]])
@pytest.mark.parametrize("name", ["shared_row", ""])
def test_a_pass_that_does_not_exist_is_refused_with_those_that_do(quern, block, command, name):
    text = quern.refused(5, *command, block, f"--no-fuse={name}")
    assert f"'{name}'" in text and "shared_rows" in text


def test_inspect_needs_no_tokenizer(quern, broken):
    (broken.folder / "tokenizer.json").unlink()
    assert quern.json("inspect", broken.folder)["counts"]["nodes"] == 51


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
    kernels = quern.json("inspect", "kernels")["kernels"]
    for room in {row["room"] for row in kernels}:
        assert [row for row in kernels if row["room"] == room][-1]["isa"] == "scalar"
    assert quern.json("inspect", "cpu")["default_threads"] >= 1
    for what in ("ops", "kernels", "cpu"):
        assert quern("inspect", what).returncode == 0


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


# Usage ---------------------------------------------------------------------------------------------------------------

def test_version_and_help_succeed(quern):
    assert quern("--version").stdout.startswith(b"quern ")
    for command in ([], ["run"], ["inspect"], ["bench"], ["tokenize"], ["detokenize"]):
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
    # Flags of later versions are refused, not ignored.
    ["run", "{model}", "-p", "a", "--chat"], ["run", "{model}", "-p", "a", "--min-p", "0.1"],
    ["run", "{model}", "-p", "a", "--stop", "x"], ["run", "{model}", "-p", "a", "--kv", "fp16"],
    ["run", "{model}", "-p", "a", "--ctx", "100"], ["run", "{model}", "-p", "a", "--device", "cuda"],
])
def test_wrong_usage(quern, block, args):
    done = quern(*[str(block) if a == "{model}" else a for a in args])
    assert done.returncode == 2, done.stderr.decode()
    assert done.stdout == b"" and done.stderr


def test_unknown_command_is_named(quern):
    assert b"'frobnicate'" in quern("frobnicate").stderr


@pytest.mark.parametrize("option, word", [("--top-p", "1e-46"), ("--temperature", "1e308"), ("--seed", "-1"),
                                          ("--max-tokens", "-1"), ("--threads", "99999999999")])
def test_refused_numbers_are_shown_as_written(quern, block, option, word):
    done = quern("run", block, "-p", "a", f"{option}={word}")
    assert done.returncode == 2
    message = done.stderr.decode().splitlines()[0]
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


# Models that are none, or not quern's --------------------------------------------------------------------------------

COMMANDS = [("run", "-p", "a"), ("inspect",), ("bench",)]


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


@pytest.mark.parametrize("model_type", ["qwen3", "qwen4_exp", "qwen4_exp_text"])
def test_checkpoints_are_recognised(quern, tmp_path, model_type):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    text = quern.refused(4, "inspect", tmp_path)
    assert model_type in text
    assert "QUERN_MODEL_LINES" not in text  # this binary has the line


def test_binary_without_lines_names_the_option(block, tmp_path):
    build = os.environ.get("QUERN_BUILD_WITHOUT_LINES")
    if build is None:
        pytest.skip("QUERN_BUILD_WITHOUT_LINES names no build folder")
    from conftest import Quern, ROOT
    bare = Quern(ROOT / build / "quern")
    assert "QUERN_MODEL_LINES" in bare.refused(4, "run", block, "-p", "a")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen4_exp", "quantization_config": {}}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    text = bare.refused(4, "inspect", tmp_path)
    assert "qwen4_exp" in text and "QUERN_MODEL_LINES" in text


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
    assert [(r["case"], r["depth"]) for r in rows] == [("prefill", 8), ("prefill", 16), ("decode", 0), ("decode", 32)]
    assert [len(r["samples"]) for r in rows] == [2, 2, 8, 8]
    assert all(r["threads"] == 1 and r["quern_ms"] > 0 for r in rows)
    for form in ("table", "csv", "jsonl"):
        assert quern("bench", block, "-p", "4", "-n", "2", "-r", "1", "--output", form).returncode == 0
