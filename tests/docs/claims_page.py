"""Table of docs/claims.md: the claims of docs/studies/claims.yaml with the published results at the scale gpu.

A result counts if it is of today's plan: with its budget, its first seed and its claim.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pretune.core.config.read import read_yaml
from pretune.core.log import format_duration, format_number
from pretune.reports.study_text import OUTCOME_LABELS, format_deciding_budget
from pretune.studies.read import load_study
from tests.docs.study_pages import FOLDER, PLANS, Facts, is_former, read_results

CLAIMS, SCALE = FOLDER / "claims.yaml", "gpu"
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Comparison:
    """Claim of a study that decides one of the page, with its result where there is one."""

    study: str
    text: str
    measure: str
    result: Facts | None


def read_claims() -> list[dict[str, Any]]:
    """Return the claims in their order, with their numbers."""
    return [{"number": int(number), **claim} for number, claim in read_yaml(CLAIMS).items()]


def list_comparisons(claim: Mapping[str, Any], results: Mapping[str, Mapping[str, Facts]]) -> Iterator[Comparison]:
    """Yield the claims of studies that decide one, in the order of the file."""
    for study, texts in claim.get("decided_by", {}).items():
        facts = results.get(study, {}).get(SCALE)
        published = [] if facts is None or not is_current(facts) else facts["claims"]
        for text, measures in texts.items():
            for measure in measures:
                found = [c for c in published if (c["text"], c["measure"]) == (text, measure) and "seeds" in c]
                yield Comparison(study, text, measure, found[0] if found else None)


def is_current(facts: Facts) -> bool:
    """Return whether a result is of today's plan of the scale."""
    study = load_study(facts["study"]["name"])
    scale = study.get_scale(SCALE)
    first_seed = study.first_seed if scale.first_seed is None else scale.first_seed
    return not is_former(SCALE, facts) and facts["seeds"][0] == first_seed


def decide_claim(comparisons: list[Comparison]) -> str:
    """Return the verdict of a claim: it holds if all comparisons hold, and does not if one does not."""
    outcomes = {NOT_RUN if c.result is None else str(c.result["outcome"]) for c in comparisons}
    for outcome in ("does not hold", NOT_RUN, "not measured", "undecided"):
        if outcome in outcomes:
            return outcome
    return "holds"


def describe_claims() -> list[tuple[str, ...]]:
    """Return a row for each claim: its number, claim, paper, ours, verdict, cost and command."""
    results, plans = read_results(), json.loads(PLANS.read_text(encoding="utf-8"))
    return [describe_claim(claim, results, plans) for claim in read_claims()]


def describe_claim(
    claim: Mapping[str, Any], results: Mapping[str, Mapping[str, Facts]], plans: Facts
) -> tuple[str, ...]:
    number, sentence, paper = str(claim["number"]), claim["claim"], claim["paper"]
    if "dropped" in claim:
        return number, sentence, paper, "", "no verdict", "", claim["dropped"]
    comparisons = [*list_comparisons(claim, results)]
    verdict = decide_claim(comparisons)
    ours = "; ".join(format_comparison(c) for c in comparisons if c.result is not None)
    single = " (one pre-training)" if claim["pretrainings"] == 1 and verdict != NOT_RUN else ""
    names = list(claim["decided_by"])
    costs = (format_cost(name, results.get(name, {}).get(SCALE), plans) for name in names)
    commands = (f"`pretune compare {name} --scale {SCALE} --out runs/{name}`" for name in names)
    label = OUTCOME_LABELS.get(verdict, verdict)
    return number, sentence, paper, ours, f"**{label}**{single}", ", ".join(costs), "<br>".join(commands)


def format_comparison(comparison: Comparison) -> str:
    """Return a difference in the claimed direction with two standard errors, and what would decide it."""
    result = comparison.result
    assert result is not None
    if result.get("difference") is None:
        return f"{comparison.measure}: {result['reason']}"
    error = "" if result.get("error") is None else f" ± {2 * result['error']:.2g}"
    budget = result.get("deciding_budget")
    more = f", undecided: {format_deciding_budget(budget)}" if budget else ""
    plateau = f", {' and '.join(rows)} on the plateau" if (rows := result.get("plateau_rows")) else ""
    return f"{comparison.measure} {result['difference']:+.3g}{error}{more}{plateau}"


def format_cost(name: str, facts: Facts | None, plans: Facts) -> str:
    """Return the cost of a study: as measured, else as planned."""
    if facts is not None and is_current(facts):
        cost, word = facts["cost"], ""
        seconds = cost.get("wall_seconds") or cost["seconds"]
    else:
        cost, word = plans[name][SCALE], "planned: "
        seconds = cost["seconds"]
    return f"{word}{format_number(cost['flops'], billion='G')}FLOP, {format_duration(seconds)}"
