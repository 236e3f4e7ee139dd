// SPDX-License-Identifier: Apache-2.0
// Owns the forward pass of qwen4_exp: which rooms run on which weights in which order. Does not own their arithmetic,
// the timeline (qwen4_exp_past.h), nor what calls may ask for (qwen4_exp.cc checks that).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/features.h"
#include "model/line.h"
#include "model/qwen4_exp_config.h"
#include "model/qwen4_exp_past.h"
#include "model/qwen4_exp_weights.h"
#include "ops/context.h"

namespace quern::model {

// One call of a room, in the order of execution.
struct Qwen4ExpStep {
  std::string name;  // of the weight it reads where it reads one, as in "layers.3.self_attn.q_proj"
  std::string_view room;
  // The kernel that the room selects for what the call asks of it: for several tokens, and for a single one.
  std::string_view variant, token_variant;
};

// What one step did in the latest pass, added up over its chunks.
struct Qwen4ExpStepCost {
  int64_t ns = 0;
  uint64_t bytes_copied = 0;
  std::string_view variant;  // of the last chunk; empty where the step did not run
};

// The model as a pass needs it; immutable, shared by all timelines.
struct Qwen4ExpModel {
  Qwen4ExpConfig config;
  std::unique_ptr<const Qwen4ExpWeights> weights;
  std::vector<float> frequencies;   // of the rotation, rotary_dim / 2
  std::vector<Qwen4ExpStep> steps;  // filled by list_qwen4_exp_steps()
};

// The steps of every pass, with the kernels for this type of the model under these features.
std::vector<Qwen4ExpStep> list_qwen4_exp_steps(const Qwen4ExpConfig& config, DType type, const cpu::Features& features);

struct Qwen4ExpPass {
  const Qwen4ExpModel& model;
  Qwen4ExpPast& past;
  ops::Context context;               // its scratch has room for intermediates too
  std::span<const int32_t> ids;       // of the whole timeline; those from past.tokens() on are computed
  int64_t first_row = 0;              // logits are wanted after ids[first_row] and the following,
  int64_t rows = 0;                   // so many, none of them computed before
  std::span<float> logits;            // [rows][V]
  std::span<Qwen4ExpStepCost> costs;  // one a step, added to
  bool profile = false;               // measure their time
  const Observer& observer;           // may be empty
};

// Afterwards the past holds all ids. Errors: no_memory; those of the rooms, which the checks at opening leave no cause
// for. After an error the past is as long as it was after the last whole chunk, and has to recover().
Result<void> run_qwen4_exp(const Qwen4ExpPass& pass);

}  // namespace quern::model
