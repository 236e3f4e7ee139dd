# SPDX-License-Identifier: Apache-2.0
"""What the binary does by itself under limits: threads under a quota of processor time, memory before it is taken, contexts.

Groups with limits are made for the tests, for which root and control groups are needed; where there are none, the tests that
need them are skipped with the reason. The estimate is held against what was resident, which needs neither.
"""
import math
import re

import pytest
from made_models import make_model


# Threads -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("processors", [0.5, 1, 1.5])
def test_threads_follow_the_quota(quern, block, processors):
    cores = quern.json("inspect", "cpu")["fastest_cores"]
    limited = quern.within(processors=processors)
    machine = limited.json("inspect", "cpu")
    threads = min(cores, math.ceil(processors))
    assert (machine["quota"], machine["default_threads"]) == (processors, threads)
    assert re.search(r"cpu\.(max|cfs_quota_us)$", machine["quota_file"])
    if processors < cores:
        assert f"{machine['quota_file']} grants the time of {processors} processor" in machine["threads_reason"]
    assert limited.json("run", block, "-p", "a", "-n", "2", "--greedy")["threads"] == threads
    assert limited.json("run", block, "-p", "a", "-n", "2", "--greedy", "-t", "3")["threads"] == 3  # who asks gets it


# Memory --------------------------------------------------------------------------------------------------------------

MB = 1_000_000
TOKEN_BYTES = 2 * 2 * 2 * 128 * 2  # of the block models: keys and values, layers, heads, elements, float16


LIMIT = 28 * MB


@pytest.mark.memory
def test_context_is_cut_to_what_memory_holds_and_holds(quern, long_context):
    limited = quern.within(memory_bytes=LIMIT)
    seen = limited.json("inspect", long_context)
    context, estimate = seen["model"]["context_tokens"], seen["memory"]["estimate"]
    assert seen["model"]["model_context_tokens"] == 40960 and 2048 <= context < LIMIT / TOKEN_BYTES
    assert re.search(r"memory\.(max|limit_in_bytes)", estimate["available_bound"])
    # Most of it is used without being killed. `run` reads a tokenizer besides.
    prompt = ",".join(str(i % 500) for i in range(context - 1024))
    assert len(limited.json("run", long_context, "--prompt-ids", prompt, "-n", "8", "--greedy")["token_ids"]) == 8
    assert "of the model's 40960" in limited.refused(5, "run", long_context, "--prompt-ids", prompt + ",1" * 1025)


@pytest.mark.memory
def test_what_memory_cannot_hold_is_refused_with_figures_and_advice(quern, long_context):
    limited = quern.within(memory_bytes=LIMIT)
    text = limited.refused(6, "run", long_context, "-p", "a", "--ctx", "40960")
    assert f"keys and values of 40960 tokens {40960 * TOKEN_BYTES / MB:.0f}" in text
    fitting, = re.findall(r"what fits is a context of (\d+) tokens \(ctx\), or ", text)
    other, = re.findall(r"or a context of (\d+) tokens \(ctx\) with keys and values in int8 \(kv\)", text)
    assert 2048 < int(fitting) < int(other) < 40960
    # A step less: what is available moves by some pages from one process to the next.
    assert limited("run", long_context, "-p", "a", "-n", "1", "--ctx", int(fitting) - 256).returncode == 0
    assert limited("run", long_context, "-p", "a", "-n", "1", "--ctx", int(other) - 256, "--kv", "int8").returncode == 0


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The matrices of 0.6b in four layers."""
    return make_model(tmp_path_factory.mktemp("model") / "wide", "--size", "0.6b", "--layers", "4", "--vocab", "32768")


@pytest.mark.memory
@pytest.mark.parametrize("model, context", [("demo", 1024), ("wide", 600), ("wide", 2048)])
def test_estimate_is_what_becomes_resident(quern, request, model, context):
    folder = request.getfixturevalue(model)
    prompt = ",".join(str(i % 500) for i in range(context - 4))
    memory = quern.json("run", folder, "--prompt-ids", prompt, "-n", "4", "--greedy", "--ctx", context)["memory"]
    estimate = memory["estimate"]
    parts = [estimate[f"{part}_bytes"] for part in ("program", "tokenizer", "weight", "cache", "workspace")]
    assert estimate["total_bytes"] == sum(parts)
    assert 0.9 <= estimate["total_bytes"] / memory["peak_resident_bytes"] <= 1.15, memory


# Contexts ------------------------------------------------------------------------------------------------------------

def test_context_is_what_was_asked_for(quern, block):
    assert quern.json("inspect", block, "--ctx", "100")["model"]["context_tokens"] == 100
    done = quern.json("run", block, "--prompt-ids", "1,2,3,4", "-n", "50", "--greedy", "--ctx", "16")
    assert done["finish_reason"] == "length" and len(done["token_ids"]) == 13  # the last one needs no place any more
    whole = quern.json("run", block, "--prompt-ids", "1,2,3,4", "-n", "50", "--greedy")
    assert whole["token_ids"][:13] == done["token_ids"]


def test_prompt_longer_than_the_context_that_was_asked_for(quern, block):
    text = quern.refused(5, "run", block, "--prompt-ids", ",".join("7" * 17), "--ctx", "16")
    assert "has 17 tokens" in text and "opened for 16 of the model's 2048" in text


@pytest.mark.parametrize("command", [["run", "-p", "a"], ["inspect"], ["bench"]])
def test_context_beyond_the_models_names_both_numbers(quern, block, command):
    text = quern.refused(5, command[0], block, *command[1:], "--ctx", "2049")
    assert "2049" in text and "2048" in text


def test_bench_keeps_to_the_context(quern, block):
    text = quern.refused(5, "bench", block, "-p", "64", "-n", "8", "-d", "60", "--ctx", "64")
    assert "depth" in text and "68" in text and "64" in text
