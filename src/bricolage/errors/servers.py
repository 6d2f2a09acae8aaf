"""Of a server that answers requests over a network."""

from __future__ import annotations

from bricolage.errors.base import BricolageError, UsageError


class BadRequest(UsageError):
    what = "the request cannot be read: {reason}"
    hint = "Send it as the Open Inference Protocol has it"


class BadTensor(UsageError):
    what = "tensor '{name}' of the request cannot be read: {reason}"
    hint = "Compare its datatype, shape and length with the model's metadata"


class UnknownPath(UsageError):
    what = "there is nothing at {method} {path}"
    hint = "Paths begin with /v2, for example GET /v2/health/ready; POST /v2/models/NAME/infer"


class UnknownModel(UsageError):
    what = "there is no model '{name}'"
    hint = "There are: {expected}"


class UnknownOutput(UsageError):
    what = "the model has no output '{name}'"
    hint = "It returns: {expected}"


class NotInJson(UsageError):
    what = "output '{name}' cannot be written as JSON: {reason}"
    hint = "Ask for it in binary, by the parameter binary_data"


class RequestTooLarge(UsageError):
    what = "the request is longer than {limit}"
    hint = "Send fewer rows, or start the server with a higher --request-limit"


class SlowRequest(UsageError):
    what = "the request did not arrive within {limit}"
    hint = "Send it faster, or start the server with a higher --time-limit"


class AnswerTooLate(BricolageError):
    what = "there was no answer within {limit}"
    hint = "Send fewer requests at a time, or start the server with a higher --time-limit"


class ModelNotReady(BricolageError):
    what = "'{name}' is not ready yet: it is being loaded"
    hint = "Wait for GET /v2/models/{name}/ready"


class ServerDraining(BricolageError):
    what = "the server is shutting down and takes no more requests"
    hint = "Send the request to another server"


class NotServable(UsageError):
    what = "'{model}' cannot be served: {reason}"
    hint = "Call it in Python, where bricolage.load takes and returns every type"


class PortTaken(UsageError):
    what = "the server cannot listen on port {port} of {host}: {reason}"
    hint = "Give another port, or 0 for any that is free"
