# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates by the oracle: jinja2 with the environment of transformers, or transformers itself."""
import json
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.sandbox


class Refused(Exception):
    """The oracle raised an error, or rendered what is not valid text."""


class Generation(jinja2.ext.Extension):
    """{% generation %}, which transformers adds to mark what the model wrote."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("unchanged"), [], [], body).set_lineno(line)

    def unchanged(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def names_of(request):
    names = {"messages": request["messages"], "tools": request.get("tools"), "documents": None,
             "add_generation_prompt": request.get("add_generation_prompt", False)}
    if "enable_thinking" in request:
        names["enable_thinking"] = request["enable_thinking"]
    return names | request.get("variables", {})


def checked(render):
    """The text of render(). Every kind of error of a template counts as a refusal."""
    try:
        text = render()
        text.encode()
    except Exception as error:  # noqa: BLE001
        raise Refused(f"{type(error).__name__}: {error}") from error
    return text


class ByJinja2:
    def __init__(self):
        self.environment, self.compiled = environment(), {}

    def render(self, request):
        source = request["template"]
        if source not in self.compiled:
            self.compiled[source] = self.environment.from_string(source)
        return self.compiled[source].render(**names_of(request))

    def __call__(self, request):
        return checked(lambda: self.render(request))


class ByTransformers:
    def __init__(self):
        from transformers.utils.chat_template_utils import render_jinja_template
        self.render = render_jinja_template

    def __call__(self, request):
        names = names_of(request)
        return checked(lambda: self.render([names.pop("messages")], chat_template=request["template"], **names)[0][0])


def text_or_none(reference, request):
    try:
        return reference(request)
    except Refused:
        return None
