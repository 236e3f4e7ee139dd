// SPDX-License-Identifier: Apache-2.0
// Owns which graph input and output of a Qwen3 export is what, and the agreement of genai_config.json with the graph.
// Does not own running the graph (qwen3.cc).
#pragma once

#include <string>
#include <vector>

#include "formats/genai_config.h"
#include "graph/model.h"

namespace quern::model {

// Indices into graph::Model::inputs() and outputs().
struct Qwen3Layer {
  int past_key = -1;
  int past_value = -1;
  int present_key = -1;
  int present_value = -1;
};

struct Qwen3Binding {
  int input_ids = -1;
  int attention_mask = -1;
  int logits = -1;
  std::vector<Qwen3Layer> layers;
  // The node behind the logits works row by row, so that rows nobody asked for need not be computed.
  bool logits_by_row = false;
};

// `where` is the path of the configuration. The result guarantees: the layers, head counts, head size, hidden size and
// vocabulary of `config` are those of the graph wherever the graph states them; context_length is the number of rows of
// the rotary caches; every layer's past and present belong to one GroupQueryAttention node and to nothing else, so that
// they may be the same memory; every other graph input has a default.
// Errors: bad_model with both numbers, unsupported for inputs and types that this line does not feed.
Result<Qwen3Binding> bind_qwen3(const graph::Model& model, const formats::GenaiConfig& config,
                                const std::string& where);

}  // namespace quern::model
