/* SPDX-License-Identifier: Apache-2.0
 * chat MODEL MESSAGE...: a conversation by the model's own chat template, a message an argument. */
#include <quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct answer {
  char text[1 << 16];
  size_t bytes;
};

/* Prints a piece of an answer and keeps it; ends an answer that there is no room for. */
static int keep(const char* text, size_t bytes, void* user) {
  struct answer* answer = user;
  if (bytes >= sizeof answer->text - answer->bytes) return 1;
  memcpy(answer->text + answer->bytes, text, bytes);
  answer->bytes += bytes;
  return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0 ? 0 : 1;
}

static quern_status converse(quern_model* model, int count, char** texts) {
  quern_message* messages = calloc(2 * (size_t)count, sizeof *messages);
  struct answer* answers = calloc((size_t)count, sizeof *answers);
  quern_generate_options options = {.size = sizeof options};
  quern_generation generation = {.size = sizeof generation};
  quern_session* session = NULL;
  quern_status status = messages != NULL && answers != NULL ? QUERN_OK : QUERN_NO_MEMORY;
  if (status == QUERN_OK) status = quern_generate_defaults(model, &options);
  if (status == QUERN_OK) status = quern_session_new(model, &session);
  options.max_tokens = 64;
  options.seed = 7;
  for (int i = 0; i < count && status == QUERN_OK; i++) {
    messages[2 * i].role = "user";
    messages[2 * i].content = texts[i];
    status = quern_chat(session, messages, 2 * (size_t)i + 1, &options, keep, &answers[i], &generation);
    messages[2 * i + 1].role = "assistant";
    messages[2 * i + 1].content = answers[i].text;
    if (status == QUERN_OK) printf("\n[%lld tokens computed]\n", (long long)generation.prompt_tokens);
  }
  quern_session_free(session);
  free(answers);
  free(messages);
  return status;
}

int main(int argc, char** argv) {
  quern_model* model = NULL;
  quern_status status;
  if (argc < 3) {
    fprintf(stderr, "usage: chat MODEL MESSAGE...\n");
    return 2;
  }
  status = quern_open(argv[1], 0, &model);
  if (status == QUERN_OK) status = converse(model, argc - 2, argv + 2);
  if (status != QUERN_OK) fprintf(stderr, "chat: %s\n", quern_last_error());
  quern_model_free(model);
  return (int)status;
}
