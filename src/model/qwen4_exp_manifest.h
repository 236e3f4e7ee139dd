// SPDX-License-Identifier: Apache-2.0
// Owns the tensor contract of qwen4_exp: which tensors a checkpoint of a configuration has, under which names, with
// which types and shapes. Derived from the configuration alone. Does not own reading them (qwen4_exp_weights.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/safetensors/header.h"
#include "model/qwen4_exp_config.h"

namespace quern::model {

// In which of its spellings a checkpoint is written; a choice of the writer that the configuration does not show.
struct Qwen4ExpForm {
  bool text_only = false;         // names start with "model." instead of "model.language_model."
  bool separate_experts = false;  // one tensor an expert and projection instead of stacks of all experts

  std::string_view prefix() const { return text_only ? "model." : "model.language_model."; }
};

struct TensorContract {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;
};

// The text model's tensors, ascending by name in byte order. A float8 checkpoint has separate experts always. Errors:
// unsupported for more than a million tensors.
Result<std::vector<TensorContract>> qwen4_exp_manifest(const Qwen4ExpConfig& config, const Qwen4ExpForm& form);

// What a checkpoint holds besides the text model, which is passed over: the draft head ("mtp.") and the vision tower
// ("model.visual.").
struct Qwen4ExpInventory {
  Qwen4ExpForm form;
  int64_t text_tensors = 0;
  int64_t draft_tensors = 0;
  int64_t vision_tensors = 0;
};

// Holds the tensors of a checkpoint (ascending by name) against the contract, every name, rank, extent and type, both
// ways. Errors: bad_model with the names that are missing and those that do not belong there, or with the first tensor
// of another type or shape; `where` is the place.
Result<Qwen4ExpInventory> check_qwen4_exp_tensors(const Qwen4ExpConfig& config,
                                                  std::span<const formats::SafetensorsTensor> tensors,
                                                  std::string_view where);

// What the names of a layer's tensors start with.
std::string qwen4_exp_layer_prefix(const Qwen4ExpForm& form, int32_t layer);

// Rows of each shard of the n-gram table of layer config.ple_layers[ple_index]: equal ones, the last may be shorter,
// and there may be fewer than split_ngram_parts. Errors: bad_model.
Result<std::vector<int64_t>> qwen4_exp_shard_rows(const Qwen4ExpConfig& config, int32_t ple_index);

}  // namespace quern::model
