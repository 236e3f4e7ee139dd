# SPDX-License-Identifier: Apache-2.0
"""One layer of a qwen4_exp checkpoint through the reference's own modules and through quern's kernels: every kernel gets the
reference's input of its step, and the differences are reported. ./dev oracle --checkpoint DIR --layer N runs it.

Files are mapped, and of the table of n-grams, of the embeddings and of the experts only those rows are read that the tokens
need. Tokens are random ids; the residual streams are their embeddings in four sizes with noise, since what the layers below
would make of them is not computed. Needs torch and transformers."""
import contextlib
import json
import pathlib
import types

import numpy as np
import qwen4_sparse_reference as sparse
import torch
import torch.nn.functional as F
from qwen4_elements import TYPES, array, random
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference

import quern
from quern import ops

COMPONENTS = ("hc", "gdn", "qsa", "moe", "ple")
PREFIXES = ("model.language_model.", "model.")
STORED = {"BF16": np.uint16, "I64": np.int64}


class Checkpoint:
    """The tensors of a folder by name, mapped: an element is read when somebody looks at it."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.tensors, config = {}, json.loads((folder / "config.json").read_text())
        self.config = reference.Qwen4ExpTextConfig(**config.get("text_config", config))
        self.config._attn_implementation = self.config._experts_implementation = "eager"
        for path in sorted(folder.glob("*.safetensors")):
            content = np.memmap(path, np.uint8, mode="c")
            header_end = 8 + int(content[:8].view("<u8")[0])
            for name, entry in json.loads(content[8:header_end].tobytes()).items():
                if name != "__metadata__":
                    self.tensors[name] = (content, header_end, entry)
        self.prefix = next(p for p in PREFIXES if p + "embed_tokens.weight" in self.tensors)

    def has(self, name):
        return self.prefix + name in self.tensors

    def stored(self, name):
        """The array as it lies in the file; bfloat16 as the uint16 of its bits."""
        if not self.has(name):
            raise SystemExit(f"the checkpoint has no tensor {self.prefix + name}")
        content, start, entry = self.tensors[self.prefix + name]
        if entry["dtype"] not in STORED:
            raise SystemExit(f"{self.prefix + name} is {entry['dtype']}; only {', '.join(STORED)} are compared")
        begin, end = entry["data_offsets"]
        return content[start + begin:start + end].view(STORED[entry["dtype"]]).reshape(entry["shape"])

    def tensor(self, name, dtype, rows=slice(None)):
        found = torch.from_numpy(self.stored(name)[rows])
        return found if found.dtype == torch.int64 else found.view(torch.bfloat16).to(dtype)

    def fill(self, module, name, dtype):
        """The module, built on the meta device, with all of its tensors that lie under `name`."""
        module.load_state_dict({key: self.tensor(f"{name}.{key}", dtype) for key in module.state_dict()}, assign=True)
        return module


class Report:
    """Rows of differences: of numbers, absolute and in parts of the largest of the reference; of choices, their number."""

    def __init__(self):
        self.rows = []

    def add(self, component, step, ours, theirs):
        theirs = theirs if isinstance(theirs, np.ndarray) else array(theirs)
        ours = np.asarray(ours).reshape(theirs.shape)
        as_number = [torch.from_numpy(np.ascontiguousarray(x)) for x in (ours, theirs)]
        if theirs.dtype == np.uint16:
            as_number = [x.view(torch.bfloat16) for x in as_number]
        mine, wanted = (x.double() for x in as_number)
        difference, largest = (mine - wanted).abs().max().item(), wanted.abs().max().item()
        self.rows.append({"component": component, "step": step, "elements": theirs.size, "differing": int((mine != wanted).sum()),
                          "max_abs": difference, "max_rel": difference / largest if largest else difference})


def watch(module, *names):
    """What goes into these parts of the module and what comes out, filled when it runs."""
    seen = {}
    for name in names:
        module.get_submodule(name).register_forward_hook(
            lambda m, i, o, name=name: seen.update({name: (i[0].detach().clone(), o.detach().clone())}))
    return seen


def projections(report, component, module, seen, *names):
    for name in names:
        weight = module.get_submodule(name).weight
        report.add(component, name, ops.linear(array(seen[name][0].flatten(0, -2)), array(weight)), seen[name][1])


def norms(report, component, module, seen, *names):
    for name in names:
        norm = module.get_submodule(name)
        group = norm.group_size or len(norm.weight)
        report.add(component, name, ops.centred_rms_norm(array(seen[name][0]), array(norm.weight), group=group, epsilon=norm.eps),
                   seen[name][1])


class Layer:
    def __init__(self, checkpoint, number, tokens, dtype, seed):
        self.checkpoint, self.c, self.dtype, self.name = checkpoint, checkpoint.config, TYPES[dtype], f"layers.{number}"
        if not 0 <= number < self.c.num_hidden_layers:
            raise SystemExit(f"layer {number} asked of a model with {self.c.num_hidden_layers}")
        self.number, self.generator = number, torch.Generator().manual_seed(seed)
        c = self.c
        self.ids = torch.randint(c.vocab_size, (1, tokens), generator=self.generator)
        rows = checkpoint.tensor("embed_tokens.weight", self.dtype, self.ids[0].numpy())
        sizes = torch.exp2(torch.arange(c.hc_count)) * rows.float().std().clamp_min(1e-3)
        noise = random(self.generator, tokens, c.hc_count, c.hidden_size) * sizes[:, None]
        self.streams = (rows.float()[:, None] + noise).flatten(1).to(self.dtype)[None]  # [1, T, C * H]
        self.report = Report()

    def build(self, make, name):
        with torch.device("meta"):
            module = make()
        return self.checkpoint.fill(module, f"{self.name}.{name}", self.dtype)

    def mixed(self, name):
        """The hyper-connection of this name, what it saw, and what it gives the sub-layer behind it, [1, T, H]."""
        module = self.build(lambda: reference.Qwen4ExpTextGatedResidual(self.c), name)
        seen = watch(module, "hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight")
        return module, seen, *module(self.streams)

    def hc(self):
        for name in ("attn_hyper_connection", "mlp_hyper_connection"):
            module, seen, mixed, streams, gates = self.mixed(name)
            part = f"hc {name.split('_')[0]}"
            norms(self.report, part, module, seen, "hc_norm")
            projections(self.report, part, module, seen, "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight")
            count = self.c.hc_count
            self.report.add(part, "gate", ops.hyper_gate(array(seen["input_mix_weight_down"][1][0]), streams=count),
                            seen["input_mix_weight_up"][0])
            self.report.add(part, "mix", ops.hyper_mix(array(seen["hc_norm"][1][0]), array(seen["input_mix_weight_up"][1][0]),
                                                       streams=count), mixed)
            y = random(self.generator, *mixed.shape).to(self.dtype)
            # As Qwen4ExpTextDecoderLayer.forward adds the output of a sub-layer.
            wanted = streams + (y.unsqueeze(-2) * gates.unsqueeze(-1)).flatten(-2)
            self.report.add(part, "scatter", ops.hyper_scatter(array(streams[0]), array(y[0]),
                                                               array(seen["block_inject_weight"][1][0])), wanted)

    def gdn(self):
        c = self.c
        module = self.build(lambda: reference.Qwen4ExpTextGatedDeltaNet(c, self.number), "linear_attn")
        seen = watch(module, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "norm", "out_proj")
        with watched_function("causal_conv1d_fn") as convolved, watched_function("torch_chunk_gated_delta_rule") as ruled:
            module(self.mixed("attn_hyper_connection")[2])
        projections(self.report, "gdn", module, seen, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        qkv, z, b, a = (seen[f"in_proj_{x}"][1][0] for x in ("qkv", "z", "b", "a"))
        past = array(torch.zeros(c.linear_conv_kernel_dim - 1, qkv.shape[1], dtype=self.dtype))
        conv = convolved.result[0].transpose(0, 1)
        self.report.add("gdn", "conv1d", ops.short_conv(array(qkv), array(module.conv1d.weight[:, 0]), past)[0], conv)
        empty = np.zeros((c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim), np.float32)
        out, _ = ops.gated_delta_rule(array(conv), array(b), array(a), array(module.A_log), array(module.dt_bias), empty, chunked=True)
        self.report.add("gdn", "delta_rule", out, ruled.result[0][0])
        o, gate = ruled.result[0][0].flatten(0, 1), z.reshape(-1, c.linear_value_head_dim)
        silu = (c.output_gate_type or c.hidden_act) == "silu"
        self.report.add("gdn", "norm", ops.gated_norm(array(o), array(gate), array(module.norm.weight), silu=silu,
                                                      epsilon=c.rms_norm_eps), seen["norm"][1])
        projections(self.report, "gdn", module, seen, "out_proj")

    def qsa(self):
        c, add = self.c, lambda *row: self.report.add("qsa", *row)
        layer = self.build(lambda: reference.Qwen4ExpTextAttention(c, self.number), "self_attn")
        seen = sparse.attend(layer, c, self.mixed("attn_hyper_connection")[2])
        parts = {name: (x[0][0], x[1]) for name, x in vars(seen).items() if isinstance(x, tuple)}
        projections(self.report, "qsa", layer, parts, "q_proj", "k_proj", "v_proj")
        norms(self.report, "qsa", layer, parts, "q_norm", "k_norm")
        q, gate, k, v = sparse.attention_inputs(layer, seen, c)
        positions, frequencies = torch.arange(len(q)).numpy(), array(seen.frequencies)
        for name, rotated in (("q", q), ("k", k)):
            add(f"{name}_rope", ops.partial_rope(array(parts[f"{name}_norm"][1].reshape(rotated.shape)), positions, frequencies), rotated)
        ratio, budget = c.indexer_compress_ratio, c.indexer_budget // c.indexer_compress_ratio
        indexer = layer.indexer
        add("index_qk_proj", ops.linear(array(parts["indexer"][0][0]), array(indexer.index_qk_proj.weight)), seen.z)
        keys, _, chosen, counts = ops.block_index(array(seen.z[0]), array(indexer.q_layernorm.weight), array(indexer.k_layernorm.weight),
                                                  frequencies, ratio=ratio, budget=budget, epsilon=c.rms_norm_eps)
        scores, wanted_keys = sparse.reference_scores(layer, seen)
        if len(keys):
            add("block keys", keys, wanted_keys)
        visible = sparse.choice(seen, len(q))
        ours = np.zeros((len(q), len(q) // ratio), bool)
        for t, (blocks, count) in enumerate(zip(chosen, counts)):
            ours[t, np.arange((t + 1) // ratio) if count < 0 else blocks[:count]] = True
        complete = np.arange(ours.shape[1]) < (np.arange(len(q))[:, None] + 1) // ratio
        theirs = visible[:, :ours.shape[1] * ratio:ratio] & complete
        # Of blocks with equal scores (of zero, often) the reference leaves open which are chosen: their scores are compared.
        add("chosen blocks", *(np.sort(np.where(mask, scores.numpy(), -1)) for mask in (ours, theirs)))
        blocks, counts = sparse.choice_lists(visible, ratio)
        nothing = array(torch.zeros(k.shape[1], 0, k.shape[2], dtype=self.dtype))
        out, *_ = ops.sparse_attention(*(array(x) for x in (q, gate, k, v)), nothing, nothing, blocks, counts, ratio=ratio,
                                       scale=layer.scaling)
        add("attention", out, seen.o_proj[0][0])
        projections(self.report, "qsa", layer, parts, "o_proj")

    def moe(self):
        c, add = self.c, lambda *row: self.report.add("moe", *row)
        x = self.mixed("mlp_hyper_connection")[2][0]
        router = self.build(lambda: reference.Qwen4ExpTextTopKRouter(c), "mlp.gate")
        logits, shares, experts = router(x)
        add("gate", ops.linear(array(x), array(router.weight)), logits)
        chosen, weights = ops.moe_route(array(logits), chosen=c.num_experts_per_tok, normalize=c.norm_topk_prob)
        # Of experts with equal scores the reference leaves open which come first: their scores are compared.
        add("chosen experts", array(logits.gather(1, torch.from_numpy(chosen).long())), logits.gather(1, experts))
        add("their weights", weights, shares.float())
        block, experts = self.experts(experts)
        wanted = block.experts(x, experts, shares) + F.sigmoid(block.shared_expert_gate(x)) * block.shared_expert(x)
        shared = block.shared_expert
        add("experts", ops.moe_matmul(array(x), *(array(w) for w in (
            block.experts.gate_up_proj, block.experts.down_proj, shared.gate_proj.weight, shared.up_proj.weight,
            shared.down_proj.weight, block.shared_expert_gate.weight)), experts.numpy().astype(np.int32), array(shares.float())), wanted)

    def experts(self, chosen):
        """The mixture with the chosen experts alone, and their numbers in it."""
        used, chosen = torch.unique(chosen, return_inverse=True)
        config = reference.Qwen4ExpTextConfig(**{**self.c.to_dict(), "num_experts": len(used), "num_experts_per_tok": 1})
        config._experts_implementation = "eager"
        with torch.device("meta"):
            block = reference.Qwen4ExpTextSparseMoeBlock(config)
        for part in ("shared_expert", "shared_expert_gate"):
            self.checkpoint.fill(block.get_submodule(part), f"{self.name}.mlp.{part}", self.dtype)
        stacks = {}
        for stack, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            name = f"{self.name}.mlp.experts"
            if self.checkpoint.has(f"{name}.{stack}"):
                stacks[stack] = self.checkpoint.tensor(f"{name}.{stack}", self.dtype, used.numpy())
            else:
                stacks[stack] = torch.stack([torch.cat([self.checkpoint.tensor(f"{name}.{e}.{part}.weight", self.dtype)
                                                        for part in parts]) for e in used.tolist()])
        block.experts.load_state_dict(stacks, assign=True)
        return block, chosen

    def ple(self):
        c, add = self.c, lambda *row: self.report.add("ple", *row)
        name = f"{self.name}.ple"
        with torch.device("meta"):
            layer = reference.Qwen4ExpTextPLELayer(c, self.number, c.ple_layer_ids.index(self.number + 1))
        table = Table(self.checkpoint, f"{name}.ple_embedding.ngram_embedding", self.dtype)
        del layer.ple_embedding._modules["ngram_embedding"]
        layer.ple_embedding.__dict__["ngram_embedding"] = table
        self.checkpoint.fill(layer, name, self.dtype)
        seen = watch(layer, "key_proj", "value_proj", "norm_key", "norm_query", "norm_conv", "conv1d")
        added = layer(self.streams, self.ids, None)
        embedding = layer.ple_embedding
        rows = ops.ngram_rows(self.ids[0].numpy().astype(np.int32), *(array(getattr(embedding, x)) for x in (
            "layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")), first=0, vocabulary=c.vocab_size,
            eos=embedding.eos_token_id)
        add("ngram_ids", rows, table.rows)
        # The table is bfloat16 in the file, and so are the rows of both.
        found = torch.from_numpy(ops.ngram_embed(table.shards, table.rows.numpy()[0]))
        add("ngram_embedding", array(found.view(torch.bfloat16).to(self.dtype)), seen["key_proj"][0])
        projections(self.report, "ple", layer, seen, "key_proj", "value_proj")
        norms(self.report, "ple", layer, seen, "norm_key", "norm_query", "norm_conv")
        gated = seen["norm_conv"][0]
        add("gate", ops.ple_gate(*(array(seen[x][1][0]) for x in ("norm_key", "norm_query", "value_proj"))), gated)
        past = array(torch.zeros(layer.short_conv_state_len, gated.shape[-1], dtype=self.dtype))
        conv, _ = ops.short_conv(array(seen["norm_conv"][1][0]), array(layer.conv1d.weight[:, 0]), past, dilation=c.ngram_size)
        wanted = F.silu(seen["conv1d"][1][0]).transpose(0, 1)
        add("conv1d", conv, wanted)
        add("add", ops.ple_add(array(self.streams[0]), array(gated[0]), array(wanted)), self.streams + added)


class Table:
    """Stands for the embedding of the n-grams: reads the rows that it is asked for from the shards, and keeps their numbers."""

    def __init__(self, checkpoint, name, dtype):
        self.shards = []
        while checkpoint.has(f"{name}.shard_{len(self.shards)}.weight"):
            self.shards.append(checkpoint.stored(f"{name}.shard_{len(self.shards)}.weight"))
        self.weight, self.dtype = torch.empty(0), dtype

    def __call__(self, rows):
        self.rows = rows
        each, flat = len(self.shards[0]), rows.flatten().tolist()
        found = np.stack([self.shards[row // each][row % each] for row in flat])
        return torch.from_numpy(found).view(torch.bfloat16).to(self.dtype).reshape(*rows.shape, -1)


@contextlib.contextmanager
def watched_function(name):
    """The last result of a function of the reference's module."""
    original, seen = getattr(reference, name), types.SimpleNamespace()

    def watched(*arguments, **named):
        seen.result = original(*arguments, **named)
        return seen.result

    setattr(reference, name, watched)
    try:
        yield seen
    finally:
        setattr(reference, name, original)


def compare(folder, number, component=None, tokens=None, dtype="bfloat16", seed=1):
    """Rows of differences of the components that the layer has."""
    checkpoint = Checkpoint(folder)
    c, rows = checkpoint.config, []
    linear = c.layer_types[number] == "linear_attention" if 0 <= number < c.num_hidden_layers else True
    there = {"hc", "moe", "gdn" if linear else "qsa"} | ({"ple"} if number + 1 in c.ple_layer_ids else set())
    if component and component not in there:
        raise SystemExit(f"layer {number} has no {component}; it has {', '.join(sorted(there))}")
    for one in [component] if component else [x for x in COMPONENTS if x in there]:
        # So many that the indexer of a sparse layer has something to leave out.
        length = tokens or (c.indexer_budget + 64 if one == "qsa" else 64)
        with torch.no_grad():
            layer = Layer(checkpoint, number, length, dtype, seed)
            getattr(layer, one)()
        rows += layer.report.rows
    return rows


def main(arguments):
    rows = compare(arguments.checkpoint, arguments.layer, arguments.component, arguments.tokens,
                   {"fp32": "float32", "bf16": "bfloat16"}[arguments.compute])
    if arguments.json:
        print(json.dumps({"checkpoint": arguments.checkpoint, "layer": arguments.layer, "compute": arguments.compute,
                          "quern": quern.__file__, "rows": rows}))
        return 0
    print(f"{'component':10} {'step':22} {'elements':>10} {'differing':>10} {'max abs':>10} {'max rel':>10}")
    for r in rows:
        print(f"{r['component']:10} {r['step']:22} {r['elements']:10} {r['differing']:10} {r['max_abs']:10.2e} {r['max_rel']:10.2e}")
    return 0
