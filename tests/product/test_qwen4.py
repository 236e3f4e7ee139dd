# SPDX-License-Identifier: Apache-2.0
"""Folders of qwen4_exp through the built binary: what is recognised, what is refused and how."""
import json
import re
import shutil
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from made_models import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from qwen_tokenizer import QWEN3_ADDED, byte_alphabet, systematic_merges, write_generated_tokenizer, write_tokenizer  # noqa: E402


def published_config():
    return json.loads((ROOT / "testdata" / "qwen4" / "config.json").read_text())


def make(folder, *arguments):
    subprocess.run([sys.executable, ROOT / "tools" / "make_qwen4_checkpoint.py", folder, *arguments], check=True,
                   stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make(tmp_path_factory.mktemp("qwen4") / "tiny", "--preset", "tiny", "--files", "3")


def text(field, value):
    return lambda config: config["text_config"].update({field: value})


# Relatives of the published model, and the field at which a binary with the line refuses them.
SIBLINGS = [
    (lambda config: config.update(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
     "config.json: quantization_config:"),
    (lambda config: config.update(quantization_config={"quant_method": "awq"}), "quantization_config.quant_method"),
    (lambda config: config.update(tie_word_embeddings=True), "config.json: tie_word_embeddings"),
    (text("tie_word_embeddings", True), "text_config.tie_word_embeddings"),
    (lambda config: config["text_config"]["rope_parameters"].update(rope_type="yarn", factor=4.0),
     "text_config.rope_parameters.rope_type"),
    (text("ple_embedding_dtype", "nvfp4"), "text_config.ple_embedding_dtype"),
    (text("dtype", "float32"), "text_config.dtype"),
    (lambda config: config.update(model_type="qwen3_8_flash_next", tie_word_embeddings=True), "tie_word_embeddings"),
]


@pytest.mark.parametrize("edit, field", SIBLINGS)
def test_field_that_is_refused_is_named(quern, tmp_path, edit, field):
    config = published_config()
    edit(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    refusal = quern.refused(4, "inspect", tmp_path)
    assert field in refusal and "QUERN_MODEL_LINES" not in refusal


def test_weights_that_are_missing_are_named(quern, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(published_config()))
    assert "model.safetensors" in quern.refused(3, "inspect", tmp_path)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return make(tmp_path_factory.mktemp("qwen4") / "full", "--sparse-full")


def test_inspect_of_the_whole_published_layout(quern, published):
    model = quern.json("inspect", published)["model"]
    assert (model["model_type"], model["layers"], model["vocab"]) == ("qwen4_exp", 48, 248320)
    assert (model["files"], model["text_tensors"]) == ("131", "1294")
    assert (model["draft_tensors"], model["vision_tensors"]) == ("31 passed over", "333 passed over")
    assert (model["text_bytes"], model["checkpoint_bytes"]) == ("353887799320", "359999963128")


@pytest.mark.memory
def test_inspect_of_the_whole_published_layout_reads_headers_only(quern, published):
    assert quern.json("inspect", published)["memory"]["peak_resident_bytes"] < 64 << 20


@pytest.mark.memory
def test_widened_weights_of_the_whole_published_model_are_refused_unread(quern, published):
    limited = quern.within(memory_bytes=1_500_000_000)
    refusal = limited.refused(6, "inspect", published, "--compute", "fp32")
    weights, available = map(int, re.search(r"weights (\d+), .*, and (\d+) MB are available", refusal).groups())
    # Experts, norms and convolutions, a float for a bfloat16.
    assert 480_000 < weights < 490_000 and available <= 1500
    assert limited("inspect", published).returncode == 0


def test_inspect_of_a_made_checkpoint(quern, tiny):
    model = quern.json("inspect", tiny)["model"]
    assert (model["linear_layers"], model["sparse_layers"], model["ngram_layers"]) == ("6", "2", "2")
    assert model["eos_token_ids"] == [5] and model["sampling"]["top_k"] == 20
    assert b"text_tensors" in quern("inspect", tiny).stdout


def rewrite(path, edit):
    """The file with an edited header (its payloads stay as they are), or with edited payload bytes."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, payload = json.loads(content[8:8 + length]), bytearray(content[8 + length:])
    header = edit(header, payload) or header
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + payload)


def test_tensor_that_is_missing_and_one_that_is_foreign(quern, tmp_path):
    folder = make(tmp_path / "m", "--preset", "tiny")

    def rename(header, _):
        old = "model.language_model.layers.4.mlp.shared_expert.up_proj.weight"
        return {("model.language_model.other" if name == old else name): entry for name, entry in header.items()}

    rewrite(folder / "model.safetensors", rename)
    refusal = quern.refused(3, "inspect", folder)
    assert "1 tensor missing: 'model.language_model.layers.4.mlp.shared_expert.up_proj.weight'" in refusal
    assert "1 tensor that the model does not have: 'model.language_model.other'" in refusal


@pytest.mark.parametrize("constant", ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"])
def test_constants_of_the_hash_that_do_not_fit_the_configuration(quern, tmp_path, constant):
    folder = make(tmp_path / "m", "--preset", "tiny")
    name = f"model.language_model.layers.5.ple.ple_embedding.{constant}"

    def corrupt(header, payload):
        payload[header[name]["data_offsets"][1] - 7] ^= 1

    rewrite(folder / "model.safetensors", corrupt)
    refusal = quern.refused(3, "inspect", folder)
    assert name in refusal and "but the configuration gives" in refusal


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    """With a tokenizer of its own; the weights are random, so the text means nothing."""
    return make(tmp_path_factory.mktemp("qwen4") / "speaking", "--preset", "tiny", "--set", "vocab_size=400")


def test_run_generates_text_and_is_repeatable(quern, speaking):
    out = quern.json("run", speaking, "-p", "In the beginning", "-n", "12", "--greedy")
    assert len(out["token_ids"]) == 12 and out["finish_reason"] == "length"
    assert quern.json("run", speaking, "-p", "In the beginning", "-n", "12", "--greedy")["token_ids"] == out["token_ids"]


def test_run_continues_a_saved_timeline(quern, speaking, tmp_path):
    kept = tmp_path / "state"
    whole = quern.json("run", speaking, "-p", "In the beginning", "-n", "9", "--greedy")["token_ids"]
    first = quern.json("run", speaking, "-p", "In the beginning", "-n", "4", "--greedy", "--save-state", kept)
    assert first["token_ids"] == whole[:4]
    rest = quern.json("run", speaking, "--prompt-ids", whole[4], "-n", "4", "--greedy", "--load-state", kept)
    assert rest["token_ids"] == whole[5:]


def test_inspect_lists_every_call_of_a_room(quern, speaking):
    nodes = quern.json("inspect", speaking)["nodes"]
    rooms = {node["op"] for node in nodes}
    assert {"linear", "hyper_mix", "gated_delta_rule", "sparse_attention", "block_index", "moe_matmul", "moe_route",
            "ngram_ids", "ngram_embed", "ple_gate", "short_conv", "gated_norm", "partial_rope"} <= rooms
    assert {node["owner"] for node in nodes} == {"kernel"}
    assert sum(node["op"] == "moe_matmul" for node in nodes) == 8


# Of the calls whose names end so, the kernel: T stands for the type that is computed in, V for an instruction set.
KERNELS = {
    ".mix": "hyper_mix_T_V", ".scatter": "hyper_scatter_T_V", "_hyper_connection.gate": "hyper_gate_T_V", ".hc_norm": "centred_rms_norm_T_V",
    "delta_rule": "delta_rule_chunked_V", "in_proj_qkv": "linear_bf16_V", "lm_head": "linear_bf16_V", "mlp.gate": "linear_bf16_V",
    "mlp.experts": "linear_T_V", ".attention": "sparse_tile_T_V", ".indexer": "block_score_T_V", "linear_attn.norm": "gated_norm_reference",
    "conv1d": "short_conv_reference", "q_rope": "partial_rope_reference", "ple.gate": "ple_gate_reference", "ple.add": "ple_add_reference",
    "mlp.route": "moe_route_portable", "ngram_ids": "ngram_ids_portable", "ngram_embedding": "ngram_embed_copy", "embed_tokens": "gather_copy",
}


@pytest.mark.parametrize("compute, kind", [("bf16", "bf16"), ("fp32", "f32")])
@pytest.mark.parametrize("isa", ["scalar", ""])
def test_inspect_names_the_kernels_that_run(quern, speaking, compute, kind, isa):
    cap = {"QUERN_ISA": isa}
    table = quern.json("inspect", "kernels", env=cap)["kernels"]
    chosen = {row["symbol"] for row in table if row["chosen"]}
    nodes = quern.json("inspect", speaking, "--compute", compute, env=cap)["nodes"]
    for node in nodes:
        symbol = node["variant"]
        if symbol in {row["symbol"] for row in table}:
            assert symbol in chosen, node
        else:
            assert symbol in KERNELS.values(), node
    for end, kernel in KERNELS.items():
        names = [node["variant"] for node in nodes if node["name"].endswith(end)]
        pattern = kernel.replace("T", kind).replace("V", "reference" if isa else r"\w+")
        assert names and all(re.fullmatch(pattern, name) for name in names), (end, names)


def test_chat_goes_back_without_computing_again(quern, speaking, tmp_path):
    """The template leaves old reasoning out, and the states of the linear layers cannot be cut back."""
    folder = shutil.copytree(speaking, tmp_path / "talker")
    shutil.copy(ROOT / "testdata" / "chat_templates" / "qwen3_8.jinja", folder / "chat_template.jinja")
    done = quern("chat", folder, "-n", "24", "--seed", "1", "--json", stdin=b"hello there\nand again\nthird\nfourth\n")
    assert done.returncode == 0, done.stderr.decode()
    turns = [json.loads(line)["counts"] for line in done.stdout.splitlines()]
    for before, after in zip(turns, turns[1:], strict=False):
        assert after["kept_tokens"] < before["prompt_tokens"] + before["generated_tokens"]
        # What opened the answer before is computed again, nothing in front of it.
        opening = after["computed_tokens"] - (after["prompt_tokens"] - after["kept_tokens"])
        assert 0 <= opening < 24 < after["kept_tokens"]


@pytest.fixture(scope="module")
def tempting(tmp_path_factory):
    """500 columns of logits, 400 ids in the tokenizer, and two ids for images; of every row the largest logit lies at one of
    those that must not come out: their rows of the head come in pairs of opposite sign."""
    folder = make(tmp_path_factory.mktemp("qwen4") / "tempting", "--preset", "tiny", "--set", "vocab_size=500")
    write_generated_tokenizer(folder, 400, 4096)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "image_token_id": 7, "video_token_id": 8}))

    def tempt(header, payload):
        begin, end = header["lm_head.weight"]["data_offsets"]
        head = np.frombuffer(payload, ml_dtypes.bfloat16)[begin // 2:end // 2].reshape(500, 64).astype(np.float32)
        for column in (7, *range(400, 500, 2)):
            head[column:column + 2] = 40 * head[column], -40 * head[column]
        payload[begin:end] = head.astype(ml_dtypes.bfloat16).tobytes()

    rewrite(folder / "model.safetensors", tempt)
    return folder


@pytest.mark.parametrize("sampling", [("--greedy",), ("--seed", "3", "--top-k", "0", "--top-p", "1")])
def test_ids_without_text_and_ids_of_images_are_never_sampled(quern, tempting, sampling):
    out = quern.json("run", tempting, "-p", "In the beginning", "-n", "60", "--logprobs", "1", *sampling)
    forbidden = {7, 8, *range(400, 500)}
    assert {row["top"][0]["id"] for row in out["logprobs"]} <= forbidden  # what the model would have said
    assert out["token_ids"] and not forbidden & set(out["token_ids"])


def test_ids_of_images_are_refused_as_input(quern, tempting):
    refusal = quern.refused(5, "run", tempting, "--prompt-ids", "1,7")
    assert "ids[1]: token id 7 stands for an image or a video" in refusal


# Ids of the published tokenizer, the placeholders of images and videos among them, and of the columns of the head.
TOKENIZER_IDS, VOCABULARY, IMAGE, VIDEO = 248077, 248320, 248056, 248057
ADDED = 33


@pytest.fixture(scope="module")
def published_ids(tmp_path_factory):
    """Narrow, but with the ids of the published model and its configuration of the whole: as in `tempting`, the largest logit of
    every row lies where none may come out."""
    folder = make(tmp_path_factory.mktemp("qwen4") / "published_ids", "--preset", "tiny", "--set", f"vocab_size={VOCABULARY}",
                  "--set", "eos_token_id=248044", "--set", "bos_token_id=248044")
    alphabet = byte_alphabet()
    merges = systematic_merges(TOKENIZER_IDS - ADDED - len(alphabet))
    added = QWEN3_ADDED + [(f"<|added_{i}|>", True) for i in range(ADDED - len(QWEN3_ADDED))]
    write_tokenizer(folder, {token: i for i, token in enumerate(alphabet + [a + b for a, b in merges])}, merges, added, 4096)

    def tempt(header, payload):
        begin, end = header["lm_head.weight"]["data_offsets"]
        head = np.frombuffer(payload, ml_dtypes.bfloat16)[begin // 2:end // 2].reshape(VOCABULARY, -1).copy()
        assert IMAGE + 1 == VIDEO
        # Of a pair one is positive.
        for column in (IMAGE, *range(TOKENIZER_IDS, VOCABULARY - 1, 2)):
            row = 40 * head[column].astype(np.float32)
            head[column:column + 2] = np.stack([row, -row]).astype(ml_dtypes.bfloat16)
        payload[begin:end] = head.tobytes()

    rewrite(folder / "model.safetensors", tempt)
    return folder


def test_ids_are_those_of_the_published_tokenizer(quern, published_ids):
    config = json.loads((published_ids / "config.json").read_text())
    published = published_config()
    assert (config["image_token_id"], config["video_token_id"]) == (IMAGE, VIDEO)
    assert config["text_config"]["vocab_size"] == published["text_config"]["vocab_size"] == VOCABULARY
    for text, token in (("<|endoftext|>", 248044), ("<|im_end|>", 248046), ("<|image_pad|>", IMAGE), ("<|video_pad|>", VIDEO)):
        assert quern("tokenize", published_ids, text).stdout.split() == [str(token).encode()]
    assert published["vision_start_token_id"] == 248053


@pytest.mark.parametrize("sampling", [("--greedy",), ("--seed", "3", "--top-k", "0", "--top-p", "1")], ids=["greedy", "sampled"])
def test_of_the_published_ids_those_without_text_and_of_images_are_never_sampled(quern, published_ids, sampling):
    out = quern.json("run", published_ids, "-p", "In the beginning", "-n", "60", "--logprobs", "1", *sampling)
    said = {row["top"][0]["id"] for row in out["logprobs"]}  # what the model would have said
    assert said <= {IMAGE, VIDEO, *range(TOKENIZER_IDS, VOCABULARY)} and max(said) >= TOKENIZER_IDS
    assert len(out["token_ids"]) > 30 and all(0 <= i < TOKENIZER_IDS and i not in (IMAGE, VIDEO) for i in out["token_ids"])


@pytest.mark.parametrize("token", [IMAGE, VIDEO])
def test_published_ids_of_images_are_refused_as_input(quern, published_ids, token):
    refusal = quern.refused(5, "run", published_ids, "--prompt-ids", f"1,2,{token}")
    assert f"ids[2]: token id {token} stands for an image or a video" in refusal
    text = {IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>"}[token]
    assert f"token id {token} stands for an image or a video" in quern.refused(5, "run", published_ids, "-p", f"What is {text}?")


def test_bench_measures_with_ids_that_the_model_takes(quern, tempting):
    done = quern("bench", tempting, "-p", "1000", "-n", "2", "-d", "20", "-r", "1", "--output", "json")
    assert done.returncode == 0, done.stderr.decode()
    assert [(row["case"], row["kv"]) for row in json.loads(done.stdout)["rows"]] == [("prefill", "bf16"), ("decode", "bf16")]


def test_compute_type_is_chosen(quern, speaking, block, tmp_path):
    text = tmp_path / "text"
    text.write_text("In the beginning God created the heaven and the earth.")
    found = {kind: quern.json("perplexity", speaking, "-f", text, *kind) for kind in ((), ("--compute", "bf16"), ("--compute", "fp32"))}
    assert found[()]["perplexity"] == found["--compute", "bf16"]["perplexity"] != found["--compute", "fp32"]["perplexity"]
    assert quern.json("inspect", speaking, "--compute", "fp32")["model"]["compute"] == "float32"
    assert "graphs are computed in the types that they state" in quern.refused(4, "inspect", block, "--compute", "bf16")


def test_type_of_keys_and_values_cannot_be_chosen(quern, speaking):
    for kv in ("fp16", "bf16"):
        refusal = quern.refused(4, "inspect", speaking, "--kv", kv)
        assert f"kv: is {kv}; this model keeps keys and values in the type it computes in" in refusal
