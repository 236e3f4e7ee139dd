// SPDX-License-Identifier: Apache-2.0
// llama.cpp as an engine under test: the orders of model_worker.py, answered through its C interface.
// Usage: llama_worker BACKENDS_FOLDER auto|plain MODEL_FILE THREADS CAPACITY; plain: without flash attention. Built by
// engines.py against the libraries that the npm package node-llama-cpp brings; not a part of the CMake project.
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;
using Ids = std::vector<llama_token>;
using Clock = std::chrono::steady_clock;

constexpr llama_token kIdLimit = 256;  // as ID_LIMIT of model_worker.py

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double peak_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    double kb = 0;
    status >> kb;
    return kb / 1024;
  }
  return 0;
}

void say(const Json& answer) { std::cout << answer.dump() << std::endl; }

[[noreturn]] void leave(const std::string& reason) {
  say({{"absent", reason}});
  std::exit(0);
}

class Subject {
 public:
  Subject(bool plain, const char* file, int threads, int capacity) {
    model_ = llama_model_load_from_file(file, llama_model_default_params());
    if (model_ == nullptr) leave("llama.cpp cannot load " + std::string(file));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(capacity);
    params.n_batch = params.n_ctx;  // a prompt in one call; computed in pieces of the default n_ubatch
    params.n_outputs_max = 1;       // logits of the last row only, as everybody here
    params.n_threads = params.n_threads_batch = threads;
    if (plain) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) leave("llama.cpp cannot make a context of " + std::to_string(capacity) + " tokens");
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  }
  ~Subject() {
    llama_free(context_);
    llama_model_free(model_);
  }
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  // Forgets all but the first `tokens` tokens.
  void keep(int tokens) { llama_memory_seq_rm(llama_get_memory(context_), 0, tokens, -1); }

  void append(Ids ids) {
    if (ids.empty()) return;
    if (llama_decode(context_, llama_batch_get_one(ids.data(), static_cast<int32_t>(ids.size()))) != 0) {
      std::cerr << "llama_decode failed for " << ids.size() << " tokens\n";
      std::exit(1);
    }
    llama_synchronize(context_);
  }

  int length() const { return llama_memory_seq_pos_max(llama_get_memory(context_), 0) + 1; }
  const float* row() const { return llama_get_logits_ith(context_, -1); }
  int vocab() const { return vocab_; }

 private:
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  int vocab_ = 0;
};

Json time_calls(Subject& subject, const Json& order, std::mt19937& random) {
  const bool decode = order["case"] == "decode";
  const int tokens = order["depth"];
  const int depth = decode ? tokens : 0;
  const auto draw = [&](int count) {
    Ids ids(static_cast<size_t>(count));
    for (llama_token& id : ids) id = static_cast<llama_token>(random() % kIdLimit);
    return ids;
  };
  if (order["prepare"]) {
    subject.keep(0);
    subject.append(draw(depth));
    subject.append(draw(decode ? 1 : tokens));
    subject.keep(depth);
  }
  std::vector<double> samples;
  for (int i = 0; i < order["reps"]; i++) {
    const Ids ids = draw(decode ? 1 : tokens);
    const auto start = Clock::now();
    subject.append(ids);
    samples.push_back(ms_since(start));
    subject.keep(depth);
  }
  return {{"samples", samples}, {"past", subject.length()}};
}

Json chain(Subject& subject, const Json& order) {
  std::ofstream out;
  if (order["out"].is_string()) out.open(order["out"].get<std::string>(), std::ios::binary);
  const auto start = Clock::now();
  subject.keep(0);
  Ids next = order["prompt"].get<Ids>();
  const Ids forced = order["forced"].is_null() ? Ids() : order["forced"].get<Ids>();
  Ids chosen;
  double first_ms = 0;
  while (static_cast<int>(chosen.size()) < order["tokens"]) {
    subject.append(next);
    const float* row = subject.row();
    chosen.push_back(static_cast<llama_token>(std::max_element(row, row + subject.vocab()) - row));
    if (chosen.size() == 1) first_ms = ms_since(start);
    if (out.is_open()) out.write(reinterpret_cast<const char*>(row), subject.vocab() * static_cast<int>(sizeof(float)));
    next = {forced.empty() ? chosen.back() : forced[chosen.size() - 1]};
  }
  return {{"ids", chosen}, {"first_ms", first_ms}};
}

}  // namespace

int main(int, char** arguments) {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::cerr << text;
      },
      nullptr);
  ggml_backend_load_all_from_path(arguments[1]);
  llama_backend_init();
  const double base_mb = peak_mb();
  const auto start = Clock::now();
  Subject subject(arguments[2] == std::string("plain"), arguments[3], std::stoi(arguments[4]), std::stoi(arguments[5]));
  say({{"load_ms", ms_since(start)}, {"facts", {{"system", llama_print_system_info()}}}, {"base_mb", base_mb}});
  std::mt19937 random(0);
  for (std::string line; std::getline(std::cin, line);) {
    const Json order = Json::parse(line);
    Json answer = order["case"] == "chain" ? chain(subject, order) : time_calls(subject, order, random);
    answer["rss_mb"] = peak_mb();
    say(answer);
  }
}
