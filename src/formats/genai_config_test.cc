// SPDX-License-Identifier: Apache-2.0
// What must hold of reading genai_config.json: the exporter's file is taken as it is, and every value out of bounds is
// refused with its JSON path.
#include "formats/genai_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace quern::formats {
namespace {

using nlohmann::json;

json exported() {
  return json::parse(R"({
    "model": {
      "bos_token_id": 151643,
      "context_length": 40960,
      "decoder": {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": 128,
        "hidden_size": 1024,
        "inputs": {
          "input_ids": "input_ids",
          "attention_mask": "attention_mask",
          "past_key_names": "past_key_values.%d.key",
          "past_value_names": "past_key_values.%d.value"
        },
        "outputs": {
          "logits": "logits",
          "present_key_names": "present.%d.key",
          "present_value_names": "present.%d.value"
        },
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8
      },
      "eos_token_id": [151645, 151643],
      "pad_token_id": 151643,
      "type": "qwen3",
      "vocab_size": 151936
    },
    "search": {
      "diversity_penalty": 0.0, "do_sample": true, "early_stopping": true, "length_penalty": 1.0, "max_length": 40960,
      "min_length": 0, "no_repeat_ngram_size": 0, "num_beams": 1, "num_return_sequences": 1,
      "past_present_share_buffer": true, "repetition_penalty": 1.0, "temperature": 0.6, "top_k": 20, "top_p": 0.95
    }
  })");
}

Result<GenaiConfig> parsed(const json& document) { return GenaiConfig::parse(document.dump(), "genai_config.json"); }

TEST(GenaiConfig, ExportersFileIsRead) {
  const Result<GenaiConfig> read = parsed(exported());
  ASSERT_TRUE(read.ok()) << read.error().message();
  const GenaiConfig& c = *read;
  EXPECT_EQ(c.type, "qwen3");
  EXPECT_EQ(c.bos_token_id, 151643);
  EXPECT_EQ(c.pad_token_id, 151643);
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{151645, 151643}));
  EXPECT_EQ(c.context_length, 40960);
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.decoder.filename, "model.onnx");
  EXPECT_EQ(c.decoder.head_size, 128);
  EXPECT_EQ(c.decoder.hidden_size, 1024);
  EXPECT_EQ(c.decoder.num_attention_heads, 16);
  EXPECT_EQ(c.decoder.num_hidden_layers, 28);
  EXPECT_EQ(c.decoder.num_key_value_heads, 8);
  EXPECT_EQ(layer_value_name(c.decoder.inputs.past_key_names, 27), "past_key_values.27.key");
  EXPECT_EQ(layer_value_name(c.decoder.outputs.present_value_names, 0), "present.0.value");
  EXPECT_TRUE(c.search.do_sample);
  EXPECT_EQ(c.search.temperature, 0.6f);
  EXPECT_EQ(c.search.top_k, 20);
  EXPECT_EQ(c.search.top_p, 0.95f);
  EXPECT_EQ(c.search.max_length, 40960);
  EXPECT_TRUE(c.search.past_present_share_buffer);
}

TEST(GenaiConfig, EosMayBeOneNumber) {
  json j = exported();
  j["model"]["eos_token_id"] = 151645;
  EXPECT_EQ(parsed(j).value().eos_token_ids, (std::vector<int32_t>{151645}));
}

TEST(GenaiConfig, AbsentAndNullValuesTakeTheirDefaults) {
  json j = exported();
  j.erase("search");
  j["model"].erase("bos_token_id");
  j["model"]["pad_token_id"] = nullptr;
  j["model"]["decoder"].erase("inputs");
  j["model"]["decoder"].erase("outputs");
  const Result<GenaiConfig> read = parsed(j);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->bos_token_id, std::nullopt);
  EXPECT_EQ(read->pad_token_id, std::nullopt);
  EXPECT_EQ(read->decoder.inputs.past_value_names, "past_key_values.%d.value");
  EXPECT_EQ(read->decoder.outputs.logits, "logits");
  EXPECT_FALSE(read->search.do_sample);
  EXPECT_EQ(read->search.temperature, 1.0f);
  EXPECT_EQ(read->search.max_length, 40960) << "the context length";
}

TEST(GenaiConfig, MaxLengthZeroIsTheContextLength) {
  json j = exported();
  j["search"]["max_length"] = 0;
  EXPECT_EQ(parsed(j).value().search.max_length, 40960);
}

TEST(GenaiConfig, IntegersAreNumbers) {
  json j = exported();
  j["search"]["temperature"] = 1;
  EXPECT_EQ(parsed(j).value().search.temperature, 1.0f);
}

// The exporter's runtime refuses members that it does not know.
TEST(GenaiConfig, UnknownMembersOfSearchAreKept) {
  json j = exported();
  j["search"]["random_seed"] = 5;
  j["search"]["batch_size"] = 1;
  EXPECT_TRUE(parsed(j).value().search.other.empty());
  j["search"]["top_z"] = 0.5;
  j["search"]["suppress_tokens"] = {1, 2};
  EXPECT_EQ(parsed(j).value().search.other, (std::vector<std::string>{"'suppress_tokens' [1,2]", "'top_z' 0.5"}));
}

TEST(GenaiConfig, FileInASubfolderIsInside) {
  json j = exported();
  j["model"]["decoder"]["filename"] = "onnx/model.onnx";
  EXPECT_TRUE(parsed(j).ok());
}

struct Refusal {
  const char* pointer;  // JSON pointer of the member to set
  json value;           // discarded: remove the member
  const char* path;     // the place the error names
  Errc code = Errc::bad_model;
};

TEST(GenaiConfig, ValuesOutOfBoundsAreRefusedWithTheirPath) {
  const json removed(json::value_t::discarded);
  const std::vector<Refusal> cases = {
      {"/model", removed, "model"},
      {"/model", json::array(), "model"},
      {"/model/type", removed, "model.type"},
      {"/model/type", 3, "model.type"},
      {"/model/type", "", "model.type"},
      {"/model/vocab_size", removed, "model.vocab_size"},
      {"/model/vocab_size", 0, "model.vocab_size"},
      {"/model/vocab_size", 1e5, "model.vocab_size"},
      {"/model/vocab_size", "151936", "model.vocab_size"},
      {"/model/context_length", removed, "model.context_length"},
      {"/model/context_length", -1, "model.context_length"},
      {"/model/context_length", 4294967297, "model.context_length"},
      {"/model/context_length", 18446744073709551615u, "model.context_length"},
      {"/model/bos_token_id", 151936, "model.bos_token_id"},
      {"/model/bos_token_id", -1, "model.bos_token_id"},
      {"/model/pad_token_id", json::array({1}), "model.pad_token_id"},
      {"/model/eos_token_id", removed, "model.eos_token_id"},
      {"/model/eos_token_id", json::array(), "model.eos_token_id"},
      {"/model/eos_token_id", json::array({1, 151936}), "model.eos_token_id"},
      {"/model/eos_token_id", json::array({1, "2"}), "model.eos_token_id"},
      {"/model/eos_token_id", "2", "model.eos_token_id"},
      {"/model/decoder", removed, "model.decoder"},
      {"/model/decoder/filename", removed, "model.decoder.filename"},
      {"/model/decoder/filename", "", "model.decoder.filename"},
      {"/model/decoder/filename", "/etc/model.onnx", "model.decoder.filename"},
      {"/model/decoder/filename", "../model.onnx", "model.decoder.filename"},
      {"/model/decoder/filename", "a/../../model.onnx", "model.decoder.filename"},
      {"/model/decoder/filename", "..", "model.decoder.filename"},
      {"/model/decoder/filename", ".", "model.decoder.filename"},
      {"/model/decoder/filename", "sub/", "model.decoder.filename"},
      {"/model/decoder/filename", std::string("a\0b", 3), "model.decoder.filename"},
      {"/model/decoder/head_size", 0, "model.decoder.head_size"},
      {"/model/decoder/hidden_size", removed, "model.decoder.hidden_size"},
      {"/model/decoder/num_attention_heads", true, "model.decoder.num_attention_heads"},
      {"/model/decoder/num_hidden_layers", 1000000, "model.decoder.num_hidden_layers"},
      {"/model/decoder/num_key_value_heads", 7, "model.decoder.num_key_value_heads"},
      {"/model/decoder/inputs", 3, "model.decoder.inputs"},
      {"/model/decoder/inputs/input_ids", 3, "model.decoder.inputs.input_ids"},
      {"/model/decoder/inputs/past_key_names", "past.key", "model.decoder.inputs.past_key_names"},
      {"/model/decoder/inputs/past_key_names", "past.%d.%d", "model.decoder.inputs.past_key_names"},
      {"/model/decoder/inputs/past_value_names", "past.%s", "model.decoder.inputs.past_value_names"},
      {"/model/decoder/inputs/past_value_names", "past.%%d", "model.decoder.inputs.past_value_names"},
      {"/model/decoder/outputs/present_key_names", "present.%", "model.decoder.outputs.present_key_names"},
      {"/model/decoder/outputs/present_value_names", "%d%n", "model.decoder.outputs.present_value_names"},
      {"/model/decoder/inputs/past_names", "past_%d", "model.decoder.inputs.past_names", Errc::unsupported},
      {"/model/decoder/outputs/present_names", "p_%d", "model.decoder.outputs.present_names", Errc::unsupported},
      {"/model/decoder/pipeline", json::array(), "model.decoder.pipeline", Errc::unsupported},
      {"/model/decoder/sliding_window", json::object(), "model.decoder.sliding_window", Errc::unsupported},
      {"/model/vision", json::object(), "model.vision", Errc::unsupported},
      {"/model/encoder", json::object(), "model.encoder", Errc::unsupported},
      {"/model/embedding", json::object(), "model.embedding", Errc::unsupported},
      {"/model/speech", json::object(), "model.speech", Errc::unsupported},
      {"/search", json::array(), "search"},
      {"/search/do_sample", 1, "search.do_sample"},
      {"/search/temperature", -0.1, "search.temperature"},
      {"/search/temperature", "0.6", "search.temperature"},
      {"/search/temperature", 1e30, "search.temperature"},
      {"/search/top_k", -1, "search.top_k"},
      {"/search/top_k", 1.5, "search.top_k"},
      {"/search/top_p", 1.01, "search.top_p"},
      {"/search/repetition_penalty", 0, "search.repetition_penalty"},
      {"/search/repetition_penalty", -1.0, "search.repetition_penalty"},
      {"/search/max_length", 40961, "search.max_length"},
      {"/search/min_length", -1, "search.min_length"},
      {"/search/num_beams", 0, "search.num_beams"},
      {"/search/num_return_sequences", 0, "search.num_return_sequences"},
      {"/search/no_repeat_ngram_size", -1, "search.no_repeat_ngram_size"},
      {"/search/length_penalty", nullptr, ""},  // null is absent
      {"/search/length_penalty", false, "search.length_penalty"},
      {"/search/diversity_penalty", -1, "search.diversity_penalty"},
      {"/search/early_stopping", "never", "search.early_stopping"},
      {"/search/past_present_share_buffer", 0, "search.past_present_share_buffer"},
  };
  for (const Refusal& c : cases) {
    json j = exported();
    const json::json_pointer at(c.pointer);
    if (c.value.is_discarded())
      j[at.parent_pointer()].erase(at.back());
    else
      j[at] = c.value;
    const Result<GenaiConfig> read = parsed(j);
    if (*c.path == '\0') {
      EXPECT_TRUE(read.ok()) << c.pointer;
      continue;
    }
    ASSERT_FALSE(read.ok()) << c.pointer << " was taken as " << c.value;
    EXPECT_EQ(read.error().code, c.code) << read.error().message();
    EXPECT_EQ(read.error().where, std::string("genai_config.json: ") + c.path) << read.error().message();
  }
}

TEST(GenaiConfig, MinLengthAboveMaxLengthIsRefused) {
  json j = exported();
  j["search"]["max_length"] = 10;
  j["search"]["min_length"] = 11;
  EXPECT_EQ(parsed(j).error().where, "genai_config.json: search.min_length");
}

TEST(GenaiConfig, EveryPrefixOfTheFileIsRefused) {
  const std::string text = exported().dump();
  for (size_t size = 0; size < text.size(); ++size) {
    const Result<GenaiConfig> read = GenaiConfig::parse(std::string_view(text).substr(0, size), "f");
    ASSERT_FALSE(read.ok()) << size;
    EXPECT_EQ(read.error().code, Errc::bad_model);
    EXPECT_FALSE(read.error().where.empty());
  }
}

TEST(GenaiConfig, JsonThatIsNotAnObjectIsRefused) {
  for (const char* text : {"", "null", "[]", "3", "\"model\"", "{} {}", "\xff", "{\"model\": 1e999}", "{'model': 1}"}) {
    const Result<GenaiConfig> read = GenaiConfig::parse(text, "f");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, Errc::bad_model) << text;
  }
}

TEST(GenaiConfig, NumberOutOfRangeIsNamedWithItsPlace) {
  const auto read = GenaiConfig::parse(R"({"model": -1e999})", "f");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().where, "f@10");
  EXPECT_EQ(read.error().what, "the number here is beyond the range of a double");
}

TEST(GenaiConfig, DeepNestingIsRefusedAndBracketsInTextsDoNotNest) {
  const std::string deep(100000, '[');
  EXPECT_FALSE(GenaiConfig::parse(deep, "f").ok());
  EXPECT_NE(GenaiConfig::parse("{\"model\":" + deep, "f").error().what.find("nests deeper"), std::string::npos);
  json j = exported();
  j["model"]["comment"] = std::string(1000, '[') + "\\\"" + std::string(1000, '{');
  EXPECT_TRUE(parsed(j).ok());
}

TEST(GenaiConfig, HugeFileIsRefused) {
  EXPECT_NE(GenaiConfig::parse(std::string(2 << 20, ' '), "f").error().what.find("allowed are"), std::string::npos);
}

TEST(GenaiConfig, FileIsLoadedAndItsPathNamed) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "quern_genai_config_test.json";
  std::ofstream(path) << exported().dump(2);
  EXPECT_TRUE(GenaiConfig::load(path).ok());
  json j = exported();
  j["model"]["vocab_size"] = 0;
  std::ofstream(path) << j.dump(2);
  EXPECT_EQ(GenaiConfig::load(path).error().where, path.string() + ": model.vocab_size");
  std::ofstream(path) << "";
  EXPECT_EQ(GenaiConfig::load(path).error().code, Errc::bad_model);
  std::filesystem::remove(path);
  EXPECT_EQ(GenaiConfig::load(path).error().code, Errc::bad_model);
}

}  // namespace
}  // namespace quern::formats
