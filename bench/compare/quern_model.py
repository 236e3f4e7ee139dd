# SPDX-License-Identifier: Apache-2.0
"""quern as a subject of model_worker.py, through its Python module."""
import quern

CHUNK = 512  # tokens of a prompt computed at once: what a session of the engine does by default


class Model:
    """`kv`: what keys and values are kept as; None: whatever the engine does by default."""

    def __init__(self, folder, threads, capacity, kv=None):
        self.model = quern.LLM(folder, threads=threads, **({"kv": kv} if kv else {}))
        self.state = self.model.new_state()

    @staticmethod
    def facts():
        return {"version": quern.__version__}

    def begin(self):
        self.state.reset()

    def extend(self, ids):
        for at in range(0, len(ids), CHUNK):
            row = self.model.forward(self.state, ids[at:at + CHUNK])
        return row

    def fill(self, ids):
        self.begin()
        if ids:
            self.extend(ids)

    step = extend

    def restore(self, depth):
        self.state.rewind(depth)

    def length(self):
        return self.state.length
