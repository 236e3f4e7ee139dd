# SPDX-License-Identifier: Apache-2.0
"""Graphs of MatMulNBits nodes at the shapes of Qwen3-0.6B, in any form of the weights.

All nodes read the input "a" [m, K] and have weights of their own. Those differ in content, not only in place: ONNX
Runtime keeps one packed copy of equal weights, and would then read them from its cache. The output "tick" = z * z costs
nothing, so that a caller can run every node without being handed their results.
"""
import dataclasses

import numpy as np

SHAPES = {"qkv": (1024, 4096), "o": (2048, 1024), "gateup": (1024, 3072), "down": (3072, 1024), "lm_head": (1024, 151936)}
# Nodes of a shape that one token goes through.
TOKEN = {"qkv": 28, "o": 28, "gateup": 56, "down": 28, "lm_head": 1}
COLD_BYTES = 160_000_000  # weights of a graph, several times the last-level cache
WARM_BYTES = 8_000_000    # stays in it; several nodes a call, so that the call costs little beside them
PAGE = 4096


@dataclasses.dataclass(frozen=True)
class Form:
    bits: int = 4
    block: int = 32
    asymmetric: bool = False
    scales: str = "fp32"  # random ones; bf16: such that bfloat16 holds each exactly. Stored as float32 either way
    level: int = 4

    def __str__(self):
        return (f"{self.bits} bits, block {self.block}, {'asymmetric' if self.asymmetric else 'symmetric'}, {self.scales} scales, "
                f"level {self.level}")


def constants(form, k, n):
    """{name: array} of one node, as the operator's contract lays them out."""
    rng = np.random.default_rng(k * n)
    blocks = k // form.block
    scales = rng.uniform(0.003, 0.006, (n, blocks)).astype(np.float32)
    if form.scales == "bf16":
        scales = ((scales.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    made = {"b": rng.integers(0, 256, (n, blocks, form.block * form.bits // 8), np.uint8), "s": scales}
    if form.asymmetric:
        made["z"] = rng.integers(0, 256, (n, -(-blocks * form.bits // 8)), np.uint8)
    return made


def write_graph(path, form, shape, weights):
    """Writes the graph and its data beside it, returns the number of nodes. weights: "cold" or "warm"; shape None: no
    node but the tick."""
    from onnx import TensorProto, helper

    def value(name, *dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    inputs, outputs, initializers, nodes, count = [value("z", 1)], [value("tick", 1)], [], [], 0
    if shape is not None:
        k, n = SHAPES[shape]
        arrays = constants(form, k, n)
        count = max(1, (COLD_BYTES if weights == "cold" else WARM_BYTES) // sum(array.nbytes for array in arrays.values()))
        data, offset = path.with_suffix(".data"), 0
        with open(data, "wb") as out:
            for i in range(count):
                for name, array in arrays.items():
                    kind = TensorProto.FLOAT if array.dtype == np.float32 else TensorProto.UINT8
                    tensor = TensorProto(name=f"{name}{i}", data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
                    for key, entry in (("location", data.name), ("offset", offset), ("length", array.nbytes)):
                        tensor.external_data.add(key=key, value=str(entry))
                    initializers.append(tensor)
                    out.seek(offset)
                    out.write(np.roll(array, i).tobytes())
                    offset += -(-array.nbytes // PAGE) * PAGE
                nodes.append(helper.make_node("MatMulNBits", ["a", *(f"{name}{i}" for name in arrays)], [f"y{i}"], name=f"node{i}",
                                              domain="com.microsoft", K=k, N=n, bits=form.bits, block_size=form.block,
                                              accuracy_level=form.level))
                outputs.append(value(f"y{i}", "m", n))
        inputs.append(value("a", "m", k))
    nodes.append(helper.make_node("Mul", ["z", "z"], ["tick"], name="tick"))
    graph = helper.make_graph(nodes, "ops", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return count
