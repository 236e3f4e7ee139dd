/* SPDX-License-Identifier: Apache-2.0
 * complete MODEL PROMPT: continues a text, printed as it comes; Ctrl-C ends it. */
#include <quern.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static quern_session* session;

static void interrupt(int signal_number) {
  (void)signal_number;
  quern_cancel(session);
}

static int print(const char* text, size_t bytes, void* user) {
  (void)user;
  return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0 ? 0 : 1;
}

static quern_status complete(quern_model* model, const char* prompt) {
  quern_generate_options options = {.size = sizeof options};
  quern_generation generation = {.size = sizeof generation};
  quern_status status = quern_generate_defaults(model, &options);
  if (status != QUERN_OK) return status;
  options.max_tokens = 64;
  options.seed = 7;
  status = quern_session_new(model, &session);
  if (status != QUERN_OK) return status;
  signal(SIGINT, interrupt);
  status = quern_generate(session, prompt, strlen(prompt), &options, print, NULL, &generation);
  if (status == QUERN_OK) {
    printf("\n[%lld tokens, %.2f ms each, %s]\n", (long long)generation.generated_tokens, generation.ms_per_token,
           generation.finish_reason);
  }
  signal(SIGINT, SIG_DFL);
  quern_session_free(session);
  return status;
}

int main(int argc, char** argv) {
  quern_model* model = NULL;
  quern_status status;
  if (argc != 3) {
    fprintf(stderr, "usage: complete MODEL PROMPT\n");
    return 2;
  }
  status = quern_open(argv[1], 0, &model);
  if (status == QUERN_OK) status = complete(model, argv[2]);
  if (status != QUERN_OK) fprintf(stderr, "complete: %s\n", quern_last_error());
  quern_model_free(model);
  return (int)status;
}
