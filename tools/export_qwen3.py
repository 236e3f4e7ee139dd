#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports a local Hugging Face Qwen3 folder to an INT4 ONNX folder with the ONNX Runtime GenAI model builder, offline.

Owns the call of the builder and the checks for its two silent mistakes: a rotary base it did not find, and a wrong
layer taken for the head. The graph is what the builder wrote, unchanged; the tokenizer files are those of the source.
Needs requirements-models.txt.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if config.get("model_type") != "qwen3":
        raise SystemExit(f"{folder}/config.json: model_type is {config.get('model_type')!r}, not 'qwen3'")
    return config


def rope_theta(config):
    """The rotary base, in the place of transformers 5 or in the older one."""
    theta = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise SystemExit("config.json: no rope_theta")
    return float(theta)


def check_widths(config):
    """The builder takes every layer with as many outputs as the vocabulary for the head."""
    d = config["head_dim"]
    widths = {"intermediate_size": config["intermediate_size"], "query width": config["num_attention_heads"] * d,
              "key width": config["num_key_value_heads"] * d, "hidden_size": config["hidden_size"]}
    for name, width in widths.items():
        if width == config["vocab_size"]:
            raise SystemExit(f"config.json: vocab_size and {name} are both {width}; the builder would export a wrong head")


def check_rope(folder, model, theta):
    """Without the value the builder falls back to 10,000; the last sine of row 1 tells (1.2409e-06 for 1e6, D=128)."""
    tensor = next((t for t in model.graph.initializer if t.name == "sin_cache"), None)
    if tensor is None:
        raise SystemExit(f"{folder}: no sin_cache, so rotary embedding is not fused into attention")
    place = {entry.key: entry.value for entry in tensor.external_data}
    sine = np.memmap(os.path.join(folder, place["location"]), np.float32, "r", int(place.get("offset", 0)), tuple(tensor.dims))
    pairs = sine.shape[1]
    found, expected = float(sine[1, pairs - 1]), math.sin(theta ** (-(pairs - 1) / pairs))
    # The angle and its sine are float32: a few units in the last place.
    if not math.isclose(found, expected, rel_tol=1e-5):
        raise SystemExit(f"{folder}: sin_cache[1][{pairs - 1}] is {found:.5g}, theta {theta:g} needs {expected:.5g}")
    print(f"theta {theta:g}, {sine.shape[0]} positions, sin_cache[1][{pairs - 1}] = {found:.5g}")


def check_head(folder, model):
    """The logits must come from the norm after the last layer."""
    head = [n for n in model.graph.node if "logits" in n.output]
    norm = [n for n in model.graph.node if n.name.endswith("final_norm_layernorm/SkipLayerNorm")]
    if len(head) != 1 or len(norm) != 1 or head[0].input[0] != norm[0].output[0]:
        raise SystemExit(f"{folder}: the head does not read the final norm")


def export(source, out, block_size=32, separate=False, asymmetric=False, options=()):
    """Runs the builder in a process of its own; it reads nothing from the network."""
    config = read_config(source)
    check_widths(config)
    os.makedirs(out, exist_ok=True)
    # Tied weights would be exported as one shared INT4 table; the published form keeps the embedding in float32.
    extra = [f"block_size={block_size}", "accuracy_level=4", f"is_symmetric={str(not asymmetric).lower()}",
             f"disable_qkv_fusion={str(separate).lower()}", "shared_embeddings=false", "hf_token=false", *options]
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    with tempfile.TemporaryDirectory() as work:
        built = os.path.join(work, "model")
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", built, "-p", "int4",
                   "-e", "cpu", "-c", os.path.join(work, "cache"), "--extra_options", *extra]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"the builder failed:\n{done.stdout}")
        model = onnx.load(os.path.join(built, "model.onnx"), load_external_data=False)
        check_rope(built, model, rope_theta(config))
        check_head(built, model)
        for name in ("model.onnx", "model.onnx.data", "genai_config.json"):
            shutil.move(os.path.join(built, name), os.path.join(out, name))
    # The builder rewrites these and moves the chat template into a file of its own.
    for name in TOKENIZER_FILES:
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    print(f"{out}: {len(model.graph.node)} nodes, {len(model.graph.initializer)} initializers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="HF_FOLDER")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--block-size", type=int, choices=[16, 32, 64, 128, 256], default=32)
    parser.add_argument("--separate", action="store_true", help="three projections instead of one packed QKV")
    parser.add_argument("--asymmetric", action="store_true", help="weights with zero points")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="passed on to the builder")
    args = parser.parse_args()
    export(args.source, args.out, args.block_size, args.separate, args.asymmetric, args.option)


if __name__ == "__main__":
    main()
