"""Chat templates: the text of transformers, the answers token by token, and templates that mean harm."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.core.errors import CheckpointError, UsageError
from pretune.text.chat import ChatTemplate, check_messages, encode_chat, encode_prompt
from pretune.text.tokenizer import Tokenizer
from tests.text.chat_templates import SPECIAL_TOKENS, TEMPLATES, chat
from tests.text.tokenizers import trained

CHATS = [
    chat("Hi"),
    chat("Hi", "Hello!", "Bye"),
    chat(" a \n", " b\n\n", "{{ c }}", "日本 🙂 e\u0301 "),
    chat("x", "y", system="Be brief."),
    chat("x", "<tag> & \"quotes\" 'y'", "x", "y", system=" Be brief.\n"),
]


@functools.cache
def tokenizer(kind: str = "bpe", style: str = "endoftext") -> Tokenizer:
    return trained(kind, style).with_tokens({f"extra{i}": token for i, token in enumerate(SPECIAL_TOKENS)})


def template(name: str, words: Tokenizer | None = None) -> ChatTemplate:
    return ChatTemplate.from_tokenizer(words or tokenizer(), TEMPLATES[name])


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    jinja2 = pytest.importorskip("jinja2")
    tokenizer().save(tmp_path / "tok")
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tok")
    for messages in CHATS:
        for prompt in (False, True):
            options: dict[str, Any] = {"add_generation_prompt": prompt, "chat_template": TEMPLATES[name]}
            try:
                text = peer.apply_chat_template(messages, tokenize=False, **options)
            except jinja2.TemplateError as error:
                with pytest.raises(UsageError, match=str(error).split(",")[0].replace("/", ".")[:40].split("(")[0]):
                    template(name).render(messages, generation_prompt=prompt)
                continue
            assert template(name).render(messages, generation_prompt=prompt) == text
            ids = peer.apply_chat_template(messages, return_dict=False, **options)
            if prompt:
                assert encode_prompt(tokenizer(), template(name), messages) == ids
            else:
                assert encode_chat(tokenizer(), template(name), messages).ids == ids


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("words", [("bpe", "endoftext"), ("unigram", "sentinels")])
@pytest.mark.parametrize("name", TEMPLATES)
def test_answers_are_what_the_model_generates(name: str, words: tuple[str, str]) -> None:
    """Each answer follows its prompt, up to the end of its turn: as token ids, whatever the tokens around are."""
    own, asked, contents = tokenizer(*words), template(name, tokenizer(*words)), ("How?", "So: and 1\n2", "Why?", "No")
    messages = chat(*contents)
    ids, is_answer = encode_chat(own, asked, messages)
    runs = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(is_answer)) + 1)
    answers = [run for run in runs if is_answer[run[0]]]
    assert len(answers) == 2
    for run, content in zip(answers, contents[1::2], strict=True):
        plain = own.decode(own.encode(content, add_special_tokens=False))
        thought = "<think></think>" if name == "thoughts" and content == contents[-1] else ""
        told = own.decode([ids[i] for i in run], special=False)
        assert squeeze(told) == thought + squeeze(plain)
        assert ids[run[-1]] in own.special_ids, "the end of the turn is learnt"
    if words[0] == "bpe" and name in {"default", "turns", "instructions"}:  # others end in two spaces, or change text
        for i, run in enumerate(answers):
            assert encode_prompt(own, asked, messages[: 2 * i + 1]) == ids[: run[0]]


words = st.text(alphabet=st.characters(blacklist_categories=("Cs", "Co", "Cc")), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["default", "chatml", "headers", "turns", "instructions"]), st.lists(words, min_size=2, max_size=6)
)
def test_answers_of_any_contents(name: str, contents: list[str]) -> None:
    """Spans hold the contents of the answers as they are, also if the user says the same, and nothing of the user's."""
    contents = [f"{content.strip()}{i}." for i, content in enumerate(contents)]
    ids, is_answer = encode_chat(tokenizer(), template(name), chat(*contents))
    assert len(ids) == len(is_answer)
    told = tokenizer().decode(np.array(ids)[is_answer], special=False)
    plain = tokenizer().decode(tokenizer().encode("".join(contents[1::2]), add_special_tokens=False, literal=True))
    assert squeeze(told) == squeeze(plain)


def test_thoughts_that_the_template_drops() -> None:
    """The last answer has its thought; an earlier one that is rewritten is refused."""
    asked, thought = template("thoughts"), "<think>\nhm\n</think>\n\nYes"
    ids, is_answer = encode_chat(tokenizer(), asked, chat("a", thought))
    assert tokenizer().decode(np.array(ids)[is_answer]) == f"{thought}<|im_end|>"
    with pytest.raises(UsageError, match="changes the text"):
        encode_chat(tokenizer(), asked, chat("a", thought, "b", thought))
    capital = ChatTemplate("{% for m in messages %}{{ m.content | upper }}{% endfor %}", {})
    ids, is_answer = encode_chat(tokenizer(), capital, chat("a", "b"))
    assert tokenizer().decode(np.array(ids)[is_answer]) == "B"


HARMFUL = {  # by template a word of the message
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "attribute",
    "{{ messages.append(1) }}": "attribute",
    "{{ (messages[0]|attr('__class__')).__init__ }}": "attribute",
    "{{ raise_exception.__globals__ }}": "attribute",
    "{{ self.__init__.__globals__ }}": "attribute",
    "{{ '{0.__class__}'.format(1) }}": "attribute",
    "{% include '/etc/passwd' %}": "loader",
    "{% for i in range(10**6) %}{% endfor %}": "range",
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}": "steps",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}": "",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}": "steps",
    "{% block b %}{% if false %}{% endif %}{{ self.b() }}{{ self.b() }}{% endblock %}": "",
    "{% for x in [messages] recursive %}{{ loop([x, x]) }}{% endfor %}": "",
    "{{ 'a' * 10**9 }}": "long",
    "{{ [1] * 10**9 }}": "long",
    "{{ 9 ** 9 ** 9 }}": "number",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}": "long",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "long",
    "{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}": "number",
    "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}": "long",
    "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{n.x|tojson}}": "long",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}": "",
    "{% set x = 'a' * 9999 %}{{ x.replace('a', x) }}": "long",
    "{% set x = 'a' * 9999 %}{{ x | replace('a', x) }}": "long",
    "{% set x = 'a' * 9999 %}{{ x.join(x) }}": "long",
    "{% set x = 'a' * 9999 %}{{ x | join(x) }}": "long",
    "{{ 'a'.center(10**9) }}": "numbers",
    "{{ 'a' | center(10**9) }}": "numbers",
    "{{ '%999999999d' % 1 }}": "width",
    "{{ '%999999999d' | format(1) }}": "width",
    "{{ '{:999999999}'.format(1) }}": "width",
    "{{ '{:{}}'.format(1, 999999999) }}": "width",
    "{{ strftime_now('%999999999Y') }}": "width",
    "{% for i in range(999) %}{{ messages[0].content * 9999 }}{% endfor %}": "long",
    "{% if %}": "read",
    "{% endfor %}": "read",
    "(" * 10 + "{{" + "(" * 50_000: "read",
    "{{ none + 1 }}": "",
    "{{ messages[9].content.x }}": "",
    "x" * 2**19: "characters",
}


@pytest.mark.parametrize("source", HARMFUL, ids=lambda source: source[:60])
def test_harmful_templates_are_refused(source: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        ChatTemplate(source, {}).render(chat("a", "b"))
    message = str(caught.value)
    assert HARMFUL[source] in message and message.count("\n") == 0 and len(message) < 400


def test_names_do_not_hide_the_counter() -> None:
    source = "{% set environment = 1 %}{% set count_step = 1 %}"
    source += "{% for i in range(20000) %}{% for j in 'abc' %}{% endfor %}{% endfor %}"
    with pytest.raises(CheckpointError, match="steps"):
        ChatTemplate(source, {}).render(chat("a"))
    counted = ChatTemplate("{% for i in range(30000) %}{% endfor %}", {})
    assert [counted.render(chat("a")) for _ in range(2)] == [""] * 2, "each rendering is counted anew"


def test_template_of_a_directory(tmp_path: Path) -> None:
    """It is that of `chat_template.jinja`, else of the config, where it may be one of several; saved and read back."""
    assert trained("bpe", "endoftext").chat_template is None
    folder = tmp_path / "tok"
    tokenizer().save(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    for value, expected in (
        ("a", "a"),
        ([{"name": "default", "template": "b"}, {"name": "tool_use", "template": "c"}], "b"),
    ):
        file.write_text(json.dumps({**config, "chat_template": value}))
        assert Tokenizer.load(folder).chat_template == expected
    (folder / "chat_template.jinja").write_text("é")
    loaded = Tokenizer.load(folder)
    loaded.save(tmp_path / "again")
    assert loaded.chat_template == Tokenizer.load(tmp_path / "again").chat_template == "é"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="UTF-8"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "messages", [None, [], "a", [1], [{"role": "user"}], [{"role": 1, "content": "a"}], [{"role": "", "content": "a"}]]
)
def test_messages_are_checked(messages: object) -> None:
    with pytest.raises(UsageError, match=r"a\.jsonl:3"):
        check_messages(messages, "a.jsonl:3")
