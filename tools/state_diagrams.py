"""Draws the state machines of nrl-rollout-ckpt for docs/rollout-ckpt/states.md, from the tables that the code runs on.

`.venv/bin/python tools/state_diagrams.py` renews the drawings and the tables in the page; with `--check` it only says
what is not in step.
"""

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from nrl_rollout_ckpt.saving.snapshot_states import ATTEMPT, COMMIT_WINDOW, ENVIRONMENT_PHASE
from nrl_rollout_ckpt.state.ledger_states import ATTEMPTS, GROUP_PHASES, GROUP_STATUSES
from nrl_rollout_ckpt.state.transition_table import TransitionTable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rollout-ckpt" / "states.md"
MACHINES: dict[str, TransitionTable[Any, Any]] = {
    "snapshot-attempt": ATTEMPT,
    "commit-window": COMMIT_WINDOW,
    "environment-phase": ENVIRONMENT_PHASE,
    "group-phase": GROUP_PHASES,
    "group-status": GROUP_STATUSES,
    "sibling-attempt": ATTEMPTS,
}
BEGIN, END = "<!-- {}: written by tools/state_diagrams.py -->", "<!-- end -->"
RENEW = "renew it with: .venv/bin/python tools/state_diagrams.py"


def states(machine: TransitionTable[Any, Any]) -> list[StrEnum]:
    return list(type(machine.initial))


# ---- As a table ----


def table(machine: TransitionTable[Any, Any]) -> str:
    """One row a state: the events that it allows, and where each leads."""
    lines = ["| state | event → next state |", "| --- | --- |"]
    for state in states(machine):
        moves = [f"`{event}` → `{target}`" for (before, event), target in machine.moves.items() if before == state]
        lines.append(f"| `{state}`{' (begin)' * (state == machine.initial)} | {', '.join(moves) or 'an end'} |")
    return "\n".join(lines)


# ---- As a drawing: states below each other; what leads down is on the right, what leads back on the left ----

WIDTH, HEIGHT, GAP, PORT, MARGIN, LETTER = 196, 44, 34, 11, 12, 6.4


@dataclass
class Arrow:
    """Moves from one state or several into another.

    Attributes:
        label: The events.
        sources: The rows that they lead from.
        target: The row that they lead to.
    """

    label: str
    sources: tuple[int, ...]
    target: int

    @property
    def leads_back(self) -> bool:
        return self.sources[0] > self.target

    @property
    def is_straight(self) -> bool:
        return self.sources == (self.target - 1,)

    @property
    def span(self) -> int:
        return max(abs(source - self.target) for source in self.sources)


def arrows(machine: TransitionTable[Any, Any]) -> list[Arrow]:
    """Every move but those from a state to itself, short ones first."""
    row = {state: at for at, state in enumerate(states(machine))}
    sources: dict[tuple[str, int, bool], list[int]] = {}
    for (source, event), target in machine.moves.items():
        if source != target:
            sources.setdefault((event.value, row[target], row[source] > row[target]), []).append(row[source])
    events: dict[tuple[tuple[int, ...], int], list[str]] = {}
    for (event, target, _), rows in sources.items():
        events.setdefault((tuple(rows), target), []).append(event)
    found = [Arrow(", ".join(names), rows, target) for (rows, target), names in events.items()]
    return sorted(found, key=lambda arrow: (arrow.span, arrow.target))


def drawing(machine: TransitionTable[Any, Any]) -> str:
    """The machine as SVG."""
    found, names = arrows(machine), states(machine)
    right = [arrow for arrow in found if not arrow.leads_back and not arrow.is_straight]
    left = [arrow for arrow in found if arrow.leads_back]
    box_x = MARGIN + sum(lane_width(arrow) for arrow in left)
    parts: list[str] = []
    for at, state in enumerate(names):
        parts += box(machine, state, box_x, top(at))
    for arrow in found:
        if arrow.is_straight:
            x, y = box_x + WIDTH / 2, top(arrow.target)
            parts += [line(f"M{x} {y - GAP}V{y}"), head(x, y, "v"), text(arrow.label, x + 8, y - GAP / 2 + 4)]
    for side, sign, edge in ((right, 1, box_x + WIDTH), (left, -1, box_x)):
        lane = edge + sign * 14
        for arrow in side:
            parts += bent(arrow, side, edge, lane, sign)
            lane += sign * lane_width(arrow)
    beside = max((len(arrow.label) * LETTER for arrow in found if arrow.is_straight), default=0) - WIDTH / 2
    width = box_x + WIDTH + MARGIN + 14 + max(beside, sum(lane_width(arrow) for arrow in right))
    height = top(len(names)) - GAP + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{escape(machine.machine)}</title>",
            f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def lane_width(arrow: Arrow) -> float:
    return round(len(arrow.label) * LETTER) + 18


def top(row: int) -> float:
    return MARGIN + row * (HEIGHT + GAP)


def box(machine: TransitionTable[Any, Any], state: StrEnum, x: float, y: float) -> list[str]:
    """A state; events that it stays in are its second line, an end has a thick frame."""
    targets = {event.value: target for (before, event), target in machine.moves.items() if before == state}
    stays = [event for event, target in targets.items() if target == state]
    fill = "#dbeafe" if state == machine.initial else "#f8fafc"
    frame = 2.5 if not targets else 1
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{fill}" stroke="#334155" '
        f'stroke-width="{frame:g}"/>',
        text(state.value, x + WIDTH / 2, y + (18 if stays else 27), 'text-anchor="middle" font-weight="600"'),
    ]
    if stays:
        loop = f"\u21ba {', '.join(stays)}"
        size = min(11.0, 11 * (WIDTH - 10) / (len(loop) * 5.6))
        parts.append(text(loop, x + WIDTH / 2, y + 35, f'text-anchor="middle" font-size="{size:.1f}"'))
    return parts


def bent(arrow: Arrow, side: list[Arrow], edge: float, lane: float, sign: int) -> list[str]:
    """An arrow that goes out of its boxes' sides, along a lane of its own, into the side of another box."""
    ends = {at: port(at, arrow, side) for at in (*arrow.sources, arrow.target)}
    furthest = max(arrow.sources, key=lambda at: abs(at - arrow.target))
    path = [f"M{edge:g} {ends[at]:g}H{lane:g}" for at in arrow.sources]
    path.append(f"M{lane:g} {ends[furthest]:g}V{ends[arrow.target]:g}H{edge:g}")
    label_y = top(arrow.target) - GAP / 2 + 4 if sign > 0 else top(arrow.target) + HEIGHT + GAP / 2 + 4
    anchor = "" if sign > 0 else 'text-anchor="end"'
    return [
        line("".join(path)),
        head(edge, ends[arrow.target], "<" if sign > 0 else ">"),
        text(arrow.label, lane + sign * 6, label_y, anchor),
    ]


def port(row: int, arrow: Arrow, side: list[Arrow]) -> float:
    """Where on the side of a box an arrow begins or ends; each has a place of its own."""
    touching = [other for other in side if row in (*other.sources, other.target)]
    return top(row) + HEIGHT / 2 + (touching.index(arrow) - (len(touching) - 1) / 2) * PORT


def line(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#334155"/>'


def head(x: float, y: float, points: str) -> str:
    wings = {"v": ((-4, -7), (4, -7)), "<": ((7, -4), (7, 4)), ">": ((-7, -4), (-7, 4))}[points]
    corners = " ".join(f"{x + dx:g},{y + dy:g}" for dx, dy in ((0, 0), *wings))
    return f'<polygon points="{corners}" fill="#334155"/>'


def text(words: str, x: float, y: float, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="#0f172a"{" " * bool(more)}{more}>{escape(words)}</text>'


# ---- The files ----


def renewed() -> dict[Path, str]:
    """What the page and the drawings should be."""
    page = PAGE.read_text(encoding="utf-8")
    files: dict[Path, str] = {}
    for name, machine in MACHINES.items():
        begin = BEGIN.format(name)
        before, rest = page.split(begin)
        picture = f"![{machine.machine}](states-{name}.svg)"
        page = f"{before}{begin}\n\n{picture}\n\n{table(machine)}\n\n{END}{rest.split(END, 1)[1]}"
        files[PAGE.with_name(f"states-{name}.svg")] = drawing(machine)
    return {PAGE: page, **files}


def main(args: list[str]) -> str | None:
    """Renew the files, or check them; give what is wrong with them."""
    files = renewed()
    if "--check" not in args:
        for path, content in files.items():
            path.write_text(content, encoding="utf-8")
        return None
    old = [path.name for path, content in files.items() if not path.exists() or path.read_text("utf-8") != content]
    return f"{', '.join(old)}: not in step with the transition tables; {RENEW}" if old else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
