// SPDX-License-Identifier: Apache-2.0
// Opening order: what is cheap and can fail comes first; then the weights are prepared. The tokenizer is read beside
// that where there is a second thread, by a thread of its own, and before it where there is one.
#include "engine/engine.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <future>

#include "base/clock.h"
#include "base/model_part.h"
#include "cpu/topology.h"
#include "engine/no_memory.h"
#include "engine/session.h"

namespace quern::engine {
namespace {

Error no_text() { return bad_request("engine", "was opened without a tokenizer, so there is no text in or out"); }

}  // namespace

Engine::~Engine() = default;

Result<std::shared_ptr<const Engine>> Engine::open(const std::filesystem::path& folder, const EngineOptions& options) {
  return or_no_memory("opening the model", [&]() -> Result<std::shared_ptr<const Engine>> {
    if (options.threads < 0 || options.threads > kMaxThreads) {
      return bad_request("threads", fmt::format("is {}, allowed are 1 to {}, or 0 for the usable physical cores",
                                                options.threads, kMaxThreads));
    }
    const int64_t start = now_ns();
    std::shared_ptr<Engine> engine(new Engine());
    QUERN_TRY_VOID(model::identify(folder));
    QUERN_TRY(engine->features_, cpu::usable_features());
    const int threads = options.threads > 0 ? options.threads : cpu::read_topology().usable;
    engine->pool_ = std::make_unique<cpu::Pool>(threads);
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
    auto line = model::open_line(folder, {engine->pool_.get(), engine->features_, options.profile, options.no_fuse});
    if (tokenizer.valid()) {
      QUERN_TRY(engine->tokenizer_, tokenizer.get());
    }
    QUERN_TRY(engine->line_, std::move(line));
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
    engine->load_ms_ = ms_since(start);
    return std::shared_ptr<const Engine>(std::move(engine));
  });
}

EngineMemory Engine::memory() const {
  EngineMemory memory;
  memory.model = line_->memory();
  memory.process = cpu::memory_usage();
  rusage usage{};
  // Linux counts in kilobytes.
  if (getrusage(RUSAGE_SELF, &usage) == 0) memory.peak_resident = static_cast<size_t>(usage.ru_maxrss) * 1024;
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

Result<SamplingOptions> Engine::default_sampling() const {
  const model::SamplingDefaults& defaults = info().sampling;
  if (!defaults.unsupported.empty()) {
    return unsupported(info().folder.string(),
                       fmt::format("its generation settings ask for {}, which this version does "
                                   "not carry out; give sampling options of your own",
                                   fmt::join(defaults.unsupported, ", ")));
  }
  SamplingOptions options;
  options.greedy = !defaults.do_sample;
  options.temperature = defaults.temperature;
  options.top_k = defaults.top_k;
  // In configurations 0 means no limit; as an option it would be an empty set.
  options.top_p = defaults.top_p > 0 ? defaults.top_p : 1;
  return options;
}

int32_t Engine::sampled_ids() const { return tokenizer_ ? tokenizer_->id_limit() : info().vocab; }

}  // namespace quern::engine
