# SPDX-License-Identifier: Apache-2.0
"""The Python module among other things in a process: threads, forks, other packages; and that everything is documented."""
import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

import quern

pytestmark = pytest.mark.module


@pytest.fixture(scope="module")
def model(demo):
    return quern.LLM(demo, threads=2)


def in_child(work):
    """The exit status of a child of fork() that calls `work` and must end within a minute."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def refused_by_name(call):
    try:
        call()
    except quern.Error as error:
        return error.code == "unsupported" and "fork" in str(error)
    return False


def test_a_child_of_fork_is_refused_what_it_inherits(demo, model):
    state = model.new_state()
    model.forward(state, [1, 2, 3])
    for call in (lambda: model.generate("And", max_tokens=2), lambda: model.logits([1, 2]), lambda: model.forward(state, [4]),
                 lambda: state.fork(), lambda: state.length):
        assert in_child(lambda: refused_by_name(call)) == 0
    expected = model.generate("And", max_tokens=4, greedy=True).text
    assert in_child(lambda: quern.LLM(demo, threads=2).generate("And", max_tokens=4, greedy=True).text == expected) == 0


def test_a_fork_while_others_compute_does_not_hang(demo, model):
    session = quern.InferenceSession(demo / "model.onnx", threads=2)
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            model.logits(list(range(64)))
            session.counters()

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(5):
            assert in_child(lambda: refused_by_name(session.counters) and refused_by_name(lambda: model.logits([1]))) == 0
    finally:
        stop.set()
        busy.join()


def test_other_threads_run_while_it_computes(model):
    """A thread that only counts gets on while a long call computes; the lock's switch interval plays no part in that."""
    ids = [i % 2000 for i in range(2000)]
    done, counted = threading.Event(), 0

    def compute():
        model.logits(ids)
        done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # the counting thread never gives the lock away by itself
    try:
        worker = threading.Thread(target=compute)
        worker.start()
        while not done.is_set() and counted < 10_000_000:
            counted += 1
            time.sleep(0)  # gives it away
        worker.join()
    finally:
        sys.setswitchinterval(before)
    assert counted > 10


AT_THE_END = """
import os, sys, threading, time, quern
folder, what, then = sys.argv[1:]
model = quern.LLM(folder, threads=2)
state, ids, started = model.new_state(), list(range(64)), threading.Event()

def observe(*result):
    started.set()

def work():
    while True:
        if what == "generate":
            model.generate("In", max_tokens=50, seed=1)
        elif what == "stream":
            list(model.stream("In", max_tokens=50, seed=1))
        elif what == "chat":
            list(model.new_chat().stream("In", max_tokens=50, seed=1))
        elif what == "logits":
            model.logits(ids)
        elif what == "observe":
            model.forward(model.new_state(), [5, 6], observe=observe)
        else:
            quern.LLM(folder, threads=1)
        started.set()

threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.05)
if then == "fork":
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("then", ["end", "fork"])
@pytest.mark.parametrize("what", ["generate", "stream", "chat", "logits", "observe", "open"])
def test_a_program_ends_while_a_daemon_thread_computes(demo, what, then):
    if what == "observe":
        demo = demo.parent / "demo-qwen4"  # the kind of model that can be observed
    for _ in range(3):  # a thread is not always caught where it hurts
        done = subprocess.run([sys.executable, "-c", AT_THE_END, str(demo), what, then], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


AFTER_THE_END = """
import ctypes, sys, threading, time, quern
model, started, libc = quern.LLM(sys.argv[1], threads=1), threading.Event(), ctypes.CDLL(None)

def work():
    while True:
        started.set()
        model.generate([5] * 2000, max_tokens=1)

threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.02)
libc.on_exit(libc.sleep, None)  # with the exit code as seconds: the interpreter is gone, the process is not
sys.exit(1)
"""


def test_a_daemon_thread_may_want_the_lock_when_the_interpreter_is_gone(demo):
    done = subprocess.run([sys.executable, "-c", AFTER_THE_END, str(demo)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def public_things():
    for name in quern.__all__:
        thing = getattr(quern, name)
        if name == "__version__":
            continue
        yield name, thing
        if inspect.ismodule(thing):
            yield from ((f"{name}.{inner}", getattr(thing, inner)) for inner in vars(thing) if not inner.startswith("_"))
        elif inspect.isclass(thing) and thing is not quern.Error:
            yield from ((f"{name}.{inner}", value) for inner, value in vars(thing).items() if not inner.startswith("_"))


def test_everything_public_is_documented():
    found = list(public_things())
    assert len(found) > 50
    # nanobind puts the signature first.
    undocumented = [name for name, thing in found if not (getattr(thing, "__doc__", None) or "").split("\n\n", 1)[-1].strip()
                    or (callable(thing) and not inspect.isclass(thing) and "\n\n" not in thing.__doc__)]
    assert not undocumented


# None of these can fail. What the operators raise is said once, for all of them.
CANNOT_FAIL = {"memory_usage", "Stream.cancel", "ChatStream.cancel", "InferenceSession.get_inputs", "InferenceSession.get_outputs"}


def test_calls_that_can_fail_say_with_which_codes():
    codes = "bad_model|unsupported|bad_request|too_long|no_memory|io"
    said = re.compile(rf"Raises\s+quern\.Error:\s+({codes})\b")
    calls = {name: thing.__doc__ for name, thing in public_things() if callable(thing) and not inspect.isclass(thing)
             and not name.startswith("ops.")}
    calls |= {name: getattr(quern, name).__init__.__doc__ for name in ("LLM", "InferenceSession")}
    calls["ops"] = quern.ops.__doc__.replace("raise quern", "Raises quern")
    assert {name for name, text in calls.items() if not said.search(text)} == CANNOT_FAIL


def stub_arguments():
    """(function, argument, annotation, default) of everything public, as the stubs have them."""
    for file in ("__init__.pyi", "ops.pyi"):
        stub = ast.parse((pathlib.Path(quern.__file__).parent / "_quern" / file).read_text())
        for node in ast.walk(stub):
            if isinstance(node, ast.FunctionDef):
                a = node.args
                defaults = [None] * (len(a.args) - len(a.defaults)) + a.defaults + a.kw_defaults
                for argument, default in zip(a.args + a.kwonlyargs, defaults, strict=True):
                    if argument.arg != "self":
                        yield node.name, argument.arg, ast.unparse(argument.annotation), default and ast.unparse(default)


def test_type_checkers_refuse_none_where_it_means_nothing():
    found = list(stub_arguments())
    assert len(found) > 200
    vague = [(f, a) for f, a, annotation, _ in found if annotation.removesuffix(" | None") == "object"]
    assert not vague
    for file in ("__init__.pyi", "ops.pyi"):
        assert "-> object" not in (pathlib.Path(quern.__file__).parent / "_quern" / file).read_text()
    assert {(f, a) for f, a, annotation, default in found if annotation.endswith("None") and default != "None"} == {
        ("run", "output_names"), ("thinking", "arg")}


BESIDE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
import numpy as np, onnx, onnxruntime, torch, quern
folder = sys.argv[1]
model = quern.LLM(folder, threads=2)
text = model.generate("And God said", max_tokens=8, greedy=True).text
theirs = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
ours = quern.InferenceSession(folder + "/model.onnx", threads=2)
ids = model.tokenize("And God said")
feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
for node in theirs.get_inputs():
    if node.name not in feeds:
        feeds[node.name] = np.zeros((1, node.shape[1], 0, 128), np.float32)
a, b = theirs.run(["logits"], feeds)[0], ours.run(["logits"], feeds)[0]
assert a.shape == b.shape and a[0, -1].argmax() == b[0, -1].argmax()
x = torch.randn(64, 64)
assert torch.allclose(x @ x.T, torch.from_numpy(quern.ops.matmul(x.numpy(), np.ascontiguousarray(x.numpy().T))), atol=1e-4)
assert onnx.load(folder + "/model.onnx", load_external_data=False).graph.node
assert model.generate("And God said", max_tokens=8, greedy=True).text == text
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", [("quern", "onnxruntime", "onnx", "torch"), ("torch", "onnx", "onnxruntime", "quern")])
def test_beside_torch_and_onnxruntime_in_one_process(order, demo):
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", BESIDE, str(demo), *order], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
