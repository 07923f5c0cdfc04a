"""Engine: several models behind one asynchronous interface; requests of all clients are batched.

    async with Engine({"gpt": "runs/gpt", "bert": "runs/bert"}) as engine:
        completion = await engine.complete("gpt", ["Once upon a time"], max_new_tokens=20, temperature=0)
        completion.texts[0][0].new
        async for piece in engine.stream("gpt", "Once upon a time"):
            print(piece.text, end="")
        vectors = (await engine.embed("bert", ["a text", "another"])).vectors

Each model has a thread and a bounded queue (`worker.py`). A request that is cancelled, or takes longer than
`request_seconds`, is removed from its batch; an error of the model fails the request that caused it.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pretune.core.errors import UsageError, suggest
from pretune.inference.generate import choose_max_new_tokens
from pretune.inference.generation_config import GenerationOptions, build_generation_config
from pretune.server.capabilities import (
    AttentionViewer,
    Capability,
    Chatter,
    Completer,
    Explainer,
    IndexSearcher,
    MaskFiller,
    NeighborFinder,
    RunPredictor,
    TextEmbedder,
    TextScorer,
    TextTokenizer,
    WordComparer,
    list_texts,
)
from pretune.server.completion import (
    Completion,
    CompletionOptions,
    CompletionPiece,
    PieceCallback,
    Prompt,
    build_job,
    list_prompts,
)
from pretune.server.config import ServerConfig
from pretune.server.errors import RequestTimeoutError, UnavailableError, UnknownModelError
from pretune.server.metrics import Metrics
from pretune.server.served_model import ServedModel, build_card
from pretune.server.worker import BatchJob, Job, ModelWorker
from pretune.text.chat import Message

C = TypeVar("C", bound=Capability)
Source = str | os.PathLike[str] | nn.Module
"""A model directory, a run, an index, a file of word vectors, or a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTexts:
    """Vectors `[n, width]` in the order of the texts, and the number of tokens."""

    vectors: NDArray[np.float32]
    tokens: int


class Engine:
    """Models by name, each with a thread that batches its requests.

    Args:
        sources: Models by name.
        device: cpu, cuda or cuda:N; by default a GPU if available.
        config: Limits.

    `load` or `async with` loads the models; until then, and after `drain`, requests raise an UnavailableError.
    """

    def __init__(
        self, sources: Mapping[str, Source], *, device: str | None = None, config: ServerConfig | None = None
    ) -> None:
        self.sources, self.device, self.config = dict(sources), device, config or ServerConfig()
        self.metrics = Metrics()
        self.workers: dict[str, ModelWorker] = {}
        self.created = int(time.time())
        self.is_draining = False  # no new requests are accepted
        self._running: set[object] = set()
        self._card_lock = asyncio.Lock()  # files of one model at a time

    def load(self) -> None:
        """Load all models and start their threads."""
        models = [ServedModel.load(name, source, self.device) for name, source in self.sources.items()]
        self.workers = {model.name: ModelWorker(model, self.config, self.metrics) for model in models}

    async def __aenter__(self) -> "Engine":
        if not self.workers:
            await asyncio.to_thread(self.load)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.drain)

    @property
    def is_ready(self) -> bool:
        """True if all models are loaded and requests are accepted."""
        return len(self.workers) == len(self.sources) and not self.is_draining

    @property
    def running_requests(self) -> int:
        """Number of requests, and of their parts, that have not ended."""
        return len(self._running)

    def stop_accepting(self) -> None:
        """Refuse new requests; running ones continue."""
        self.is_draining = True

    def drain(self, seconds: float | None = None) -> bool:
        """Refuse new requests, and wait for the running ones; returns whether all have ended in time.

        Requests that are left after `seconds` (by default `drain_seconds`) fail with an UnavailableError.
        """
        self.stop_accepting()
        deadline = time.monotonic() + (self.config.drain_seconds if seconds is None else seconds)
        for worker in self.workers.values():
            worker.stop()
        is_done = [worker.join(max(deadline - time.monotonic(), 0.0)) for worker in self.workers.values()]
        return all(is_done)

    def get_model(self, name: str) -> ServedModel:
        """Return a model. Raises an UnknownModelError."""
        return self._get_worker(name).model

    def _get_worker(self, name: str) -> ModelWorker:
        if self.is_draining:
            raise UnavailableError("the server is shutting down; send the request to another one")
        if name not in self.sources:
            raise UnknownModelError(
                f"unknown model '{name[:80]}'{suggest(name, self.sources)} (models: {', '.join(self.sources)})"
            )
        if name not in self.workers:
            raise UnavailableError("the models are being loaded; try again later")
        return self.workers[name]

    def _find(self, name: str, kind: type[C]) -> tuple[ModelWorker, C]:
        """Return a model's worker and capability. Raises UnknownModelError, or CapabilityError if it lacks that."""
        worker = self._get_worker(name)
        return worker, worker.model.get(kind)

    async def complete(
        self,
        model: str,
        prompts: Prompt | Sequence[Prompt],
        *,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        echo: bool = False,
        best_of: int | None = None,
        on_piece: PieceCallback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Completion:
        """Complete prompts, texts or lists of token ids.

        Args:
            model: Name of the model.
            prompts: One or several texts, or lists of token ids.
            stop: Texts before which a completion ends.
            logprobs: Return the log-probability of every token, and of this number of most probable ones.
            echo: Pieces and log-probabilities include the prompt; `max_new_tokens` may then be 0.
            best_of: Generate this number of texts for each prompt, and return the `num` of them that have the highest
                mean log-probability of a token.
            on_piece: Called with pieces of the texts, from the thread of the model.
            options: Those of `pretune.generate`, without beams.
        """
        worker, capability = self._find(model, Completer)
        worker.check_queue()
        deadline = time.monotonic() + self.config.request_seconds
        options.setdefault("max_new_tokens", choose_max_new_tokens(capability.decoder))
        has_new, returns = options["max_new_tokens"] > 0 or not echo, options.get("num", 1)
        if not has_new:
            options["max_new_tokens"] = 1  # which is not generated
        if best_of is not None:
            if best_of < returns:
                raise UsageError(f"best_of must be >= n, got {best_of} for {returns}")
            options["num"] = best_of
        wants = CompletionOptions(
            config=build_generation_config(**options),
            has_new=has_new,
            stop=stop,
            logprobs=logprobs,
            echo=echo,
            returns=returns if best_of is not None or not has_new else None,
            on_piece=on_piece,
        )
        prompt_list = list_prompts(prompts)
        job = await asyncio.to_thread(build_job, capability, prompt_list, wants, self.config)
        with self.track(job):
            if echo and logprobs is not None and not capability.decoder.spec.is_encoder_decoder:
                work = partial(Completer.compute_logprobs, count=logprobs)
                scoring = BatchJob("logprobs", capability, job.prompt_ids, work, capability.chunk_size)
                entries = await self._wait(worker, scoring, deadline)
                job.prompt_logprobs = await asyncio.to_thread(job.spell_prompts, prompt_list, entries)
            completion: Completion = await self._wait(worker, job, deadline) if has_new else job.build_result()
        return completion

    async def encode_chat(
        self, model: str, messages: Sequence[Message], new_tokens: int | None = None
    ) -> tuple[list[int], int]:
        """Return the prompt of a chat for `complete` and `stream`, and the number of new tokens, if none is given."""
        _, capability = self._find(model, Chatter)
        return await asyncio.to_thread(capability.encode, messages, new_tokens, self.config)

    async def stream(
        self,
        model: str,
        prompts: Prompt | Sequence[Prompt],
        *,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        echo: bool = False,
        on_end: Callable[[Completion], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AsyncGenerator[CompletionPiece, None]:
        """Yield pieces of the completions of one or several prompts while they are generated.

        A piece ends at a character, and never holds a stop string or the start of one. `on_end` is called with the
        result after the last piece.
        """
        if options.get("max_new_tokens") == 0:
            raise UsageError("a stream needs new tokens, got max_tokens 0")
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[CompletionPiece | None]()

        def on_piece(piece: CompletionPiece) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        task = asyncio.create_task(
            self.complete(model, prompts, stop=stop, logprobs=logprobs, echo=echo, on_piece=on_piece, **options)
        )
        # NOTE: the end of the task comes by the same loop as the pieces, hence after the last of them.
        task.add_done_callback(lambda _: loop.call_soon(pieces.put_nowait, None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            completion = await task
            if on_end is not None:
                on_end(completion)
        finally:
            task.cancel()

    def format_metrics(self) -> str:
        """Return measurements in the text format of Prometheus."""
        gauges = {
            "pretune_queue_length": {name: worker.queue_length for name, worker in self.workers.items()},
            "pretune_running_texts": {name: worker.running_rows for name, worker in self.workers.items()},
        }
        return self.metrics.format(gauges)

    async def embed(self, model: str, texts: Sequence[str]) -> EmbeddedTexts:
        """Embed texts, in the pooling of the model's directory."""
        results = await self._run(model, TextEmbedder, texts, partial(TextEmbedder.run))
        vectors = np.stack([result.vector for result in results])
        return EmbeddedTexts(vectors=vectors, tokens=sum(result.tokens for result in results))

    async def fill(self, model: str, texts: Sequence[str], *, k: int = 5, pieces: int | None = None) -> list[Any]:
        """Fill the masks of texts: for each `{"blanks": [[prediction, …], …], "filled": text}`."""
        k = self._check_count(k, self.config.max_predictions)
        _, capability = self._find(model, MaskFiller)
        self._check_texts(texts)
        await asyncio.to_thread(capability.check_masks, texts, k=k, pieces=pieces, config=self.config)
        size = capability.get_chunk_size(k, pieces)
        return await self._run(model, MaskFiller, texts, partial(MaskFiller.run, k=k, pieces=pieces), chunk_size=size)

    async def predict(self, model: str, inputs: Sequence[Any], *, task: str | None = None) -> list[Any]:
        """Predict texts, pairs of texts or mappings by a fine-tuned run; `task` is one of a multi-task run."""
        return await self._run(model, RunPredictor, inputs, partial(RunPredictor.run, task=task))

    async def explain(self, model: str, item: Any, *, task: str | None = None, label: str | None = None) -> Any:
        """Return the importance of the tokens of an input for its prediction, or for another label."""
        return (await self._run(model, Explainer, [item], partial(Explainer.explain, task=task, label=label)))[0]

    async def score(self, model: str, texts: Sequence[str]) -> list[Any]:
        """Return the log-probability of texts and of their tokens."""
        return await self._run(model, TextScorer, texts, partial(TextScorer.run))

    async def search(self, model: str, queries: Sequence[str], *, k: int = 10, bm25: bool = False) -> list[Any]:
        """Search an index by meaning, or by BM25."""
        work = partial(IndexSearcher.run, k=self._check_count(k), words=bm25)
        return await self._run(model, IndexSearcher, queries, work)

    async def neighbors(
        self,
        model: str,
        word: str,
        sentence: str = "",
        texts: Sequence[str] = (),
        *,
        k: int = 10,
        layer: int | None = None,
        same_word: bool = False,
    ) -> Any:
        """Return the neighbors of a word of a sentence among texts (by default held-out ones), and static ones."""
        self._check_texts([*texts, sentence, word])
        work = partial(NeighborFinder.find, k=self._check_count(k), layer=layer, same_word=same_word)
        return (await self._run(model, NeighborFinder, [(word, sentence, tuple(texts))], work))[0]

    async def compare(self, model: str, first: tuple[str, str], second: tuple[str, str]) -> Any:
        """Return the similarities of two words, each with its sentence: of every layer, and static."""
        self._check_texts([*first, *second])
        return (await self._run(model, WordComparer, [(first, second)], partial(WordComparer.run)))[0]

    async def attention(
        self, model: str, text: str, *, layer: int | str = -1, head: int | None = None, part: str | None = None
    ) -> Any:
        """Return who attends to whom in a text, as `pt.view_attention`."""
        work = partial(AttentionViewer.run, layer=layer, head=head, part=part)
        return (await self._run(model, AttentionViewer, [text], work))[0]

    async def heads(self, model: str, text: str, *, part: str | None = None) -> Any:
        """Return who attends to whom in a text by all heads of a part, and the pattern of each head."""
        return (await self._run(model, AttentionViewer, [text], partial(AttentionViewer.run_heads, part=part)))[0]

    async def card(self, model: str) -> dict[str, object]:
        """Return the facts, the model card, the data card, the cost and the training curves of a model."""
        served_model = self.get_model(model)
        async with self._card_lock:
            return await asyncio.to_thread(build_card, served_model.loaded_model)

    async def tokenize(self, model: str, texts: Sequence[str]) -> list[Any]:
        """Return the tokens of texts."""
        _, capability = self._find(model, TextTokenizer)
        self._check_texts(texts)
        return await asyncio.to_thread(lambda: [capability.run(text) for text in texts])

    async def _run(
        self,
        model: str,
        kind: type[C],
        items: Sequence[Any],
        work: "partial[list[Any]]",
        chunk_size: int | None = None,
    ) -> list[Any]:
        """Return the results of a method of a capability for checked items."""
        worker, capability = self._find(model, kind)
        self._check_texts(items)
        await asyncio.to_thread(worker.model.check_lengths, items, self.config.max_length)
        job = BatchJob(capability.name, capability, [*items], work, chunk_size or capability.chunk_size)
        result: list[Any] = await self._wait(worker, job)
        return result

    async def _wait(self, worker: ModelWorker, job: Job, deadline: float | None = None) -> Any:
        """Submit a request and wait for its result, until a time of `monotonic` or at most `request_seconds`."""
        future: Future[Any] = job.future
        seconds = self.config.request_seconds if deadline is None else max(deadline - time.monotonic(), 0.0)
        with self.track(future):
            try:
                worker.submit(job)
                return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
            except TimeoutError:
                raise RequestTimeoutError(f"the request took longer than {self.config.request_seconds:g} s") from None
            finally:
                future.cancel()

    @contextlib.contextmanager
    def track(self, request: object) -> Iterator[None]:
        """Count a request, or a part of it, as running."""
        self._running.add(request)
        try:
            yield
        finally:
            self._running.discard(request)

    def _check_texts(self, items: Sequence[Any]) -> None:
        """Raise a UsageError for a single text instead of a list, and for too many or too long texts."""
        if isinstance(items, str):
            raise UsageError("texts must be a list, got a single text; use [text]")
        if not items or len(items) > self.config.max_texts:
            raise UsageError(f"a request must have from 1 to {self.config.max_texts} texts, got {len(items)}")
        for item in items:
            size = sum(map(len, list_texts(item)))
            if size > self.config.max_characters:
                raise UsageError(f"a text must have <= {self.config.max_characters} characters, got {size}")

    def _check_count(self, k: int, limit: int | None = None) -> int:
        limit = limit or self.config.max_results
        if not 1 <= k <= limit:
            raise UsageError(f"the number of results must be from 1 to {limit}, got {k}")
        return k
