// SPDX-License-Identifier: Apache-2.0
// complete MODEL PROMPT: continues a text, printed as it comes; Ctrl-C ends it.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string_view>

#include <quern/engine/session.h>

namespace engine = quern::engine;

namespace {

std::atomic<bool> interrupted{false};

quern::Result<void> complete(const char* folder, std::string_view prompt) {
  QUERN_TRY(const auto model, engine::Engine::open(folder, {}));
  QUERN_TRY(const auto session, model->new_session());
  QUERN_TRY(const auto ids, model->encode(prompt));
  QUERN_TRY_VOID(session->append(ids));

  engine::GenerateOptions options;
  options.max_tokens = 64;
  QUERN_TRY(options.sampling, model->default_sampling());
  options.sampling.seed = 7;
  options.cancel = &interrupted;
  options.on_token = [](std::string_view text, int32_t) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return std::fflush(stdout) == 0;
  };
  QUERN_TRY(const engine::Generation generation, session->generate(options));
  std::printf("\n[%zu tokens, %.2f ms each, %s]\n", generation.token_ids.size(),
              generation.timings.decode_ms_per_token(), engine::finish_reason_name(generation.finish_reason).data());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: complete MODEL PROMPT\n");
    return 2;
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  const quern::Result<void> done = complete(argv[1], argv[2]);
  if (done.ok()) return 0;
  std::fprintf(stderr, "complete: %s\n", done.error().message().c_str());
  return quern::exit_code(done.error().code);
}
