"""Draws docs/rollout-ckpt/lost-work.svg: how much work a run loses, by the time between two snapshots.

`.venv/bin/python tools/lost_work_plot.py` renews it; with `--check` it only says whether it is in step.
"""

import math
import sys
from pathlib import Path

PLOT = Path(__file__).resolve().parent.parent / "docs" / "rollout-ckpt" / "lost-work.svg"
HOUR = 3600.0
BETWEEN_CRASHES = 12 * HOUR
PAUSES = {0.03: "#0f766e", 1.0: "#1d4ed8", 10.0: "#b45309", 60.0: "#be123c"}
INTERVALS, SHARES = (5.0, 2 * HOUR), (0.0005, 0.5)
X_TICKS = {5: "5 s", 15: "15 s", 60: "1 min", 300: "5 min", 900: "15 min", 3600: "1 h", 7200: "2 h"}
Y_TICKS = {0.001: "0.1 %", 0.003: "0.3 %", 0.01: "1 %", 0.03: "3 %", 0.1: "10 %", 0.3: "30 %"}
LEFT, TOP, WIDTH, HEIGHT = 62, 16, 520, 300


def lost_share(interval_s: float, pause_s: float, between_crashes_s: float) -> float:
    """The share of its work that a run loses: what stands still in pauses, and what is done again after crashes."""
    return pause_s / interval_s + interval_s / 2 / between_crashes_s


def best_interval(pause_s: float, between_crashes_s: float) -> float:
    """Where `lost_share` is smallest, in seconds."""
    return math.sqrt(2 * pause_s * between_crashes_s)


# ---- The drawing; both axes are logarithmic ----


def x_of(interval_s: float) -> float:
    return LEFT + WIDTH * math.log(interval_s / INTERVALS[0]) / math.log(INTERVALS[1] / INTERVALS[0])


def y_of(share: float) -> float:
    return TOP + HEIGHT * (1 - math.log(share / SHARES[0]) / math.log(SHARES[1] / SHARES[0]))


def curve(pause_s: float, color: str) -> list[str]:
    """A curve with a dot at its lowest point; what is above the plot is left out."""
    step = (INTERVALS[1] / INTERVALS[0]) ** (1 / 120)
    intervals = [INTERVALS[0] * step**at for at in range(121)]
    shares = [(interval, lost_share(interval, pause_s, BETWEEN_CRASHES)) for interval in intervals]
    points = " ".join(f"{x_of(at):.1f},{y_of(share):.1f}" for at, share in shares if share <= SHARES[1])
    best = best_interval(pause_s, BETWEEN_CRASHES)
    x, y = x_of(best), y_of(lost_share(best, pause_s, BETWEEN_CRASHES))
    label = f"pause {pause_s:g} s"
    return [
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>',
        f'<text x="{x + 4:.1f}" y="{y + 18:.1f}" text-anchor="end" fill="{color}" font-weight="600">{label}</text>',
    ]


def drawing() -> str:
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    parts = [f'<rect width="{right + 40}" height="{bottom + 52}" rx="6" fill="#fff"/>']
    for tick, label in X_TICKS.items():
        x = x_of(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    for share, label in Y_TICKS.items():
        y = y_of(share)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for pause_s, color in PAUSES.items():
        parts += curve(pause_s, color)
    hours = BETWEEN_CRASHES / HOUR
    caption = f"lost share of a run's work, by the time between snapshots; a crash every {hours:g} hours"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 40} {bottom + 52}" width="{right + 40}" '
            f'height="{bottom + 52}" font-family="system-ui, sans-serif" font-size="12" fill="#0f172a">',
            f"<title>{caption}</title>",
            *parts,
            f'<text x="{(LEFT + right) / 2:g}" y="{bottom + 40}" text-anchor="middle">{caption}</text>',
            "</svg>\n",
        ]
    )


def main(args: list[str]) -> str | None:
    """Renew the plot, or check it; give what is wrong with it."""
    if "--check" not in args:
        PLOT.write_text(drawing(), encoding="utf-8")
    elif not PLOT.exists() or PLOT.read_text(encoding="utf-8") != drawing():
        return f"{PLOT.name} is not in step with its script; renew it with: .venv/bin/python tools/lost_work_plot.py"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
