// SPDX-License-Identifier: Apache-2.0
// Every field, alias and refusal of a qwen4_exp configuration, on the published one and on edits of it.
#include "model/qwen4_exp_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/scratch_folder.h"

namespace quern::model {
namespace {

using nlohmann::json;
using Config = Qwen4ExpConfig;
using Kind = Config::LayerKind;

json published() {
  std::ifstream file(std::filesystem::path(QUERN_SOURCE_DIR) / "testdata/qwen4/config.json");
  return json::parse(file);
}

// The text part on its own, as the text-only class writes it.
json flat() {
  json text = published()["text_config"];
  text["architectures"] = {"Qwen4ExpForCausalLM"};
  return text;
}

Config read(const json& document) {
  const auto config = Config::parse(document.dump(), "c");
  EXPECT_TRUE(config.ok()) << config.error().message();
  return config.ok() ? *config : Config();
}

using Edit = std::function<void(json& text)>;

Config read_edited(const Edit& edit) {
  json document = published();
  edit(document["text_config"]);
  return read(document);
}

// Both forms of the file are refused at the field, and the message has the piece of text.
void expect_refused(const Edit& edit, std::string_view field, std::string_view cause, Errc code = Errc::bad_model) {
  for (const bool nested : {true, false}) {
    json document = nested ? published() : flat();
    edit(nested ? document["text_config"] : document);
    const auto config = Config::parse(document.dump(), "c");
    ASSERT_FALSE(config.ok()) << field << ": " << cause;
    EXPECT_EQ(config.error().code, code) << config.error().message();
    EXPECT_EQ(config.error().where, std::string("c: ") + (nested ? "text_config." : "") + std::string(field))
        << config.error().message();
    EXPECT_NE(config.error().what.find(cause), std::string::npos) << config.error().message();
  }
}
void expect_refused(const char* field, const json& value, std::string_view cause, Errc code = Errc::bad_model) {
  expect_refused([&](json& text) { text[field] = value; }, field, cause, code);
}
void expect_unsupported(const char* field, const json& value, std::string_view cause) {
  expect_refused(field, value, cause, Errc::unsupported);
}

TEST(Qwen4ExpConfig, PublishedFileFieldByField) {
  const Config c = read(published());
  EXPECT_EQ(c.model_type, "qwen4_exp");
  EXPECT_EQ(c.weights, Config::Weights::bf16);
  EXPECT_EQ(c.hidden_size, 2560);
  EXPECT_EQ(c.num_hidden_layers, 48);
  ASSERT_EQ(c.layer_types.size(), 48u);
  for (size_t i = 0; i < 48; ++i) {
    EXPECT_EQ(c.layer_types[i], i % 4 == 3 ? Kind::sparse_attention : Kind::linear_attention) << i;
  }
  EXPECT_EQ(c.vocab_size, 248320);
  EXPECT_EQ(c.max_position_embeddings, 262144);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.output_gate_type, Config::Activation::sigmoid);
  EXPECT_EQ(c.num_attention_heads, 24);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.indexer_n_heads, 4);
  EXPECT_EQ(c.indexer_head_dim, 128);
  EXPECT_EQ(c.indexer_budget, 2048);
  EXPECT_EQ(c.indexer_compress_ratio, 4);
  EXPECT_EQ(c.linear_num_key_heads, 16);
  EXPECT_EQ(c.linear_num_value_heads, 48);
  EXPECT_EQ(c.linear_key_head_dim, 128);
  EXPECT_EQ(c.linear_value_head_dim, 128);
  EXPECT_EQ(c.linear_conv_kernel_dim, 4);
  EXPECT_EQ(c.num_experts, 512);
  EXPECT_EQ(c.num_experts_per_tok, 10);
  EXPECT_EQ(c.moe_intermediate_size, 640);
  EXPECT_EQ(c.shared_expert_intermediate_size, 640);
  EXPECT_EQ(c.hc_count, 4);
  EXPECT_EQ(c.hc_lowrank, 320);
  EXPECT_EQ(c.ple_layers, std::vector<int32_t>{1});
  EXPECT_EQ(c.ple_embed_dim, 2560);
  EXPECT_EQ(c.ple_conv_kernel_size, 4);
  EXPECT_EQ(c.ngram_size, 3);
  EXPECT_EQ(c.heads_per_ngram, 8);
  EXPECT_EQ(c.ngram_vocab_size_base, 20000000);
  EXPECT_EQ(c.make_ngram_vocab_size_divisible_by, 128);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{248044});
  EXPECT_EQ(c.bos_token_id, 248044);
  EXPECT_EQ(c.pad_token_id, std::nullopt);
  EXPECT_EQ(c.vision_token_ids, (std::vector<int32_t>{248056, 248057}));
  // Two that are absent or whose default differs from the file.
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.seed, 1234);
  EXPECT_EQ(c.split_ngram_parts, 128);
}

TEST(Qwen4ExpConfig, DerivedWidths) {
  const Config c = read(published());
  EXPECT_EQ(c.stream_width(), 10240);
  EXPECT_EQ(c.query_width(), 6144);
  EXPECT_EQ(c.key_width(), 512);
  EXPECT_EQ(c.linear_value_width(), 6144);
  EXPECT_EQ(c.linear_conv_width(), 10240);
  EXPECT_EQ(c.ngram_heads(), 16);
  EXPECT_EQ(c.ngram_head_dim(), 160);
  EXPECT_EQ(c.ple_index(1), 0);
  EXPECT_EQ(c.ple_index(0), std::nullopt);
  EXPECT_EQ(c.ple_index(2), std::nullopt);
}

TEST(Qwen4ExpConfig, HashOfThePublishedModel) {
  const Config c = read(published());
  const auto hash = ops::ngram_hash(c.ngram_hash_params(0), "hash");
  ASSERT_TRUE(hash.ok());
  // Stored in the checkpoint.
  EXPECT_EQ(hash->multipliers, (std::vector<int64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(hash->padded, 320001536);
}

TEST(Qwen4ExpConfig, AbsentFieldsHaveTheDefaultsOfTheClass) {
  const Config c = read(json{{"model_type", "qwen4_exp_text"},
                             {"rope_parameters", {{"rope_theta", 10000}, {"partial_rotary_factor", 0.25}}},
                             {"indexer_n_heads", 4},
                             {"indexer_kv_heads", 1},
                             {"indexer_head_dim", 64},
                             {"indexer_budget", 8},
                             {"indexer_compress_ratio", 4}});
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.num_hidden_layers, 40);
  EXPECT_EQ(c.layer_types[3], Kind::sparse_attention);
  EXPECT_EQ(c.layer_types[4], Kind::linear_attention);
  EXPECT_EQ(c.vocab_size, 248320);
  EXPECT_EQ(c.max_position_embeddings, 32768);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.output_gate_type, Config::Activation::silu);
  EXPECT_EQ(c.num_attention_heads, 16);
  EXPECT_EQ(c.linear_num_value_heads, 32);
  EXPECT_EQ(c.moe_intermediate_size, 512);
  EXPECT_EQ(c.shared_expert_intermediate_size, 512);
  EXPECT_EQ(c.hc_count, 4);
  EXPECT_TRUE(c.ple_layers.empty());
  EXPECT_TRUE(c.eos_token_ids.empty());
}

TEST(Qwen4ExpConfig, DefaultsOfTheNgramEmbedding) {
  const Config c = read_edited([](json& text) {
    for (const char* key : {"ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram",
                            "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by"}) {
      text.erase(key);
    }
  });
  EXPECT_EQ(c.ple_embed_dim, 2560);  // hidden_size
  EXPECT_EQ(c.ple_conv_kernel_size, 4);
  EXPECT_EQ(c.ngram_size, 3);
  EXPECT_EQ(c.heads_per_ngram, 8);
  EXPECT_EQ(c.ngram_vocab_size_base, 20000000);
}

Config read_without(const char* key) {
  return read_edited([&](json& text) { text.erase(key); });
}

TEST(Qwen4ExpConfig, AbsentNormTopkProbIsTrue) { EXPECT_TRUE(read_without("norm_topk_prob").norm_topk_prob); }

TEST(Qwen4ExpConfig, AbsentSeedIs1234) { EXPECT_EQ(read_without("seed").seed, 1234); }

// The published file says 128.
TEST(Qwen4ExpConfig, AbsentSplitNgramPartsAre512) {
  EXPECT_EQ(read_without("split_ngram_parts").split_ngram_parts, 512);
  EXPECT_EQ(read(published()).split_ngram_parts, 128);
}

TEST(Qwen4ExpConfig, NullCountsAsAbsent) {
  const Config c = read_edited([](json& text) {
    text["output_gate_type"] = nullptr;
    text["ple_layer_ids"] = nullptr;
    text["layer_types"] = nullptr;
    text["norm_topk_prob"] = nullptr;
    text["full_attention_interval"] = 3;
  });
  EXPECT_EQ(c.output_gate_type, Config::Activation::silu);
  EXPECT_TRUE(c.ple_layers.empty());
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.layer_types[2], Kind::sparse_attention);
  EXPECT_EQ(c.layer_types[3], Kind::linear_attention);
}

TEST(Qwen4ExpConfig, TextOnlyFormIsTheSameModel) {
  const Config nested = read(published());
  const Config c = read(flat());
  EXPECT_EQ(c.model_type, "qwen4_exp_text");
  EXPECT_EQ(c.hidden_size, nested.hidden_size);
  EXPECT_EQ(c.layer_types, nested.layer_types);
  EXPECT_EQ(c.rotary_dim, nested.rotary_dim);
  EXPECT_TRUE(c.vision_token_ids.empty());
}

TEST(Qwen4ExpConfig, NamesOfReReleases) {
  json document = published();
  document["model_type"] = "qwen3_8_flash_next";
  document["text_config"]["model_type"] = "qwen3_8_flash_next_text";
  EXPECT_EQ(read(document).hidden_size, 2560);
  document = flat();
  document["model_type"] = "qwen3_8_flash_next_text";
  EXPECT_EQ(read(document).hidden_size, 2560);
  document = published();
  document["text_config"].erase("model_type");
  EXPECT_EQ(read(document).hidden_size, 2560);
}

TEST(Qwen4ExpConfig, OtherModelsAreRefusedByName) {
  json document = published();
  document["model_type"] = "qwen3_next";
  auto config = Config::parse(document.dump(), "c");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::unsupported);
  EXPECT_EQ(config.error().where, "c: model_type");
  document = published();
  document["text_config"]["model_type"] = "qwen3_moe";
  config = Config::parse(document.dump(), "c");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::unsupported);
  EXPECT_EQ(config.error().where, "c: text_config.model_type");
  document.erase("text_config");
  EXPECT_EQ(Config::parse(document.dump(), "c").error().where, "c: text_config");
  EXPECT_EQ(Config::parse("[]", "c").error().code, Errc::bad_model);
  EXPECT_EQ(Config::parse("{}", "c").error().where, "c: model_type");
  EXPECT_EQ(Config::parse("{\"model_type\":", "c").error().where, "c@14");
}

TEST(Qwen4ExpConfig, EveryNameOfASparseLayer) {
  for (const char* name : {"full_attention", "qwen_sparse_attention", "indexed_attention", "deepseek_sparse_attention",
                           "hybrid_indexed"}) {
    const Config c = read_edited([&](json& text) { text["layer_types"][3] = name; });
    EXPECT_EQ(c.layer_types[3], Kind::sparse_attention) << name;
  }
}

TEST(Qwen4ExpConfig, LayerTypesAreRefused) {
  expect_refused("layer_types", json::array({"linear_attention"}), "a list of 48 texts");
  expect_refused("layer_types", 3, "a list of 48 texts");
  expect_refused([](json& text) { text["layer_types"][7] = 1; }, "layer_types", "a list of texts");
  expect_refused([](json& text) { text["layer_types"][7] = "sliding_attention"; }, "layer_types",
                 "layer 7 is 'sliding_attention'", Errc::unsupported);
  expect_refused(
      [](json& text) {
        text["layer_types"] = nullptr;
        text["full_attention_interval"] = 0;
      },
      "full_attention_interval", "from 1");
}

TEST(Qwen4ExpConfig, PleLayerIdsCountFromOneAndAreSorted) {
  const Config c = read_edited([](json& text) { text["ple_layer_ids"] = {6, 2, 6, 48, 4}; });
  EXPECT_EQ(c.ple_layers, (std::vector<int32_t>{1, 3, 5, 47}));
  EXPECT_EQ(c.ple_index(5), 2);
  EXPECT_TRUE(read_edited([](json& text) { text["ple_layer_ids"] = json::array(); }).ple_layers.empty());
}

TEST(Qwen4ExpConfig, NgramFieldsAreRefused) {
  for (const json& ids : {json{0}, json{49}, json{-1}, json{2.0}, json{"2"}, json(2)}) {
    expect_refused("ple_layer_ids", ids, "layers counted from 1 to 48");
  }
  expect_refused("ngram_size", 1, "from 2");
  expect_refused("ngram_size", 17, "to 16");
  expect_refused("heads_per_ngram", 0, "from 1");
  expect_refused("ple_embed_dim", 0, "from 1");
  expect_refused("ple_embed_dim", 2568, "a multiple of 16");
  expect_refused("ngram_vocab_size_base", 1, "from 2");
  expect_refused("make_ngram_vocab_size_divisible_by", 0, "from 1");
  expect_refused("split_ngram_parts", 0, "from 1");
  expect_refused("seed", 1.5, "an integer");
  expect_refused([](json& text) { text.erase("eos_token_id"); }, "eos_token_id", "missing");
  expect_refused("eos_token_id", json::array(), "a list of 1");
  expect_refused("eos_token_id", 248320, "from 0 to 248319");
  expect_unsupported("heads_per_ngram", 1280, "256 heads");
  expect_unsupported("ple_embedding_dtype", "float8_e4m3fn", "bfloat16");
}

// 0 is no other way to say 4: a state of no rows and a kernel of four taps read past the end.
TEST(Qwen4ExpConfig, KernelSizeOfZeroIsRefusedNotReplaced) {
  expect_refused("ple_conv_kernel_size", 0, "from 1");
  expect_refused("linear_conv_kernel_dim", 0, "from 1");
}

TEST(Qwen4ExpConfig, NgramFieldsDoNotMatterWithoutALayer) {
  read_edited([](json& text) {
    text["ple_layer_ids"] = json::array();
    text["ple_conv_kernel_size"] = 0;
    text["ple_embed_dim"] = 0;
    text.erase("eos_token_id");
  });
}

TEST(Qwen4ExpConfig, FirstOfSeveralEndTokensComesFirst) {
  EXPECT_EQ(read_edited([](json& text) { text["eos_token_id"] = {9, 7}; }).eos_token_ids, (std::vector<int32_t>{9, 7}));
}

TEST(Qwen4ExpConfig, WidthsAndCountsAreRefused) {
  for (const char* field : {"hidden_size",
                            "num_hidden_layers",
                            "vocab_size",
                            "max_position_embeddings",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "linear_num_key_heads",
                            "linear_num_value_heads",
                            "linear_key_head_dim",
                            "linear_value_head_dim",
                            "linear_conv_kernel_dim",
                            "num_experts",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "shared_expert_intermediate_size",
                            "hc_lowrank",
                            "indexer_n_heads",
                            "indexer_head_dim",
                            "indexer_budget",
                            "indexer_compress_ratio",
                            "indexer_kv_heads"}) {
    for (const json& value : {json(0), json(-4), json(2.5), json("4"), json(int64_t{1} << 40)}) {
      expect_refused(field, value, "an integer from 1 to");
    }
  }
  expect_refused("hc_count", 1, "an integer from 2 to");
  expect_refused("hc_count", 0, "an integer from 2 to");
}

TEST(Qwen4ExpConfig, CountsThatDoNotDivide) {
  expect_refused("num_key_value_heads", 5, "divisors of num_attention_heads, which is 24");
  expect_refused("linear_num_key_heads", 5, "divisors of linear_num_value_heads, which is 48");
  expect_refused("num_experts_per_tok", 513, "up to num_experts, which is 512");
  expect_refused("indexer_budget", 2047, "a multiple of indexer_compress_ratio, which is 4");
}

TEST(Qwen4ExpConfig, IndexerIsWholeOrRefused) {
  const char* fields[] = {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget",
                          "indexer_compress_ratio"};
  for (const char* field : fields) {
    expect_refused([&](json& text) { text[field] = nullptr; }, field, "missing");
  }
  const auto without = [&](json& text) {
    for (const char* field : fields) text.erase(field);
  };
  expect_refused(without, "indexer_n_heads", "attention without one is not supported", Errc::unsupported);
  // No sparse layer, no indexer.
  const Config c = read_edited([&](json& text) {
    without(text);
    text["layer_types"] = json(48, "linear_attention");
  });
  EXPECT_EQ(c.indexer_budget, 0);
  expect_unsupported("indexer_kv_heads", 2, "1 only");
  expect_refused("indexer_head_dim", 63, "at least 64");
}

TEST(Qwen4ExpConfig, RotaryEmbeddingIsRefused) {
  const auto rope = [](const char* key, const json& value) {
    return [key, value](json& text) { text["rope_parameters"][key] = value; };
  };
  expect_refused([](json& text) { text.erase("rope_parameters"); }, "rope_parameters", "missing");
  expect_refused(rope("rope_type", "yarn"), "rope_parameters.rope_type", "\"default\" only", Errc::unsupported);
  expect_refused(rope("type", "linear"), "rope_parameters.type", "\"default\" only", Errc::unsupported);
  expect_refused(rope("rope_theta", nullptr), "rope_parameters.rope_theta", "missing");
  expect_refused(rope("rope_theta", -1), "rope_parameters.rope_theta", "a number from");
  expect_refused(rope("partial_rotary_factor", nullptr), "rope_parameters.partial_rotary_factor", "missing");
  const auto factor = [](const json& value) {
    return [value](json& text) {
      text["rope_parameters"]["partial_rotary_factor"] = value;
      text["partial_rotary_factor"] = value;
    };
  };
  for (const json& value : {json(0), json(0.3), json(0.12890625)}) {
    expect_refused(factor(value), "rope_parameters.partial_rotary_factor", "an even number");
  }
  expect_refused(factor(1.5), "rope_parameters.partial_rotary_factor", "a number from 0 to 1");
  expect_refused("partial_rotary_factor", 0.5, "0.25, as in rope_parameters");
  expect_refused(
      [](json& text) {
        text["rope_scaling"] = {{"type", "yarn"}};
      },
      "rope_scaling", "not supported", Errc::unsupported);
}

TEST(Qwen4ExpConfig, TopLevelCopyOfTheRotaryFactorMayBeAbsent) {
  EXPECT_EQ(read_edited([](json& text) { text.erase("partial_rotary_factor"); }).rotary_dim, 64);
  const Config c = read_edited([](json& text) {
    text["rope_parameters"]["partial_rotary_factor"] = 0.5;
    text["partial_rotary_factor"] = 0.5;
    text["indexer_head_dim"] = 128;
  });
  EXPECT_EQ(c.rotary_dim, 128);
}

TEST(Qwen4ExpConfig, VariantsOfTheArithmeticAreRefused) {
  expect_unsupported("attention_bias", true, "false only");
  expect_unsupported("tie_word_embeddings", true, "false only");
  expect_unsupported("hidden_act", "gelu", "\"silu\" only");
  expect_unsupported("dtype", "float32", "\"bfloat16\" only");
  expect_unsupported("torch_dtype", "float16", "\"bfloat16\" only");
  expect_unsupported("mamba_ssm_dtype", "bfloat16", "\"float32\" only");
  expect_unsupported("output_gate_type", "gelu", "\"sigmoid\" and \"silu\"");
  expect_refused("attention_bias", 1, "true or false");
  expect_refused("output_gate_type", 1, "a text");
  expect_refused("norm_topk_prob", "yes", "true or false");
  expect_refused("rms_norm_eps", -1, "a number from 0");
}

TEST(Qwen4ExpConfig, TiedEmbeddingsOfTheWholeModelAreRefused) {
  json document = published();
  document["tie_word_embeddings"] = true;
  const auto config = Config::parse(document.dump(), "c");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::unsupported);
  EXPECT_EQ(config.error().where, "c: tie_word_embeddings");
}

TEST(Qwen4ExpConfig, SettingsThatCountAreTaken) {
  EXPECT_FALSE(read_edited([](json& text) { text["norm_topk_prob"] = false; }).norm_topk_prob);
  EXPECT_EQ(read_edited([](json& text) { text["seed"] = 7; }).seed, 7);
  EXPECT_EQ(read_edited([](json& text) { text["output_gate_type"] = "silu"; }).output_gate_type,
            Config::Activation::silu);
}

TEST(Qwen4ExpConfig, Float8SiblingIsRecognised) {
  json document = published();
  document["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(read(document).weights, Config::Weights::fp8);
  const auto expect = [&](const char* key, const json& value, const char* place) {
    json other = document;
    other["quantization_config"][key] = value;
    const auto config = Config::parse(other.dump(), "c");
    ASSERT_FALSE(config.ok()) << key;
    EXPECT_EQ(config.error().where, std::string("c: quantization_config.") + place);
  };
  expect("quant_method", "awq", "quant_method");
  expect("quant_method", nullptr, "quant_method");
  expect("fmt", "e5m2", "fmt");
  expect("weight_block_size", {64, 64}, "weight_block_size");
}

TEST(Qwen4ExpConfig, FileIsReadFromAFolder) {
  test::ScratchFolder scratch("qwen4_config");
  scratch.file("config.json", published().dump());
  EXPECT_TRUE(Config::load(scratch.path() / "config.json").ok());
  EXPECT_EQ(Config::load(scratch.path() / "none.json").error().code, Errc::bad_model);
}

}  // namespace
}  // namespace quern::model
