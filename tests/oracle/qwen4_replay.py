# SPDX-License-Identifier: Apache-2.0
"""The reference library's qwen4_exp run beside quern, step by step: what quern computes (the `observe` of LLM.forward) meets
what the reference computes in the same place, taken by hooks on its modules and functions. With force="all" the reference
goes on from quern's values, so that every step is compared on the same inputs and nothing drifts; with force="choices" it
only takes over the choice of experts and blocks; with force=None it runs freely. Needs torch and transformers."""
import collections
import contextlib

import qwen4_elements as elements
import qwen4_sparse_reference as sparse
import torch
import torch.nn.functional as F
from test_qwen4_model import first_of_equals
from transformers.cache_utils import DynamicCache
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference_model

HEAD = ("hyper_connection_mixer.", "lm_head")


INDEX_ADD = torch.Tensor.index_add_
# Of a call, whose mixture is computed again with exact sums.
EXACT_ROWS = 64


@contextlib.contextmanager
def exact_sums():
    """Products of matrices are float64 sums, rounded once to the type of their input."""
    linear = F.linear
    F.linear = lambda x, weight, bias=None: linear(x.double(), weight.double(), bias).to(x.dtype)
    try:
        yield
    finally:
        F.linear = linear


def observed(llm, state, ids):
    """{"step" or "step/part": array} of one forward, and the logits of its last row."""
    seen = {}
    logits = llm.forward(state, ids, observe=lambda step, part, values: seen.update({f"{step}/{part}" if part else step: values}))
    return seen, logits


class Functional:
    """torch.nn.functional as the reference's module sees it, with some functions watched."""

    def __init__(self, **watched):
        self.__dict__.update(watched)

    def __getattr__(self, name):
        return getattr(F, name)


class Notes:
    """By step: `pairs`, quern's and the reference's rows of every call; `flips`, of every candidate that one of both chose
    and the other did not how far its score is from the last chosen one's, of that one's size; `summands`, for every call the
    largest term of each element that is a sum of rounded terms; `as_right`, what else a step of the reference may give: for every
    call a norm with a scale a little smaller and one a little larger, or the mixture with exact sums in the rows that need it;
    `exact`, for every call and mixture how far some rows of quern's and of the reference's are from the same with exact sums."""

    def __init__(self):
        self.pairs, self.flips, self.summands, self.as_right = (collections.defaultdict(list) for _ in range(4))
        self.exact = []


class Replay(contextlib.ExitStack):
    """Runs `model` on the calls that quern made and adds to `notes`; within a `with`, which hooks the model."""

    def __init__(self, model, force, cached, notes):
        super().__init__()
        self.model, self.force, self.notes = model, force, notes
        self.text = next(m for m in model.modules() if isinstance(m, reference_model.Qwen4ExpTextModel))
        self.config = self.text.config
        self.cache = DynamicCache(config=self.config) if cached else None
        self.layer = None  # prefix of the steps of the layer at hand
        self.in_conv = False  # what the n-gram layer's convolution gave goes through silu next
        self.added = []  # (tokens, terms) of every expert of the layer at hand
        self.scores = []  # that top-k was asked about by the router or the indexer at hand
        self.block_keys = None

    def __enter__(self):
        for hook in self.hooks():
            self.callback(hook.remove)
        return super().__enter__()

    # ---- values that meet ----

    def ours(self, step):
        values = torch.from_numpy(self.seen[step])
        return values.view(torch.bfloat16) if values.dtype == torch.uint16 else values

    def meet(self, step, theirs):
        """Notes the reference's value at a step, whose rows may be shaped otherwise, and gives the value to go on with."""
        return self.meet_tensor(step, self.ours(step), theirs)

    def meet_tensor(self, step, ours, theirs):
        rows = theirs.reshape(-1, ours.shape[1])
        if step.startswith(HEAD):  # quern computes it for the wanted rows only, here the last one
            rows = rows[-1:]
        assert rows.dtype == ours.dtype and rows.shape == ours.shape, (step, rows.dtype, rows.shape, ours.dtype, ours.shape)
        self.notes.pairs[step].append((ours, rows.clone()))
        if self.force != "all":
            return theirs
        out = theirs.reshape(-1, ours.shape[1]).clone()
        out[len(out) - len(ours):] = ours
        return out.reshape(theirs.shape)

    # ---- the reference, watched ----

    def run(self, seen, ids):
        """One call: `seen` is what observed() gave for `ids`. The logits of all rows."""
        self.seen = seen
        with contextlib.ExitStack() as stack, torch.no_grad():
            for place, name, value in self.replacements():
                stack.callback(setattr, place, name, getattr(place, name))
                setattr(place, name, value)
            logits = self.model(torch.tensor([ids]), use_cache=self.cache is not None, past_key_values=self.cache).logits[0]
        if self.cache is not None:
            self.compare_cache(ids)
        return logits.float().numpy()

    def out(self, module, step):
        return module.register_forward_hook(lambda m, i, o: self.meet(step, o))

    def first_in(self, module, step):
        return module.register_forward_pre_hook(lambda m, i: (self.meet(step, i[0]), *i[1:]))

    def hooks(self):
        text = self.text
        yield text.embed_tokens.register_forward_hook(self.embedding)
        yield from self.hyper_connection(text.hyper_connection_mixer, "hyper_connection_mixer")
        yield self.out(self.model.lm_head, "lm_head")
        for i, layer in enumerate(text.layers):
            prefix = f"layers.{i}."
            yield layer.register_forward_pre_hook(lambda m, a, prefix=prefix: setattr(self, "layer", prefix))
            if layer.ple is not None:
                yield from self.ngrams(layer.ple, prefix + "ple.")
                yield self.first_in(layer.attn_hyper_connection, prefix + "ple.add")
            yield from self.hyper_connection(layer.attn_hyper_connection, prefix + "attn_hyper_connection")
            if layer.layer_type == "linear_attention":
                yield from self.linear_attention(layer.linear_attn, prefix + "linear_attn.")
            else:
                yield from self.sparse_attention(layer.self_attn, prefix + "self_attn.")
            yield self.first_in(layer.mlp_hyper_connection, prefix + "attn_hyper_connection.scatter")
            yield from self.hyper_connection(layer.mlp_hyper_connection, prefix + "mlp_hyper_connection")
            yield layer.mlp.gate.register_forward_hook(self.routed)
            yield layer.mlp.register_forward_hook(self.mixture)
            yield self.out(layer, prefix + "mlp_hyper_connection.scatter")

    def embedding(self, module, inputs, output):
        self.meet("embed_tokens", output.repeat(1, 1, self.config.hc_count))

    def hyper_connection(self, module, prefix):
        for name in ("hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"):
            if getattr(module, name) is not None:
                yield self.out(getattr(module, name), f"{prefix}.{name}")
        yield self.first_in(module.input_mix_weight_up, f"{prefix}.gate")

        def mixed(m, i, o):
            if isinstance(o, tuple):
                return (self.meet(f"{prefix}.mix", o[0]), *o[1:])
            return self.meet(f"{prefix}.mix", o)

        yield module.register_forward_hook(mixed)

    def linear_attention(self, module, prefix):
        for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"):
            yield self.out(getattr(module, name), prefix + name)
        yield module.norm.register_forward_hook(lambda m, i, o: self.gated_norm(m, prefix + "norm", *i, o))

    def gated_norm(self, module, step, x, gate, output):
        """Three roundings follow each other: where the scale, a float32 sum, puts the first on the other side of a midpoint,
        the second and third can make two and more units of it. So the reference is also asked with the scale smaller and
        larger by what ops/gated_norm allows a sum of n squares."""
        if self.force == "all" and x.dtype == torch.bfloat16:
            off = (x.shape[-1] / 16 + 12) * 2.0**-24
            squares = x.float().pow(2).mean(-1, keepdim=True)
            epsilon = module.variance_epsilon
            for sign in (-1, 1):
                module.variance_epsilon = epsilon + sign * 2 * off * (squares + epsilon)
                self.notes.as_right[step].append(module.forward(x, gate).reshape(len(self.ours(step)), -1))
            module.variance_epsilon = epsilon
        return self.meet(step, output)

    def sparse_attention(self, module, prefix):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield self.out(getattr(module, name), prefix + name)
        yield self.out(module.indexer.index_qk_proj, prefix + "indexer.index_qk_proj")
        yield module.q_norm.register_forward_hook(lambda m, i, o: self.queries("q_norm", o))
        yield self.out(module.k_norm, prefix + "k_norm")
        yield module.indexer.register_forward_hook(self.blocks)
        yield self.first_in(module.o_proj, prefix + "attention")

    def ngrams(self, module, prefix):
        embedding = module.ple_embedding
        yield self.first_in(embedding.ngram_embedding, prefix + "ngram_ids")
        yield self.out(embedding, prefix + "ngram_embedding")
        for name in ("key_proj", "value_proj", "norm_key", "norm_query", "norm_conv"):
            yield self.out(getattr(module, name), prefix + name)
        yield self.first_in(module.norm_conv, prefix + "gate")
        yield module.conv1d.register_forward_hook(lambda m, i, o: setattr(self, "in_conv", True))

    def replacements(self):
        """(place, name, value) of the functions of the reference that are watched."""
        yield reference_model, "F", Functional(linear=self.router_logits, silu=self.silu)
        for name in ("causal_conv1d_fn", "causal_conv1d_update"):
            yield reference_model, name, self.watched(getattr(reference_model, name), self.convolved)
        for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
            yield reference_model, name, self.watched(getattr(reference_model, name), self.recurred)
        yield reference_model, "apply_rotary_pos_emb", self.watched(reference_model.apply_rotary_pos_emb, self.rotated)
        yield torch.Tensor, "index_add_", lambda total, dim, index, source: self.index_add(total, dim, index, source)
        yield torch, "topk", self.topk
        yield torch.Tensor, "topk", lambda scores, k, dim=-1: self.topk(scores, k, dim)

    @staticmethod
    def watched(function, look):
        return lambda *arguments, **named: look(function(*arguments, **named), *arguments)

    def router_logits(self, x, weight):
        return self.meet(self.layer + "mlp.gate", F.linear(x, weight))

    def silu(self, x):
        if not self.in_conv:
            return F.silu(x)
        self.in_conv = False
        return self.meet(self.layer + "ple.conv1d", F.silu(x).transpose(1, 2)).transpose(1, 2)

    def convolved(self, out, *arguments):
        tokens = len(self.seen["embed_tokens"])  # behind the rows of the past
        new = self.meet(self.layer + "linear_attn.conv1d", out[:, :, -tokens:].transpose(1, 2)).transpose(1, 2)
        return torch.cat([out[:, :, :-tokens], new], dim=-1)

    def recurred(self, result, *arguments):
        out, state = result
        out = self.meet(self.layer + "linear_attn.delta_rule", out)
        return out, None if state is None else self.meet(self.layer + "linear_attn.delta_rule/state", state)

    def rotated(self, result, *arguments):
        if isinstance(result, tuple):
            q, k = (x.transpose(1, 2) for x in result)  # to the order of quern's rows
            return self.queries("q_rope", q).transpose(1, 2), self.meet(self.layer + "self_attn.k_rope", k).transpose(1, 2)
        if result.ndim == 3:  # of blocks, up to those of the query at hand
            self.block_keys = result[:, 0]
        return result

    def queries(self, name, theirs):
        """quern holds each head's gate behind its query."""
        step = self.layer + "self_attn." + name
        rows, size = self.ours(step), self.config.head_dim
        ours = rows.view(len(rows), -1, 2 * size)[..., :size].reshape(len(rows), -1)
        return self.meet_tensor(step, ours, theirs)

    def topk(self, scores, k, dim=-1):
        self.scores.append(scores)
        return first_of_equals(scores, k, dim)

    def routed(self, module, inputs, output):
        logits, weights, indices = output
        step = self.layer + "mlp.route"
        (probabilities,), self.scores = self.scores, []
        ours = self.ours(step + "/experts").long()
        for row, mine, theirs in zip(probabilities, ours, indices):
            self.note_flips(step, row, mine, theirs)
        chosen = self.meet(step + "/experts", indices.int()).long()
        if self.force == "choices":
            chosen = ours
            weights = torch.gather(probabilities, 1, chosen)
            if module.norm_topk_prob:
                weights = weights / weights.sum(dim=-1, keepdim=True)
            weights = weights.to(logits.dtype)
        ours = self.ours(step + "/weights").to(weights.dtype)
        return logits, self.meet_tensor(step + "/weights", ours, weights), chosen

    def note_flips(self, step, scores, ours, theirs):
        differ = set(ours.tolist()) ^ set(theirs.tolist())
        cut = scores[theirs].min()
        self.notes.flips[step] += [((scores[i] - cut).abs() / cut.abs().clamp_min(1e-30)).item() for i in differ]

    def index_add(self, total, dim, index, source):
        """The reference's experts add their terms to the rows of their tokens, one expert after the other."""
        self.added.append((index, source))
        return INDEX_ADD(total, dim, index, source)

    def terms(self, experts):
        """[tokens, chosen, H]: what was added since the last time, in the order of the router."""
        added, self.added = self.added, []
        terms = torch.empty(*experts.shape, added[0][1].shape[-1], dtype=added[0][1].dtype)
        for (index, source), e in zip(added, experts.unique(), strict=True):
            terms[index, (experts[index] == e).int().argmax(1)] = source
        return terms

    def mixture(self, module, inputs, output):
        """In bfloat16 the reference's accumulator rounds after every expert, quern's sum once: compared with the float32
        sum of the reference's own terms."""
        step = self.layer + "mlp.experts"
        if self.force != "all" or output.dtype == torch.float32:
            self.added.clear()
            return self.meet(step, output)
        x = inputs[0].reshape(-1, inputs[0].shape[-1])
        experts = self.ours(self.layer + "mlp.route/experts").long()
        terms = self.terms(experts)
        whole = sparse.combined(module, x, terms)
        shared = whole.float() - terms.float().sum(1)
        largest = torch.maximum(terms.float().abs().amax(1), shared.abs())
        ours = self.ours(step)
        far = (elements.units(ours, whole, largest).abs() > 2).any(-1)
        sample = torch.arange(len(x)) % -(-len(x) // EXACT_ROWS) == 0
        some = far | sample
        exact = whole.clone()
        with exact_sums():
            weights = self.ours(self.layer + "mlp.route/weights").to(x.dtype)
            module.experts(x[some], experts[some], weights[some])
            exact[some] = sparse.combined(module, x[some], self.terms(experts[some]))
        self.notes.summands[step].append(largest)
        self.notes.as_right[step].append(exact)
        self.notes.exact.append(elements.squares(*(rows[sample] for rows in (ours, whole, exact, largest))))
        return self.meet(step, whole.reshape(output.shape))

    def blocks(self, module, inputs, mask):
        """The choice as [tokens, all tokens]: which of them each query sees."""
        step = self.layer + "self_attn.indexer"
        rows, columns = mask.shape[-2:]
        seen = (mask[0, 0] == 0) & torch.ones(rows, columns, dtype=bool).tril(columns - rows)
        ours = self.visible(self.seen[step + "/blocks"], self.seen[step + "/counts"][:, 0], columns)
        ratio = self.config.indexer_compress_ratio
        scores, self.scores = self.scores, []
        for t, of_blocks in zip(range(rows - len(scores), rows), scores):  # queries without a block come first
            mine, theirs = (x[t, :len(of_blocks) * ratio:ratio].nonzero()[:, 0] for x in (ours, seen))
            self.note_flips(step, of_blocks, mine, theirs)
        if len(self.seen[step + "/keys"]):
            self.meet(step + "/keys", self.block_keys)
        if self.force is None:
            return mask
        return torch.where(ours, 0, torch.finfo(mask.dtype).min).to(mask.dtype)[None, None]

    def visible(self, blocks, counts, columns):
        ratio, rows = self.config.indexer_compress_ratio, len(counts)
        out = torch.zeros(rows, columns, dtype=bool)
        for t, count in enumerate(counts):
            n = columns - rows + t + 1
            complete = n // ratio * ratio
            if count < 0:
                out[t, :complete] = True
            for b in blocks[t, :max(count, 0)]:
                assert ratio * b + ratio <= complete
                out[t, ratio * b:ratio * b + ratio] = True
            out[t, complete:n] = True
        return out

    # ---- what is remembered ----

    def compare_cache(self, ids):
        for i, (layer, kept) in enumerate(zip(self.text.layers, self.cache.layers)):
            prefix = f"layers.{i}."
            if layer.layer_type == "linear_attention":
                # The reference keeps a row more than the taps reach back.
                self.newest(prefix + "linear_attn.conv1d/state", kept.conv_states[0])
            else:
                for head in range(self.config.num_key_value_heads):
                    self.meet(f"{prefix}self_attn.attention/keys.{head}", kept.keys[0, head])
                    self.meet(f"{prefix}self_attn.attention/values.{head}", kept.values[0, head])
                open_keys = kept.indexer_keys.shape[1] % self.config.indexer_compress_ratio
                raw = kept.indexer_keys[0, kept.indexer_keys.shape[1] - open_keys:]
                self.meet(prefix + "self_attn.indexer/open", raw)
            if layer.ple is not None:
                self.newest(prefix + "ple.conv1d/state", kept.conv_states[1])

    def newest(self, step, columns):
        rows = len(self.seen[step])
        self.meet(step, columns[0].T[columns.shape[-1] - rows:])
