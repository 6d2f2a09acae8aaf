"""`bricolage train`: what training costs, and how it gets faster."""

from __future__ import annotations

import typer

from bricolage.cli.train.fuse import fuse
from bricolage.cli.train.place import place
from bricolage.cli.train.plan import plan, report, run
from bricolage.cli.train.predict import predict
from bricolage.cli.train.replicas import replicas
from bricolage.cli.train.sparse import sparse
from bricolage.cli.train.tune import tune

app = typer.Typer(
    no_args_is_help=True,
    help="Predict a training step, plan and run it on several devices, place its operators on unlike ones, "
    "train many models as one, search hyper-parameters, keep replicas in step, divide sparse networks.",
    rich_markup_mode=None,
)
app.command()(predict)
app.command()(fuse)
app.command()(tune)
app.command()(replicas)
app.command()(sparse)
app.command()(place)
app.command()(plan)
app.command()(run)
app.command()(report)
