"""Bodies of requests, checked by pydantic; unknown fields are errors."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from pretune.server.engine import Engine
from pretune.text.chat import Message


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
Texts = Annotated[Text | list[Text], AfterValidator(lambda texts: [texts] if isinstance(texts, str) else texts)]
Columns = Annotated[dict[Text, Any], AfterValidator(check_columns)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2), AfterValidator(tuple)]
TokenId = Annotated[int, Field(ge=0, le=2**32)]
StopText = Annotated[Text, Field(min_length=1, max_length=256)]
Word = Annotated[Text, Field(min_length=1, max_length=200, description="Word; its first occurrence counts.")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]
Bias = Annotated[Finite, Field(ge=-100, le=100)]


def example(**body: JsonValue) -> ConfigDict:
    """Return the setting of a request that shows an example of its body."""
    return ConfigDict(json_schema_extra={"example": body})


class ErrorDetail(BaseModel):
    """An error: a message for people, and codes for programs."""

    message: str
    type: str
    param: str | None = Field(description="Field of the request.")
    code: str | None


class ErrorReply(BaseModel):
    """Body of every error, in the shape of OpenAI's API."""

    error: ErrorDetail


class ModelRequest(BaseModel):
    """Request for a model; a server of a single model needs no name."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: Text | None = Field(None, description="Name of the model; needed if several are served.")


class StreamOptions(BaseModel):
    """Options of streaming."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = Field(False, description="End with an event that counts tokens.")


class SamplingRequest(ModelRequest):
    """Options of generated texts, with `top_k`, `min_p`, penalties of repetition and `min_tokens`."""

    min_tokens: Annotated[int, Field(ge=0)] = Field(0, description="Tokens before which a text does not end.")
    temperature: Annotated[Finite, Field(ge=0, le=100)] | None = Field(1.0, description="0: most probable tokens.")
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = Field(
        None, description="Sample among the most probable tokens of this total probability."
    )
    top_k: Count | None = Field(None, description="Sample among this number of most probable tokens.")
    min_p: Annotated[Finite, Field(gt=0, le=1)] | None = Field(
        None, description="Sample among tokens of at least this share of the highest probability."
    )
    n: Count | None = Field(1, description="Texts per prompt or chat.")
    stream: bool | None = Field(False, description="Send pieces of the texts as server-sent events.")
    stream_options: StreamOptions | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = Field(
        None, description="Texts before which a completion ends."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description="The same seed, the same text.")
    presence_penalty: Penalty | None = Field(None, description="Subtracted once from logits of tokens already there.")
    frequency_penalty: Penalty | None = Field(None, description="Subtracted for each occurrence of a token.")
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024)] | None = Field(
        None, description="Added to logits, by the id of a token."
    )
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=100)] = Field(
        1.0, description="Divides positive logits of tokens already there."
    )
    no_repeat_ngram: Annotated[int, Field(ge=0)] = Field(0, description="Repeat no sequence of this number of tokens.")
    user: Text | None = Field(None, description="Ignored.")


class PromptRequest(ModelRequest):
    """Prompts; their field comes before the options."""

    prompt: Text | list[Text] | list[TokenId] | list[list[TokenId]] = Field(
        description="Texts, or ids of their tokens."
    )


class CompletionRequest(SamplingRequest, PromptRequest):
    """Completions, in the shape of OpenAI's API; with `top_k`, `min_p`, penalties of repetition and `min_tokens`."""

    model_config = example(prompt="Once upon a time", max_tokens=20, temperature=0.8)

    max_tokens: Annotated[int, Field(ge=0)] | None = Field(16, description="Tokens of a completion; 0 needs `echo`.")
    best_of: Count | None = Field(None, description="Texts to generate, of which the `n` most probable are returned.")
    echo: bool | None = Field(False, description="Return the prompt before its completion.")
    logprobs: Annotated[int, Field(ge=0)] | None = Field(None, description="Most probable tokens at every position.")
    suffix: Text | None = Field(None, description="Not supported.")


class ContentPart(BaseModel):
    """A part of the content of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    """A message; what a client adds to the answers it returns is ignored."""

    model_config = ConfigDict(extra="ignore")

    role: Annotated[Text, Field(min_length=1, max_length=64)] = Field(description="Mostly system, user or assistant.")
    content: Text | list[ContentPart] = Field(description="Text, or parts that are text.")


class MessagesRequest(ModelRequest):
    """A chat; its field comes before the options."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)] = Field(
        description="The chat so far; it is answered."
    )

    def list_messages(self) -> list[Message]:
        """Return the messages with their contents as one text."""
        return [
            {
                "role": message.role,
                "content": message.content
                if isinstance(message.content, str)
                else "".join(part.text for part in message.content),
            }
            for message in self.messages
        ]


class ChatRequest(SamplingRequest, MessagesRequest):
    """Chats, in the shape of OpenAI's API; with `top_k`, `min_p`, penalties of repetition and `min_tokens`."""

    model_config = example(messages=[{"role": "user", "content": "Who are you?"}], max_tokens=20, temperature=0.7)

    max_tokens: Count | None = Field(None, description="Tokens of an answer; by default 512, or what is left.")
    max_completion_tokens: Count | None = Field(None, description="The same.")
    logprobs: bool | None = Field(False, description="Return the log-probabilities of tokens.")
    top_logprobs: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Most probable tokens at every position; needs `logprobs`."
    )

    @property
    def new_tokens(self) -> int | None:
        """The number of tokens that is asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprob_count(self) -> int | None:
        """The number of most probable tokens; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class EmbeddingRequest(ModelRequest):
    """Embeddings, in the shape of OpenAI's API."""

    model_config = example(input=["A warm day.", "It is sunny."])

    input: Texts = Field(description="Texts to embed.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="Numbers, or base64 of 32-bit floats."
    )
    dimensions: Count | None = Field(None, description="Must be the model's width, if given.")
    user: Text | None = Field(None, description="Ignored.")


class EngineRequest(ModelRequest):
    """Request whose result is that of the engine's method of the same name, with the fields as arguments."""

    async def run(self, engine: Engine, method: str, model: str) -> Any:
        """Return the result of a model."""
        (_, first), *rest = [(name, value) for name, value in self if name != "model"]
        return await getattr(engine, method)(model, first, **dict(rest))


class TextsRequest(EngineRequest):
    """One or several texts."""

    model_config = example(texts=["The old house was quiet."])

    texts: Texts = Field(description="One or several texts.")


class TokenizeRequest(TextsRequest):
    """Return the tokens of texts."""


class ScoreRequest(TextsRequest):
    """Return the log-probabilities of texts and of their tokens."""


class FillRequest(TextsRequest):
    """Predict masked words, most probable first. A mask is the model's mask token, `[MASK]`, `<mask>` or `___`."""

    model_config = example(texts=["The old [MASK] was quiet."], k=3)

    k: Count = Field(5, description="Predictions per mask.")
    pieces: Annotated[int, Field(ge=1, le=16)] | None = Field(None, description="Maximum tokens of a filler.")


class PredictRequest(EngineRequest):
    """Predict labels, scores, tags or answers by a fine-tuned run."""

    model_config = example(inputs=["A warm and funny film."])

    inputs: list[Text | Pair | Columns] = Field(
        description="Texts, pairs of texts, or objects with the columns of training."
    )
    task: Text | None = Field(None, description="Task of a multi-task run.")


class ExplainRequest(EngineRequest):
    """Return the importance of every token for a prediction: gradient x input."""

    model_config = example(input="A warm and funny film.")

    input: Text | Pair | Columns = Field(
        description="A text, a pair of texts, or an object with the columns of training."
    )
    task: Text | None = Field(None, description="Task of a multi-task run.")
    label: Text | None = Field(None, description="Label whose logit is explained; by default the predicted one.")


class SearchRequest(EngineRequest):
    """Search an index by meaning, or by BM25."""

    model_config = example(queries="a warm family film", k=3)

    queries: Texts = Field(description="One or several queries.")
    k: Count = Field(10, description="Results per query.")
    bm25: bool = Field(False, description="Rank by BM25 instead of vectors.")


class NeighborsRequest(EngineRequest):
    """Return the nearest neighbors of a word in context, and of its static vector."""

    model_config = example(
        word="bank", sentence="He sat on the bank of the river.", texts=["The boat reached the shore of the lake."], k=3
    )

    word: Word
    sentence: Text = Field("", description="Sentence with the word; not needed by word vectors.")
    texts: list[Text] = Field([], description="Texts to search; by default held-out texts of the model.")
    k: Count = Field(10, description="Number of neighbors.")
    layer: int | None = Field(None, description="0 (embeddings) to depth, or negative from the end.")
    same_word: bool = Field(False, description="Only other occurrences of the word.")


class WordInSentence(BaseModel):
    """A word and the sentence that it is in."""

    model_config = ConfigDict(extra="forbid")

    word: Word
    sentence: Text = Field("", description="Sentence with the word; not needed by word vectors.")


Occurrence = Annotated[WordInSentence, AfterValidator(lambda part: (part.word, part.sentence))]


class CompareRequest(EngineRequest):
    """Return the similarity of two words in their sentences, at every layer and of their static vectors."""

    model_config = example(
        first={"word": "bank", "sentence": "He sat on the bank of the river."},
        second={"word": "bank", "sentence": "She put the money in the bank."},
    )

    first: Occurrence = Field(description="A word and its sentence.")
    second: Occurrence = Field(description="Another word and its sentence.")


class HeadsRequest(EngineRequest):
    """Return who attends to whom in a text, by all heads of a part, and the pattern of each head."""

    model_config = example(text="The old house was quiet.")

    text: Text = Field(description="Text that is read.")
    part: Literal["encoder", "decoder", "cross"] | None = Field(None, description="Part of an encoder-decoder.")


class AttentionRequest(HeadsRequest):
    """Return who attends to whom in a text, by one head or by the mean of all."""

    model_config = example(text="The old house was quiet.", layer=1, head=1)

    layer: int | Literal["mean"] = Field(-1, description="Layer from 1, negative from the end, or the mean of all.")
    head: int | None = Field(None, description="Head from 1; by default the mean of all.")


REQUESTS: dict[str, type[EngineRequest]] = {
    "/fill": FillRequest,
    "/predict": PredictRequest,
    "/explain": ExplainRequest,
    "/score": ScoreRequest,
    "/search": SearchRequest,
    "/neighbors": NeighborsRequest,
    "/compare": CompareRequest,
    "/attention": AttentionRequest,
    "/heads": HeadsRequest,
    "/tokenize": TokenizeRequest,
}
"""By path."""
