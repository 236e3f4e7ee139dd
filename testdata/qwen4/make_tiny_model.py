# SPDX-License-Identifier: Apache-2.0
"""Writes tiny_model.npz: what the reference library computes with the tiny checkpoint of tools/make_qwen4_checkpoint.py.
float32: choices of experts and blocks, rows of the n-gram tables, the last rows of every layer's output, states, logits, and
greedy text; bfloat16: logits. Needs torch and transformers (requirements-models.txt).

Usage: make_tiny_model.py [OUTPUT]
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))

import torch  # noqa: E402
import transformers  # noqa: E402
from test_qwen4_model import SEED, Reference, first_of_equals, some_ids  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402

CHECKPOINT_SEED = 1
TOKENS = 70  # more than the budget of the indexer, and than a chunk of the delta rule
PROMPTS, GREEDY = 2, 32
ROWS = 2  # of a layer's output


def watch(model, kept: dict) -> None:
    text = model.model
    for i, layer in enumerate(text.layers):
        place = f"layers.{i}."

        def keep(name, of, place=place):
            return lambda module, inputs, output: kept.__setitem__(place + name, of(inputs, output).numpy().copy())

        layer.register_forward_hook(keep("mlp_hyper_connection.scatter", lambda i, o: o[0, -ROWS:]))
        layer.mlp.gate.register_forward_hook(keep("mlp.route/experts", lambda i, o: o[2].to(torch.int16)))
        if layer.ple is not None:
            embedding = layer.ple.ple_embedding.ngram_embedding
            embedding.register_forward_hook(keep("ple.ngram_ids", lambda i, o: i[0][0].to(torch.int16)))
        if layer.layer_type != "linear_attention":
            layer.self_attn.indexer.register_forward_hook(keep("self_attn.indexer", seen_by_queries))


def seen_by_queries(inputs, mask):
    return (mask[0, 0] == 0) & torch.ones(mask.shape[-2:], dtype=bool).tril()


def main() -> None:
    torch.topk = first_of_equals
    torch.Tensor.topk = first_of_equals
    ids = some_ids(TOKENS)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        folder = pathlib.Path(folder)
        subprocess.run([sys.executable, ROOT / "tools" / "make_qwen4_checkpoint.py", folder, "--preset", "tiny",
                        "--seed", str(CHECKPOINT_SEED)], check=True)
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        exact, rounded = Reference(folder), Reference(folder, "bfloat16")
        prompts = [some_ids(12, seed) for seed in range(PROMPTS)]
        kept = {"prompts": np.array(prompts), "greedy": np.array(exact.generate(prompts, GREEDY)),
                "bfloat16_logits": rounded.logits(ids)}
        watch(exact.model, kept)
        cache = DynamicCache(config=exact.model.config)
        kept["logits"] = exact.model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0].numpy()
        for i in (0, 5):  # the states of two layers, the second of them with n-grams
            kept[f"layers.{i}.linear_attn.delta_rule/state"] = cache.layers[i].recurrent_states[0].flatten(0, 2).numpy()
        kept["layers.5.ple.conv1d/state"] = cache.layers[5].conv_states[1][0].T.numpy()
        kept["layers.7.self_attn.attention/keys.1"] = cache.layers[7].keys[0, 1].numpy()
    made = {"generator": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}, seed {SEED}, "
                                  f"checkpoint seed {CHECKPOINT_SEED}"),
            "checkpoint_sha256": np.array(digest), "ids": np.array(ids)}
    np.savez_compressed(sys.argv[1] if len(sys.argv) > 1 else HERE / "tiny_model.npz", **made, **kept)


if __name__ == "__main__":
    main()
