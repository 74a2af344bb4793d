"""`LLM`: prompts in, texts out, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from tqdm import tqdm

from textgen.llm.base import EngineOwner, begin
from textgen.llm.outputs import CompletionOutput, RequestOutput
from textgen.llm.params import SamplingParams
from textgen.llm.prompts import Body, Message, Prompt, chat, completion, conversations_of, params_of, prompts_of
from textgen.llm.replies import Account


class LLM(EngineOwner):
    """The engine for offline use: the server's scheduler and shard, without HTTP.

    ::

        with LLM("ORG/MODEL") as llm:
            for output in llm.generate(["Once upon", "The capital of"], SamplingParams(max_tokens=40)):
                print(output.outputs[0].text)
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt; the outputs are in the order of the prompts.

        prompts: texts, lists of token ids, or dicts with `prompt` or `prompt_token_ids`; one or several.
        sampling_params: one for all, or one for each.

        Raises `InvalidRequest` for what cannot be used, another `RequestError` when a prompt failed, and
        `EngineClosed`. The first error ends the call and cancels the other prompts; its `index` is the prompt's place.
        """
        every = prompts_of(prompts)
        params = params_of(sampling_params, len(every))
        return self._run([completion(*pair) for pair in zip(every, params, strict=True)], use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
    ) -> list[RequestOutput]:
        """The same for one conversation or several, by the model's chat template.

        messages, tools, tool_choice: as in OpenAI's `/v1/chat/completions`. An answer's `text` is what the model wrote,
        its `message` that taken apart into text, reasoning and calls.
        """
        every = conversations_of(messages)
        options = {
            "tools": tools, "tool_choice": tool_choice, "chat_template_kwargs": chat_template_kwargs,
            "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message,
        }  # fmt: skip
        params = params_of(sampling_params, len(every))
        return self._run([chat(*pair, options) for pair in zip(every, params, strict=True)], use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[CompletionOutput]:
        """Yield the answers to one prompt piece by piece, each as soon as it is there; pieces that came meanwhile are
        joined.

        Closing the iterator cancels the prompt. Raises as `generate`; what cannot be streamed is `InvalidRequest`.
        """
        body = completion(prompt, sampling_params or SamplingParams(), streamed=True)
        calls = self.engine.calls()
        try:
            account = begin(calls, 0, body)
            while not account.output.finished:
                for _, reply in self.engine.replies(calls):
                    yield from account.add(reply)
                    if reply.fault is not None:
                        raise self.engine.error(reply.fault)
        finally:
            calls.cancel()

    def _run(self, bodies: Sequence[Body], use_tqdm: bool) -> list[RequestOutput]:
        accounts: dict[int, Account] = {}
        calls = self.engine.calls()
        with closing(_Bar(len(bodies), shown=use_tqdm)) as bar:
            try:
                waiting = iter(enumerate(bodies))
                # As many as run at once, and as many again, so that none of the former's places is ever empty.
                window = 2 * self.engine.plan.settings.max_concurrent_requests
                open_ = 0
                while True:
                    while open_ < window and (following := next(waiting, None)) is not None:
                        index, body = following
                        accounts[index] = begin(calls, index, body)
                        open_ += 1
                    if not open_:
                        return [accounts[index].output for index in range(len(bodies))]
                    for index, reply in self.engine.replies(calls):
                        if reply.fault is not None:
                            raise self.engine.error(reply.fault, index)
                        accounts[index].add(reply)
                        if reply.done:
                            open_ -= 1
                            bar.advance(accounts[index].output)
            finally:
                calls.cancel()


class _Bar:
    """Prompts that are done, and how fast tokens go in and come out."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar: tqdm[Any] = tqdm(
            total=total, disable=not shown, desc="Prompts", unit="prompt", dynamic_ncols=True,
        )  # fmt: skip
        self._read = self._written = 0

    def advance(self, output: RequestOutput) -> None:
        self._read += len(output.prompt_token_ids)
        self._written += sum(len(answer.token_ids) for answer in output.outputs)
        if not self._bar.disable:
            seconds = max(self._bar.format_dict["elapsed"], 1e-9)
            speeds = f"in {self._read / seconds:.0f} tokens/s, out {self._written / seconds:.0f} tokens/s"
            self._bar.set_postfix_str(speeds, refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()
