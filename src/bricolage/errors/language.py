"""Of language models that generate text."""

from __future__ import annotations

from bricolage.errors.base import BricolageError, UsageError


class EmptyPrompt(UsageError):
    what = "the prompt has no tokens, and a model needs one to go on from"
    hint = "Give a text of one letter at least"


class ContextFull(UsageError):
    what = "{tokens} tokens do not fit the model, which was trained for {limit}"
    hint = "Shorten the prompt, or ask for fewer new tokens: behind its last position a model answers nonsense"


class BadTemplate(UsageError):
    what = "the model's chat template cannot be used: {reason}"
    hint = "Give the whole prompt as it is, with --raw or raw=True"


class MissingTemplate(UsageError):
    what = "the model has no chat template, so messages cannot become a prompt"
    hint = "Give the whole prompt as it is, with --raw or raw=True"


class BadMessage(UsageError):
    what = "message {index} cannot be used: {reason}"
    hint = "A message has a 'role' and a 'content' that is text"


class OtherVocabulary(UsageError):
    what = "{first} and {second} do not have the same tokens: {difference}"
    hint = "Use a tokenizer, and a draft model, of the model's own family"


class UndefinedLogits(BricolageError):
    what = "the model answered with a number that is undefined (NaN) behind token {position}"
    hint = "Check the model's file: its weights overflow, or it is damaged"


class BadField(UsageError):
    """Of a request in OpenAI's form."""

    what = "the field '{name}' of the request cannot be used: {reason}"
    hint = "Send it as OpenAI's API has it, without what a language model alone cannot do"


class UnusableText(UsageError):
    """Of a text that a model's accuracy is measured on, or its weights are rounded by."""

    what = "'{path}' cannot be used to judge a language model: {reason}"
    hint = "Give a file of plain text (UTF-8) that the model was not trained on, of some pages"
