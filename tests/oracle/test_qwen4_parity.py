# SPDX-License-Identifier: Apache-2.0
"""Every step of the whole qwen4_exp model against the reference implementation, live: layer outputs, router decisions,
chosen blocks, rows of the n-gram tables, everything that is remembered, logits; in float32 and in bfloat16, for every variant
of the architecture, in one call, token by token and in irregular pieces. qwen4_replay.py says how the two run."""
import re

import numpy as np
import pytest
from conftest import import_reference
from test_qwen4_model import LENGTHS, TOLERANCE, VARIANTS, engine, small_reference, some_ids

COMPUTE = {"float32": "fp32", "bfloat16": "bf16"}
# The single tokens in the middle are around the dense limit of the indexer.
IRREGULAR = [1, 1, 2, 3, 5, 6, 1, 1, 1, 1, 13, 2]
LONG = [1, 2, 3, 5, 8, 13, 21, 34, 42]
TOKENS = [1] * 24
# Past two chunks of the delta rule.
MANY_TOKENS = [1] * 130
# Around those two chunks; roundings, which come on top in bfloat16, do not know of chunks.
VARIANT_LENGTHS = {"float32": [127, 128, 129], "bfloat16": [128]}
BASE_AND_VARIANTS = [(), *(pytest.param(settings, marks=pytest.mark.slow) for settings in VARIANTS)]


@pytest.fixture(scope="module", autouse=True)
def reference():
    """Imports the reference where these tests run, and only there."""
    import_reference()
    global torch, elements, replay
    import qwen4_elements as elements
    import qwen4_replay as replay
    import torch

    torch.set_num_threads(1)
    with torch.no_grad():
        yield


# How a step is compared on the same inputs, by the end of its name: what is copied or chosen bit for bit, products of
# matrices by assert_projection(), the rest by assert_elementwise().
EXACT = ("embed_tokens", "ple.ngram_ids", "ple.ngram_embedding", "mlp.route/experts", "indexer/open", "conv1d/state",
         "attention/keys", "attention/values")
# Left in the past, which the reference has in its cache.
REMEMBERED = re.compile(r"/(state|open|(keys|values)\.\d+)$")
# Compared as what each token sees; absent while no block is complete.
NOT_MET = ("indexer/blocks", "indexer/counts", "indexer/keys")
PROJECTIONS = ("input_mix_weight_down", "input_mix_weight_up", "block_inject_weight", "in_proj_qkv", "in_proj_z", "in_proj_b",
               "in_proj_a", "_proj", "mlp.gate", "mlp.experts", "lm_head")


class Comparison:
    """Steps of any number of sequences; what belongs to the same step is one tensor."""

    def __init__(self, model, llm, force, near=0):
        """`near` says how far from the cut the score of another choice may be."""
        self.model, self.llm, self.force, self.near = model, llm, force, near
        self.notes = replay.Notes()
        self.sparse_queries = 0

    def run(self, ids, pieces, cached=True, after_call=lambda: None):
        """quern's and the reference's logits: of the last row of every call, of every row where there is one call."""
        state, at, logits = self.llm.new_state(), 0, []
        with replay.Replay(self.model, self.force, cached, self.notes) as run:
            for count in pieces:
                seen, ours = replay.observed(self.llm, state, ids[at:at + count])
                theirs = run.run(seen, ids[at:at + count])
                logits += [(ours, theirs[-1])] if len(pieces) > 1 else zip(self.llm.logits(ids), theirs)
                left = {step for step in set(seen) - set(self.notes.pairs)
                        if not step.endswith(NOT_MET) and (cached or not REMEMBERED.search(step))}
                assert not left, f"not compared: {left}"
                self.sparse_queries += sum((counts >= 0).sum() for step, counts in seen.items() if step.endswith("/counts"))
                after_call()
                at += count
        assert at == len(ids)
        return map(np.stack, zip(*logits))

    def tensors(self):
        for step, pairs in self.notes.pairs.items():
            ours, theirs = (torch.cat(x) for x in zip(*pairs))
            if ours.numel() > 0:
                yield step, ours, theirs

    def assert_steps(self):
        failures = []
        for step, ours, theirs in self.tensors():
            try:
                self.assert_step(step, ours, theirs)
            except AssertionError as error:
                failures.append(str(error).splitlines()[0])
        assert not failures, "\n".join(failures)
        assert self.widest_flip() <= self.near

    def assert_mixture_is_as_exact(self):
        elements.assert_as_exact_as(self.notes.exact)

    def forget(self):
        """Frees the tensors that were compared."""
        for notes in (self.notes.pairs, self.notes.summands, self.notes.as_right):
            notes.clear()

    def widest_flip(self):
        return max((gap for gaps in self.notes.flips.values() for gap in gaps), default=0)

    def assert_step(self, step, ours, theirs):
        name = step.rstrip("0123456789").removesuffix(".")
        if name.endswith(EXACT):
            assert torch.equal(ours, theirs), f"{step}: {(ours != theirs).sum()} of {ours.numel()} elements differ"
        elif name.endswith("mlp.experts") and ours.dtype == torch.bfloat16:
            exact, largest = (torch.cat(x[step]) for x in (self.notes.as_right, self.notes.summands))
            elements.assert_mixture(step, ours, theirs, exact, largest)
        elif name.endswith(PROJECTIONS):
            elements.assert_projection(step, elements.array(ours), theirs)
        elif name.endswith("attention") and ours.dtype == torch.bfloat16:
            # The reference's eager attention rounds its scores and weights, quern does not.
            v = torch.cat([x for x, _ in self.notes.pairs[step.replace("attention", "v_proj")]])
            unit = 2.0 ** (np.floor(np.log2(v.float().abs().max().item())) - 7)
            worst = (ours.float() - theirs.float()).abs().max().item()
            assert worst <= 4 * unit, f"{step}: {worst / unit:.2f} units of the largest value"
        else:
            as_right = self.notes.as_right.get(step, [])
            others = tuple(torch.cat(x) for x in (as_right[::2], as_right[1::2]) if x)
            elements.assert_elementwise(step, elements.array(ours), theirs, cancels=name.endswith("delta_rule"), as_right=others)


def runs_of(settings, lengths=(70,)):
    """(ids, pieces, with a cache) to compare a model on, first in one call of each length; the reference does not go on with a
    convolution of one tap."""
    cached = "ple_conv_kernel_size=1" not in settings
    for length in lengths:
        yield some_ids(length), [length], cached
    if cached:
        yield some_ids(sum(IRREGULAR)), IRREGULAR, cached
    if settings == ():
        yield some_ids(sum(LONG)), LONG, cached
        yield some_ids(len(TOKENS), 1), TOKENS, cached


@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("settings", BASE_AND_VARIANTS, ids=" ".join)
def test_every_step_on_the_references_own_inputs(make_qwen4, settings, dtype):
    folder = make_qwen4(*settings)
    steps = Comparison(small_reference(folder, dtype).model, engine(folder, COMPUTE[dtype]), "all")
    for run in runs_of(settings, VARIANT_LENGTHS[dtype] if settings else [70]):
        steps.run(*run)
    steps.assert_steps()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", COMPUTE)
def test_every_step_of_many_single_tokens(make_qwen4, dtype):
    steps = Comparison(small_reference(make_qwen4(), dtype).model, engine(make_qwen4(), COMPUTE[dtype]), "all")
    steps.run(some_ids(len(MANY_TOKENS)), MANY_TOKENS)
    steps.assert_steps()


def test_every_length_on_the_references_own_inputs(make_qwen4):
    """Around the dense limit of the indexer and the tokens that the delta rule takes at once."""
    for dtype in COMPUTE:
        steps = Comparison(small_reference(make_qwen4(), dtype).model, engine(make_qwen4(), COMPUTE[dtype]), "all")
        for length in LENGTHS:
            steps.run(some_ids(length), [length])
        steps.assert_steps()


@pytest.mark.parametrize("settings", BASE_AND_VARIANTS, ids=" ".join)
def test_float32_runs_like_the_reference(make_qwen4, settings):
    """Nothing forced: the same choices, and what the layers give as near as small models in float32 are compared."""
    folder = make_qwen4(*settings)
    model = Comparison(small_reference(folder).model, engine(folder), None)
    for run in runs_of(settings):
        ours, theirs = model.run(*run)
        assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()
    for step, ours, theirs in model.tensors():
        if step.endswith(("mlp_hyper_connection.scatter", "hyper_connection_mixer.mix")) or REMEMBERED.search(step):
            worst = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            assert worst <= TOLERANCE, f"{step}: {worst:.2e} of the largest element"
    assert model.widest_flip() == 0


@pytest.mark.parametrize("settings", BASE_AND_VARIANTS, ids=" ".join)
def test_bfloat16_with_the_same_choices(make_qwen4, settings):
    folder = make_qwen4(*settings)
    model, llm = small_reference(folder, "bfloat16").model, engine(folder, "bf16")
    forced, free = Comparison(model, llm, "choices"), Comparison(model, llm, None)

    def apart(ours, theirs):
        return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)

    for run in runs_of(settings):
        distance = apart(*forced.run(*run))
        assert distance <= 3e-2, f"{len(run[1])} calls: {distance:.2%}"
        print(f"{len(run[1])} calls: {distance:.2%} apart")
    print(f"running freely, in one call: {apart(*free.run(*next(runs_of(settings)))):.2%}")
    flips = {kind: sum(len(gaps) for step, gaps in free.notes.flips.items() if step.endswith(kind)) for kind in ("route", "indexer")}
    print(f"choices that differ, running freely: {flips}")
