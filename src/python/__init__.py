# SPDX-License-Identifier: Apache-2.0
"""quern: Qwen models on the CPU. Everything is implemented in the extension module; this file only names it."""

from ._quern import (LLM, Answer, Chat, ChatStream, Error, Generation, InferenceSession, NodeArg, State, Stream, __version__,
                     memory_usage, ops)

__all__ = ["LLM", "Answer", "Chat", "ChatStream", "Error", "Generation", "InferenceSession", "NodeArg", "State", "Stream",
           "__version__", "memory_usage", "ops"]
