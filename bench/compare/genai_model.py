# SPDX-License-Identifier: Apache-2.0
"""onnxruntime-genai as a subject of model_worker.py: its own cache, in one buffer of as many rows as it may need. It runs the
same last-row graph as the subject ONNX Runtime."""
import json

import numpy as np
import onnxruntime_genai

from compare.ort_model import last_row_graph


class Model:
    def __init__(self, folder, threads, capacity):
        self.capacity = capacity
        config = onnxruntime_genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {
            "filename": last_row_graph(folder).name, "session_options": {"intra_op_num_threads": threads, "inter_op_num_threads": 1}}}}))
        self.model = onnxruntime_genai.Model(config)
        self.begin()

    @staticmethod
    def facts():
        return {"version": onnxruntime_genai.__version__}

    def begin(self):
        params = onnxruntime_genai.GeneratorParams(self.model)
        params.set_search_options(max_length=self.capacity, do_sample=False)
        self.generator = onnxruntime_genai.Generator(self.model, params)

    def step(self, ids):
        # Appending computes the logits behind the ids; choosing a token would only read them.
        self.generator.append_tokens(np.array(ids, np.int32))

    def extend(self, ids):
        self.step(ids)
        return self.generator.get_logits().reshape(-1)

    def fill(self, ids):
        self.begin()
        if ids:
            self.step(ids)

    def restore(self, depth):
        self.generator.rewind_to(depth)

    def length(self):
        return self.generator.token_count()
