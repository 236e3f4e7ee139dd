/* SPDX-License-Identifier: Apache-2.0
 * quern for C and for every language that can call C: open a model folder, generate text or the next message of a
 * conversation through a callback, cancel, free. Plain C11 without any type of C++; link with quern_c. docs/cpp.md has
 * an example.
 *
 * Ownership   What a function gives through a pointer to a handle is the caller's, until it is passed to the _free
 *             function of its kind, which takes NULL as well. Everything else that is given belongs to quern.
 * Threads     A quern_model may be used by any number of threads at once. A quern_session is for one thread at a time,
 *             except quern_cancel(). Sessions of one model may run at the same time; they share its compute threads.
 *             A session keeps its model alive, so the two may be freed in any order.
 * fork()      Models and sessions that a child process inherits may only be freed there; computing gives
 *             QUERN_UNSUPPORTED. Open a model in the child instead.
 * Text        UTF-8. Sizes are in bytes. Text that quern gives has whole characters.
 * Errors      Functions that can fail return a quern_status and say more in quern_last_error(). After an error nothing
 *             has been given, and handles are as they were before, unless a function says otherwise.
 * Versions    Structs that the caller makes start with their size, so that later versions can append fields: programs
 *             that were built against an older header keep working with a newer library of the same first number.
 */
#ifndef QUERN_H
#define QUERN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QUERN_API __attribute__((visibility("default")))
#else
#define QUERN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_model quern_model;
typedef struct quern_session quern_session;

/* The numbers are the exit codes of the quern program. */
typedef enum quern_status {
  QUERN_OK = 0,
  QUERN_INTERNAL = 1,    /* a defect of quern */
  QUERN_BAD_MODEL = 3,   /* a model file is damaged, inconsistent or missing */
  QUERN_UNSUPPORTED = 4, /* well-formed, but asks for something that quern does not do; names it */
  QUERN_BAD_REQUEST = 5, /* an argument breaks its contract, or the text needs more positions than the model has */
  QUERN_NO_MEMORY = 6,
  QUERN_IO = 7 /* reading or writing failed */
} quern_status;

/* "0.1.0": of the library, not of the header. */
QUERN_API const char* quern_version(void);

/* What the last call of this thread that failed has to say: one sentence that names place and value, NUL-terminated
 * UTF-8, empty before the first failure. Valid until the next call of this thread. Never NULL. */
QUERN_API const char* quern_last_error(void);

/* Opens the model in `folder` (a NUL-terminated path) on `threads` compute threads: 1 to 1024, or 0 for the usable
 * physical cores. The folder's files must stay as they are while the model is open. */
QUERN_API quern_status quern_open(const char* folder, int32_t threads, quern_model** model);
QUERN_API void quern_model_free(quern_model* model);

/* One timeline of a model: a text that grows. Empty at first. */
QUERN_API quern_status quern_session_new(const quern_model* model, quern_session** session);
QUERN_API void quern_session_free(quern_session* session);
/* Forgets the text, keeps the memory. */
QUERN_API void quern_session_reset(quern_session* session);

/* How text is continued. quern_generate_defaults() fills all of it. */
typedef struct quern_generate_options {
  size_t size;              /* sizeof(quern_generate_options), set by the caller before anything else */
  int32_t max_tokens;       /* >= 0 */
  int32_t greedy;           /* not 0: the best token always, and the next four do not matter */
  float temperature;        /* >= 0 */
  int32_t top_k;            /* >= 0, 0: no limit */
  float top_p;              /* 0 < p <= 1, 1: no limit */
  float min_p;              /* 0 <= p <= 1, 0: no limit */
  float repetition_penalty; /* > 0, 1: none */
  float presence_penalty;   /* 0: none */
  float frequency_penalty;  /* 0: none */
  uint64_t seed;            /* the same seed, library and machine give the same text */
  const char* const* stop;  /* `stop_count` NUL-terminated texts in front of which the text ends; may be NULL for 0 */
  size_t stop_count;
  int32_t thinking; /* for quern_chat(): above 0 with reasoning, below 0 without, 0: as the model's template has it */
} quern_generate_options;

/* 256 tokens, no stop texts, seed 0, and the sampling that the model's authors want. QUERN_UNSUPPORTED where they want
 * something that quern does not do: fill in everything yourself then. */
QUERN_API quern_status quern_generate_defaults(const quern_model* model, quern_generate_options* options);

/* Called in the thread of quern_generate() or quern_chat() for every token with the text that became complete by it:
 * `bytes` of UTF-8, not NUL-terminated, maybe none, valid during the call. Returns 0 to go on; anything else ends the
 * generation. It may call quern_cancel(), but nothing else on the same session. */
typedef int (*quern_text_callback)(const char* text, size_t bytes, void* user);

typedef struct quern_generation {
  size_t size;           /* sizeof(quern_generation), set by the caller */
  int64_t prompt_tokens; /* computed for the prompt */
  int64_t generated_tokens;
  double prompt_ms;          /* computing the prompt */
  double first_token_ms;     /* from there to the first token */
  double ms_per_token;       /* of the tokens after it; 0 without any */
  const char* finish_reason; /* "stop", "length", "cancelled" or another word; static */
} quern_generation;

/* Appends `prompt` (`bytes` of UTF-8, NUL-termination not needed) to the session's text and continues it: each piece of
 * new text goes to `callback` (may be NULL) with `user`. What was generated is part of the session's text, so the next
 * call goes on behind it. `options` NULL: the defaults. `generation` (may be NULL) tells how it went.
 * Cancelled, the call returns QUERN_OK and the finish_reason "cancelled"; the session holds what was generated so far,
 * or, when the prompt was not computed to its end, what it held before.
 * After an error before the first token the session is as before; after one later it holds what was generated so far.
 */
QUERN_API quern_status quern_generate(quern_session* session, const char* prompt, size_t bytes,
                                      const quern_generate_options* options, quern_text_callback callback, void* user,
                                      quern_generation* generation);

typedef struct quern_message {
  const char* role;    /* "system", "user" or "assistant", or what else the model's template knows */
  const char* content; /* both NUL-terminated UTF-8 */
} quern_message;

/* Answers a conversation of `count` messages, at least one, which the model's own chat template writes as a prompt. The
 * session's text becomes that prompt and the answer. Pass all messages every time, the answers so far among them: what
 * the session's text and the new prompt begin with alike is not computed again. The answer is given as it is generated,
 * with the marks that the model puts around reasoning (<think>, </think>), where there is any. The rest is as in
 * quern_generate(); QUERN_UNSUPPORTED where the model has no chat template, or none that can switch `thinking`.
 * After an error or a cancel before the first token the session holds what both begin with. */
QUERN_API quern_status quern_chat(quern_session* session, const quern_message* messages, size_t count,
                                  const quern_generate_options* options, quern_text_callback callback, void* user,
                                  quern_generation* generation);

/* Ends the generation that is running in the session, or the next one when none is running. From any thread and from
 * signal handlers. Takes effect after the token, or after the piece of up to 512 tokens of the prompt, in work. */
QUERN_API void quern_cancel(quern_session* session);

#ifdef __cplusplus
}
#endif

#endif /* QUERN_H */
