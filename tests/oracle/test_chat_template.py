# SPDX-License-Identifier: Apache-2.0
# Chat templates against jinja2 as transformers sets it up, live: the same text for every conversation, and what the one
# refuses the other refuses. Needs the executable template_cli of the build folder named by QUERN_BUILD (default
# build/release).
import functools
import json
import os
import pathlib
import random
import re
import subprocess

import pytest

pytest.importorskip("jinja2")

from template_constructs import requests  # noqa: E402
from template_conversations import CONVERSATIONS, ODD_CONVERSATIONS, SETTINGS, USER  # noqa: E402
from template_reference import ByJinja2, ByTransformers, text_or_none  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLI = ROOT / os.environ.get("QUERN_BUILD", "build/release") / "template_cli"
FOLDER = ROOT / "testdata" / "chat_templates"
SEED = 20261
TOKENIZERS = ROOT / "testdata" / "tokenizers"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
TEMPLATES["tokenizers_qwen3"] = json.loads((TOKENIZERS / "qwen3" / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]


def drive(requests_):
    """The answers of the executable, one per request."""
    if not CLI.exists():
        pytest.skip(f"{CLI.name} is not built")
    lines = "".join(json.dumps(request) + "\n" for request in requests_)
    done = subprocess.run([CLI], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    assert len(answers) == len(requests_)
    return answers


def grid(template):
    return [{"template": template, "messages": messages, **settings}
            for messages in (CONVERSATIONS | ODD_CONVERSATIONS).values() for settings in SETTINGS.values()]


def assert_same(reference, requests_):
    """The texts of the oracle; None where it refuses, and then quern has to, too."""
    expected = [text_or_none(reference, request) for request in requests_]
    wrong = [(request, text, answer) for request, text, answer in zip(requests_, expected, drive(requests_), strict=True)
             if answer.get("text") != text]
    assert not wrong, f"{len(wrong)} of {len(requests_)} differ; first: {wrong[0]!r}"
    return expected


@pytest.fixture(scope="module")
def jinja():
    return ByJinja2()


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_conversation_gives_the_same_text(name, jinja):
    expected = assert_same(jinja, grid(TEMPLATES[name]))
    assert sum(text is not None for text in expected) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_conversation_gives_the_text_of_transformers(name):
    pytest.importorskip("transformers")
    assert_same(ByTransformers(), grid(TEMPLATES[name]))


@pytest.mark.slow
def test_a_folder_gives_the_text_of_apply_chat_template():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / "qwen3", local_files_only=True)
    requests_ = [{**request, "folder": str(TOKENIZERS / "qwen3")} for request in grid(TEMPLATES["tokenizers_qwen3"])]

    def apply(request):
        names = {key: request[key] for key in ("tools", "add_generation_prompt", "enable_thinking") if key in request}
        return tokenizer.apply_chat_template(request["messages"], tokenize=False, **names, **request.get("variables", {}))

    class Reference:
        def __call__(self, request):
            from template_reference import checked
            return checked(lambda: apply(request))

    assert_same(Reference(), requests_)


@pytest.mark.parametrize("reference", [ByJinja2, pytest.param(ByTransformers, marks=pytest.mark.slow)])
def test_constructs_give_the_same_text_and_the_stored_one(reference):
    if reference is ByTransformers:
        pytest.importorskip("transformers")
    stored = json.loads((FOLDER / "constructs.json").read_text(encoding="utf-8"))
    cases = list(requests())
    assert [case["name"] for case in stored["cases"]] == [name.rstrip("?") for name, _, _ in cases]
    oracle, wrong = reference(), []
    for (name, template, request), answer, case in zip(cases, drive([c[2] for c in cases]), stored["cases"], strict=True):
        text = None if name.endswith("?") else text_or_none(oracle, request)
        assert (case["template"], case["text"]) == (template, text), f"{name}: constructs.json is not current"
        if answer.get("text") != text:
            wrong.append((name, text, answer))
    assert not wrong, f"{len(wrong)} differ: {wrong!r}"


def test_today_is_the_oracles_today(jinja):
    form = "%Y-%m-%d %d %b %Y %A %% é"
    request = {"template": "{{ strftime_now('" + form + "') }}{{ strftime_now('') }}", "messages": [USER]}
    before = jinja(request)
    [answer] = drive([request])
    assert answer["text"] in (before, jinja(request))


# What a template is made of, and something else in its place. The first group is the part that is replaced.
MUTATIONS = {
    "OutputTakesBlanksInFront": (r"(\{\{-)", "{{"),
    "TagTakesBlanksBehind": (r"(-%\})", "%}"),
    "TagTakesBlanksInFront": (r"\n *(\{%-) (?:if|for|set)", "{%+"),
    "If": (r"\{%-? (if) ", "if not "),
    "Elif": (r"\{%-? (elif) ", "elif not "),
    "Else": (r"\{%-? (else) -?%\}", "elif false"),
    "ElseOfExpression": (r" (else) (?!-?%\})", "if false else none if true else "),
    "IfOfExpression": (r"(?<!%-)(?<!%)(?<!el) (if) [a-z_]", "if not "),
    "ForElements": (r"\{%-? for \w+ in (\w+)", "[]"),
    "ForUnpacking": (r"\{%-? for (\w+, \w+) in", "k"),
    "Set": (r"\{%-? set \w+ (= )", "= '' and "),
    "NamespaceWrite": (r"\{%-? set (\w+\.)\w+ =", "nowhere."),
    "NamespaceRead": (r"[ (](ns)\.\w+", "none"),
    "NamespaceMade": (r"(namespace\(value=0\))", "{'value': 0}"),
    "Macro": (r"\{%-? macro [^%]*%\}()", "more"),
    "MacroParameter": (r"\{%-? macro \w+\((\w+)", "unused"),
    "MacroDefault": (r"\{%-? macro [^%]*(=false)", "=true"),
    "MacroArgument": (r"render_content\(message\.content(, true)", ", false"),
    "Equal": (r" (==) ", "!="),
    "NotEqual": (r" (!=) ", "=="),
    "Greater": (r" (>) ", "<="),
    "And": (r" (and) ", "or"),
    "Or": (r" (or) ", "and"),
    "Not": (r" (not ?)[ (a-z]", ""),
    "In": (r" (in) (?:item|content|message\.content)", "not in"),
    "NotIn": (r" (not in) ", "in"),
    "Plus": (r" (\+) ", "-"),
    "Minus": (r" (-) ", "+"),
    "Join": (r" (~) ", "and"),
    "Slice": (r"(\[1:\])", "[:1]"),
    "SliceStep": (r"(\[::-1\])", "[::1]"),
    "FirstElement": (r"(\[0\])", "[-1]"),
    "LastElement": (r"(\[-1\])", "[0]"),
    "Attribute": (r"\.(role)", "rule"),
    "AttributeInBrackets": (r"(\[['\"]role['\"]\])", "['rule']"),
    "LoopFirst": (r"(loop\.first)", "loop.last"),
    "LoopLast": (r"(loop\.last)", "loop.first"),
    "LoopIndex0": (r"(loop\.index0)", "loop.index"),
    "LoopPrevious": (r"(loop\.previtem)", "loop.nextitem"),
    "LoopNext": (r"(loop\.nextitem)", "loop.previtem"),
    "TestString": (r"is (string)", "mapping"),
    "TestMapping": (r"is (?:not )?(mapping)", "string"),
    "TestDefined": (r"is (?:not )?(defined)", "undefined"),
    "TestUndefined": (r"is (undefined)", "defined"),
    "TestNone": (r"is (?:not )?(none)", "string"),
    "TestIterable": (r"is (iterable)", "number"),
    "TestSequence": (r"is (sequence)", "boolean"),
    "TestTrue": (r"is (true)", "false"),
    "TestFalse": (r"is (false)", "true"),
    "FilterTojson": (r"\| ?(tojson)", "string"),
    "FilterTrim": (r"\| ?(trim)", "length"),
    "FilterLength": (r"\| ?(length)", "first"),
    "FilterItems": (r"\| ?(items)", "list"),
    "FilterString": (r"\| ?(string)", "tojson"),
    "FilterSafe": (r"\| ?(safe)", "length"),
    "FilterDefault": (r"\| ?(default)\(", "trim"),
    "MethodSplit": (r"\.(split)\(", "lstrip"),
    "MethodStrip": (r"\.(strip)\(", "lstrip"),
    "MethodLstrip": (r"\.(lstrip)\(", "rstrip"),
    "MethodRstrip": (r"\.(rstrip\([^)]*\))", "upper()"),  # what follows takes the blanks, too
    "MethodStartswith": (r"\.(startswith)\(", "endswith"),
    "MethodEndswith": (r"\.(endswith)\(", "startswith"),
    "RaiseException": (r"(raise_exception)\(", "strftime_now"),
    "List": (r"= (\['name', 'type', 'description'\])", "['name']"),
    "Tuple": (r"in (\('xhigh', 'medium', 'low'\))", "('xhigh',)"),
    "StringEscape": (r"'[^'\n]*(\\n)[^'\n]*'", r"\t"),
    "String": (r"(<\|im_start\|>)", "<|im_begin|>"),
    "Number": (r" (1) ", "2"),
    "TrueConstant": (r"= ?(true)", "false"),
    "FalseConstant": (r"= (false)", "true"),
}
# Together they use all that the others do.
MUTATED = ["qwen3_8", "qwen3_5_think", "qwen3_coder", "qwen3_vl", "tokenizers_qwen3", "qwen2_5"]


def mutants(template, pattern, replacement):
    for match in re.finditer(pattern, template):
        group = next(i for i in range(1, match.re.groups + 1) if match.group(i) is not None)
        yield template[:match.start(group)] + replacement + template[match.end(group):]


def conversations_for_mutants(template):
    chosen = [{"template": template, "messages": messages, "add_generation_prompt": True} for messages in (CONVERSATIONS | ODD_CONVERSATIONS).values()]
    settings = [{"template": template, "messages": CONVERSATIONS[name], **settings} for settings in SETTINGS.values()
                for name in ("ReasoningThenTools", "Turns")]
    images = [{"template": template, "messages": ODD_CONVERSATIONS[name], "variables": {"add_vision_id": True}} for name in ("Parts", "Video")]
    return chosen + settings + images


@functools.cache
def unchanged(name):
    """The texts of the template itself."""
    return [answer.get("text") for answer in drive(conversations_for_mutants(TEMPLATES[name]))]


def is_noticed(jinja, name, mutant):
    """Whether a conversation tells the mutant from the template. Both engines agree on it, or quern refuses what it lacks; that
    is seen before any conversation, and tells nothing."""
    requests_ = conversations_for_mutants(mutant)
    noticed = False
    for request, answer, text in zip(requests_, drive(requests_), unchanged(name), strict=True):
        if answer.get("loading") or "not supported" in answer.get("error", {}).get("what", ""):
            continue
        assert answer.get("text") == text_or_none(jinja, request), (name, request, answer)
        noticed = noticed or answer.get("text") != text
    return noticed


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_of_each_construct_is_noticed(mutation, jinja):
    all_mutants = ((name, mutant) for name in MUTATED for mutant in mutants(TEMPLATES[name], *MUTATIONS[mutation]))
    assert any(is_noticed(jinja, name, mutant) for name, mutant in all_mutants)


@pytest.mark.slow
def test_mutants_render_alike_or_are_refused(jinja):
    every = [(name, mutant) for name in MUTATED for rule in MUTATIONS.values() for mutant in mutants(TEMPLATES[name], *rule)]
    for name, mutant in random.Random(SEED).sample(every, 100):
        is_noticed(jinja, name, mutant)
