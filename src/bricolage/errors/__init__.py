"""The catalogue of everything that can go wrong, a module for each subject.

An error is a class with two templates: `what` (what happened, and where) and `hint` (what to do next). Raising it fills
in the facts: `raise MissingFile(path="x.onnx")`. The command line prints the sentence and exits with `exit_code`. Every class can
be imported from here.
"""

from __future__ import annotations

from bricolage.errors.accuracy import *
from bricolage.errors.artifacts import *
from bricolage.errors.backends import *
from bricolage.errors.base import *
from bricolage.errors.clusters import *
from bricolage.errors.costs import *
from bricolage.errors.decoders import *
from bricolage.errors.inputs import *
from bricolage.errors.language import *
from bricolage.errors.models import *
from bricolage.errors.options import *
from bricolage.errors.quantization import *
from bricolage.errors.results import *
from bricolage.errors.rewriting import *
from bricolage.errors.servers import *
from bricolage.errors.training import *
