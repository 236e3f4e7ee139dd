# SPDX-License-Identifier: Apache-2.0
"""Sampling against transformers, live: the ids that may come out and how often they do, for the processors that its
generation configuration builds, in the order in which it builds them; and where stop strings end a text.

Presence and frequency penalties, which transformers does not have, are given to it as the sequence bias that they amount to
for the history at hand, behind the repetition penalty.
"""
import json
import os
import subprocess

import numpy as np
import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import quern  # noqa: E402

BUILD = ROOT / os.environ.get("QUERN_BUILD", "build/release")
VOCAB = 48
DRAWS = 20000
# A correct sampler fails with this probability, once for each seed that is ever chosen: seeds are fixed.
SIGNIFICANCE = 1e-6
PROMPT, GENERATED = [3, 3, 7, 11, 40], [7, 5, 5, 5, 21, 40]

CASES = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.08},
    "min_p_of_one": {"min_p": 1.0},
    "qwen3": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "all_limits": {"temperature": 1.4, "top_k": 15, "top_p": 0.9, "min_p": 0.05},
    "hot_min_p": {"temperature": 3.0, "top_p": 0.95, "min_p": 0.3},
    "repetition": {"repetition_penalty": 1.7},
    "repetition_below_one": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "negative_penalties": {"presence_penalty": -0.8, "frequency_penalty": -0.3},
    "all_penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.9, "frequency_penalty": 0.4},
    "bias": {"logit_bias": {0: 3.0, 5: -2.0, 47: 1.5}},
    "bias_and_repetition": {"logit_bias": {5: 4.0, 7: -6.0, 11: 2.5}, "repetition_penalty": 2.0},
    "banned": {"logit_bias": {3: float("-inf"), 30: float("-inf")}, "top_k": 5},
    "masked": {"masked": [2, 9, 47], "top_k": 9},
    "everything": {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "presence_penalty": 0.5,
                   "frequency_penalty": 0.2, "logit_bias": {1: 2.0, 7: -1.0}, "masked": [4, 6]},
}


def draw(logits, case, **options):
    """{id: times}, or the error."""
    case = {"logit_bias": {}, "masked": [], "seed": 17, **case, **options}
    bias = {str(i): None if x == float("-inf") else x for i, x in case.pop("logit_bias").items()}
    request = {"logits": [float(x) for x in logits], "prompt": case.pop("prompt", PROMPT), "generated": case.pop("generated", GENERATED),
               "masked": case.pop("masked"), "draws": case.pop("draws", DRAWS), "options": {**case, "logit_bias": bias}}
    done = subprocess.run([BUILD / "sampler_cli"], input=json.dumps(request) + "\n", check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    return {int(i): n for i, n in answer["counts"].items()} if "counts" in answer else answer["error"]


class Generator(transformers.GenerationMixin):
    config = transformers.Qwen3Config()


def processors(case, do_sample=True):
    """The list that transformers makes of a generation configuration."""
    known = {k: case[k] for k in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty") if k in case}
    if not do_sample:
        known.pop("temperature", None)
    bias, masked = case.get("logit_bias", {}), case.get("masked", [])
    config = transformers.GenerationConfig(
        do_sample=do_sample, **{"top_k": 0, **known}, sequence_bias={(i,): x for i, x in bias.items()} or None,
        suppress_tokens=masked or None)
    made = Generator()._get_logits_processor(config, input_ids_seq_length=len(PROMPT + GENERATED), device="cpu")
    times = {i: GENERATED.count(i) for i in set(GENERATED)}
    penalties = {(i,): -(case.get("presence_penalty", 0.0) + n * case.get("frequency_penalty", 0.0)) for i, n in times.items()}
    if any(penalties.values()):
        kinds = [type(p).__name__ for p in made]
        behind = max((kinds.index(k) + 1 for k in ("SequenceBiasLogitsProcessor", "RepetitionPenaltyLogitsProcessor") if k in kinds), default=0)
        made.insert(behind, transformers.SequenceBiasLogitsProcessor(sequence_bias=penalties))
    return made


def processed(logits, case, **kwargs):
    ids, scores = torch.tensor([PROMPT + GENERATED]), torch.tensor(logits)[None].float()
    return processors(case, **kwargs)(ids, scores)[0]


def logits_of(seed):
    return np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_ids_come_out_as_often_as_transformers_says(name):
    logits = logits_of(sorted(CASES).index(name))
    expected = torch.softmax(processed(logits, CASES[name]).double(), dim=-1).numpy()
    counts = draw(logits, CASES[name])
    assert set(counts) <= set(np.flatnonzero(expected)), "ids that transformers leaves out"
    # Pearson's test; ids that are expected less than five times are taken together.
    often = np.flatnonzero(expected * DRAWS >= 5)
    bins = [(counts.get(i, 0), expected[i] * DRAWS) for i in often]
    rest = 1 - expected[often].sum()
    if rest * DRAWS >= 5:
        bins.append((DRAWS - sum(n for n, _ in bins), rest * DRAWS))
    assert sum(n for n, _ in bins) >= DRAWS - 5 * VOCAB
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in bins)
    if len(bins) > 1:
        p = torch.special.gammaincc(torch.tensor((len(bins) - 1) / 2, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64))
        assert p > SIGNIFICANCE, f"chi-squared {statistic:.1f} with {len(bins) - 1} degrees of freedom"
    else:
        assert counts == {int(often[0]): DRAWS}


@pytest.mark.parametrize("name", CASES)
def test_greedy_is_the_best_behind_bias_and_penalties(name):
    for seed in range(40):
        logits = logits_of(1000 + seed)
        expected = int(processed(logits, CASES[name], do_sample=False).argmax())
        assert draw(logits, CASES[name], greedy=True, draws=1) == {expected: 1}


def test_history_of_the_prompt_alone_is_not_generated():
    case = {"presence_penalty": 50.0, "frequency_penalty": 50.0}
    logits = np.zeros(VOCAB, np.float32)
    logits[3] = 30  # only in the prompt
    assert draw(logits, case, draws=10) == {3: 10}
    logits[7] = 31  # in both
    assert draw(logits, case, draws=10) == {3: 10}


@pytest.mark.parametrize("options, code", [
    ({"min_p": 1.5}, "bad_request"), ({"repetition_penalty": 0.0}, "bad_request"), ({"repetition_penalty": -1.0}, "bad_request"),
    ({"logit_bias": {VOCAB: 1.0}}, "bad_request"), ({"logit_bias": {i: float("-inf") for i in range(VOCAB)}}, "bad_request"),
    ({"masked": list(range(VOCAB))}, "bad_model"),
])
def test_what_leaves_nothing_or_means_nothing_is_refused(options, code):
    assert draw(logits_of(1), options, draws=1)["code"] == code


# Generation settings of a folder -------------------------------------------------------------------------------------

# What transformers 5.17 does with them has no influence on one text, or quern carries it out.
TAKEN = {"do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "eos_token_id", "suppress_tokens", "stop_strings",
         "max_length", "max_new_tokens"}
NO_INFLUENCE = {
    "early_stopping", "length_penalty", "diversity_penalty", "renormalize_logits", "use_mtp", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "speculation_type", "compile_config", "disable_compile", "continuous_batching_config",
    "low_memory", "prefill_chunk_size", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "pad_token_id", "bos_token_id", "decoder_start_token_id", "_from_model_config", "transformers_version"}
LISTS = {"bad_words_ids": [[5, 6]], "begin_suppress_tokens": [5], "sequence_bias": [[[5], 2.0]], "exponential_decay_length_penalty": [3, 1.1],
         "constraints": [1], "force_words_ids": [[5]], "watermarking_config": {"bias": 2.0}}
FLAGS = {"remove_invalid_values", "token_healing"}


@pytest.fixture
def with_settings(tmp_path):
    def make(settings):
        for file in (ROOT / "models" / "demo-qwen4").iterdir():
            if file.name != "generation_config.json" and not (tmp_path / file.name).exists():
                (tmp_path / file.name).symlink_to(file)
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        return quern.LLM(tmp_path, threads=1)
    return make


def test_every_setting_of_transformers_is_carried_out_or_refused_by_name(with_settings):
    fields = transformers.GenerationConfig().to_dict()
    with_settings(fields).generate([3, 4], max_tokens=1)  # as silent as the library's own
    neutral = {**fields, **transformers.GenerationConfig._get_default_generation_params(), "bad_words_ids": None}
    with_settings(neutral).generate([3, 4], max_tokens=1)
    for field in sorted(set(fields) - TAKEN - {"transformers_version"}):
        model = with_settings({field: LISTS.get(field, True if field in FLAGS else 7)})
        if field in NO_INFLUENCE:
            model.generate([3, 4], max_tokens=1)
            continue
        with pytest.raises(quern.Error) as refused:
            model.generate([3, 4], max_tokens=1)
        assert refused.value.code == "unsupported" and f"generation_config.json: asks for {field} " in str(refused.value)


def test_a_top_p_of_zero_leaves_the_best_token_as_in_transformers(with_settings):
    model = with_settings({"do_sample": True, "temperature": 5.0, "top_p": 0.0})
    ids = model.generate([3, 4], max_tokens=8, stop_ids=[], seed=11).token_ids
    rows = model.logits([3, 4, *ids[:-1]])[1:]
    process = Generator()._get_logits_processor(transformers.GenerationConfig(do_sample=True, temperature=5.0, top_p=0.0),
                                                input_ids_seq_length=2, device="cpu")
    for row, id in zip(rows, ids):
        assert torch.isfinite(process(torch.tensor([[3, 4]]), torch.tensor(row)[None].float())[0]).nonzero().flatten().tolist() == [id]


@pytest.mark.parametrize("settings", [{}, {"top_k": None}, {"top_k": 0}, {"top_k": 3}])
def test_a_top_k_that_a_folder_leaves_out_is_what_transformers_fills_in(with_settings, tmp_path, settings):
    model = with_settings({"do_sample": True, "temperature": 50.0, **settings})
    generator = Generator()
    generator.generation_config = transformers.GenerationConfig.from_pretrained(tmp_path)
    config, _ = generator._prepare_generation_config(None)
    row = torch.tensor(model.logits([3, 4])[-1])[None].float()
    scores = generator._get_logits_processor(config, input_ids_seq_length=2, device="cpu")(torch.tensor([[3, 4]]), row)[0]
    allowed = set(torch.isfinite(scores).nonzero().flatten().tolist())
    drawn = {model.generate([3, 4], max_tokens=1, stop_ids=[], seed=seed).token_ids[0] for seed in range(400)}
    # As hot as this all that may come are about equally likely: a limit that differs would show.
    assert drawn <= allowed and len(drawn) > 0.9 * min(len(allowed), 100)


def test_min_p_of_a_folder_limits_as_in_transformers(with_settings):
    model = with_settings({"do_sample": True, "temperature": 2.0, "min_p": 0.3})
    process = Generator()._get_logits_processor(transformers.GenerationConfig(do_sample=True, temperature=2.0, min_p=0.3),
                                                input_ids_seq_length=2, device="cpu")
    scores = process(torch.tensor([[3, 4]]), torch.tensor(model.logits([3, 4])[-1])[None].float())[0]
    allowed = set(torch.isfinite(scores).nonzero().flatten().tolist())
    drawn = {model.generate([3, 4], max_tokens=1, stop_ids=[], seed=seed).token_ids[0] for seed in range(200)}
    assert drawn <= allowed and len(drawn) > 1


def test_suppressed_tokens_of_a_folder_never_come(with_settings):
    free = with_settings({}).generate([3, 4], max_tokens=6, stop_ids=[]).token_ids
    model = with_settings({"suppress_tokens": sorted(set(free))})
    ids = model.generate([3, 4], max_tokens=6, stop_ids=[]).token_ids
    config = transformers.GenerationConfig(suppress_tokens=sorted(set(free)))
    process = Generator()._get_logits_processor(config, input_ids_seq_length=2, device="cpu")
    rows = model.logits([3, 4, *ids[:-1]])[1:]
    assert ids == [int(process(torch.tensor([[3, 4]]), torch.tensor(row)[None].float())[0].argmax()) for row in rows]
    assert not set(ids) & set(free)


def test_stop_strings_of_a_folder_end_its_texts(with_settings):
    options = {"max_tokens": 40, "stop_ids": []}
    free = with_settings({}).generate("And it came to pass", **options)
    stop = free.text[8:12]
    model = with_settings({"stop_strings": [stop]})
    out = model.generate("And it came to pass", **options)
    assert out.finish_reason == "stop" and out.text == free.text[:free.text.index(stop)]
    assert model.generate("And it came to pass", **options, stop=["no such text"]).text == free.text


# Whole texts ---------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def demo():
    folder = ROOT / "models" / "demo"
    return quern.LLM(folder, threads=2), transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def first_stop(tokenizer, ids, stops):
    """How many of the ids transformers takes before it stops."""
    criterion = transformers.StopStringCriteria(tokenizer=tokenizer, stop_strings=stops)
    for n in range(1, len(ids) + 1):
        if bool(criterion(torch.tensor([ids[:n]]), None)[0]):
            return n
    return None


@pytest.mark.parametrize("stops", [["LORD"], ["e t", "unto"], [" of the"], ["\n"], ["d s"], ["zzz"], ["h", "he LORD said"]])
def test_stop_strings_end_a_text_where_transformers_does(demo, stops):
    model, tokenizer = demo
    for seed in range(4):
        options = {"max_tokens": 48, "temperature": 0.9, "seed": seed, "stop_ids": []}
        free = model.generate("And it came to pass", **options)
        out = model.generate("And it came to pass", **options, stop=stops)
        taken = first_stop(tokenizer, free.token_ids, stops)
        assert out.token_ids == free.token_ids[:taken]
        assert out.finish_reason == ("length" if taken is None else "stop")
        assert free.text.startswith(out.text) and not any(stop in out.text for stop in stops)
        if taken is None:
            assert out.text == free.text
        else:
            assert any(free.text.startswith(out.text + stop) for stop in stops)


def test_log_probabilities_are_those_of_the_models_logits(make_model):
    model = quern.LLM(make_model("--size", "block-fp32").parent, threads=2)
    prompt = list(range(5, 25))
    options = {"max_tokens": 12, "temperature": 1.3, "top_k": 10, "repetition_penalty": 1.4, "seed": 5, "stop_ids": []}
    out = model.generate(prompt, **options, logprobs=4)
    assert out.token_ids == model.generate(prompt, **options).token_ids and len(out.logprobs) == 12
    logits = torch.tensor(model.logits(prompt + out.token_ids[:-1])[len(prompt) - 1:]).double()
    # Prompt and token by token agree within the rounding of float sums (docs/numerics.md).
    tolerance = 2 * 2e-5 * float(logits.abs().max())
    for row, id, seen in zip(torch.log_softmax(logits, dim=-1), out.token_ids, out.logprobs):
        top = torch.topk(row, 4)
        assert seen["id"] == id and seen["log_prob"] == pytest.approx(float(row[id]), abs=tolerance)
        assert [e["log_prob"] for e in seen["top"]] == pytest.approx(top.values.tolist(), abs=tolerance)
        if float((top.values[:-1] - top.values[1:]).min()) > 2 * tolerance:
            assert [e["id"] for e in seen["top"]][:3] == top.indices.tolist()[:3]
