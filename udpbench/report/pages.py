"""The pages of the document as plain data for the template: experiments, and the run.

Text stays text: user input is never interpreted as markup. Draws nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from udpbench.analysis.points import Point, estimate
from udpbench.analysis.remedies import remedy_text
from udpbench.analysis.watch.host import COMMANDS, HELPS
from udpbench.definition.published import Bar, published
from udpbench.judged_run import Chapter
from udpbench.metrics import METRICS
from udpbench.model.host import Change, Facts, Planned
from udpbench.model.limits import stage_of
from udpbench.model.record import Finding
from udpbench.model.result import Estimate, Result
from udpbench.records.run import Run
from udpbench.report.answers import answer, next_steps
from udpbench.report.captions import captions
from udpbench.report.figure_data import MOST_TIMELINES, shown_over_time
from udpbench.report.ladder import Ladder, extremes, show_bar
from udpbench.report.plan import summed_up
from udpbench.report.search import COLUMNS as SEARCH_COLUMNS
from udpbench.report.search import breaking_lines, search_rows
from udpbench.report.sessions import restored, run_rows, versions
from udpbench.report.sheets import (
    COMPARISON_COLUMNS,
    POINT_COLUMNS,
    comparison_cells,
    ledger_rows,
    point_rows,
    result_sheets,
    trial_name,
)
from udpbench.report.summary import (
    LAB_LABEL,
    MEANT,
    accounted,
    diagnosed,
    ended,
    findings_of,
    first_reason,
    hosts_of,
    in_groups,
    left_out,
    n_of,
    name_of,
    one_line,
    show_number,
    timed,
    trials_label,
    trust,
)
from udpbench.setting_kinds import requested_part
from udpbench.units import format_bytes, unbroken
from udpbench.ways import way_to_receive

LEDGER_COLUMNS = 4
"""Maximum points side by side in a ledger table on an A4 page."""
SHOWN_ELSEWHERE = (
    *("intended_packets", "sent_packets", "received_packets", "lost_packets"),
    *("offered_pps", "delivered_pps", "delivered_pps_spread", "loss_ratio"),
    *("ledger_received_packets", "unaccounted"),
)
"""Metrics that the results and the ledger already show."""
MOST_TOGETHER = 12
"""Maximum lines of a ledger that is kept on one page."""
RESTLESS = ("peer_pid", "interrupts", "napi_cpus")
"""Parts of a setting's value that differ each time, or that irqbalance or a switch changes."""
FEW_HOSTS = 4
"""Hosts side by side in a table of the environment."""


def overview(ladder: Ladder) -> dict[str, Any]:
    """Return the summary of a study's experiments, which comes first."""
    hosts = hosts_of([record for chapter in ladder.chapters for record in chapter.records])
    return {
        "answer": unbroken(f"{extremes(ladder)} {trust(ladder.chapters)}".strip()),
        "environment": list(_environment(hosts)),
    }


def chapter_data(chapter: Chapter) -> dict[str, Any]:
    """Return what the template shows of one experiment, without its figures."""
    cited = published_data(chapter)
    between = chapter.against.comparisons if chapter.against is not None else ()
    shared = set(_shared_findings(chapter).values())
    return {
        "name": chapter.experiment.name,
        "run": chapter.run,
        "question": chapter.experiment.question,
        "lab": LAB_LABEL if chapter.built_in_lab else "",
        "answer": unbroken(answer(chapter)),
        "compared": chapter.against is not None,
        "struck": left_out(chapter),
        "environment": list(_environment(hosts_of(chapter.records))),
        "columns": list(SEARCH_COLUMNS if chapter.searches else POINT_COLUMNS),
        "rows": _rows(chapter),
        "verdicts": [
            {"answer": verdict.answer, "expected": verdict.expected, "measured": verdict.measured}
            for verdict in chapter.verdicts
        ],
        "comparison_columns": list(COMPARISON_COLUMNS),
        "comparisons": [comparison_cells(each) for each in (*chapter.comparisons, *between)],
        "limits": limits(chapter),
        "tuning": _tuning(chapter),
        "ledger": list(_ledger(chapter)),
        "numbers": list(_numbers(chapter)),
        "sheets": [asdict(sheet) for sheet in result_sheets(chapter)],
        "captions": captions(chapter, bool(cited), _over_time(chapter)),
        "findings": [
            {
                "severity": finding.severity,
                "text": str(finding),
                "trials": trials_label(names),
                "shared": number in shared,
            }
            for number, (finding, names) in enumerate(findings_of(chapter), start=1)
        ],
        "published": cited,
        "settings": list(_settings(chapter)),
        "yaml": chapter.experiment.text,
    }


def limits(chapter: Chapter) -> list[str]:
    """Return a sentence for each bottleneck with its remedy; empty without one."""
    if chapter.tuning is not None:
        return []
    return breaking_lines(chapter.searches) if chapter.searches else diagnosed(chapter)


def _tuning(chapter: Chapter) -> dict[str, Any] | None:
    """Return ladder, recipe and notes of a tune; None without one."""
    tuned = chapter.tuned
    if tuned is None:
        return None
    return {
        "rungs": [list(rung) for rung in tuned.rungs],
        "recipe": tuned.recipe,
        "commands": tuned.commands,
        "notes": list(tuned.notes),
    }


def _environment(hosts: dict[str, Facts]) -> Iterator[str]:
    """Yield one line per distinct kind of host."""
    lines: dict[str, list[str]] = {}
    for name, facts in hosts.items():
        cpu = facts.cpu_model or "unknown CPU"
        line = f"Linux {facts.kernel}, {len(facts.cpus)} × {cpu}, {facts.driver or 'no driver'}"
        lines.setdefault(line, []).append(name)
    for line, names in lines.items():
        yield f"{' and '.join(names)}: {line}"


def _rows(chapter: Chapter) -> list[dict[str, Any]]:
    if chapter.searches:
        return [{"struck": False, "cells": cells} for cells in search_rows(chapter.searches)]
    return [{"struck": mark == "struck", "cells": cells} for cells, mark in point_rows(chapter)]


def _ledger(chapter: Chapter) -> Iterator[dict[str, Any]]:
    """Yield the ledgers of the points' representative trials, a few points to a table.

    A stage is explained below the first table in which packets ended there, or may have.
    """
    explained: set[str] = set()
    for group in in_groups(accounted(chapter), LEDGER_COLUMNS):
        results = [result for _, result in group]
        lines = ledger_rows(results)
        rows = [{**asdict(line), "quiet": line.stage and not line.moved} for line in lines]
        points = [trial_name(point, result) for point, result in group]
        moved = [line.name for line in lines if line.moved and line.stage]
        watched = all(result.trial.watched for result in results)
        of_program = all(
            way_to_receive(result.trial.receive).takes == "program" for result in results
        )
        explanations = [
            _stage_advice(name, watched, of_program)
            for name in moved
            if stage_of(name) in MEANT and name not in explained
        ]
        explained.update(moved)
        long = 2 * len(explanations) + len(moved) > MOST_TOGETHER
        yield {"points": points, "rows": rows, "told": explanations, "long": long}


def trials_data(chapter: Chapter) -> list[dict[str, Any]]:
    """Return every trial as a line, with its own ledger and its findings.

    Stages that lost nothing are omitted. A finding of several trials has its number in the list of
    findings, and only its own value as a text.
    """
    numbers = _shared_findings(chapter)
    before = ["", *map(first_reason, chapter.every_trial)]
    return [
        {
            "name": trials_label([result.trial.name]),
            "valid": result.valid,
            "line": one_line(result, known),
            "rows": [
                {"name": row.name, "packets": row.cells[0]}
                for row in (ledger_rows([result]) if result.ledger is not None else ())
                if row.moved or not row.stage
            ],
            **_findings_of_trial(result, numbers),
        }
        for result, known in zip(chapter.every_trial, before, strict=False)
    ]


def _shared_findings(chapter: Chapter) -> dict[Finding, int]:
    """Return finding of several trials, without its value → its position in the list."""
    listed: dict[Finding, int] = {}
    for number, (finding, _) in enumerate(findings_of(chapter), start=1):
        listed.setdefault(replace(finding, value=None), number)
    times = Counter(
        replace(finding, value=None)
        for result in chapter.every_trial
        for finding in result.findings
    )
    return {finding: number for finding, number in listed.items() if times[finding] > 1}


def _findings_of_trial(
    result: Result, numbers: Mapping[Finding, int]
) -> dict[str, list[dict[str, Any]]]:
    """Return the trial's own findings as text, and shared ones by number."""
    own: list[dict[str, Any]] = []
    shared: list[dict[str, Any]] = []
    for finding in result.findings:
        number = numbers.get(replace(finding, value=None))
        if number is None:
            own.append({"severity": finding.severity, "text": finding.brief})
        else:
            shared.append({"number": number, "value": finding.value or ""})
    return {"findings": own, "shared": shared}


def _stage_advice(name: str, watched: bool, of_program: bool) -> dict[str, str]:
    """Return the meaning of a loss at a stage and its remedy, as sentences.

    Of a watched host, without keys of an experiment.
    """
    stage = stage_of(name)
    helps = HELPS[stage] if watched else remedy_text(stage, of_program)
    if watched and COMMANDS.search(helps):
        helps += ", all in the network namespace that was watched"
    if watched and stage == "udp_rcvbuf":
        helps = "that depends on each socket's reader, and the answer names it"
    return {"stage": name, "means": MEANT[stage].means, "helps": f"What helps: {helps}."}


def stages(chapters: Sequence[Chapter]) -> list[dict[str, str]]:
    """Return every stage in the packet's order: its meaning and its source."""
    sources: dict[str, str] = {}
    for chapter in chapters:
        for _, result in accounted(chapter):
            for entry in result.ledger.entries if result.ledger is not None else ():
                sources.setdefault(entry.stage, entry.source)
    return [
        {
            "stage": stage,
            "means": MEANT[stage_of(stage)].means if stage_of(stage) in MEANT else "",
            "source": source,
        }
        for stage, source in sources.items()
    ]


def _numbers(chapter: Chapter) -> Iterator[dict[str, Any]]:
    """Yield the medians of all other metrics: delay, pacing, cost, memory."""
    for group in in_groups(chapter.points, LEDGER_COLUMNS):
        rows = []
        for name, metric in METRICS.items():
            medians = [estimate(point, name) for point in group]
            if name not in SHOWN_ELSEWHERE and any(median is not None for median in medians):
                cells = [
                    _median(median, metric.unit, point)
                    for median, point in zip(medians, group, strict=True)
                ]
                rows.append({"name": _in_words(name), "cells": cells})
        if rows:
            yield {"points": [name_of(point) for point in group], "rows": rows}


def _median(median: Estimate | None, unit: str, point: Point) -> str:
    """Return a median; with its n if some valid trials lack the metric."""
    if median is None:
        return "–"
    return show_number(median.median, unit) + n_of(median, point)


def _in_words(name: str) -> str:
    """Return a metric's name without its unit: ``delay p99``, ``send cpu per packet``."""
    for unit in ("_ns", "_bytes", "_mib_s", "_pps"):
        name = name.replace(f"{unit}_per", "_per").removesuffix(unit)
    return name.replace("_", " ").replace("cpu", "CPU")


def _over_time(chapter: Chapter) -> str:
    """Return which points are shown over time; empty if all are."""
    measured = sum(timed(point) is not None for point in chapter.points)
    if len(shown_over_time(chapter)) == measured:
        return ""
    return (
        f"Shown are the first and the last of {measured} points and those that delivered "
        f"most and least, at most {MOST_TIMELINES}; the data has all points."
    )


# --- published figures ----------------------------------------------------------------------------


def published_data(chapter: Chapter) -> list[dict[str, Any]]:
    """Return the published figures that the points cite, by study."""
    sources = [chapter.experiment.source, *(trial.source for trial in chapter.experiment.points)]
    figures = [published(name) for name in dict.fromkeys(sources) if name is not None]
    studies: dict[str, dict[str, Any]] = {}
    for figure in figures:
        if figure is None:
            continue
        about = {"title": figure.title, "conditions": figure.conditions, "source": figure.source}
        study = studies.setdefault(figure.study, {**about, "figures": []})
        study["figures"].append(
            {
                "name": figure.figure,
                "value": ", ".join(_bar_text(bar) for bar in figure.bars),
                "note": "; ".join(text for text in (figure.note, figure.correction) if text),
            }
        )
    return list(studies.values())


def _bar_text(bar: Bar) -> str:
    """Return a published number as it was printed, with its unit and its metric."""
    text = show_bar(bar)
    name = bar.metric.removesuffix("_percent").rpartition("_")[0] or bar.metric
    return text if bar.metric == "pps" else f"{text} {name.replace('_', ' ')}"


# --- settings ------------------------------------------------------------------------------------


def _settings(chapter: Chapter) -> Iterator[dict[str, Any]]:
    """Yield the settings of all points, then additional ones of sets of points, by host."""
    seen: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    known: dict[int, tuple[tuple[str, str, str], ...]] = {}  # nearly all have the very same
    for record in chapter.records:
        if id(record.changes) not in known:
            known[id(record.changes)] = tuple(
                (host, name, change)
                for host, changes in record.changes.items()
                for name, change in _lines(changes)
            )
        rows = known[id(record.changes)]
        names = seen.setdefault(rows, [])
        names += [record.trial.point or "all"]
    declared = [trial.point or "all" for trial in chapter.experiment.points]
    first = next(iter(seen), ())
    shared = set(first).intersection(*seen) if len(seen) > 1 else set()
    if shared:
        everywhere = [row for row in first if row in shared]
        yield {"points": "all points", "rows": _table_rows(everywhere)}
    for rows, names in seen.items():
        own, points_with = [row for row in rows if row not in shared], set(names)
        if own:
            mine = [name for name in declared if name in points_with]
            points = "all points" if len(mine) == len(declared) else ", ".join(mine)
            yield {"points": points, "rows": _table_rows(own)}


def _table_rows(rows: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [{"host": host, "name": name, "change": change} for host, name, change in rows]


def _lines(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """Yield each change as a line: its name, and value before → value during the trial."""
    done = [
        Planned(
            replace(
                change.setting, value=_plain(requested_part(change.setting.value, change.after))
            ),
            _plain(change.before),
            change.refusal,
            as_wanted=change.before == change.after,
        )
        for change in changes
    ]
    for name, change in summed_up(done):
        yield name, str(change).replace("cannot be set", "refused")


def _plain(value: Any) -> Any:
    """Return a value without parts that differ between runs."""
    if isinstance(value, dict):
        return {key: part for key, part in value.items() if key not in RESTLESS}
    return value


# --- the run -------------------------------------------------------------------------------------


def run_data(run: Run) -> dict[str, Any]:
    """Return what the template shows of a run as a whole."""
    header = run.header
    hosts = hosts_of(run.records)
    return {
        "folder": run.folder.name,
        "version": " and ".join(versions(run)),
        "started_at": header.started_at,
        "environments": [
            {
                "hosts": [facts.host for facts in group],
                "rows": list(_host_rows(group)),
            }
            for group in in_groups(list(hosts.values()), FEW_HOSTS)
        ],
        "restored": restored(run),
        "commands": [{"does": does, "type": line} for does, line in next_steps(run)],
        "ended": [*map(str, run.findings), *ended(run)],
        "run_rows": [{"name": name, "value": value} for name, value in run_rows(run)],
        "lab_name": header.lab_name,
        "lab_yaml": header.lab_text,
    }


def _host_rows(hosts: Sequence[Facts]) -> Iterator[dict[str, Any]]:
    """Yield a row per fact, with a cell per host and whether the hosts differ."""
    for name, cells in _facts(hosts):
        yield {"name": name, "cells": cells, "differs": len(set(cells)) > 1 and name not in OWN}


LISTED = "offloads"
"""Facts of many words: if hosts differ, common words are listed once."""
OWN = ("interface", "addresses", "MAC address", "hostname")
"""Facts that always differ between hosts."""


def _facts(hosts: Sequence[Facts]) -> Iterator[tuple[str, list[str]]]:
    def row(name: str, *cells: object) -> tuple[str, list[str]]:
        return name, ["–" if cell is None or cell == "" else str(cell) for cell in cells]

    yield row("hostname", *(facts.hostname for facts in hosts))
    yield row("kernel", *(facts.kernel for facts in hosts))
    yield row("CPU", *(facts.cpu_model for facts in hosts))
    yield row("CPUs", *(len(facts.cpus) for facts in hosts))
    yield row("NUMA nodes", *(len(facts.numa_nodes) or None for facts in hosts))
    yield row("interface", *(facts.interface for facts in hosts))
    yield row("driver", *(facts.driver for facts in hosts))
    yield row("MAC address", *(facts.mac for facts in hosts))
    yield row("MTU", *(facts.mtu for facts in hosts))
    yield row("RX queues", *(facts.rx_queues for facts in hosts))
    yield row("TX queues", *(facts.tx_queues for facts in hosts))
    yield row("RX ring", *(facts.rings.get("rx") for facts in hosts))
    yield row("addresses", *(_addresses(facts) for facts in hosts))
    for name in dict.fromkeys(name for facts in hosts for name in facts.limits):
        yield row(name, *(_limit(facts, name) for facts in hosts))
    for name in dict.fromkeys(name for facts in hosts for name in facts.environment):
        values = [facts.environment.get(name) for facts in hosts]
        if name == LISTED and len(set(values)) > 1:
            words = [(text or "").split() for text in values]
            shared = set(words[0]).intersection(*words)
            common = [word for word in words[0] if word in shared]
            yield row(f"{name}, everywhere", *[" ".join(common)] * len(hosts))
            name, values = f"{name}, only here", [_without(own, shared) for own in words]
        yield row(name, *values)


def _without(words: Sequence[str], common: Collection[str]) -> str:
    return " ".join(word for word in words if word not in common)


def _addresses(facts: Facts) -> str:
    more = len(facts.addresses) - 2
    return ", ".join(facts.addresses[:2]) + (f" and {more} more" if more > 0 else "")


def _limit(facts: Facts, name: str) -> str | None:
    value = facts.limits.get(name)
    if value is None:
        return None
    return format_bytes(value) if name.endswith(("mem_max", "mem_default")) else str(value)
