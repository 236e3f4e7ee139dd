# SPDX-License-Identifier: Apache-2.0
"""Greedy text of the demo model: 64 tokens for 20 prompts, the ids of ONNX Runtime by the margin rule.

The margin rule: where both engines have seen the same tokens, quern's choice must be ONNX Runtime's whenever the lead of
the best token over the second exceeds twice the measured error of that row of logits; a closer call may go to any
candidate within that bound. The prefix is ONNX Runtime's, so one close call does not end the comparison.
"""
import numpy as np
import onnxruntime
import pytest
from conftest import ROOT, empty_past, past_extents

import quern

DEMO = ROOT / "models" / "demo"
TOKENS = 64
PROMPTS = [
    "In the beginning", "And God said", "The LORD is my", "Blessed are the", "And it came to pass", "Now these are the names",
    "For God so loved", "And Moses said unto", "The king of", "Then Jesus answered", "Behold, I", "Thou shalt not",
    "And David said", "The sons of", "Hear, O Israel", "And there was", "Wherefore", "The word of the LORD came unto",
    "<|im_start|>user\nGenesis 1:1<|im_end|>\n<|im_start|>assistant\n", "1",
]


@pytest.fixture(scope="module")
def engines():
    return (quern.LLM(str(DEMO), threads=2),
            onnxruntime.InferenceSession(str(DEMO / "model.onnx"), providers=["CPUExecutionProvider"]))


def ort_greedy(session, ids, count):
    """The chosen ids and the row of logits before each choice."""
    names = [o.name for o in session.get_outputs()]
    past = empty_past(past_extents(session, DEMO / "model.onnx"))
    chosen, rows, new, total = [], [], list(ids), 0
    for _ in range(count):
        total += len(new)
        out = dict(zip(names, session.run(None, {"input_ids": np.array([new]), "attention_mask": np.ones((1, total), np.int64), **past})))
        past = {n: out[n.replace("past_key_values", "present")] for n in past}
        rows.append(out["logits"][0, -1])
        new = [int(rows[-1].argmax())]
        chosen += new
    return chosen, np.array(rows)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_ids_by_the_margin_rule(engines, prompt):
    ours, theirs = engines
    ids = ours.tokenize(prompt)
    chosen, their_rows = ort_greedy(theirs, ids, TOKENS)
    our_rows = ours.logits(ids + chosen[:-1])[len(ids) - 1:]
    assert our_rows.shape == their_rows.shape
    free_choices = 0
    for step in range(TOKENS):
        error = np.abs(our_rows[step] - their_rows[step]).max()
        second, best = np.sort(their_rows[step])[-2:]
        choice = int(our_rows[step].argmax())
        if best - second > 2 * error:
            assert choice == chosen[step], f"token {step}: {choice}, expected {chosen[step]} (lead {best - second:.3f}, error {error:.3f})"
        else:
            free_choices += 1
            assert best - their_rows[step][choice] <= 2 * error
    assert free_choices < TOKENS // 4, "the rule must decide most tokens, or it proves nothing"


def test_generate_is_the_argmax_of_the_teacher_forced_logits(engines):
    ours, _ = engines
    ids = ours.tokenize(PROMPTS[0])
    generated = ours.generate(ids, max_tokens=TOKENS, greedy=True, stop_ids=[]).token_ids
    rows = ours.logits(ids + generated[:-1])[len(ids) - 1:]
    assert generated == rows.argmax(axis=1).tolist()
