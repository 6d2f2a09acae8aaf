from bricolage.cost.engine_model import EngineModel
from bricolage.placement.boundaries import NoBoundaryCosts
from bricolage.placement.candidates import Way
from bricolage.placement.place import challenger
from bricolage.placement.prediction import Predictor
from bricolage.placement.workgraph import Candidate
from tests.placement.search_problems import graph_of

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
