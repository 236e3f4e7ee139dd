// SPDX-License-Identifier: Apache-2.0
// Checks the contract and splits channels across threads.
#include "ops/short_conv/short_conv.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "ops/element.h"
#include "ops/short_conv/kernels.h"

namespace quern::ops {
namespace {

// Channels handed out at once: two cache lines of bfloat16 in each row.
constexpr int64_t kChannelBlock = 64;

Result<void> check(const ShortConvParams& p, std::string_view where) {
  QUERN_TRY_VOID(check_float_or_brain(p.type, where));
  if (p.channels < 1 || p.taps < 1 || p.dilation < 1) {
    return bad_request(std::string(where),
                       fmt::format("{} channels, {} taps and a dilation of {} are not allowed (1 or "
                                   "more of each)",
                                   p.channels, p.taps, p.dilation));
  }
  return {};
}

}  // namespace

Result<void> short_conv(const Context& ctx, const ShortConvParams& p, const ShortConvArgs& a, std::string_view where) {
  QUERN_TRY_VOID(check(p, where));
  if (p.tokens <= 0) return {};
  QUERN_CHECK(a.state != nullptr || short_conv_past(p.taps, p.dilation) == 0, "short_conv has a state");
  for_rows(ctx, ceil_div(p.channels, kChannelBlock), kChannelBlock * p.tokens * p.taps,
           [&](int64_t begin, int64_t end, int) {
             short_conv_reference(
                 p.type, {a.x.data, a.x.stride, a.weight, a.state, a.y.data, a.y.stride, p.tokens, p.channels,
                          begin * kChannelBlock, std::min(end * kChannelBlock, p.channels), p.taps, p.dilation});
           });
  return {};
}

}  // namespace quern::ops
