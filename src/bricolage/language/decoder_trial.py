"""An artifact of a language model, tried in a fresh process: loaded as users load it, and compared with float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bricolage.base import scratch
from bricolage.base.generation_options import LanguageSettings
from bricolage.base.options import Options, Precision
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.errors import ArtifactFails
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.language.any_decoder import read_any_decoder
from bricolage.language.decoder_model import STEP_ROWS
from bricolage.language.planned_decoder import run_planned_decoder
from bricolage.measure.launch import EntryPoint
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from bricolage.measure.worker_loop import Commands, Tell
from bricolage.plan.decoder_plan import DecoderCheck, DecoderPlan, read_decoder_plan
from bricolage.verify.compare import relative_error
from bricolage.verify.decoder_reference import compute_divergence, extend_decoder_cache

ENTRY = EntryPoint("bricolage.language.decoder_trial:trial_commands", ("bricolage.language.planned_decoder",))
KL_BOUNDS: dict[Precision, float] = {"highest": 1e-6, "high": 1e-5, "medium": 1e-3, "low": 2e-2}
"""Accepted divergence of the probabilities from those in float64, nats a token. At `low` it is about what llama.cpp's own rounding
to bytes does. A model whose probabilities are sharp loses more by a cache in float16 alone: then a multiple of that is accepted."""
_READ, _STEPS = 24, 16
"""Tokens of the prompt, and steps behind it."""
_ALLOWED = 4.0
"""Times what a cache in float16 and sums in float32 do, as numpy computes them."""
_LIMIT_S = 900.0


def try_artifact(plan: DecoderPlan, decoder: DecoderDescription, folder: Path) -> DecoderCheck:
    """Has a process that has loaded nothing else read a prompt and take steps with the artifact in `folder`. The tokens are random:
    a text that the model would write itself would flatter it.

    Raises:
        ArtifactFails: its process fails, or its answers are not those of float64.
    """
    options = plan.provenance.options
    read = min(_READ, decoder.context_length - _STEPS)
    tokens = np.random.default_rng(abs(options.seed) + 1).integers(0, decoder.vocabulary, read + _STEPS)
    judged = _STEPS + 1
    expected, _ = extend_decoder_cache(decoder, tokens, None, np.float64, judged)
    rounded, _ = extend_decoder_cache(decoder, tokens, None, np.float32, judged, np.float16)
    logits = _ask_process(options, folder, tokens, read)
    if logits.shape != expected.shape or not np.isfinite(logits).all():
        raise ArtifactFails(where="on a text", reason="its logits are not finite, or too few")
    bound = max(options.bound, _ALLOWED * relative_error([rounded], [expected]))
    kl_bound = max(KL_BOUNDS[options.precision], _ALLOWED * compute_divergence(expected, rounded))
    if options.tolerance is not None:
        kl_bound = np.inf
    check = DecoderCheck(
        tokens=judged,
        kl=max(0.0, compute_divergence(expected, logits)),
        kl_bound=kl_bound,
        error=relative_error([logits], [expected]),
        bound=bound,
    )
    if check.error > bound or check.kl > kl_bound:
        reason = f"error {check.error:.2e} (bound {bound:.2e}), KL {check.kl:.2e} (bound {kl_bound:.2e})"
        raise ArtifactFails(where="on a text", reason=reason)
    return check


def _ask_process(options: Options, folder: Path, tokens: np.ndarray, read: int) -> np.ndarray:
    limit = options.memory_limit_mb << 20 if options.memory_limit_mb else None
    device = select_device(options.isa, options.cores)
    files = scratch.temporary()
    with scratch.using(files), Pool(limit, entry=ENTRY) as pool:
        np.save(files / "tokens.npy", tokens)
        worker = pool.worker(Regime((), options.threads, True, device, owner="artifact", fresh=True))
        answer = pool.ask(worker, _LIMIT_S, "write", path=str(folder.resolve()), files=str(files), read=read)
        if not answer.ok:
            raise ArtifactFails(where="on a text", reason=f"{answer.outcome}: {answer.reason}")
        return np.asarray(np.load(files / "logits.npy"))


def _write(path: str, files: str, read: int) -> dict[str, object]:
    """Reads the first tokens as a prompt, and takes the others one by one: logits behind the prompt, and behind each."""
    folder = Path(path)
    plan, decoder = read_decoder_plan(folder), read_any_decoder(folder)
    assert plan is not None
    tokens = np.load(Path(files) / "tokens.npy").tolist()
    model = run_planned_decoder(decoder, plan, LanguageSettings(), folder)
    state = model.open_sequence()
    pieces = [tokens[:read], *([token] for token in tokens[read:])]
    np.save(Path(files) / "logits.npy", np.concatenate([model.extend([(state, piece)])[0] for piece in pieces]))
    return {"chunks": read > STEP_ROWS[-1]}


def trial_commands(_device: Device, _tell: Tell) -> Commands:
    """By name."""
    return {"write": _write}
