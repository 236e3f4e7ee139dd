# SPDX-License-Identifier: Apache-2.0
"""The whole qwen4_exp model against stored results of the reference library (testdata/qwen4/make_tiny_model.py says which);
test_qwen4_parity.py and test_qwen4_model.py compare with it live."""
import hashlib

import numpy as np
import pytest
from conftest import ROOT

import quern

# Of the largest element, as small models in float32 are compared: a chain of 8 layers of float32 sums.
TOLERANCE = 2e-4
IRREGULAR = [1, 2, 3, 5, 8, 13, 21, 17]


@pytest.fixture(scope="module")
def golden(tiny):
    stored = np.load(ROOT / "testdata" / "qwen4" / "tiny_model.npz")
    digest = hashlib.sha256((tiny / "model.safetensors").read_bytes()).hexdigest()
    assert digest == str(stored["checkpoint_sha256"]), "tools/make_qwen4_checkpoint.py makes another checkpoint than it did"
    return stored


@pytest.fixture(scope="module")
def tiny(make_qwen4):
    return make_qwen4()


@pytest.fixture(scope="module")
def models(tiny):
    return {compute: quern.LLM(tiny, threads=2, compute=compute, text=False) for compute in ("fp32", "bf16")}


def in_pieces(model, ids, pieces):
    """The last logits of every call, and what was seen: {step: [array of each call]}."""
    state, at, rows, seen = model.new_state(), 0, [], {}

    def note(step, part, values):
        seen.setdefault(f"{step}/{part}" if part else step, []).append(values)

    for count in pieces:
        rows.append(model.forward(state, ids[at:at + count], observe=note))
        at += count
    assert at == len(ids)
    return np.stack(rows), seen


def assert_near(name, ours, theirs, tolerance=TOLERANCE):
    assert ours.shape == theirs.shape, name
    worst = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert worst <= tolerance, f"{name}: {worst:.2e} of the largest element"


@pytest.mark.parametrize("pieces", [[70], [1] * 70, IRREGULAR], ids=["one call", "tokens", "irregular"])
def test_steps_and_states(golden, models, pieces):
    _, seen = in_pieces(models["fp32"], golden["ids"].tolist(), pieces)
    compared = 0
    for name in golden.files:
        theirs = golden[name]
        if name.endswith("self_attn.indexer"):
            assert np.array_equal(chosen(seen, name, theirs.shape[1], ratio=4), theirs), name
        elif name.endswith(("mlp.route/experts", "ple.ngram_ids")):
            assert np.array_equal(np.concatenate(seen[name]), theirs), name
        elif name.startswith("layers.") and "/" in name:  # what is remembered at the end
            assert_near(name, seen[name][-1], theirs)
        elif name.startswith("layers."):
            assert_near(name, np.concatenate(seen[name])[-len(theirs):], theirs)
        else:
            continue
        compared += 1
    assert compared == 8 + 8 + 2 + 2 + 4


def chosen(seen, step, tokens, ratio):
    """[tokens, tokens] bool: what each query sees."""
    out, t = np.zeros((tokens, tokens), bool), 0
    for blocks, counts in zip(seen[step + "/blocks"], seen[step + "/counts"]):
        for row, count in zip(blocks, counts[:, 0]):
            complete = (t + 1) // ratio
            for b in range(complete) if count < 0 else row[:count]:
                out[t, ratio * b:ratio * b + ratio] = True
            out[t, ratio * complete:t + 1] = True
            t += 1
    assert t == tokens
    return out


def test_logits(golden, models):
    """In bfloat16 as close to float32 as the reference's own: two draws of the same rounding noise."""
    ids, exact = golden["ids"].tolist(), golden["logits"]
    assert_near("logits", models["fp32"].logits(ids), exact)
    ours, theirs = (np.linalg.norm(x - exact) for x in (models["bf16"].logits(ids), golden["bfloat16_logits"]))
    assert 0 < ours <= np.sqrt(2) * theirs


@pytest.mark.parametrize("pieces", [[1] * 70, IRREGULAR], ids=["tokens", "irregular"])
def test_calls_in_pieces_are_one_call(golden, models, pieces):
    ids, ends = golden["ids"].tolist(), np.cumsum(pieces) - 1
    assert_near("float32", in_pieces(models["fp32"], ids, pieces)[0], models["fp32"].logits(ids)[ends], tolerance=1e-5)
    ours, whole = in_pieces(models["bf16"], ids, pieces)[0], models["bf16"].logits(ids)[ends]
    assert np.linalg.norm(ours - whole) <= 2e-2 * np.linalg.norm(whole)


def test_greedy_text(golden, models):
    for prompt, theirs in zip(golden["prompts"].tolist(), golden["greedy"].tolist()):
        found = models["fp32"].generate(prompt, max_tokens=len(theirs), greedy=True, stop_ids=[])
        assert found.token_ids == theirs
