"""A generator and a discriminator against `transformers`: the released counts, the run directory, the loss."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library is not installed")

import transformers as tf

import pretune as pt
from pretune.models.catalog import resolve
from pretune.models.generator_discriminator import add_generator, build_pair
from pretune.objectives.replaced_token import ReplacedToken, fill_in, hash_to_uniform
from tests.contracts.tiny import rough
from tests.parity.test_parity import EXACT, assert_rows, padded
from tests.selection import keep_quick

BASE = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"embedding_size": 1024, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
RELEASED: dict[str, tuple[Any, dict[str, int]]] = {
    "small": (tf.ElectraForPreTraining, {}),
    "base": (tf.ElectraForPreTraining, BASE),
    "large": (tf.ElectraForPreTraining, {**LARGE, "num_hidden_layers": 24}),
    "small-generator": (tf.ElectraForMaskedLM, {}),
    "base-generator": (tf.ElectraForMaskedLM, {"embedding_size": 768}),
    "large-generator": (tf.ElectraForMaskedLM, {"embedding_size": 1024, "num_hidden_layers": 24}),
}
"""The released configs, as far as they differ from the reference's defaults."""


@pytest.mark.parametrize("size", RELEASED)
def test_released_counts(size: str) -> None:
    """Of the body, and with the head."""
    cls, options = RELEASED[size]
    with torch.device("meta"):
        reference = cls(tf.ElectraConfig(**options))
    actual = resolve(f"electra-{size}").params()
    assert (actual.body, actual.total) == (reference.electra.num_parameters(), reference.num_parameters())


DEBERTA = {
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "position_biased_input": False, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072,
}  # fmt: skip
XSMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
DEBERTA_LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24}
XLARGE = {"hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 6144, "conv_kernel_size": 3}


@pytest.mark.parametrize(
    ("size", "options"),
    keep_quick(
        [
            ("v2-xlarge", {**XLARGE, "num_hidden_layers": 24}),
            ("v2-xxlarge", {**XLARGE, "num_hidden_layers": 48}),
            ("v3-xsmall", XSMALL),
            ("v3-small", {"num_hidden_layers": 6}),
            ("v3-base", {}),
            ("v3-large", DEBERTA_LARGE),
            ("v3-base-multilingual", {"vocab_size": 251000}),
        ],
        ("v3-base", {}),
    ),
)
def test_released_counts_of_deberta(size: str, options: dict[str, int]) -> None:
    """Of the body, and of all but the mask decoder, which the reference lacks."""
    with torch.device("meta"):
        reference = tf.DebertaV2ForMaskedLM(tf.DebertaV2Config(**{**DEBERTA, **options}))
    spec = resolve(f"deberta-{size}")
    decoder = spec.mask_decoder.params(width=spec.width)
    expected = (reference.deberta.num_parameters(), reference.num_parameters() + decoder)
    assert (spec.params().body, spec.params().total) == expected


def test_a_run_directory(tmp_path: Path) -> None:
    """Both halves are read without a word, say the same, and the reference's loss is ours."""
    settings = {"width": 64, "depth": 2, "heads": 4, "vocab": 61, "positions": 24, "table": 20, "dropout": 0.0}
    model = build_pair(add_generator(resolve("electra-small", settings)))
    rough(model)  # type: ignore[arg-type]
    pt.save(model.eval(), tmp_path)
    judge, guess = (
        cls.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
        for cls, folder in ((tf.ElectraForPreTraining, tmp_path), (tf.ElectraForMaskedLM, tmp_path / "generator"))
    )
    for _, info in (judge, guess):
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    rows = [[(7 * i + 11 * j) % 50 + 5 for i in range(n)] for j, n in enumerate((9, 14, 4))]
    labels = [[token if i % 4 == 1 else -100 for i, token in enumerate(row)] for row in rows]
    tokens, mask = padded([[3 if i % 4 == 1 else token for i, token in enumerate(row)] for row in rows])
    batch = pt.batch([row[: sum(m)].tolist() for row, m in zip(tokens, mask.tolist(), strict=True)], labels=labels)
    with torch.no_grad():
        loss = ReplacedToken().loss(model, batch)
        wanted, _ = padded(labels)
        theirs = guess[0](tokens, attention_mask=mask, labels=wanted.masked_fill(mask == 0, -100))
        torch.testing.assert_close(loss.parts["generator"].mean(), theirs.loss, **EXACT)
        shown, replaced = fill_in(batch, model.propose(batch, hash_to_uniform(batch))[1])
        assert replaced.any()
        tokens, mask = padded([part.tolist() for part in shown.split(shown.tokens)])
        answer, _ = padded([part.long().tolist() for part in shown.split(replaced)])
        theirs = judge[0](tokens, attention_mask=mask, labels=answer)
        assert_rows(shown.split(model.detect(shown)), theirs.logits, "logits")
        part = loss.parts["discriminator"]
        torch.testing.assert_close(part.sum / part.count, theirs.loss, **EXACT)
