# SPDX-License-Identifier: Apache-2.0
# The tokenizer against Hugging Face `tokenizers`, live: the same ids, the same decoded text, the same streamed text, over
# generated text in many scripts, for the real Qwen3 file, the demo model and small variants of the file format.
# Needs the executable tokenizer_cli of the build folder named by QUERN_BUILD (default build/release).
import json
import os
import pathlib
import random
import subprocess
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLI = ROOT / os.environ.get("QUERN_BUILD", "build/release") / "tokenizer_cli"
SEED = 20250


def drive(folder, requests):
    """The answers of the executable, one per request."""
    if not CLI.exists():
        pytest.skip(f"{CLI.name} is not built")
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([CLI, folder], input=lines.encode(), stdout=subprocess.PIPE, check=False)
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def folder_of(name):
    folder = ROOT / name
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"{name} has no tokenizer.json")
    return folder


SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xC80, 0xCFF), (0xD00, 0xD7F), (0xE00, 0xE7F),
    (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x20A0, 0x20FF), (0x2100, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF),
    (0x3130, 0x318F), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFF00, 0xFFEF),
    (0x10D00, 0x10D8F), (0x11300, 0x113FF), (0x11900, 0x1195F), (0x11F00, 0x11F5F), (0x16100, 0x1613F),
    (0x16D40, 0x16D7F), (0x1D100, 0x1D1FF), (0x1E030, 0x1E08F), (0x1F300, 0x1FAFF), (0x20000, 0x20FFF),
    (0x2F800, 0x2FA1F), (0xE0000, 0xE007F),
]
BLANKS = ["\t", "\n", "\v", "\f", "\r", " ", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u2028", "\u202f", "\u3000",
          "\u200b", "\ufeff", "\r\n", "\n\n", "  ", " \n", "\n ", "\x1c", "\x00", "\x7f"]
PHRASES = [
    "The quick brown fox jumps over the lazy dog.", "don't we'll I'm they've it's he'd you're", "DON'T WE'LL I'M",
    "x'\u017ft '\u017f 'S 'T 'RE 'Ve '\u212a 'LL", "for (int i = 0; i < 10; ++i) { sum += a[i] * 3.14e-7f; }",
    "https://example.org/a/b?c=d&e=%20f#g", "1234567890 3.14159 1,000,000 ٣٤٥ ४५६ Ⅷ ½ ²", "日本語のテキスト、漢字とかな。",
    "中文文本,包括标点符号!", "한국어 텍스트입니다", "Привет, мир!", "Ελληνικά", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "Tiếng Việt có dấu", "Việt Nam", "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☺︎", "e\u0301\u0323 a\u0308\u0304 \u1100\u1161\u11a8 \u0958 \u2126 \u212b",
    "---___***===///\\\\\\", "!!!???...", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start|", "<|im_start|><|im_end|>", "<|endoftext|> <|endoftext|>", "< |im_start|>", "<|im_<|im_end|>start|>",
    "<think", "</think>>", "<tool_call>{\"name\": \"f\"}</tool_call>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "\ufffd\ufffe\uffff", "\U0010ffff\U0001fffe", "\u05d0\u0305\u05b0\u0591", "\u093c\u0930\u093c", "\u0b47\u0b3e\u0b56",
    "\u09c7\u09be\u09d7", "\U00011935\U00011930", "\U00011347\U0001133e\U00011357", "\u0f71\u0f72\u0f74\u0f39",
]
MARKS = [c for c in range(0x110000) if unicodedata.combining(chr(c))]


def any_code_point(rng):
    while True:
        c = rng.randrange(0x110000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def word_in(rng, script, most):
    return "".join(chr(rng.randint(*script)) for _ in range(rng.randint(1, most)))


def piece(rng):
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(PHRASES)
    if kind < 6:
        return word_in(rng, rng.choice(SCRIPTS), 12)
    if kind == 6:
        return rng.choice(BLANKS) * rng.randint(1, 4)
    if kind == 7:
        return rng.choice([" ", "\n", "a", "=", "é", "好", "\t", "\r\n", "1", "👍"]) * rng.randint(1, 60)
    if kind == 8:
        return chr(rng.choice([0x41, 0x65, 0x6F, 0x3B1, 0x915, 0x1100, 0xAC00, 0x11935])) + "".join(
            chr(rng.choice(MARKS)) for _ in range(rng.randint(1, 6)))
    if kind == 9:
        return "".join(any_code_point(rng) for _ in range(rng.randint(1, 8)))
    if kind == 10:
        phrase = rng.choice(PHRASES)
        at = rng.randrange(len(phrase))
        return phrase[:at] + rng.choice(BLANKS + ["'", "|", "<", "\u0301"]) + phrase[at:]
    return rng.choice("'`-_.,:;!?()[]{}<>|\\/\"") + word_in(rng, (0x61, 0x7A), 8)


def generated_texts(count, seed=SEED):
    rng = random.Random(seed)
    texts = ["", *PHRASES, *BLANKS]
    while len(texts) < count:
        texts.append("".join(piece(rng) for _ in range(rng.randint(1, 8))))
    return texts


def every_code_point():
    """Every code point once between letters and once between blanks."""
    texts = []
    for start in range(0, 0x110000, 64):
        chars = [chr(c) for c in range(start, start + 64) if not 0xD800 <= c < 0xE000]
        texts.append("".join("a" + c + "1 " + c + "\n" for c in chars))
    return [text for text in texts if text]


def combining_orders():
    """Every character that reorders before and behind one of each class, and every canonical decomposition in parts."""
    of_class = {}
    for c in MARKS:
        of_class.setdefault(unicodedata.combining(chr(c)), chr(c))
    texts = ["".join(f"x{chr(c)}{r}y{r}{chr(c)}" for r in of_class.values()) for c in MARKS]
    decomposed = [unicodedata.normalize("NFD", chr(c)) for c in range(0xA0, 0x110000) if not 0xAC00 <= c < 0xE000]
    texts += [text + " " + "\u0323".join(text) for text in decomposed if len(text) > 1]
    texts += [chr(leading) + chr(vowel) + chr(trailing) for leading in range(0x1100, 0x1114, 3)
              for vowel in range(0x1160, 0x1178) for trailing in (0x11A6, 0x11A7, 0x11A8, 0x11B3, 0x11C2, 0x11C3)]
    return texts


def assert_same_ids(folder, reference, texts, parse_special=True):
    reference.encode_special_tokens = not parse_special
    answers = drive(folder, [{"op": "encode", "text": text, "parse_special": parse_special} for text in texts])
    assert len(answers) == len(texts), answers[-1:]
    expected = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    reference.encode_special_tokens = False
    wrong = [(text, answer, ids) for text, answer, ids in zip(texts, answers, expected) if answer.get("ids") != ids]
    assert not wrong, f"{len(wrong)} of {len(texts)} differ; first: {wrong[0]!r}"
    return expected


def assert_same_text(folder, reference, sequences):
    for skip_special in (False, True):
        expected = reference.decode_batch(sequences, skip_special_tokens=skip_special)
        decoded = drive(folder, [{"op": "decode", "ids": ids, "skip_special": skip_special} for ids in sequences])
        wrong = [(ids, a, e) for ids, a, e in zip(sequences, decoded, expected, strict=True) if a.get("text") != e]
        assert not wrong, f"{len(wrong)} of {len(sequences)} differ; first: {wrong[0]!r}"
        streamed = drive(folder, [{"op": "stream", "ids": ids, "skip_special": skip_special} for ids in sequences])
        # A piece that is not UTF-8 would have no JSON form.
        assert all("".join(a["pieces"]) == e for a, e in zip(streamed, expected, strict=True))


@pytest.fixture(params=["testdata/tokenizers/qwen3", "models/demo"], scope="module")
def model(request):
    folder = folder_of(request.param)
    return folder, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_generated_text_gives_the_same_ids_and_comes_back(model):
    folder, reference = model
    texts = generated_texts(50_000)
    ids = assert_same_ids(folder, reference, texts)
    decoded = [answer["text"] for answer in drive(folder, [{"op": "decode", "ids": i} for i in ids])]
    assert decoded == reference.decode_batch(ids, skip_special_tokens=False)
    # What stands between added tokens is normalized on its own; without any, the whole text comes back normalized.
    plain = [(text, back) for text, back in zip(texts, decoded, strict=True) if "<" not in text]
    assert len(plain) > len(texts) / 3
    for text, back in plain:
        assert back == reference.normalizer.normalize_str(text)


def test_special_tokens_can_be_taken_as_ordinary_text(model):
    assert_same_ids(*model, generated_texts(5_000, SEED + 1), parse_special=False)


def test_every_code_point_gives_the_same_ids(model):
    assert_same_ids(*model, every_code_point())


def test_every_order_of_combining_characters_gives_the_same_ids(model):
    assert_same_ids(*model, combining_orders())


def test_long_runs_give_the_same_ids(model):
    runs = [" " * 100_000 + "x", "\n" * 50_000, " \n" * 50_000 + " x", "a" * 100_000, "=-" * 50_000, "1" * 20_000,
            "e" + "\u0301\u0323" * 20_000, "好" * 30_000, "👍" * 20_000, "<|im_start|>" * 5_000, "<|im_start" * 5_000]
    assert_same_ids(*model, runs)


def test_any_ids_decode_and_stream_to_the_same_text(model):
    folder, reference = model
    rng = random.Random(SEED + 2)
    size = reference.get_vocab_size()
    short = [i for i in range(size) if len(reference.id_to_token(i) or "") == 1]
    sequences = [[rng.choice((rng.randrange(size), rng.choice(short), rng.randrange(size - 30, size + 300)))
                  for _ in range(rng.randint(0, 24))] for _ in range(10_000)]
    assert_same_text(folder, reference, sequences)


def test_every_id_has_the_same_text(model):
    folder, reference = model
    size = reference.get_vocab_size()
    answers = drive(folder, [{"op": "token", "id": i} for i in range(size + 300)])
    assert [a["text"] for a in answers] == [reference.id_to_token(i) for i in range(size + 300)]
    special = {i for i, token in reference.get_added_tokens_decoder().items() if token.special}
    assert {i for i, a in enumerate(answers) if a["special"]} == special
    assert drive(folder, [{"op": "describe"}])[0]["vocab_size"] == size


def test_invalid_utf8_is_refused_with_its_offset(model):
    folder, _ = model
    cases = {"ff": 0, "61c3": 1, "6162eda080": 2, "c080": 0, "f4908080": 0, "e28282e282": 3}
    for answer, offset in zip(drive(folder, [{"op": "encode", "hex": h} for h in cases]), cases.values(), strict=True):
        assert answer["error"]["code"] == "bad_request" and f"at byte {offset} " in answer["error"]["what"]


# Small files: what the published one does not use.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")
CATEGORY_PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": "Isolated", "invert": False}


def add_tokens(file, *tokens):
    """Gives each (text, flags...) the id that it has in the vocabulary, or the next one."""
    vocabulary, next_id = file["model"]["vocab"], len(file["model"]["vocab"])
    for content, *flags in tokens:
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        token_id = vocabulary.get(content, next_id)
        next_id += token_id == next_id
        file["added_tokens"].append({"id": token_id, "content": content, **{name: name in flags for name in names}})


@pytest.fixture(scope="module")
def small_file():
    """A trained tokenizer.json of 1,000 entries as a tree."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer = tokenizers.normalizers.NFC()
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trained.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(generated_texts(3000, SEED + 3), trainer)
    return json.loads(trained.to_str())


VARIANTS = {
    "ByteLevelPattern": lambda f: None,
    "NoNormalizer": lambda f: f.update(normalizer=None),
    "NormalizerSequence": lambda f: f.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
    "QwenPattern": lambda f: f.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split(QWEN_PATTERN), BYTE_LEVEL]}),
    "PatternByCategory": lambda f: f.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split(CATEGORY_PATTERN), BYTE_LEVEL]}),
    "SeveralStages": lambda f: f.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        split(r"\p{N}{1,3}"), split("e.", "String"), split(r"\s+\S"), {**BYTE_LEVEL, "use_regex": True}]}),
    "NoPattern": lambda f: f.update(pre_tokenizer=BYTE_LEVEL),
    "MergesAsText": lambda f: f["model"].update(merges=["#version: 0.2", *(" ".join(m) for m in f["model"]["merges"])]),
    "MergeTwice": lambda f: f["model"].update(merges=f["model"]["merges"] + f["model"]["merges"][:50]),
    "MergesReversed": lambda f: f["model"].update(merges=f["model"]["merges"][::-1]),
    "IgnoreMerges": lambda f: f["model"].update(ignore_merges=True, merges=f["model"]["merges"][::-1]),
    "TemplateWithoutTokens": lambda f: f.update(post_processor={"type": "TemplateProcessing", "single": [
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}}),
    "StrippingTokens": lambda f: add_tokens(
        f, ("the", "lstrip"), ("<|im_start|>", "rstrip", "special"), (" ",), ("e", "lstrip", "rstrip"), ("  a",)),
    "OverlappingTokens": lambda f: add_tokens(
        f, ("<|im", "special"), ("<|im_start|>",), ("im_end|>",), ("|>", "special")),
    "NormalizedTokens": lambda f: add_tokens(
        f, ("e\u0301", "normalized"), ("\u0301 ",), ("\u1ec7t", "normalized", "special"), ("é x", "normalized")),
    "TokensOutsideTheAlphabet": lambda f: add_tokens(f, ("é",), ("好",), ("a b",), ("\x7f",), ("Ġ",)),
    "SpecialTokenOfTheVocabulary": lambda f: add_tokens(f, ("e", "special"), ("Ġt",)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_of_the_format_agrees(name, small_file, tmp_path):
    file = json.loads(json.dumps(small_file))
    VARIANTS[name](file)
    (tmp_path / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
    reference = tokenizers.Tokenizer.from_str(json.dumps(file))
    for parse_special in (True, False):
        ids = assert_same_ids(tmp_path, reference, generated_texts(2_000, SEED + 4), parse_special)
    rng = random.Random(SEED + 5)
    assert_same_text(tmp_path, reference, ids[:200] + [[rng.randrange(1010) for _ in range(12)] for _ in range(500)])


@pytest.mark.parametrize("class_name", ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", r"\s"])
def test_class_holds_the_same_code_points(class_name, small_file, tmp_path):
    pattern = class_name if class_name.startswith("\\") else f"\\p{{{class_name}}}"
    file = json.loads(json.dumps(small_file))
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split(f"{pattern}+"), BYTE_LEVEL]}
    # "e" merges with every byte behind it, so the ids show whether the pattern splits between "e" and a character.
    vocabulary = {token: i for token, i in file["model"]["vocab"].items() if len(token) == 1}
    alphabet = sorted(vocabulary, key=vocabulary.get)
    for byte in alphabet:
        vocabulary["e" + byte] = len(vocabulary)
    file["model"].update(vocab={t: i for i, t in enumerate(vocabulary)}, merges=[["e", byte] for byte in alphabet])
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    reference = tokenizers.Tokenizer.from_str(json.dumps(file))
    texts = ["".join("e" + chr(c) for c in range(start, start + 256) if not 0xD800 <= c < 0xE000)
             for start in range(0, 0x110000, 256)]
    assert_same_ids(tmp_path, reference, [text for text in texts if text])
