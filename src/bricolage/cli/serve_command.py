"""`bricolage serve`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.base.generation_options import LanguageSettings
from bricolage.base.option_words import parse_bytes, parse_milliseconds
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.cli.run import AnyMachine, Point

if TYPE_CHECKING:
    from bricolage.api.model_serving import Listening

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="[NAME=]ARTIFACT...",
        help="Artifacts, or language models; a model's name is that of its file.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on; 0.0.0.0: all of IPv4.")]
HttpPort = Annotated[int, typer.Option("--http-port", metavar="PORT", help="Port of HTTP; 0: any that is free.")]
GrpcPort = Annotated[int, typer.Option("--grpc-port", metavar="PORT", help="Port of gRPC; 0: any that is free.")]
RequestLimit = Annotated[
    str, typer.Option("--request-limit", metavar="SIZE", help="Largest request: 64MB, 500kB, 1GiB.")
]
TimeLimit = Annotated[
    str, typer.Option("--time-limit", metavar="TIME", help="For a request to arrive, and again for its answer.")
]
StreamInterval = Annotated[
    str,
    typer.Option(
        "--stream-interval",
        metavar="TIME",
        help="Of language models: tokens of a stream that come within this time are sent together; 0: each at once.",
    ),
]
Grace = Annotated[
    str, typer.Option("--grace", metavar="TIME", help="For requests under way when SIGTERM or Ctrl-C ends the server.")
]


@guard_command
@a.decision_options(
    *("threads", "precision", "speculate", "cache", "most_sequences", "prefix_bytes"),
    of=LanguageSettings,
    into="language",
)
def serve(
    models: Models,
    host: Host = "127.0.0.1",
    http_port: HttpPort = 8080,
    grpc_port: GrpcPort = 8081,
    point: Point = None,
    request_limit: RequestLimit = "64MB",
    time_limit: TimeLimit = "60s",
    grace: Grace = "30s",
    any_machine: AnyMachine = False,
    target: a.Target = "",
    stream_interval: StreamInterval = "20ms",
    *,
    language: LanguageSettings,
    as_json: a.Json = False,
) -> None:
    """Answer requests to models by the Open Inference Protocol, over HTTP and gRPC, until SIGTERM or Ctrl-C.

    Language models answer by OpenAI's routes, over HTTP alone.
    """
    from bricolage.api.model_serving import OperatingPoint, ServerSettings, name_models, serve_artifacts
    from bricolage.cli import output, progress_bars

    settings = ServerSettings(
        host,
        http_port,
        grpc_port,
        request_limit=parse_bytes(request_limit, "--request-limit"),
        time_limit_s=a.positive_seconds(time_limit, "--time-limit"),
        grace_s=a.positive_seconds(grace, "--grace"),
        point=None if point is None else OperatingPoint.parse(point),
        stream_interval_s=parse_milliseconds(stream_interval, "--stream-interval") / 1e3,
    )

    def show(listening: Listening) -> None:
        loading.close()
        if as_json:
            print(json.dumps(asdict(listening)), flush=True)
        else:
            names = ", ".join(listening.models)
            grpc = "/v1" if listening.grpc_port is None else f", gRPC {listening.host}:{listening.grpc_port}"
            output.note(f"serving {names}: http://{listening.host}:{listening.http_port}{grpc}")

    with ExitStack() as loading:
        shown = loading.enter_context(progress_bars.show_progress())
        paths = name_models(models)
        serve_artifacts(paths, settings, language, any_machine=any_machine, target=target, begun=show, progress=shown)
