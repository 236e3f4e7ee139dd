# SPDX-License-Identifier: Apache-2.0
"""The whole qwen4_exp model against the reference implementation, live, on small random checkpoints that reach every
mechanism: logits in one call, token by token and in pieces, each variant of the architecture, greedy text."""
import collections
import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
from conftest import ROOT, import_reference

DEMO = ROOT / "models" / "demo-qwen4"
SEED = 20261130
EOS = 5
VOCAB = 199
# Of the largest logit, as small models in float32 are compared: a chain of 8 layers of float32 sums.
TOLERANCE = 2e-4
# Around the dense limit of the indexer (19 tokens), and around the 64 tokens that the delta rule takes at once.
LENGTHS = [1, 2, 3, 15, 16, 17, 18, 19, 20, 40, 63, 64, 65, 127, 128, 129]

# Fields of the tiny configuration that are set otherwise.
VARIANTS = [
    ("output_gate_type=null",), ("norm_topk_prob=false",), ("ple_layer_ids=[]",), ("hc_count=2",), ("ngram_size=2",),
    ("ngram_size=4", "ple_embed_dim=54"), ("ple_conv_kernel_size=2",), ("ple_conv_kernel_size=1",),
    ("linear_conv_kernel_dim=2",), ("indexer_compress_ratio=1",), ("num_key_value_heads=4",), ("eos_token_id=[5,7]",),
    ("seed=99", "ngram_vocab_size_base=64"), ("ple_layer_ids=[1]",), ("full_attention_interval=2", "ple_layer_ids=[1,3]"),
]

TopK = collections.namedtuple("TopK", "values indices")


def first_of_equals(scores, k, dim=-1):
    """The reference leaves open which of equal scores win; here the lower index does, as quern promises."""
    import torch
    values, indices = torch.sort(scores, dim=dim, descending=True, stable=True)
    return TopK(values.narrow(dim, 0, k), indices.narrow(dim, 0, k))


@pytest.fixture(autouse=True)
def decided_ties(monkeypatch):
    import_reference()
    import torch
    monkeypatch.setattr(torch, "topk", first_of_equals)
    monkeypatch.setattr(torch.Tensor, "topk", first_of_equals)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(make_qwen4):
    return make_qwen4()


class Reference:
    def __init__(self, folder: pathlib.Path, dtype: str = "float32"):
        import torch
        from transformers import AutoModelForCausalLM
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager").eval()

    def logits(self, ids):
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids]), use_cache=False).logits[0].float().numpy()

    def generate(self, prompts, tokens):
        with self.torch.no_grad():
            ids = self.torch.tensor(prompts)
            # The mask says that the end tokens inside of the prompts are no padding.
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=tokens,
                                      min_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=EOS)
        return out[:, len(prompts[0]):].tolist()


@functools.cache
def load_once(folder, dtype):
    return Reference(folder, dtype)


def small_reference(folder, dtype="float32"):
    """One for all tests."""
    return load_once(folder, dtype)


def engine(folder, compute="fp32"):
    import quern
    return quern.LLM(folder, threads=2, compute=compute, text=False)


def some_ids(length, seed=0):
    """Random ids with the smallest and the largest, repetitions, and the end token in the middle, doubled, first or
    last."""
    rng = np.random.default_rng([SEED, length, seed])
    ids = rng.integers(0, VOCAB, length)
    ids[rng.random(length) < 0.1] = ids[0]
    if length > 3:
        ids[1], ids[2] = 0, VOCAB - 1
    if length > 12:
        ids[[5, 8, 9]] = EOS
    if length % 4 == 0:
        ids[-1] = EOS
    if length % 4 == 1 and length > 1:
        ids[0] = EOS
    return ids.tolist()


def assert_close(ours, theirs):
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


def test_logits_of_one_call(tiny):
    reference, ours = small_reference(tiny), engine(tiny)
    for length in LENGTHS:
        ids = some_ids(length)
        assert_close(ours.logits(ids), reference.logits(ids))


def test_token_by_token_and_irregular_pieces(tiny):
    reference, ours = small_reference(tiny), engine(tiny)
    ids = some_ids(129)
    expected = reference.logits(ids)
    state = ours.new_state()
    assert_close(np.stack([ours.forward(state, [i]).reshape(-1) for i in ids]), expected)
    state, at = ours.new_state(), 0
    for following in (1, 2, 3, 5, 8, 13, 21, 34, 42):
        last = ours.forward(state, ids[at:at + following]).reshape(-1)
        at += following
        assert_close(last, expected[at - 1])
    assert at == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("settings", VARIANTS, ids=" ".join)
def test_variants_of_the_architecture(make_qwen4, settings):
    folder = make_qwen4(*settings)
    reference, ours = small_reference(folder), engine(folder)
    ids = some_ids(70)
    expected = reference.logits(ids)
    assert_close(ours.logits(ids), expected)
    state = ours.new_state()
    ours.forward(state, ids[:33])
    assert_close(np.stack([ours.forward(state, [i]).reshape(-1) for i in ids[33:]]), expected[33:])


def assert_greedy_text_is_the_references_own(folder, prompts, whole):
    """The margin rule: a token must be the reference's where its lead exceeds twice what logits may be off by. What is generated
    is compared up to the first token that does not lead so far; `whole` says of how many prompts that is all of the text."""
    reference, ours = small_reference(folder), engine(folder)
    ends = []
    for prompt, theirs in zip(prompts, reference.generate(prompts, 64)):
        expected = reference.logits(prompt + theirs)[len(prompt) - 1:-1]
        found = ours.logits(prompt + theirs)[len(prompt) - 1:-1]
        assert_close(found, expected)
        best = np.sort(expected, axis=-1)[:, -2:]
        decided = best[:, 1] - best[:, 0] > 2 * TOLERANCE * np.abs(expected).max()
        assert (found.argmax(-1) == np.array(theirs))[decided].all()
        ends.append(len(theirs) if decided.all() else int(decided.argmin()))
        text = ours.generate(prompt, max_tokens=64, greedy=True, stop_ids=[]).token_ids
        assert text[:ends[-1]] == theirs[:ends[-1]] and len(text) == len(theirs)
    assert ends.count(64) >= whole, ends


def test_greedy_text_is_the_references_own(tiny):
    assert_greedy_text_is_the_references_own(tiny, [some_ids(12, seed) for seed in range(10)], whole=9)


@pytest.mark.slow
def test_greedy_text_of_the_demo_is_the_references_own():
    from tokenizers import Tokenizer
    text = (ROOT / "models" / "demo" / "heldout.txt").read_text()
    ids = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(text).ids
    # Longer than the budget of the indexer.
    assert_greedy_text_is_the_references_own(DEMO, [ids[at:at + 80] for at in range(0, 15000, 1500)], whole=8)


def test_bfloat16_is_as_close_to_float32_as_the_references_own(tiny):
    exact, rounded, ours = small_reference(tiny), small_reference(tiny, "bfloat16"), engine(tiny, "bf16")
    squares = np.zeros(2)
    for length in (5, 19, 64, 100):
        ids = some_ids(length)
        expected = exact.logits(ids)
        squares += [((one.logits(ids) - expected) ** 2).sum() for one in (ours, rounded)]
    mine, theirs = np.sqrt(squares)
    print(f"distance from float32: ours {mine:.4f}, reference {theirs:.4f}")
    # Two draws of the same rounding noise.
    assert mine <= np.sqrt(2) * theirs
    assert theirs > 0


def test_timelines_go_back_fork_and_are_saved(tiny, tmp_path):
    ours = engine(tiny)
    ids = some_ids(600)
    expected = ours.logits(ids)
    state = ours.new_state()
    ours.forward(state, ids[:400])
    fork = state.fork()
    for length in (399, 300, 256, 40, 0):
        state.rewind(length)
        assert_close(ours.forward(state, ids[length:length + 3]).reshape(-1), expected[length + 2])
    assert_close(ours.forward(fork, ids[400:]).reshape(-1), expected[-1])
    fork.rewind(580)
    fork.save(tmp_path / "state")
    loaded = ours.load_state(tmp_path / "state")
    assert_close(ours.forward(loaded, ids[580:]).reshape(-1), expected[-1])


def test_ids_that_stand_for_images_are_refused(tiny, tmp_path):
    import quern
    folder = shutil.copytree(tiny, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["image_token_id"] = 77
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(quern.Error, match=r"ids\[1\].*token id 77 stands for an image"):
        engine(folder).logits([1, 77])
