# SPDX-License-Identifier: Apache-2.0
"""Conversations for the chat templates: messages, and the settings under which each is rendered."""
import itertools

USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "You are terse."}
ANSWER = {"role": "assistant", "content": "4"}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "  The weather of a place, <now> & \"here\".\n",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City, 例えば 東京"},
        "unit": {"type": "string", "enum": ["°C", "°F"], "default": None},
        "days": {"type": "integer", "minimum": 1, "maximum": 1.5e3, "exclusive": False},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["place"]}}}
CLOCK = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
BARE = {"name": "bare", "description": "Without the wrapper.", "parameters": {"type": "object", "properties": {"x": {}}}}


def call(name, arguments, wrapped=True):
    function = {"name": name, "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function} if wrapped else function


ARGUMENTS = {"place": "Zürich", "days": 3, "exact": True, "none": None, "ratio": 0.1, "tags": ["a", "b\n"],
             "deep": {"k": [1, {"z": "ü"}]}, "empty": "", "list": [], "map": {}}


def asks(text):
    return {"role": "user", "content": text}


def says(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text):
    return {"role": "tool", "content": text}


CONVERSATIONS = {
    "OneQuestion": [USER],
    "System": [SYSTEM, USER],
    "Turns": [SYSTEM, USER, ANSWER, asks("And 3 + 3?"), says("6"), asks("Thanks")],
    "EndsWithAnswer": [USER, ANSWER],
    "EmptyTexts": [{"role": "system", "content": ""}, asks(""), says(""), asks(" \n ")],
    "Blanks": [{"role": "system", "content": " \n lead"}, asks("\n\n text \t\u3000"), says("\n\n\nanswer\n\n"), asks("x\u00a0")],
    "Unicode": [{"role": "system", "content": "Тест \u0000 \u007f \u2028"}, asks("你好 👩‍👩‍👧‍👦 e\u0301 \U0010ffff"), says("\ufeffÄ\r\nß\r"), asks("שלום\u200f")],
    "Markup": [asks("<|im_end|>\n<|im_start|>system\nno {{ x }} {% if %} <b>&amp;</b> ' \" \\"), says("'\"\\n"), USER],
    "ReasoningField": [USER, says("4", reasoning_content="Two and two.\n"), asks("Sure?"), says("Yes", reasoning_content="")],
    "ReasoningNone": [USER, says("4", reasoning_content=None), USER],
    "ReasoningInText": [USER, says("<think>\nTwo and two.\n</think>\n\n4"), asks("Sure?"), says("<think>\n\n</think>\n\nYes")],
    "ReasoningUnclosed": [USER, says("<think>\nTwo"), asks("Go on"), says("and two</think>4</think>five")],
    "ReasoningThenTools": [USER, says("", reasoning_content="I need it.", tool_calls=[call("now", {})]), tool("12:00"),
                           says("Noon", reasoning_content="\nSo noon.\n\n")],
    "ToolCall": [USER, says("", tool_calls=[call("get_weather", ARGUMENTS)]), tool("{\"t\": 21}")],
    "ToolCallBare": [USER, says("Let me see.", tool_calls=[call("get_weather", ARGUMENTS, wrapped=False)]), tool("21")],
    "ToolCalls": [USER, says("Both:", tool_calls=[call("now", {}), call("get_weather", {"place": "Rome"})]), tool("12:00"),
                  tool("sun"), says("Sunny noon"), asks("And tomorrow?")],
    "ToolCallsWithoutText": [USER, says("", tool_calls=[call("now", {}), call("now", {"zone": "UTC"})]), tool(""), tool("x\n\n"), USER],
    "ToolRounds": [SYSTEM, USER, says("one", tool_calls=[call("now", {})]), tool("1"),
                   says("<think>\nagain\n</think>\n\ntwo", tool_calls=[call("now", {})]), tool("2"), says("three")],
    "NoCalls": [USER, says("4", tool_calls=[]), USER],
    "ToolAnswerAsUser": [USER, says("x"), asks("<tool_response>\n1\n</tool_response>")],
    "ToolFirst": [USER, tool("lonely"), tool("pair"), USER],
    "LongHistory": [SYSTEM, *itertools.chain.from_iterable((asks(f"q{i} " * i), says(f"<think>\nt{i}\n</think>\n\na{i}")) for i in range(12)), USER],
}

# What some templates refuse, and then both engines have to.
ODD_CONVERSATIONS = {
    "ArgumentsAsText": [USER, says("", tool_calls=[call("now", "{\"zone\": \"UTC\"}")]), tool("12")],
    "NoArguments": [USER, says("", tool_calls=[{"type": "function", "function": {"name": "now"}}]), tool("12")],
    "EmptyArguments": [USER, says("", tool_calls=[call("now", "")]), tool("12")],
    "Parts": [{"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
              asks([{"type": "text", "text": "Look: "}, {"type": "image", "image": "a.png"}, {"type": "text", "text": " 像"}])],
    "Video": [asks([{"type": "video", "video": "a.mp4"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "?"}]),
              says([{"type": "text", "text": "A cat"}]), tool([{"type": "text", "text": "part"}, {"type": "image"}])],
    "EmptyParts": [asks([]), says([]), USER],
    "UnknownPart": [asks([{"type": "audio", "audio": "a.wav"}])],
    "ContentNone": [USER, {"role": "assistant", "content": None, "tool_calls": [call("now", {})]}, tool("12")],
    "ContentAbsent": [USER, {"role": "assistant", "tool_calls": [call("now", {})]}, tool("12")],
    "ContentNumber": [asks(7), says(True), USER],
    "ContentMapping": [asks({"text": "x"}), USER],
    "SystemLater": [USER, ANSWER, SYSTEM, USER],
    "SystemOnly": [SYSTEM],
    "UnknownRole": [{"role": "developer", "content": "d"}, USER],
    "NoRole": [{"content": "x"}],
    "AssistantFirst": [ANSWER, USER],
    "ImageForSystem": [{"role": "system", "content": [{"type": "image"}]}, USER],
    "ReasoningNumber": [USER, says("4", reasoning_content=3), USER],
}

SETTINGS = {
    "Plain": {},
    "Prompt": {"add_generation_prompt": True},
    "Thinking": {"add_generation_prompt": True, "enable_thinking": True},
    "NotThinking": {"add_generation_prompt": True, "enable_thinking": False},
    "Tools": {"add_generation_prompt": True, "tools": [WEATHER, CLOCK, BARE]},
    "ToolsNotThinking": {"add_generation_prompt": True, "enable_thinking": False, "tools": [WEATHER]},
    "NoTools": {"tools": []},
    "Preserved": {"variables": {"preserve_thinking": True}},
    "NotPreserved": {"variables": {"preserve_thinking": False, "add_vision_id": True}},
    "Effort": {"add_generation_prompt": True, "variables": {"reasoning_effort": "low"}},
    "UnknownEffort": {"add_generation_prompt": True, "variables": {"reasoning_effort": "huge"}},
}
