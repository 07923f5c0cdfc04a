"""Bodies of requests, checked by pydantic; unknown fields are errors."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def check_encodable(text: str) -> str:
    """Return a text; raise ValueError if it has lone surrogates, which no response could repeat."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode, got a lone surrogate") from None
    return text


T = TypeVar("T")
MAX_DEPTH = 8
"""Maximum depth of lists and objects in a column."""


def check_columns(columns: T, depth: int = 0) -> T:
    """Return the columns of an input; raise ValueError for values nested too deep, or with lone surrogates."""
    if depth > MAX_DEPTH:
        raise ValueError(f"must be nested at most {MAX_DEPTH} deep")
    if isinstance(columns, str):
        check_encodable(columns)
    elif isinstance(columns, dict | list):
        for value in columns.values() if isinstance(columns, dict) else columns:
            check_columns(value, depth + 1)
    return columns


Text = Annotated[str, AfterValidator(check_encodable)]
Columns = Annotated[dict[Text, Any], AfterValidator(check_columns)]
TokenId = Annotated[int, Field(ge=0, le=2**32)]
StopText = Annotated[Text, Field(min_length=1, max_length=256)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]
Bias = Annotated[Finite, Field(ge=-100, le=100)]


class ModelRequest(BaseModel):
    """Request for a model; a server of a single model needs no name."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: Text | None = Field(None, description="Name of the model; the only one if there is one.")


class StreamOptions(BaseModel):
    """Options of streaming."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class CompletionRequest(ModelRequest):
    """Completions, in the shape of OpenAI's API; with `top_k`, `min_p`, penalties of repetition and `min_tokens`."""

    prompt: Text | list[Text] | list[TokenId] | list[list[TokenId]]
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(16, description="0 needs `echo`.")
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[Finite, Field(ge=0, le=100)] | None = 1.0
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Count | None = None
    min_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    n: Count | None = 1
    best_of: Count | None = Field(None, description="Texts to generate, of which the `n` most probable are returned.")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0)] | None = Field(None, description="Most probable tokens at every position.")
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024)] | None = None
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=100)] = 1.0
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0
    user: Text | None = None
    suffix: Text | None = Field(None, description="Not supported.")


class EmbeddingRequest(ModelRequest):
    """Embeddings, in the shape of OpenAI's API."""

    input: Text | list[Text]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Count | None = Field(None, description="Must be the model's width, if given.")
    user: Text | None = None


class TextsRequest(ModelRequest):
    """One or several texts."""

    texts: Text | list[Text]


class FillRequest(TextsRequest):
    """Texts with masks: the model's mask token, [MASK], <mask> or ___."""

    k: Count = Field(5, description="Predictions per mask.")
    pieces: Annotated[int, Field(ge=1, le=16)] | None = Field(None, description="Maximum tokens of a filler.")


class PredictRequest(ModelRequest):
    """Texts, pairs of texts, or objects with the columns of training."""

    inputs: list[Text | Annotated[list[Text], Field(min_length=2, max_length=2)] | Columns]
    task: Text | None = Field(None, description="Task of a multi-task run.")


class ExplainRequest(ModelRequest):
    """A text, a pair of texts or an object with the columns of training, and the label to explain."""

    input: Text | Annotated[list[Text], Field(min_length=2, max_length=2)] | Columns
    task: Text | None = Field(None, description="Task of a multi-task run.")
    label: Text | None = Field(None, description="Label whose logit is explained; by default the predicted one.")


class SearchRequest(ModelRequest):
    """Queries of an index."""

    queries: Text | list[Text]
    k: Count = 10
    bm25: bool = Field(False, description="Rank by BM25 instead of vectors.")


class NeighborsRequest(ModelRequest):
    """A word in a sentence, and texts to search; by default held-out texts of the model."""

    word: Annotated[Text, Field(min_length=1, max_length=200)]
    sentence: Text = ""
    texts: list[Text] = []
    k: Count = 10
    layer: int | None = Field(None, description="0 (embeddings) to depth, or negative from the end.")
    same_word: bool = False


class WordInSentence(BaseModel):
    """A word and the sentence that it is in."""

    model_config = ConfigDict(extra="forbid")

    word: Annotated[Text, Field(min_length=1, max_length=200)]
    sentence: Text = ""


class CompareRequest(ModelRequest):
    """Two words, each in a sentence."""

    first: WordInSentence
    second: WordInSentence


class HeadsRequest(ModelRequest):
    """A text for all heads of a part of the model."""

    text: Text
    part: Literal["encoder", "decoder", "cross"] | None = None


class AttentionRequest(ModelRequest):
    """A text, and a layer and head from 1; without a head the mean of all heads."""

    text: Text
    layer: int | Literal["mean"] = -1
    head: int | None = None
    part: Literal["encoder", "decoder", "cross"] | None = None
