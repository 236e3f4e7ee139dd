# SPDX-License-Identifier: Apache-2.0
"""The rooms of sparse attention, the mixture of experts and the n-gram embedding of qwen4_exp against the reference's own
modules, on the same inputs, in float32 and in bfloat16."""
import pytest
from conftest import ROOT, import_reference

import quern

ops = quern.ops
DTYPES = ["float32", "bfloat16"]


@pytest.fixture(scope="module", autouse=True)
def reference():
    """Imports the reference where these tests run, and only there."""
    import_reference()
    global torch, np, F, reference_model, elements, array, random, ref
    import numpy as np
    import qwen4_elements as elements
    import qwen4_sparse_reference as ref
    import torch
    import torch.nn.functional as F
    from qwen4_elements import array, random
    from transformers.models.qwen4_exp import modeling_qwen4_exp as reference_model

    with torch.no_grad():
        yield


# ---- n-gram embedding ----

def ngram_constants(c, layer_index: int):
    return ops.ngram_hash(ngram_size=c.ngram_size, heads_per_ngram=c.heads_per_ngram, vocabulary=c.vocab_size,
                          base=c.ngram_vocab_size_base, divisor=c.make_ngram_vocab_size_divisible_by, seed=c.seed,
                          layer_index=layer_index)


def id_sequences():
    g = np.random.default_rng(1)
    eos = ref.EOS
    yield from ([0], [198], [eos], [eos, eos], [11, 12, eos, 13, 14, 15], [eos, 1, 2, 3], [7, 7, 7, eos, 7, eos, eos, 7])
    for length in (1, 2, 3, 19, 64, 129):
        ids = g.integers(0, 199, length)
        ids[g.random(length) < 0.15] = eos
        yield ids.tolist()


@pytest.mark.parametrize("changes", [{}, dict(ngram_size=2, ple_embed_dim=48), dict(ngram_size=4, ple_embed_dim=54),
                                     dict(seed=0, heads_per_ngram=1)], ids=str)
@pytest.mark.parametrize("layer_index", [0, 1])
def test_ngram_rows(changes, layer_index):
    """Constants, row numbers at every way to cut a sequence in two, and the rows themselves."""
    c = ref.config(**changes)
    module = ref.ngram_module(c, layer_index)
    multipliers, sizes, offsets, rows = constants = ngram_constants(c, layer_index)
    for ours, theirs in ((multipliers, module.layer_multipliers), (sizes, module.ngram_heads_vocab_sizes),
                         (offsets, module.ngram_heads_offsets)):
        assert np.array_equal(ours, theirs.numpy())
    assert rows == module.ngram_embedding.weight.shape[0]

    seen = []
    module.ngram_embedding.register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0]))
    for ids in id_sequences():
        embedded = module(torch.tensor([ids]), None)
        wanted = seen.pop()[0].numpy()
        tokens = np.array(ids, np.int32)
        for first in range(len(ids) + 1):
            ours = ops.ngram_rows(tokens, *constants[:3], first=first, vocabulary=c.vocab_size, eos=ref.EOS)
            assert np.array_equal(ours, wanted[first:]), f"{ids} from {first}"
        part = -(-rows // c.split_ngram_parts)
        for table in (module.ngram_embedding.weight, module.ngram_embedding.weight.bfloat16()):
            shards = [array(shard) for shard in table.split(part)]
            assert np.array_equal(ops.ngram_embed(shards, wanted), array(embedded[0].to(table.dtype)))


def test_ngram_constants_of_the_published_model():
    """Those of the frozen configuration, without its table of 51 billion elements."""
    multipliers, sizes, offsets, rows = ops.ngram_hash(ngram_size=3, heads_per_ngram=8, vocabulary=248320, base=20000000,
                                                       divisor=128, seed=1234, layer_index=0)
    assert np.array_equal(multipliers, reference_model._build_layer_multipliers(248320, 3, 0, 1234).numpy())
    primes = [reference_model._find_nth_prime_after(20000000 - 1, i + 1) for i in range(16)]
    assert sizes.tolist() == primes
    assert offsets.tolist() == [sum(primes[:i]) for i in range(16)]
    assert rows == 320001536


# ---- mixture of experts ----

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("tokens,hidden,experts,chosen", [(1, 64, 16, 3), (200, 64, 16, 3), (100, 96, 512, 10), (9, 32, 4, 4)])
def test_moe_route(dtype, normalize, tokens, hidden, experts, chosen):
    g = ref.seeded(experts + tokens)
    c = ref.config(hidden_size=hidden, num_experts=experts, num_experts_per_tok=chosen, norm_topk_prob=normalize)
    router = ref.draw(reference_model.Qwen4ExpTextTopKRouter(c), g, wide=("weight",)).to(elements.TYPES[dtype])
    scores, weights, indices = router(random(g, tokens, hidden).to(elements.TYPES[dtype]))
    our_experts, our_weights = ops.moe_route(array(scores), chosen=chosen, normalize=normalize)

    # Where scores tie, the reference's choice is arbitrary: the chosen scores must be the same, the experts elsewhere.
    theirs = indices.numpy()
    values = scores.float().numpy()
    assert np.array_equal(np.take_along_axis(values, our_experts.astype(np.int64), 1), np.take_along_axis(values, theirs, 1))
    ordered = -np.sort(-values, axis=1)
    clear = (np.diff(ordered[:, : chosen + 1], axis=1) != 0).all(axis=1)
    assert np.array_equal(our_experts[clear], theirs[clear])
    assert dtype == "bfloat16" or clear.all()
    # The lower index first among equals.
    for t in np.nonzero(~clear)[0]:
        assert our_experts[t].tolist() == sorted(range(experts), key=lambda e: (-values[t, e], e))[:chosen]

    if dtype == "float32":
        assert np.abs(our_weights - weights.numpy()).max() <= 1e-6
    else:
        as_bits = array(torch.from_numpy(our_weights).bfloat16())
        assert np.array_equal(torch.from_numpy(our_weights).bfloat16().float().numpy(), our_weights)
        elements.assert_elementwise("weights", as_bits, weights)


def run_moe(block, x, experts, weights):
    shared = block.shared_expert
    return ops.moe_matmul(array(x), array(block.experts.gate_up_proj), array(block.experts.down_proj),
                          array(shared.gate_proj.weight), array(shared.up_proj.weight), array(shared.down_proj.weight),
                          array(block.shared_expert_gate.weight), experts.int().numpy(), weights.float().numpy())


MOE_SHAPES = [dict(tokens=1), dict(tokens=37), dict(tokens=20, num_experts_per_tok=10, moe_intermediate_size=40),
              dict(tokens=5, shared_expert_intermediate_size=8),
              # The published widths.
              pytest.param(dict(tokens=3, hidden_size=2560, num_experts=12, num_experts_per_tok=10, moe_intermediate_size=640,
                                shared_expert_intermediate_size=640), marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", MOE_SHAPES, ids=str)
def test_moe_matmul(dtype, shape):
    """Routing forced. float32 against the whole block; bfloat16 against the reference's own terms, and against its
    accumulator, which rounds after every expert: there 8 % of the elements may be more than two units off."""
    shape = dict(shape)
    tokens = shape.pop("tokens")
    g = ref.seeded(tokens)
    c = ref.config(**shape)
    block = ref.draw(reference_model.Qwen4ExpTextSparseMoeBlock(c), g, wide=("gate.weight",)).to(elements.TYPES[dtype])
    x = random(g, tokens, c.hidden_size).to(elements.TYPES[dtype])
    _, weights, experts = block.gate(x)
    ours = run_moe(block, x, experts, weights)
    whole = block(x[None])[0]
    if dtype == "float32":
        elements.assert_elementwise("block", ours, whole)
        return
    # At the published widths sums in float64 leave up to 0.013 % of the elements 4 units away, sums in float32 0.026 %.
    beyond = 2.0**-10 if c.hidden_size == 2560 else 0
    terms = ref.combined(block, x, ref.terms_of_experts(block, x, experts, weights))
    elements.assert_projection("terms", ours, terms, beyond)
    share = (array(terms) == ours).mean()
    assert share >= 0.99, f"{share:.2%} of the elements are equal bit for bit"
    seen = torch.from_numpy(ours).view(torch.bfloat16).double()
    size = torch.maximum(whole.double().abs(), whole.double().abs().amax(-1, keepdim=True) * 2.0**-8)
    far = (seen - whole.double()).abs() > 2 * torch.exp2(torch.floor(torch.log2(size)) - 7)
    assert far.double().mean() <= 0.08


def test_moe_rounding_points():
    """Inputs whose sums are exact in any order: every rounding point must be where the reference has it, bit for bit."""
    g = ref.seeded(4)
    c = ref.config(num_experts_per_tok=8)
    block = reference_model.Qwen4ExpTextSparseMoeBlock(c)
    for w in block.parameters():
        w.copy_(torch.randint(-3, 4, w.shape, generator=g) / 8)
    # Each output adds four of the activations.
    for down in (block.experts.down_proj, block.shared_expert.down_proj.weight):
        mask = torch.rand(*down.shape, generator=g).argsort(-1) < 4
        down.copy_(torch.where(mask, torch.where(down < 0, -1.0, 1.0), torch.zeros(())))
    block = block.bfloat16()
    x = (torch.randint(-8, 9, (64, c.hidden_size), generator=g) / 8).bfloat16()
    _, weights, experts = block.gate(x)
    ours = run_moe(block, x, experts, weights)
    wanted = array(ref.combined(block, x, ref.terms_of_experts(block, x, experts, weights)))
    assert np.array_equal(ours, wanted), f"{(ours != wanted).mean():.4%} differ"


@pytest.mark.parametrize("name", ["silu", "sigmoid"])
def test_every_bfloat16_through_the_activations(name):
    """One expert on one element that multiplies by one: all finite numbers through silu as the mixture computes it, and
    through the sigmoid of the shared expert's gate."""
    bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    x = bits.view(torch.bfloat16)
    x = x[torch.isfinite(x) & (x.abs() < 2.0**60)].reshape(-1, 1)
    # Element 0 is x, element 1 is one: gate reads the first, up the second.
    rows = torch.cat([x, torch.ones_like(x)], 1)
    first, second = torch.tensor([[1.0, 0.0]]).bfloat16(), torch.tensor([[0.0, 1.0]]).bfloat16()
    chosen = np.zeros((len(x), 1), np.int32)
    weights = np.ones((len(x), 1), np.float32)
    down = torch.ones(2, 1).bfloat16()
    if name == "silu":
        ours = ops.moe_matmul(array(rows), array(torch.cat([first, second])[None]), array(down[None]), array(second),
                              array(second), array(down * 0), array(second), chosen, weights)
        wanted = F.silu(x)
    else:
        # The shared expert's output is the largest gate and up with silu(88) * 1 / 88 = 1.
        ours = ops.moe_matmul(array(rows), array(torch.cat([second, second])[None]), array(down[None] * 0),
                              array(second * 128), array(second / 128), array(down), array(first), chosen, weights)
        wanted = F.sigmoid(x)
    ours = ours[:, 0]
    wanted = array(wanted[:, 0])
    different = elements.ordered(ours) != elements.ordered(wanted)
    assert not different.any(), f"{different.sum()} of {len(x)} numbers: {x[torch.from_numpy(different)].flatten()[:8]}"


# ---- sparse attention ----

def run_block_index(layer, seen, c):
    return ops.block_index(array(seen.z[0]), array(layer.indexer.q_layernorm.weight), array(layer.indexer.k_layernorm.weight),
                           seen.frequencies.numpy(), ratio=c.indexer_compress_ratio,
                           budget=c.indexer_budget // c.indexer_compress_ratio, epsilon=c.rms_norm_eps)


LAYERS = [(dict(), 1), (dict(), 3), (dict(), 19), (dict(), 64), (dict(), 130),
          (dict(indexer_compress_ratio=1), 40), (dict(num_key_value_heads=4), 33),
          (dict(head_dim=64, indexer_head_dim=128, indexer_budget=32), 129),
          # The published widths, with a smaller budget.
          pytest.param(dict(hidden_size=2560, num_attention_heads=24, num_key_value_heads=2, head_dim=256, indexer_head_dim=128,
                            indexer_budget=256), 290, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes,tokens", LAYERS, ids=str)
def test_block_index(dtype, changes, tokens):
    c = ref.config(**changes)
    layer, seen = ref.attention_layer(c, tokens, dtype, seed=tokens)
    ratio, budget = c.indexer_compress_ratio, c.indexer_budget // c.indexer_compress_ratio
    keys, open_keys, blocks, counts = run_block_index(layer, seen, c)
    scores, their_keys = ref.reference_scores(layer, seen)
    if len(keys):
        elements.assert_elementwise("block keys", keys, their_keys)
    complete = tokens // ratio
    raw = array(seen.z[0][complete * ratio :, -c.indexer_head_dim :])
    assert np.array_equal(open_keys[: len(raw)], raw)

    visible = ref.choice(seen, tokens)
    near = 0
    for t in range(tokens):
        available = (t + 1) // ratio
        theirs = set(ref.chosen_blocks(visible, t, ratio).tolist())
        assert visible[t, available * ratio : t + 1].all(), "the tail is seen"
        if counts[t] == -1:
            assert available <= budget and len(theirs) == available
            continue
        assert counts[t] == budget < available
        ours = set(blocks[t].tolist())
        assert blocks[t].tolist() == sorted(ours) and len(ours) == budget
        cut = np.sort(scores[t, :available].numpy())[-budget].item()
        for b in ours ^ theirs:
            # Equal scores: the reference's choice is arbitrary.
            assert scores[t, b].item() == cut, f"query {t}, block {b}"
        near += ours != theirs
    assert near <= 0.1 * tokens


def run_attention(layer, c, inputs, past: int, blocks, counts):
    q, gate, k, v = inputs
    new = [array(x[past:]) for x in (q, gate, k, v)]
    cached = [array(x[:past].transpose(0, 1)) for x in (k, v)]
    return ops.sparse_attention(*new, *cached, blocks[past:], counts[past:], ratio=c.indexer_compress_ratio,
                                scale=layer.scaling)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes,tokens", LAYERS, ids=str)
def test_sparse_attention(dtype, changes, tokens):
    """The choice forced: what the reference's indexer chose. In bfloat16 within four units in the last place of the
    largest value, since the reference's eager attention rounds its scores and weights, which quern does not."""
    c = ref.config(**changes)
    layer, seen = ref.attention_layer(c, tokens, dtype, seed=tokens)
    blocks, counts = ref.choice_lists(ref.choice(seen, tokens), c.indexer_compress_ratio)
    inputs = q, gate, k, v = ref.attention_inputs(layer, seen, c)
    for past in {0, tokens // 2}:
        ours, keys, values = run_attention(layer, c, inputs, past, blocks, counts)
        assert np.array_equal(keys, array(k.transpose(0, 1))) and np.array_equal(values, array(v.transpose(0, 1)))
        wanted = seen.o_proj[0][0][0, past:]
        if dtype == "float32":
            elements.assert_elementwise("attention", ours, wanted)
            continue
        unit = 2.0 ** (np.floor(np.log2(v.float().abs().max().item())) - 7)
        difference = (torch.from_numpy(ours).view(torch.bfloat16).float() - wanted.float()).abs().max().item()
        assert difference <= 4 * unit, f"{difference / unit:.2f} units"


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_attention_is_the_same(dtype):
    """Up to the budget everything is chosen, and every block by name gives the same bits; one token more and not."""
    c = ref.config()
    tokens = c.indexer_budget + c.indexer_compress_ratio
    layer, seen = ref.attention_layer(c, tokens, dtype, seed=7)
    *_, counts = run_block_index(layer, seen, c)
    assert counts.tolist() == [-1] * (tokens - 1) + [c.indexer_budget // c.indexer_compress_ratio]
    assert ref.choice(seen, tokens)[: tokens - 1].sum() == tokens * (tokens - 1) // 2
    inputs = ref.attention_inputs(layer, seen, c)
    blocks = np.tile(np.arange(tokens, dtype=np.int32), (tokens, 1))
    named = (np.arange(1, tokens + 1) // c.indexer_compress_ratio).astype(np.int32)
    dense = np.full(tokens, -1, np.int32)
    assert np.array_equal(*(run_attention(layer, c, inputs, 0, blocks, x)[0] for x in (named, dense)))


def test_the_indexer_that_the_demo_is_trained_with(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    from train_demo_qwen4 import Indexer
    c, tokens = ref.config(), 130
    layer, seen = ref.attention_layer(c, tokens, "float32", seed=8)
    layer.eval().indexer.__class__ = Indexer
    ours = layer.indexer(*seen.indexer[0])
    causal = torch.ones(tokens, tokens).tril().bool()
    assert np.array_equal(((ours[0, 0] == 0) & causal).numpy(), ref.choice(seen, tokens))
