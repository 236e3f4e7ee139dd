# SPDX-License-Identifier: Apache-2.0
"""What a model's generation settings and a caller's options come to, by the rule of docs/formats.md: the same on the command
line, in Python and in C."""
import json

import pytest

import quern as module

pytestmark = pytest.mark.module

IDS = [3, 4]
# Only the best token is as likely as the best token: with such a min_p every choice is the greedy one, if it is kept.
BEST_ALONE = {"do_sample": True, "temperature": 5.0, "min_p": 1.0}
OWN = {"temperature": 5.0, "top_k": 0, "top_p": 1.0}
FLAGS = {"temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p"}


@pytest.fixture
def with_settings(demo, tmp_path):
    def make(settings):
        for file in (demo.parent / "demo-qwen4").iterdir():
            if file.name != "generation_config.json" and not (tmp_path / file.name).exists():
                (tmp_path / file.name).symlink_to(file)
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2045, **settings}))
        return tmp_path
    return make


def flags(options):
    return [word for name, value in options.items() for word in (FLAGS[name], str(value))]


@pytest.fixture(params=["command line", "python"])
def generate(request, quern):
    """ids of a folder and options; raises quern.Error's code as a string."""
    def on_the_command_line(folder, options):
        arguments = ["run", folder, "--prompt-ids", "3,4", "-n", "12", "--seed", "5", *flags(options)]
        done = quern(*arguments, "--json")
        if done.returncode != 0:
            return {4: "unsupported"}.get(done.returncode, done.stderr.decode()), done.stderr.decode()
        return json.loads(done.stdout)["token_ids"], ""

    def in_python(folder, options):
        try:
            return module.LLM(folder, threads=2).generate(IDS, max_tokens=12, seed=5, **options).token_ids, ""
        except module.Error as error:
            return error.code, str(error)
    return on_the_command_line if request.param == "command line" else in_python


@pytest.mark.parametrize("options", [{}, {"temperature": 4.0}, {"temperature": 4.0, "top_k": 0}, OWN])
def test_what_a_caller_does_not_give_is_as_the_file_says(with_settings, generate, options):
    folder = with_settings(BEST_ALONE)
    greedy = module.LLM(folder, threads=2).generate(IDS, max_tokens=12, greedy=True).token_ids
    assert generate(folder, options)[0] == greedy
    assert generate(folder, {**OWN, "min_p": 0.0})[0] != greedy


def test_settings_that_are_not_supported_are_refused_unless_the_caller_says_how_to_choose(with_settings, generate):
    folder = with_settings({"do_sample": True, "num_beams": 4})
    for options in ({}, {"temperature": 5.0}, {"temperature": 5.0, "top_k": 0}, {"min_p": 0.5}):
        code, text = generate(folder, options)
        assert code == "unsupported" and "num_beams 4" in text
    plain = with_settings({"do_sample": True})
    expected = generate(plain, OWN)[0]
    assert len(expected) > 0
    assert generate(with_settings({"do_sample": True, "num_beams": 4}), OWN)[0] == expected
