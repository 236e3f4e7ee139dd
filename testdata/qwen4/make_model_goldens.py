# SPDX-License-Identifier: Apache-2.0
"""Writes models/*: qwen4_exp checkpoints of some kilobytes, and model_goldens/model.safetensors: token ids and the logits
that the reference library computes for them in float32, of some cases what its steps give, too. Needs torch and transformers
(requirements-models.txt).

Usage: make_model_goldens.py [OUTPUT FOLDER]
"""
import fnmatch
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
import qwen4_layout as layout  # noqa: E402

SEED = 20261130
EOS, PAD = 5, 7
# Every mechanism, and widths that differ wherever a mix-up could hide. 12 tokens exceed the budget of the indexer.
WHOLE = {
    **layout.TINY, "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 4, "full_attention_interval": 2, "head_dim": 16,
    "rope_parameters": {**layout.TINY["rope_parameters"], "partial_rotary_factor": 0.5}, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 6, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20, "hc_lowrank": 6, "indexer_head_dim": 8,
    "indexer_budget": 8, "ple_layer_ids": [1, 3], "ple_embed_dim": 24, "heads_per_ngram": 2, "ngram_vocab_size_base": 31,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 3, "eos_token_id": EOS, "max_position_embeddings": 512,
}
# One layer each, so that a difference is of that kind of layer.
ALONE = {"num_hidden_layers": 1, "ple_layer_ids": []}
CHECKPOINTS = {
    "whole": WHOLE,
    "linear": {**WHOLE, **ALONE, "full_attention_interval": 2},
    "sparse": {**WHOLE, **ALONE, "layer_types": ["full_attention"]},
}
# Case -> checkpoint, members of config.json that are changed (None: absent).
CASES = {
    "whole": ("whole", {}),
    "whole_two_ends": ("whole", {"eos_token_id": [EOS, PAD]}),
    "whole_pad": ("whole", {"pad_token_id": PAD}),
    "linear": ("linear", {}),
    "linear_silu": ("linear", {"output_gate_type": None}),
    "sparse": ("sparse", {}),
    "sparse_probabilities": ("sparse", {"norm_topk_prob": False}),
}

# Case -> steps by the names that quern's report has for them, "*" for every layer that has the step.
STEPS = {
    "whole": ("layers.*.ple.ngram_embedding", "layers.0.ple.norm_conv", "layers.0.ple.conv1d"),
    "linear": ("embed_tokens", "layers.0.attn_hyper_connection.scatter", "layers.0.mlp_hyper_connection.hc_norm"),
}


def ids_of(tokens):
    ids = np.random.default_rng(SEED).integers(8, WHOLE["vocab_size"], tokens)
    ids[[3, 4]] = 0, WHOLE["vocab_size"] - 1
    ids[[6, 20, 21, 33]] = EOS
    ids[[9, 26]] = PAD
    ids[12:18] = ids[12]
    return ids


def watch(model, seen):
    """Hooks that put what steps give into `seen`, [tokens, width] each."""
    def out(module, name):
        module.register_forward_hook(lambda m, i, o: seen.update({name: o[0].numpy().copy()}))

    def first_in(module, name):
        module.register_forward_pre_hook(lambda m, i: seen.update({name: i[0][0].numpy().copy()}))

    def convolved(ple, name):
        convolution = ple._short_conv

        def kept(x, cache):
            y = convolution(x, cache)
            seen[name] = y[0].numpy().copy()
            return y

        ple._short_conv = kept

    layers = model.model.layers
    first_in(layers[0], "embed_tokens")
    for i, layer in enumerate(layers):
        if layer.ple is not None:
            out(layer.ple.ple_embedding, f"layers.{i}.ple.ngram_embedding")
            out(layer.ple.norm_conv, f"layers.{i}.ple.norm_conv")
            convolved(layer.ple, f"layers.{i}.ple.conv1d")
        first_in(layer.mlp_hyper_connection, f"layers.{i}.attn_hyper_connection.scatter")
        out(layer.mlp_hyper_connection.hc_norm, f"layers.{i}.mlp_hyper_connection.hc_norm")


def results_of(folder, changes, ids, steps=()):
    """The logits, and {step: what it gives} of the steps that match."""
    config = {k: v for k, v in {**json.loads((folder / "config.json").read_text()), **changes}.items() if v is not None}
    with tempfile.TemporaryDirectory() as changed:
        changed = pathlib.Path(changed)
        (changed / "config.json").write_text(json.dumps(config))
        (changed / "model.safetensors").symlink_to(folder / "model.safetensors")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            changed, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    seen = {}
    watch(model, seen)
    with torch.no_grad():
        logits = model(torch.tensor(ids[None]), use_cache=False).logits[0].numpy()
    return logits, {name: x for name, x in seen.items() if any(fnmatch.fnmatch(name, pattern) for pattern in steps)}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, config in CHECKPOINTS.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(config, file)
            file.flush()
            subprocess.run([sys.executable, TOOLS / "make_qwen4_checkpoint.py", out / "models" / name, "--config", file.name,
                            "--text-only"], check=True)
        (out / "models" / name / "generation_config.json").unlink()
    ids = ids_of(40)
    made = {"ids": ids}
    for case, (checkpoint, changes) in CASES.items():
        made[case], steps = results_of(out / "models" / checkpoint, changes, ids, STEPS.get(case, ()))
        made |= {f"{case}/{name}": x for name, x in steps.items()}
        print(f"{case:24} largest logit {np.abs(made[case]).max():.2f}")
    (out / "model_goldens").mkdir(exist_ok=True)
    save_file(made, out / "model_goldens" / "model.safetensors",
              {"generator": f"transformers {transformers.__version__}, torch {torch.__version__}, seed {SEED}"})


if __name__ == "__main__":
    main()
