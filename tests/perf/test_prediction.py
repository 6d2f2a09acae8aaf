from bricolage.optimize.candidates import Way
from bricolage.optimize.place import challenger
from bricolage.perf.merge_gain import EngineModel
from bricolage.perf.prediction import Predictor
from bricolage.work.graph import Candidate
from bricolage.work.transfer import NoBoundaryCosts
from tests.search.problems import graph_of

KNOWN, UNKNOWN = Way("a", "f32"), Way("b", "bf16")


def predictor() -> Predictor:
    graph = graph_of([[1], []])
    candidates = [Candidate(1 << number, "a", "f32", 1.5, "", "library") for number in range(2)]
    return Predictor(graph, candidates, EngineModel({}), NoBoundaryCosts())


def test_a_division_of_known_regions_is_predicted() -> None:
    assert challenger(((1, KNOWN), (2, KNOWN)), predictor(), "original").predicted_ms == 3.0


def test_a_division_with_an_unknown_region_races_without_a_prediction() -> None:
    """One that was timed end to end before its regions were."""
    assert challenger(((1, KNOWN), (2, UNKNOWN)), predictor(), "original").predicted_ms is None
