// SPDX-License-Identifier: Apache-2.0
// The placement: blocks that live at once never overlap, ends are reused, repeats change nothing.
#include "graph/storage_plan.h"

#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace quern::graph {
namespace {

bool overlap(const Block& a, const Block& b) { return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes; }

TEST(StoragePlan, BlocksThatLiveAtOnceDoNotOverlap) {
  std::vector<Block> blocks{{100, 0, 1}, {200, 0, 0}, {64, 1, 3}, {300, 2, 3}, {100, 3, 3}};
  StoragePlan plan;
  plan.place(blocks);
  for (size_t i = 0; i < blocks.size(); i++) {
    EXPECT_EQ(blocks[i].offset % kBlockAlignment, 0u);
    EXPECT_LE(blocks[i].offset + blocks[i].bytes, plan.total_bytes());
    for (size_t k = i + 1; k < blocks.size(); k++) {
      const bool together = blocks[i].last >= blocks[k].first;
      EXPECT_FALSE(together && overlap(blocks[i], blocks[k])) << i << " and " << k;
    }
  }
}

TEST(StoragePlan, AChainNeedsTwoPlacesOnly) {
  std::vector<Block> blocks;
  for (int n = 0; n < 100; n++) blocks.push_back({1024, n, n + 1});
  StoragePlan plan;
  plan.place(blocks);
  EXPECT_EQ(plan.total_bytes(), 2048u);
}

TEST(StoragePlan, AReusedBlockTakesTheSamePlaceAndFreesItOnce) {
  std::vector<Block> blocks{{256, 0, 1}, {256, 1, 2, 0}, {256, 3, 3}, {256, 3, 3}};
  StoragePlan plan;
  plan.place(blocks);
  EXPECT_EQ(blocks[1].offset, blocks[0].offset);
  EXPECT_FALSE(overlap(blocks[2], blocks[3]));
  EXPECT_EQ(plan.total_bytes(), 512u);
}

TEST(StoragePlan, EmptyBlocksTakeNoPlace) {
  std::vector<Block> blocks{{0, 0, 5}, {64, 0, 0}};
  StoragePlan plan;
  plan.place(blocks);
  EXPECT_EQ(plan.total_bytes(), 64u);
}

TEST(StoragePlan, TheSameSizesAgainGiveTheSamePlaces) {
  std::vector<Block> blocks{{100, 0, 1}, {200, 1, 2}, {300, 2, 3}};
  StoragePlan plan;
  plan.place(blocks);
  std::vector<Block> again{{100, 0, 1}, {200, 1, 2}, {300, 2, 3}};
  plan.place(again);
  for (size_t i = 0; i < blocks.size(); i++) EXPECT_EQ(again[i].offset, blocks[i].offset);
  again[1].bytes = 900;
  plan.place(again);
  EXPECT_FALSE(overlap(again[0], again[1]));
  EXPECT_FALSE(overlap(again[1], again[2]));
}

TEST(StoragePlan, RandomLivesNeverOverlap) {
  support::Random random(17);
  for (int round = 0; round < 50; round++) {
    std::vector<Block> blocks;
    int first = 0;
    for (int i = 0; i < 80; i++) {
      first += static_cast<int>(random.below(2));
      blocks.push_back({static_cast<size_t>(random.below(1000)), first, first + static_cast<int>(random.below(6))});
    }
    StoragePlan plan;
    plan.place(blocks);
    for (size_t i = 0; i < blocks.size(); i++) {
      for (size_t k = i + 1; k < blocks.size(); k++) {
        if (blocks[i].last >= blocks[k].first && blocks[i].bytes > 0 && blocks[k].bytes > 0) {
          ASSERT_FALSE(overlap(blocks[i], blocks[k])) << "round " << round << ": " << i << " and " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quern::graph
