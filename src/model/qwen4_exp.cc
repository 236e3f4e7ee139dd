// SPDX-License-Identifier: Apache-2.0
// A State is the token ids of a timeline and what the model remembers of the first of them. After going back it
// remembers fewer than there are; the next forward pass computes the ids in between again.
#include "model/qwen4_exp.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/checked.h"
#include "base/file_map.h"
#include "base/model_part.h"
#include "formats/generation_config.h"
#include "model/forward_call.h"
#include "model/kv_cache.h"
#include "model/qwen4_exp_config.h"
#include "model/qwen4_exp_forward.h"
#include "model/qwen4_exp_past.h"
#include "model/qwen4_exp_weights.h"
#include "model/state_file.h"
#include "ops/moe_route/moe_route.h"
#include "ops/partial_rope/partial_rope.h"

namespace quern::model {
namespace {

namespace fs = std::filesystem;

// So many bytes of so many tensors tell models apart: reading all of a checkpoint would take minutes. A checkpoint with
// fused experts has fewer tensors.
constexpr size_t kFingerprintBytes = 4096;
constexpr size_t kFingerprintTensors = 2048;

class Qwen4ExpLine;

class Qwen4ExpState final : public State {
 public:
  Qwen4ExpState(const Qwen4ExpLine& line, Qwen4ExpPast past);

  int64_t length_tokens() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t computed_tokens() const override { return past_.tokens(); }
  std::span<const float> kept_row() const override { return has_row_ ? row() : std::span<const float>(); }
  void reset() override { cut(0); }
  Result<void> rewind(int64_t tokens) override {
    if (tokens < 0 || tokens > length_tokens()) {
      return bad_request("rewind", fmt::format("to {} tokens asked of a timeline of {}", tokens, length_tokens()));
    }
    cut(tokens);
    return {};
  }
  void mark(int64_t tokens) override { past_.mark(tokens); }
  Result<std::unique_ptr<State>> fork() const override;
  std::span<const int32_t> ids() const override { return ids_; }
  Result<void> save(const fs::path& path) const override;
  Result<void> load(StateFileReader& file);
  Result<void> reserve(int64_t tokens) override;
  size_t bytes() const override { return past_.bytes() + workspace_bytes(); }
  size_t workspace_bytes() const override { return scratch_->capacity_bytes() + row_.size(); }
  StateCounters counters() const override { return counters_; }
  Result<void> observe(Observer observer) override {
    observer_ = std::move(observer);
    return {};
  }

  const Qwen4ExpLine& line() const { return line_; }
  Result<void> forward(std::span<const int32_t> ids, int64_t first_row, int64_t rows, std::span<float> logits);
  // The last token; what is remembered from before it stays as it is.
  void put_back(int32_t id) { ids_.push_back(id); }
  bool observed() const { return static_cast<bool>(observer_); }
  std::span<const Qwen4ExpStepCost> costs() const { return costs_; }

 private:
  std::span<float> row() const { return {row_.as<float>(), static_cast<size_t>(row_.size() / sizeof(float))}; }
  Result<void> make_row();
  void cut(int64_t tokens) {
    has_row_ = has_row_ && tokens == length_tokens();
    ids_.resize(static_cast<size_t>(tokens));
    past_.go_back(tokens);
  }

  const Qwen4ExpLine& line_;
  std::vector<int32_t> ids_;
  Qwen4ExpPast past_;     // of the first past_.tokens() ids
  int64_t prepared_ = 0;  // tokens that memory is counted for
  cpu::Buffer row_;       // logits after the last id, where has_row_: to have them back takes a computation of
  bool has_row_ = false;  // everything behind a snapshot
  std::unique_ptr<cpu::Arena> scratch_;
  std::vector<Qwen4ExpStepCost> costs_;  // of the latest pass
  StateCounters counters_;
  Observer observer_;
};

class Qwen4ExpLine final : public Line {
 public:
  Qwen4ExpLine(Qwen4ExpModel parts, ModelInfo info, uint64_t files, const MemoryNeed& memory_need,
               const OpenOptions& options)
      : model(std::move(parts)),
        need(memory_need),
        pool(options.pool),
        features(options.features),
        profile(options.profile),
        fingerprint_(files),
        info_(std::move(info)) {}

  const ModelInfo& info() const override { return info_; }
  Result<std::unique_ptr<State>> new_state() const override {
    QUERN_TRY(Qwen4ExpPast past, Qwen4ExpPast::make(model.config, model.weights->type()));
    return std::unique_ptr<State>(new Qwen4ExpState(*this, std::move(past)));
  }
  Result<std::unique_ptr<State>> load_state(const fs::path& path) const override;
  Result<void> forward(State& state, std::span<const int32_t> ids, Rows wanted, std::span<float> logits) const override;
  Result<void> last_row(State& state, std::span<float> logits) const override;
  std::vector<NodeReport> graph_report(const State* state) const override;
  MemoryReport memory() const override;

  // What a saved timeline must agree with.
  nlohmann::json state_facts() const;

  const Qwen4ExpModel model;
  const MemoryNeed need;
  cpu::Pool* const pool;
  const cpu::Features features;
  const bool profile;

 private:
  // Errors: bad_request for an id in whose place the whole model has an image, by position in `where`.
  Result<void> check_vision(std::span<const int32_t> ids, std::string_view where) const;

  const uint64_t fingerprint_;  // of the files as they were when they were opened
  ModelInfo info_;
};

// ---- State ----

Qwen4ExpState::Qwen4ExpState(const Qwen4ExpLine& line, Qwen4ExpPast past)
    : line_(line), past_(std::move(past)), scratch_(std::make_unique<cpu::Arena>()), costs_(line.model.steps.size()) {}

Result<void> Qwen4ExpState::reserve(int64_t tokens) {
  const int64_t context = line_.info().context_tokens;
  QUERN_TRY(const int64_t rows, rows_to_prepare(tokens, context));
  if (rows <= prepared_) return {};
  // Once for the whole context: ids are four bytes a token, and growing step by step would move them while decoding.
  ids_.reserve(static_cast<size_t>(context));
  past_.prepare(prepared_ = rows);
  return {};
}

Result<std::unique_ptr<State>> Qwen4ExpState::fork() const {
  QUERN_TRY(Qwen4ExpPast past, past_.fork());
  auto copy = std::make_unique<Qwen4ExpState>(line_, std::move(past));
  QUERN_TRY_VOID(copy->reserve(length_tokens()));
  copy->ids_ = ids_;
  if (has_row_) {
    QUERN_TRY_VOID(copy->make_row());
    std::ranges::copy(row(), copy->row().begin());
    copy->has_row_ = true;
  }
  copy->counters_.bytes_copied = copy->counters_.cache_bytes_copied = past_.bytes();
  return std::unique_ptr<State>(std::move(copy));
}

Result<void> Qwen4ExpState::make_row() {
  if (row_.size() > 0) return {};
  QUERN_TRY(row_,
            cpu::Buffer::allocate(static_cast<size_t>(line_.info().vocab) * sizeof(float), cpu::MemoryTag::logits));
  return {};
}

Result<void> Qwen4ExpState::save(const fs::path& path) const {
  QUERN_TRY(StateFileWriter file, StateFileWriter::create(path, {line_.state_facts(), ids_}));
  const int64_t known = past_.tokens(), kept = has_row_ ? 1 : 0;
  QUERN_TRY_VOID(file.write(std::as_bytes(std::span(&known, 1))));
  QUERN_TRY_VOID(file.write(std::as_bytes(std::span(&kept, 1))));
  QUERN_TRY_VOID(file.write(std::as_bytes(kept_row())));
  QUERN_TRY_VOID(past_.for_pieces(known, [&](std::span<std::byte> piece) { return file.write(piece); }));
  return file.finish();
}

// Called on a new state.
Result<void> Qwen4ExpState::load(StateFileReader& file) {
  const std::vector<int32_t>& ids = file.head().ids;
  const auto tokens = static_cast<int64_t>(ids.size());
  int64_t known = 0, kept = 0;
  QUERN_TRY_VOID(file.read(std::as_writable_bytes(std::span(&known, 1))));
  QUERN_TRY_VOID(file.read(std::as_writable_bytes(std::span(&kept, 1))));
  if (known < 0 || known > tokens) {
    return bad_request("saved timeline", fmt::format("remembers {} of {} tokens", known, tokens));
  }
  if (kept < 0 || kept > std::min<int64_t>(1, tokens)) {
    return bad_request("saved timeline", fmt::format("keeps {} rows of logits, allowed are 0 and 1", kept));
  }
  if (kept == 1) {
    QUERN_TRY_VOID(make_row());
    QUERN_TRY_VOID(file.read(std::as_writable_bytes(row())));
  }
  QUERN_TRY_VOID(reserve(tokens));
  QUERN_TRY_VOID(past_.for_pieces(known, [&](std::span<std::byte> piece) { return file.read(piece); }));
  QUERN_TRY_VOID(file.finish());
  past_.was_filled(known);
  ids_ = ids;
  has_row_ = kept == 1;
  return {};
}

// Arguments are checked by Qwen4ExpLine::forward().
Result<void> Qwen4ExpState::forward(std::span<const int32_t> ids, int64_t first_row, int64_t rows,
                                    std::span<float> logits) {
  const auto length = ids_.size();
  const int64_t known = past_.tokens();
  const bool keeps = rows > 0 && first_row + rows == static_cast<int64_t>(ids.size());
  if (keeps) QUERN_TRY_VOID(make_row());
  QUERN_TRY_VOID(reserve(static_cast<int64_t>(length + ids.size())));
  const auto go_back = [length](Qwen4ExpState* broken) {
    broken->ids_.resize(length);
    broken->past_.recover();
    broken->past_.go_back(static_cast<int64_t>(length));
  };
  std::unique_ptr<Qwen4ExpState, decltype(go_back)> breaks_off(this, go_back);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  std::fill(costs_.begin(), costs_.end(), Qwen4ExpStepCost());
  ops::Counters counted;
  const ops::Context context{line_.pool, scratch_.get(), line_.features, &counted};
  QUERN_TRY_VOID(run_qwen4_exp({line_.model, past_, context, ids_, static_cast<int64_t>(length) + first_row, rows,
                                logits, costs_, line_.profile, observer_}));
  (void)breaks_off.release();
  if (keeps) std::ranges::copy(logits.last(row().size()), row().begin());
  has_row_ = keeps;
  counters_.forwards++;
  counters_.tokens += static_cast<uint64_t>(past_.tokens() - known);
  counters_.bytes_copied += counted.bytes_copied;
  counters_.cache_bytes_copied += counted.cache_bytes_copied;
  counters_.cache_bytes_appended += counted.cache_bytes_appended;
  counters_.weight_bytes_read += counted.weight_bytes_read;
  return {};
}

// ---- Line ----

nlohmann::json Qwen4ExpLine::state_facts() const {
  return {{"model_type", info_.model_type},
          {"model", fmt::format("{:016x}", fingerprint_)},
          {"layers", info_.layers},
          {"hidden", info_.hidden},
          {"layout", 2},
          {"type", std::string(dtype_name(model.weights->type()))}};
}

Result<std::unique_ptr<State>> Qwen4ExpLine::load_state(const fs::path& path) const {
  QUERN_TRY(StateFileReader file, StateFileReader::open(path, state_facts(), info_.context_tokens));
  QUERN_TRY_VOID(check_ids(info_, file.head().ids, path.string()));
  QUERN_TRY_VOID(check_vision(file.head().ids, path.string()));
  QUERN_TRY(Qwen4ExpPast past, Qwen4ExpPast::make(model.config, model.weights->type()));
  auto state = std::make_unique<Qwen4ExpState>(*this, std::move(past));
  QUERN_TRY_VOID(state->load(file));
  return std::unique_ptr<State>(std::move(state));
}

Result<void> Qwen4ExpLine::check_vision(std::span<const int32_t> ids, std::string_view where) const {
  const std::vector<int32_t>& vision = info_.refused_ids;
  const auto found = std::find_first_of(ids.begin(), ids.end(), vision.begin(), vision.end());
  if (found == ids.end()) return {};
  return bad_request(
      fmt::format("{}[{}]", where, found - ids.begin()),
      fmt::format("token id {} stands for an image or a video, and quern runs the text model only", *found));
}

Result<void> Qwen4ExpLine::last_row(State& base, std::span<float> logits) const {
  QUERN_TRY(const auto state, own_state<Qwen4ExpState>(base, *this));
  const std::span<const float> kept = state->kept_row();
  if (!kept.empty() && kept.size() == logits.size() && !state->observed()) {
    std::ranges::copy(kept, logits.begin());
    return {};
  }
  return compute_last_again(info_, *state, logits,
                            [&](std::span<const int32_t> last) { return forward(base, last, {}, logits); });
}

Result<void> Qwen4ExpLine::forward(State& base, std::span<const int32_t> ids, Rows wanted,
                                   std::span<float> logits) const {
  QUERN_TRY(const auto state, own_state<Qwen4ExpState>(base, *this));
  QUERN_TRY(const int64_t first, check_call(info_, state->length_tokens(), ids, wanted, logits));
  QUERN_TRY_VOID(check_vision(ids, "ids"));
  return state->forward(ids, first, wanted.count, logits);
}

std::vector<NodeReport> Qwen4ExpLine::graph_report(const State* state) const {
  const auto* timeline = static_cast<const Qwen4ExpState*>(state);
  std::vector<NodeReport> report;
  report.reserve(model.steps.size());
  for (size_t i = 0; i < model.steps.size(); ++i) {
    const Qwen4ExpStep& step = model.steps[i];
    const Qwen4ExpStepCost cost = timeline == nullptr ? Qwen4ExpStepCost() : timeline->costs()[i];
    const bool ran = !cost.variant.empty();
    std::string reason = "called by the model";
    if (!ran && step.variant != step.token_variant) {
      reason += fmt::format("; a single token runs {}", step.token_variant);
    }
    report.push_back({step.name, std::string(step.room), "quern", "kernel",
                      std::string(ran ? cost.variant : step.variant), std::move(reason), cost.ns, cost.bytes_copied});
  }
  return report;
}

MemoryReport Qwen4ExpLine::memory() const {
  MemoryReport report;
  report.weight_bytes = model.weights->bytes().widened;
  report.serialized_weight_bytes = model.weights->bytes().text;
  report.kv_type = kv_type_name(model.weights->type());
  report.kv_token_bytes = qwen4_exp_token_bytes(model.config, model.weights->type());
  report.estimate = need;
  return report;
}

// ---- opening ----

// What the authors say about generating text. The file is theirs to leave out.
Result<void> read_generation(const fs::path& folder, const Qwen4ExpConfig& config, ModelInfo& info) {
  const fs::path path = folder / "generation_config.json";
  formats::GenerationConfig generation;
  if (has_part(path)) {
    QUERN_TRY(generation, formats::GenerationConfig::load(path, config.vocab_size));
  }
  info.sampling = {generation.do_sample,
                   generation.temperature,
                   generation.top_k,
                   generation.top_p,
                   generation.min_p,
                   generation.repetition_penalty,
                   std::move(generation.suppress_tokens),
                   std::move(generation.stop_strings),
                   std::move(generation.other),
                   path};
  info.eos_ids = generation.eos_token_ids.empty() ? config.eos_token_ids : std::move(generation.eos_token_ids);
  if (info.eos_ids.empty()) {
    return bad_model((folder / "config.json").string() + ": eos_token_id",
                     "the value is missing, and generation_config.json does not have it either");
  }
  return {};
}

// Where the weights are there, they are checked first: a damaged download should be known as one.
Error refuse_float8(const fs::path& folder, const Qwen4ExpConfig& config) {
  if (formats::has_safetensors(folder)) {
    const auto checkpoint = formats::SafetensorsCheckpoint::open(folder);
    if (!checkpoint.ok()) return checkpoint.error();
    const auto found = check_qwen4_exp_tensors(config, checkpoint->tensors(), folder.string());
    if (!found.ok()) return found.error();
  }
  return unsupported((folder / "config.json").string() + ": quantization_config",
                     "quern does not compute with float8 weights; take the bfloat16 checkpoint");
}

// Of the configuration and the first bytes of the tensors.
Result<uint64_t> fingerprint_of(const fs::path& config, const formats::SafetensorsCheckpoint& checkpoint) {
  QUERN_TRY(const FileMap text, FileMap::open(config));
  const auto tensors = checkpoint.tensors();
  std::vector<std::span<const std::byte>> samples;
  for (size_t i = 0; i < tensors.size(); i += ceil_div(tensors.size(), kFingerprintTensors)) {
    samples.push_back(tensors[i].bytes.first(std::min(tensors[i].bytes.size(), kFingerprintBytes)));
  }
  const auto copy = [&checkpoint](auto part, auto out) { return checkpoint.copy(part, out); };
  QUERN_TRY(const uint64_t weights, fingerprint(samples, copy));
  const std::span<const std::byte> pieces[] = {text.bytes(), std::as_bytes(std::span(&weights, 1))};
  return fingerprint(pieces);
}

void add_facts(const Qwen4ExpConfig& config, const Qwen4ExpWeights& weights, ModelInfo& info) {
  const auto fact = [&](const char* name, std::string value) { info.facts.emplace_back(name, std::move(value)); };
  const Qwen4ExpInventory& found = weights.inventory();
  const auto sparse =
      std::count(config.layer_types.begin(), config.layer_types.end(), Qwen4ExpConfig::LayerKind::sparse_attention);
  fact("format", "safetensors");
  fact("compute", std::string(dtype_name(weights.type())));
  fact("files", fmt::format("{}", weights.checkpoint().file_count()));
  fact("text_tensors", fmt::format("{}", found.text_tensors));
  fact("draft_tensors", fmt::format("{} passed over", found.draft_tensors));
  fact("vision_tensors", fmt::format("{} passed over", found.vision_tensors));
  fact("text_bytes", fmt::format("{}", weights.bytes().text));
  fact("checkpoint_bytes", fmt::format("{}", weights.checkpoint().payload_bytes()));
  fact("stored_experts", found.form.separate_experts ? "separate" : "fused");
  fact("linear_layers", fmt::format("{}", config.num_hidden_layers - sparse));
  fact("sparse_layers", fmt::format("{}", sparse));
  fact("ngram_layers", fmt::format("{}", config.ple_layers.size()));
  fact("experts", fmt::format("{} of {} a token", config.num_experts_per_tok, config.num_experts));
  fact("streams", fmt::format("{}", config.hc_count));
}

// What the rooms do not have and the published widths do not need.
Result<void> check_widths(const Qwen4ExpConfig& c, const fs::path& folder) {
  constexpr int32_t kHeadStep = 8, kMaxHead = 512;
  const auto refuse = [&](const char* field, int32_t value, std::string allowed) {
    return unsupported(fmt::format("{}: {}", (folder / "config.json").string(), field),
                       fmt::format("the value is {}, quern runs {}", value, allowed));
  };
  if (c.head_dim % kHeadStep != 0 || c.head_dim > kMaxHead) {
    return refuse("head_dim", c.head_dim, fmt::format("multiples of {} up to {}", kHeadStep, kMaxHead));
  }
  if (c.indexer_head_dim % kHeadStep != 0) {
    return refuse("indexer_head_dim", c.indexer_head_dim, fmt::format("multiples of {}", kHeadStep));
  }
  if (c.num_experts_per_tok > ops::kMaxChosenExperts) {
    return refuse("num_experts_per_tok", c.num_experts_per_tok, fmt::format("up to {}", ops::kMaxChosenExperts));
  }
  return {};
}

ModelInfo make_info(const fs::path& folder, const Qwen4ExpConfig& config) {
  ModelInfo info;
  info.model_type = config.model_type;
  info.folder = folder;
  info.context_tokens = info.model_context_tokens = config.max_position_embeddings;
  info.vocab = config.vocab_size;
  info.layers = config.num_hidden_layers;
  info.hidden = config.hidden_size;
  info.heads = config.num_attention_heads;
  info.kv_heads = config.num_key_value_heads;
  info.head_size = config.head_dim;
  info.bos_id = config.bos_token_id;
  info.pad_id = config.pad_token_id;
  std::copy_if(config.vision_token_ids.begin(), config.vision_token_ids.end(), std::back_inserter(info.refused_ids),
               [&](int32_t id) { return id < config.vocab_size; });
  info.weights_stay_mapped = true;
  return info;
}

// Weights are read where they are mapped.
Result<MemoryNeed> estimate_memory(const Qwen4ExpConfig& config, DType type, const Qwen4ExpWeightBytes& weights) {
  // An empty past has its steps, and none of them was touched.
  QUERN_TRY(const Qwen4ExpPast past, Qwen4ExpPast::make(config, type));
  MemoryNeed need;
  need.mapped = weights.text;
  need.weights = weights.widened;
  need.state = past.bytes() * (1 + Qwen4ExpPast::kSnapshots) + static_cast<size_t>(config.vocab_size) * sizeof(float);
  // About so many rows of all streams are alive at once where n-grams are added, in chunks of 512 tokens.
  constexpr int64_t kRows = 10, kChunkTokens = 512;
  const int64_t tokens = std::min<int64_t>(kChunkTokens, config.max_position_embeddings);
  const int64_t elements = kRows * tokens * config.stream_width();
  need.workspace =
      static_cast<size_t>(elements * bits_of(type) / 8) + static_cast<size_t>(config.vocab_size) * sizeof(float);
  need.token = need.least_token = qwen4_exp_token_bytes(config, type);
  return need;
}

}  // namespace

Result<std::unique_ptr<Line>> open_qwen4_exp(const fs::path& folder, const OpenOptions& options) {
  const DType type = options.compute.value_or(DType::bf16);
  if (options.kv) {
    return unsupported("kv", fmt::format("is {}; this model keeps keys and values in the type it computes in",
                                         kv_type_name(*options.kv)));
  }
  if (!options.no_fuse.empty()) return bad_request("no_fuse", "this model has no passes that could be left out");
  Qwen4ExpModel model;
  const fs::path config_path = folder / "config.json";
  QUERN_TRY(model.config, Qwen4ExpConfig::load(config_path));
  if (model.config.weights == Qwen4ExpConfig::Weights::fp8) return refuse_float8(folder, model.config);
  QUERN_TRY_VOID(check_widths(model.config, folder));
  ModelInfo info = make_info(folder, model.config);
  QUERN_TRY_VOID(read_generation(folder, model.config, info));
  MemoryNeed need;
  const auto admit = [&](const Qwen4ExpWeightBytes& bytes) -> Result<void> {
    QUERN_TRY(need, estimate_memory(model.config, type, bytes));
    QUERN_TRY(info.context_tokens,
              choose_context(need, options.memory, options.context_tokens, info.model_context_tokens));
    return {};
  };
  QUERN_TRY(model.weights, Qwen4ExpWeights::open(folder, model.config, type, admit));
  add_facts(model.config, *model.weights, info);
  model.frequencies.resize(static_cast<size_t>(model.config.rotary_dim) / 2);
  ops::rope_frequencies(model.config.rope_theta, model.frequencies);
  model.steps = list_qwen4_exp_steps(model.config, type, options.features);
  QUERN_TRY(const uint64_t files, fingerprint_of(config_path, model.weights->checkpoint()));
  return std::unique_ptr<Line>(new Qwen4ExpLine(std::move(model), std::move(info), files, need, options));
}

}  // namespace quern::model
