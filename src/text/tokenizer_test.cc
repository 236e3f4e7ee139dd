// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding on a vocabulary small enough to check by hand, and the refusal of files that are damaged or ask
// for what is not implemented. Agreement with the reference on real vocabularies is tests/oracle/test_tokenizer.py.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/support/small_tokenizer.h"

namespace quern::text {
namespace {

using nlohmann::json;
using test::added_token;
using test::small_tokenizer;
using Ids = std::vector<int32_t>;

Tokenizer tokenizer_of(const json& file) {
  auto tokenizer = Tokenizer::from_json(file.dump(), "tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return std::move(tokenizer).value();
}

Ids ids_of(const json& file, std::string_view text, bool parse_special = true) {
  auto ids = tokenizer_of(file).encode(text, parse_special);
  EXPECT_TRUE(ids.ok()) << ids.error().message();
  return std::move(ids).value();
}

constexpr std::pair<const char*, const char*> kWordMerges[] = {{"a", "b"},  {"b", "c"}, {"\u0120", "ab"},
                                                               {"ab", "c"}, {"a", "a"}, {"aa", "aa"}};

json word_tokenizer() {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& [left, right] : kWordMerges) merges.emplace_back(left, right);
  return small_tokenizer(merges);
}

TEST(Encode, TextWithoutMergesIsItsBytes) {
  EXPECT_EQ(ids_of(small_tokenizer(), "a \n\x7F"), (Ids{'a', ' ', '\n', 0x7F}));
  EXPECT_EQ(ids_of(small_tokenizer(), "\u00E9\u4F60"), (Ids{0xC3, 0xA9, 0xE4, 0xBD, 0xA0}));
  EXPECT_EQ(ids_of(small_tokenizer(), ""), Ids{});
}

TEST(Encode, LowestRankMergesFirst) {
  EXPECT_EQ(ids_of(word_tokenizer(), "abc"), (Ids{259}));
  EXPECT_EQ(ids_of(word_tokenizer(), "bc"), (Ids{257}));
  EXPECT_EQ(ids_of(word_tokenizer(), "x ab"), (Ids{'x', 258}));
}

TEST(Encode, PairThatLostItsHalfDoesNotMerge) {
  EXPECT_EQ(ids_of(small_tokenizer({{"b", "c"}, {"a", "b"}}), "abc"), (Ids{'a', 256}));
  EXPECT_EQ(ids_of(small_tokenizer({{"a", "b"}, {"b", "c"}}), "abc"), (Ids{256, 'c'}));
}

TEST(Encode, EqualRanksMergeFromTheLeft) {
  EXPECT_EQ(ids_of(word_tokenizer(), "aaa"), (Ids{260, 'a'}));
  EXPECT_EQ(ids_of(word_tokenizer(), "aaaaaaa"), (Ids{261, 260, 'a'}));
}

TEST(Encode, MergesDoNotCrossPreTokens) {
  // The pattern isolates every digit and splits before "'s".
  EXPECT_EQ(ids_of(small_tokenizer({{"1", "2"}}), "12"), (Ids{'1', '2'}));
  EXPECT_EQ(ids_of(small_tokenizer({{"x", "'"}}), "x's"), (Ids{'x', '\'', 's'}));
}

TEST(Encode, RepeatedWordsInLongTextEncodeAsTheyDoAlone) {
  const Tokenizer tokenizer = tokenizer_of(word_tokenizer());
  std::string text;
  Ids expected;
  const std::string letters = "abcxyz";
  for (int i = 0; i < 20'000; ++i) {
    // More words than the memo has room for, most of them twice, some too long for it.
    std::string word = i % 3 == 0 ? " aabb" : " ab";
    for (int rest = i % 8000; rest > 0; rest /= 6) word += letters[static_cast<size_t>(rest % 6)];
    if (i % 7 == 0) word += "abababababababab";
    text += word;
    const Ids ids = *tokenizer.encode(word);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(*tokenizer.encode(text), expected);
}

TEST(Encode, IgnoreMergesTakesAWholeEntry) {
  json file = small_tokenizer({{"a", "b"}});
  file["model"]["vocab"]["xyz"] = 257;
  EXPECT_EQ(ids_of(file, "xyz"), (Ids{'x', 'y', 'z'}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids_of(file, "xyz"), (Ids{257}));
  EXPECT_EQ(ids_of(file, "abz"), (Ids{256, 'z'}));
}

TEST(Encode, MergesAsTextMeanTheSameAsPairs) {
  json file = word_tokenizer();
  json& merges = file["model"]["merges"];
  for (json& merge : merges) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  merges.insert(merges.begin(), "#version: 0.2");
  EXPECT_EQ(ids_of(file, "abc aaaa"), ids_of(word_tokenizer(), "abc aaaa"));
}

TEST(Encode, NormalizationComesBeforeSplittingOnlyIfTheFileSaysSo) {
  json file = small_tokenizer();
  EXPECT_EQ(ids_of(file, "e\u0301"), (Ids{0xC3, 0xA9}));
  file["normalizer"] = nullptr;
  EXPECT_EQ(ids_of(file, "e\u0301"), (Ids{'e', 0xCC, 0x81}));
}

TEST(Encode, LongRunsEndInReasonableTime) {
  const Tokenizer tokenizer = tokenizer_of(word_tokenizer());
  constexpr size_t kRun = size_t{1} << 20;
  EXPECT_EQ(tokenizer.encode(std::string(kRun, 'a'))->size(), kRun / 4);
  EXPECT_EQ(tokenizer.encode(std::string(kRun, ' ') + "x")->size(), kRun + 1);
  EXPECT_EQ(tokenizer.encode(std::string(kRun, '\n') + " x")->size(), kRun + 2);
}

TEST(Encode, InvalidUtf8IsRefusedWithItsOffset) {
  const auto ids = tokenizer_of(small_tokenizer()).encode("abc\xFF");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().code, Errc::bad_request);
  EXPECT_NE(ids.error().what.find("at byte 3 (0xFF)"), std::string::npos) << ids.error().what;
}

TEST(Encode, ThreadsMayShareATokenizer) {
  const Tokenizer tokenizer = tokenizer_of(word_tokenizer());
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 2 == 0 ? "abc aaaa " : "\u4F60\u597D, abab\n";
  const Ids expected = *tokenizer.encode(text);
  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) threads.emplace_back([&ids, &tokenizer, &text] { ids = *tokenizer.encode(text); });
  }
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

TEST(AddedTokens, AreFoundWholeAndLongestFirst) {
  json file = small_tokenizer();
  file["added_tokens"] = {added_token(256, "<|x", true), added_token(257, "<|x|>", true),
                          added_token(258, "<t>", false)};
  EXPECT_EQ(ids_of(file, "a<|x|>b"), (Ids{'a', 257, 'b'}));
  EXPECT_EQ(ids_of(file, "<|x|<t>"), (Ids{256, '|', 258}));
  EXPECT_EQ(ids_of(file, "<<|x|>"), (Ids{'<', 257}));
}

TEST(AddedTokens, SpecialOnesCanBeTakenAsText) {
  json file = small_tokenizer();
  file["added_tokens"] = {added_token(256, "<s>", true), added_token(257, "<t>", false)};
  EXPECT_EQ(ids_of(file, "<s><t>", false), (Ids{'<', 's', '>', 257}));
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_FALSE(tokenizer.is_special(257));
  EXPECT_FALSE(tokenizer.is_special('a'));
}

TEST(AddedTokens, StrippingTakesWhiteSpaceAlong) {
  json file = small_tokenizer();
  file["added_tokens"] = {added_token(256, "<s>", true)};
  file["added_tokens"][0]["lstrip"] = true;
  EXPECT_EQ(ids_of(file, "a \n\u3000<s> b"), (Ids{'a', 256, ' ', 'b'}));
  file["added_tokens"][0]["rstrip"] = true;
  EXPECT_EQ(ids_of(file, "a <s>\t b"), (Ids{'a', 256, 'b'}));
}

TEST(AddedTokens, NormalizedOnesAreFoundInNormalizedText) {
  json file = small_tokenizer();
  file["added_tokens"] = {added_token(256, "e\u0301", false)};
  EXPECT_EQ(ids_of(file, "\u00E9"), (Ids{0xC3, 0xA9}));
  file["added_tokens"][0]["normalized"] = true;
  EXPECT_EQ(ids_of(file, "\u00E9"), (Ids{256}));
  EXPECT_EQ(tokenizer_of(file).text_of(256), "\u00E9");
  EXPECT_EQ(tokenizer_of(file).id_of("e\u0301"), 256);
}

TEST(Decode, GivesTheTextBackAndReplacesInvalidBytes) {
  const Tokenizer tokenizer = tokenizer_of(word_tokenizer());
  const std::string text = "abc \u00E9 \u4F60 \U0001F600\r\n";
  EXPECT_EQ(tokenizer.decode(*tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.decode(Ids{'a', 0xE4, 0xBD, 'b'}), "a\uFFFDb");
}

TEST(Decode, IdsWithoutTextGiveNothing) {
  EXPECT_EQ(tokenizer_of(small_tokenizer()).decode(Ids{'a', 256, 100'000, -1, INT32_MAX, INT32_MIN, 'b'}), "ab");
}

TEST(Decode, SpecialTokensCanBeSkipped) {
  json file = small_tokenizer();
  file["added_tokens"] = {added_token(256, "<s>", true), added_token(257, "<t>", false)};
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 257}), "<s>a<t>");
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 257}, true), "a<t>");
}

TEST(Vocabulary, TextsAndIdsFindEachOther) {
  json file = word_tokenizer();
  file["added_tokens"] = {added_token(262, "<s>", true)};
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.id_of("\u0120ab"), 258);
  EXPECT_EQ(tokenizer.id_of("<s>"), 262);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.text_of(258), "\u0120ab");
  EXPECT_EQ(tokenizer.bytes_of(258), " ab");
  EXPECT_EQ(tokenizer.text_of(262), "<s>");
  EXPECT_EQ(tokenizer.text_of(263), std::nullopt);
  EXPECT_EQ(tokenizer.text_of(-1), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 263);
}

struct Refusal {
  const char* name;
  void (*change)(json&);
  Errc code;
  const char* where;
};

void set_pattern(json& file, const char* pattern) {
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
}

constexpr const char* kPatternPath = "pre_tokenizer.pretokenizers[0].pattern.Regex";

const Refusal kRefusals[] = {
    {"Version", [](json& f) { f["version"] = "2.0"; }, Errc::unsupported, "version"},
    {"Truncation",
     [](json& f) {
       f["truncation"] = {{"max_length", 8}};
     },
     Errc::unsupported, "truncation"},
    {"Padding",
     [](json& f) {
       f["padding"] = {{"strategy", "BatchLongest"}};
     },
     Errc::unsupported, "padding"},
    {"UnknownField", [](json& f) { f["model"]["extra"] = 1; }, Errc::unsupported, "model.extra"},
    {"Unigram", [](json& f) { f["model"]["type"] = "Unigram"; }, Errc::unsupported, "model"},
    {"ByteFallback", [](json& f) { f["model"]["byte_fallback"] = true; }, Errc::unsupported, "model.byte_fallback"},
    {"UnknownToken", [](json& f) { f["model"]["unk_token"] = "a"; }, Errc::unsupported, "model.unk_token"},
    {"Dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, Errc::unsupported, "model.dropout"},
    {"Prefix", [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, Errc::unsupported,
     "model.continuing_subword_prefix"},
    {"Suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, Errc::unsupported,
     "model.end_of_word_suffix"},
    {"MissingByte", [](json& f) { f["model"]["vocab"].erase("a"); }, Errc::unsupported, "model.vocab"},
    {"NoVocabulary", [](json& f) { f["model"].erase("vocab"); }, Errc::bad_model, "model.vocab"},
    {"NoMerges", [](json& f) { f["model"].erase("merges"); }, Errc::bad_model, "model.merges"},
    {"TextAsId", [](json& f) { f["model"]["vocab"]["a"] = "1"; }, Errc::bad_model, "model.vocab"},
    {"FractionAsId", [](json& f) { f["model"]["vocab"]["a"] = 1.5; }, Errc::bad_model, "model.vocab"},
    {"NegativeId", [](json& f) { f["model"]["vocab"]["a"] = -1; }, Errc::bad_model, "model.vocab"},
    {"HugeId", [](json& f) { f["model"]["vocab"]["a"] = uint64_t{1} << 63; }, Errc::bad_model, "model.vocab"},
    {"SameIdTwice", [](json& f) { f["model"]["vocab"]["a"] = 'b'; }, Errc::bad_model, "model.vocab"},
    {"MergeOfThree",
     [](json& f) {
       f["model"]["merges"] = {{"a", "b", "c"}};
     },
     Errc::bad_model, "model.merges[0]"},
    {"MergeOfNumbers",
     [](json& f) {
       f["model"]["merges"] = {{1, 2}};
     },
     Errc::bad_model, "model.merges[0]"},
    {"MergeWithoutBlank", [](json& f) { f["model"]["merges"] = {"ab"}; }, Errc::bad_model, "model.merges[0]"},
    {"MergeIntoNothing",
     [](json& f) {
       f["model"]["merges"] = json::array({json::array({"a", "b"})});
     },
     Errc::bad_model, "model.merges[0]"},
    {"Lowercase",
     [](json& f) {
       f["normalizer"] = {{"type", "Lowercase"}};
     },
     Errc::unsupported, "normalizer"},
    {"NestedNormalizer",
     [](json& f) {
       f["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
     },
     Errc::unsupported, "normalizer.normalizers[0]"},
    {"NoPreTokenizer", [](json& f) { f["pre_tokenizer"] = nullptr; }, Errc::unsupported, "pre_tokenizer"},
    {"PrefixSpace", [](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
     Errc::unsupported, "pre_tokenizer.pretokenizers[1].add_prefix_space"},
    {"SplitRemoves", [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, Errc::unsupported,
     "pre_tokenizer.pretokenizers[0].behavior"},
    {"SplitInverted", [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, Errc::unsupported,
     "pre_tokenizer.pretokenizers[0].invert"},
    {"SplitWithoutPattern", [](json& f) { f["pre_tokenizer"]["pretokenizers"][0].erase("pattern"); }, Errc::bad_model,
     "pre_tokenizer.pretokenizers[0].pattern"},
    {"SplitAfterBytes",
     [](json& f) {
       json& list = f["pre_tokenizer"]["pretokenizers"];
       std::swap(list[0], list[1]);
     },
     Errc::unsupported, "pre_tokenizer.pretokenizers[1]"},
    {"PatternUnbalanced", [](json& f) { set_pattern(f, "(a"); }, Errc::bad_model, kPatternPath},
    {"PatternMatchesNothing", [](json& f) { set_pattern(f, "a*"); }, Errc::unsupported, kPatternPath},
    {"PatternWord", [](json& f) { set_pattern(f, "\\w+"); }, Errc::unsupported, kPatternPath},
    {"PatternAnchor", [](json& f) { set_pattern(f, "^a"); }, Errc::unsupported, kPatternPath},
    {"PatternDot", [](json& f) { set_pattern(f, "a.b"); }, Errc::unsupported, kPatternPath},
    {"PatternScript", [](json& f) { set_pattern(f, "\\p{Han}"); }, Errc::unsupported, kPatternPath},
    {"PatternIntersection", [](json& f) { set_pattern(f, "[a-z&&[^b]]"); }, Errc::unsupported, kPatternPath},
    {"PatternFolding", [](json& f) { set_pattern(f, "(?i:ss)"); }, Errc::unsupported, kPatternPath},
    {"PatternLookbehind", [](json& f) { set_pattern(f, "(?<=a)b"); }, Errc::unsupported, kPatternPath},
    {"PatternPossessiveCount", [](json& f) { set_pattern(f, "a{1,2}+"); }, Errc::unsupported, kPatternPath},
    {"NoDecoder", [](json& f) { f["decoder"] = nullptr; }, Errc::unsupported, "decoder"},
    {"OtherDecoder",
     [](json& f) {
       f["decoder"] = {{"type", "Metaspace"}};
     },
     Errc::unsupported, "decoder"},
    {"TemplateWithToken",
     [](json& f) {
       f["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {{{"SpecialToken", {{"id", "a"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
     },
     Errc::unsupported, "post_processor.single"},
    {"OtherPostProcessor",
     [](json& f) {
       f["post_processor"] = {{"type", "BertProcessing"}};
     },
     Errc::unsupported, "post_processor"},
    {"SingleWord",
     [](json& f) {
       f["added_tokens"] = {added_token(256, "<s>", true)};
       f["added_tokens"][0]["single_word"] = true;
     },
     Errc::unsupported, "added_tokens[0].single_word"},
    {"AddedIdNotNext", [](json& f) { f["added_tokens"] = {added_token(300, "<s>", true)}; }, Errc::unsupported,
     "added_tokens[0].id"},
    {"AddedIdNotThatOfTheVocabulary", [](json& f) { f["added_tokens"] = {added_token(256, "a", true)}; },
     Errc::unsupported, "added_tokens[0].id"},
    {"AddedTwice",
     [](json& f) {
       f["added_tokens"] = {added_token('a', "a", true), added_token('a', "a", true)};
     },
     Errc::bad_model, "added_tokens[1].content"},
    {"AddedEmpty", [](json& f) { f["added_tokens"] = {added_token(256, "", true)}; }, Errc::bad_model,
     "added_tokens[0].content"},
    {"AddedTooLong", [](json& f) { f["added_tokens"] = {added_token(256, std::string(2000, 'x'), true)}; },
     Errc::unsupported, "added_tokens[0].content"},
    {"AddedWithoutFlag",
     [](json& f) {
       f["added_tokens"] = {added_token(256, "<s>", true)};
       f["added_tokens"][0].erase("lstrip");
     },
     Errc::bad_model, "added_tokens[0].lstrip"},
    {"AddedIsNoObject", [](json& f) { f["added_tokens"] = {1}; }, Errc::bad_model, "added_tokens[0]"},
    {"ModelIsNoObject", [](json& f) { f["model"] = 1; }, Errc::bad_model, "model.vocab"},
};

class RefusedFile : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedFile, NamesFileAndPath) {
  json file = small_tokenizer();
  GetParam().change(file);
  const auto tokenizer = Tokenizer::from_json(file.dump(), "tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, GetParam().code) << tokenizer.error().message();
  EXPECT_EQ(tokenizer.error().where, std::string("tokenizer.json: ") + GetParam().where) << tokenizer.error().what;
}

INSTANTIATE_TEST_SUITE_P(All, RefusedFile, testing::ValuesIn(kRefusals), [](const auto& p) { return p.param.name; });

TEST(DamagedFile, EveryPrefixIsRefused) {
  const std::string whole = small_tokenizer({{"a", "b"}}).dump();
  for (size_t bytes = 0; bytes < whole.size(); bytes += 7) {
    const auto tokenizer = Tokenizer::from_json(std::string_view(whole).substr(0, bytes), "t");
    ASSERT_FALSE(tokenizer.ok()) << bytes;
    EXPECT_EQ(tokenizer.error().code, Errc::bad_model);
  }
}

TEST(DamagedFile, KeysThatComeTwiceAreRefused) {
  const std::string whole = small_tokenizer().dump();
  for (const char* key : {"\"decoder\":", "\"vocab\":", "\"merges\":"}) {
    std::string twice = whole;
    const std::string copy = std::string(key) + (std::string(key) == "\"merges\":" ? "[]," : "{},");
    twice.insert(twice.find(key), copy);
    const auto tokenizer = Tokenizer::from_json(twice, "t");
    ASSERT_FALSE(tokenizer.ok()) << key;
    EXPECT_EQ(tokenizer.error().code, Errc::bad_model);
    EXPECT_NE(tokenizer.error().what.find("twice"), std::string::npos) << tokenizer.error().message();
  }
}

TEST(DamagedFile, DeepNestingIsRefused) {
  const auto tokenizer = Tokenizer::from_json(std::string(100'000, '['), "t");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, Errc::bad_model);
}

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("quern_tokenizer_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
    json file = small_tokenizer();
    file["added_tokens"] = {added_token(256, "<eos>", true), added_token(257, "<pad>", true)};
    write("tokenizer.json", file.dump());
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void write(const char* name, const std::string& content) { std::ofstream(path_ / name) << content; }

  std::filesystem::path path_;
};

TEST_F(Folder, WithoutTokenizerIsABadModel) {
  std::filesystem::remove(path_ / "tokenizer.json");
  const auto tokenizer = Tokenizer::load(path_);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, Errc::bad_model);
  EXPECT_EQ(tokenizer.error().what, "the file is missing");
  EXPECT_EQ(tokenizer.error().where, (path_ / "tokenizer.json").string());
}

TEST_F(Folder, ConfigurationIsOptional) {
  const auto tokenizer = Tokenizer::load(path_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->settings().eos_id, std::nullopt);
}

TEST_F(Folder, ConfigurationNamesTokens) {
  write("tokenizer_config.json", R"({"eos_token":"<eos>","pad_token":{"content":"<pad>"},"bos_token":null})");
  const auto tokenizer = Tokenizer::load(path_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->settings().eos_id, 256);
  EXPECT_EQ(tokenizer->settings().pad_id, 257);
  EXPECT_EQ(tokenizer->settings().bos_id, std::nullopt);
}

TEST_F(Folder, ConfigurationAsPublishedIsRead) {
  write("tokenizer_config.json",
        R"({"add_bos_token":false,"add_prefix_space":false,"split_special_tokens":false,"errors":"replace",
            "clean_up_tokenization_spaces":true,"bos_token":null,"unk_token":null,"model_max_length":131072,
            "additional_special_tokens":["<eos>"],"chat_template":"x","tokenizer_class":"Qwen2Tokenizer",
            "added_tokens_decoder":{"256":{"content":"<eos>","special":true},"257":{"content":"<pad>"}}})");
  const auto tokenizer = Tokenizer::load(path_);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  write("tokenizer_config.json",
        R"({"add_bos_token":null,"add_prefix_space":null,"errors":null,"chat_template":null})");
  EXPECT_TRUE(Tokenizer::load(path_).ok());
}

TEST_F(Folder, ConfigurationIsRefusedWhereItsFieldsHaveOtherTypesOrChangeIds) {
  const std::tuple<const char*, const char*, Errc> cases[] = {
      {R"({"add_bos_token":"true"})", "add_bos_token", Errc::bad_model},
      {R"({"add_eos_token":1})", "add_eos_token", Errc::bad_model},
      {R"({"add_prefix_space":"no"})", "add_prefix_space", Errc::bad_model},
      {R"({"add_prefix_space":true})", "add_prefix_space", Errc::unsupported},
      {R"({"split_special_tokens":0})", "split_special_tokens", Errc::bad_model},
      {R"({"split_special_tokens":true})", "split_special_tokens", Errc::unsupported},
      {R"({"clean_up_tokenization_spaces":"x"})", "clean_up_tokenization_spaces", Errc::bad_model},
      {R"({"errors":7})", "errors", Errc::bad_model},
      {R"({"errors":"strict"})", "errors", Errc::unsupported},
      {R"({"chat_template":true})", "chat_template", Errc::bad_model},
      {R"({"additional_special_tokens":"<eos>"})", "additional_special_tokens", Errc::bad_model},
      {R"({"extra_special_tokens":7})", "extra_special_tokens", Errc::bad_model},
      {R"({"added_tokens_decoder":[]})", "added_tokens_decoder", Errc::bad_model},
      {R"({"added_tokens_decoder":{"256":"<eos>"}})", "added_tokens_decoder.256", Errc::bad_model},
      {R"({"added_tokens_decoder":{"256":{"content":7}}})", "added_tokens_decoder.256", Errc::bad_model},
      {R"({"added_tokens_decoder":{"257":{"content":"<eos>"}}})", "added_tokens_decoder.257", Errc::unsupported},
      {R"({"added_tokens_decoder":{"900":{"content":"<new>"}}})", "added_tokens_decoder.900", Errc::unsupported},
  };
  for (const auto& [content, place, code] : cases) {
    write("tokenizer_config.json", content);
    const auto tokenizer = Tokenizer::load(path_);
    ASSERT_FALSE(tokenizer.ok()) << content;
    EXPECT_EQ(tokenizer.error().code, code) << content;
    EXPECT_EQ(tokenizer.error().where, (path_ / "tokenizer_config.json").string() + ": " + place) << content;
  }
}

// The parser takes it for the end of the text.
TEST_F(Folder, NothingMayFollowAZeroByte) {
  write("tokenizer_config.json", std::string("{}\0", 3));
  EXPECT_EQ(Tokenizer::load(path_).error().where, (path_ / "tokenizer_config.json").string() + ": byte 2");
  std::filesystem::remove(path_ / "tokenizer_config.json");
  std::ifstream file(path_ / "tokenizer.json", std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), {});
  const std::string place = (path_ / "tokenizer.json").string() + ": byte " + std::to_string(content.size());
  content += std::string("\0garbage", 8);
  write("tokenizer.json", content);
  EXPECT_EQ(Tokenizer::load(path_).error().where, place);
}

TEST_F(Folder, NumbersOutOfRangeAreNamedWithTheirPlace) {
  write("tokenizer_config.json", R"({"model_max_length": 1e999})");
  Error error = Tokenizer::load(path_).error();
  EXPECT_EQ(error.where, (path_ / "tokenizer_config.json").string() + ": byte 21");
  EXPECT_EQ(error.what, "the number here is beyond the range of a double");
  std::filesystem::remove(path_ / "tokenizer_config.json");
  write("tokenizer.json", R"({"version": 1e999})");
  error = Tokenizer::load(path_).error();
  EXPECT_EQ(error.where, (path_ / "tokenizer.json").string() + ": byte 12");
  EXPECT_EQ(error.what, "the number here is beyond the range of a double");
}

TEST_F(Folder, LongNamesInTheFileDoNotMakeLongErrors) {
  const std::string name(160000, 'x');
  write("tokenizer.json", R"({")" + name + R"(": 1, ")" + name + R"(": 2})");
  EXPECT_LT(Tokenizer::load(path_).error().message().size(), path_.string().size() + 300);
  write("tokenizer.json", R"({")" + name + R"(": 1, "model": {"vocab": {}, "merges": []}})");
  EXPECT_LT(Tokenizer::load(path_).error().message().size(), path_.string().size() + 300);
}

TEST_F(Folder, ConfigurationThatCannotHoldIsRefused) {
  const std::pair<const char*, Errc> cases[] = {{"{", Errc::bad_model},
                                                {"[]", Errc::bad_model},
                                                {R"({"eos_token":"<none>"})", Errc::bad_model},
                                                {R"({"eos_token":7})", Errc::bad_model},
                                                {R"({"add_bos_token":true})", Errc::unsupported}};
  for (const auto& [content, code] : cases) {
    write("tokenizer_config.json", content);
    const auto tokenizer = Tokenizer::load(path_);
    ASSERT_FALSE(tokenizer.ok()) << content;
    EXPECT_EQ(tokenizer.error().code, code) << content;
    EXPECT_NE(tokenizer.error().where.find("tokenizer_config.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace quern::text
