"""Blanks: how they are written, one piece as the reference says it, words of several, sentinels and infilling."""

import math
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import pretune as pt
from pretune.core.errors import UsageError
from pretune.data.layout import batch
from pretune.inference.fill import find_blanks, insert_answers
from pretune.inference.text_model import get_tokenizer
from pretune.inference.unmask import Blanks, get_piece_masks
from tests.inference.speakers import bart, bert, gpt, roberta, speaker, t5, tokenizer

TEXT = "The old king [MASK] home and [MASK] there."


def test_how_blanks_are_written() -> None:
    assert Blanks.find("a [MASK] b ___ c", mask_tokens="<mask>").parts == ("a ", " b ___ c")
    assert Blanks.find("a <m> b [MASK]", mask_tokens="<m>").parts == ("a ", " b [MASK]"), "the model's own comes first"
    assert Blanks.find("a <mask> b [MASK]", mask_tokens=None).count == 2
    assert Blanks.find("____ and ___", mask_tokens="[MASK]").parts == ("", " and ", "")
    with pytest.raises(UsageError, match=r"'a __ b'.*\[MASK\].*<mask>.*___"):
        Blanks.find("a __ b", mask_tokens="[MASK]")
    with pytest.raises(UsageError, match="<m>"):
        Blanks.find("a", mask_tokens="<m>")


def logs(model: Any, ids: list[int], place: int) -> torch.Tensor:
    with torch.no_grad():
        result = model(batch([ids])).logits
    return result[place].log_softmax(-1)


@pytest.mark.parametrize("make", [bert, roberta])
def test_one_piece_for_each_of_several_blanks(make: Any) -> None:
    model = make()
    words = get_tokenizer(model)
    mask = words.special["mask"]
    ids = words.template.apply(
        words.encode(TEXT.replace("[MASK]", words.get_token(mask)), add_special_tokens=False)
    ).ids.tolist()
    places = [i for i, token in enumerate(ids) if token == mask]
    answers = pt.fill(model, TEXT, k=7)
    assert len(answers) == len(places) == 2
    for blank, place in zip(answers, places, strict=True):
        reference = logs(model, ids, place).exp()
        order = [token for token in reference.argsort(descending=True).tolist() if token not in words.special_ids]
        assert [answer.tokens for answer in blank] == [[token] for token in order[:7]]
        np.testing.assert_allclose([answer.probability for answer in blank], reference[order[:7]], rtol=1e-4)
        assert blank[0].word == words.decode(order[:1]).strip()
    best = insert_answers(find_blanks(model, TEXT), answers)
    assert best == f"The old king {answers[0][0].word} home and {answers[1][0].word} there."
    assert pt.fill(model, [TEXT, TEXT], k=7) == [answers, answers]


def test_the_reference_gives_the_same_probabilities(tmp_path: Path) -> None:
    pt.save(bert(), tmp_path)
    reference = tf.BertForMaskedLM.from_pretrained(tmp_path).eval()
    words = get_tokenizer(bert())
    ids = torch.tensor(words.template.apply(words.encode(TEXT, add_special_tokens=False)).ids)
    with torch.no_grad():
        shares = reference(ids[None]).logits.softmax(-1)[0][ids == words.special["mask"]]
    for blank, share in zip(pt.fill(bert(), TEXT, k=4), shares, strict=True):
        for answer in blank:
            assert math.isclose(answer.probability, float(share[answer.tokens[0]]), rel_tol=1e-4)


def test_words_of_two_pieces_are_the_best_of_all() -> None:
    """With as many kept as there are pieces, the search leaves nothing out: all words of one and two written out."""
    model, text = bert(), "The old king [MASK] home."
    words = get_tokenizer(model)
    mask, pieces = words.special["mask"], get_piece_masks(words, model.spec.vocab)
    begins, continues = (torch.nonzero(part).flatten().tolist() for part in (pieces.starts_word, pieces.continues_word))
    assert begins and continues and not set(begins) & set(continues)
    ids = words.template.apply(words.encode(text, add_special_tokens=False)).ids.tolist()
    place = ids.index(mask)
    scores: dict[tuple[int, ...], float] = {}
    alone = logs(model, ids, place)
    scores |= {(token,): float(alone[token]) for token in begins}
    two = [*ids[:place], mask, *ids[place:]]
    first = logs(model, two, place)
    for token in begins:
        second = logs(model, [*two[:place], token, *two[place + 1 :]], place + 1)
        scores |= {(token, other): float(first[token] + second[other]) for other in continues}
    ranked = sorted(scores, key=lambda word: -scores[word] / len(word))
    count = len(begins)  # kept in the search: four times as many
    result = pt.fill(model, text, k=count, pieces=2)[0]
    spelled = list(dict.fromkeys(words.decode(list(word)) for word in ranked))
    assert [answer.word for answer in result][:25] == spelled[:25]
    for answer in result[:25]:
        assert math.isclose(answer.probability, math.exp(scores[tuple(answer.tokens)]), rel_tol=1e-3)
    assert {len(answer.tokens) for answer in result} == {1, 2}


def test_whole_words_begin_where_words_begin() -> None:
    for model in (bert(), roberta()):
        words = get_tokenizer(model)
        pieces = get_piece_masks(words, model.spec.vocab)
        for answer in pt.fill(model, "The king ___ home.", k=20, pieces=3)[0]:
            assert pieces.starts_word[answer.tokens[0]]
            assert all(pieces.continues_word[token] for token in answer.tokens[1:])
            assert answer.word and not set(answer.tokens) & words.special_ids


def test_a_model_of_two_streams_hides_by_rank(tmp_path: Path) -> None:
    model = speaker("xlnet-base", "unigram", "cls-last")
    words = get_tokenizer(model)
    ids = words.template.apply(words.encode("The king <mask> home.", add_special_tokens=False))
    place = ids.ids.tolist().index(words.special["mask"])
    pt.save(model, tmp_path)
    reference = tf.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    size = len(ids.ids)
    hidden, mapping = torch.zeros(1, size, size), torch.zeros(1, 1, size)
    hidden[:, :, place] = 1
    mapping[0, 0, place] = 1
    with torch.no_grad():
        share = (
            reference(
                torch.tensor(ids.ids)[None],
                token_type_ids=torch.tensor(ids.segments)[None],
                perm_mask=hidden,
                target_mapping=mapping,
            )
            .logits[0, 0]
            .softmax(-1)
        )
    for answer in pt.fill(model, "The king ___ home.", k=5)[0]:
        assert math.isclose(answer.probability, float(share[answer.tokens[0]]), rel_tol=1e-3)


def test_sentinels_as_the_reference_searches(tmp_path: Path) -> None:
    """The same beams from the same beginning, cut at the sentinels; answers that read alike are one."""
    model, count = deepcopy(t5()), 8
    words = get_tokenizer(model)
    marks = words.sentinels
    with torch.no_grad():
        model.tokens.weight[list(marks[2:])] = 0.0  # or random weights would say little but sentinels
    pt.save(model, tmp_path)
    reference = tf.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    source = words.template.apply(
        words.encode(f"The king {words.get_token(marks[0])} home.", add_special_tokens=False)
    ).ids
    out = reference.generate(
        torch.tensor(source)[None],
        decoder_input_ids=torch.tensor([[model.spec.special.start, marks[0]]]),
        num_beams=count,
        num_return_sequences=count,
        max_new_tokens=5,
        min_new_tokens=1,
        length_penalty=0.0,
        early_stopping=True,
        do_sample=False,
        eos_token_id=[*model.spec.special.eos, *marks],
        return_dict_in_generate=True,
        output_scores=True,
    )
    wanted: dict[str, float] = {}
    ends = {*marks, *model.spec.special.eos}
    for tokens, score in zip(out.sequences[:, 2:].tolist(), out.sequences_scores.tolist(), strict=True):
        cut = next((i for i, token in enumerate(tokens[:4]) if token in ends), 4)
        word = words.decode(tokens[:cut], special=False).strip()
        wanted[word] = wanted.get(word, 0.0) + math.exp(score)
    wanted.pop("", None)
    assert len(wanted) > 1
    result = pt.fill(model, "The king ___ home.", k=count // 2, pieces=4)[0]
    best = sorted(wanted, key=lambda word: -wanted[word])[: count // 2]
    assert [answer.word for answer in result] == best
    for answer in result:
        assert math.isclose(answer.probability, wanted[answer.word], rel_tol=1e-3)


def test_every_blank_of_sentinels_has_answers_however_they_are_spelled() -> None:
    """Blanks are filled in turn, so a decoder that says no further sentinel by itself fills them all the same."""
    model = t5()
    words = get_tokenizer(model)
    first, second, third = (words.get_token(mark) for mark in words.sentinels[:3])
    answers = pt.fill(model, "The ___ king ___ home and ___ there.", k=3, pieces=2)
    assert len(answers) == 3 and all(1 < len(blank) <= 3 for blank in answers)
    assert all(1 <= len(answer.tokens) <= 2 for blank in answers for answer in blank)
    for marks in ((first, second, third), (second, first, second)):
        text = "The {} king {} home and {} there.".format(*marks)
        assert pt.fill(model, text, k=3, pieces=2) == answers
    alone = pt.fill(model, "The ___ king", k=3, pieces=2)
    assert alone[0] == pt.fill(model, f"The {third} king", k=3, pieces=2)[0]
    with pytest.raises(UsageError, match=f"'a'.*{first}"):
        pt.fill(model, "a")


def test_infilling_goes_on_until_what_follows() -> None:
    """A mask between tokens: what is written into it never holds what follows, nor special tokens."""
    model, text = bart(), "The king <mask> home and <mask> there."
    words = get_tokenizer(model)
    answers = pt.fill(model, text, k=4, pieces=3)
    assert len(answers) == 2
    for blank, following in zip(answers, (" home", " there"), strict=True):
        assert blank == sorted(blank, key=lambda answer: -answer.probability)
        for answer in blank:
            assert 1 <= len(answer.tokens) <= 3
            assert words.encode(following, add_special_tokens=False)[0] not in answer.tokens
            assert not set(answer.tokens) & {words.special["eos"]}
    greedy = best_by_hand(model, "The king <mask> home.", 3)
    assert greedy[:3] in [answer.tokens for answer in pt.fill(model, "The king <mask> home.", k=8, pieces=3)[0]]


def best_by_hand(model: Any, text: str, most: int) -> list[int]:
    """The likeliest token after the beginning of the text, each time, until what follows."""
    words = get_tokenizer(model)
    ids = words.template.apply(words.encode(text, add_special_tokens=False)).ids.tolist()
    place = ids.index(words.special["mask"])
    ends = {ids[place + 1], *model.spec.special.eos}
    output: list[int] = []
    while len(output) < most + 1:
        with torch.no_grad():
            target = [model.spec.special.start, *ids[:place], *output]
            logits = model(batch(source=[ids], target=[target])).logits[-1]
        if not output:
            logits[list(ends)] = float("-inf")
        token = int(logits.argmax())
        if token in ends:
            break
        output.append(token)
    return output


def test_what_cannot_be_filled() -> None:
    with pytest.raises(UsageError, match="decoder"):
        pt.fill(gpt(), "a ___")
    with pytest.raises(UsageError, match="mask"):
        pt.fill(speaker("bert-tiny", "bpe", "endoftext"), "a ___")
    with pytest.raises(UsageError, match="'a b'"):
        pt.fill(bert(), "a b")
    with pytest.raises(UsageError, match=r"\b0\b"):
        pt.fill(bert(), "a ___", k=0)
    with pytest.raises(UsageError, match=r"\b48\b"):
        pt.fill(bert(), "king " * 60 + "___")
    with pytest.raises(UsageError, match=r"\b200\b.*\d"):
        pt.fill(t5(), "___ " * 200)
    assert tokenizer("unigram", "sentinels").sentinels


def test_every_pair_of_kind_and_blank() -> None:
    """No pair of a model and a way to write a blank gives nothing but an error."""
    for model, way in product((bert(), roberta()), ("[MASK]", "<mask>", "___", "_____")):
        assert pt.fill(model, f"The {way} king", k=1)[0][0].word
