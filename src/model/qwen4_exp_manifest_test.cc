// SPDX-License-Identifier: Apache-2.0
// The contract against every header of the published checkpoint, and against checkpoints that lack or add something.
#include "model/qwen4_exp_manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

namespace quern::model {
namespace {

using formats::SafetensorsTensor;
using nlohmann::json;

std::filesystem::path testdata(const char* name) {
  return std::filesystem::path(QUERN_SOURCE_DIR) / "testdata/qwen4" / name;
}

Qwen4ExpConfig config_with(const std::function<void(json& whole)>& edit) {
  std::ifstream file(testdata("config.json"));
  json document = json::parse(file);
  edit(document);
  const auto config = Qwen4ExpConfig::parse(document.dump(), "c");
  QUERN_CHECK(config.ok(), "the edit keeps the configuration valid");
  return *config;
}
Qwen4ExpConfig published_config() {
  return config_with([](json&) {});
}

// Headers without payloads.
class Headers {
 public:
  void add(std::string name, DType dtype, std::vector<int64_t> shape) {
    tensors_.insert_or_assign(std::move(name), std::pair(dtype, std::move(shape)));
  }
  void remove(const std::string& name) { EXPECT_EQ(tensors_.erase(name), 1u) << name; }

  Result<Qwen4ExpInventory> check(const Qwen4ExpConfig& config) const {
    std::vector<SafetensorsTensor> list;
    for (const auto& [name, header] : tensors_) list.push_back({name, header.first, header.second, {}});
    return check_qwen4_exp_tensors(config, list, "model");
  }
  void expect_refused(const Qwen4ExpConfig& config, std::string_view text, std::string_view where = "model") const {
    const auto found = check(config);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_EQ(found.error().code, Errc::bad_model);
    EXPECT_EQ(found.error().where, where);
    EXPECT_EQ(found.error().what, text);
  }
  std::map<std::string, std::pair<DType, std::vector<int64_t>>, std::less<>> tensors_;
};

Headers published_headers() {
  std::ifstream file(testdata("inventory.json"));
  const json inventory = json::parse(file);
  Headers headers;
  for (const json& t : inventory["tensors"]) {
    headers.add(t[0], t[1] == "I64" ? DType::i64 : DType::bf16, t[2].get<std::vector<int64_t>>());
    EXPECT_TRUE(t[1] == "I64" || t[1] == "BF16");
  }
  return headers;
}

// Headers of a whole contract.
Headers headers_of(const Qwen4ExpConfig& config, const Qwen4ExpForm& form) {
  const auto contract = qwen4_exp_manifest(config, form);
  EXPECT_TRUE(contract.ok());
  Headers headers;
  for (const TensorContract& t : *contract) headers.add(t.name, t.dtype, t.shape);
  return headers;
}

TEST(Qwen4ExpManifest, EqualsEveryPublishedHeader) {
  const Headers headers = published_headers();
  ASSERT_EQ(headers.tensors_.size(), 1658u);
  const auto found = headers.check(published_config());
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->text_tensors, 1294);
  EXPECT_EQ(found->draft_tensors, 31);
  EXPECT_EQ(found->vision_tensors, 333);
  EXPECT_FALSE(found->form.text_only);
  EXPECT_FALSE(found->form.separate_experts);
}

TEST(Qwen4ExpManifest, EveryMissingTensorIsNamed) {
  const Headers whole = published_headers();
  const Qwen4ExpConfig config = published_config();
  for (const auto& [name, header] : whole.tensors_) {
    if (name.starts_with("mtp.") || name.starts_with("model.visual.")) continue;
    // Where these are missing, the checkpoint looks like one of another form.
    if (name.ends_with("embed_tokens.weight") || name.ends_with("layers.0.mlp.experts.gate_up_proj")) continue;
    Headers less = whole;
    less.remove(name);
    less.expect_refused(config, "1 tensor missing: '" + name + "'");
  }
}

TEST(Qwen4ExpManifest, EveryExtentAndTypeCounts) {
  const Headers whole = published_headers();
  const Qwen4ExpConfig config = published_config();
  // One layer of each kind, one with n-grams, and what is outside of layers.
  for (const auto& [name, header] : whole.tensors_) {
    const bool looked_at = name.find(".layers.") == name.npos || name.find(".layers.1.") != name.npos ||
                           name.find(".layers.3.") != name.npos;
    if (!looked_at || name.starts_with("mtp.") || name.starts_with("model.visual.")) continue;
    for (size_t i = 0; i < header.second.size(); ++i) {
      Headers other = whole;
      ++other.tensors_.find(name)->second.second[i];
      EXPECT_EQ(other.check(config).error().where, "model: tensor '" + name + "'");
    }
    Headers rank = whole;
    rank.tensors_.find(name)->second.second.push_back(1);
    EXPECT_EQ(rank.check(config).error().where, "model: tensor '" + name + "'");
    Headers type = whole;
    type.tensors_.find(name)->second.first = DType::f32;
    EXPECT_EQ(type.check(config).error().where, "model: tensor '" + name + "'");
  }
}

// What other families store in float32.
TEST(Qwen4ExpManifest, DecayAndNormOfLinearAttentionAreBfloat16) {
  const auto contract = qwen4_exp_manifest(published_config(), {}).value();
  int64_t seen = 0;
  for (const TensorContract& t : contract) {
    if (!t.name.ends_with("A_log") && !t.name.ends_with("dt_bias") && !t.name.ends_with("linear_attn.norm.weight"))
      continue;
    EXPECT_EQ(t.dtype, DType::bf16) << t.name;
    seen++;
  }
  EXPECT_EQ(seen, 3 * 36);
}

TEST(Qwen4ExpManifest, WrongTensorSaysWhatIsNeeded) {
  Headers headers = published_headers();
  headers.add("model.language_model.layers.1.ple.conv1d.weight", DType::bf16, {10240, 4});
  headers.expect_refused(published_config(),
                         "is bfloat16 of shape [10240, 4], but the configuration needs bfloat16 of shape [10240, 1, 4]",
                         "model: tensor 'model.language_model.layers.1.ple.conv1d.weight'");
}

TEST(Qwen4ExpManifest, ForeignTensorsAreNamedAndOnlyTheTwoPrefixesArePassedOver) {
  Headers headers = published_headers();
  headers.add("mtp.more", DType::bf16, {1});
  headers.add("model.visual.more", DType::f32, {1});
  EXPECT_EQ(headers.check(published_config())->draft_tensors, 32);
  headers.add("model.visuals.a", DType::bf16, {1});
  headers.add("model.language_model.mtp.a", DType::bf16, {1});
  headers.add("visual.a", DType::bf16, {1});
  headers.expect_refused(published_config(),
                         "3 tensors that the model does not have: 'model.language_model.mtp.a', 'model.visuals.a', "
                         "'visual.a'");
}

TEST(Qwen4ExpManifest, LongListsAreCutAndCounted) {
  Headers headers = published_headers();
  const std::string prefix = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_";
  for (int i = 0; i < 100; ++i) headers.remove(prefix + std::to_string(i) + ".weight");
  headers.add("zzz", DType::bf16, {1});
  const auto found = headers.check(published_config());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().what.find("100 tensors missing: '" + prefix + "0.weight', '"), 0u) << found.error().what;
  EXPECT_NE(found.error().what.find("' and 92 more; 1 tensor that the model does not have: 'zzz'"), std::string::npos);
}

TEST(Qwen4ExpManifest, Float8SiblingHas148655TextTensors) {
  const Qwen4ExpConfig config = config_with([](json& whole) {
    whole["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  });
  const Headers headers = headers_of(config, {.separate_experts = true});
  EXPECT_EQ(headers.tensors_.size(), 148655u);
  const auto at = [&](const std::string& name) {
    return headers.tensors_.find("model.language_model.layers." + name)->second;
  };
  EXPECT_EQ(at("47.mlp.experts.511.gate_proj.weight"), std::pair(DType::f8_e4m3, std::vector<int64_t>{640, 2560}));
  EXPECT_EQ(at("47.mlp.experts.511.up_proj.weight_scale_inv"), std::pair(DType::bf16, std::vector<int64_t>{5, 20}));
  EXPECT_EQ(at("0.mlp.experts.0.down_proj.weight_scale_inv"), std::pair(DType::bf16, std::vector<int64_t>{20, 5}));
  EXPECT_EQ(at("1.ple.ple_embedding.ngram_embedding.shard_127.weight"),
            std::pair(DType::f8_e4m3, std::vector<int64_t>{2500012, 160}));
  EXPECT_EQ(at("1.ple.ple_embedding.ngram_embedding.weight_scale"), std::pair(DType::bf16, std::vector<int64_t>{1}));
  // The published sum of bytes of the text tensors and the rest: 185,502,232,570 less draft head and vision tower.
  size_t bytes = 0, scales = 0;
  for (const auto& [name, header] : headers.tensors_) {
    int64_t elements = 1;
    for (const int64_t extent : header.second) elements *= extent;
    if (name.find(".mlp.experts.") != name.npos)
      (name.ends_with("_inv") ? scales : bytes) += *storage_bytes(header.first, elements);
  }
  // Of 49 layers, one of which is the draft head's.
  EXPECT_EQ(bytes, 123312537600u / 49 * 48);
  EXPECT_EQ(scales, 15052800u / 49 * 48);
  EXPECT_EQ(headers.check(config)->text_tensors, 148655);
}

TEST(Qwen4ExpManifest, FormsAreRecognised) {
  const Qwen4ExpConfig config = published_config();
  for (const bool text_only : {false, true}) {
    for (const bool separate : {false, true}) {
      const Headers headers = headers_of(config, {text_only, separate});
      EXPECT_EQ(headers.tensors_.size(), separate ? 1294u + 48 * (512 * 3 - 2) : 1294u);
      const auto found = headers.check(config);
      ASSERT_TRUE(found.ok()) << found.error().message();
      EXPECT_EQ(found->form.text_only, text_only);
      EXPECT_EQ(found->form.separate_experts, separate);
    }
  }
}

TEST(Qwen4ExpManifest, MixedFormsAreRefused) {
  const Qwen4ExpConfig config = published_config();
  Headers headers = published_headers();
  headers.remove("model.language_model.embed_tokens.weight");
  headers.add("model.embed_tokens.weight", DType::bf16, {248320, 2560});
  EXPECT_FALSE(headers.check(config).ok());
  headers = published_headers();
  headers.add("model.language_model.layers.0.mlp.experts.0.gate_proj.weight", DType::bf16, {640, 2560});
  headers.expect_refused(config,
                         "1 tensor that the model does not have: "
                         "'model.language_model.layers.0.mlp.experts.0.gate_proj.weight'");
  Headers().expect_refused(
      config_with([](json& whole) {
        whole["text_config"]["num_hidden_layers"] = 1;
        whole["text_config"]["layer_types"] = {"linear_attention"};
        whole["text_config"]["ple_layer_ids"] = json::array();
      }),
      "29 tensors missing: 'lm_head.weight', 'model.language_model.embed_tokens.weight', "
      "'model.language_model.hyper_connection_mixer.hc_norm.weight', "
      "'model.language_model.hyper_connection_mixer.input_mix_weight_down.weight', "
      "'model.language_model.hyper_connection_mixer.input_mix_weight_up.weight', "
      "'model.language_model.layers.0.attn_hyper_connection.block_inject_weight.weight', "
      "'model.language_model.layers.0.attn_hyper_connection.hc_norm.weight', "
      "'model.language_model.layers.0.attn_hyper_connection.input_mix_weight_down.weight' and 21 more");
}

TEST(Qwen4ExpManifest, ShardsOfATableThatDoesNotDivide) {
  const auto rows_with = [](int parts) {
    const Qwen4ExpConfig config = config_with([&](json& whole) {
      json& text = whole["text_config"];
      text["vocab_size"] = 199;
      text["eos_token_id"] = 5;
      text["bos_token_id"] = 5;
      text["ple_embed_dim"] = 48;
      text["heads_per_ngram"] = 3;
      text["ngram_vocab_size_base"] = 101;
      text["make_ngram_vocab_size_divisible_by"] = 16;
      text["split_ngram_parts"] = parts;
    });
    return *qwen4_exp_shard_rows(config, 0);
  };
  // 672 rows, as the reference has them for this configuration.
  EXPECT_EQ(rows_with(1), std::vector<int64_t>{672});
  EXPECT_EQ(rows_with(4), std::vector<int64_t>(4, 168));
  EXPECT_EQ(rows_with(5), (std::vector<int64_t>{135, 135, 135, 135, 132}));
  // 672 in 128 parts: 6 rows each, which 112 shards hold.
  EXPECT_EQ(rows_with(128), std::vector<int64_t>(112, 6));
}

TEST(Qwen4ExpManifest, TooManyTensorsAreRefusedBeforeTheyAreListed) {
  const Qwen4ExpConfig config = config_with([](json& whole) { whole["text_config"]["num_experts"] = 65536; });
  const auto contract = qwen4_exp_manifest(config, {.separate_experts = true});
  ASSERT_FALSE(contract.ok());
  EXPECT_EQ(contract.error().code, Errc::unsupported);
  EXPECT_TRUE(qwen4_exp_manifest(config, {}).ok());
}

}  // namespace
}  // namespace quern::model
