# SPDX-License-Identifier: Apache-2.0
"""The accuracy gate: teacher-forced logits and the perplexity of `quern perplexity` against ONNX Runtime, live, on the
same ids in the same windows.

With FP32 weights logits agree within 2e-5 of max|logit| (docs/numerics.md). A log-softmax takes the difference of one
logit and a weighted mean of all, so a token's negative log-likelihood, and the mean of all of them, within twice that.

With int8 activations two engines draw other rounding noise. How much of it a graph has shows between ONNX Runtime at
accuracy level 4 and at level 0, where activations are not rounded; two draws differ by sqrt(2) of one. That bounds the
root mean square over the logits of a window, and over the likelihoods of tokens, and with the largest draw any one logit; the
best token must be ONNX Runtime's where it leads by more than twice that. The mean of n likelihoods then differs by
the noise of one over sqrt(n): the deviations of window means show that tokens add up as if they were independent. Four
standard deviations are allowed, and for the demo model that must stay below 1e-3, or the gate would say nothing: the
relative difference of two perplexities is that of their means.
"""
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import ROOT, copy_of_demo, empty_past, past_extents

import quern

onnxruntime.set_default_logger_severity(4)

DEMO = ROOT / "models" / "demo"
TEXT = DEMO / "heldout.txt"
BINARY = ROOT / os.environ.get("QUERN_BUILD", "build/release") / "quern"
WINDOW = 512
NOISE_WINDOWS = 10  # enough to know the size of the noise, and level 0 is slow
FLOAT = 2e-5        # of max|logit|


def measured(folder, text=TEXT, *options):
    done = subprocess.run([BINARY, "perplexity", folder, "-f", text, *map(str, options), "--json"], check=True, capture_output=True)
    return json.loads(done.stdout)


class Ort:
    """Teacher-forced logits of a window of ids, by ONNX Runtime."""

    def __init__(self, model, level=None):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        path = model
        if level is not None:
            graph = onnx.load(model, load_external_data=False)
            for node in graph.graph.node:
                for attribute in node.attribute:
                    if attribute.name == "accuracy_level":
                        attribute.i = level
            path = model.with_name(f"level{level}.onnx")
            onnx.save(graph, path)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.past = empty_past(past_extents(self.session, model))
        if level is not None:
            path.unlink()

    def __call__(self, ids):
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64), **self.past}
        return self.session.run(["logits"], feeds)[0][0]


def losses(logits, ids):
    """-log softmax of each id but the first, by the row before it."""
    x = logits[:-1].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), ids[1:]]


def rms(values):
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def check_accuracy(folder, text, resolution):
    """quern against ONNX Runtime over a text, for a graph with int8 activations."""
    model = folder / "model.onnx"
    ours, theirs, unrounded = quern.LLM(folder, threads=2), Ort(model), Ort(model, level=0)
    ids = ours.tokenize(text.read_text())
    windows = [ids[i:i + WINDOW] for i in range(0, len(ids), WINDOW)]
    rows = [(ours.logits(window), theirs(window)) for window in windows]

    logit_noise, largest_noise, loss_noise = [], [], []
    for window, (_, b) in list(zip(windows, rows))[:NOISE_WINDOWS]:
        exact = unrounded(window)
        logit_noise.append(rms(b - exact))
        largest_noise.append(np.abs(b - exact).max())
        loss_noise.append(losses(b, window) - losses(exact, window))
    logit_noise, loss_noise = max(logit_noise), rms(np.concatenate(loss_noise))

    bound = np.sqrt(2) * max(largest_noise)  # what a logit may be off
    free_choices = 0
    for a, b in rows:
        assert rms(a - b) <= np.sqrt(2) * logit_noise
        error = np.abs(a - b).max()
        assert error <= bound, f"a logit is off by {error:.3f}, allowed {bound:.3f}"
        second, best = np.sort(b, axis=1)[:, -2:].T
        decided = best - second > 2 * bound
        assert np.array_equal(a.argmax(axis=1)[decided], b.argmax(axis=1)[decided])
        free_choices += int((~decided).sum())
    assert free_choices < len(ids) * 2 / 3, "the margin rule must decide many tokens, or it proves nothing"

    our_losses = np.concatenate([losses(a, window) for window, (a, _) in zip(windows, rows)])
    their_losses = np.concatenate([losses(b, window) for window, (_, b) in zip(windows, rows)])
    assert rms(our_losses - their_losses) <= np.sqrt(2) * loss_noise
    allowed = 4 * np.sqrt(2) * loss_noise / np.sqrt(len(their_losses))
    assert allowed < resolution, f"the gate could not tell a relative difference of {allowed:.1e}"
    out = measured(folder, text)
    assert out["counts"]["tokens"] == len(ids) and out["counts"]["scored_tokens"] == len(their_losses)
    difference = out["mean_negative_log_likelihood"] - their_losses.mean()
    assert abs(difference) <= allowed, f"mean {their_losses.mean():.6f}: differs by {difference:.1e}, allowed {allowed:.1e}"


def test_demo_model_predicts_a_text_like_onnx_runtime(tmp_path):
    check_accuracy(copy_of_demo(tmp_path).parent, TEXT, resolution=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--asymmetric",)])
def test_exported_model_predicts_a_text_like_onnx_runtime(tmp_path, options):
    pytest.importorskip("onnxruntime_genai")
    for command in (["make_qwen3_hf.py", tmp_path / "hf"], ["export_qwen3.py", tmp_path / "hf", tmp_path / "onnx", *options]):
        subprocess.run([sys.executable, ROOT / "tools" / command[0], *command[1:]], check=True, stdout=subprocess.DEVNULL)
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:16000])
    check_accuracy(tmp_path / "onnx", text, resolution=5e-3)


# What a cache of smaller numbers may cost, as a part of the perplexity with an FP32 cache. Rounded keys and values are one
# more draw of noise beside that of int8 activations, and what is seen has that size: 8e-5 for bf16, 1.4e-4 for int8.
@pytest.mark.parametrize("kv, allowed", [("fp16", 1e-3), ("bf16", 1e-3), ("int8", 5e-3)])
def test_smaller_caches_keep_the_perplexity(kv, allowed):
    exact, smaller = (measured(DEMO, TEXT, "--ctx", 2048, "--kv", kind)["perplexity"] for kind in ("fp32", kv))
    assert smaller != exact, "the option must reach the cache"
    assert smaller == pytest.approx(exact, rel=allowed)


# The rule of windows, with FP32 weights, where every token counts: a window more or less, or a token scored twice, is seen.

@pytest.fixture(scope="module")
def fp32(make_model):
    model = make_model("--size", "block-fp32")
    return model.parent, Ort(model)


def scored_by_windows(forward, ids, window, stride):
    """(sum of losses, how many, largest |logit|) by the rule of engine/perplexity.h, one call of `forward` a window."""
    total, count, largest, end = 0.0, 0, 0.0, 0
    for begin in range(0, len(ids), stride):
        part = ids[begin:begin + window]
        logits = forward(part)
        scored = losses(logits, part)[max(end - begin - 1, 0):]
        total, count, largest = total + scored.sum(), count + len(scored), max(largest, float(np.abs(logits).max()))
        end = begin + len(part)
        if end == len(ids):
            break
    return total, count, largest


@pytest.mark.parametrize("window, stride", [(512, 512), (64, 64), (64, 63), (64, 20), (9, 1), (2, 1), (2, 2), (2048, 2048)])
def test_windows_score_what_the_rule_says(fp32, tmp_path, window, stride):
    folder, forward = fp32
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:700])
    ids = quern.LLM(folder).tokenize(text.read_text())
    total, count, largest = scored_by_windows(forward, ids, window, stride)
    out = measured(folder, text, "--ctx", window, "--stride", stride)
    assert out["counts"] | {"windows": 0} == {"tokens": len(ids), "scored_tokens": count, "windows": 0, "window_tokens": window,
                                              "stride_tokens": stride}
    assert abs(out["mean_negative_log_likelihood"] - total / count) <= 2 * FLOAT * largest
    assert out["perplexity"] == pytest.approx(np.exp(out["mean_negative_log_likelihood"]), rel=1e-12)
