// SPDX-License-Identifier: Apache-2.0
// Owns the weights of a qwen4_exp model as its forward pass takes them: one struct a layer, resolved from the mapped
// checkpoint. Does not own what is computed with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "formats/safetensors/checkpoint.h"
#include "model/qwen4_exp_config.h"
#include "model/qwen4_exp_manifest.h"
#include "ops/moe_matmul/moe_matmul.h"
#include "ops/ngram_embed/ngram_embed.h"
#include "ops/ngram_ids/ngram_ids.h"

namespace quern::model {

// All pointers lead to row-major elements without gaps at any address, valid as long as the Qwen4ExpWeights. Those that
// say bf16 are bfloat16 in the file's own pages whatever is computed in; the others have the type that was asked for.
struct HyperConnectionWeights {
  const void* norm = nullptr;    // [C * H], around 0
  const void* down = nullptr;    // bf16 [R][C * H]
  const void* up = nullptr;      // bf16 [C * H][R]
  const void* inject = nullptr;  // bf16 [C][C * H]; null for the mixer at the end
};

struct LinearAttentionWeights {
  const void* qkv = nullptr;      // bf16 [2 * Nk * Dk + Nv * Dv][H]: queries, keys, values
  const void* z = nullptr;        // bf16 [Nv * Dv][H]
  const void* b = nullptr;        // bf16 [Nv][H]
  const void* a = nullptr;        // bf16 [Nv][H]
  const void* conv = nullptr;     // [2 * Nk * Dk + Nv * Dv][taps]
  const void* a_log = nullptr;    // [Nv]
  const void* dt_bias = nullptr;  // [Nv]
  const void* norm = nullptr;     // [Dv], plain
  const void* out = nullptr;      // bf16 [H][Nv * Dv]
};

struct SparseAttentionWeights {
  const void* q = nullptr;             // bf16 [Nq * 2 * D][H]: of each head the query, then its gate
  const void* k = nullptr;             // bf16 [Nk * D][H]
  const void* v = nullptr;             // bf16 [Nk * D][H]
  const void* out = nullptr;           // bf16 [H][Nq * D]
  const void* q_norm = nullptr;        // [D], around 0
  const void* k_norm = nullptr;        // [D], around 0
  const void* index_qk = nullptr;      // bf16 [(indexer heads + 1) * indexer head size][H]: queries, the key
  const void* index_q_norm = nullptr;  // [indexer head size], around 0
  const void* index_k_norm = nullptr;  // [indexer head size], around 0
};

struct MoeWeights {
  const void* router = nullptr;             // bf16 [E][H]
  std::vector<ops::ExpertWeights> experts;  // E
  ops::ExpertWeights shared;
  const void* shared_gate = nullptr;  // [H]
};

struct NgramWeights {
  const void* key = nullptr;           // bf16 [C * H][embedding]
  const void* value = nullptr;         // bf16 [H][embedding]
  const void* norm_key = nullptr;      // [C * H], around 0, and the next two
  const void* norm_query = nullptr;    // [C * H]
  const void* norm_conv = nullptr;     // [C * H]
  const void* conv = nullptr;          // [C * H][taps]
  ops::NgramHash hash;                 // equal to what the file has
  std::vector<ops::NgramShard> table;  // bf16
};

struct Qwen4ExpLayerWeights {
  std::optional<NgramWeights> ngrams;
  HyperConnectionWeights mixer_streams;  // around the mixer, which is one of the next two
  std::optional<LinearAttentionWeights> linear;
  std::optional<SparseAttentionWeights> sparse;
  HyperConnectionWeights moe_streams;
  MoeWeights moe;
};

struct Qwen4ExpWeightBytes {
  size_t text = 0;     // of the text model's tensors in the files
  size_t widened = 0;  // memory taken besides the mapped files
};

// Immutable after opening: any thread, any number.
class Qwen4ExpWeights {
 public:
  // Maps the checkpoint in `folder`, holds it against the contract of `config` and the stored constants of the hash
  // against the derived ones. In bf16 no payload but those constants is read; in f32 what the header of a struct does
  // not call bf16 is widened into memory of its own. Before any of that `admit`, where there is one, is asked with what
  // the headers come to.
  // Precondition: config.weights is bf16. Errors: bad_model (the checkpoint is damaged or not that of the
  // configuration), no_memory, io; those of `admit`.
  using Admission = std::function<Result<void>(const Qwen4ExpWeightBytes&)>;
  static Result<std::unique_ptr<const Qwen4ExpWeights>> open(const std::filesystem::path& folder,
                                                             const Qwen4ExpConfig& config, DType type,
                                                             const Admission& admit = {});
  ~Qwen4ExpWeights();

  DType type() const;
  const void* embed_tokens() const;  // bf16 [V][H]
  const void* lm_head() const;       // bf16 [V][H]
  const HyperConnectionWeights& final_streams() const;
  const Qwen4ExpLayerWeights& layer(int32_t layer) const;

  const Qwen4ExpInventory& inventory() const;
  const formats::SafetensorsCheckpoint& checkpoint() const;
  const Qwen4ExpWeightBytes& bytes() const;

 private:
  struct State;
  explicit Qwen4ExpWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quern::model
