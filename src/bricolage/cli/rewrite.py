"""`bricolage rewrite` and `bricolage rules`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bricolage import errors
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this family or rule. Repeatable.")]
Skip = Annotated[list[str] | None, typer.Option("--skip", metavar="NAME", help="Not this family or rule. Repeatable.")]
Limit = Annotated[
    int | None, typer.Option("--max-rewrites", metavar="N", min=0, help="Stop after N applications of rules.")
]
Opset = Annotated[
    int | None,
    typer.Option(
        "--opset",
        metavar="N",
        help="Raise the model to opset N first: newer ones have operators that more rules use. With --for, they are tried "
        "without being asked for.",
    ),
]
Size = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=SIZE", help="Size of a symbolic dimension to count and check with. Repeatable."
    ),
]
Search = Annotated[
    str,
    typer.Option(
        "--search",
        metavar="METHOD",
        help="Look for the cheapest graph: none, backtrack, saturate, random-keys or learned-keys.",
    ),
]
Policy = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="For --search learned-keys: what `rules learn` wrote, instead of the policy that comes with the package.",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="BACKEND", help="Make the variant that this backend runs fastest here, by timing it."
    ),
]
Own = Annotated[
    Path | None,
    typer.Option("--rules", metavar="FILE", help="Use the rules of this file too; each is proved first."),
]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="The rewritten ONNX file.", show_default=False)
]
rules = typer.Typer(help="The rules that `rewrite` knows.", no_args_is_help=True)


@guard_command
@a.decision_options("budget_s", "threads", "seed", "memory_limit_mb", "constants")
def rewrite(
    model: a.Model,
    out: Output,
    only: Only = None,
    skip: Skip = None,
    limit: Limit = None,
    opset: Opset = None,
    shape: Size = None,
    search: Search = "none",
    policy: Policy = None,
    backend: For = None,
    inputs: a.Inputs = None,
    own: Own = None,
    as_json: a.Json = False,
    *,
    options: Options,
    given: frozenset[str],
) -> None:
    """Rewrite MODEL into an equivalent ONNX model that needs less work, for any runtime.

    Applies every canonicalising rule where it is profitable, checks the result against the original in float64 on random inputs,
    and writes it. If the check fails, nothing is written; bisection names the rule at fault. A search also
    goes through graphs that cost more for a while, by an estimate of the time of each operator. With --for, variants of the model
    race on a backend, and the fastest is written; --budget, --threads and --input are for that. Without it, --budget is the time
    that an evaluation in float64 may take, if more than a minute.
    """
    from bricolage.api.array_files import load_arrays
    from bricolage.api.rewrite_file import RewriteLimits, RuleChoice, rewrite_file, tailor_file
    from bricolage.api.rule_proofs import prove_own_rules
    from bricolage.cli import output, progress_bars

    for file in (model, own, policy):
        if file is not None and not file.exists():
            raise errors.MissingFile(path=file)
    if out.resolve() == model.resolve():
        raise errors.BadOption(option="--output", value=out, advice="It would overwrite the model")
    sizes = _sizes(shape)
    _check_combination(backend, options, given, search=search, limit=limit, inputs=inputs)
    if policy is not None and search != "learned-keys":
        raise errors.BadOption(option="--policy", value=policy, advice="Only --search learned-keys uses it")
    limits = RewriteLimits(search, limit, policy)
    output.check_writable(out)
    with output.stdout_kept():
        choice = RuleChoice(only or (), skip or (), prove_own_rules(own, seed=options.seed), opset)
        if backend is not None:
            timing = dataclasses.replace(options, shapes={name: (size,) for name, size in sizes.items()})
            arrays = load_arrays(inputs) if inputs is not None else None
            with progress_bars.show_progress() as shown:
                outcome = tailor_file(model, out, choice, backend, timing, inputs=arrays, progress=shown)
        else:
            outcome = rewrite_file(model, out, choice, limits, options, sizes)
    from bricolage.report import rewrites

    if as_json:
        output.show_json(rewrites.as_json(outcome))
    else:
        output.show_result(rewrites.rewriting_table(outcome))
    output.note(f"wrote {out}")


def _check_combination(
    backend: str | None, options: Options, given: frozenset[str], *, search: str, limit: int | None, inputs: Path | None
) -> None:
    """Raises `BadOption` where an option has nothing to act on."""
    if backend is not None:
        if search != "none":
            raise errors.BadOption(option="--search", value=search, advice="With --for, what is timed decides")
        if limit is not None:
            raise errors.BadOption(
                option="--max-rewrites", value=limit, advice="With --for, variants have other orders"
            )
        return
    threads = options.threads if "threads" in given else None
    for option, value in (("--threads", threads), ("--input", inputs)):
        if value is not None:
            raise errors.BadOption(option=option, value=value, advice="Nothing is timed without --for BACKEND")


def _sizes(words: list[str] | None) -> dict[str, int]:
    from bricolage.base.option_words import parse_shapes

    sizes = parse_shapes(words or [])
    for name, several in sizes.items():
        if len(several) > 1:
            raise errors.BadOption(option="--shape", value=f"{name}={several}", advice="Give one size to check with")
    return {name: size for name, (size,) in sizes.items()}


@rules.command("list")
@guard_command
def list_rules(
    only: Only = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    instances: Annotated[
        bool,
        typer.Option("--instances", help="List the substitutions of up to four operators that generated rules derive."),
    ] = False,
    as_json: a.Json = False,
) -> None:
    """List the rules by family: equation and conditions."""
    from bricolage.api.rule_listing import list_families, list_substitutions
    from bricolage.cli import output
    from bricolage.report import rewrites

    if instances:
        derivations = list_substitutions()
        if as_json:
            output.show_json(derivations)
        else:
            print("\n".join(derivations))
            output.note(f"{len(derivations)} distinct substitutions")
        return
    families = list_families(only or ())
    if as_json:
        output.show_json(rewrites.rules_json(families))
    elif markdown:
        print(rewrites.rules_markdown(families), end="")
    else:
        output.show_result(rewrites.rules_table(families))


@rules.command("why")
@guard_command
def why_not(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="Name of a rule.", show_default=False)],
    model: a.Model,
    as_json: a.Json = False,
) -> None:
    """Say why RULE does not apply: the reason for each operator of MODEL at which it could start."""
    from bricolage.cli import output

    if not model.exists():
        raise errors.MissingFile(path=model)
    with output.stdout_kept():
        from bricolage.api.rewrite import explain_failures

        refusals = explain_failures(model, rule)
    if as_json:
        output.show_json([{"operator": refusal.operator, "reason": refusal.reason} for refusal in refusals])
    elif refusals:
        from bricolage.report.tables import plain_table

        rows = [[refusal.operator, refusal.reason] for refusal in refusals]
        output.show_result(plain_table([("Operator", "fold"), ("Why not", "fold")], rows))
    else:
        output.show_result("there is no operator at which it could start and does not apply")


@rules.command("verify")
@guard_command
def verify_rules(
    only: Only = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Rules of your own, instead of the known ones.")
    ] = None,
    seed: a.Seed = 0,
    as_json: a.Json = False,
) -> None:
    """Prove every rule on its examples, in exact arithmetic; a false rule ends the command with a counterexample."""
    from bricolage.api.rule_proofs import prove_rules
    from bricolage.cli import output
    from bricolage.report import rewrites

    if file is not None and not file.exists():
        raise errors.MissingFile(path=file)
    if file is not None and only:
        raise errors.BadOption(
            option="--only", value=", ".join(only), advice="With --file, all rules of the file are verified"
        )
    proofs = prove_rules(only or (), file, seed=seed)
    if as_json:
        output.show_json(rewrites.verified_json(proofs))
    else:
        output.show_result(rewrites.render_verification(proofs))


@rules.command("covers")
@guard_command
def covers(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Equations of TASO or Tensat, as text or TASO's file.", show_default=False),
    ],
    only: Only = None,
    skip: Skip = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.1, help="For each equation and each way to read it, at most."),
    ] = 3.0,
    as_json: a.Json = False,
) -> None:
    """Say which of our rules derive each equation of FILE, by equality saturation; the equations themselves are proved first."""
    from bricolage.api.rule_proofs import cover_file
    from bricolage.cli import output, progress_bars
    from bricolage.report import rewrites

    if not file.exists():
        raise errors.MissingFile(path=file)
    with progress_bars.show_progress() as shown:
        outcomes = cover_file(file, only or (), skip or (), seconds=seconds, progress=shown)
    if as_json:
        output.show_json(rewrites.coverage_json(outcomes))
    else:
        output.show_result(rewrites.coverage(outcomes))


@rules.command("generate")
@guard_command
def generate_rules(
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the rules.", show_default=False)
    ],
    derived: Annotated[
        Path | None,
        typer.Option("--derived", metavar="FILE", help="File for the substitutions that follow from the rules."),
    ] = None,
    max_operators: Annotated[
        int, typer.Option("--max-operators", metavar="N", min=1, max=4, help="Operators on a side, at most.")
    ] = 4,
    seed: a.Seed = 0,
) -> None:
    """Find rules by enumerating all terms up to a size, and prove them."""
    from bricolage.api.rule_proofs import enumerate_rules
    from bricolage.cli import output, progress_bars

    for path in (out, derived):
        if path is not None:
            output.check_writable(path)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        generated = enumerate_rules(out, derived, max_operators=max_operators, seed=seed, progress=shown)
    output.show_result(
        f"{generated.visited:,} terms, {generated.candidates:,} candidates: {generated.false:,} false at other shapes, "
        f"{generated.instances:,} instances of others, {generated.unproved:,} without a proof"
    )
    output.show_result(
        f"{len(generated.rules):,} rules; {len(generated.derived):,} more substitutions follow from them"
    )
    output.note(f"wrote {out}")


@rules.command("learn")
@guard_command
def learn_policy(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL", help="ONNX files.", show_default=False)],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the policy.", show_default=False)
    ],
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Rounds of learning.")] = 200,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=1.0, help="To look at graphs, and to learn, at most each.")
    ] = 600.0,
    seed: a.Seed = 0,
    as_json: a.Json = False,
) -> None:
    """Learn from MODELs in which distributions random keys are drawn, for `rewrite --search learned-keys --policy FILE`.

    Nothing is measured: the estimate of the search itself is the reward. Needs PyTorch.
    """
    from bricolage.api.rule_learning import learn_from_files
    from bricolage.cli import output

    for file in models:
        if not file.exists():
            raise errors.MissingFile(path=file)
    output.check_writable(out)
    with output.stdout_kept():
        learned = learn_from_files(models, out, rounds=rounds, seconds=seconds, seed=seed)
    if as_json:
        output.show_json(
            {
                "parts": learned.parts,
                "names": len(learned.policy.names),
                "rounds": learned.rounds,
                "first_reward": learned.first_reward,
                "last_reward": learned.last_reward,
            }
        )
    else:
        output.show_result(
            f"rounds: {learned.rounds:,}, parts: {learned.parts:,}, rules: {len(learned.policy.names):,}"
        )
        output.show_result(
            f"gain over uniform keys: {learned.first_reward:.2%} at first, {learned.last_reward:.2%} at last"
        )
    output.note(f"wrote {out}")
