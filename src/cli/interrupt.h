// SPDX-License-Identifier: Apache-2.0
// Owns what an interrupt (Ctrl-C, SIGINT) does to the program: it ends at once, or raises a flag where somebody looks
// at one. Either way the exit code says so and nothing else does. Does not own what a command leaves behind then.
#pragma once

#include "engine/generation.h"

namespace quern::cli {

// 128 + SIGINT, as shells report it.
inline constexpr int kExitInterrupted = 130;

// From here on an interrupt ends the program at once, with kExitInterrupted.
void watch_interrupts();

enum class FurtherInterrupts { end_the_program, are_ignored };
// From here on the first interrupt raises the flag that is returned; `further` says what the ones behind it do. The
// flag begins lowered.
engine::CancelFlag answer_interrupts(FurtherInterrupts further = FurtherInterrupts::end_the_program);
// Interrupts end the program at once again; where further ones were ignored, only after a moment: the second of two
// quick presses may come when the work has ended already.
void leave_on_interrupts();

}  // namespace quern::cli
