"""ELMo (Peters et al., 2018): two LSTM language models, left to right and right to left, over characters of words."""

from pretune.models.families.shared import Family, PaperDefaults, Size
from pretune.models.spec import FanIn, Model
from pretune.nn.bidirectional_stack import BidirectionalRecurrent
from pretune.nn.characters import CharacterCNN, Filters
from pretune.nn.heads import Head, PoolingConfig
from pretune.nn.lstm import LSTM
from pretune.nn.sampled_softmax import SampledSoftmax

FILTER_SHARES = {1: 64, 2: 64, 3: 32, 4: 16, 5: 8, 6: 4, 7: 2}
"""Width of filters -> divisor of the number of all filters: 2048 are 32, 32, 64, 128, 256, 512 and 1024."""


def build_spec(
    *,
    width: int = 1024,
    depth: int = 2,
    hidden: int = 4096,
    filters: int = 2048,
    highways: int = 2,
    vocab: int = 793_471,
    context: int = 512,
    dropout: float = 0.1,
) -> Model:
    """Build a spec: character CNN, and LSTM layers with projections and residuals, clipped at 3.

    `width` is that of both directions: each projects to its half. The softmax is shared by both, and sampled in
    training. `filters` is at least 64: one of each width.
    """
    layers = [
        LSTM(
            hidden=hidden,
            projection=width // 2,
            biases=1,
            residual=i > 0,
            cell_clip=3.0,
            output_clip=3.0,
            dropout=dropout,
        )
        for i in range(depth)
    ]
    return Model(
        family="elmo",
        vocab=vocab,
        width=width,
        context=context,
        characters=CharacterCNN(
            filters=tuple(Filters(width=size, count=filters // divisor) for size, divisor in FILTER_SHARES.items()),
            highways=highways,
        ),
        encoder=BidirectionalRecurrent(blocks=tuple(layers), input_dropout=dropout),
        head=Head(tied=False, bias="learned", sampling=SampledSoftmax(samples=8192)),
        init=FanIn(),
    )


elmo = Family(
    build_spec=build_spec,
    shape="two-way",
    default="small",
    training=PaperDefaults(
        objective={"kind": "bidirectional"},
        samples="sentences",
        lengths=(128,),
        batch_tokens=3 * 128 * 20,
        tokens=8e9,  # ten passes over the One Billion Word Benchmark
        lr=0.2,  # of all sizes
        optimizer={"kind": "adagrad", "initial_accumulator": 1.0},
        schedule={"kind": "constant"},
        tokenizer=("words", "plain", 793_471),
    ),
    sizes={  # without the softmax, as published
        "small": Size({"width": 256, "hidden": 1024, "highways": 1}, 13_593_312, "body"),
        "medium": Size({"width": 512, "hidden": 2048, "highways": 1}, 28_027_744, "body"),
        "original": Size({}, 93_600_864, "body"),
    },
    pooling=PoolingConfig(mode="mean", concat=("max",)),
)
"""ELMo: LSTM language models of both directions over characters (Peters et al., 2018)."""
