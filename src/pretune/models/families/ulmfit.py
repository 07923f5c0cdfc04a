"""ULMFiT (Howard and Ruder, 2018): AWD-LSTM (Merity et al., 2018), pre-trained once and fine-tuned in stages.

    pretune pretrain ulmfit --data wiki --out runs/wiki          # general language model
    pretune finetune runs/wiki --task imdb --out runs/imdb       # its fine-tuning on the task's text, and classifier

Three LSTM layers over a tied embedding, with dropout of token types, embeddings, outputs (the same units in all steps)
and recurrent weights. Dropout rates are those of the released language model; the classifier has the paper's.

The language model reads 64 contiguous streams in windows of about 70 words, whose lengths vary, and carries its states
from one window to the next (`data.samples=streams`).
"""

from dataclasses import replace

from pretune.models.families.shared import Family, PaperDefaults, Size, TuningDefaults
from pretune.models.spec import Model, Uniform
from pretune.nn.batch_norm import BatchNorm
from pretune.nn.heads import Head, PoolingConfig
from pretune.nn.lstm import LSTM
from pretune.nn.recurrent_stack import Recurrent


def build_spec(
    *,
    width: int = 400,
    hidden: int = 1150,
    depth: int = 3,
    vocab: int = 60_000,
    output_dropout: float = 0.1,
    hidden_dropout: float = 0.15,
    input_dropout: float = 0.25,
    token_dropout: float = 0.02,
    weight_dropout: float = 0.2,
    backward: bool = False,
) -> Model:
    """Build a spec: layers of `hidden` units, the last of `width`, and a tied head with a bias.

    With `backward` it reads texts from their end; the paper averages the predictions of a model of each direction.
    """
    inner = LSTM(hidden=hidden, weight_dropout=weight_dropout, dropout=hidden_dropout)
    last = replace(inner, hidden=width, dropout=output_dropout)
    return Model(
        family="ulmfit",
        vocab=vocab,
        width=width,
        context=512,
        decoder=Recurrent(
            blocks=(*(inner,) * (depth - 1), last),
            token_dropout=token_dropout,
            input_dropout=input_dropout,
            backward=backward,
        ),
        head=Head(bias="learned"),
        init=Uniform(bound=0.1),
    )


def build_task_spec(spec: Model) -> Model:
    """Return the spec of a task model: the dropout rates of the paper (section 4.1), and backpropagation through time
    for text classification: the state is carried through a whole document, gradients reach its last 1,400 words.

    The rate of 0.4 for the outputs is that of the pooled vector: states of the last layer have no dropout.
    """
    assert isinstance(spec.decoder, Recurrent)
    blocks = [replace(block, weight_dropout=0.5, dropout=0.3) for block in spec.decoder.blocks]
    blocks[-1] = replace(blocks[-1], dropout=0.0)
    decoder = replace(spec.decoder, blocks=tuple(blocks), token_dropout=0.05, input_dropout=0.4, gradient_window=1400)
    return replace(spec, decoder=decoder)


ulmfit = Family(
    build_spec=build_spec,
    shape="decoder",
    default="original",
    training=PaperDefaults(
        objective={"kind": "causal", "activation_penalty": 2.0, "temporal_penalty": 1.0},
        samples="streams",
        lengths=(70,),
        batch_tokens=64 * 70,
        tokens=1.4e9,  # 14 passes over WikiText-103
        lr=3e-3,
        width=400,
        optimizer={"kind": "adam_w", "betas": (0.8, 0.99), "eps": 1e-8, "weight_decay": 0.01},
        schedule={"kind": "slanted"},
        tokenizer=("words", "plain", 60_000),
    ),
    pooling=PoolingConfig(
        mode="last",
        concat=("max", "mean"),
        layer="own",
        activation="relu",
        hidden=50,
        norm=BatchNorm(),
        input_dropout=0.4,
    ),
    tuning=TuningDefaults(
        method="ulmfit",
        settings={
            "train.lr": 1e-2,
            "train.optimizer.betas": [0.7, 0.99],
            "train.batch": 64,
            "data.max_length": 4096,
            "tune.lm_epochs": 5.0,
            "tune.lm_lr": 4e-3,
        },
        build_spec=build_task_spec,
    ),
    sizes={
        "original": Size({}, 44_271_600),  # 33M with the 33,278 words of WikiText-2
        "small": Size({"width": 128, "hidden": 384, "vocab": 30_000}, 6_105_392),
    },
)
"""ULMFiT: AWD-LSTM with a tied embedding, fine-tuned in stages (Howard and Ruder, 2018)."""
