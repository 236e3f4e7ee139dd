// SPDX-License-Identifier: Apache-2.0
// Drives the graph of a Qwen3 export. A State owns the keys and values of its layers as one buffer each, fed as the
// graph's past and bound as its present at the same time: attention then writes the rows of the new tokens and moves
// nothing. Rows behind the timeline's length hold whatever earlier calls left there and are never read.
#include "model/qwen3.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "base/model_part.h"
#include "base/quote_name.h"
#include "cpu/memory.h"
#include "formats/genai_config.h"
#include "formats/onnx/onnx_file.h"
#include "graph/model.h"
#include "graph/runner.h"
#include "model/qwen3_binding.h"

namespace quern::model {
namespace {

namespace fs = std::filesystem;

// Rows of a timeline's first buffers. Doubling from here copies every row less than twice over a whole conversation.
constexpr int64_t kFirstCapacity = 256;
// Capacities are multiples of this, so that every head's rows start on a cache line and growth steps are not tiny.
constexpr int64_t kCapacityStep = 64;

struct Cache {
  cpu::Buffer key;
  cpu::Buffer value;
};

class Qwen3Line;

class Qwen3State final : public State {
 public:
  explicit Qwen3State(const Qwen3Line& line);

  int64_t length_tokens() const override { return length_; }
  void reset() override { length_ = 0; }
  Result<void> rewind(int64_t tokens) override {
    if (tokens < 0 || tokens > length_) {
      return bad_request("rewind", fmt::format("to {} tokens asked of a timeline of {}", tokens, length_));
    }
    length_ = tokens;
    return {};
  }
  Result<std::unique_ptr<State>> fork() const override;
  Result<void> reserve(int64_t tokens) override;
  size_t bytes() const override { return cache_bytes(capacity_) + workspace_bytes(); }
  size_t workspace_bytes() const override {
    return runner_ == nullptr ? 0 : runner_->arena_bytes() + runner_->scratch_peak_bytes();
  }
  StateCounters counters() const override { return counters_; }

  const Qwen3Line& line() const { return line_; }
  Result<void> forward(std::span<const int32_t> ids, int64_t first_row, int64_t rows, std::span<float> logits);
  std::vector<graph::ReportRow> report() const;

 private:
  size_t cache_bytes(int64_t capacity) const;
  Result<void> set_capacity(int64_t capacity);
  void bind_cache();
  void feed(std::span<const int32_t> ids);

  const Qwen3Line& line_;
  int64_t length_ = 0;
  int64_t capacity_ = 0;
  std::vector<Cache> layers_;
  StateCounters counters_;
  std::unique_ptr<graph::Runner> runner_;  // made by the first forward: a timeline that is only kept needs no workspace
  std::vector<ops::Tensor> inputs_;
  std::vector<graph::Output> outputs_;
  std::vector<int64_t> ids_;
};

class Qwen3Line final : public Line {
 public:
  Qwen3Line(std::shared_ptr<const graph::Model> graph, Qwen3Binding bound, ModelInfo model_info,
            const OpenOptions& options)
      : model(std::move(graph)),
        binding(std::move(bound)),
        pool(options.pool),
        profile(options.profile),
        info_(std::move(model_info)),
        ones_(static_cast<size_t>(info_.context_tokens), 1) {}

  const ModelInfo& info() const override { return info_; }
  Result<std::unique_ptr<State>> new_state() const override { return std::unique_ptr<State>(new Qwen3State(*this)); }
  Result<void> forward(State& state, std::span<const int32_t> ids, Rows wanted, std::span<float> logits) const override;
  std::vector<NodeReport> graph_report(const State* state) const override;
  MemoryReport memory() const override;

  // Attention masks of every length: all positions of a timeline are valid.
  const int64_t* ones() const { return ones_.data(); }

  const std::shared_ptr<const graph::Model> model;
  const Qwen3Binding binding;
  cpu::Pool* const pool;
  const bool profile;

 private:
  ModelInfo info_;
  std::vector<int64_t> ones_;
};

// ---- State ----

Qwen3State::Qwen3State(const Qwen3Line& line) : line_(line), layers_(line.binding.layers.size()) {
  const auto& ports = line.model->inputs();
  inputs_.resize(ports.size());
  outputs_.resize(line.model->outputs().size());
  for (ops::Tensor& t : inputs_) t.present = false;
  for (graph::Output& out : outputs_) out.wanted = false;
}

// Keys or values of one layer. The product fits: open_qwen3() checked it for the whole context.
size_t layer_bytes(const ModelInfo& info, int64_t capacity) {
  return static_cast<size_t>(info.kv_heads) * static_cast<size_t>(capacity) * static_cast<size_t>(info.head_size) *
         sizeof(float);
}

size_t Qwen3State::cache_bytes(int64_t capacity) const {
  return 2 * layers_.size() * layer_bytes(line_.info(), capacity);
}

// All new buffers are taken before a row is copied, so that a failure leaves the timeline as it was. The old buffer of
// a layer goes as soon as its rows are copied; pages of new ones become resident only then.
Result<void> Qwen3State::set_capacity(int64_t capacity) {
  const ModelInfo& info = line_.info();
  const size_t bytes = layer_bytes(info, capacity);
  std::vector<Cache> grown(layers_.size());
  for (Cache& cache : grown) {
    QUERN_TRY(cache.key, cpu::Buffer::allocate(bytes, cpu::MemoryTag::cache));
    QUERN_TRY(cache.value, cpu::Buffer::allocate(bytes, cpu::MemoryTag::cache));
  }
  const size_t head_size = static_cast<size_t>(info.head_size);
  const size_t used = static_cast<size_t>(length_) * head_size;
  for (size_t i = 0; i < layers_.size(); i++) {
    for (auto half : {&Cache::key, &Cache::value}) {
      cpu::Buffer& from = layers_[i].*half;
      cpu::Buffer& to = grown[i].*half;
      for (size_t h = 0; used > 0 && h < static_cast<size_t>(info.kv_heads); h++) {
        std::memcpy(to.as<float>() + h * static_cast<size_t>(capacity) * head_size,
                    from.as<float>() + h * static_cast<size_t>(capacity_) * head_size, used * sizeof(float));
      }
      from = {};
    }
  }
  const uint64_t copied = cache_bytes(length_);
  counters_.bytes_copied += copied;
  counters_.cache_bytes_copied += copied;
  layers_ = std::move(grown);
  capacity_ = capacity;
  bind_cache();
  return {};
}

void Qwen3State::bind_cache() {
  const ModelInfo& info = line_.info();
  const size_t bytes = layer_bytes(info, capacity_);
  for (size_t i = 0; i < layers_.size(); i++) {
    const Qwen3Layer& ports = line_.binding.layers[i];
    const auto bind = [&](const cpu::Buffer& memory, int past, int present) {
      ops::Tensor& in = inputs_[static_cast<size_t>(past)];
      in.present = true;
      in.dtype = DType::f32;
      in.shape = {1, info.kv_heads, capacity_, info.head_size};
      in.data = memory.data();
      graph::Output& out = outputs_[static_cast<size_t>(present)];
      out.wanted = true;
      out.bound = memory.data();
      out.bound_bytes = bytes;
    };
    bind(layers_[i].key, ports.past_key, ports.present_key);
    bind(layers_[i].value, ports.past_value, ports.present_value);
  }
}

Result<void> Qwen3State::reserve(int64_t tokens) {
  if (tokens <= capacity_) return {};
  const int64_t context = line_.info().context_tokens;
  if (tokens > context) {
    return Error{Errc::too_long, fmt::format("{} tokens do not fit the model's context of {}", tokens, context),
                 "prompt"};
  }
  const int64_t wanted = std::max({tokens, 2 * capacity_, kFirstCapacity});
  return set_capacity(std::min(round_up(wanted, kCapacityStep), context));
}

Result<std::unique_ptr<State>> Qwen3State::fork() const {
  auto copy = std::make_unique<Qwen3State>(line_);
  if (length_ > 0) {
    QUERN_TRY_VOID(
        copy->set_capacity(std::min<int64_t>(round_up(length_ + 1, kCapacityStep), line_.info().context_tokens)));
    const size_t head_size = static_cast<size_t>(line_.info().head_size);
    for (size_t i = 0; i < layers_.size(); i++) {
      for (auto half : {&Cache::key, &Cache::value}) {
        for (size_t h = 0; h < static_cast<size_t>(line_.info().kv_heads); h++) {
          std::memcpy((copy->layers_[i].*half).as<float>() + h * static_cast<size_t>(copy->capacity_) * head_size,
                      (layers_[i].*half).as<float>() + h * static_cast<size_t>(capacity_) * head_size,
                      static_cast<size_t>(length_) * head_size * sizeof(float));
        }
      }
    }
    copy->length_ = length_;
    copy->counters_.bytes_copied = copy->counters_.cache_bytes_copied = cache_bytes(length_);
  }
  return std::unique_ptr<State>(std::move(copy));
}

void Qwen3State::feed(std::span<const int32_t> ids) {
  ids_.assign(ids.begin(), ids.end());
  ops::Tensor& tokens = inputs_[static_cast<size_t>(line_.binding.input_ids)];
  tokens.present = true;
  tokens.dtype = DType::i64;
  tokens.shape = {1, static_cast<int64_t>(ids.size())};
  tokens.data = ids_.data();
  ops::Tensor& mask = inputs_[static_cast<size_t>(line_.binding.attention_mask)];
  mask.present = true;
  mask.dtype = DType::i64;
  mask.shape = {1, length_ + static_cast<int64_t>(ids.size())};
  mask.data = const_cast<int64_t*>(line_.ones());  // inputs are read-only for the graph
}

// Arguments are checked by Qwen3Line::forward().
Result<void> Qwen3State::forward(std::span<const int32_t> ids, int64_t first_row, int64_t rows,
                                 std::span<float> logits) {
  const auto count = static_cast<int64_t>(ids.size());
  QUERN_TRY_VOID(reserve(length_ + count));
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
  length_ += count;
  const ops::Counters& run = runner_->counters();
  counters_.forwards++;
  counters_.bytes_copied += run.bytes_copied;
  counters_.cache_bytes_copied += run.cache_bytes_copied;
  counters_.cache_bytes_appended += run.cache_bytes_appended;
  counters_.weight_bytes_read += run.weight_bytes_read;
  return {};
}

std::vector<graph::ReportRow> Qwen3State::report() const {
  return runner_ == nullptr ? line_.model->report() : runner_->report();
}

// ---- Line ----

Result<void> Qwen3Line::forward(State& base, std::span<const int32_t> ids, Rows wanted, std::span<float> logits) const {
  auto* state = dynamic_cast<Qwen3State*>(&base);
  if (state == nullptr || &state->line() != this) {
    return bad_request("state", "belongs to another model; a state is for the one that made it");
  }
  const auto count = static_cast<int64_t>(ids.size());
  if (count == 0) return bad_request("ids", "are empty, at least one token id is needed");
  for (size_t i = 0; i < ids.size(); i++) {
    if (ids[i] >= 0 && ids[i] < info_.vocab) continue;
    return bad_request(fmt::format("ids[{}]", i), fmt::format("token id {} is outside [0, {})", ids[i], info_.vocab));
  }
  const int64_t total = state->length_tokens() + count;
  if (total > info_.context_tokens) {
    return Error{Errc::too_long,
                 fmt::format("{} tokens do not fit the model's context of {}", total, info_.context_tokens), "ids"};
  }
  const int64_t first = wanted.first == Rows::kLast ? count - wanted.count : wanted.first;
  if (wanted.count < 0 || first < 0 || first > count - wanted.count) {
    return bad_request("rows",
                       fmt::format("{} rows from {} asked of a call of {} tokens", wanted.count, wanted.first, count));
  }
  if (logits.size() != static_cast<size_t>(wanted.count) * static_cast<size_t>(info_.vocab)) {
    return bad_request("logits", fmt::format("has {} elements, {} rows of {} need {}", logits.size(), wanted.count,
                                             info_.vocab, wanted.count * info_.vocab));
  }
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
  const auto rows = state == nullptr ? model->report() : static_cast<const Qwen3State*>(state)->report();
  std::vector<NodeReport> report;
  report.reserve(rows.size());
  for (const graph::ReportRow& row : rows) {
    report.push_back({std::string(row.node), std::string(row.op), std::string(row.domain),
                      std::string(graph::owner_name(row.owner)), row.variant, row.reason, row.ns, row.bytes_copied});
  }
  return report;
}

MemoryReport Qwen3Line::memory() const {
  const graph::MemorySummary& m = model->memory();
  return {m.prepared_bytes, m.serialized_bytes, m.copied_bytes, m.preparations};
}

// ---- opening ----

// What the search section asks for beyond sampling. Leaving it out silently would change what the model's authors
// meant.
std::vector<std::string> unsupported_search(const formats::GenaiSearch& search) {
  std::vector<std::string> names;
  if (search.repetition_penalty != 1.0f)
    names.push_back(fmt::format("repetition_penalty {}", search.repetition_penalty));
  if (search.num_beams != 1) names.push_back(fmt::format("num_beams {}", search.num_beams));
  if (search.num_return_sequences != 1)
    names.push_back(fmt::format("num_return_sequences {}", search.num_return_sequences));
  if (search.no_repeat_ngram_size != 0)
    names.push_back(fmt::format("no_repeat_ngram_size {}", search.no_repeat_ngram_size));
  if (search.min_length != 0) names.push_back(fmt::format("min_length {}", search.min_length));
  return names;
}

ModelInfo make_info(const fs::path& folder, const formats::GenaiConfig& config, const formats::OnnxFile& file) {
  ModelInfo info;
  info.model_type = config.type;
  info.folder = folder;
  info.context_tokens = config.context_length;
  info.vocab = config.vocab_size;
  info.layers = config.decoder.num_hidden_layers;
  info.hidden = config.decoder.hidden_size;
  info.heads = config.decoder.num_attention_heads;
  info.kv_heads = config.decoder.num_key_value_heads;
  info.head_size = config.decoder.head_size;
  info.eos_ids = config.eos_token_ids;
  info.bos_id = config.bos_token_id;
  info.pad_id = config.pad_token_id;
  info.sampling = {config.search.do_sample, config.search.temperature, config.search.top_k, config.search.top_p,
                   unsupported_search(config.search)};
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

}  // namespace

Result<std::unique_ptr<Line>> open_qwen3(const fs::path& folder, const OpenOptions& options) {
  const fs::path config_path = folder / "genai_config.json";
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
  QUERN_TRY(auto graph, graph::Model::load(std::move(file), *options.pool, options.features, {options.no_fuse}));
  QUERN_TRY(Qwen3Binding binding, bind_qwen3(*graph, config, where));
  return std::unique_ptr<Line>(new Qwen3Line(std::move(graph), std::move(binding), std::move(info), options));
}

}  // namespace quern::model
