"""Chats: the answer is the text that the model generates after the rendered messages; old turns are left out."""

from pathlib import Path

import pytest

import pretune as pt
from pretune.core.errors import UsageError
from pretune.inference.chat import ChatModel
from pretune.text.chat import ChatTemplate, Message, find_turn_end
from tests.inference.speakers import CHAT_TEMPLATE, bert, chatter, gpt, t5, tokenizer
from tests.text.chat_templates import chat


def test_answer_is_that_of_the_rendered_prompt() -> None:
    model = chatter()
    prompt = "uThe cat<|endoftext|>aA dog<|endoftext|>uShe<|endoftext|>a"
    for options in ({"temperature": 0}, {"temperature": 0.9, "top_k": 9, "seed": 4}):
        expected = pt.generate(model, [prompt], max_new_tokens=6, **options)[0]
        pieces: list[str] = []
        answer = pt.chat(model, chat("The cat", "A dog", "She"), max_new_tokens=6, stream=pieces.append, **options)
        assert expected.endswith(answer) and answer and "".join(pieces) == answer
    stop, messages = answer[-1], chat("The cat", "A dog", "She")
    assert pt.chat(model, messages, max_new_tokens=6, stop=[stop], **options) == answer.partition(stop)[0]
    assert pt.chat(model, "She", temperature=0) == pt.chat(model, chat("She"), temperature=0, max_new_tokens=24)


def test_oldest_turns_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The system message stays; what is left is what fits."""
    model, messages = ChatModel(chatter()), chat("one", "two", "three", "four", "five", system="Be.")
    limit = chatter().spec.max_length
    assert limit is not None
    sizes = [len(model.fit([*messages[:1], *messages[start:]], 1).ids) for start in (1, 3, 5)]
    for size, dropped in zip(sizes, (0, 2, 4), strict=True):
        ids, dropped_messages = model.fit(messages, limit - size)
        assert len(ids) == size and dropped_messages == dropped
    with pytest.raises(UsageError, match=f"has {sizes[2]} tokens.*{limit}"):
        model.fit(messages, limit - sizes[2] + 1)
    pt.chat(chatter(), messages, max_new_tokens=limit - sizes[1])
    assert "without its oldest 2 messages" in capsys.readouterr().err


def test_end_of_a_turn_ends_an_answer() -> None:
    """Also where the model's settings name another end token."""
    assert ChatModel(chatter()).tokens.eos == chatter().spec.special.eos
    tokens = tokenizer("bpe", "endoftext").with_tokens({"turn": "<turn>"})
    template = ChatTemplate(CHAT_TEMPLATE, {"eos_token": "<turn>"})
    assert find_turn_end(tokens, template) == [tokens.token_to_id("<turn>")]
    assert find_turn_end(tokens, ChatTemplate(CHAT_TEMPLATE, {})) == []


def test_template_travels_with_the_model(tmp_path: Path) -> None:
    pt.save(chatter(), tmp_path / "a")
    answer = pt.chat(chatter(), "She", temperature=0, max_new_tokens=5)
    assert pt.chat(str(tmp_path / "a"), "She", temperature=0, max_new_tokens=5) == answer
    pt.export(tmp_path / "a", to="hf", out=tmp_path / "b")
    assert pt.chat(str(tmp_path / "b"), "She", temperature=0, max_new_tokens=5) == answer
    llama = chatter("llama-7b")
    pt.save(llama, tmp_path / "llama")
    pt.export(tmp_path / "llama", to="gguf", out=tmp_path / "c.gguf")
    again = pt.load(tmp_path / "c.gguf")
    assert again.tokenizer.chat_template == llama.tokenizer.chat_template  # type: ignore[union-attr]
    assert pt.chat(again, "She", temperature=0, max_new_tokens=5) == pt.chat(
        llama, "She", temperature=0, max_new_tokens=5
    )


def test_models_and_messages_that_are_refused() -> None:
    for model, problem in ((gpt(), "no chat template"), (bert(), "encoder"), (t5(), "encoder-decoder")):
        with pytest.raises(UsageError, match=problem):
            pt.chat(model, "Hi")
    tool: Message = {"role": "tool", "content": "x"}
    with pytest.raises(UsageError, match="refuses the messages: no tools"):
        pt.chat(chatter(), [tool])
    with pytest.raises(UsageError, match="one answer"):
        pt.chat(chatter(), "a", num=2)
    with pytest.raises(UsageError, match="must be a list"):
        pt.chat(chatter(), [])
