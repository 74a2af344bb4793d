"""`AsyncLLM`: the same for programs with an event loop, asyncio's or trio's."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from textgen.llm.base import EngineOwner, begin
from textgen.llm.outputs import RequestOutput
from textgen.llm.params import RequestOutputKind, SamplingParams
from textgen.llm.prompts import Body, Message, Prompt, chat, completion

Owner = TypeVar("Owner", bound="AsyncLLM")


class AsyncLLM(EngineOwner):
    """The engine for many prompts that come and go. Making one takes the time that the model needs to load; `start`
    waits for it without holding up the loop.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        super().__init__(model, **settings)
        # Each request holds a descriptor, so no more of them are begun at once than can run.
        self._places: RunVar[anyio.Semaphore] = RunVar("places")

    @classmethod
    async def start(cls: type[Owner], model: str | None = None, **settings: Any) -> Owner:
        """An engine that is ready."""
        return await anyio.to_thread.run_sync(lambda: cls(model, **settings))

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Yield what there is of the answers to one prompt, as `sampling_params.output_kind` says, until they are
        finished.

        Where only the end tells what the answers are (more sequences than answers, beams, log-probabilities of the
        prompt), there is one output. Leaving the iterator, or cancelling its task, cancels the prompt. Raises as
        `LLM.generate`.
        """
        params = sampling_params or SamplingParams()
        return self._outputs(completion(prompt, params, streamed=_streamed(params)), request_id)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **options: Any,
    ) -> AsyncIterator[RequestOutput]:
        """The same for a conversation. options: those of `LLM.chat`; a `message` comes with `FINAL_ONLY`."""
        params = sampling_params or SamplingParams()
        return self._outputs(chat(messages, params, options, streamed=_streamed(params)), request_id)

    async def aclose(self) -> None:
        """End the engine without holding up the loop."""
        await anyio.to_thread.run_sync(self.close)

    async def __aenter__(self: Owner) -> Owner:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    async def _outputs(self, body: Body, request_id: str | None) -> AsyncIterator[RequestOutput]:
        only_new = body.params.output_kind is RequestOutputKind.DELTA
        async with self._room():
            calls = self.engine.calls()
            try:
                account = begin(calls, 0, body)
                output = account.output
                output.request_id = request_id or uuid.uuid4().hex
                while not output.finished:
                    await anyio.wait_readable(calls.fileno())
                    for _, reply in self.engine.replies(calls, 0.0):
                        fresh = account.add(reply)
                        output.finished = reply.done and reply.fault is None
                        if fresh or output.finished:
                            yield _copy(output, fresh if only_new else output.outputs)
                        if reply.fault is not None:
                            raise self.engine.error(reply.fault)
            finally:
                calls.cancel()

    def _room(self) -> anyio.Semaphore:
        try:
            return self._places.get()
        except LookupError:
            places = anyio.Semaphore(self.engine.plan.settings.max_concurrent_requests)
            self._places.set(places)
            return places


def _streamed(params: SamplingParams) -> bool:
    return params.output_kind is not RequestOutputKind.FINAL_ONLY and params.streamable()


def _copy(output: RequestOutput, answers: list[Any]) -> RequestOutput:
    """As it is now: what was yielded does not change behind its reader's back."""
    outputs = [
        replace(
            answer,
            token_ids=list(answer.token_ids),
            logprobs=None if answer.logprobs is None else list(answer.logprobs),
        )
        for answer in answers
    ]
    return replace(output, outputs=outputs)
