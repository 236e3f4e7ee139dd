// SPDX-License-Identifier: Apache-2.0
// Owns a Qwen3 model folder small enough for unit tests, written by the tests themselves: the graph of the FP32 export
// with random weights, its configuration and a byte tokenizer. For test code only.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/onnx_writer.h"
#include "tests/support/random.h"
#include "tests/support/scratch_folder.h"

namespace quern::test {

struct TinyQwen3 {
  int64_t layers = 2, hidden = 32, intermediate = 48, heads = 4, kv_heads = 2, head_size = 16, vocab = 320,
          context = 1024;
  std::function<void(nlohmann::json&)> edit_config;        // before genai_config.json is written
  std::function<void(support::OnnxWriter&)> extend_graph;  // after everything else is in it

  // Writes genai_config.json and model.onnx into `folder`.
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    graph().save(folder / "model.onnx");
    nlohmann::json json = config();
    if (edit_config) edit_config(json);
    std::ofstream(folder / "genai_config.json") << json.dump(1);
  }

  nlohmann::json config() const {
    return {{"model",
             {{"type", "qwen3"},
              {"bos_token_id", 1},
              {"eos_token_id", {2, 3}},
              {"pad_token_id", 1},
              {"context_length", context},
              {"vocab_size", vocab},
              {"decoder",
               {{"filename", "model.onnx"},
                {"head_size", head_size},
                {"hidden_size", hidden},
                {"num_attention_heads", heads},
                {"num_hidden_layers", layers},
                {"num_key_value_heads", kv_heads},
                {"inputs",
                 {{"input_ids", "input_ids"},
                  {"attention_mask", "attention_mask"},
                  {"past_key_names", "past_key_values.%d.key"},
                  {"past_value_names", "past_key_values.%d.value"}}},
                {"outputs",
                 {{"logits", "logits"},
                  {"present_key_names", "present.%d.key"},
                  {"present_value_names", "present.%d.value"}}}}}}},
            {"search", {{"do_sample", true}, {"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}}}};
  }

  support::OnnxWriter graph() const {
    using namespace support;
    OnnxWriter g;
    Random random(7);
    g.opset("", 21).opset("com.microsoft", 1);
    g.input("input_ids", DType::i64, {"batch", "sequence"}).input("attention_mask", DType::i64, {"batch", "total"});
    g.output("logits", DType::f32, {"batch", "sequence", vocab});
    const auto weight = [&](const std::string& name, int64_t rows, int64_t columns, float scale) {
      std::vector<float> values(static_cast<size_t>(rows * columns));
      random.fill_normal(values, scale);
      g.initializer(name, {rows, columns}, values);
    };
    const auto norm = [&](const std::string& name) {
      g.initializer(name, {hidden}, std::vector<float>(static_cast<size_t>(hidden), 1.0f));
    };
    const auto matmul = [&](const std::string& x, const std::string& name, int64_t k, int64_t n) {
      weight(name, k, n, 1.0f / std::sqrt(static_cast<float>(k)));
      g.node("MatMul", {x, name}, {name + ".out"});
      return name + ".out";
    };
    mask(g);
    rope(g);
    weight("embedding", vocab, hidden, 1.0f);
    g.node("Gather", {"embedding", "input_ids"}, {"embedded"});
    norm("norm0");
    g.node("SimplifiedLayerNormalization", {"embedded", "norm0"}, {"x0"},
           {attribute("axis", -1), attribute("epsilon", 1e-6f), attribute("stash_type", 1)});
    std::string root = "embedded", x = "x0";
    const auto skip_norm = [&](const std::string& name, const std::string& branch, bool last) {
      norm(name);
      std::vector<std::string> outputs = {name + ".x"};
      if (!last) outputs.insert(outputs.end(), {"", "", name + ".root"});
      g.node("SkipSimplifiedLayerNormalization", {root, branch, name}, outputs, {attribute("epsilon", 1e-6f)},
             {.name = name, .domain = "com.microsoft"});
      x = name + ".x";
      root = name + ".root";
    };
    for (int64_t i = 0; i < layers; i++) {
      const std::string p = "layer" + std::to_string(i) + ".", l = std::to_string(i);
      const std::string q = matmul(x, p + "q", hidden, heads * head_size);
      const std::string k = matmul(x, p + "k", hidden, kv_heads * head_size);
      const std::string v = matmul(x, p + "v", hidden, kv_heads * head_size);
      for (const std::string kind : {"key", "value"}) {
        g.input("past_key_values." + l + "." + kind, DType::f32, {"batch", kv_heads, "past", head_size});
        g.output("present." + l + "." + kind, DType::f32, {"batch", kv_heads, "total", head_size});
      }
      g.node("GroupQueryAttention",
             {q, k, v, "past_key_values." + l + ".key", "past_key_values." + l + ".value", "seqlens_k", "total",
              "cos_cache", "sin_cache", "", "", ""},
             {p + "attn", "present." + l + ".key", "present." + l + ".value"},
             {attribute("num_heads", heads), attribute("kv_num_heads", kv_heads), attribute("do_rotary", 1)},
             {.name = p + "attention", .domain = "com.microsoft"});
      skip_norm(p + "norm_mlp", matmul(p + "attn", p + "o", heads * head_size, hidden), false);
      const std::string gate = matmul(x, p + "gate", hidden, intermediate);
      const std::string up = matmul(x, p + "up", hidden, intermediate);
      g.node("Sigmoid", {gate}, {p + "sigmoid"}).node("Mul", {gate, p + "sigmoid"}, {p + "silu"});
      g.node("Mul", {p + "silu", up}, {p + "product"});
      skip_norm(p + "norm_out", matmul(p + "product", p + "down", intermediate, hidden), i + 1 == layers);
    }
    weight("lm_head", hidden, vocab, 1.0f);
    g.node("MatMul", {x, "lm_head"}, {"logits"});
    if (extend_graph) extend_graph(g);
    return g;
  }

 private:
  static void mask(support::OnnxWriter& g) {
    using namespace support;
    g.initializer("one", {1}, std::vector<int64_t>{1}).initializer("axis", {}, std::vector<int64_t>{1});
    g.node("ReduceSum", {"attention_mask", "one"}, {"valid"}, {attribute("keepdims", 0)});
    g.node("Sub", {"valid", "one"}, {"last"}).node("Cast", {"last"}, {"seqlens_k"}, {attribute("to", 6)});
    g.node("Shape", {"attention_mask"}, {"mask_shape"});
    g.node("Gather", {"mask_shape", "axis"}, {"total64"}, {attribute("axis", 0)});
    g.node("Cast", {"total64"}, {"total"}, {attribute("to", 6)});
  }

  void rope(support::OnnxWriter& g) const {
    const int64_t half = head_size / 2;
    std::vector<float> cosines, sines;
    for (int64_t t = 0; t < context; t++) {
      for (int64_t j = 0; j < half; j++) {
        const float angle = static_cast<float>(t) * std::pow(1e6f, -static_cast<float>(j) / static_cast<float>(half));
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    g.initializer("cos_cache", {context, half}, cosines).initializer("sin_cache", {context, half}, sines);
  }
};

}  // namespace quern::test
