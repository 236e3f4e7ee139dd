// SPDX-License-Identifier: Apache-2.0
// Drives the graph of a Qwen3 export. A State owns a cache that is bound in the place of the graph's past; its present
// outputs are left out: attention then writes the rows of the new tokens and moves nothing. Rows behind the timeline's
// length hold whatever earlier calls left there and are never read.
#include "model/qwen3.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "base/checked.h"
#include "base/model_part.h"
#include "base/quote_name.h"
#include "cpu/memory.h"
#include "formats/genai_config.h"
#include "formats/onnx/onnx_file.h"
#include "graph/model.h"
#include "graph/runner.h"
#include "model/forward_call.h"
#include "model/kv_cache.h"
#include "model/qwen3_binding.h"
#include "model/state_file.h"

namespace quern::model {
namespace {

namespace fs = std::filesystem;

// What keys and values are kept as unless somebody asks.
constexpr DType kKeptAs = DType::f16;
// Tokens of a prompt that are usually computed at once.
constexpr int64_t kChunkTokens = 512;
// Far above the rows of every model; bounds the arithmetic on what a file states.
constexpr int64_t kLargestWidth = 1 << 24;

class Qwen3Line;

class Qwen3State final : public State {
 public:
  Qwen3State(const Qwen3Line& line, KvCache cache);

  int64_t length_tokens() const override { return cache_.length(); }
  std::span<const int32_t> ids() const override { return tokens_; }
  void reset() override { set_length(0); }
  Result<void> rewind(int64_t tokens) override {
    if (tokens < 0 || tokens > cache_.length()) {
      return bad_request("rewind", fmt::format("to {} tokens asked of a timeline of {}", tokens, cache_.length()));
    }
    set_length(tokens);
    return {};
  }
  void mark(int64_t) override {}  // going back is free
  Result<std::unique_ptr<State>> fork() const override;
  Result<void> save(const fs::path& path) const override;
  // Takes in what a file holds, of which the head was looked at.
  Result<void> load(StateFileReader& file);
  Result<void> reserve(int64_t tokens) override;
  size_t bytes() const override { return cache_.bytes() + workspace_bytes(); }
  size_t workspace_bytes() const override {
    return runner_ == nullptr ? 0 : runner_->arena_bytes() + runner_->scratch_peak_bytes();
  }
  StateCounters counters() const override { return counters_; }

  const Qwen3Line& line() const { return line_; }
  Result<void> forward(std::span<const int32_t> ids, int64_t first_row, int64_t rows, std::span<float> logits);
  // The last token, whose row was not lost by taking it off.
  void put_back(int32_t id) {
    tokens_.push_back(id);
    cache_.set_length(cache_.length() + 1);
  }
  std::vector<graph::ReportRow> report() const;

 private:
  void feed(std::span<const int32_t> ids);
  void set_length(int64_t tokens) {
    cache_.set_length(tokens);
    tokens_.resize(static_cast<size_t>(tokens));
  }

  const Qwen3Line& line_;
  KvCache cache_;
  std::vector<int32_t> tokens_;  // whose rows the cache holds
  int64_t prepared_ = 0;         // rows that memory is counted for
  StateCounters counters_;
  std::unique_ptr<graph::Runner> runner_;  // made by the first forward: a timeline that is only kept needs no workspace
  std::vector<ops::Tensor> inputs_;
  std::vector<graph::Output> outputs_;
  std::vector<int64_t> fed_ids_;
};

class Qwen3Line final : public Line {
 public:
  Qwen3Line(std::shared_ptr<const graph::Model> graph, Qwen3Binding bound, ModelInfo model_info, uint64_t files,
            const MemoryNeed& memory_need, const OpenOptions& options)
      : model(std::move(graph)),
        binding(std::move(bound)),
        pool(options.pool),
        profile(options.profile),
        cache_shape{model_info.layers,         model_info.kv_heads,          model_info.head_size,
                    model_info.context_tokens, options.kv.value_or(kKeptAs), true},
        need(memory_need),
        fingerprint_(files),
        info_(std::move(model_info)),
        ones_(static_cast<size_t>(info_.context_tokens), 1) {}

  const ModelInfo& info() const override { return info_; }
  Result<std::unique_ptr<State>> new_state() const override {
    QUERN_TRY(KvCache cache, KvCache::make(cache_shape));
    return std::unique_ptr<State>(new Qwen3State(*this, std::move(cache)));
  }
  Result<std::unique_ptr<State>> load_state(const fs::path& path) const override;
  Result<void> forward(State& state, std::span<const int32_t> ids, Rows wanted, std::span<float> logits) const override;
  Result<void> last_row(State& state, std::span<float> logits) const override;
  std::vector<NodeReport> graph_report(const State* state) const override;
  MemoryReport memory() const override;

  // What a saved timeline must agree with.
  nlohmann::json state_facts() const;

  // Attention masks of every length: all positions of a timeline are valid.
  const int64_t* ones() const { return ones_.data(); }

  const std::shared_ptr<const graph::Model> model;
  const Qwen3Binding binding;
  cpu::Pool* const pool;
  const bool profile;
  const KvCacheShape cache_shape;
  const MemoryNeed need;

 private:
  const uint64_t fingerprint_;  // of the files as they were when they were opened
  ModelInfo info_;
  std::vector<int64_t> ones_;
};

// ---- State ----

Qwen3State::Qwen3State(const Qwen3Line& line, KvCache cache) : line_(line), cache_(std::move(cache)) {
  inputs_.resize(line.model->inputs().size());
  outputs_.resize(line.model->outputs().size());
  for (ops::Tensor& t : inputs_) t.present = false;
  for (graph::Output& out : outputs_) out.wanted = false;
  const KvCacheShape& shape = cache_.shape();
  for (int32_t i = 0; i < shape.layers; i++) {
    const Qwen3Layer& ports = line.binding.layers[static_cast<size_t>(i)];
    for (const int port : {ports.past_key, ports.past_value}) {
      ops::Tensor& past = inputs_[static_cast<size_t>(port)];
      past.present = true;
      past.shape = {1, shape.kv_heads, shape.max_tokens, shape.head_size};
      past.cache = &cache_.view(i);
    }
  }
}

Result<void> Qwen3State::reserve(int64_t tokens) {
  const int64_t context = cache_.shape().max_tokens;
  QUERN_TRY(const int64_t rows, rows_to_prepare(tokens, context));
  if (rows <= prepared_) return {};
  // Once for the whole context: ids are four bytes a token, and growing step by step would move them while decoding.
  tokens_.reserve(static_cast<size_t>(context));
  cache_.prepare(prepared_ = rows);
  return {};
}

Result<std::unique_ptr<State>> Qwen3State::fork() const {
  QUERN_TRY(KvCache cache, cache_.fork());
  auto copy = std::make_unique<Qwen3State>(line_, std::move(cache));
  QUERN_TRY_VOID(copy->reserve(cache_.length()));
  copy->tokens_ = tokens_;
  const auto copied = static_cast<uint64_t>(kv_token_bytes(cache_.shape()) * cache_.length());
  copy->counters_.bytes_copied = copy->counters_.cache_bytes_copied = copied;
  return std::unique_ptr<State>(std::move(copy));
}

Result<void> Qwen3State::save(const fs::path& path) const {
  QUERN_TRY(StateFileWriter file, StateFileWriter::create(path, {line_.state_facts(), tokens_}));
  QUERN_TRY_VOID(cache_.for_pieces(cache_.length(), [&](std::span<std::byte> piece) { return file.write(piece); }));
  return file.finish();
}

Result<void> Qwen3State::load(StateFileReader& file) {
  const std::vector<int32_t>& ids = file.head().ids;
  const auto tokens = static_cast<int64_t>(ids.size());
  QUERN_TRY_VOID(reserve(tokens));
  QUERN_TRY_VOID(cache_.for_pieces(tokens, [&](std::span<std::byte> piece) { return file.read(piece); }));
  QUERN_TRY_VOID(file.finish());
  tokens_ = ids;
  cache_.set_length(tokens);
  return {};
}

void Qwen3State::feed(std::span<const int32_t> ids) {
  fed_ids_.assign(ids.begin(), ids.end());
  ops::Tensor& tokens = inputs_[static_cast<size_t>(line_.binding.input_ids)];
  tokens.present = true;
  tokens.dtype = DType::i64;
  tokens.shape = {1, static_cast<int64_t>(ids.size())};
  tokens.data = fed_ids_.data();
  ops::Tensor& mask = inputs_[static_cast<size_t>(line_.binding.attention_mask)];
  mask.present = true;
  mask.dtype = DType::i64;
  mask.shape = {1, cache_.length() + static_cast<int64_t>(ids.size())};
  mask.data = const_cast<int64_t*>(line_.ones());  // inputs are read-only for the graph
}

// Arguments are checked by Qwen3Line::forward().
Result<void> Qwen3State::forward(std::span<const int32_t> ids, int64_t first_row, int64_t rows,
                                 std::span<float> logits) {
  const auto count = static_cast<int64_t>(ids.size());
  QUERN_TRY_VOID(reserve(cache_.length() + count));
  feed(ids);
  if (runner_ == nullptr) runner_ = std::make_unique<graph::Runner>(line_.model, *line_.pool, line_.profile);

  const bool by_row = line_.binding.logits_by_row;
  graph::Output& out = outputs_[static_cast<size_t>(line_.binding.logits)];
  out.wanted = rows > 0;
  out.tag = cpu::MemoryTag::logits;
  out.bound = by_row && rows > 0 ? logits.data() : nullptr;
  out.bound_bytes = by_row ? logits.size_bytes() : 0;
  std::optional<graph::RowRange> range;
  if (by_row) range = graph::RowRange{line_.binding.logits, first_row, rows};
  QUERN_TRY_VOID(runner_->run(inputs_, outputs_, range));

  const ops::Shape expected{1, by_row ? rows : count, line_.info().vocab};
  if (!(out.result.shape == expected)) {
    return bad_model("output logits",
                     fmt::format("has shape {}, expected {}", out.result.shape.to_string(), expected.to_string()));
  }
  if (!by_row && rows > 0) {
    std::memcpy(logits.data(), out.result.as<float>() + first_row * line_.info().vocab, logits.size_bytes());
  }
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  cache_.set_length(cache_.length() + count);
  const ops::Counters& run = runner_->counters();
  counters_.forwards++;
  counters_.tokens += static_cast<uint64_t>(count);
  counters_.bytes_copied += run.bytes_copied;
  counters_.cache_bytes_copied += run.cache_bytes_copied;
  counters_.cache_bytes_appended += run.cache_bytes_appended;
  counters_.weight_bytes_read += run.weight_bytes_read;
  return {};
}

std::vector<graph::ReportRow> Qwen3State::report() const {
  return runner_ == nullptr ? line_.model->report(inputs_) : runner_->report();
}

// ---- Line ----

nlohmann::json Qwen3Line::state_facts() const {
  return {{"model_type", info_.model_type},     {"model", fmt::format("{:016x}", fingerprint_)},
          {"layers", cache_shape.layers},       {"kv_heads", cache_shape.kv_heads},
          {"head_size", cache_shape.head_size}, {"kv", kv_type_name(cache_shape.dtype)}};
}

Result<std::unique_ptr<State>> Qwen3Line::load_state(const fs::path& path) const {
  QUERN_TRY(StateFileReader file, StateFileReader::open(path, state_facts(), info_.context_tokens));
  QUERN_TRY_VOID(check_ids(info_, file.head().ids, path.string()));
  QUERN_TRY(KvCache cache, KvCache::make(cache_shape));
  auto state = std::make_unique<Qwen3State>(*this, std::move(cache));
  QUERN_TRY_VOID(state->load(file));
  return std::unique_ptr<State>(std::move(state));
}

Result<void> Qwen3Line::last_row(State& base, std::span<float> logits) const {
  QUERN_TRY(const auto state, own_state<Qwen3State>(base, *this));
  return compute_last_again(info_, *state, logits,
                            [&](std::span<const int32_t> last) { return forward(base, last, {}, logits); });
}

Result<void> Qwen3Line::forward(State& base, std::span<const int32_t> ids, Rows wanted, std::span<float> logits) const {
  QUERN_TRY(const auto state, own_state<Qwen3State>(base, *this));
  QUERN_TRY(const int64_t first, check_call(info_, state->length_tokens(), ids, wanted, logits));
  auto done = state->forward(ids, first, wanted.count, logits);
  // What this line feeds was checked above, so a value or a shape that an operator refuses comes from the files.
  if (!done.ok() && done.error().code == Errc::bad_request) {
    Error error = std::move(done).error();
    error.code = Errc::bad_model;
    return error;
  }
  return done;
}

std::vector<NodeReport> Qwen3Line::graph_report(const State* state) const {
  std::vector<graph::ReportRow> rows;
  if (state != nullptr) {
    rows = static_cast<const Qwen3State*>(state)->report();
  } else {
    ops::KvView cache;
    cache.dtype = cache_shape.dtype;
    std::vector<ops::Tensor> inputs(model->inputs().size());
    for (const Qwen3Layer& layer : binding.layers) {
      for (const int port : {layer.past_key, layer.past_value}) inputs[static_cast<size_t>(port)].cache = &cache;
    }
    rows = model->report(inputs);
  }
  std::vector<NodeReport> report;
  report.reserve(rows.size());
  for (const graph::ReportRow& row : rows) {
    report.push_back({std::string(row.node), std::string(row.op), std::string(row.domain),
                      std::string(graph::owner_name(row.owner)), row.variant, row.reason, row.ns, row.bytes_copied,
                      row.weight_bytes});
  }
  return report;
}

MemoryReport Qwen3Line::memory() const {
  const graph::MemorySummary& m = model->memory();
  return {m.prepared_bytes,
          m.serialized_bytes,
          m.copied_bytes,
          m.preparations,
          std::string(kv_type_name(cache_shape.dtype)),
          static_cast<size_t>(kv_token_bytes(cache_shape)),
          need};
}

// ---- opening ----

constexpr const char* kConfigFile = "genai_config.json";

// What the search section asks for beyond sampling. Leaving it out silently would change what the model's authors
// meant.
std::vector<std::string> unsupported_search(const formats::GenaiSearch& search) {
  std::vector<std::string> names = search.other;
  if (search.num_beams != 1) names.push_back(fmt::format("num_beams {}", search.num_beams));
  if (search.num_return_sequences != 1)
    names.push_back(fmt::format("num_return_sequences {}", search.num_return_sequences));
  if (search.no_repeat_ngram_size != 0)
    names.push_back(fmt::format("no_repeat_ngram_size {}", search.no_repeat_ngram_size));
  if (search.min_length != 0) names.push_back(fmt::format("min_length {}", search.min_length));
  return names;
}

// As ONNX Runtime GenAI reads it: 0 is no limit beside a top_k, and the most likely token alone without one.
float top_p_of(const formats::GenaiSearch& search) {
  const bool no_limit = search.top_p == 0 && (search.top_k > 0 || !search.do_sample);
  return no_limit ? 1 : search.top_p;
}

ModelInfo make_info(const fs::path& folder, const formats::GenaiConfig& config, const formats::OnnxFile& file) {
  ModelInfo info;
  info.model_type = config.type;
  info.folder = folder;
  info.context_tokens = info.model_context_tokens = config.context_length;
  info.vocab = config.vocab_size;
  info.layers = config.decoder.num_hidden_layers;
  info.hidden = config.decoder.hidden_size;
  info.heads = config.decoder.num_attention_heads;
  info.kv_heads = config.decoder.num_key_value_heads;
  info.head_size = config.decoder.head_size;
  info.eos_ids = config.eos_token_ids;
  info.bos_id = config.bos_token_id;
  info.pad_id = config.pad_token_id;
  info.sampling.do_sample = config.search.do_sample;
  info.sampling.temperature = config.search.temperature;
  info.sampling.top_k = config.search.top_k;
  info.sampling.top_p = top_p_of(config.search);
  info.sampling.repetition_penalty = config.search.repetition_penalty;
  info.sampling.unsupported = unsupported_search(config.search);
  info.sampling.file = folder / kConfigFile;
  info.facts.emplace_back("format", "onnx");
  info.facts.emplace_back("file", config.decoder.filename);
  info.facts.emplace_back("ir_version", fmt::format("{}", file.model().ir_version));
  for (const formats::OpsetId& opset : file.model().opsets) {
    info.facts.emplace_back(fmt::format("opset {}", opset.domain.empty() ? "ai.onnx" : opset.domain),
                            fmt::format("{}", opset.version));
  }
  info.facts.emplace_back("producer", fmt::format("{}", file.model().producer_name));
  info.facts.emplace_back("initializers", fmt::format("{}", file.graph().initializers.size()));
  return info;
}

// Sizes are products of configured numbers; one check for the largest makes all later ones safe.
Result<void> check_cache_size(const formats::GenaiConfig& config, const std::string& where) {
  const std::array<int64_t, 5> factors = {config.decoder.num_key_value_heads, config.decoder.head_size,
                                          config.decoder.num_hidden_layers, config.context_length,
                                          2 * static_cast<int64_t>(sizeof(float))};
  std::optional<int64_t> bytes = 1;
  for (const int64_t factor : factors) {
    if (bytes) bytes = checked_mul(*bytes, factor);
  }
  if (bytes && *bytes > 0) return {};
  return bad_model(where,
                   "layers, key and value heads, head size and context length multiply to more bytes than memory "
                   "can have addresses");
}

// Quantized matrices are packed into memory of about their size in the file; what else there is stays mapped. The
// widest rows are alive three times around the gate of the feed-forward layer, those of the hidden width about as
// often.
MemoryNeed estimate_memory(const formats::GenaiConfig& config, const formats::OnnxFile& file, DType kv) {
  std::map<std::string_view, const formats::TensorProto*> initializers;
  for (const auto& tensor : file.graph().initializers) initializers.emplace(tensor.name, &tensor);
  std::set<std::string_view> packed;
  int64_t widest = config.decoder.hidden_size;
  for (const auto& node : file.graph().nodes) {
    if (node.op_type != "MatMulNBits") continue;
    // Codes, scales, zero points. What is wrong with a node is found when it is prepared.
    for (size_t i = 1; i < std::min<size_t>(node.inputs.size(), 4); i++) packed.insert(node.inputs[i]);
    const auto* k = node.attribute("K");
    if (k != nullptr && k->i < kLargestWidth) widest = std::max(widest, k->i);
  }
  MemoryNeed need;
  for (const std::string_view name : packed) {
    const auto found = initializers.find(name);
    if (found == initializers.end() || !found->second->dtype) continue;
    need.weights += storage_bytes(*found->second->dtype, found->second->elements).value_or(0);
  }
  for (const std::span<const std::byte> part : file.contents()) need.mapped += part.size();
  need.mapped -= std::min(need.mapped, need.weights);
  const auto rows = static_cast<size_t>(std::min<int64_t>(kChunkTokens, config.context_length));
  const auto row_floats = static_cast<size_t>(3 * (widest + config.decoder.hidden_size));
  need.workspace = (rows * row_floats + static_cast<size_t>(config.vocab_size)) * sizeof(float);
  KvCacheShape shape{config.decoder.num_hidden_layers, config.decoder.num_key_value_heads, config.decoder.head_size,
                     config.context_length, kv};
  need.token = static_cast<size_t>(kv_token_bytes(shape));
  shape.dtype = DType::i8;
  need.least_token = static_cast<size_t>(kv_token_bytes(shape));
  if (kv != DType::i8) need.least_kind = kv_type_name(shape.dtype);
  return need;
}

}  // namespace

Result<std::unique_ptr<Line>> open_qwen3(const fs::path& folder, const OpenOptions& options) {
  if (options.compute.value_or(DType::f32) != DType::f32) {
    return unsupported("compute", fmt::format("is {}; graphs are computed in the types that they state",
                                              dtype_name(*options.compute)));
  }
  const fs::path config_path = folder / kConfigFile;
  const std::string where = config_path.string();
  QUERN_TRY(const formats::GenaiConfig config, formats::GenaiConfig::load(config_path));
  const fs::path onnx_path = folder / config.decoder.filename;
  if (!has_part(onnx_path)) {
    return bad_model(where + ": model.decoder.filename",
                     fmt::format("names {}, which is not in the folder", quote_name(config.decoder.filename)));
  }
  QUERN_TRY_VOID(check_part(onnx_path));
  QUERN_TRY_VOID(check_cache_size(config, where));
  QUERN_TRY(formats::OnnxFile file, formats::OnnxFile::open(onnx_path));
  ModelInfo info = make_info(folder, config, file);
  const MemoryNeed need = estimate_memory(config, file, options.kv.value_or(kKeptAs));
  QUERN_TRY(info.context_tokens,
            choose_context(need, options.memory, options.context_tokens, info.model_context_tokens));
  const auto copy = [&file](auto part, auto out) { return file.copy(part, out); };
  QUERN_TRY(const uint64_t files, fingerprint(file.contents(), copy));
  QUERN_TRY(auto graph, graph::Model::load(std::move(file), *options.pool, options.features, {options.no_fuse}));
  QUERN_TRY(Qwen3Binding binding, bind_qwen3(*graph, config, where));
  return std::unique_ptr<Line>(
      new Qwen3Line(std::move(graph), std::move(binding), std::move(info), files, need, options));
}

}  // namespace quern::model
