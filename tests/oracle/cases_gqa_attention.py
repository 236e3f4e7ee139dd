# SPDX-License-Identifier: Apache-2.0
"""Live-oracle cases of com.microsoft::GroupQueryAttention: prompts, decode, continuation, padded and ragged batches, every
attribute that is supported, the optional bias and sink, and what is refused around them.

Tolerances: outputs 2e-5 for inputs of unit variance (float sums in another order), keys 1e-6 of max(1, |x|) (rotation in
float), values and old rows bit for bit. Where ONNX Runtime must not be imitated, `Call.expected` writes the formula out.
"""
import numpy as np
from one_node import floats, one_node

TOLERANCES = {"outputs": {"y": {"atol": 2e-5}, "present_key": {"atol": 1e-6, "rtol": 1e-6}, "present_value": {}}}
NAMES = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
         "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"]


class Call:
    """One call of the node. lengths: valid tokens of each sequence after the call (default: total for all)."""

    def __init__(self, b=1, s=1, past=0, total=None, *, nq=4, nk=2, d=32, rotary=None, rows=None, lengths=None, seed=1,
                 dtype=np.float32):
        self.b, self.s, self.past, self.nq, self.nk, self.d = b, s, past, nq, nk, d
        self.total = past + s if total is None else total
        self.lengths = [self.total] * b if lengths is None else lengths
        self.rotary = d if rotary is None else rotary
        rows = max(self.total, 64) if rows is None else rows
        angles = np.arange(rows)[:, None] / 1e6 ** (np.arange(self.rotary // 2) * 2 / max(self.rotary, 1))
        self.inputs = {
            "query": floats(seed, b, s, nq * d).astype(dtype), "key": floats(seed + 1, b, s, nk * d).astype(dtype),
            "value": floats(seed + 2, b, s, nk * d).astype(dtype),
            "past_key": floats(seed + 3, b, nk, past, d).astype(dtype),
            "past_value": floats(seed + 4, b, nk, past, d).astype(dtype),
            "seqlens_k": np.array(self.lengths, np.int32) - np.int32(1),
            "total_sequence_length": np.array(self.total, np.int32),
            "cos_cache": np.cos(angles).astype(dtype), "sin_cache": np.sin(angles).astype(dtype)}
        self.attributes = {"num_heads": nq, "kv_num_heads": nk, "do_rotary": int(self.rotary > 0)}
        if not self.rotary:
            self.drop("cos_cache", "sin_cache")
        self.outputs = ["y", "present_key", "present_value"]
        self.constants = ("cos_cache", "sin_cache")

    def drop(self, *names):
        for name in names:
            del self.inputs[name]
        return self

    def set(self, **inputs):
        self.inputs.update(inputs)
        return self

    def with_attributes(self, **attributes):
        self.attributes.update(attributes)
        return self

    def with_outputs(self, *outputs):
        self.outputs = list(outputs)
        return self

    def fed(self, *names):
        """Nothing is a constant but what is named."""
        self.constants = names
        return self

    def packed(self):
        joined = np.concatenate([self.inputs.pop(n) for n in ("query", "key", "value")], axis=2)
        return self.set(query=joined)

    def expected(self):
        """The formula in double precision."""
        i, a = self.inputs, self.attributes
        capacity = max(self.total, self.past)
        present = {n: np.zeros((self.b, self.nk, capacity, self.d)) for n in ("key", "value")}
        y = np.zeros((self.b, self.s, self.nq, self.d))
        scale = a.get("scale") or 1 / np.sqrt(self.d)
        for b in range(self.b):
            past = 0 if self.s == self.total else self.lengths[b] - self.s
            positions = past + np.arange(self.s)
            for n in ("key", "value"):
                present[n][b, :, :past] = i[f"past_{n}"][b, :, :past]
                fresh = i[n][b].astype(np.float64).reshape(self.s, self.nk, self.d)
                fresh = self.rotated(fresh, positions) if n == "key" else fresh
                present[n][b, :, past:past + self.s] = fresh.transpose(1, 0, 2)
            q = self.rotated(i["query"][b].astype(np.float64).reshape(self.s, self.nq, self.d), positions)
            for s in range(self.s):
                n = min(past + s + 1, self.lengths[b])
                window = a.get("local_window_size", -1)
                low = max(0, n - window) if window > 0 else 0
                for h in range(self.nq):
                    g = h // (self.nq // self.nk)
                    x = scale * present["key"][b, g, low:n] @ q[s, h]
                    if a.get("softcap", 0) > 0:
                        x = a["softcap"] * np.tanh(x / a["softcap"])
                    if "attention_bias" in i:
                        bias = i["attention_bias"]
                        x = x + bias[b % bias.shape[0], h % bias.shape[1], s, low:n]
                    sink = i["head_sink"][h] if "head_sink" in i else -np.inf
                    top = max(x.max(), sink)
                    p = np.exp(x - top)
                    y[b, s, h] = p / (p.sum() + np.exp(sink - top)) @ present["value"][b, g, low:n]
        result = {"y": y.reshape(self.b, self.s, self.nq * self.d), "present_key": present["key"], "present_value": present["value"]}
        return {n: v.astype(np.float32) for n, v in result.items()}

    def rotated(self, x, positions):
        if not self.attributes["do_rotary"]:
            return x
        half = self.rotary // 2
        cos = self.inputs["cos_cache"].astype(np.float64)[positions][:, None]
        sin = self.inputs["sin_cache"].astype(np.float64)[positions][:, None]
        pairs = slice(0, self.rotary, 2), slice(1, self.rotary, 2)
        first, second = pairs if self.attributes.get("rotary_interleaved") else (slice(0, half), slice(half, self.rotary))
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    def case(self, name, expect="ok", *, ort=None, formula=False):
        inputs = [(n, self.inputs[n]) if n in self.inputs else None for n in NAMES]
        while inputs and inputs[-1] is None:
            inputs.pop()
        dtype = self.inputs["query"].dtype if "query" in self.inputs else np.float32
        ranks = {"y": 3, "present_key": 4, "present_value": 4, "scores": 4}
        model, feeds = one_node("GroupQueryAttention", inputs,
                                [(n, dtype, ranks[n]) if n else None for n in self.outputs], domain="com.microsoft",
                                constants=[n for n in self.constants if n in self.inputs], **self.attributes)
        tolerances = dict(TOLERANCES)
        if ort:
            tolerances["ort"] = ort
        if formula:
            # The formula rounds values once from double: they are floats already, so exactly.
            tolerances |= {"ort": "skip", "expected": self.expected()}
        return name, model, feeds, tolerances, expect


def cases():
    yield from cases_that_run()
    yield from cases_with_addends()
    yield from cases_not_imitated()
    yield from cases_refused_at_load()
    yield from cases_refused_at_run()


def cases_that_run():
    geometry = {"nq": 16, "nk": 8, "d": 128}
    for s in (1, 2, 3, 7, 32, 33, 64, 100, 129):
        yield Call(s=s, **geometry).case(f"prompt-{s}")
    for past in (1, 2, 31, 63, 64, 127, 128, 129, 511, 512, 513, 1023, 1500):
        yield Call(past=past, **geometry).case(f"decode-{past}")
    for s, past in ((2, 1), (3, 64), (4, 130), (9, 600), (60, 100), (97, 33)):
        yield Call(s=s, past=past, **geometry).case(f"continue-{s}-after-{past}")
    for nq, nk in ((1, 1), (4, 4), (8, 1), (5, 1), (32, 4), (6, 2), (40, 8)):
        yield Call(s=5, nq=nq, nk=nk).case(f"heads-{nq}-over-{nk}")
        yield Call(past=70, nq=nq, nk=nk).case(f"heads-{nq}-over-{nk}-decode")
    for d in (8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256):
        yield Call(s=19, d=d, rotary=0).case(f"head-size-{d}")
        yield Call(past=50, d=d, rotary=0).case(f"head-size-{d}-decode")
    for d, rotary in ((16, 16), (32, 16), (48, 48), (64, 32), (80, 16), (128, 64), (256, 256)):
        for interleaved in (0, 1):
            yield Call(s=6, d=d, rotary=rotary).with_attributes(rotary_interleaved=interleaved).case(
                f"rotary-{rotary}-of-{d}-interleaved-{interleaved}")
        yield Call(s=1, past=9, d=d, rotary=rotary).with_attributes(rotary_interleaved=1).case(f"rotary-{rotary}-of-{d}-decode")

    yield Call(s=5).with_attributes(scale=0.0).case("scale-zero-is-default")
    yield Call(s=5).with_attributes(scale=0.3).case("scale-0.3")
    yield Call(s=5).with_attributes(scale=-0.2).case("scale-negative")
    for cap in (0.0, 0.5, 30.0):
        yield Call(s=9, past=20).with_attributes(softcap=cap).case(f"softcap-{cap}")
    for window in (-1, 1, 2, 16, 20, 64, 1000):
        yield Call(s=100).with_attributes(local_window_size=window).case(f"window-{window}-prompt")
        yield Call(past=80).with_attributes(local_window_size=window).case(f"window-{window}-decode")
        yield Call(s=8, past=700).with_attributes(local_window_size=window).case(f"window-{window}-continue")
    neutral = {"smooth_softmax": 0, "qk_output": 0, "k_quant_type": "NONE", "v_quant_type": "NONE", "kv_cache_bit_width": 0,
               "causal": 1, "local_window_size": -1, "softcap": 0.0}
    yield Call(s=3, past=4).with_attributes(**neutral).case("neutral-attributes")

    yield Call(b=2, s=7, lengths=[7, 4]).case("padded-prompts")
    yield Call(b=3, s=40, lengths=[40, 1, 22]).case("padded-prompts-long")
    yield Call(b=2, past=9, lengths=[10, 6]).case("ragged-decode")
    yield Call(b=3, past=600, lengths=[601, 33, 300]).case("ragged-decode-long")
    yield Call(b=2, past=9, total=10, lengths=[5, 3]).case("ragged-decode-short-of-total")
    yield Call(s=3, past=12, total=9).case("past-has-room")
    yield Call(s=3, past=20, total=3).case("restarted-prompt")
    yield Call(s=3, total=8, lengths=[3]).case("mask-wider-than-ids")
    yield Call(b=2, past=0, s=1, total=1).case("one-token-prompts")
    hidden = Call(s=2, past=16, total=7)
    hidden.inputs["past_key"][:, :, 5:] = np.nan
    hidden.inputs["past_value"][:, :, 5:] = np.nan
    yield hidden.case("unseen-rows-are-nan")
    yield Call(s=5, past=3).packed().case("packed")
    yield Call(b=2, s=6, lengths=[6, 2]).packed().case("packed-padded")
    yield Call(past=30).packed().case("packed-decode")
    yield Call(s=4).drop("past_key", "past_value").case("no-past-inputs")
    yield Call(s=4).drop("past_key", "past_value").with_outputs("y").case("present-omitted-without-past")
    one = Call(s=4, past=2)
    yield one.set(seqlens_k=np.array([[5]], np.int32), total_sequence_length=np.array([6], np.int32)).case("lengths-rank-2")
    yield Call(b=2, past=2).set(seqlens_k=np.array([[2], [2]], np.int32)).case("lengths-batch-rank-2")
    yield Call(s=4, past=2).fed().case("tables-fed")
    yield Call(s=4, past=2).fed("cos_cache", "sin_cache", "total_sequence_length").case("total-constant")
    yield Call(s=4, past=2).with_attributes(do_rotary=0).case("tables-ignored-without-rotation")
    yield Call(s=6, rows=6).case("tables-exactly-as-long")


def cases_with_addends():
    """attention_bias [1 or B, 1 or Nq, S, total] and head_sink [Nq]."""
    for s, past in ((1, 0), (1, 5), (1, 600), (1, 1500), (2, 130), (5, 0), (7, 33), (40, 0), (100, 0), (30, 100)):
        for batch, heads in ((1, 1), (1, 4)):
            bias = floats(77, batch, heads, s, past + s)
            yield Call(s=s, past=past).set(attention_bias=bias).case(f"bias-{s}-after-{past}-heads-{heads}")
        yield Call(s=s, past=past).set(head_sink=floats(78, 4, scale=3)).case(f"sink-{s}-after-{past}")
        yield Call(s=s, past=past).set(attention_bias=floats(77, 1, 4, s, past + s), head_sink=floats(78, 4)).case(
            f"bias-and-sink-{s}-after-{past}")
    for scale in (0, 30, 300):
        yield Call(s=9, past=3).set(head_sink=floats(78, 4, scale=scale)).case(f"sink-scale-{scale}")
    yield Call(s=9, past=3).set(head_sink=np.full(4, -np.inf, np.float32)).case("sink-minus-infinity")
    yield Call(s=9, past=3).set(attention_bias=floats(77, 1, 4, 9, 12, scale=100)).case("bias-large")
    hidden = floats(77, 1, 1, 9, 12)
    hidden[..., 1] = -np.inf
    yield Call(s=9, past=3).set(attention_bias=hidden).case("bias-hides-a-key")
    unseen = floats(77, 1, 1, 9, 12)
    unseen[0, 0, 0, 5:] = np.nan
    yield Call(s=9, past=3).set(attention_bias=unseen).case("bias-of-unseen-keys-is-nan")
    masked = floats(77, 1, 1, 9, 12)
    masked[0, 0, 3] = -np.inf
    yield Call(s=9, past=3).set(attention_bias=masked).case("bias-hides-all-keys")
    yield Call(s=9, past=3).set(attention_bias=masked, head_sink=floats(78, 4)).case("bias-hides-all-keys-under-a-sink")
    for batch in (1, 3):
        for heads in (1, 4):
            bias = floats(77, batch, heads, 6, 6)
            yield Call(b=3, s=6, lengths=[6, 2, 5]).set(attention_bias=bias).case(f"bias-of-{batch}-by-{heads}-padded")
            bias = floats(77, batch, heads, 1, 10)
            yield Call(b=3, past=9, lengths=[10, 6, 2]).set(attention_bias=bias, head_sink=floats(78, 4)).case(
                f"bias-of-{batch}-by-{heads}-ragged")
    both = {"attention_bias": floats(77, 1, 4, 20, 23), "head_sink": floats(78, 4)}
    yield Call(s=20, past=3).set(**both).with_attributes(softcap=0.5).case("bias-after-softcap")
    yield Call(s=20, past=3).set(**both).with_attributes(local_window_size=6).case("bias-and-window")
    yield Call(s=20, past=3).set(**both).packed().case("bias-packed")
    yield Call(s=3, past=12, total=9).set(attention_bias=floats(77, 1, 1, 3, 9)).case("bias-where-past-has-room")
    constant = Call(s=3, past=4).set(attention_bias=floats(77, 1, 1, 3, 7), head_sink=floats(78, 4))
    yield constant.fed("attention_bias", "head_sink").case("bias-and-sink-constant")


def cases_not_imitated():
    yield Call(b=2, s=3, past=5, lengths=[8, 6]).case("batched-continuation", formula=True)
    yield Call(b=3, s=20, past=70, lengths=[90, 20, 51]).case("batched-continuation-long", formula=True)
    yield Call(b=1, s=1, past=6).with_outputs("y").case("present-omitted", formula=True)
    yield Call(b=2, s=1, past=6, lengths=[7, 3]).with_outputs("y").case("present-omitted-ragged", formula=True)
    # Refused by ONNX Runtime 1.30; the meaning is plain.
    yield Call(s=4, past=2).set(seqlens_k=np.array(5, np.int32)).case("lengths-scalar", formula=True)
    # ONNX Runtime 1.30 dies of a division by zero.
    yield Call(b=0, s=2, past=3).case("no-sequences", formula=True)


def cases_refused_at_load():
    call = Call
    for window in (0, -2, -100):
        yield call(s=3).with_attributes(local_window_size=window).case(f"window-{window}", "load", ort="skip")
    yield call(s=3, dtype=np.float16).case("float16", "load", ort="skip")
    positions = np.zeros((1, 3), np.int64)
    yield call(s=3).set(position_ids=positions).case("position-ids", "load", ort="skip")
    yield call(s=3).set(attention_bias=np.zeros((1, 1, 3, 3), np.float16)).case("bias-float16", "load")
    yield call(s=3).set(head_sink=np.zeros(4, np.float16)).case("sink-float16", "load")
    yield call(s=3).set(k_scale=floats(9, 1), v_scale=floats(8, 1)).case("kv-scales", "load", ort="skip")
    yield call(s=3).set(q_norm_weight=floats(9, 32), k_norm_weight=floats(8, 32)).case("norm-weights", "load")
    for name, value in (("smooth_softmax", 1), ("causal", 0), ("sliding_window_cache", 1), ("qk_output", 1),
                        ("kv_cache_bit_width", 8), ("k_quant_type", "PER_TENSOR"), ("v_quant_type", "PER_CHANNEL")):
        yield call(s=3).with_attributes(**{name: value}).case(f"attribute-{name}", "load", ort="skip")
    yield call(s=3).with_attributes(softcap=-1.0).case("softcap-negative", "load", ort="skip")
    yield call(s=3).with_attributes(surprise=1).case("attribute-unknown", "load")
    yield call(s=3).with_outputs("y", "present_key", "present_value", "scores").case("scores-requested", "load")
    yield call(s=3).with_attributes(num_heads=0).case("no-heads", "load")
    yield call(s=3).with_attributes(kv_num_heads=0).case("no-kv-heads", "load")
    yield call(s=3, nq=3).case("heads-not-divisible", "load")
    no_heads = call(s=3)
    del no_heads.attributes["num_heads"]
    yield no_heads.case("heads-missing", "load")
    yield call(s=3).drop("key").case("value-without-key", "load")
    yield call(s=3).drop("value").case("key-without-value", "load")
    yield call(s=3).drop("past_key").case("past-value-alone", "load")
    yield call(s=3).drop("past_value").case("past-key-alone", "load")
    yield call(s=3).drop("cos_cache").case("sin-alone", "load")
    yield call(s=3).drop("sin_cache").case("cos-alone", "load")
    yield call(s=3).drop("cos_cache", "sin_cache").case("rotation-without-tables", "load")
    yield call(s=3).set(seqlens_k=np.array([2], np.int64)).case("lengths-int64", "load")
    yield call(s=3, rotary=8).case("table-width-4", "load")


def cases_refused_at_run():
    for d in (12, 20):
        yield Call(s=3, d=d, rotary=0).case(f"head-size-{d}", "run")
    yield Call(s=3, d=24, rotary=16).case("head-size-24-rotated", "run")
    yield Call(s=3).set(query=floats(1, 3, 128)).case("query-rank-2", "run")
    yield Call(s=3).set(key=floats(1, 3, 64)).case("key-rank-2", "run")
    yield Call(s=3).set(value=floats(1, 3, 64)).case("value-rank-2", "run")
    yield Call(s=3).set(key=floats(1, 1, 2, 64), value=floats(1, 1, 2, 64)).case("key-shorter-than-query", "run")
    yield Call(s=3).set(key=floats(1, 1, 3, 32)).case("key-width", "run")
    yield Call(b=2, s=3).set(key=floats(1, 1, 3, 64), value=floats(1, 1, 3, 64)).case("key-batch", "run")
    yield Call(s=0, total=1).case("no-tokens", "run")
    yield Call(b=2, s=3).set(seqlens_k=np.array([2], np.int32)).case("lengths-too-few", "run")
    yield Call(s=3).set(seqlens_k=np.array([2, 2], np.int32)).case("lengths-too-many", "run")
    yield Call(past=3).set(seqlens_k=np.array([-1], np.int32)).case("length-negative", "run")
    yield Call(past=3).set(seqlens_k=np.array([4], np.int32)).case("length-beyond-present", "run")
    yield Call(past=3).set(seqlens_k=np.array([2**31 - 1], np.int32)).case("length-huge", "run")
    yield Call(past=70, total=40, rows=60).set(seqlens_k=np.array([60], np.int32)).case("length-beyond-tables", "run")
    yield Call(s=3, past=5).set(seqlens_k=np.array([1], np.int32)).case("length-below-new-tokens", "run")
    yield Call(s=1, past=3, total=9).set(seqlens_k=np.array([5], np.int32)).case("past-too-short", "run")
    yield Call(s=3, total=5).case("past-missing", "run")
    yield Call(s=3).set(total_sequence_length=np.array([[3]], np.int32)).case("total-rank-2", "run")
    yield Call(s=3).set(total_sequence_length=np.array([3, 3], np.int32)).case("total-two-elements", "run")
    yield Call(s=3).set(total_sequence_length=np.array(0, np.int32)).case("total-zero", "run")
    yield Call(s=3).set(total_sequence_length=np.array(-3, np.int32)).case("total-negative", "run")
    for shape in ((3, 5), (1, 3, 5), (1, 1, 3, 4), (1, 1, 3, 6), (1, 1, 5, 5), (1, 2, 3, 5), (2, 1, 3, 5), (1, 1, 3, 5, 1)):
        yield Call(s=3, past=2).set(attention_bias=floats(9, *shape)).case(f"bias-{'x'.join(map(str, shape))}", "run")
    yield Call(s=3).set(head_sink=floats(9, 3)).case("sink-too-short", "run")
    yield Call(s=3).set(head_sink=floats(9, 1, 4)).case("sink-rank-2", "run")
    yield Call(s=1, past=12, total=9).set(attention_bias=floats(9, 1, 1, 1, 9), seqlens_k=np.array([10], np.int32)).case(
        "length-beyond-bias", "run", ort="skip")
    yield Call(s=3, rows=2).case("tables-too-short", "run")
    yield Call(s=3, d=32, rotary=48).case("tables-too-wide", "run")
    yield Call(s=3).fed().set(sin_cache=floats(1, 64, 8)).case("tables-differ", "run")
    # ONNX Runtime 1.30 ends the process.
    yield Call(s=3).fed().set(cos_cache=floats(1, 64), sin_cache=floats(1, 64)).case("tables-rank-1", "run", ort="skip")
    yield Call(s=3, past=4).set(past_key=floats(1, 1, 2, 32), past_value=floats(1, 1, 2, 32)).case("past-rank-3", "run")
    yield Call(s=3, past=4).set(past_key=floats(1, 1, 1, 4, 32)).case("past-heads", "run")
    yield Call(s=3, past=4).set(past_key=floats(1, 1, 2, 4, 16), past_value=floats(1, 1, 2, 4, 16)).case("past-head-size", "run")
    yield Call(s=3, past=4).set(past_value=floats(1, 1, 2, 5, 32)).case("past-extents-differ", "run")
    yield Call(s=3, past=4).set(past_key=floats(1, 2, 2, 4, 32), past_value=floats(1, 2, 2, 4, 32)).case("past-batch", "run")
