"""Pages of studies: docs/studies/NAME.md, from the results of `pretune compare` in docs/studies/NAME-SCALE.json.

    cp runs/pooling/study.json docs/studies/pooling-gpu.json && make docs
    PRETUNE_DATA=DIR python -m tests.docs.study_pages        # plans.json anew: planned cost of every study

A study without results has no page; docs/studies.md lists it as planned, with its cost. comments.json has what we make
of a result, by study and scale: why a claim does not hold, say.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretune.core.log import format_duration, format_markdown, format_number
from pretune.reports.study_text import (
    LAW_HEAD,
    LAW_NOTE,
    format_command,
    format_difference,
    format_marks,
    format_tuning,
    format_verdict,
    list_costs,
    list_law,
    list_paper_rows,
    list_rows,
)
from pretune.studies import list_study_files
from pretune.studies.read import load_study

FOLDER = Path(__file__).parents[2] / "docs" / "studies"
PLANS, COMMENTS = FOLDER / "plans.json", FOLDER / "comments.json"
SCALES = ("class", "gpu", "full")
Facts = Mapping[str, Any]


def read_results() -> dict[str, dict[str, Facts]]:
    """Return the committed results by study and scale."""
    results: dict[str, dict[str, Facts]] = {}
    for name in list_study_files():
        for scale in SCALES:
            path = FOLDER / f"{name}-{scale}.json"
            if path.is_file():
                results.setdefault(name, {})[scale] = json.loads(path.read_text(encoding="utf-8"))
    return results


def render_pages() -> dict[Path, str]:
    """Return the pages of all studies with results."""
    return {FOLDER / f"{name}.md": render_page(by_scale) for name, by_scale in read_results().items()}


def render_page(by_scale: Mapping[str, Facts]) -> str:
    """Return a page: the question, the paper's table, then for each scale our table, what holds, cost and command."""
    study = [*by_scale.values()][-1]["study"]  # of the largest scale, whose note states how it differs
    paper = study["paper"]
    source = f"[{paper['citation']}]({paper['url']})" if paper["url"] else paper["citation"]
    lines = [f"# {study['title']}", "", study["question"], "", f"Source: {source}.", ""]
    if paper["table"] is not None:
        lines += ["## The paper", "", *format_rows(("", *paper["table"]["columns"]), list_paper_rows(paper["table"]))]
        lines += ["", f"{paper['table']['caption']}.", ""]
    if paper["note"]:
        lines += [paper["note"], ""]
    comments = json.loads(COMMENTS.read_text(encoding="utf-8")).get(study["name"], {})
    for scale, results in by_scale.items():
        lines += [*render_scale(scale, results, comments.get(scale))]
    return "\n".join(lines)


def render_scale(scale: str, results: Facts, comment: str | None = None) -> Iterator[str]:
    """Yield the lines of one scale."""
    measures = results["measures"]
    yield from (f"## Scale {scale}", "")
    if results["scale_about"]:
        yield from (results["scale_about"], "")
    if is_former(scale, results):
        command = f"pretune compare {results['study']['name']} --scale {scale} --dry-run"
        yield from (
            f"These results are of a former plan of this scale, with another budget; `{command}` prints today's.",
            "",
        )
    heads = (f"{measure['name']} {'↓' if measure['better'] == 'lower' else '↑'}" for measure in measures)
    yield from format_rows(("", *heads), list_rows(results))
    seeds = ", ".join(map(str, results["seeds"]))
    about = f"Mean over the seeds {seeds}, ± half of the 95 % interval; ↑: higher is better, ↓: lower."
    yield from ("", f"{about} {format_marks(results)}".strip(), "")
    claims = [
        (claim["text"], describe_measures(claim), f"**{format_verdict(results, claim)}**", format_difference(claim))
        for claim in results["claims"]
        if claim["outcome"] != "not measured" or "seeds" in claim  # of this scale, but not finished
    ]
    if claims:
        yield from format_rows(("claim", "measure", "verdict", "difference ± standard error, +: as claimed"), claims)
        yield from ("", results["rule"], format_tuning(results), "")
    if law := list_law(results):
        yield from (*format_rows(LAW_HEAD, law), "", LAW_NOTE, "")
        if not is_former(scale, results):
            yield from (f"![Loss by tokens, for every size, and the law](claims-{results['study']['name']}.svg)", "")
    if comment:
        yield from (comment, "")
    if results["missing"]:
        cells = (f"{cell['row']}, seed {cell['seed']} ({', '.join(cell['measures'])})" for cell in results["missing"])
        yield from (f"Not finished: {'; '.join(cells)}.", "")
    yield from format_rows(("cost", ""), list_costs(results))
    yield from ("", "```sh", format_command(results), "```", "")


def is_former(scale: str, results: Facts) -> bool:
    """Return whether the budget of a scale has changed since a study was run."""
    study = load_study(results["study"]["name"])
    budget = study.get_scale(scale).budget or study.budget
    return any(getattr(budget, name) != results.get("budget", {}).get(name) for name in ("tokens", "flops", "seconds"))


def describe_measures(claim: Facts) -> str:
    """Return the measure of a claim; of one about two measures, both."""
    names = dict.fromkeys((claim["measure"], claim["against"]))
    return " against ".join(names)


def format_rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    header, *lines = [[cell.replace("|", "/") for cell in line] for line in (head, *rows)]
    return format_markdown(header, lines).splitlines()


def describe_states() -> list[tuple[str, ...]]:
    """Return a row per study: what was run, with its page, and the planned cost of every scale."""
    plans, results = json.loads(PLANS.read_text(encoding="utf-8")), read_results()
    rows = []
    for name in list_study_files():
        page = f"[{', '.join(results[name])}](studies/{name}.md)" if name in results else "planned"
        offered = [entry.name for entry in load_study(name).scales]
        needs = {"class": f"needs `{offered[0]}`"}
        costs = [_format_plan(plans[name][s]) if s in offered else needs.get(s, "") for s in SCALES]
        rows.append((f"`{name}`", page, *costs))
    return rows


def _format_plan(plan: Facts) -> str:
    if not plan["flops"]:  # published weights, and data that is not installed
        return f"{plan['cells']} cells, not estimated"
    flops = f"{format_number(plan['flops'], billion='G')}FLOP"
    return f"{plan['cells']} cells, {flops}, {format_duration(plan['seconds'])}"


def write_plans() -> None:
    """Write the planned cost of every study, steps one after the other: on an H200, of the class scale on one core."""
    from pretune.studies.compare import CompareOptions, build_plan

    plans: dict[str, Any] = {}
    for name in list_study_files():
        for scale in (entry.name for entry in load_study(name).scales):
            plan = build_plan(CompareOptions(study=name, scale=scale, device="cpu" if scale == "class" else None))
            estimate = asdict(plan.sum_estimates())
            plans.setdefault(name, {})[scale] = {
                "cells": len(plan.cells), "steps": len(plan.steps), "device": plan.device,
                "flops": float(f"{estimate['flops']:.3g}"), "seconds": float(f"{estimate['seconds']:.3g}"),
            }  # fmt: skip
            print(name, scale, plans[name][scale], flush=True)
    PLANS.write_text(json.dumps(plans, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_plans()
