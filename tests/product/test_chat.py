# SPDX-License-Identifier: Apache-2.0
"""quern chat from outside: through pipes and through a terminal. What answers should be is the oracle's matter; here they
only have to be the same where the contract says so."""
import json
import os
import pty
import select
import shutil
import signal
import stat
import subprocess
import time

import pytest

SAMPLED = ("--seed", "1", "-n", "24")
TEMPLATE = ("{%- for m in messages %}{{- '[' + m.role + ']' + m.content }}{%- endfor %}"
            "{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}")
DEADLINE_S = 60


def lines(*messages):
    return "".join(m + "\n" for m in messages).encode()


def answers(quern, model, *messages, args=(), sampled=SAMPLED):
    """One JSON object an answer."""
    done = quern("chat", model, *sampled, "--json", *args, stdin=lines(*messages))
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


@pytest.fixture(scope="module")
def talker(long_context, tmp_path_factory):
    """A model that never stops by itself."""
    folder = tmp_path_factory.mktemp("model") / "talker"
    shutil.copytree(long_context, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["eos_token_id"] = [0]
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


ENDLESS = ("--repeat-guard", "0", "--logit-bias", "0=-inf", "--seed", "1")


# In a pipe -----------------------------------------------------------------------------------------------------------

def test_a_line_is_a_message_and_standard_output_holds_the_answers(quern, demo):
    expected = answers(quern, demo, "A verse about Jerusalem", "And then?")
    done = quern("chat", demo, *SAMPLED, stdin=lines("A verse about Jerusalem", "", "And then?"))
    assert done.returncode == 0
    assert done.stdout.decode() == "".join(a["text"] + "\n" for a in expected)
    assert b"> " not in done.stderr and b"\x1b" not in done.stderr + done.stdout


def test_context_is_what_was_asked_for(quern, demo):
    (short,), (whole,) = answers(quern, demo, "Go", args=("--ctx", "16")), answers(quern, demo, "Go")
    tokens = len(short["token_ids"])
    assert short["finish_reason"] == "length" and short["counts"]["prompt_tokens"] + tokens == 17  # the last needs no place
    assert whole["token_ids"][:tokens] == short["token_ids"] and len(whole["token_ids"]) > tokens
    text = quern.refused(5, "chat", demo, "--ctx", "8", stdin=lines("A verse about Jerusalem"))
    assert "8" in text
    assert "opened for 8 of the model's 2048" in text
    text = quern.refused(5, "chat", demo, "--ctx", "2049")
    assert "2049" in text and "2048" in text


def test_only_new_tokens_are_computed(quern, demo):
    seen = 0
    for turn, a in enumerate(answers(quern, demo, *[f"Verse {i} of the book" for i in range(20)])):
        counts = a["counts"]
        assert counts["kept_tokens"] <= seen
        assert counts["computed_tokens"] - (counts["prompt_tokens"] - counts["kept_tokens"]) in (0, 1)
        if turn > 0:
            assert counts["computed_tokens"] < counts["prompt_tokens"]
        seen = counts["prompt_tokens"] + counts["generated_tokens"]


def test_run_can_ask_one_question(quern, demo):
    run = quern.json("run", demo, "--chat", "-p", "A verse about Jerusalem", *SAMPLED)
    (answer,) = answers(quern, demo, "A verse about Jerusalem")
    assert run["token_ids"] == answer["token_ids"]
    assert len(run["prompt_ids"]) == answer["counts"]["prompt_tokens"]
    quiet = quern.json("run", demo, "--chat", "--no-think", "-p", "A verse about Jerusalem", *SAMPLED)
    assert quiet["prompt_ids"][:len(run["prompt_ids"])] == run["prompt_ids"]
    assert len(quiet["prompt_ids"]) > len(run["prompt_ids"])


def test_messages_are_saved_and_gone_on_from(quern, demo, tmp_path):
    file = tmp_path / "a conversation.json"
    whole = answers(quern, demo, "A verse about Jerusalem", f"/save {file}", "And then?")
    messages = json.loads(file.read_text())
    assert [m["role"] for m in messages] == ["user", "assistant"]
    (rest,) = answers(quern, demo, "And then?", args=("--messages", file))
    assert rest["counts"]["prompt_tokens"] == whole[1]["counts"]["prompt_tokens"]
    assert "beside it cannot be created" in quern("chat", demo, stdin=lines("/save /nothing/there")).stderr.decode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    quern("chat", demo, stdin=lines(f"/save {file}"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [f.name for f in tmp_path.iterdir()] == [file.name]
    for content, place in (("[{", "JSON"), ("{}", "an object"), ('["a"]', "messages[0]"), ("[{}]", "messages[0]"),
                           ('[{"role": "user", "content": "a"}, {"role": "assistant"}]', "messages[1]")):
        file.write_text(content)
        text = quern.refused(5, "chat", demo, "--messages", file)
        assert str(file) in text and place in text and "template" not in text


def test_what_was_saved_stays_when_saving_fails(quern, demo, tmp_path):
    file = tmp_path / "conversation.json"
    before = json.dumps([{"role": "user", "content": "a" * 4096}])
    file.write_text(before)
    limited = ["bash", "-c", 'ulimit -f 1 && exec "$@"', "bash", quern.path, "chat", str(demo), "--messages", str(file)]
    done = subprocess.run(limited, input=lines(f"/save {file}"), capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 7 and b"cannot be written" in done.stderr, done.stderr
    assert file.read_text() == before and [f.name for f in tmp_path.iterdir()] == [file.name]


def test_line_ends_of_other_systems_are_no_text(quern, demo, tmp_path):
    file = tmp_path / "conversation.json"
    asked = quern("chat", demo, *SAMPLED, stdin=f"A verse\\\r\nabout Jerusalem\r\n/save {file}\r\n".encode())
    assert asked.returncode == 0, asked.stderr
    assert json.loads(file.read_text())[0]["content"] == "A verse\nabout Jerusalem"


def test_reset_forgets_all_but_the_system_message(quern, demo):
    first, again = answers(quern, demo, "A verse about Jerusalem", "/reset", "A verse about Jerusalem", args=("--system", "Be short."))
    assert again["counts"]["prompt_tokens"] == again["counts"]["kept_tokens"] == first["counts"]["prompt_tokens"]
    (other,) = answers(quern, demo, "A verse about Jerusalem")
    assert other["counts"]["prompt_tokens"] < first["counts"]["prompt_tokens"]


def test_reasoning_is_switched(quern, demo, talker):
    plain, without, with_it = answers(quern, demo, "And", "/reset", "/no_think", "And", "/reset", "/think", "And")
    assert without["counts"]["prompt_tokens"] > plain["counts"]["prompt_tokens"]
    assert with_it["counts"]["prompt_tokens"] == plain["counts"]["prompt_tokens"]
    assert "no switch" in quern.refused(4, "chat", talker, stdin=lines("/no_think"))
    assert "no switch" in quern.refused(4, "chat", talker, "--no-think", stdin=lines("And"))


def test_reasoning_is_shown_apart(quern, talker, tmp_path):
    folder = tmp_path / "thinker"
    shutil.copytree(talker, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("'[assistant]' }}{%- endif", "'[assistant]<think>' }}{%- endif"))
    done = quern("chat", folder, *ENDLESS, "-n", "30", stdin=lines("hello"))
    (answer,) = answers(quern, folder, "hello", sampled=(*ENDLESS, "-n", "30"))
    assert answer["text"] == "" and answer["reasoning"]
    assert done.stdout == b"\n" and done.stderr.decode().startswith(answer["reasoning"] + "\n\n")


def test_long_messages_are_joined_lines(quern, demo):
    joined = answers(quern, demo, "A verse\\", "about Jerusalem")
    assert len(joined) == 1


@pytest.mark.parametrize("line, code", [("/rset", 5), ("/save", 5), ("\udcff", 5), ("/THINK", 5), ("/Reset", 5), ("/think2", 5),
                                        ("/no-think", 5), ("/a.b c", 5), ("/reset x", 5), ("/think\tx", 5), ("/exit now", 5),
                                        ("/help me", 5), ("/no_think\\\nx", 5)])
def test_errors_end_a_conversation_that_nobody_watches(quern, demo, line, code):
    quern.refused(code, "chat", demo, stdin=line.encode("utf-8", "surrogateescape") + b"\nhello\n")


def test_refused_commands_say_what_is_wrong(quern, demo):
    assert "'x'" in quern.refused(5, "chat", demo, stdin=lines("/reset x"))
    text = quern.refused(5, "chat", demo, stdin=lines("/THINK"))
    assert "'/THINK'" in text and "/help" in text and "//" in text
    assert quern("chat", demo, stdin=lines("/reset \t", "/exit\r", "/nothing")).returncode == 0


def test_paths_are_no_commands(quern, demo):
    assert len(answers(quern, demo, "/usr/bin is a folder", "/ is one too", "/", "/5")) == 4


def test_a_message_may_begin_with_a_slash(quern, demo, tmp_path):
    file = tmp_path / "conversation.json"
    answers(quern, demo, "//hi", f"/save {file}")
    assert json.loads(file.read_text())[0] == {"role": "user", "content": "/hi"}


def test_the_rule_for_commands_is_in_the_help(quern, demo):
    for text in (quern("chat", "--help").stdout, quern("chat", demo, stdin=lines("/help")).stderr):
        assert b"starts with a /" in text and b"//" in text


def test_commands_do_not_end_a_conversation(quern, demo):
    assert quern("chat", demo, stdin=lines("/help", "/exit", "/nothing")).returncode == 0


def test_what_the_context_cannot_hold(quern, demo):
    text = "word " * 400
    refused = quern("chat", demo, *SAMPLED, stdin=lines(*[text] * 8))
    assert refused.returncode == 5 and b"2048" in refused.stderr
    done = quern("chat", demo, *SAMPLED, "--when-full", "drop-oldest", stdin=lines(*[text] * 8))
    assert done.returncode == 0 and done.stdout.count(b"\n") >= 8
    assert b"messages were dropped" in done.stderr
    assert b"2048" in quern("chat", demo, "--when-full", "drop-oldest", stdin=lines("word " * 4000)).stderr


def test_circles_are_ended_by_name(quern, talker):
    args = ("run", talker, "--chat", "-p", "hello", "-n", "150", "--greedy", "--logit-bias", "65=1000")
    out = quern.json(*args, "--repeat-guard", "3")
    assert (out["finish_reason"], out["cycle_tokens"], len(out["token_ids"])) == ("repetition", 1, 30)
    assert quern.json(*args, "--repeat-guard", "0")["finish_reason"] == "length"
    assert b"circle of 1 tokens" in quern(*args, "--repeat-guard", "3").stderr
    chat = quern("chat", talker, *args[5:], "--repeat-guard", "3", stdin=lines("hello"))
    assert chat.returncode == 0 and b"circle of 1 tokens" in chat.stderr


def test_text_comes_in_whole_characters(quern, talker):
    with subprocess.Popen([quern.path, "chat", str(talker), *ENDLESS, "-n", "400", "--temperature", "3"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdin.write(b"hello\n")
        process.stdin.close()
        chunks = []
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            chunks.append(chunk.decode())  # raises in the middle of a character
    assert process.returncode == 0 and len(chunks) > 10
    assert any(ord(c) > 127 for c in "".join(chunks))


def test_interrupt_in_a_pipe_ends_the_conversation_cleanly(quern, talker):
    with subprocess.Popen([quern.path, "chat", str(talker), *ENDLESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdin.write(b"hello\nand again\n")
        process.stdin.close()
        process.stdin = None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert (first + rest).decode().endswith("\n") and b"stopped" in errors


# In a terminal -------------------------------------------------------------------------------------------------------

class Terminal:
    def __init__(self, *command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(command[0], command)
        self.seen = b""

    def wait_for(self, text, count=1):
        deadline = time.monotonic() + DEADLINE_S
        while self.seen.count(text) < count:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    break
        assert self.seen.count(text) >= count, self.seen

    def type(self, text):
        os.write(self.fd, text)

    def end(self):
        """The exit code of a program that ends by itself, as it should."""
        deadline = time.monotonic() + DEADLINE_S
        ends = False
        while not ends and time.monotonic() < deadline:
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:  # the other end is closed
                    ends = True
        if not ends:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        assert ends, f"goes on after {self.seen}"
        return os.waitstatus_to_exitcode(status)


def test_interrupt_stops_the_answer_alone(quern, talker):
    terminal = Terminal(quern.path, "chat", str(talker), *ENDLESS)
    terminal.wait_for(b"> ")
    terminal.type(b"hello\n")
    terminal.wait_for(b"hello")
    length = len(terminal.seen)
    while len(terminal.seen) < length + 40:  # the answer is being written
        terminal.seen += os.read(terminal.fd, 4096)
    terminal.type(b"\x03")
    terminal.wait_for(b"the answer was stopped")
    terminal.wait_for(b"\n> ")
    terminal.type(b"/reset\n/exit\n")
    assert terminal.end() == 0


@pytest.mark.parametrize("key, code", [(b"\x04", 0), (b"\x03", 130)])
def test_terminal_goes_on_after_errors_and_is_left_at_the_prompt(quern, demo, key, code):
    terminal = Terminal(quern.path, "chat", str(demo), *SAMPLED)
    terminal.wait_for(b"> ")
    terminal.type(b"/nonsense\n")
    terminal.wait_for(b"is no command")
    terminal.type(b"A verse about Jerusalem\n")
    terminal.wait_for(b"> ", count=3)
    terminal.type(key)
    assert terminal.end() == code


def test_a_line_that_a_terminal_cuts_is_refused_and_the_conversation_goes_on(quern, demo, tmp_path):
    file = tmp_path / "conversation.json"
    terminal = Terminal(quern.path, "chat", str(demo), *SAMPLED)
    terminal.wait_for(b"> ")
    terminal.type(b"Hello\n")
    terminal.wait_for(b"\n> ")
    terminal.type(b"a" * 5000 + b"\n")
    terminal.wait_for(b"a line of 4095 bytes, and of a line a terminal keeps 4095 at most")
    terminal.wait_for(b"\n> ", count=2)
    terminal.type(b"b" * 4094 + b"\n")
    terminal.wait_for(b"2048")
    terminal.type(f"/save {file}\n/exit\n".encode())
    assert terminal.end() == 0
    assert [m["role"] for m in json.loads(file.read_text())] == ["user", "assistant"]


@pytest.mark.parametrize("command", [("run", "-f", "-"), ("tokenize",)])
def test_text_that_a_terminal_cuts_is_refused(quern, demo, command):
    terminal = Terminal(quern.path, command[0], str(demo), *command[1:])
    terminal.type(b"short\n" + b"a" * 5000 + b"\n")
    terminal.wait_for(b"\n", count=2)  # not all of a long line is echoed
    terminal.type(b"\x04")
    terminal.wait_for(b"a line of 4095 bytes")
    assert terminal.end() == 5


def test_a_second_interrupt_does_not_lose_the_conversation(quern, talker, tmp_path):
    file = tmp_path / "conversation.json"
    terminal = Terminal(quern.path, "chat", str(talker), *ENDLESS, "-n", "8")
    terminal.wait_for(b"> ")
    terminal.type(b"hello\n")
    terminal.wait_for(b"\n> ")
    for _ in range(8):  # a long prompt, which is computed in pieces
        terminal.type(b"w" * 4000 + b"\\\n")
        terminal.wait_for(b". ")
        terminal.seen = b""
    terminal.type(b"end\n")
    terminal.wait_for(b"prompt: ")
    os.kill(terminal.pid, signal.SIGINT)
    time.sleep(0.003)
    os.kill(terminal.pid, signal.SIGINT)
    terminal.wait_for(b"the answer was stopped")
    terminal.wait_for(b"\n> ")
    terminal.type(f"/save {file}\n".encode())
    terminal.wait_for(b"2 messages are in")
    terminal.type(b"\x03")  # at the prompt it leaves
    assert terminal.end() == 130
    assert [m["role"] for m in json.loads(file.read_text())] == ["user", "assistant"]
