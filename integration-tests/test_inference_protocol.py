"""The Open Inference Protocol through Triton's own clients, over REST and gRPC."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import queue
import re
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
from support.api import Api
from support.processes import frozen
from support.reference import Reference
from support.server import Launcher, Start
from support.waiting import until

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it says of a connection that ends is no fault
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries, at import
    import tritonclient.grpc as triton_grpc
    import tritonclient.grpc.aio as triton_grpc_aio
    import tritonclient.http as triton_http
    from tritonclient.utils import InferenceServerException

MODEL = "textgen-demo"
PROMPT = "Once upon a time"
GREEDY = {"temperature": "0", "max_tokens": "12"}  # as text, which Triton's own example sends
SECONDS = 60.0
_GRPC = re.compile(r"grpc_address\W+([\d.]+:\d+)")


def grpc_address(launcher: Launcher) -> str:
    return str(until(lambda: (found := _GRPC.search(launcher.log)) and found[1], "the log has gRPC's address"))


@pytest.fixture(scope="module")
def server(start_for_module: Start) -> Launcher:
    """The built-in model, with gRPC."""
    return start_for_module(dtype="float32", grpc_port=0).wait_ready()


@pytest.fixture(scope="module")
def grpc_client(server: Launcher) -> Iterator[Any]:
    with triton_grpc.InferenceServerClient(grpc_address(server)) as client:
        yield client


@pytest.fixture(scope="module")
def http_client(server: Launcher) -> Iterator[Any]:
    with triton_http.InferenceServerClient(server.address, network_timeout=SECONDS) as client:
        yield client


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest) -> tuple[ModuleType, Any]:
    """One of the clients, and the module that it comes from."""
    modules = {"http": triton_http, "grpc": triton_grpc}
    return modules[request.param], request.getfixturevalue(f"{request.param}_client")


@pytest.fixture
def text(built_in_reference: Reference) -> str:
    return built_in_reference.greedy(built_in_reference.encode(PROMPT), 12).text


def tensor(module: ModuleType, name: str, datatype: str, values: Any, dtype: Any = object) -> Any:
    array = np.array(values, dtype=dtype)
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def inputs(module: ModuleType, prompt: str = PROMPT, sampling: Any = None, **switches: bool) -> list[Any]:
    """The tensors of one prompt."""
    sampling = GREEDY if sampling is None else sampling
    return [
        tensor(module, "text_input", "BYTES", [prompt.encode()]),
        tensor(module, "sampling_parameters", "BYTES", [json.dumps(sampling).encode()]),
        *(tensor(module, name, "BOOL", [on], bool) for name, on in switches.items()),
    ]


def test_facts_and_health(client: tuple[ModuleType, Any]) -> None:
    module, triton = client
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready(MODEL)
    assert triton.is_model_ready(MODEL, "1")
    json_form = {"as_json": True} if module is triton_grpc else {}
    assert triton.get_server_metadata(**json_form)["name"] == "textgen"
    facts = triton.get_model_metadata(MODEL, **json_form)
    assert facts["versions"] == ["1"]
    assert {"name": "text_input", "datatype": "BYTES"}.items() <= facts["inputs"][0].items()
    assert [output["name"] for output in facts["outputs"]][:2] == ["text_output", "finish_reason"]


def test_a_text_is_that_of_the_reference(client: tuple[ModuleType, Any], text: str) -> None:
    module, triton = client
    said = triton.infer(MODEL, inputs(module, exclude_input_in_output=True), request_id="7")
    assert said.as_numpy("text_output").tolist() == [text.encode()]
    assert said.as_numpy("finish_reason").tolist() == [b"length"]
    assert said.as_numpy("num_output_tokens").tolist() == [12]
    response = said.get_response()
    assert (response["id"] if isinstance(response, dict) else response.id) == "7"
    # As Triton does, a whole text begins with the prompt unless that is to be left out.
    outputs = [module.InferRequestedOutput("text_output")]
    full = triton.infer(MODEL, inputs(module), model_version="1", outputs=outputs)
    assert full.as_numpy("text_output").tolist() == [(PROMPT + text).encode()]
    assert full.as_numpy("finish_reason") is None


def test_batches_and_settings_in_tensors(client: tuple[ModuleType, Any], text: str) -> None:
    """As TensorRT-LLM's clients send them: a row for each prompt, a tensor for each setting."""
    module, triton = client
    given = [
        tensor(module, "text_input", "BYTES", [[PROMPT.encode()], [PROMPT.encode()]]),
        tensor(module, "max_tokens", "INT32", [[12], [12]], np.int32),
        tensor(module, "temperature", "FP32", [[0], [0]], np.float32),
        tensor(module, "stop_words", "BYTES", [[b""], [b""]]),
        tensor(module, "exclude_input_in_output", "BOOL", [[True], [True]], bool),
    ]
    assert triton.infer(MODEL, given).as_numpy("text_output").tolist() == [[text.encode()], [text.encode()]]


def test_errors(client: tuple[ModuleType, Any]) -> None:
    module, triton = client
    for model, given, status, words in [
        ("other", inputs(module), ("404", "StatusCode.NOT_FOUND"), "`other` is not served here"),
        (MODEL, inputs(module, sampling={"temperature": -1}), ("400", "StatusCode.INVALID_ARGUMENT"), "`temperature`"),
        (MODEL, inputs(module)[1:], ("400", "StatusCode.INVALID_ARGUMENT"), "`text_input` is missing"),
        (MODEL, inputs(module, stream=True), ("400", "StatusCode.INVALID_ARGUMENT"), "ModelStreamInfer"),
    ]:
        with pytest.raises(InferenceServerException, match=words) as refused:
            triton.infer(model, given)
        assert refused.value.status() in status
    assert triton.is_server_ready()


class Answers:
    """What a stream's callback is given."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def __call__(self, result: Any, error: Any) -> None:
        self.came.put((result, error))

    def next(self) -> tuple[Any, Any]:
        return self.came.get(timeout=SECONDS)

    def all(self, ids: set[str]) -> dict[str, list[Any]]:
        """The answers by request, until each of these had its last one."""
        said: dict[str, list[Any]] = {name: [] for name in ids}
        left = set(ids)
        while left:
            result, error = self.next()
            assert error is None, error
            response = result.get_response()
            said[response.id].append(result)
            if response.parameters["triton_final_response"].bool_param:
                left.remove(response.id)
        return said


def test_a_stream_of_several_requests(grpc_client: Any, text: str) -> None:
    answers = Answers()
    grpc_client.start_stream(callback=answers)
    module = triton_grpc
    grpc_client.async_stream_infer(MODEL, inputs(module, stream=True), request_id="pieces")
    grpc_client.async_stream_infer(MODEL, inputs(module, exclude_input_in_output=True), request_id="whole")
    grpc_client.async_stream_infer(
        MODEL, inputs(module, stream=True), request_id="empty", enable_empty_final_response=True
    )
    said = answers.all({"pieces", "whole", "empty"})
    joined = {name: b"".join(one.as_numpy("text_output")[0] for one in said[name] if one.get_response().outputs)
              for name in said}  # fmt: skip
    assert joined == dict.fromkeys(said, text.encode())
    assert (len(said["whole"]), len(said["pieces"]), len(said["empty"])) == (1, 12, 13)
    assert said["pieces"][-1].as_numpy("finish_reason").tolist() == [b"length"]
    # One request that is wrong ends nothing but itself.
    grpc_client.async_stream_infer("other", inputs(module), request_id="wrong")
    _, error = answers.next()
    assert "`other` is not served here" in error.message()
    grpc_client.async_stream_infer(MODEL, inputs(module), request_id="after")
    assert answers.all({"after"})["after"][0].as_numpy("text_output").tolist() == [(PROMPT + text).encode()]
    grpc_client.stop_stream()


def test_the_asynchronous_client(server: Launcher, text: str) -> None:
    async def pieces() -> list[bytes]:
        async def requests() -> Any:
            yield {"model_name": MODEL, "inputs": inputs(triton_grpc, stream=True), "request_id": "a"}

        async with triton_grpc_aio.InferenceServerClient(grpc_address(server)) as client:
            said = []
            async for result, error in client.stream_infer(requests(), stream_timeout=SECONDS):
                assert error is None, error
                said.append(result.as_numpy("text_output")[0])
            return said

    said = asyncio.run(pieces())
    assert (len(said), b"".join(said)) == (12, text.encode())


def test_the_generate_extension(server: Launcher, text: str) -> None:
    api = Api(server.url)
    body = {"text_input": PROMPT, "parameters": {"temperature": 0, "max_tokens": 12}}
    assert api.post(f"/v2/models/{MODEL}/generate", body)["text_output"] == PROMPT + text
    with api.events(f"/v2/models/{MODEL}/versions/1/generate_stream", body) as events:
        said = list(events)
    assert "".join(event["text_output"] for event in said) == text
    assert [event.get("finish_reason") for event in said] == [None] * 11 + ["length"]
    api.close()


SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # messages of grpc.health.v1


def test_health_by_grpcs_own_protocol(server: Launcher) -> None:
    with grpc.insecure_channel(grpc_address(server)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=SECONDS) == SERVING
        assert check(b"\x0a\x1einference.GRPCInferenceService", timeout=SECONDS) == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            check(b"\x0a\x05other", timeout=SECONDS)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        changes = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=SECONDS)
        assert next(changes) == SERVING
        changes.cancel()


def test_the_deadline_of_a_call_ends_its_request(server: Launcher) -> None:
    """The shard is held still, so that the deadline passes before there is an answer. The server's own clock ends the
    request, or the client does, which leaves."""

    def failed() -> float:
        metrics = server.metrics()
        return sum(metrics.value("tgi_request_failure", err=cause) for cause in ("timeout", "dropped"))

    before = failed()
    with triton_grpc.InferenceServerClient(grpc_address(server)) as client, frozen(server.shard()):
        with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
            client.infer(MODEL, inputs(triton_grpc), client_timeout=0.5)
        until(lambda: failed() == before + 1, "the request has ended")


@pytest.mark.parametrize("call", ["stream", "infer"])
def test_a_client_that_goes_cancels(server: Launcher, call: str) -> None:
    """The shard is held still while the client leaves: nothing can have come to its end by itself."""

    def runs() -> bool:
        return server.metrics().value("textgen_sequences_running") > 0

    def dropped() -> float:
        return server.metrics().value("tgi_request_failure", err="dropped")

    before, given = dropped(), inputs(triton_grpc, stream=call == "stream")
    leave: Callable[[], Any]
    with triton_grpc.InferenceServerClient(grpc_address(server)) as client, frozen(server.shard()):
        if call == "stream":
            client.start_stream(callback=Answers())
            client.async_stream_infer(MODEL, given)
            leave = functools.partial(client.stop_stream, cancel_requests=True)
        else:
            leave = client.async_infer(MODEL, given, Answers()).cancel
        until(runs, "the request runs")
        leave()
        until(lambda: dropped() > before, "the server sees that the client is gone")
    until(lambda: not runs(), "the seat is free")
