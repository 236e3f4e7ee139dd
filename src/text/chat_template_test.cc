// SPDX-License-Identifier: Apache-2.0
// The template language against what transformers made of small templates (testdata/chat_templates/constructs.json,
// made by tools/make_template_goldens.py), what is refused and where, hostile templates, and the files of a folder.
// Whole templates over whole conversations: tests/oracle/test_chat_template.py.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace quern::text {
namespace {

using nlohmann::ordered_json;

const ordered_json kHello = {{{"role", "user"}, {"content", "hello"}}};

Result<std::string> render(const std::string& source, const ordered_json& variables = ordered_json::object()) {
  QUERN_TRY(const ChatTemplate chat, ChatTemplate::parse(source));
  ChatOptions options;
  options.variables = variables;
  return chat.render(kHello, nullptr, options);
}

TEST(ChatTemplate, ConstructsGiveTheStoredTextOrAreRefused) {
  std::ifstream file(QUERN_SOURCE_DIR "/testdata/chat_templates/constructs.json");
  const ordered_json stored = ordered_json::parse(file);
  ChatOptions options;
  options.variables = stored.at("variables");
  int texts = 0, refusals = 0;
  for (const auto& test : stored.at("cases")) {
    const auto name = test.at("name").get<std::string>();
    const auto chat = ChatTemplate::parse(test.at("template").get<std::string>());
    const Result<std::string> text =
        chat.ok() ? chat->render(stored.at("messages"), nullptr, options) : Result<std::string>(chat.error());
    if (test.at("text").is_null()) {
      ASSERT_FALSE(text.ok()) << name << ": " << *text;
      EXPECT_NE(text.error().where.find("line "), std::string::npos) << name << ": " << text.error().message();
      ++refusals;
    } else {
      ASSERT_TRUE(text.ok()) << name << ": " << text.error().message();
      EXPECT_EQ(*text, test.at("text").get<std::string>()) << name;
      ++texts;
    }
  }
  EXPECT_GT(texts, 90);
  EXPECT_GT(refusals, 80);
}

struct Refusal {
  const char *source, *what;
  int line;
  Errc code;
};

TEST(ChatTemplate, WhatIsLackingIsRefusedByNameAndLineWhenLoading) {
  const Refusal cases[] = {
      {"a\n{{ x|wordcount }}", "the filter 'wordcount'", 2, Errc::unsupported},
      {"{#\n\n#}{{ x is lower }}", "the test 'lower'", 3, Errc::unsupported},
      {"{% if x %}\n{{ x.swapcase() }}{% endif %}", "the method 'swapcase'", 2, Errc::unsupported},
      {"\n\n{{ cycler(1) }}", "the name 'cycler'", 3, Errc::unsupported},
      {"{{ a\n(b) }}", "the function 'a'", 2, Errc::unsupported},
      {"{% if f %}\r\n\r\n{% include 'x' %}{% endif %}", "the tag 'include'", 3, Errc::unsupported},
      {"{% for a in b recursive %}{% endfor %}", "recursive", 1, Errc::unsupported},
      {"{{ 2 ** 3 }}", "the operator '**'", 1, Errc::unsupported},
      {"{{ x|map('sort') }}", "the filter 'sort'", 1, Errc::unsupported},
      {"{{ x|selectattr('a', 'callable') }}", "the test 'callable'", 1, Errc::unsupported},
      {"{{ x|tojson(2, 3, 4, 5, 6) }}", "the filter 'tojson' takes at most 4 arguments", 1, Errc::unsupported},
      {"{{ x|join(seperator=',') }}", "the filter 'join' has no argument 'seperator'", 1, Errc::unsupported},
      {"{{ x.replace('a') }}", "the method 'replace' needs the argument 'new'", 1, Errc::unsupported},
      {"{{ x.strip(characters='a') }}", "the method 'strip' has no argument 'characters'", 1, Errc::unsupported},
      {"{% for a in b %}{{ loop.changed(a) }}{% endfor %}", "the attribute 'loop.changed'", 1, Errc::unsupported},
      {"{% for a in b %}{{ f(loop) }}{% endfor %}", "'loop' without an attribute", 1, Errc::unsupported},
      {"{% for a in b if loop.first %}{% endfor %}", "'loop' is not supported in the condition", 1, Errc::unsupported},
      {"{% for a in b %}{% macro m() %}{{ loop.index }}{% endmacro %}{% endfor %}", "in a macro inside of one", 1,
       Errc::unsupported},
      {"{% set range = 1 %}", "the function 'range'", 1, Errc::unsupported},
      {"{% break %}", "the tag 'break'", 1, Errc::unsupported},
      {"{{ 0xff }}", "not decimal", 1, Errc::unsupported},
      {"{{ '\\ud83d' }}", "U+D83D", 1, Errc::unsupported},
      {"{{ x", "the tag that starts here is not closed", 1, Errc::bad_model},
      {"\n{# x", "the comment that starts here is not closed", 2, Errc::bad_model},
      {"{% raw %}{{ x }}", "the raw block that starts here is not closed", 1, Errc::bad_model},
      {"{{ 'x }}", "the string that starts here is not closed", 1, Errc::bad_model},
      {"\n{% if x %}\n", "is not closed by 'endif'", 2, Errc::bad_model},
      {"{% endif %}", "the tag 'endif' closes or continues nothing", 1, Errc::bad_model},
      {"{% if x %}{% endfor %}{% endif %}", "the tag 'endfor' closes or continues nothing", 1, Errc::bad_model},
      {"{{ }}", "an expression is expected here, not '}}'", 1, Errc::bad_model},
      {"{{ a b }}", "'}}' is expected here, not 'b'", 1, Errc::bad_model},
      {"{{ (a] }}", "the bracket ']' closes none that is open", 1, Errc::bad_model},
      {"{{ a ? b }}", "the character '?' means nothing here", 1, Errc::bad_model},
      {"{% set true = 1 %}", "'true' cannot be written to", 1, Errc::bad_model},
      {"{% set a[0] = 1 %}", "'%}' is expected here, not '['", 1, Errc::bad_model},
      {"{% macro m(a=1, b) %}{% endmacro %}", "the parameter 'b' needs a default", 1, Errc::bad_model},
      {"{{ f(a=1, 2) }}", "behind one by keyword", 1, Errc::bad_model},
      {"{{ 1 if }}", "an expression is expected", 1, Errc::bad_model},
      {"a\n\xff", "not valid UTF-8", 2, Errc::bad_model},
  };
  for (const Refusal& test : cases) {
    const auto chat = ChatTemplate::parse(test.source);
    ASSERT_FALSE(chat.ok()) << test.source;
    EXPECT_NE(chat.error().what.find(test.what), std::string::npos) << test.source << ": " << chat.error().what;
    EXPECT_EQ(chat.error().where, "chat template: line " + std::to_string(test.line)) << test.source;
    EXPECT_EQ(chat.error().code, test.code) << test.source;
  }
}

TEST(ChatTemplate, ErrorsOfRenderingNameTheLineAndTheValue) {
  const Refusal cases[] = {
      {"\n{{ raise_exception('no ' ~ 'system') }}", "the template refuses this conversation: no system", 2,
       Errc::bad_request},
      {"{{ 'a' +\n messages[0].tools }}", "a mapping has no attribute 'tools', so + has nothing to work with", 1,
       Errc::bad_request},
      {"{{ nope.x }}", "'nope' is undefined, so it has no 'x'", 1, Errc::bad_request},
      {"{% macro m(a) %}\n{{ a.b }}\n{% endmacro %}\n\n{{ m() }}", "the parameter 'a' of the macro was not given", 2,
       Errc::bad_request},
      {"{{ 'é'|upper }}", "U+00E9", 1, Errc::bad_request},
  };
  for (const Refusal& test : cases) {
    const auto text = render(test.source);
    ASSERT_FALSE(text.ok()) << test.source;
    EXPECT_NE(text.error().what.find(test.what), std::string::npos) << text.error().what;
    EXPECT_EQ(text.error().where, "chat template: line " + std::to_string(test.line)) << test.source;
    EXPECT_EQ(text.error().code, test.code);
  }
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(ChatTemplate, HostileTemplatesEndInAnError) {
  const std::string nested = "{% for a in range(100000) %}";
  const std::string sources[] = {
      "{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}",
      "{{ " + repeated("not ", 100'000) + "1 }}",
      "{{ " + repeated("-", 100'000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100'000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100'000) + " }}",
      "{{ x" + repeated(".y", 100'000) + " }}",
      "{{ x" + repeated("|upper", 100'000) + " }}",
      "{{ " + repeated("[", 100'000) + repeated("]", 100'000) + " }}",
      repeated("{% if 1 %}", 100'000) + repeated("{% endif %}", 100'000),
      repeated("a", (1 << 20) + 1),
      repeated(nested, 3) + repeated("{% endfor %}", 3),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(t='ab') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
      "{% set ns = namespace(t=[1]) %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
      "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = [ns.t] %}{% endfor %}",
      "{% set ns = namespace(t=1) %}{% for i in range(9999) %}{% set ns.t = {'a': ns.t} %}{% endfor %}",
      "{% set ns = namespace(t=1) %}{% for i in range(150) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t }}",
      "{% set ns = namespace(t=1) %}{% for i in range(150) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t|tojson "
      "}}",
      "{% set ns = namespace(t=1, u=1) %}{% for i in range(150) %}{% set ns.t = [ns.t, ns.t] %}{% set ns.u = [ns.u, "
      "ns.u] %}"
      "{% endfor %}{{ ns.t == ns.u }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ 'xx' * 9223372036854775807 }}",
      "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
      "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
      "{{ [[]]|tojson(indent=99999999999) }}",
      "{{ ('y' * 100000).join('x' * 100000) }}",
      "{{ ('y' * 100000) ~ 'x' in 'y' * 1000000 }}",
      "{{ ('y' * 1000000).strip('x' * 100000) }}",
      "{{ f(" + repeated("a=1, ", 100'000) + ") }}",
      "{% macro m(" + repeated("a, ", 100'000) + ") %}{% endmacro %}",
      "{% set t = 'x' * 1000000 %}{% for i in range(100000) %}{{ t|length }}{{ t[i] }}{% endfor %}",
      "{% set g = range(100000)|list|map('string') %}{% for i in range(100000) %}{% set h = [g, i] %}{% endfor %}{{ g "
      "}}",
      "{% for i in range(100000) %}{{ 'y' * 1000000 in 'x' * 1000000 }}{% endfor %}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
  };
  for (const std::string& source : sources) {
    const auto text = render(source);
    EXPECT_FALSE(text.ok()) << source.substr(0, 200);
    if (!text.ok()) {
      EXPECT_NE(text.error().where.find("line "), std::string::npos) << text.error().message();
    }
  }
}

TEST(ChatTemplate, ExtremeSlicesStayInside) {
  const auto text = render(
      "{{ 'abc'[-9223372036854775807:9223372036854775807] }}{{ 'abc'[::9223372036854775807] }}"
      "{{ 'abc'[::-9223372036854775807] }}{{ 'abc'[::-9223372036854775807 - 1] }}{{ 'abc'[9223372036854775807::-1] }}");
  ASSERT_TRUE(text.ok()) << text.error().message();
  EXPECT_EQ(*text, "abcacccba");
}

TEST(ChatTemplate, LongConversationsAreNotTakenForHostile) {
  std::ifstream file(QUERN_SOURCE_DIR "/testdata/chat_templates/qwen3_8.jinja");
  const std::string source(std::istreambuf_iterator<char>(file), {});
  const auto chat = ChatTemplate::parse(source);
  ASSERT_TRUE(chat.ok()) << chat.error().message();
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 20'000; ++i) messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "x"}});
  EXPECT_TRUE(chat->render(messages, nullptr, {}).ok());
  messages.push_back({{"role", "user"}, {"content", std::string(16 << 20, 'y')}});
  EXPECT_TRUE(chat->render(messages, nullptr, {}).ok());
}

TEST(ChatTemplate, RequestsOfAnotherFormAreRefused) {
  const auto chat = ChatTemplate::parse("{{ messages }}");
  ASSERT_TRUE(chat.ok());
  ordered_json deep = 1;
  for (int i = 0; i < 300; ++i) deep = ordered_json::array({deep});
  const std::pair<ordered_json, const char*> messages[] = {
      {nullptr, "messages"},
      {ordered_json::array(), "messages"},
      {ordered_json::object(), "messages"},
      {{"x"}, "messages[0]"},
      {{{{"role", "\xff"}}}, "messages"},
      {{{{"role", 18446744073709551615ULL}}}, "messages"},
      {{{{"role", deep}}}, "messages"},
  };
  for (const auto& [given, where] : messages) {
    const auto text = chat->render(given, nullptr, {});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().code, Errc::bad_request);
    EXPECT_EQ(text.error().where, where) << text.error().message();
  }
  for (const ordered_json& tools : {ordered_json("x"), ordered_json::array({1}), ordered_json::object({{"a", 1}})}) {
    EXPECT_FALSE(chat->render(kHello, tools, {}).ok()) << tools;
  }
  for (const char* const name : {"range", "namespace", "messages", "tools", "add_generation_prompt"}) {
    ChatOptions options;
    options.variables = {{name, 1}};
    EXPECT_FALSE(chat->render(kHello, nullptr, options).ok()) << name;
  }
}

TEST(ChatTemplate, OptionsReachTheTemplate) {
  const auto chat = ChatTemplate::parse(
      "{{ enable_thinking is defined }} {{ enable_thinking }} {{ add_generation_prompt }} {{ tools is none }} {{ "
      "documents is none }} {{ extra }}");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(*chat->render(kHello, nullptr, {}), "False  False True True ");
  ChatOptions options{true, false, {{"extra", {1}}, {"documents", "d"}}};
  EXPECT_EQ(*chat->render(kHello, ordered_json::array(), options), "True False True False False [1]");
}

class TemplateFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_ / "additional_chat_templates");
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  void write(const char* name, const std::string& content) { std::ofstream(path_ / name, std::ios::binary) << content; }

  // What the template of the folder says, with and without tools, or the place of the error.
  std::string said(const ordered_json& tools = nullptr) {
    const auto chat = ChatTemplate::load(path_);
    if (!chat.ok()) return chat.error().message();
    return chat->render(kHello, tools, {}).value();
  }

  const std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("chat_template_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

const ordered_json kTools = ordered_json::array({ordered_json::object()});

TEST_F(TemplateFolder, LaterPlacesGoBefore) {
  EXPECT_NE(said().find("there is no chat template"), std::string::npos);
  write("chat_template.json", R"({"chat_template": "processor"})");
  EXPECT_EQ(said(), "processor");
  write("tokenizer_config.json", R"({"chat_template": "entry"})");
  EXPECT_EQ(said(), "entry");
  write("chat_template.jinja", "file");
  EXPECT_EQ(said(), "file");
  EXPECT_EQ(said(kTools), "file");
  write("additional_chat_templates/tool_use.jinja", "with tools");
  EXPECT_EQ(said(), "file");
  EXPECT_EQ(said(kTools), "with tools");
}

TEST_F(TemplateFolder, NamedTemplates) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(said(), "d");
  EXPECT_EQ(said(kTools), "t");
  EXPECT_EQ(said(ordered_json::array()), "t");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "other", "template": "d"}]})");
  EXPECT_NE(said().find("there is no chat template"), std::string::npos);
}

TEST_F(TemplateFolder, SpecialTokensHaveNames) {
  write("tokenizer_config.json",
        R"({"eos_token": "<e>", "pad_token": {"content": "<p>"}, "bos_token": null, "add_bos_token": true,
            "image_token": "<i>", "extra_special_tokens": {"video_token": "<v>"}})");
  write("chat_template.jinja",
        "{{ eos_token }}{{ pad_token }}{{ bos_token is defined }}{{ image_token }}{{ video_token }}");
  EXPECT_EQ(said(), "<e><p>False<i><v>");
}

TEST_F(TemplateFolder, WhatCannotHoldIsRefusedWithItsPlace) {
  const std::pair<const char*, const char*> configs[] = {
      {"{", "tokenizer_config.json: byte 1"},
      {"[]", "tokenizer_config.json: byte 0"},
      {R"({"chat_template": 7})", "tokenizer_config.json: chat_template"},
      {R"({"chat_template": [{"name": "default"}]})", "tokenizer_config.json: chat_template"},
      {R"({"chat_template": "a\n{{ x|sort }}"})", "tokenizer_config.json: chat_template: line 2"},
      {R"({"chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{{"}]})",
       "tokenizer_config.json: chat_template, 'tool_use': line 1"},
      {R"({"chat_template": "x", "eos_token": 7})", "tokenizer_config.json: eos_token"},
  };
  for (const auto& [content, where] : configs) {
    write("tokenizer_config.json", content);
    const auto chat = ChatTemplate::load(path_);
    ASSERT_FALSE(chat.ok()) << content;
    EXPECT_TRUE(chat.error().where.ends_with(where)) << content << ": " << chat.error().message();
  }
  std::filesystem::remove(path_ / "tokenizer_config.json");
  write("chat_template.jinja", "\n\n{% x %}");
  EXPECT_TRUE(ChatTemplate::load(path_).error().where.ends_with("chat_template.jinja: line 3"));
  EXPECT_EQ(ChatTemplate::load(path_ / "nothing").error().code, Errc::bad_model);
}

}  // namespace
}  // namespace quern::text
