"""Decisions about language models on record: the same model, options, versions and hardware are decided once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping

from bricolage._version import __version__
from bricolage.base.codec import DecodeError, decode, encode
from bricolage.base.decoder_options import DecoderOptions
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.costs.entries import SCHEMA
from bricolage.plan.decoder_plan import DECODER_FORMAT, DecoderPlan
from bricolage.verify.oracle import JUDGEMENT

_LOG = logging.getLogger(__name__)


def hash_decoder_question(
    digest: str, options: Options, wanted: DecoderOptions, versions: Mapping[str, str], fingerprint: str
) -> str:
    """Everything on which a decision about a language model rests, hashed.

    Args:
        digest: of the model's files.
        options: those that decide count.
        wanted: lengths, within those of the model.
        versions: of the backends that may take part, by name.
        fingerprint: of the device.
    """
    facts = {
        "language model": digest,
        "options": encode(options.deciding()),
        "wanted": encode(wanted),
        "versions": dict(versions),
        "device": fingerprint,
        "bricolage": __version__,
        "judgement": JUDGEMENT,
        "schema": SCHEMA,
        "format": DECODER_FORMAT,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def recall_decoder_plan(database: Database, key: str) -> DecoderPlan | None:
    """The decision on record; None where there is none that holds."""
    stored = database.get_race(key)
    if stored is None:
        return None
    try:
        return decode(DecoderPlan, stored)
    except DecodeError as error:  # written by another build of the same version: decide again
        _LOG.info("a stored decision has another form (%s)", error)
        return None


def store_decoder_plan(database: Database, plan: DecoderPlan) -> None:
    """Puts a decision on record."""
    database.put_race(_key_of(plan), encode(plan))


def complete_decoder_plan(database: Database, plan: DecoderPlan) -> None:
    """Adds the check of its artifact to a decision that is on record."""
    if database.get_race(_key_of(plan)) is not None:
        store_decoder_plan(database, plan)


def forget_decoder_plan(database: Database, plan: DecoderPlan) -> None:
    """Takes it from record: its artifact was not right."""
    database.put_race(_key_of(plan), None)


def _key_of(plan: DecoderPlan) -> str:
    origin = plan.provenance
    return hash_decoder_question(plan.digest, origin.options, plan.decoder, origin.versions, origin.fingerprint)
