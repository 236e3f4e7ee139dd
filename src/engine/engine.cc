// SPDX-License-Identifier: Apache-2.0
// Opening order: what is cheap and can fail comes first; then the weights are prepared. The tokenizer is read beside
// that where there is a second thread, by a thread of its own, and before it where there is one.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/model_part.h"
#include "base/quote_name.h"
#include "cpu/limits.h"
#include "cpu/topology.h"
#include "engine/no_memory.h"
#include "engine/session.h"
#include "model/kv_cache.h"

namespace quern::engine {
namespace {

// Nothing: the model decides.
Result<std::optional<DType>> compute_type(const std::string& name) {
  if (name == "auto") return std::optional<DType>();
  if (name == "fp32") return std::optional<DType>(DType::f32);
  if (name == "bf16") return std::optional<DType>(DType::bf16);
  return bad_request("compute", fmt::format("is {}, allowed are auto, fp32, bf16", quote_name(name)));
}

Result<std::optional<DType>> kept_type(const std::string& name) {
  const std::optional<DType> type = model::kv_type(name);
  if (type || name == "auto") return type;
  return bad_request("kv", fmt::format("is {}, allowed are auto, {}", quote_name(name), fmt::join(kv_types(), ", ")));
}

// A line of /proc/self/status. Of this program alone: what getrusage() gives also knows the process that started it.
size_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  size_t kilobytes = 0;
  while (status >> word) {
    if (word == key && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Code and small objects that opening a model touches.
constexpr size_t kProgramGrowth = 5'000'000;
// What reading a tokenizer takes for each byte of its file: 23 MB for 11.4 MB with a vocabulary of 151,669.
constexpr size_t kTokenizerFactor = 2;

MemoryEstimate look_at_memory(const std::filesystem::path& folder, bool with_text) {
  MemoryEstimate estimate;
  estimate.program = status_bytes("VmRSS:") + kProgramGrowth;
  std::error_code failure;
  if (with_text) {
    const auto bytes = std::filesystem::file_size(folder / "tokenizer.json", failure);
    if (!failure) estimate.tokenizer = static_cast<size_t>(bytes) * kTokenizerFactor;
  }
  cpu::MemoryLimits limits = cpu::read_memory_limits();
  estimate.available = limits.available;
  estimate.bound = std::move(limits.bound);
  return estimate;
}

Error no_text() { return bad_request("engine", "was opened without a tokenizer, so there is no text in or out"); }

}  // namespace

std::span<const std::string_view> kv_types() { return model::kKvTypeNames; }

Engine::~Engine() = default;

Result<std::shared_ptr<const Engine>> Engine::open(const std::filesystem::path& folder, const EngineOptions& options) {
  return or_no_memory("opening the model", [&]() -> Result<std::shared_ptr<const Engine>> {
    if (options.threads < 0 || options.threads > kMaxThreads) {
      return bad_request("threads", fmt::format("is {}, allowed are 1 to {}, or 0 for the usable physical cores",
                                                options.threads, kMaxThreads));
    }
    if (options.context_tokens < 0) {
      return bad_request("ctx",
                         fmt::format("is {}, allowed are 1 and more, or 0 for what fits", options.context_tokens));
    }
    QUERN_TRY(const std::optional<DType> kv, kept_type(options.kv));
    QUERN_TRY(const std::optional<DType> compute, compute_type(options.compute));
    const int64_t start = now_ns();
    std::shared_ptr<Engine> engine(new Engine());
    QUERN_TRY_VOID(model::identify(folder));
    QUERN_TRY(engine->features_, cpu::usable_features());
    const int threads = options.threads > 0 ? options.threads : cpu::read_topology().threads;
    engine->pool_ = std::make_unique<cpu::Pool>(threads);
    engine->estimate_ = look_at_memory(folder, options.with_text);
    std::future<Result<text::Tokenizer>> tokenizer;
    if (options.with_text) {
      QUERN_TRY_VOID(check_part(folder / "tokenizer.json"));
      if (threads == 1) {
        QUERN_TRY(engine->tokenizer_, text::Tokenizer::load(folder));
      } else {
        // Reading it takes one thread about as long as preparing a small model takes two. Where the system refuses the
        // thread, it is read when it is asked for.
        tokenizer =
            std::async(std::launch::async | std::launch::deferred, [&folder] { return text::Tokenizer::load(folder); });
      }
    }
    const MemoryEstimate& seen = engine->estimate_;
    model::MemoryBudget budget;
    if (!seen.bound.empty()) {
      budget = {seen.available - std::min(seen.available, seen.tokenizer + kProgramGrowth), seen.bound};
    }
    auto line = model::open_line(folder, {engine->pool_.get(), engine->features_, options.profile, compute, kv,
                                          options.no_fuse, options.context_tokens, std::move(budget)});
    if (tokenizer.valid()) {
      QUERN_TRY(engine->tokenizer_, tokenizer.get());
    }
    QUERN_TRY(engine->line_, std::move(line));
    const model::MemoryNeed& need = engine->line_->memory().estimate;
    engine->estimate_.weights = need.weights;
    engine->estimate_.cache = need.state + need.token * static_cast<size_t>(engine->info().context_tokens);
    engine->estimate_.workspace = need.workspace;
    engine->estimate_.mapped = need.mapped;
    if (engine->tokenizer_) {
      const int32_t limit = engine->tokenizer_->id_limit();
      if (limit > engine->info().vocab) {
        return bad_model(
            (folder / "tokenizer.json").string(),
            fmt::format("has token ids up to {}, the model has {} of them", limit - 1, engine->info().vocab));
      }
      if (engine->tokenizer_->vocab_size() != limit) {
        for (int32_t id = 0; id < limit; id++) {
          if (!engine->tokenizer_->text_of(id)) engine->unsampled_ids_.push_back(id);
        }
      }
    }
    for (const auto* ids : {&engine->info().refused_ids, &engine->info().sampling.suppressed_ids}) {
      engine->unsampled_ids_.insert(engine->unsampled_ids_.end(), ids->begin(), ids->end());
    }
    engine->load_ms_ = ms_since(start);
    return std::shared_ptr<const Engine>(std::move(engine));
  });
}

Error Engine::explain_not_finite(Error error) const {
  if (line_->memory().kv_type == model::kv_type_name(DType::f16)) {
    error.what += "; a key or a value beyond 65504 does that in an fp16 cache, other kinds of cache (kv) keep it";
  }
  return error;
}

EngineMemory Engine::memory() const {
  EngineMemory memory;
  memory.model = line_->memory();
  memory.process = cpu::memory_usage();
  memory.peak_resident = status_bytes("VmHWM:");
  memory.estimate = estimate_;
  return memory;
}

Result<std::unique_ptr<Session>> Engine::new_session() const {
  return or_no_memory("a new session", [&] { return Session::make(shared_from_this()); });
}

Result<std::vector<int32_t>> Engine::encode(std::string_view utf8) const {
  if (!tokenizer_) return no_text();
  return or_no_memory("the prompt", [&] { return tokenizer_->encode(utf8); });
}

Result<std::string> Engine::decode(std::span<const int32_t> ids, bool skip_special) const {
  if (!tokenizer_) return no_text();
  return or_no_memory("the text", [&]() -> Result<std::string> { return tokenizer_->decode(ids, skip_special); });
}

Result<SamplingOptions> Engine::choose_sampling(const SamplingChoice& choice) const {
  const model::SamplingDefaults& defaults = info().sampling;
  const bool own = choice.greedy || (choice.temperature && choice.top_k && choice.top_p);
  if (!own && !defaults.unsupported.empty()) {
    return unsupported(defaults.file.string(),
                       fmt::format("asks for {}, which this version does not carry out; ask for greedy, or give "
                                   "temperature, top_k and top_p",
                                   fmt::join(defaults.unsupported, ", ")));
  }
  SamplingOptions options;
  const bool samples = choice.temperature || choice.top_k || choice.top_p || choice.min_p;
  options.greedy = choice.greedy || (!defaults.do_sample && !samples);
  options.temperature = choice.temperature.value_or(defaults.temperature);
  options.top_k = choice.top_k.value_or(defaults.top_k);
  // In configurations 0 means the most likely token alone; as an option it would be an empty set.
  const float top_p = defaults.top_p > 0 ? defaults.top_p : std::numeric_limits<float>::min();
  options.top_p = choice.top_p.value_or(top_p);
  options.min_p = choice.min_p.value_or(defaults.min_p);
  options.repetition_penalty = choice.repetition_penalty.value_or(defaults.repetition_penalty);
  options.presence_penalty = choice.presence_penalty.value_or(0);
  options.frequency_penalty = choice.frequency_penalty.value_or(0);
  options.logit_bias = choice.logit_bias;
  options.seed = choice.seed;
  return options;
}

int32_t Engine::sampled_ids() const { return tokenizer_ ? tokenizer_->id_limit() : info().vocab; }

}  // namespace quern::engine
