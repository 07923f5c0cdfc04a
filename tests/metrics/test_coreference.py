"""Coreference: published cases of the reference scorer, of the papers it quotes, and a calculation by definition."""

import itertools
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from pretune.core.errors import DataError
from pretune.metrics.coreference import coreference


def f1(recall: float, precision: float) -> float:
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


KEY_A = "a bc def"
KEY_D = "12345 67 89ABC"
# Case, key, response, and recall and precision of MUC, B-cubed and CEAF-e as published with the reference scorer, as
# fractions of links, of mentions and of clusters; None if that case has no value.
CASES: list[tuple[str, str, str, Any, Any, Any]] = [
    ("A1", KEY_A, "a bc def", (1, 1), (1, 1), (1, 1)),
    ("A2", KEY_A, "a de", (1 / 3, 1), (7 / 18, 1), (1.8 / 3, 1.8 / 2)),  # 1 + 4/5
    ("A3", KEY_A, "a bcx defy z", (1, 3 / 5), (1, 55 / 108), ((1.8 + 6 / 7) / 3, (1.8 + 6 / 7) / 4)),
    ("A4", KEY_A, "a bcx dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),  # 1 + 4/5 + 2/5
    ("A5", KEY_A, "a bcxB dy z", (1 / 3, 1 / 4), (5 / 9, 5 / 16), (0.68889, 0.51667)),  # 1 + 4/6 + 2/5
    ("A6", KEY_A, "a bcx dy Bz", (1 / 3, 1 / 4), (5 / 9, 17 / 48), (2.2 / 3, 2.2 / 4)),
    (
        "A7",
        KEY_A,
        "a bbcx dy z",
        (1 / 3, 1 / 3),
        (5 / 9, 17 / 42),
        (2.2 / 3, 2.2 / 4),
    ),  # a mention twice in one cluster
    ("A10", KEY_A, "a b c d e f", (0, 0), (1 / 2, 1), None),
    ("A11", KEY_A, "abcdef", (1, 3 / 5), (1, 7 / 18), None),
    ("A12", KEY_A, "a x y c d e z", (0, 0), (13 / 36, 4 / 7), None),
    ("A13", KEY_A, "axycdez", (1 / 3, 1 / 6), (17 / 36, 6 / 49), None),
    ("D1", KEY_D, "12345 6789ABC", (1, 9 / 10), (1, 16 / 21), (1.8333 / 3, 1.8333 / 2)),  # Luo (2005): 1 + 10/12
    ("E1", KEY_D, "1234589ABC 67", (1, 9 / 10), (1, 7 / 12), (1.6667 / 3, 1.6667 / 2)),  # 1 + 10/15
    ("one", KEY_D, "123456789ABC", (1, 9 / 11), (1, 3 / 8), (0.5882 / 3, 0.5882)),  # Luo: 10/17; F1 0.900, 0.545, 0.294
    ("none", KEY_D, "1 2 3 4 5 6 7 8 9 A B C", (0, 0), (3 / 12, 1), (1.3333 / 3, 1.3333 / 12)),  # 0, 0.400, 0.178
    ("F1", "ABCD", "AB CD", (2 / 3, 1), None, None),  # Vilain et al. (1995): a key of three links lacks one
    ("G1", "AB CD", "ABCD", (1, 2 / 3), None, None),
    ("J1", "ABC", "AC", (1 / 2, 1), None, None),
    ("K1", "BCDEGHJ", "ABC DEF GHI", (3 / 6, 3 / 6), None, None),
    ("L1", "ABC DEFG", "AB CD FGH", (2 / 5, 2 / 4), None, None),
    ("M5", "abcdef", "a b c x y z", (0, 0), None, None),
    ("N1", "a b c d e f", "a b c d e f", (0, 0), (1, 1), (1, 1)),  # singletons have no links
    # Pradhan et al. (2014), the table of the module
    ("2014", "abc defg", "ab cd fghi", (2 / 5, 2 / 5), (35 / 84, 4 / 8), (1.3 / 2, 1.3 / 3)),  # 4/5 + 4/8
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_published_cases_of_the_reference_scorer(case: Any) -> None:
    _, key, response, *expected = case
    scores = coreference([key.split()], [response.split()])
    for name, pair in zip(("muc", "b_cubed", "ceaf_e"), expected, strict=True):
        if pair is not None:
            assert scores[f"{name}_f1"] == pytest.approx(f1(*pair), abs=2e-5), name
    mean = sum(scores[f"{name}_f1"] for name in ("muc", "b_cubed", "ceaf_e")) / 3
    assert scores["conll_f1"] == pytest.approx(mean)


def by_definition(gold: Sequence[Any], predictions: Sequence[Any]) -> list[float]:
    """MUC, B-cubed and CEAF-e as the papers define them, over sets, with all alignments tried."""

    def recalls(keys: Sequence[Any], responses: Sequence[Any]) -> list[Fraction]:
        links, shares, aligned = ([Fraction(0), Fraction(0)] for _ in range(3))
        for key_clusters, response_clusters in zip(keys, responses, strict=True):
            key, response = ([{*cluster} for cluster in clusters] for clusters in (key_clusters, response_clusters))
            for cluster in key:
                rest = cluster - set().union(*response)
                links[0] += len(cluster) - len(rest) - sum(bool(cluster & other) for other in response)
                links[1] += len(cluster) - 1
                for mention in cluster:
                    own = next((other for other in response if mention in other), set())
                    shares[0] += Fraction(len(cluster & own), len(cluster))
                    shares[1] += 1
            small, large = sorted((key, response), key=len)
            aligned[0] += max(
                sum(
                    (Fraction(2 * len(a & b), len(a) + len(b)) for a, b in zip(small, order, strict=False)), Fraction(0)
                )
                for order in itertools.permutations(large, len(small))
            )
            aligned[1] += len(key)
        return [part / total if total else Fraction(0) for part, total in (links, shares, aligned)]

    pairs = zip(recalls(gold, predictions), recalls(predictions, gold), strict=True)
    return [f1(float(recall), float(precision)) for recall, precision in pairs]


def test_scores_are_summed_over_documents_as_defined() -> None:
    generator = random.Random(0)

    def partition() -> list[list[str]]:
        clusters: list[list[str]] = [[] for _ in range(4)]
        for mention in "abcdefgh":
            if (number := generator.randrange(5)) < 4:
                clusters[number].append(mention)
        return [cluster for cluster in clusters if cluster]

    for _ in range(40):
        documents = [(partition(), partition()) for _ in range(3)]
        gold, predictions = [g for g, _ in documents], [p for _, p in documents]
        scores = coreference(gold, predictions)
        ours = [scores[name] for name in ("muc_f1", "b_cubed_f1", "ceaf_e_f1")]
        assert ours == pytest.approx(by_definition(gold, predictions))


def test_nothing_to_link_is_zero_and_a_mention_has_one_cluster() -> None:
    assert set(coreference([[], []], [[], []]).values()) == {0.0}
    assert coreference([["ab"]], [[]])["conll_f1"] == 0
    assert coreference([[], ["ab"]], [[], ["ab"]])["conll_f1"] == 1
    with pytest.raises(DataError, match=r"predicted document 1.*'b'.*two clusters"):
        coreference([["ab"], ["ab"]], [["ab"], ["ab", "bc"]])
